"""Brokers announce themselves (H2, H3), and are forgotten. Kafka: `ClusterControlManager.registerBroker`,
`QuorumController.unregisterBroker`, which also forgets one that runs or holds replicas; here that is refused, since no
node could say any more where those replicas were.

A new process of a broker normally waits for the old one's session to end. It need not if it names every
directory that the old one registered, and the epoch of that registration, which it has read there: it held their locks
after the old process did, which is dead (design §4). The directories alone prove nothing, for a call may be late:
1. A process sends its registration, and dies. 2. Its successor takes over the locks, registers, and serves. 3. The call
arrives, and names the same directories; its sender knew no epoch but an earlier one.
A process starts fenced, and its epoch is the offset of its registration record, which is written last: if this
controller dies before it, the broker registers again.

Whether it has lost anything it says by `previous_broker_epoch`: the epoch of the registration that it replaces means
no, its directories hold all that the process before it had appended. Anything else is an unclean shutdown: the broker
may lack what it acknowledged, so it leaves every ISR and every ELR, even as the last member (B42). Without eligible
leader replicas nothing can be told apart, and it leaves as a fenced one does (B43).

A directory that the broker does not name any more is gone, as after its disk was replaced. What was in it is copied
anew into another one, unless it may be the last that holds its partition's records (`partition_change`).
"""

import msgspec

from rayka.controller import incidents
from rayka.controller.request_context import RequestContext
from rayka.errors import (
    BrokerIdNotRegistered,
    DuplicateBrokerRegistration,
    InconsistentClusterId,
    InvalidRequest,
    UnsupportedVersion,
)
from rayka.metadata.image import BrokerImage, MetadataImage
from rayka.metadata.metadata_records import (
    MetadataRecord,
    RegisterBrokerRecord,
    UnregisterBrokerRecord,
    config_record,
)
from rayka.protocol.configs import ResourceType
from rayka.protocol.membership import RegisterBrokerRequest, RegisterBrokerResponse
from rayka.protocol.topics import UnregisterBrokerRequest, UnregisterBrokerResponse
from rayka.shard.shard import Result, Steps


def register(
    context: RequestContext, request: RegisterBrokerRequest
) -> Steps[MetadataRecord, RegisterBrokerResponse]:
    """The records of a registration, and the broker's epoch (H3). Raises what `_check` finds.

    The process that is registered already keeps its epoch and its state, and writes nothing if nothing
    changed. Another one takes the broker's partitions as a fenced broker leaves them, or one that lost what it had.
    """
    _check(context, request)
    image = context.image
    registered = image.brokers.get(request.broker_id)
    if registered is None:
        event = incidents.started(None, request, is_unclean_shutdown=False)
        records = [_record(request, image.next_offset), *incidents.recorded(context, event)]
        return _registered(context, records, image.next_offset)
    if registered.registration.incarnation_id == request.incarnation_id:
        return _registered(context, _amend(registered, request), registered.broker_epoch)
    is_unclean = request.previous_broker_epoch != registered.broker_epoch
    becomes = BrokerImage(
        _record(request, image.next_offset), is_fenced=True, is_in_controlled_shutdown=False
    )
    yield from context.elections().after(becomes, is_unclean_shutdown=is_unclean)
    broker_epoch = yield None
    event = incidents.started(registered, request, is_unclean_shutdown=is_unclean)
    records = [_record(request, broker_epoch), *incidents.recorded(context, event)]
    return _registered(context, records, broker_epoch)


