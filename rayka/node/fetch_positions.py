"""The partitions that a broker follows from one leader: which of them are fetched now, and from where.

Invariants:

- The fetch session wants exactly the partitions that are not held.
- A position is wanted only when the records below it are as safe as the topic asks (with `flush=batch`, on the disk),
  because the position acknowledges them.
- A partition is held for reasons of its own only. Each hold ends: by a sync, a timer, an answer, or newer metadata.

Kafka: `PartitionStates` of `AbstractFetcherThread` (B17, B24, G17).
"""

import asyncio
from collections.abc import Callable, Iterable
from enum import Enum, auto
from operator import attrgetter

from rayka import clock
from rayka.node.follower_quotas import FollowerQuotas
from rayka.node.replica import Replica, key_of
from rayka.partition.partition_follower import PartitionFollower
from rayka.protocol.fetch import FetchPartition, FetchStream, PartitionKey, SessionRequest

# For a leader that does not know yet that it leads.
_DELAY_FIRST_MS = 20
_NOT_ASKED = 1 << 62
_hold_of = attrgetter("hold")


class Hold(Enum):
    """Why a partition is not fetched just now."""

    NOTHING = auto()
    # The records that a fetch would acknowledge are not on the disk yet.
    SYNC = auto()
    # The partition is not in sync, and this broker has fetched enough of such partitions for now.
    QUOTA = auto()
    # The last answer had an error, or its records were refused.
    DELAY = auto()
    # The log is about to be truncated.
    TRUNCATION = auto()
    # The leader is asked for the offsets of its log.
    LOOKUP = auto()
    # The leader epoch is over.
    METADATA = auto()


class Followed:
    """One partition, in one leader epoch."""

    __slots__ = (
        "asked_in", "delay_ms", "hold", "is_behind", "key", "leader_epoch", "partition", "problem", "replica",
    )  # fmt: skip

    def __init__(self, replica: Replica) -> None:
        self.replica = replica
        self.partition = replica.partition
        self.key = key_of(replica.partition)
        self.leader_epoch = replica.partition.leader_epoch
        self.hold = Hold.NOTHING
        # The number of the request that asked from the present position.
        self.asked_in = _NOT_ASKED
        # True while a committed record is missing here.
        self.is_behind = True
        # The length of the next delay; doubles while errors last.
        self.delay_ms = _DELAY_FIRST_MS
        # Why the partition cannot be copied; empty: it can.
        self.problem = ""

    def __repr__(self) -> str:
        return f"<Followed {self.partition.topic_partition} epoch={self.leader_epoch} hold={self.hold.name}>"

    @property
    def is_current(self) -> bool:
        """True while the partition is in the epoch in which it was asked for (B26)."""
        role = self.partition.role
        return role.state.leader_epoch == self.leader_epoch and isinstance(role, PartitionFollower)

    def as_follower(self) -> PartitionFollower:
        """The role that takes an answer. Raises when the epoch in which the answer was asked for is over (B26)."""
        return self.partition.as_follower(self.leader_epoch)

    def on_answered(self) -> None:
        """Forgets the errors: an answer was good."""
        self.delay_ms, self.problem = _DELAY_FIRST_MS, ""


class FetchPositions:
    """All partitions that are followed from one leader. Calls `on_ready` when there is something to ask for."""

    def __init__(self, max_bytes: int, quotas: FollowerQuotas, on_ready: Callable[[], None]) -> None:
        self._max_bytes = max_bytes
        self._quotas = quotas
        self._on_ready = on_ready
        self._followed: dict[PartitionKey, Followed] = {}
        self.stream = FetchStream()

    def __len__(self) -> int:
        return len(self._followed)

    def get(self, key: PartitionKey) -> Followed | None:
        """The partition, if it is followed in its present epoch."""
        followed = self._followed.get(key)
        return followed if followed is not None and followed.is_current else None

    @property
    def is_any_wanted(self) -> bool:
        return Hold.NOTHING in map(_hold_of, self._followed.values())

    def problems(self) -> list[str]:
        """Why partitions cannot be copied, one line each."""
        return [each.problem for each in self._followed.values() if each.problem]

    # ---- Coming and going ------------------------------------------------------------------------------

    def follow(self, replica: Replica) -> None:
        """Follows the partition from the end of its log, in its present epoch (B17)."""
        followed = self._followed[key_of(replica.partition)] = Followed(replica)
        self.refresh(followed)

    def unfollow(self, key: PartitionKey) -> None:
        """Ignores what is still to come of the partition."""
        if self._followed.pop(key, None) is not None:
            self.stream.session.forget(*key)

    def maybe_end(self, key: PartitionKey) -> None:
        """Holds the partition if its epoch is over here. It is followed anew once the rest of the metadata that ended
        the epoch is applied.
        """
        followed = self._followed.get(key)
        if followed is not None and not followed.is_current:
            self.hold(followed, Hold.METADATA)

    def clear(self) -> None:
        """Follows no partition any more."""
        self._followed.clear()

    # ---- Requests -----------------------------------------------------------------------------

    def next_request(self) -> tuple[int, SessionRequest]:
        """The number of the next request, and its content."""
        number, request = self.stream.begin()
        for each in request.partitions:
            self._followed[each.topic_id, each.partition].asked_in = number
        return number, request

    def refresh(self, followed: Followed) -> None:
        """Brings the session in line with the partition's state."""
        followed.asked_in = _NOT_ASKED
        partition = followed.partition
        if followed.hold is Hold.NOTHING:
            if partition.needs_sync:
                followed.hold = Hold.SYNC
                followed.replica.flusher.request(partition)
            elif followed.is_behind:
                pause_ms = self._quotas.pause_ms(partition, clock.now_ms())
                if pause_ms:
                    followed.hold = Hold.QUOTA
                    self._release_later(pause_ms, (followed,), Hold.QUOTA)
        if followed.hold is not Hold.NOTHING:
            self.stream.session.forget(*followed.key)
            return
        log = partition.log
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

    # ---- Holding and releasing -------------------------------------------------------------------------

    def hold(self, followed: Followed, hold: Hold) -> None:
        """Asks for nothing of the partition until `release`."""
        followed.hold = hold
        self.refresh(followed)

    def delay(self, all_followed: Iterable[Followed], delay_max_ms: int) -> None:
        """Holds the partitions for a time that doubles while their errors last."""
        by_delay: dict[int, list[Followed]] = {}
        for followed in all_followed:
            delay_ms = min(followed.delay_ms, delay_max_ms)
            followed.delay_ms = 2 * delay_ms
            self.hold(followed, Hold.DELAY)
            by_delay.setdefault(delay_ms, []).append(followed)
        for delay_ms, delayed in by_delay.items():
            self._release_later(delay_ms, delayed, Hold.DELAY)

    def release(self, followed: Followed) -> None:
        """Asks for the partition again, from the end of its log."""
        followed.hold = Hold.NOTHING
        self.refresh(followed)

    def on_synced(self, key: PartitionKey) -> None:
        """Goes on with a partition whose records are on the disk now."""
        followed = self.get(key)
        if followed is not None and followed.hold is Hold.SYNC:
            self.release(followed)

    def _release_later(self, delay_ms: int, held: Iterable[Followed], hold: Hold) -> None:
        asyncio.get_running_loop().call_later(delay_ms / 1000, self._release_all, held, hold)

    def _release_all(self, held: Iterable[Followed], hold: Hold) -> None:
        """Releases the partitions that are still held for that reason, in the same epoch."""
        for followed in held:
            if self.get(followed.key) is followed and followed.hold is hold:
                self.release(followed)
