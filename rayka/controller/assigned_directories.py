"""A broker says in which of its directories a replica is, because it moves the replica between them.

What the metadata name decides which replicas a failed directory takes along, so the broker tells of the new one when
the copy there has everything, and takes the copy into use when it reads that in the metadata. If the move fails in
between it tells of the old one again. Invariant: a replica whose directory is offline then leads no more. Kafka:
`ReplicationControlManager.handleAssignReplicasToDirs` (KIP-858).
"""

import msgspec

from rayka.controller.heartbeats import registered_broker
from rayka.controller.leader_elections import Elections
from rayka.controller.request_context import RequestContext
from rayka.errors import ErrorCode
from rayka.ids import TopicIdPartition
from rayka.metadata.image import BrokerImage, PartitionImage
from rayka.metadata.metadata_records import MetadataRecord, PartitionChangeRecord
from rayka.protocol.membership import (
    AssignedReplica,
    AssignedReplicaResult,
    AssignReplicasToDirsRequest,
    AssignReplicasToDirsResponse,
)
from rayka.shard.shard import Result, Steps


def assign_replicas(
    context: RequestContext, request: AssignReplicasToDirsRequest
) -> Steps[MetadataRecord, AssignReplicasToDirsResponse]:
    """One result for each replica. Raises BrokerIdNotRegistered, StaleBrokerEpoch for all of them."""
    elections = context.elections()
    broker = registered_broker(context.image, request.broker_id, request.broker_epoch)
    results = []
    for each in request.replicas:
        partition = context.image.partition(TopicIdPartition(each.topic_id, each.partition))
        refusal = _refusal(broker, each, partition)
        results.append(refusal or AssignedReplicaResult(each.topic_id, each.partition))
        if partition is not None and refusal is None:
            yield _assigned(elections, broker, each, partition)
    next_offset = yield None
    return Result((), AssignReplicasToDirsResponse(tuple(results), next_offset))


def _refusal(
    broker: BrokerImage, each: AssignedReplica, partition: PartitionImage | None
) -> AssignedReplicaResult | None:
    where = f"partition {each.partition} of topic {each.topic_id}"
    own = [directory.directory_id for directory in broker.directories]
    if partition is None:
        code, message = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"there is no {where}"
    elif broker.broker_id not in partition.replicas:
        code = ErrorCode.NOT_LEADER_OR_FOLLOWER
        message = f"{where} is on brokers {list(partition.replicas)}, not on {broker.broker_id}"
    elif each.directory_id not in own:
        code = ErrorCode.LOG_DIR_NOT_FOUND
        known = [str(directory_id) for directory_id in own]
        message = f"broker {broker.broker_id} has directories {known}, found {each.directory_id}"
    else:
        return None
    return AssignedReplicaResult(each.topic_id, each.partition, code, message)


def _assigned(
    elections: Elections, broker: BrokerImage, each: AssignedReplica, partition: PartitionImage
) -> PartitionChangeRecord | None:
    """The record, with the election that follows when the directory is offline; None when it is there already."""
    key, broker_id = TopicIdPartition(each.topic_id, each.partition), broker.broker_id
    if partition.directory_of(broker_id) == each.directory_id:
        return None
    directories = list(partition.directories)
    directories[partition.replicas.index(broker_id)] = each.directory_id
    becomes = msgspec.structs.replace(partition, directories=tuple(directories))
    change = elections.change(key, becomes=becomes).target_replicas(partition.replicas, becomes.directories)
    if not elections.is_electable(becomes, broker_id):
        change = change.target_isr(tuple(member for member in partition.isr if member != broker_id))
    return change.build()
