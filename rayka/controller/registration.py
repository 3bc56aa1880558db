"""Registration of brokers (H2, H3), and its end. Kafka: `ClusterControlManager.registerBroker`,
`QuorumController.unregisterBroker`. Kafka also unregisters a broker that runs or holds replicas. Here such a request is
refused, because no node would know any more where these replicas were.

A new process of a broker waits until the session of the old process ends. The new process need not wait if it names
every directory of the old registration, and the epoch of that registration, read from these directories: then it holds
the locks of the old process, so the old process is dead. The directories alone prove nothing:
1. A process sends its registration, and dies.
2. Its successor takes over the locks, registers, and serves.
3. The late registration arrives and names the same directories, but an earlier epoch.

A process starts fenced. Its epoch is the offset of its registration record. This record is written last: if the
controller dies before the record, the broker registers again.

`previous_broker_epoch` says whether the broker lost records. The epoch of the replaced registration means no: the
directories hold everything that the old process had appended. Any other epoch means an unclean shutdown: the broker may
lack acknowledged records, so it leaves every ISR and every ELR, even as the last member (B42). Without eligible leader
replicas the broker leaves ISRs as a fenced broker does, and stays the last member (B43).

A directory that a new registration does not name is gone, as after the replacement of a disk. Its replicas are copied
anew into another directory. A replica that may be the last one with its partition's records keeps its directory
(`partition_change`).
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
    """Registers a broker process. Response: the epoch of the broker (H3). Raises the errors of `_check`.

    The registered process keeps its epoch and state; no record is written if nothing changed. Another process starts
    fenced: the broker leaves the leads and ISRs of its partitions, and after an unclean shutdown the ELRs, too.
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
    """Raises InconsistentClusterId, UnsupportedVersion or DuplicateBrokerRegistration, with the remedy (H2)."""
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
    """Whether the request is of the registered process, or of a successor with the locks of its directories."""
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
    """Forgets the broker and its configuration. Raises BrokerIdNotRegistered, and InvalidRequest if the broker is not
    fenced or holds replicas.
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
