"""Elections by timers and by requests (B46): of preferred leaders, and of leaders for leaderless partitions.

A timer elects a leader where no replica leads, and the preferred leader, the first replica, if too many partitions of a
broker are led by others. A broker that becomes electable and a request that allows unclean elections begin elections by
themselves; the timer finds partitions that are left, as after a specification that allows unclean elections. One run
looks at the partitions of one preferred leader and writes a bounded number of records.

Kafka: `maybeBalancePartitionLeaders`, `maybeElectUncleanLeaders` (A68), `ReplicationControlManager.electLeaders`. Kafka
before 4.0 tolerated some imbalance (`leader.imbalance.per.broker.percentage`), as here.
"""

from collections.abc import Iterable, Iterator

from rayka.config.broker_config import BrokerConfig
from rayka.controller.controller_timers import (
    ElectAllPreferredLeaders,
    ElectLeaderless,
    ElectPreferredLeaders,
    ElectReturnedLeaders,
)
from rayka.controller.leader_elections import Elections
from rayka.controller.partition_change import Election
from rayka.controller.request_context import RequestContext
from rayka.controller.returned_brokers import is_too_much
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

ELECTIONS_PER_RUN_MAX = 1_000


def elect_all_preferred_leaders(
    context: RequestContext, _: ElectAllPreferredLeaders
) -> Result[MetadataRecord, None]:
    """Begins one `ElectPreferredLeaders` for each broker."""
    return Result((), None, context.timers.after_preferred_leaders(context.image.brokers, context.now_ms))


def elect_returned_leaders(
    context: RequestContext, _: ElectReturnedLeaders
) -> Result[MetadataRecord, list[int]]:
    """Begins one `ElectPreferredLeaders` for each returned broker that can take leads now. Response: their ids."""
    broker_ids = context.returned.take_due(context.elections(), context.now_ms)
    return Result((), broker_ids, context.timers.after_returned(broker_ids, context.now_ms))


def elect_preferred_leaders(
    context: RequestContext, request: ElectPreferredLeaders
) -> Steps[MetadataRecord, bool]:
    """Elects leaders of partitions whose first replica is on the broker. Response: whether elections are left."""
    count = 0
    for record in _elections(context.elections(), request.broker_id, context.config):
        if record is not None and count == ELECTIONS_PER_RUN_MAX:
            return Result(
                (), True, context.timers.preferred_leader_timers([request.broker_id], context.now_ms)
            )
        count += record is not None
        yield record
    return Result((), False)


def elect_leaderless(context: RequestContext, _: ElectLeaderless) -> Steps[MetadataRecord, None]:
    """Elects leaders of all leaderless partitions (B44). A former controller may have died between two batches of
    elections that follow the unfencing of a broker.
    """
    elections = context.elections()
    for key in elections.replicas.all_leaderless():
        yield elections.change(key).build()
    return Result((), None)


def _elections(
    elections: Elections, broker_id: int, config: BrokerConfig
) -> Iterator[PartitionChangeRecord | None]:
    replicas = elections.replicas.of(broker_id)
    for key in replicas.leaderless:
        yield elections.change(key).build()
    tolerated_percentage = config.leader_imbalance_per_broker_percentage
    counts = (replicas.led_by_others_count, replicas.preferred_count)
    if config.auto_leader_rebalance_enable and is_too_much(*counts, tolerated_percentage):
        for key in replicas.reclaimable:
            yield elections.change(key).election(Election.PREFERRED).build()


# ---- Elections that an operator asks for -----------------------------------------------------------------------------


def elect_leaders(
    context: RequestContext, request: ElectLeadersRequest
) -> Steps[MetadataRecord, ElectLeadersResponse]:
    """Elects the preferred leader of each partition, or an unclean one if no replica leads. Each named partition has
    its own result; a request for all partitions leaves out partitions that need no election.
    """
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
