"""What the active controller does from time to time: the requests of its timers, and when the next ones are due.

A timer does little at a time and leaves the rest to the next one, so that other requests have their turn in between.
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
    """Asked once by a new active controller: hold the elections that the one before it may have left undone (B44)."""


class SweepBrokers(msgspec.Struct, frozen=True):
    """Look for brokers whose session ended; `due_ms` is when that was to be done. A process that was stopped sweeps
    before it reads the heartbeats that wait: they are not missing.
    """

    due_ms: int


class FenceStaleBroker(msgspec.Struct, frozen=True):
    """Fence one broker whose session ended. The response: whether another one waits (H6)."""


class ElectAllPreferredLeaders(msgspec.Struct, frozen=True):
    """Put right the leaders, for each broker as the preferred one (B46)."""


class ElectReturnedLeaders(msgspec.Struct, frozen=True):
    """Give leads back to the brokers that have come back and can take them now (decision 027). The response: these."""


class ElectPreferredLeaders(msgspec.Struct, frozen=True):
    """Put right the leaders of the partitions that this broker is the first replica of. The response: whether there is
    more to do (B46).
    """

    broker_id: int


class ShareWithCoordinators(msgspec.Struct, frozen=True):
    """Give coordinators that hold no internal partition their share. The response: these."""


class LookAfterReplicas(msgspec.Struct, frozen=True):
    """Look for brokers and directories that are gone, and have what they held made anew; then go on with a balance.
    `due_ms` is when that was to be done. The response: how many moves of healing have begun.
    """

    due_ms: int


class WriteNoOp(msgspec.Struct, frozen=True):
    """Show that the quorum commits, if nothing was written since the log ended at this offset (A68)."""

    next_offset: int


class ControllerTimers:
    """The timers of one controller, by its configuration."""

    def __init__(self, config: BrokerConfig) -> None:
        self._sweep_interval_ms = config.broker_session_timeout_ms // SWEEPS_PER_SESSION
        self._imbalance_check_interval_ms = int(config.leader_imbalance_check_interval_seconds * 1000)
        self._returns_leads = config.auto_leader_rebalance_enable
        self._unavailable_timeout_ms = config.broker_unavailable_timeout_ms
        self._no_op_interval_ms = config.metadata_max_idle_interval_ms

    def __repr__(self) -> str:
        return f"<ControllerTimers sweep={self._sweep_interval_ms} look={self._unavailable_timeout_ms}>"

    def first(self, now_ms: int, next_offset: int) -> list[Timer]:
        """Those of a controller that has just become active."""
        return [
            Timer("elect leaderless", now_ms, ElectLeaderless()),
            self._sweep(now_ms),
            *self.after_preferred_leaders((), now_ms),
            *self.after_look(now_ms, timeout_ms=self._unavailable_timeout_ms, is_idle=True),
            *(self.after_returned((), now_ms) if self._returns_leads else ()),
            *self.no_ops(now_ms, next_offset),
        ]

    def after_sweep(self, now_ms: int) -> list[Timer]:
        """The next sweep, and what this one has found."""
        return [self._sweep(now_ms), *self.fences(now_ms)]

    def _sweep(self, now_ms: int) -> Timer:
        due_ms = now_ms + self._sweep_interval_ms
        return Timer("sweep", due_ms, SweepBrokers(due_ms))

    def fences(self, now_ms: int) -> list[Timer]:
        return [Timer("fence", now_ms, FenceStaleBroker())]

    def preferred_leader_timers(self, broker_ids: Iterable[int], now_ms: int) -> list[Timer]:
        """One for each of the brokers, due now."""
        return [Timer(("balance", each), now_ms, ElectPreferredLeaders(each)) for each in broker_ids]

    def after_preferred_leaders(self, broker_ids: Iterable[int], now_ms: int) -> list[Timer]:
        """The next look at all brokers, after these have been balanced."""
        again = Timer("balance", now_ms + self._imbalance_check_interval_ms, ElectAllPreferredLeaders())
        return [*self.preferred_leader_timers(broker_ids, now_ms), again]

    def after_returned(self, broker_ids: Iterable[int], now_ms: int) -> list[Timer]:
        """The next look at the brokers that have come back, after these have been balanced."""
        interval_ms = min(self._imbalance_check_interval_ms, RETURNED_CHECK_INTERVAL_MS)
        return [
            *self.preferred_leader_timers(broker_ids, now_ms),
            Timer("returned", now_ms + interval_ms, ElectReturnedLeaders()),
        ]

    def after_look(self, now_ms: int, *, timeout_ms: int, is_idle: bool) -> list[Timer]:
        """The next look for what is gone: soon, while moves are under way."""
        interval_ms = LOOK_INTERVAL_MS if is_idle else BUSY_LOOK_INTERVAL_MS
        due_ms = now_ms + max(1, min(interval_ms, timeout_ms // _LOOKS_PER_TIMEOUT))
        return [Timer("look", due_ms, LookAfterReplicas(due_ms))]

    def look_soon(self, now_ms: int) -> list[Timer]:
        """The next look, where one is not due sooner."""
        due_ms = now_ms + BUSY_LOOK_INTERVAL_MS
        return [Timer("look", due_ms, LookAfterReplicas(due_ms))]

    def look_now(self, now_ms: int) -> list[Timer]:
        """The next look, at once."""
        return [Timer("look", now_ms, LookAfterReplicas(now_ms))]

    def shares(self, brokers: Iterable[BrokerImage], now_ms: int) -> list[Timer]:
        """One, due now, where one of these may be a coordinator without a share."""
        may_idle = any(each.is_coordinator and each.is_active for each in brokers)
        return [Timer("shares", now_ms, ShareWithCoordinators())] if may_idle else []

    def no_ops(self, now_ms: int, next_offset: int) -> list[Timer]:
        """None where idle logs stay as they are."""
        if self._no_op_interval_ms <= 0:
            return []
        return [Timer("no-op", now_ms + self._no_op_interval_ms, WriteNoOp(next_offset))]
