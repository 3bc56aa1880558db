"""Members' cores against a real coordinator, without a network: the test moves the clock and says when members poll."""

from collections.abc import Mapping, Sequence
from typing import Any

from rayka.client.consumer.group_membership import Handover, LookUpTopics, Membership, Step
from rayka.config.client_config import ConsumerConfig
from rayka.coordinator.assignors.subscribers import PartitionRacks
from rayka.ids import TopicPartition
from rayka.shard.runtime import Pending
from tests.coordinator.group_support import REBALANCE_MS, SESSION_MS, Coordinator

BEAT_MS, BACKOFF_MS = 1_000, 100


def config_of(
    *, assignors: Sequence[str] = ("range",), group_instance_id: str = "", rack: str = ""
) -> ConsumerConfig:
    given = {
        "group_id": "g",
        "group_instance_id": group_instance_id or None,
        "session_timeout_ms": SESSION_MS,
        "max_poll_interval_ms": REBALANCE_MS,
        "heartbeat_interval_ms": BEAT_MS,
        "retry_backoff_ms": BACKOFF_MS,
        "client_id": "c",
        "partition_assignment_strategy": assignors,
        "client_rack": rack,
    }
    return ConsumerConfig.parse(given, what="member")


class CoreMember:
    """One member. `told` is what its application was told, as a face would tell it."""

    def __init__(
        self,
        coordinator: Coordinator,
        counts: Mapping[str, int],
        *,
        topics: Sequence[str] = ("t",),
        **fields: Any,
    ) -> None:
        self.core = Membership(config_of(**fields))
        self.told: list[str] = []
        self.sent: list[Step] = []
        self.is_cut_off = False
        self._coordinator = coordinator
        self._counts = counts
        self._pending: dict[int, tuple[Step, Pending]] = {}
        self.core.subscribe(tuple(topics))

    @property
    def owned(self) -> str:
        return " ".join(sorted(f"{each}" for each in self.core.owned))

    def poll(self) -> None:
        """The application polls: what can be handed over is, until nothing changes."""
        self.go_on()
        while (handover := self.core.handover) is not None:
            self._tell(handover)
            self.core.on_handed_over(handover)
            self.go_on()

    def _tell(self, handover: Handover) -> None:
        if handover.revoked:
            self.told.append(f"{'lost' if handover.is_lost else 'revoked'} {_names(handover.revoked)}")
        if handover.added is not None:
            self.told.append(f"assigned {_names(handover.added)}".strip())

    def go_on(self) -> None:
        """Sends what is to be sent, and takes what was answered."""
        if self.is_cut_off:
            return
        while self._take_answers() or self._send():
            pass

    def _take_answers(self) -> bool:
        done = [key for key, (_, pending) in self._pending.items() if pending.is_done]
        for key in done:
            step, pending = self._pending.pop(key)
            if pending.error is not None:
                self.core.on_error(step, pending.error, self._coordinator.now_ms)
            else:
                self.core.on_response(step, pending.response, self._coordinator.now_ms)
        return bool(done)

    def _send(self) -> bool:
        step = self.core.next_step(self._coordinator.now_ms)
        if isinstance(step, LookUpTopics):
            topics = {name: self._partitions(name) for name in step.topics}
            self.core.on_response(step, topics, self._coordinator.now_ms)
        elif step is not None:
            self.sent.append(step)
            self._pending[id(step)] = step, self._coordinator.ask(step)
        return step is not None

    def look_at_topics(self) -> None:
        """The member's metadata are renewed."""
        if self.core.leader_topics is not None:
            self.core.on_topics({name: self._partitions(name) for name in self.core.leader_topics})

    def _partitions(self, name: str) -> PartitionRacks:
        """Partition n is in rack n, if the leader asks for racks."""
        rack = "rack-%d" if self.core.has_racks else ""
        return tuple((rack % number,) if rack else () for number in range(self._counts.get(name, 0)))


def _names(partitions: Sequence[TopicPartition]) -> str:
    return " ".join(f"{each}" for each in partitions)


def pass_time(
    coordinator: Coordinator, members: Sequence[CoreMember], duration_ms: int, *, idle: Sequence[Any] = ()
) -> None:
    """Heartbeats and timers have their turns; all members poll but those that are idle."""
    end_ms = coordinator.now_ms + duration_ms
    while True:
        for member in members:
            if member in idle:
                member.go_on()
            else:
                member.poll()
        if coordinator.now_ms >= end_ms:
            return
        coordinator.wait(min(100, end_ms - coordinator.now_ms))
