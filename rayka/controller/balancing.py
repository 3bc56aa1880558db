"""From time to time leaders are put right: where nobody leads but somebody could, and where too many partitions of a
broker are not led by their preferred replica, the first one (B46).

Leaderless partitions get an election by themselves when a broker becomes electable, or when a request allows unclean
ones; the timer finds what is left, as after a specification that allows them now. One run looks at the partitions of
one preferred replica and writes a bounded number of records. Kafka: `maybeBalancePartitionLeaders`,
`maybeElectUncleanLeaders` (A68); that some imbalance is tolerated, `leader.imbalance.per.broker.percentage`, is what it
did before 4.0.
"""

from rayka.config import BrokerConfig
from rayka.controller.elections import Elections
from rayka.controller.partition_change import Election
from rayka.ids import NO_NODE, TopicIdPartition
from rayka.metadata.image import PartitionImage
from rayka.metadata.records import MetadataRecord
from rayka.shard.shard import Result

ELECTIONS_PER_RUN_MAX = 1_000


def balance_leaders(
    elections: Elections, broker_id: int, config: BrokerConfig
) -> Result[MetadataRecord, bool]:
    """Elections among the partitions that this broker is the first replica of; whether there are more to be held."""
    preferred = [each for each in elections.replicas_of(broker_id) if each[1].replicas[0] == broker_id]
    changes = [elections.change(key).build() for key, partition in preferred if not partition.has_leader]
    if config.auto_leader_rebalance_enable:
        changes += [
            elections.change(key).election(Election.PREFERRED).build()
            for key in _led_by_others(preferred, broker_id, config.leader_imbalance_per_broker_percentage)
        ]
    records = [change for change in changes if change is not None]
    has_more = len(records) > ELECTIONS_PER_RUN_MAX
    return Result(records[:ELECTIONS_PER_RUN_MAX], has_more)


def _led_by_others(
    preferred: list[tuple[TopicIdPartition, PartitionImage]], broker_id: int, tolerated_percentage: int
) -> list[TopicIdPartition]:
    """The partitions that another broker leads, none while they are few enough."""
    led = [key for key, partition in preferred if partition.leader_id not in (broker_id, NO_NODE)]
    return led if len(led) * 100 > tolerated_percentage * len(preferred) else []
