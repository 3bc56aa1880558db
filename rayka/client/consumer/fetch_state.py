"""What a consumer is about to fetch: for each partition the next offset, the replica to ask, and what has arrived but
was not taken yet.

The brain of fetching, without IO. Invariants: the fetched data of a partition lie in offset order without a hole, since
a result counts only for the position that is asked from now, in the same generation (none from before a seek); fetching
stops while a partition holds its share of bytes, or all hold the total. Every change that may alter what is asked of a
partition puts it among the `changed`, so planning costs as much as has changed. The next offset is
the broker's `next_offset`, never "last record + 1", so control records and compaction gaps cannot stall a reader. With
it goes the epoch of the last batch before it, by which a leader finds that what was read is not in its log. Kafka:
SubscriptionState, FetchBuffer (G15, G16).
"""

from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from rayka.client.consumer.changed_partitions import ChangedPartitions
from rayka.client.consumer.read_replicas import ReadReplicas
from rayka.errors import LogTruncation, RaykaError
from rayka.ids import NO_EPOCH, OffsetAndEpoch, TopicPartition
from rayka.protocol.fetch import EARLIEST_TIMESTAMP, LATEST_TIMESTAMP

START_TIMESTAMPS = {"earliest": EARLIEST_TIMESTAMP, "latest": LATEST_TIMESTAMP}
OnError = Callable[[TopicPartition, RaykaError], object]  # the application is to get this error


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
    """From where one partition is asked for, and in which generation."""

    topic_partition: TopicPartition
    generation: int
    fetch_offset: int
    last_fetched_epoch: int


class _Partition:
    __slots__ = (
        "buffered_bytes",
        "fetch_offset",
        "generation",
        "is_resting",
        "last_fetched_epoch",
        "start",
    )

    def __init__(self, start: int | None, generation: int) -> None:
        self.generation = generation
        self.fetch_offset: int | None = None
        self.last_fetched_epoch = NO_EPOCH
        self.start = start  # the timestamp to look up while the offset is unknown
        self.is_resting = False  # something was wrong with it that passes by itself
        self.buffered_bytes = 0


