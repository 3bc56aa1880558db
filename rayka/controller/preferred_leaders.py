"""From time to time leaders are put right: where no replica leads but one could, and where too many partitions of a
broker are not led by their preferred replica, the first one (B46).

Leaderless partitions get an election by themselves when a broker becomes electable, or when a request allows unclean
ones; the timer finds what is left, as after a specification that allows them now. One run looks at the partitions of
one preferred replica and writes a bounded number of records. Kafka: `maybeBalancePartitionLeaders`,
`maybeElectUncleanLeaders` (A68); that some imbalance is tolerated, `leader.imbalance.per.broker.percentage`, is what it
did before 4.0.
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
    """All brokers, each by a request of its own."""
    return Result((), None, context.timers.after_preferred_leaders(context.image.brokers, context.now_ms))


def elect_returned_leaders(
    context: RequestContext, _: ElectReturnedLeaders
) -> Result[MetadataRecord, list[int]]:
    """The brokers that are back and can take leads now."""
    broker_ids = context.returned.take_due(context.elections(), context.now_ms)
    return Result((), broker_ids, context.timers.after_returned(broker_ids, context.now_ms))


def elect_preferred_leaders(
    context: RequestContext, request: ElectPreferredLeaders
) -> Steps[MetadataRecord, bool]:
    """Elections among the partitions that the broker is the first replica of; whether there are more to be held."""
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
    """Elections where no broker leads. A broker that was unfenced is given leads in several batches, and the controller
    that began may have died between two of them (B44).
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


# Leaders elected because an operator asks: the preferred one, or an unclean one where there is none (B46).
#
# Kafka: `ReplicationControlManager.electLeaders`.


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
