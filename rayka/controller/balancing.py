"""From time to time leaders are put right: where nobody leads but somebody could, and where too many partitions of a
broker are not led by their preferred replica, the first one (B46).

Leaderless partitions get an election by themselves when a broker becomes electable, or when a request allows unclean
ones; the timer finds what is left, as after a specification that allows them now. One run looks at the partitions of
one preferred replica and writes a bounded number of records. Kafka: `maybeBalancePartitionLeaders`,
`maybeElectUncleanLeaders` (A68); that some imbalance is tolerated, `leader.imbalance.per.broker.percentage`, is what it
did before 4.0.

Kafka has only the timer. Here a broker that is back need not wait for it (decision 027): when a whole cluster starts,
the first brokers lead everything, and the others would idle for five minutes.
"""

from collections.abc import Mapping, Sized

from rayka.config import BrokerConfig
from rayka.controller.elections import Elections
from rayka.controller.partition_change import Election
from rayka.ids import NO_NODE, TopicIdPartition
from rayka.metadata.image import BrokerImage, PartitionImage
from rayka.metadata.records import MetadataRecord
from rayka.shard.shard import Result

ELECTIONS_PER_RUN_MAX = 1_000


def balance_leaders(
    elections: Elections, broker_id: int, config: BrokerConfig
) -> Result[MetadataRecord, bool]:
    """Elections among the partitions that this broker is the first replica of; whether there are more to be held."""
    preferred = _preferred(elections, broker_id)
    changes = [elections.change(key).build() for key, partition in preferred if not partition.has_leader]
    if config.auto_leader_rebalance_enable:
        changes += [
            elections.change(key).election(Election.PREFERRED).build()
            for key in _led_by_others(preferred, broker_id, config.leader_imbalance_per_broker_percentage)
        ]
    records = [change for change in changes if change is not None]
    has_more = len(records) > ELECTIONS_PER_RUN_MAX
    return Result(records[:ELECTIONS_PER_RUN_MAX], has_more)


class ReturnedBrokers:
    """Brokers that were unfenced and do not lead yet what they led before: soft state of the active controller.

    Such a broker may take back at once each partition that it is in sync for. It stays here until it leads enough, is
    gone again, or the timer's interval has passed. A broker that took leads back less than an interval ago waits for
    the timer, or one that comes and goes would move its leads back and forth each time.
    """

    def __init__(self, config: BrokerConfig) -> None:
        self._tolerated_percentage = config.leader_imbalance_per_broker_percentage
        self._interval_ms = config.leader_imbalance_check_interval_seconds * 1_000
        self._new: dict[int, None] = {}
        self._since_ms: dict[int, int] = {}
        self._took_ms: dict[int, int] = {}

    def __repr__(self) -> str:
        return f"<ReturnedBrokers {sorted(self._new.keys() | self._since_ms.keys())}>"

    def on_active(self, brokers: Mapping[int, BrokerImage]) -> None:
        """A new active controller does not know which brokers have just come back: any of them may have."""
        self._new.update(dict.fromkeys(brokers))

    def on_unfenced(self, broker_id: int) -> None:
        self._new[broker_id] = None

    def take_due(self, elections: Elections, now_ms: int) -> list[int]:
        """The brokers that can take leads back now; they count as having taken them."""
        self._begin(now_ms)
        due = []
        for broker_id in list(self._since_ms):
            missing = self._missing(elections, broker_id)
            if not missing or now_ms - self._since_ms[broker_id] >= self._interval_ms:
                del self._since_ms[broker_id]
            elif any(broker_id in each.isr and elections.is_electable(each, broker_id) for each in missing):
                self._took_ms[broker_id] = now_ms
                due.append(broker_id)
        return due

    def _begin(self, now_ms: int) -> None:
        """Those that were unfenced since the last look are back from now on, or wait for the timer."""
        recent = {key: ms for key, ms in self._took_ms.items() if now_ms - ms < self._interval_ms}
        self._took_ms = recent
        for broker_id in self._new:
            self._since_ms.pop(broker_id, None)
            if broker_id not in recent:
                self._since_ms[broker_id] = now_ms
        self._new = {}

    def _missing(self, elections: Elections, broker_id: int) -> list[PartitionImage]:
        """What the broker is to lead and does not; nothing while that is little, or the broker is not active."""
        broker = elections.image.brokers.get(broker_id)
        if broker is None or not broker.is_active:
            return []
        preferred = [partition for _, partition in _preferred(elections, broker_id)]
        missing = [each for each in preferred if each.leader_id != broker_id]
        return missing if _is_too_much(missing, preferred, self._tolerated_percentage) else []


def _preferred(elections: Elections, broker_id: int) -> list[tuple[TopicIdPartition, PartitionImage]]:
    """The partitions that this broker is the first replica of."""
    return [each for each in elections.replicas_of(broker_id) if each[1].replicas[0] == broker_id]


def _led_by_others(
    preferred: list[tuple[TopicIdPartition, PartitionImage]], broker_id: int, tolerated_percentage: int
) -> list[TopicIdPartition]:
    """The partitions that another broker leads, none while they are few enough."""
    led = [key for key, partition in preferred if partition.leader_id not in (broker_id, NO_NODE)]
    return led if _is_too_much(led, preferred, tolerated_percentage) else []


def _is_too_much(part: Sized, whole: Sized, tolerated_percentage: int) -> bool:
    return len(part) * 100 > tolerated_percentage * len(whole)