class FetchState:
    """The partitions of one consumer. Belongs to the loop that fetches."""

    def __init__(self, *, auto_offset_reset: str, partition_bytes_max: int, total_bytes_max: int) -> None:
        self._reset_to = START_TIMESTAMPS.get(auto_offset_reset)
        self._partition_bytes_max = partition_bytes_max
        self._total_bytes_max = total_bytes_max
        self._generation = 0  # of the newest position; never used twice
        self._partitions: dict[TopicPartition, _Partition] = {}
        self._by_topic: dict[str, list[TopicPartition]] = {}
        self._unpositioned: dict[TopicPartition, None] = {}
        self.changed = ChangedPartitions()  # another broker or position may have to be asked, or none
        self.read_replicas = ReadReplicas(self.changed)
        self._fetched: deque[Fetched] = deque()
        self._buffered_bytes = 0
        self._errors: dict[TopicPartition, RaykaError] = {}

    def __repr__(self) -> str:
        offsets = " ".join(f"{tp}@{each.fetch_offset}" for tp, each in self._partitions.items())
        return f"<FetchState {offsets} buffered={len(self._fetched)}>"

    @property
    def assignment(self) -> tuple[TopicPartition, ...]:
        return tuple(self._partitions)

    @property
    def by_topic(self) -> Mapping[str, Sequence[TopicPartition]]:
        """The assignment, topic by topic."""
        return self._by_topic

    def assign(self, partitions: Iterable[TopicPartition]) -> None:
        """Replaces the assignment; partitions that stay keep their position and what was fetched."""
        kept, self._partitions, self._by_topic = self._partitions, {}, {}
        for tp in dict.fromkeys(partitions):
            self._partitions[tp] = kept.get(tp) or self._new(tp)
            self._by_topic.setdefault(tp.topic, []).append(tp)
        gone = [tp for tp in kept if tp not in self._partitions]
        self._drop(gone)
        for tp in gone:
            self._unpositioned.pop(tp, None)
            self.changed.add(tp)

    def seek(self, topic_partition: TopicPartition, offset: int) -> None:
        """The next fetch begins at offset; what was fetched or is under way is dropped."""
        self._restart(topic_partition)
        self._set_position(topic_partition, offset, NO_EPOCH)

    def seek_to_timestamp(self, topic_partition: TopicPartition, timestamp_ms: int) -> None:
        """The next fetch begins where ListOffsets says: a time, EARLIEST_TIMESTAMP or LATEST_TIMESTAMP."""
        self._restart(topic_partition).start = timestamp_ms

    def begin_again(self, topic_partition: TopicPartition) -> bool:
        """The topic was created again: the partition is read where the reset policy says, or from the start that was
        yet to be looked up. False when there is neither. What was fetched before stays to be taken.
        """
        former = self._assigned(topic_partition)
        partition = self._partitions[topic_partition] = self._new(topic_partition)
        partition.buffered_bytes = former.buffered_bytes
        if former.fetch_offset is None:
            partition.start = former.start
        self._errors.pop(topic_partition, None)
        self.read_replicas.forget(topic_partition)
        return partition.start is not None

    def generation(self, topic_partition: TopicPartition) -> int:
        return self._assigned(topic_partition).generation

    def oldest_offset(self, topic_partition: TopicPartition) -> int:
        """The first offset that was not taken yet. Raises the partition's error when its position is unknown."""
        for fetched in self._fetched:
            if fetched.topic_partition == topic_partition:
                return fetched.fetch_offset
        offset = self._assigned(topic_partition).fetch_offset
        if offset is None:
            raise self._errors.pop(topic_partition)
        return offset

    # ---- Offsets to look up ----------------------------------------------------------------------------------------

    def without_offset(self) -> list[tuple[TopicPartition, int | None]]:
        """Partitions whose offset must be looked up, with the timestamp to look up (None: no policy says where)."""
        return [(tp, self._partitions[tp].start) for tp in self._unpositioned if tp not in self._errors]

    def start(self, topic_partition: TopicPartition) -> dict[TopicPartition, int | None]:
        """The partition with the timestamp to look up; empty when its offset, or an error instead, is known."""
        partition = self._assigned(topic_partition)
        is_unknown = partition.fetch_offset is None and topic_partition not in self._errors
        return {topic_partition: partition.start} if is_unknown else {}

    def on_offset(
        self, topic_partition: TopicPartition, generation: int, offset: int, epoch: int = NO_EPOCH
    ) -> None:
        """The looked-up start, and its leader epoch where that is known; dropped after a later `seek`."""
        if self.lacks_offset(topic_partition, generation):
            self._set_position(topic_partition, offset, epoch)

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
        self._restart(tp)
        self._set_position(tp, offset, diverging.epoch)

    # ---- Fetches ---------------------------------------------------------------------------------------------------

    @property
    def has_room(self) -> bool:
        """Whether more may be fetched at all."""
        return self._buffered_bytes < self._total_bytes_max

    def ticket(self, topic_partition: TopicPartition) -> FetchTicket | None:
        """From where the partition is to be asked for; None while it is not."""
        partition = self._partitions.get(topic_partition)
        if (
            partition is None
            or partition.fetch_offset is None
            or not self._wants_more(topic_partition, partition)
        ):
            return None
        return FetchTicket(
            topic_partition, partition.generation, partition.fetch_offset, partition.last_fetched_epoch
        )

    def read_from(self, ticket: FetchTicket, node_id: int, until_ms: int) -> None:
        """The leader says that this replica is nearer; it is asked instead of the leader until then (G15)."""
        if self._is_current(ticket):
            self.read_replicas.choose(ticket.topic_partition, node_id, until_ms)

    def rest(self, ticket: FetchTicket) -> None:
        """The partition is not asked for, until `end_rest` or a seek."""
        if self._is_current(ticket):
            self._partitions[ticket.topic_partition].is_resting = True
            self.changed.add(ticket.topic_partition)

    def end_rest(self, ticket: FetchTicket) -> None:
        """What was wrong with it may be over."""
        if self._is_current(ticket):
            self._partitions[ticket.topic_partition].is_resting = False
            self.changed.add(ticket.topic_partition)

    def on_fetched(
        self, ticket: FetchTicket, buffers: tuple[np.ndarray, ...], next_offset: int, last_epoch: int
    ) -> None:
        """Data arrived: whole batches, the last of this epoch, after which the fetch at next_offset continues."""
        if not self._is_current(ticket):
            return
        assert next_offset >= ticket.fetch_offset, (ticket, next_offset)
        if next_offset > ticket.fetch_offset:
            tp, generation, offset, _ = ticket
            size_bytes = sum(each.size for each in buffers)
            self._partitions[tp].buffered_bytes += size_bytes
            self._buffered_bytes += size_bytes
            self._fetched.append(Fetched(tp, generation, offset, next_offset, buffers))
            self._set_position(tp, next_offset, last_epoch)

    def on_error(self, ticket: FetchTicket, error: RaykaError) -> None:
        """An error for the application, if the ticket is current. See `fail`."""
        if self._is_current(ticket):
            self.fail(ticket.topic_partition, error)

    def fail(self, topic_partition: TopicPartition, error: RaykaError) -> None:
        """`take` raises this error to the application; until then the partition is not asked for."""
        if topic_partition in self._partitions:
            self._errors[topic_partition] = error
            self.changed.add(topic_partition)

    def has_news(self) -> bool:
        return bool(self._fetched or self._errors)

    def take(self) -> Sequence[Fetched]:
        """Everything fetched, in order of arrival. An error is raised, once, when nothing was fetched before it."""
        if self._fetched:
            taken = list(self._fetched)
            self._fetched.clear()
            self._buffered_bytes = 0
            for each in taken:
                self._empty(each.topic_partition)
            return taken
        if self._errors:
            tp = next(iter(self._errors))
            self.changed.add(tp)
            raise self._errors.pop(tp)
        return ()

    # ---- Within ----------------------------------------------------------------------------------------------------

    def _wants_more(self, topic_partition: TopicPartition, partition: _Partition) -> bool:
        return (
            not partition.is_resting
            and partition.buffered_bytes < self._partition_bytes_max
            and topic_partition not in self._errors
        )

    def _is_current(self, ticket: FetchTicket) -> bool:
        """Whether the partition still stands there: a second answer to the same question brings nothing new."""
        partition = self._partitions.get(ticket.topic_partition)
        return (
            partition is not None
            and partition.generation == ticket.generation
            and partition.fetch_offset == ticket.fetch_offset
        )

    def _set_position(self, topic_partition: TopicPartition, offset: int, epoch: int) -> None:
        partition = self._partitions[topic_partition]
        partition.fetch_offset, partition.last_fetched_epoch = offset, epoch
        self._unpositioned.pop(topic_partition, None)
        self.changed.add(topic_partition)

    def _empty(self, topic_partition: TopicPartition) -> None:
        """All that was fetched of the partition is taken."""
        partition = self._partitions[topic_partition]
        if partition.buffered_bytes >= self._partition_bytes_max:
            self.changed.add(topic_partition)
        partition.buffered_bytes = 0

    def _restart(self, topic_partition: TopicPartition) -> _Partition:
        self._assigned(topic_partition)
        self._drop([topic_partition])
        partition = self._partitions[topic_partition] = self._new(topic_partition)
        return partition

    def _assigned(self, topic_partition: TopicPartition) -> _Partition:
        """Raises ValueError. A caller knows what it has assigned, but not yet that a topic has fewer partitions."""
        partition = self._partitions.get(topic_partition)
        if partition is None:
            raise ValueError(f"{topic_partition} is not assigned any more: its topic has no such partition")
        return partition

    def _new(self, topic_partition: TopicPartition) -> _Partition:
        self._generation += 1
        self._unpositioned[topic_partition] = None
        self.changed.add(topic_partition)
        return _Partition(self._reset_to, self._generation)

    def _drop(self, gone: Iterable[TopicPartition]) -> None:
        """Forgets what was fetched of these, and what else is known of their former positions."""
        names = dict.fromkeys(gone)
        for tp in names:
            self._errors.pop(tp, None)
            self.read_replicas.forget(tp)
        if names and self._fetched:
            self._fetched = deque(each for each in self._fetched if each.topic_partition not in names)
            self._buffered_bytes = sum(buffer.size for each in self._fetched for buffer in each.buffers)


def _truncated(ticket: FetchTicket, offset: int) -> LogTruncation:
    tp = ticket.topic_partition
    return LogTruncation(
        f"{tp}: records from offset {offset} on, of those read up to {ticket.fetch_offset} in leader epoch"
        f" {ticket.last_fetched_epoch}, are not in the log any more: a replica without them was elected leader;"
        f" seek to {offset} to read what is there now, or set auto_offset_reset",
        {tp: offset},
    )
