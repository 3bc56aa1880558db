"""The states of a broker by its heartbeats, its silence (H4-H6), and the exit of its process.

Ray's record of an exit fences the broker at once (decision 033). Later heartbeats of that process are refused;
otherwise they would unfence the broker until its session ends. Kafka:
`BrokerHeartbeatManager.calculateNextBrokerState`, `ReplicationControlManager.processBrokerHeartbeat`.
"""

from enum import Enum
from typing import TypeVar
from uuid import UUID

import msgspec

from rayka.controller import incidents
from rayka.controller.controller_timers import FenceStaleBroker, SweepBrokers
from rayka.controller.leader_elections import Elections
from rayka.controller.request_context import RequestContext
from rayka.controller.sessions import BrokerSessions
from rayka.errors import BrokerIdNotRegistered, StaleBrokerEpoch
from rayka.metadata.image import BrokerImage, MetadataImage
from rayka.metadata.metadata_records import BrokerRegistrationChangeRecord, MetadataRecord
from rayka.protocol.membership import (
    HeartbeatRequest,
    HeartbeatResponse,
    ReportExitRequest,
    ReportExitResponse,
)
from rayka.shard.shard import Result, Steps

ResponseT = TypeVar("ResponseT")


class BrokerControlState(Enum):
    """A broker as the controller sees it; Kafka's `BrokerControlState`."""

    FENCED = "fenced"
    UNFENCED = "unfenced"
    CONTROLLED_SHUTDOWN = "controlled-shutdown"
    SHUTDOWN_NOW = "shutdown-now"


_FENCED_STATES = (BrokerControlState.FENCED, BrokerControlState.SHUTDOWN_NOW)


def heartbeat(
    context: RequestContext, request: HeartbeatRequest
) -> Result[MetadataRecord, HeartbeatResponse] | Steps[MetadataRecord, HeartbeatResponse]:
    """Writes the records that lead to the broker's next state; none while the state stays the same (H4). A heartbeat
    that comes after a later one of the same process changes nothing.

    Raises BrokerIdNotRegistered, StaleBrokerEpoch.
    """
    elections, sessions = context.elections(), context.sessions
    broker = registered_broker(context.image, request.broker_id, request.broker_epoch)
    if sessions.has_exited(broker):
        raise StaleBrokerEpoch(
            f"broker {broker.broker_id}: the exit of this process was reported; start another"
        )
    if sessions.is_late(broker, request.number):
        return Result((), HeartbeatResponse(_is_caught_up(broker, request), broker.is_fenced, False))
    state = _next_state(elections, broker, request, sessions)
    becomes = msgspec.structs.replace(
        broker,
        is_fenced=state in _FENCED_STATES,
        is_in_controlled_shutdown=broker.is_in_controlled_shutdown
        or state is BrokerControlState.CONTROLLED_SHUTDOWN,
        offline_directories=_offline_directories(broker, request),
    )
    response = HeartbeatResponse(
        is_caught_up=_is_caught_up(broker, request),
        is_fenced=becomes.is_fenced,
        should_shut_down=state is BrokerControlState.SHUTDOWN_NOW,
    )
    if becomes == broker:
        may_lack_leads = broker.is_active and sessions.may_lack_leads(broker)
        return _elect_rest(elections, broker, response, sessions) if may_lack_leads else Result((), response)
    events = incidents.recorded(context, *incidents.changed(context, broker, becomes, request))
    if broker.is_fenced and not becomes.is_fenced:
        sessions.on_unfencing(broker)
        return _unfenced(context, broker, becomes, response, events)
    return _changed(elections, broker, becomes, response, events)


def report_exit(
    context: RequestContext, request: ReportExitRequest
) -> Result[MetadataRecord, ReportExitResponse] | Steps[MetadataRecord, ReportExitResponse]:
    """Fences the broker if the process that ended is the registered one."""
    broker = exited_broker(context.image, request)
    if broker is None:
        return Result((), ReportExitResponse(is_fenced=False))
    if broker.is_fenced:
        return Result((), ReportExitResponse(is_fenced=True))
    return _fenced(context, broker, ReportExitResponse(is_fenced=True), incidents.EXITED)


def sweep_brokers(context: RequestContext, request: SweepBrokers) -> Result[MetadataRecord, None]:
    """Sweeps the sessions, then begins to fence stale brokers. A late sweep extends all sessions by its delay (H6)."""
    late_ms = max(0, context.now_ms - request.due_ms)
    context.sessions.sweep(context.image.brokers, late_ms=late_ms, now_ms=context.now_ms)
    return Result((), None, context.timers.after_sweep(context.now_ms))


def fence_stale_broker(context: RequestContext, _: FenceStaleBroker) -> Steps[MetadataRecord, bool]:
    """Fences one broker whose session ended. Response: whether another such broker waits."""
    unfenced = [broker for broker in context.image.brokers.values() if not broker.is_fenced]
    stale = [broker for broker in unfenced if not context.sessions.is_alive(broker, context.now_ms)]
    if not stale:
        return Result((), False)
    cause = incidents.silent(context, stale[0])
    result = yield from _fenced(context, stale[0], len(stale) > 1, cause)
    return result._replace(timers=context.timers.fences(context.now_ms) if result.response else ())


