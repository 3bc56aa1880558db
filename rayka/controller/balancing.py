"""From time to time leaders are put right: where no replica leads but one could, and where too many partitions of a
broker are not led by their preferred replica, the first one (B46).

Leaderless partitions get an election by themselves when a broker becomes electable, or when a request allows unclean
ones; the timer finds what is left, as after a specification that allows them now. One run looks at the partitions of
one preferred replica and writes a bounded number of records. Kafka: `maybeBalancePartitionLeaders`,
`maybeElectUncleanLeaders` (A68); that some imbalance is tolerated, `leader.imbalance.per.broker.percentage`, is what it
did before 4.0.

Kafka has only the timer. Here a broker that is back need not wait for it (decision 027): when a whole cluster starts,
the first brokers lead everything, and the others would idle for five minutes.
"""

from collections.abc import Iterator, Mapping
from itertools import chain

from rayka.config import BrokerConfig
from rayka.controller.leader_elections import Elections
from rayka.controller.partition_change import Election
from rayka.metadata.image import BrokerImage
from rayka.metadata.metadata_records import MetadataRecord, PartitionChangeRecord
from rayka.shard.shard import Result, Steps

ELECTIONS_PER_RUN_MAX = 1_000


def balance_leaders(
    elections: Elections, broker_id: int, config: BrokerConfig
) -> Steps[MetadataRecord, bool]:
    """Elections among the partitions that this broker is the first replica of; whether there are more to be held."""
    count = 0
    for record in _elections(elections, broker_id, config):
        if record is not None and count == ELECTIONS_PER_RUN_MAX:
            return Result((), True)
        count += record is not None
        yield record
    return Result((), False)


def elect_leaderless(elections: Elections) -> Steps[MetadataRecord, None]:
    """Elections where no broker leads. A broker that was unfenced is given leads in several batches, and the controller
    that began may have died between two of them (B44).
    """
    for key in elections.replicas.all_leaderless():
        yield elections.change(key).build()
    return Result((), None)


def _elections(
    elections: Elections, broker_id: int, config: BrokerConfig
) -> Iterator[PartitionChangeRecord | None]:
    replicas = elections.replicas
    for key in replicas.leaderless(broker_id):
        yield elections.change(key).build()
    tolerated_percentage = config.leader_imbalance_per_broker_percentage
    counts = (replicas.led_by_others_count(broker_id), replicas.preferred_count(broker_id))
    if config.auto_leader_rebalance_enable and _is_too_much(*counts, tolerated_percentage):
        for key in replicas.reclaimable(broker_id):
            yield elections.change(key).election(Election.PREFERRED).build()


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
            is_missing_much = self._is_missing_much(elections, broker_id)
            if not is_missing_much or now_ms - self._since_ms[broker_id] >= self._interval_ms:
                del self._since_ms[broker_id]
            elif _can_take(elections, broker_id):
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

    def _is_missing_much(self, elections: Elections, broker_id: int) -> bool:
        """Whether there is much that the broker is to lead and does not; not while it is not active."""
        broker, replicas = elections.image.brokers.get(broker_id), elections.replicas
        if broker is None or not broker.is_active:
            return False
        missing_count = replicas.led_by_others_count(broker_id) + replicas.leaderless_count(broker_id)
        return _is_too_much(missing_count, replicas.preferred_count(broker_id), self._tolerated_percentage)


def _can_take(elections: Elections, broker_id: int) -> bool:
    """Whether the broker can lead some partition that it is to lead and does not."""
    replicas = elections.replicas
    missing = (
        elections.partition(key)
        for key in chain(replicas.reclaimable(broker_id), replicas.leaderless(broker_id))
    )
    return any(broker_id in each.isr and elections.is_electable(each, broker_id) for each in missing)


def _is_too_much(part_count: int, whole_count: int, tolerated_percentage: int) -> bool:
    return part_count * 100 > tolerated_percentage * whole_count
