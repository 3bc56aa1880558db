"""Requests of brokers about their replicas: proposals of leaders for another ISR, and directories of replicas. Kafka:
`ReplicationControlManager.alterPartition`, `validateAlterPartitionData` (B13), `handleAssignReplicasToDirs` (KIP-858).

Every proposal has its own answer. A proposal with later epochs than this controller knows is refused by NOT_CONTROLLER:
another controller is active. A committed proposal may end a reassignment, and with it the lead of the proposer. Then
the error NEW_LEADER_ELECTED makes the proposer wait for the metadata.

A leader goes on without a proposed member that was refused, so the refusal raises the partition epoch. Otherwise:
1. A proposal reaches this controller twice. The first time a member is fenced, and the proposal is refused.
2. The leader learns of the refusal, and commits records that the member lacks.
3. The second copy arrives when the member is active again, and puts the member into the ISR by mistake.

Beyond Kafka, a member whose directory is offline is not eligible: it would stay in the ISR until it lags.

A broker that moves a replica between its directories reports the new directory when the copy there is complete, and
uses the copy when the metadata name that directory. If the move fails in between, the broker reports the old directory
again. The directory in the metadata decides which replicas a failed directory takes along. Invariant: a replica whose
reported directory is offline does not lead.
"""

import msgspec

from rayka.controller.heartbeats import registered_broker
from rayka.controller.leader_elections import Elections
from rayka.controller.request_context import RequestContext
from rayka.errors import ErrorCode
from rayka.ids import NO_EPOCH, TopicIdPartition
from rayka.metadata.delta import changed_partition
from rayka.metadata.image import BrokerImage, PartitionImage
from rayka.metadata.metadata_records import NO_LEADER_CHANGE, MetadataRecord, PartitionChangeRecord
from rayka.protocol.membership import (
    AlterPartitionItem,
    AlterPartitionRequest,
    AlterPartitionResponse,
    AlterPartitionResult,
    AssignedReplica,
    AssignedReplicaResult,
    AssignReplicasToDirsRequest,
    AssignReplicasToDirsResponse,
    IsrMember,
    LeaderRecoveryState,
)
from rayka.shard.shard import Result, Steps


def alter_partitions(
    context: RequestContext, request: AlterPartitionRequest
) -> Steps[MetadataRecord, AlterPartitionResponse]:
    """Commits or refuses each proposal. Raises BrokerIdNotRegistered, StaleBrokerEpoch for the whole request."""
    elections = context.elections()
    registered_broker(context.image, request.broker_id, request.broker_epoch)
    results = []
    for item in request.partitions:
        record, result = _altered(elections, request.broker_id, item)
        results.append(result)
        yield record
    return Result((), AlterPartitionResponse(tuple(results)))


def _altered(
    elections: Elections, proposer_id: int, item: AlterPartitionItem
) -> tuple[PartitionChangeRecord | None, AlterPartitionResult]:
    key = TopicIdPartition(item.topic_id, item.partition)
    partition = elections.image.partition(key)
    if partition is None:
        return None, _unknown(elections, item)
    refusal = _refusal_of_epochs(partition, proposer_id, item) or _refusal_of_isr(partition, item)
    if refusal is not None:
        return None, _refused(item, *refusal)
    ineligible = [each for each in item.isr if not _is_eligible(elections, partition, each)]
    if ineligible:
        message = f"isr: not running, or not in that broker epoch: {ineligible}"
        same = PartitionChangeRecord(topic_id=item.topic_id, partition=item.partition)
        return same, _refused(item, ErrorCode.INELIGIBLE_REPLICA, message)
    change = elections.change(key).target_isr(tuple(member.broker_id for member in item.isr))
    record = change.leader_recovery_state(item.leader_recovery_state).build()
    if record is None:
        return None, _committed(item, partition)
    after = changed_partition(partition, record)
    if record.leader_id not in (NO_LEADER_CHANGE, proposer_id):
        message = f"this ISR ends a reassignment, after which broker {after.leader_id} leads"
        return record, _refused(item, ErrorCode.NEW_LEADER_ELECTED, message)
    return record, _committed(item, after)


