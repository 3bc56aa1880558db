"""From time to time leaders are put right: where no replica leads but one could, and where too many partitions of a
broker are not led by their preferred replica, the first one (B46).

Leaderless partitions get an election by themselves when a broker becomes electable, or when a request allows unclean
ones; the timer finds what is left, as after a specification that allows them now. One run looks at the partitions of
one preferred replica and writes a bounded number of records. Kafka: `maybeBalancePartitionLeaders`,
`maybeElectUncleanLeaders` (A68); that some imbalance is tolerated, `leader.imbalance.per.broker.percentage`, is what it
did before 4.0.
"""

from collections.abc import Iterator

from rayka.config.broker_config import BrokerConfig
from rayka.controller.controller_timers import (
    BalanceBrokers,
    BalanceLeaders,
    BalanceReturned,
    ElectLeaderless,
)
from rayka.controller.leader_elections import Elections
from rayka.controller.partition_change import Election
from rayka.controller.request_context import RequestContext
from rayka.controller.returned_brokers import is_too_much
from rayka.metadata.metadata_records import MetadataRecord, PartitionChangeRecord
from rayka.shard.shard import Result, Steps

ELECTIONS_PER_RUN_MAX = 1_000


def balance_brokers(context: RequestContext, _: BalanceBrokers) -> Result[MetadataRecord, None]:
    """All brokers, each by a request of its own."""
    return Result((), None, context.timers.after_balance(context.image.brokers, context.now_ms))


def balance_returned(context: RequestContext, _: BalanceReturned) -> Result[MetadataRecord, list[int]]:
    """The brokers that are back and can take leads now."""
    broker_ids = context.returned.take_due(context.elections(), context.now_ms)
    return Result((), broker_ids, context.timers.after_returned(broker_ids, context.now_ms))


def balance_leaders(context: RequestContext, request: BalanceLeaders) -> Steps[MetadataRecord, bool]:
    """Elections among the partitions that the broker is the first replica of; whether there are more to be held."""
    count = 0
    for record in _elections(context.elections(), request.broker_id, context.config):
        if record is not None and count == ELECTIONS_PER_RUN_MAX:
            return Result((), True, context.timers.balances([request.broker_id], context.now_ms))
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
