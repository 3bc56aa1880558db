"""Events of brokers, disks and controllers, written beside the records that change the metadata.

An event is in the batch of its change, so each change has one event, whichever controller writes it. The controller
knows the cause, or the broker reported it. Ray knows the ends of processes and their causes: the supervisor has them
recorded (`node/controller_link.py`). Rayka's own (decision 091).
"""

from collections.abc import Iterator, Sequence
from uuid import UUID

from rayka.controller.decided_events import DecidedEvents, Decision, EventKind
from rayka.controller.request_context import RequestContext
from rayka.ids import node_name
from rayka.metadata.image import BrokerImage, MetadataImage
from rayka.metadata.metadata_records import EventRecord, MetadataRecord
from rayka.protocol.membership import HeartbeatRequest, RegisterBrokerRequest

EXITED = "its process has ended"


def recorded(context: RequestContext, *decisions: Decision) -> list[MetadataRecord]:
    """The records of these events, in their order."""
    events = DecidedEvents(context)
    return [record for each in decisions for record in events.records(each)]


# ---- Brokers ---------------------------------------------------------------------------------------------------------


def started(
    before: BrokerImage | None, request: RegisterBrokerRequest, *, is_unclean_shutdown: bool
) -> Decision:
    """The event of a registered process."""
    if before is None:
        reason = f"a new {request.roles[0].value} registered on host {request.host}"
    elif is_unclean_shutdown:
        reason = (
            f"another process registered on host {request.host}; it may lack what the one before had acknowledged, as "
            "after a power cut or on another disk, so it leaves all ISRs and copies what it lacks"
        )
    else:
        reason = (
            f"another process registered on host {request.host}, with all that the one before had written"
        )
    return _of_broker(EventKind.BROKER_STARTED, request.broker_id, reason)


def silent(context: RequestContext, broker: BrokerImage) -> str:
    """The cause of fencing a broker whose session has ended."""
    silent_ms = context.sessions.silent_ms(broker, context.now_ms)
    heard = f"for {silent_ms / 1000:.1f} s" if silent_ms >= 0 else "to this controller"
    return f"no heartbeat came {heard}: its process, its machine or the network hangs or is gone"


def fenced(context: RequestContext, broker: BrokerImage, cause: str) -> Decision:
    """The event of a broker that is fenced because of its silence, its exit, or its own request."""
    led_count = context.replicas.of(broker.broker_id).led_count
    leads = f"; others are to lead {led_count:,} of its partitions" if led_count else ""
    return _of_broker(EventKind.BROKER_FENCED, broker.broker_id, cause + leads)


def changed(
    context: RequestContext, broker: BrokerImage, becomes: BrokerImage, request: HeartbeatRequest
) -> list[Decision]:
    """The events of what a heartbeat changes."""
    decisions = list(_disks(broker, becomes, request))
    if becomes.is_fenced and not broker.is_fenced and request.want_shut_down:
        reason = "it shut down under control, and leads nothing any more"
        decisions.append(_of_broker(EventKind.BROKER_STOPPED, broker.broker_id, reason))
    elif becomes.is_fenced and not broker.is_fenced:
        decisions.append(fenced(context, broker, "it asked for it"))
    elif broker.is_fenced and not becomes.is_fenced:
        reason = f"it serves on host {broker.registration.host}"
        decisions.append(_of_broker(EventKind.BROKER_UNFENCED, broker.broker_id, reason))
    return decisions


def cordoned(broker_id: int, directories: str) -> Decision:
    """The event of an operator's cordon, which begins a drain, too."""
    named = "all its directories" if directories == "*" else directories
    reason = (
        f"no new replica goes to {named}, as before a drain"
        if directories
        else "new replicas may go to all its directories again"
    )
    return _of_broker(EventKind.BROKER_CORDONED, broker_id, reason)


def removed(broker: BrokerImage) -> Decision:
    """The event of a broker that an operator or scaling has unregistered."""
    reason = f"it is registered no more; it was on host {broker.registration.host}"
    return _of_broker(EventKind.BROKER_REMOVED, broker.broker_id, reason)


def _of_broker(kind: EventKind, broker_id: int, reason: str) -> Decision:
    return Decision(kind, (node_name(broker_id),), reason)


# ---- Disks -----------------------------------------------------------------------------------------------------------


def _disks(broker: BrokerImage, becomes: BrokerImage, request: HeartbeatRequest) -> Iterator[Decision]:
    failed = [each for each in becomes.offline_directories if each not in broker.offline_directories]
    mended = [each for each in broker.offline_directories if each not in becomes.offline_directories]
    said = dict(zip(request.offline_directory_ids, request.offline_reasons, strict=False))
    for each in failed:
        left_count = len(broker.directories) - len(becomes.offline_directories)
        reason = (
            f"{_path(broker, each)} is offline: {said.get(each) or 'the broker does not say why'}; "
            f"{left_count} of {len(broker.directories)} directories are left"
        )
        yield _of_broker(EventKind.DISK_OFFLINE, broker.broker_id, reason)
    for each in mended:
        yield _of_broker(EventKind.DISK_ONLINE, broker.broker_id, f"{_path(broker, each)} takes writes again")


def _path(broker: BrokerImage, directory_id: UUID) -> str:
    paths = {each.directory_id: each.path for each in broker.directories}
    return paths.get(directory_id, str(directory_id))


# ---- Controllers -----------------------------------------------------------------------------------------------------


def controller_leads(image: MetadataImage, node_id: int) -> Decision:
    """The event of a controller that has become active: another one than before, or the same one again."""
    before = _last(image.events, EventKind.CONTROLLER_LEADS)
    name = node_name(node_id)
    # Any client may have an event of this kind recorded without a subject. An error here would end each controller that
    # becomes active.
    if before is None or not before.subjects:
        reason = "it is the active controller"
    elif before.subjects[0] == name:
        reason = "it is the active controller again: it was elected anew, or its process was started anew"
    else:
        reason = f"it is the active controller; {before.subjects[0]} was"
    return Decision(EventKind.CONTROLLER_LEADS, (name,), reason)


def _last(events: Sequence[EventRecord], kind: EventKind) -> EventRecord | None:
    return next((each for each in reversed(events) if each.kind == kind), None)