def _check(context: RequestContext, request: RegisterBrokerRequest) -> None:
    """Raises InconsistentClusterId, UnsupportedVersion or DuplicateBrokerRegistration; the message says
    what to do (H2).
    """
    image, cluster_id = context.image, context.cluster_id
    if request.cluster_id not in ("", cluster_id):
        raise InconsistentClusterId(
            f"broker {request.broker_id} belongs to cluster {request.cluster_id}, this is cluster {cluster_id}; "
            f"check which data directory it was given: {', '.join(each.path for each in request.directories)}"
        )
    if not request.min_metadata_version <= image.metadata_version <= request.max_metadata_version:
        raise UnsupportedVersion(
            f"broker {request.broker_id} knows metadata.version {request.min_metadata_version} to "
            f"{request.max_metadata_version}, the cluster is at {image.metadata_version}; upgrade the older one"
        )
    _check_directories(image, request)
    registered = image.brokers.get(request.broker_id)
    if registered is not None and not _is_same_or_successor(registered, request):
        remaining_ms = context.sessions.remaining_ms(registered, context.now_ms)
        if remaining_ms > 0:
            raise DuplicateBrokerRegistration(
                f"broker {request.broker_id} is registered by a live process on host {registered.registration.host} "
                f"with incarnation {registered.registration.incarnation_id}; stop that one, or wait {remaining_ms} ms "
                "without a heartbeat from it, or use another broker id"
            )


def _registered(
    context: RequestContext, records: list[MetadataRecord], broker_epoch: int
) -> Result[MetadataRecord, RegisterBrokerResponse]:
    return Result(records, RegisterBrokerResponse(broker_epoch, context.cluster_id))


def _amend(registered: BrokerImage, request: RegisterBrokerRequest) -> list[MetadataRecord]:
    before = registered.registration
    amended = _record(request, registered.broker_epoch)
    if amended == msgspec.structs.replace(before, is_fenced=True, is_in_controlled_shutdown=False):
        return []
    state = {
        "is_fenced": registered.is_fenced,
        "is_in_controlled_shutdown": registered.is_in_controlled_shutdown,
    }
    return [msgspec.structs.replace(amended, **state)]


def _check_directories(image: MetadataImage, request: RegisterBrokerRequest) -> None:
    named = {each.directory_id for each in request.directories}
    for broker in image.brokers.values():
        for directory in broker.directories:
            if broker.broker_id != request.broker_id and directory.directory_id in named:
                raise DuplicateBrokerRegistration(
                    f"broker {request.broker_id} names directory {directory.directory_id}, which broker "
                    f"{broker.broker_id} registered as {directory.path}; a directory must not be copied"
                )


def _is_same_or_successor(registered: BrokerImage, request: RegisterBrokerRequest) -> bool:
    """Whether it is the registered process, or one that has taken over what that one left."""
    if registered.registration.incarnation_id == request.incarnation_id:
        return True
    named = {each.directory_id for each in request.directories}
    holds_all_locks = all(each.directory_id in named for each in registered.directories)
    return holds_all_locks and request.known_broker_epoch == registered.broker_epoch


def _record(request: RegisterBrokerRequest, broker_epoch: int) -> RegisterBrokerRecord:
    return RegisterBrokerRecord(
        broker_id=request.broker_id,
        broker_epoch=broker_epoch,
        incarnation_id=request.incarnation_id,
        host=request.host,
        directories=request.directories,
        rack=request.rack,
        min_metadata_version=request.min_metadata_version,
        max_metadata_version=request.max_metadata_version,
        roles=request.roles,
    )


def unregister_broker(
    context: RequestContext, request: UnregisterBrokerRequest
) -> Result[MetadataRecord, UnregisterBrokerResponse]:
    """Forgets the broker and its configuration. Raises BrokerIdNotRegistered, or InvalidRequest that says what to do
    first.
    """
    image = context.image
    broker = image.brokers.get(request.broker_id)
    if broker is None:
        raise BrokerIdNotRegistered(
            f"broker {request.broker_id} is not registered; those that are: {sorted(image.brokers)}"
        )
    if not broker.is_fenced:
        raise InvalidRequest(f"broker {broker.broker_id} runs: expected one that is fenced; stop it first")
    held_count = context.replicas.of(broker.broker_id).directories.total()
    if held_count:
        raise InvalidRequest(
            f"broker {broker.broker_id} holds replicas of {held_count:,} partitions, expected none; reassign them first"
        )
    configs = [
        config_record(ResourceType.BROKER, str(broker.broker_id), name, None)
        for name in image.broker_configs(broker.broker_id)
    ]
    forgotten = UnregisterBrokerRecord(broker_id=broker.broker_id, broker_epoch=broker.broker_epoch)
    events = incidents.recorded(context, incidents.removed(broker))
    return Result([*configs, forgotten, *events], UnregisterBrokerResponse())