def _fenced(
    context: RequestContext, broker: BrokerImage, response: ResponseT, cause: str
) -> Steps[MetadataRecord, ResponseT]:
    """Changes the broker's partitions first, then fences the broker (B44). If the controller dies before the last
    record, the broker is not fenced yet; the next controller fences it and changes the partitions that are left.
    """
    becomes = msgspec.structs.replace(broker, is_fenced=True)
    events = incidents.recorded(context, incidents.fenced(context, broker, cause))
    return _changed(context.elections(), broker, becomes, response, events)


def _unfenced(
    context: RequestContext,
    broker: BrokerImage,
    becomes: BrokerImage,
    response: ResponseT,
    events: list[MetadataRecord],
) -> Steps[MetadataRecord, ResponseT]:
    result = yield from _changed(context.elections(), broker, becomes, response, events)
    return result._replace(timers=context.timers.shares((becomes,), context.now_ms))


def exited_broker(image: MetadataImage, request: ReportExitRequest) -> BrokerImage | None:
    """The broker whose registered process ended; None if the process is not the registered one."""
    broker = image.brokers.get(request.broker_id)
    is_it = broker is not None and broker.registration.incarnation_id == request.incarnation_id
    return broker if is_it else None


def registered_broker(image: MetadataImage, broker_id: int, broker_epoch: int) -> BrokerImage:
    """The broker that sent a request. Raises BrokerIdNotRegistered, StaleBrokerEpoch (H3)."""
    broker = image.brokers.get(broker_id)
    if broker is None:
        raise BrokerIdNotRegistered(f"broker {broker_id} is not registered; it must register first")
    if broker.broker_epoch != broker_epoch:
        raise StaleBrokerEpoch(
            f"broker {broker_id} has epoch {broker.broker_epoch}, not {broker_epoch}: "
            "another process has registered under this id"
        )
    return broker


def _next_state(
    elections: Elections, broker: BrokerImage, request: HeartbeatRequest, sessions: BrokerSessions
) -> BrokerControlState:
    """The state that the heartbeat leads to (H5)."""
    leads = elections.replicas.of(broker.broker_id).led_count > 0
    if broker.is_fenced:
        if request.want_shut_down:
            return BrokerControlState.SHUTDOWN_NOW
        can_serve = not request.want_fence and _is_caught_up(broker, request)
        return BrokerControlState.UNFENCED if can_serve else BrokerControlState.FENCED
    if broker.is_in_controlled_shutdown:
        have_all_seen = sessions.have_seen_shutdown(broker, elections.image.brokers)
        is_done = have_all_seen and not leads
        return BrokerControlState.SHUTDOWN_NOW if is_done else BrokerControlState.CONTROLLED_SHUTDOWN
    if request.want_fence:
        return BrokerControlState.SHUTDOWN_NOW if request.want_shut_down else BrokerControlState.FENCED
    if request.want_shut_down:
        return BrokerControlState.CONTROLLED_SHUTDOWN if leads else BrokerControlState.SHUTDOWN_NOW
    return BrokerControlState.UNFENCED


def _is_caught_up(broker: BrokerImage, request: HeartbeatRequest) -> bool:
    """Whether the broker has applied its own registration."""
    return request.current_metadata_offset >= broker.broker_epoch


def _offline_directories(broker: BrokerImage, request: HeartbeatRequest) -> tuple[UUID, ...]:
    """The offline directories after the heartbeat. A failed directory stays offline until the broker reports its
    recovery or another process registers, because a heartbeat from before the failure may come late. Directories of
    other brokers are ignored.
    """
    own = [each.directory_id for each in broker.registration.directories]
    failed = [each for each in request.offline_directory_ids if each in own]
    known = dict.fromkeys((*broker.offline_directories, *failed))
    return tuple(each for each in known if each not in request.recovered_directory_ids)


def _changed(
    elections: Elections,
    broker: BrokerImage,
    becomes: BrokerImage,
    response: ResponseT,
    events: list[MetadataRecord],
) -> Steps[MetadataRecord, ResponseT]:
    """Changes the broker and its partitions. A broker that may lead less gives up its leads before its own record; a
    broker that is unfenced takes leads after its own record. In the other order a controller that dies in between would
    leave a lead with a fenced broker (B44).
    """
    names = ("is_fenced", "is_in_controlled_shutdown", "offline_directories")
    changed = {
        name: getattr(becomes, name) for name in names if getattr(becomes, name) != getattr(broker, name)
    }
    change = BrokerRegistrationChangeRecord(
        broker_id=broker.broker_id, broker_epoch=broker.broker_epoch, **changed
    )
    if becomes.is_fenced or not broker.is_fenced:
        yield from elections.after(becomes)
        return Result([change, *events], response)
    yield [change, *events]
    yield from elections.after(becomes)
    return Result((), response)


def _elect_rest(
    elections: Elections, broker: BrokerImage, response: ResponseT, sessions: BrokerSessions
) -> Steps[MetadataRecord, ResponseT]:
    """Elects the broker where a lead is missing. Repeated at each heartbeat until nothing is left, because the log may
    have refused some of the elections that followed the unfencing.
    """
    is_done = True
    for change in elections.after(broker):
        is_done = is_done and change is None
        yield change
    if is_done:
        sessions.on_leads_taken(broker)
    return Result((), response)
