"""The partitions that a broker follows from one leader: which of them are fetched now, and from where.

Invariants: what the fetch session wants is what is not held; a position is wanted only when what it acknowledges is as
safe as the topic asks (with `flush=batch` on the disk); a partition is held for its own reasons only, and each hold has
an end: a sync, a timer, an answer, or newer metadata. Kafka: `PartitionStates` of `AbstractFetcherThread` (B17, B24,
G17).
"""

import asyncio
from collections.abc import Callable, Iterable
from enum import Enum, auto

from rayka.node import clock
from rayka.node.follower_quotas import FollowerQuotas
from rayka.node.replica import PartitionKey, Replica, key_of
from rayka.partition.partition import Partition
from rayka.partition.partition_follower import PartitionFollower
from rayka.protocol.fetch import FetchPartition, FetchStream, SessionRequest

_DELAY_FIRST_MS = 20  # while a leader does not know yet that it leads
_NOT_ASKED = 1 << 62


class Hold(Enum):
    """Why a partition is not fetched just now."""

    NOTHING = auto()
    SYNC = auto()  # what it would acknowledge is not on the disk yet
    QUOTA = auto()  # it is not in sync, and this broker has fetched enough of such for now
    DELAY = auto()  # something was wrong with it
    TRUNCATION = auto()  # its log is about to be cut
    LOOKUP = auto()  # its leader is asked for its offsets
    METADATA = auto()  # its epoch is over


class Followed:
    """One partition, in one leader epoch. `asked_in`: the number of the request that asked from its position;
    `is_behind`: whether it lacks something that is committed; `problem`: why it cannot be copied, or empty."""

    __slots__ = ("asked_in", "delay_ms", "hold", "is_behind", "key", "leader_epoch", "problem", "replica")

    def __init__(self, replica: Replica) -> None:
        self.replica = replica
        self.key = key_of(replica.partition)
        self.leader_epoch = replica.partition.leader_epoch
        self.hold = Hold.NOTHING
        self.asked_in = _NOT_ASKED
        self.is_behind = True
        self.delay_ms = _DELAY_FIRST_MS
        self.problem = ""

    def __repr__(self) -> str:
        return f"<Followed {self.partition.topic_partition} epoch={self.leader_epoch} hold={self.hold.name}>"

    @property
    def partition(self) -> Partition:
        return self.replica.partition

    @property
    def is_current(self) -> bool:
        """Whether the partition still is in the epoch in which it was asked for (B26)."""
        return self.partition.leader_epoch == self.leader_epoch and not self.partition.is_leader

    def as_follower(self) -> PartitionFollower:
        """What is done with an answer. Raises when the epoch in which it was asked for is over (B26)."""
        return self.partition.as_follower(self.leader_epoch)

    def on_answered(self) -> None:
        """What was wrong with it is not any more."""
        self.delay_ms, self.problem = _DELAY_FIRST_MS, ""


