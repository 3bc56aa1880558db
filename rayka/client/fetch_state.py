"""What a consumer is about to fetch: for each partition the next offset, whom to ask, and what has arrived but was not
taken yet.

The brain of fetching, without IO. Invariants: a partition has at most one fetch in flight, and its fetched data lie in
offset order without a hole; a result of an older generation (from before a seek) is dropped; fetching stops while a
partition holds its share of bytes. The next offset is the broker's `next_offset`, never "last record + 1", so
control records and compaction gaps cannot stall a reader. With it goes the epoch of the last batch before it, by which
a leader finds that what was read is not in its log. Kafka: SubscriptionState, FetchBuffer (G15, G16).
"""

from collections import deque
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np

from rayka.errors import LogTruncation, RaykaError
from rayka.ids import NO_EPOCH, OffsetAndEpoch, TopicPartition
from rayka.protocol.fetch import EARLIEST_TIMESTAMP, LATEST_TIMESTAMP

START_TIMESTAMPS = {"earliest": EARLIEST_TIMESTAMP, "latest": LATEST_TIMESTAMP}


class Fetched(NamedTuple):
    """What one fetch brought of one partition: whole batches, of which those before `fetch_offset` are to be dropped.

    `generation` tells whether the position was changed since.
    """

    topic_partition: TopicPartition
    generation: int
    fetch_offset: int
    next_offset: int
    buffers: tuple[np.ndarray, ...]


class FetchTicket(NamedTuple):
    """One partition's part of a fetch that is under way."""

    topic_partition: TopicPartition
    generation: int
    fetch_offset: int
    last_fetched_epoch: int


class _ReadReplica(NamedTuple):
    """A follower that the leader sent the reader to, for some time."""

    node_id: int
    until_ms: int


class _Partition:
    __slots__ = (
        "buffered_bytes",
        "fetch_offset",
        "generation",
        "in_flight",
        "last_fetched_epoch",
        "read_replica",
        "start",
    )

    def __init__(self, start: int | None, generation: int) -> None:
        self.generation = generation
        self.fetch_offset: int | None = None
        self.last_fetched_epoch = NO_EPOCH
        self.read_replica: _ReadReplica | None = None
        self.start = start  # the timestamp to look up while the offset is unknown
        self.in_flight = False
        self.buffered_bytes = 0


