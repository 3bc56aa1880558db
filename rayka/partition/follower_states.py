"""What a leader knows of each replica that follows it, from the fetches of its own leader epoch (B5).

Invariants: a position is known only from a fetch in the leader's current epoch, so that none is left of what a replica
had before it followed this log (B16, B24); `last_caught_up_ms` never goes back within an epoch; a fetch of an older
broker process changes nothing. Kafka: `Replica`, `ReplicaState`.
"""

from collections.abc import Iterable
from typing import NamedTuple

from rayka.ids import NO_EPOCH, NO_OFFSET

NEVER_MS = -(2**63)


class FollowerFetch(NamedTuple):
    """Where a replica asked to read from: it has everything below `fetch_offset`. `broker_epoch` -1 is not checked."""

    replica_id: int
    broker_epoch: int
    fetch_offset: int
    log_start_offset: int


class FollowerState:
    """One replica, as its fetches show it; -1 stands for what no fetch has told yet."""

    __slots__ = (
        "broker_epoch", "last_caught_up_ms", "last_fetch_leader_end_offset", "last_fetch_ms", "log_end_offset",
        "log_start_offset", "replica_id",
    )  # fmt: skip

    def __init__(self, replica_id: int, *, last_caught_up_ms: int = NEVER_MS) -> None:
        self.replica_id = replica_id
        self.broker_epoch = NO_EPOCH
        self.log_start_offset = NO_OFFSET
        self.log_end_offset = NO_OFFSET
        self.last_fetch_ms = NEVER_MS
        self.last_fetch_leader_end_offset = NO_OFFSET
        self.last_caught_up_ms = last_caught_up_ms

    def __repr__(self) -> str:
        return f"<FollowerState {self.replica_id} epoch={self.broker_epoch} leo={self.log_end_offset}>"

    @property
    def has_fetched(self) -> bool:
        """Whether anything is known of it."""
        return self.log_end_offset != NO_OFFSET

    def on_fetch(self, fetch: FollowerFetch, leader_end_offset: int, now_ms: int) -> None:
        """It is caught up now when it has all, and as of its last fetch when it has all that was there then (B5)."""
        if fetch.fetch_offset >= leader_end_offset:
            self.last_caught_up_ms = max(self.last_caught_up_ms, now_ms)
        elif fetch.fetch_offset >= self.last_fetch_leader_end_offset:
            self.last_caught_up_ms = max(self.last_caught_up_ms, self.last_fetch_ms)
        self.broker_epoch = fetch.broker_epoch
        self.log_start_offset = fetch.log_start_offset
        self.log_end_offset = fetch.fetch_offset
        self.last_fetch_leader_end_offset = leader_end_offset
        self.last_fetch_ms = now_ms

    def is_caught_up(self, leader_end_offset: int, now_ms: int, lag_max_ms: int) -> bool:
        """Whether it has everything, or had everything not too long ago (B10)."""
        return self.log_end_offset == leader_end_offset or now_ms - self.last_caught_up_ms <= lag_max_ms


def new_states(replica_ids: Iterable[int], in_sync: tuple[int, ...], now_ms: int) -> dict[int, FollowerState]:
    """The followers at the begin of a leader epoch: one in sync gets time to show it (B16)."""
    return {
        each: FollowerState(each, last_caught_up_ms=now_ms if each in in_sync else NEVER_MS)
        for each in replica_ids
    }
