"""Leaders elected because an operator asks: the preferred one, or an unclean one where there is none (B46).

Kafka: `ReplicationControlManager.electLeaders`.
"""

from collections.abc import Iterable

from rayka.controller.leader_elections import Elections
from rayka.controller.partition_change import Election
from rayka.controller.request_context import RequestContext
from rayka.errors import (
    ApiError,
    ElectionNotNeeded,
    EligibleLeadersNotAvailable,
    ErrorCode,
    PreferredLeaderNotAvailable,
)
from rayka.ids import TopicIdPartition, TopicPartition
from rayka.metadata.image import MetadataImage, PartitionImage, named_partition
from rayka.metadata.metadata_records import MetadataRecord, PartitionChangeRecord
from rayka.protocol.topics import (
    ElectionType,
    ElectLeadersRequest,
    ElectLeadersResponse,
    PartitionResult,
)
from rayka.shard.shard import Result, Steps


def elect_leaders(
    context: RequestContext, request: ElectLeadersRequest
) -> Steps[MetadataRecord, ElectLeadersResponse]:
    """Each partition has its own result; of all partitions, those whose leader is the wanted one already have none."""
    elections = context.elections()
    results: list[PartitionResult] = []
    for each in _all(context.image) if request.partitions is None else request.partitions:
        record: PartitionChangeRecord | None = None
        try:
            record = _elected(elections, each, request.election_type)
        except ElectionNotNeeded as refusal:
            if request.partitions is not None:
                results.append(_refused(each, refusal))
        except ApiError as refusal:
            results.append(_refused(each, refusal))
        else:
            results.append(PartitionResult(each.topic, each.partition))
        yield record
    next_offset = yield None
    return Result((), ElectLeadersResponse(tuple(results), next_offset))


def _elected(
    elections: Elections, each: TopicPartition, election_type: ElectionType
) -> PartitionChangeRecord:
    key, partition = named_partition(elections.image, each)
    if election_type is ElectionType.PREFERRED:
        return _preferred(elections, key, each, partition)
    if partition.has_leader:
        raise ElectionNotNeeded(f"{each!r} has a leader, broker {partition.leader_id}")
    record = elections.change(key).election(Election.UNCLEAN).build()
    if record is None or record.leader_id < 0:
        raise EligibleLeadersNotAvailable(
            f"{each!r}: none of its replicas {list(partition.replicas)} runs with the directory that holds it;"
            " start one that does, or delete the topic if what they held is lost"
        )
    return record


def _preferred(
    elections: Elections, key: TopicIdPartition, each: TopicPartition, partition: PartitionImage
) -> PartitionChangeRecord:
    preferred = partition.replicas[0]
    if partition.leader_id == preferred:
        raise ElectionNotNeeded(f"{each!r} is led by its preferred replica, broker {preferred}")
    record = elections.change(key).election(Election.PREFERRED).build()
    if record is None or record.leader_id != preferred:
        why = "is not in sync" if elections.is_electable(partition, preferred) else "does not run"
        why = "is on a machine that drains" if elections.is_draining(preferred) else why
        raise PreferredLeaderNotAvailable(f"{each!r}: its preferred replica, broker {preferred}, {why}")
    return record


def _all(image: MetadataImage) -> Iterable[TopicPartition]:
    return (
        TopicPartition(name, number)
        for name in sorted(image.topics)
        for number in range(len(image.topics[name].partitions))
    )


def _refused(each: TopicPartition, refusal: ApiError) -> PartitionResult:
    return PartitionResult(each.topic, each.partition, ErrorCode(refusal.code), str(refusal))