def _refusal_of_epochs(
    partition: PartitionImage, proposer_id: int, item: AlterPartitionItem
) -> tuple[ErrorCode, str] | None:
    """The refusal of a proposal that is not of the leader, or not based on the committed epochs; else None."""
    epochs = f"epochs {item.leader_epoch} and {item.partition_epoch} of leader and partition, this controller's are "
    epochs += f"{partition.leader_epoch} and {partition.partition_epoch}"
    if item.leader_epoch > partition.leader_epoch or item.partition_epoch > partition.partition_epoch:
        return ErrorCode.NOT_CONTROLLER, f"{epochs}: it is not the active one any more"
    if item.leader_epoch < partition.leader_epoch:
        return ErrorCode.FENCED_LEADER_EPOCH, epochs
    if proposer_id != partition.leader_id:
        return ErrorCode.INVALID_REQUEST, f"broker {partition.leader_id} leads, not {proposer_id}"
    if item.partition_epoch < partition.partition_epoch:
        return ErrorCode.INVALID_UPDATE_VERSION, epochs
    return None


def _refusal_of_isr(partition: PartitionImage, item: AlterPartitionItem) -> tuple[ErrorCode, str] | None:
    """The refusal of an ISR that is not valid whichever brokers run; else None."""
    isr = [member.broker_id for member in item.isr]
    if len(set(isr)) != len(isr) or not set(isr) <= set(partition.replicas):
        return (
            ErrorCode.INVALID_REQUEST,
            f"isr: expected some of {partition.replicas}, each once, found {isr}",
        )
    if partition.leader_id not in isr:
        return ErrorCode.INVALID_REQUEST, f"isr: expected leader {partition.leader_id} among it, found {isr}"
    if item.leader_recovery_state is LeaderRecoveryState.RECOVERING:
        if len(isr) > 1:
            return ErrorCode.INVALID_REQUEST, f"isr: a leader that recovers is alone in it, found {isr}"
        if partition.leader_recovery_state is LeaderRecoveryState.RECOVERED:
            return ErrorCode.INVALID_REQUEST, "leader_recovery_state: the leader has recovered already"
    return None


def _is_eligible(elections: Elections, partition: PartitionImage, member: IsrMember) -> bool:
    if not elections.is_electable(partition, member.broker_id):
        return False
    broker = elections.image.brokers[member.broker_id]
    return member.broker_epoch in (NO_EPOCH, broker.broker_epoch)


def _unknown(elections: Elections, item: AlterPartitionItem) -> AlterPartitionResult:
    if item.topic_id in elections.image.topics_by_id:
        message = f"topic {item.topic_id} has no partition {item.partition}"
        return _refused(item, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, message)
    return _refused(item, ErrorCode.UNKNOWN_TOPIC_ID, f"no topic has the id {item.topic_id}")


def _refused(item: AlterPartitionItem, error_code: ErrorCode, message: str) -> AlterPartitionResult:
    return AlterPartitionResult(
        item.topic_id,
        item.partition,
        error_code=error_code,
        error_message=f"partition {item.partition}: {message}",
    )


def _committed(item: AlterPartitionItem, partition: PartitionImage) -> AlterPartitionResult:
    return AlterPartitionResult(
        item.topic_id,
        item.partition,
        leader_id=partition.leader_id,
        leader_epoch=partition.leader_epoch,
        isr=partition.isr,
        leader_recovery_state=partition.leader_recovery_state,
        partition_epoch=partition.partition_epoch,
    )


# ---- Directories of replicas -----------------------------------------------------------------------------------------


def assign_replicas(
    context: RequestContext, request: AssignReplicasToDirsRequest
) -> Steps[MetadataRecord, AssignReplicasToDirsResponse]:
    """Records the directory of each replica. Raises BrokerIdNotRegistered, StaleBrokerEpoch for the whole request."""
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
    """The record of the new directory; None if nothing changes. In an offline directory the replica leaves ISR and
    lead.
    """
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
