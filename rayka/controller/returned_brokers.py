"""Returned brokers, which get their leads back soon (decision 027): soft state of the active controller.

Kafka has only the timer of preferred leaders. Here a returned broker need not wait for the timer: when a whole cluster
starts, the first brokers lead everything, and the others would idle for five minutes.
"""

from collections.abc import Mapping
from itertools import chain

from rayka.config.broker_config import BrokerConfig
from rayka.controller.leader_elections import Elections
from rayka.metadata.image import BrokerImage


class ReturnedBrokers:
    """Brokers that were unfenced and lack many of their preferred leads.

    A returned broker takes back at once each partition that it is in sync for. The broker counts as returned until it
    leads enough, is not active any more, or the timer's interval has passed. A broker that took leads back less than an
    interval ago waits for the timer: otherwise a broker that comes and goes would move its leads each time.
    """

    def __init__(self, config: BrokerConfig) -> None:
        self._tolerated_percentage = config.leader_imbalance_per_broker_percentage
        self._interval_ms = config.leader_imbalance_check_interval_seconds * 1_000
        # Brokers unfenced since the last look.
        self._new: dict[int, None] = {}
        # When each returned broker was first seen.
        self._since_ms: dict[int, int] = {}
        # When each broker last took leads back, within the last interval.
        self._took_ms: dict[int, int] = {}

    def __repr__(self) -> str:
        return f"<ReturnedBrokers {sorted(self._new.keys() | self._since_ms.keys())}>"

    def on_active(self, brokers: Mapping[int, BrokerImage]) -> None:
        """Counts all brokers as just unfenced: a new active controller does not know which ones returned."""
        self._new.update(dict.fromkeys(brokers))

    def on_unfenced(self, broker_id: int) -> None:
        self._new[broker_id] = None

    def on_unregistered(self, broker_id: int) -> None:
        """Forgets the broker: a later broker of this id is another one."""
        self._new.pop(broker_id, None)
        for each in (self._since_ms, self._took_ms):
            each.pop(broker_id, None)

    def take_due(self, elections: Elections, now_ms: int) -> list[int]:
        """Returns the brokers that can take leads back now, and notes that they have taken them."""
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
        """Begins the time of brokers that were unfenced since the last look, unless they took leads back lately."""
        recent = {key: ms for key, ms in self._took_ms.items() if now_ms - ms < self._interval_ms}
        self._took_ms = recent
        for broker_id in self._new:
            self._since_ms.pop(broker_id, None)
            if broker_id not in recent:
                self._since_ms[broker_id] = now_ms
        self._new = {}

    def _is_missing_much(self, elections: Elections, broker_id: int) -> bool:
        """Whether the broker is active and lacks more of its preferred leads than is tolerated."""
        broker, replicas = elections.image.brokers.get(broker_id), elections.replicas.of(broker_id)
        if broker is None or not broker.is_active:
            return False
        missing_count = replicas.led_by_others_count + replicas.leaderless_count
        return is_too_much(missing_count, replicas.preferred_count, self._tolerated_percentage)


def _can_take(elections: Elections, broker_id: int) -> bool:
    """Whether the broker can take at least one of its preferred leads that it lacks."""
    if elections.is_draining(broker_id):
        return False
    replicas = elections.replicas.of(broker_id)
    missing = (elections.partition(key) for key in chain(replicas.reclaimable, replicas.leaderless))
    return any(broker_id in each.isr and elections.is_electable(each, broker_id) for each in missing)


def is_too_much(part_count: int, whole_count: int, tolerated_percentage: int) -> bool:
    return part_count * 100 > tolerated_percentage * whole_count