class FetchPositions:
    """All that is followed from one leader. `on_ready` is called when there is something to ask for."""

    def __init__(self, max_bytes: int, quotas: FollowerQuotas, on_ready: Callable[[], None]) -> None:
        self._max_bytes = max_bytes
        self._quotas = quotas
        self._on_ready = on_ready
        self._followed: dict[PartitionKey, Followed] = {}
        self.stream = FetchStream()

    def __repr__(self) -> str:
        return f"<FetchPositions {len(self._followed)}>"

    def __len__(self) -> int:
        return len(self._followed)

    def get(self, key: PartitionKey) -> Followed | None:
        """The partition, if it is followed in the epoch that it is in."""
        followed = self._followed.get(key)
        return followed if followed is not None and followed.is_current else None

    @property
    def is_any_wanted(self) -> bool:
        return any(each.hold is Hold.NOTHING for each in self._followed.values())

    def problems(self) -> list[str]:
        """What cannot be copied, and why, one line each."""
        return [each.problem for each in self._followed.values() if each.problem]

    # ---- Coming and going ------------------------------------------------------------------------------

    def follow(self, replica: Replica) -> None:
        """From where its log ends, in the epoch that it is in now (B17)."""
        followed = self._followed[key_of(replica.partition)] = Followed(replica)
        self.refresh(followed)

    def unfollow(self, key: PartitionKey) -> None:
        """What is still to come of it is ignored."""
        if self._followed.pop(key, None) is not None:
            self.stream.session.forget(*key)

    def maybe_end(self, key: PartitionKey) -> None:
        """Nothing more is asked of the partition in an epoch that is over here; the rest of the metadata that ended it
        is still to be applied, and then it is followed anew."""
        followed = self._followed.get(key)
        if followed is not None and not followed.is_current:
            self.hold(followed, Hold.METADATA)

    def clear(self) -> None:
        """Follows nothing any more."""
        self._followed.clear()

    # ---- What is asked for -----------------------------------------------------------------------------

    def next_request(self) -> tuple[int, SessionRequest]:
        """The number of the next request, and what it has to say."""
        number, request = self.stream.begin()
        for each in request.partitions:
            self._followed[each.topic_id, each.partition].asked_in = number
        return number, request

    def refresh(self, followed: Followed) -> None:
        """Brings what is asked for in line with the partition's state."""
        followed.asked_in = _NOT_ASKED
        if followed.hold is Hold.NOTHING:
            self._maybe_hold(followed)
        if followed.hold is not Hold.NOTHING:
            self.stream.session.forget(*followed.key)
            return
        log = followed.partition.log
        self.stream.session.want(
            FetchPartition(
                *followed.key,
                fetch_offset=log.log_end_offset,
                max_bytes=self._max_bytes,
                current_leader_epoch=followed.leader_epoch,
                last_fetched_epoch=log.latest_epoch,
                log_start_offset=log.log_start_offset,
            )
        )
        self._on_ready()

    def _maybe_hold(self, followed: Followed) -> None:
        partition = followed.partition
        if partition.needs_sync:
            followed.hold = Hold.SYNC
            followed.replica.flusher.request(partition)
        elif followed.is_behind:
            pause_ms = self._quotas.pause_ms(partition, clock.now_ms())
            if pause_ms:
                followed.hold = Hold.QUOTA
                self._release_later(pause_ms, (followed,), Hold.QUOTA)

    def on_fetched(self, followed: Followed, size_bytes: int) -> None:
        """So much of it was fetched."""
        if size_bytes:
            self._quotas.record(followed.partition, size_bytes, clock.now_ms())

    # ---- Holding and releasing -------------------------------------------------------------------------

    def hold(self, followed: Followed, hold: Hold) -> None:
        """Nothing of it is asked for, until it is released."""
        followed.hold = hold
        self.refresh(followed)

    def delay(self, all_followed: Iterable[Followed], delay_max_ms: int) -> None:
        """Holds them for a time that doubles while the errors last."""
        by_delay: dict[int, list[Followed]] = {}
        for followed in all_followed:
            delay_ms = min(followed.delay_ms, delay_max_ms)
            followed.delay_ms = 2 * delay_ms
            self.hold(followed, Hold.DELAY)
            by_delay.setdefault(delay_ms, []).append(followed)
        for delay_ms, delayed in by_delay.items():
            self._release_later(delay_ms, delayed, Hold.DELAY)

    def release(self, followed: Followed) -> None:
        """It is asked for again, from where its log ends."""
        followed.hold = Hold.NOTHING
        self.refresh(followed)

    def on_synced(self, key: PartitionKey) -> None:
        """What was appended is on the disk."""
        followed = self.get(key)
        if followed is not None and followed.hold is Hold.SYNC:
            self.release(followed)

    def _release_later(self, delay_ms: int, held: Iterable[Followed], hold: Hold) -> None:
        asyncio.get_running_loop().call_later(delay_ms / 1000, self._release_all, held, hold)

    def _release_all(self, held: Iterable[Followed], hold: Hold) -> None:
        """Those that are still held for that reason, in the same epoch."""
        for followed in held:
            if self.get(followed.key) is followed and followed.hold is hold:
                self.release(followed)
