"""The timers of the active controller: their requests, and their due times.

Each timer does little work and leaves the rest to the next timer, so that other requests have their turn in between.
Kafka: `PeriodicTaskControlManager` and the tasks that `QuorumController` registers with it (A68).
"""

from collections.abc import Iterable

import msgspec

from rayka.config.broker_config import BrokerConfig
from rayka.metadata.image import BrokerImage
from rayka.shard.shard import Timer

SWEEPS_PER_SESSION = 8  # H6
RETURNED_CHECK_INTERVAL_MS = 1_000
LOOK_INTERVAL_MS, BUSY_LOOK_INTERVAL_MS = 5_000, 250
_LOOKS_PER_TIMEOUT = 4


class ElectLeaderless(msgspec.Struct, frozen=True):
    """Holds the elections that the former active controller may have left undone (B44). Asked once by a new one."""


class SweepBrokers(msgspec.Struct, frozen=True):
    """Looks for brokers whose session ended. A process that stood still sweeps before it reads the waiting heartbeats,
    so the sweep extends all sessions by its own delay.
    """

    # When the timer was due.
    due_ms: int


class FenceStaleBroker(msgspec.Struct, frozen=True):
    """Fences one broker whose session ended (H6). Response: whether another such broker waits."""


class ElectAllPreferredLeaders(msgspec.Struct, frozen=True):
    """Begins an `ElectPreferredLeaders` for every broker (B46)."""


class ElectReturnedLeaders(msgspec.Struct, frozen=True):
    """Gives leads back to returned brokers that can take leads now (decision 027). Response: the ids of these."""


class ElectPreferredLeaders(msgspec.Struct, frozen=True):
    """Elects leaders of partitions that this broker is to lead (B46). Response: whether elections are left."""

    broker_id: int


class ShareWithCoordinators(msgspec.Struct, frozen=True):
    """Gives a share of internal partitions to each coordinator without one. Response: the ids of these coordinators."""


class LookAfterReplicas(msgspec.Struct, frozen=True):
    """Settles ended moves, heals, then continues drains and the balance. Response: healing moves begun."""

    # When the timer was due.
    due_ms: int


class WriteNoOp(msgspec.Struct, frozen=True):
    """Shows that the quorum commits: writes a no-op record unless the log has grown since (A68)."""

    # The end of the log when the timer was set.
    next_offset: int


class ControllerTimers:
    """Makes the timers of one controller, by its configuration."""

    def __init__(self, config: BrokerConfig) -> None:
        self._sweep_interval_ms = config.broker_session_timeout_ms // SWEEPS_PER_SESSION
        self._imbalance_check_interval_ms = int(config.leader_imbalance_check_interval_seconds * 1000)
        self._returns_leads = config.auto_leader_rebalance_enable
        self._unavailable_timeout_ms = config.broker_unavailable_timeout_ms
        self._no_op_interval_ms = config.metadata_max_idle_interval_ms

    def __repr__(self) -> str:
        return f"<ControllerTimers sweep={self._sweep_interval_ms} look={self._unavailable_timeout_ms}>"

    def first(self, now_ms: int, next_offset: int) -> list[Timer]:
        """Timers of a controller that has just become active."""
        return [
            Timer("elect leaderless", now_ms, ElectLeaderless()),
            self._sweep(now_ms),
            *self.after_preferred_leaders((), now_ms),
            *self.after_look(now_ms, timeout_ms=self._unavailable_timeout_ms, is_idle=True),
            *(self.after_returned((), now_ms) if self._returns_leads else ()),
            *self.no_ops(now_ms, next_offset),
        ]

    def after_sweep(self, now_ms: int) -> list[Timer]:
        """The next sweep, and a timer, due now, that fences a broker whose session ended."""
        return [self._sweep(now_ms), *self.fences(now_ms)]

    def _sweep(self, now_ms: int) -> Timer:
        due_ms = now_ms + self._sweep_interval_ms
        return Timer("sweep", due_ms, SweepBrokers(due_ms))

    def fences(self, now_ms: int) -> list[Timer]:
        return [Timer("fence", now_ms, FenceStaleBroker())]

    def preferred_leader_timers(self, broker_ids: Iterable[int], now_ms: int) -> list[Timer]:
        """Timers, due now, that restore the preferred leaders of these brokers."""
        return [Timer(("balance", each), now_ms, ElectPreferredLeaders(each)) for each in broker_ids]

    def after_preferred_leaders(self, broker_ids: Iterable[int], now_ms: int) -> list[Timer]:
        """Timers that restore preferred leaders: of these brokers now, of all brokers after the interval."""
        again = Timer("balance", now_ms + self._imbalance_check_interval_ms, ElectAllPreferredLeaders())
        return [*self.preferred_leader_timers(broker_ids, now_ms), again]

    def after_returned(self, broker_ids: Iterable[int], now_ms: int) -> list[Timer]:
        """Timers that restore the preferred leaders of these brokers now, and look for returned brokers in 1 s."""
        interval_ms = min(self._imbalance_check_interval_ms, RETURNED_CHECK_INTERVAL_MS)
        return [
            *self.preferred_leader_timers(broker_ids, now_ms),
            Timer("returned", now_ms + interval_ms, ElectReturnedLeaders()),
        ]

    def after_look(self, now_ms: int, *, timeout_ms: int, is_idle: bool) -> list[Timer]:
        """The next look after replicas: in 5 s, or in 250 ms while moves are under way; sooner with a short timeout."""
        interval_ms = LOOK_INTERVAL_MS if is_idle else BUSY_LOOK_INTERVAL_MS
        due_ms = now_ms + max(1, min(interval_ms, timeout_ms // _LOOKS_PER_TIMEOUT))
        return [Timer("look", due_ms, LookAfterReplicas(due_ms))]

    def look_soon(self, now_ms: int) -> list[Timer]:
        """The next look after replicas, in 250 ms."""
        due_ms = now_ms + BUSY_LOOK_INTERVAL_MS
        return [Timer("look", due_ms, LookAfterReplicas(due_ms))]

    def look_now(self, now_ms: int) -> list[Timer]:
        """The next look after replicas, due now."""
        return [Timer("look", now_ms, LookAfterReplicas(now_ms))]

    def shares(self, brokers: Iterable[BrokerImage], now_ms: int) -> list[Timer]:
        """A timer, due now, that shares internal partitions; none without an active coordinator among the nodes."""
        may_idle = any(each.is_coordinator and each.is_active for each in brokers)
        return [Timer("shares", now_ms, ShareWithCoordinators())] if may_idle else []

    def no_ops(self, now_ms: int, next_offset: int) -> list[Timer]:
        """The next no-op record; none if the configuration wants no records in an idle log."""
        if self._no_op_interval_ms <= 0:
            return []
        return [Timer("no-op", now_ms + self._no_op_interval_ms, WriteNoOp(next_offset))]