class FetchState:
    """The partitions of one consumer. Belongs to the loop that fetches."""

    def __init__(self, *, auto_offset_reset: str, partition_bytes_max: int, total_bytes_max: int) -> None:
        self._reset_to = START_TIMESTAMPS.get(auto_offset_reset)
        self._partition_bytes_max = partition_bytes_max
        self._total_bytes_max = total_bytes_max
        self._generation = 0  # of the newest position; never used twice
        self._partitions: dict[TopicPartition, _Partition] = {}
        self._fetched: deque[Fetched] = deque()
        self._errors: dict[TopicPartition, RaykaError] = {}

    def __repr__(self) -> str:
        offsets = " ".join(f"{tp}@{each.fetch_offset}" for tp, each in self._partitions.items())
        return f"<FetchState {offsets} buffered={len(self._fetched)}>"

    @property
    def assignment(self) -> tuple[TopicPartition, ...]:
        return tuple(self._partitions)

    def assign(self, partitions: Iterable[TopicPartition]) -> None:
        """Replaces the assignment; partitions that stay keep their position and what was fetched."""
        wanted = list(dict.fromkeys(partitions))
        kept = self._partitions
        self._partitions = {tp: kept.get(tp) or self._new() for tp in wanted}
        self._drop(tp for tp in kept if tp not in self._partitions)

    def seek(self, topic_partition: TopicPartition, offset: int) -> None:
        """The next fetch begins at offset; what was fetched or is under way is dropped."""
        partition = self._restart(topic_partition)
        partition.fetch_offset = offset

    def seek_to_timestamp(self, topic_partition: TopicPartition, timestamp_ms: int) -> None:
        """The next fetch begins where ListOffsets says: a time, EARLIEST_TIMESTAMP or LATEST_TIMESTAMP."""
        partition = self._restart(topic_partition)
        partition.fetch_offset, partition.start = None, timestamp_ms

    def generation(self, topic_partition: TopicPartition) -> int:
        return self._partitions[topic_partition].generation

    def oldest_offset(self, topic_partition: TopicPartition) -> int:
        """The first offset that was not taken yet. Raises the partition's error when its position is unknown."""
        for fetched in self._fetched:
            if fetched.topic_partition == topic_partition:
                return fetched.fetch_offset
        offset = self._partitions[topic_partition].fetch_offset
        if offset is None:
            raise self._errors.pop(topic_partition)
        return offset

    # ---- Offsets to look up ----------------------------------------------------------------------------------------

    def without_offset(self) -> list[tuple[TopicPartition, int | None]]:
        """Partitions whose offset must be looked up, with the timestamp to look up (None: no policy says where)."""
        return [
            (tp, each.start)
            for tp, each in self._partitions.items()
            if each.fetch_offset is None and tp not in self._errors
        ]

    def start(self, topic_partition: TopicPartition) -> dict[TopicPartition, int | None]:
        """The partition with the timestamp to look up; nothing when its offset is known, or why it is not."""
        partition = self._partitions[topic_partition]
        is_unknown = partition.fetch_offset is None and topic_partition not in self._errors
        return {topic_partition: partition.start} if is_unknown else {}

    def on_offset(
        self, topic_partition: TopicPartition, generation: int, offset: int, epoch: int = NO_EPOCH
    ) -> None:
        """The looked-up start, and its leader epoch where that is known; dropped when somebody sought meanwhile."""
        partition = self._partitions.get(topic_partition)
        if partition is not None and partition.generation == generation and partition.fetch_offset is None:
            partition.fetch_offset, partition.last_fetched_epoch = offset, epoch

    def lacks_offset(self, topic_partition: TopicPartition, generation: int) -> bool:
        """Whether the start that was looked up then is still wanted."""
        partition = self._partitions.get(topic_partition)
        return partition is not None and partition.generation == generation and partition.fetch_offset is None

    def reset(self, ticket: FetchTicket) -> bool:
        """The ticket's offset is out of range: look the start up anew by the reset policy. False when there is none."""
        if self._reset_to is None:
            return False
        if self._is_current(ticket):
            self.seek_to_timestamp(ticket.topic_partition, self._reset_to)
        return True

    def on_diverging(self, ticket: FetchTicket, diverging: OffsetAndEpoch) -> None:
        """What was read before the ticket's offset is not in the leader's log: with a reset policy the first offset
        that is known to differ is read next, without one the application hears LogTruncation.
        """
        if not self._is_current(ticket):
            return
        tp, offset = ticket.topic_partition, min(diverging.offset, ticket.fetch_offset)
        if self._reset_to is None:
            self.fail(tp, _truncated(ticket, offset))
            return
        partition = self._restart(tp)
        partition.fetch_offset, partition.last_fetched_epoch = offset, diverging.epoch

    # ---- Whom to ask -----------------------------------------------------------------------------------------------

    def read_replica(self, topic_partition: TopicPartition, now_ms: int) -> int | None:
        """The follower to read from; None: the leader (G15)."""
        partition = self._partitions.get(topic_partition)
        chosen = None if partition is None else partition.read_replica
        return chosen.node_id if chosen is not None and now_ms < chosen.until_ms else None

    def read_from(self, ticket: FetchTicket, node_id: int, until_ms: int) -> None:
        """The leader says that this replica is nearer; until then it is not asked again."""
        if self._is_current(ticket):
            self._partitions[ticket.topic_partition].read_replica = _ReadReplica(node_id, until_ms)

    def read_from_leader(self, topic_partition: TopicPartition) -> None:
        """Something was wrong with the follower: the leader is asked, which may name another one."""
        if topic_partition in self._partitions:
            self._partitions[topic_partition].read_replica = None

    # ---- Fetches ---------------------------------------------------------------------------------------------------

    def fetchable(self) -> list[TopicPartition]:
        """Partitions that should be asked for now, in turn."""
        if sum(each.buffered_bytes for each in self._partitions.values()) >= self._total_bytes_max:
            return []
        return [tp for tp, each in self._partitions.items() if self._wants_more(tp, each)]

    def begin_fetch(self, topic_partition: TopicPartition) -> FetchTicket:
        partition = self._partitions[topic_partition]
        assert not partition.in_flight, topic_partition
        assert partition.fetch_offset is not None, topic_partition
        partition.in_flight = True
        return FetchTicket(
            topic_partition, partition.generation, partition.fetch_offset, partition.last_fetched_epoch
        )

    def end_fetch(self, ticket: FetchTicket) -> None:
        """The fetch ended, well or not; the partition may be fetched again."""
        if self._is_current(ticket):
            self._partitions[ticket.topic_partition].in_flight = False

    def on_fetched(
        self, ticket: FetchTicket, buffers: tuple[np.ndarray, ...], next_offset: int, last_epoch: int
    ) -> None:
        """Data arrived: whole batches, the last of this epoch, after which the fetch at next_offset continues."""
        if not self._is_current(ticket):
            return
        assert next_offset >= ticket.fetch_offset, (ticket, next_offset)
        partition = self._partitions[ticket.topic_partition]
        partition.fetch_offset = next_offset
        if next_offset > ticket.fetch_offset:
            partition.last_fetched_epoch = last_epoch
            partition.buffered_bytes += sum(each.size for each in buffers)
            tp, generation, offset, _ = ticket
            self._fetched.append(Fetched(tp, generation, offset, next_offset, buffers))

    def on_error(self, ticket: FetchTicket, error: RaykaError) -> None:
        """An error that the application must hear; the partition rests until it has."""
        if self._is_current(ticket):
            self.fail(ticket.topic_partition, error)

    def fail(self, topic_partition: TopicPartition, error: RaykaError) -> None:
        if topic_partition in self._partitions:
            self._errors[topic_partition] = error

    def has_news(self) -> bool:
        return bool(self._fetched or self._errors)

    def take(self) -> Sequence[Fetched]:
        """Everything fetched, in order of arrival. An error is raised, once, when nothing was fetched before it."""
        if self._fetched:
            taken = list(self._fetched)
            self._fetched.clear()
            for partition in self._partitions.values():
                partition.buffered_bytes = 0
            return taken
        if self._errors:
            raise self._errors.pop(next(iter(self._errors)))
        return ()

    # ---- Within ----------------------------------------------------------------------------------------------------

    def _wants_more(self, topic_partition: TopicPartition, partition: _Partition) -> bool:
        return (
            partition.fetch_offset is not None
            and not partition.in_flight
            and partition.buffered_bytes < self._partition_bytes_max
            and topic_partition not in self._errors
        )

    def _is_current(self, ticket: FetchTicket) -> bool:
        partition = self._partitions.get(ticket.topic_partition)
        return partition is not None and partition.generation == ticket.generation

    def _restart(self, topic_partition: TopicPartition) -> _Partition:
        assert topic_partition in self._partitions, topic_partition
        self._partitions[topic_partition] = self._new()
        self._drop([topic_partition])
        return self._partitions[topic_partition]

    def _new(self) -> _Partition:
        self._generation += 1
        return _Partition(self._reset_to, self._generation)

    def _drop(self, gone: Iterable[TopicPartition]) -> None:
        names = tuple(gone)
        if names:
            self._fetched = deque(each for each in self._fetched if each.topic_partition not in names)
            for tp in names:
                self._errors.pop(tp, None)


def _truncated(ticket: FetchTicket, offset: int) -> LogTruncation:
    tp = ticket.topic_partition
    return LogTruncation(
        f"{tp}: records from offset {offset} on, of those read up to {ticket.fetch_offset} in leader epoch"
        f" {ticket.last_fetched_epoch}, are not in the log any more: a replica without them was elected leader;"
        f" seek to {offset} to read what is there now, or set auto_offset_reset",
        {tp: offset},
    )
