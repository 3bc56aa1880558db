"""Data and errors that have arrived for a consumer, on their way from the IO thread to the application.

The brain of fetching, without IO. Invariants: the data of a partition lie in offset order without a hole; fetching
stops while a partition holds its share of bytes, or all hold the total; an error is raised once, after the data that
came before it, and until then its partition is not asked for. Kafka: FetchBuffer (G16).
"""

from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from itertools import chain, islice
from typing import Any, NamedTuple

import numpy as np

from rayka.errors import RaykaError
from rayka.ids import TopicPartition
from rayka.protocol.batch_format import RecordBatch


class ChangedPartitions(dict[TopicPartition, None]):
    """The partitions whose fetch has to be planned again, each once, in the order in which they changed first.

    Invariant: a second change of a partition adds nothing, so planning costs at most as much as has changed. Kafka has
    no such thing: its consumer plans all partitions at each poll.
    """

    def add(self, topic_partition: TopicPartition) -> None:
        self[topic_partition] = None

    def add_all(self, partitions: Iterable[TopicPartition]) -> None:
        self.update(dict.fromkeys(partitions))

    def take(self, count_max: int | None = None) -> list[TopicPartition]:
        """Takes out the first partitions, at most `count_max`."""
        taken = list(islice(self, count_max))
        for tp in taken:
            del self[tp]
        return taken


class Fetched(NamedTuple):
    """The batches of one partition in the answer to one fetch. The application passes over records before
    `fetch_offset`.
    """

    topic_partition: TopicPartition
    # Version of the fetched position; the position has changed since if the partition has another version.
    position_version: int
    fetch_offset: int
    # fetch_offset < next_offset, the offset of the next fetch.
    next_offset: int
    # Whole batches.
    buffers: tuple[np.ndarray, ...]


class FetchBuffer:
    """Data, and errors for the application, that have arrived and were not taken yet. Belongs to the loop.

    Invariants: the data of a partition lie in offset order without a hole; fetching stops while a partition holds its
    share of bytes, or all hold the total; an error is raised once, after the data that came before it, and until then
    its partition is not asked for.
    """

    def __init__(self, changed: ChangedPartitions, partition_bytes_max: int, total_bytes_max: int) -> None:
        # Called behind each error.
        self.on_error: Callable[[], object] = lambda: None
        # Gets the partitions that may be asked for again.
        self._changed = changed
        self._partition_bytes_max = partition_bytes_max
        self._total_bytes_max = total_bytes_max
        self._fetched: deque[Fetched] = deque()
        self._size_bytes = 0
        # The bytes of each partition that has any.
        self._sizes: dict[TopicPartition, int] = {}
        self._errors: dict[TopicPartition, RaykaError] = {}

    @property
    def has_room(self) -> bool:
        """Whether more may be fetched at all."""
        return self._size_bytes < self._total_bytes_max

    def takes_more(self, topic_partition: TopicPartition) -> bool:
        """Whether more of the partition may be fetched."""
        has_room = self._sizes.get(topic_partition, 0) < self._partition_bytes_max
        return has_room and topic_partition not in self._errors

    def has_news(self) -> bool:
        return bool(self._fetched or self._errors)

    def error(self, topic_partition: TopicPartition) -> RaykaError | None:
        """The error of the partition that waits for the application."""
        return self._errors.get(topic_partition)

    def waiting(self) -> Iterable[Fetched]:
        """The fetches that were not taken yet, in order of arrival."""
        return self._fetched

    def first_offset(self, topic_partition: TopicPartition) -> int | None:
        """Fetch offset of the oldest undelivered data of the partition; None if none."""
        waiting = (each.fetch_offset for each in self._fetched if each.topic_partition == topic_partition)
        return next(waiting, None)

    def add(self, fetched: Fetched) -> None:
        tp, size_bytes = fetched.topic_partition, sum(each.size for each in fetched.buffers)
        self._size_bytes += size_bytes
        self._sizes[tp] = self._sizes.get(tp, 0) + size_bytes
        self._fetched.append(fetched)

    def fail(self, topic_partition: TopicPartition, error: RaykaError) -> None:
        """`take` raises this error to the application; until then the partition is not asked for."""
        self._errors[topic_partition] = error
        self._changed.add(topic_partition)
        self.on_error()

    def forgive(self, topic_partition: TopicPartition) -> None:
        """Forgets the partition's error."""
        self._errors.pop(topic_partition, None)

    def take_error(self, topic_partition: TopicPartition) -> RaykaError:
        """Takes the error of a partition that has one."""
        return self._errors.pop(topic_partition)

    def drop(self, partitions: Collection[TopicPartition]) -> None:
        """Forgets the data and errors of these partitions."""
        for tp in partitions:
            self.forgive(tp)
            self._size_bytes -= self._sizes.pop(tp, 0)
        if partitions and self._fetched:
            self._fetched = deque(each for each in self._fetched if each.topic_partition not in partitions)

    def take(self) -> Sequence[Fetched]:
        """Takes all fetches, in order of arrival. Raises the first error when no data came before it."""
        if self._fetched:
            taken = list(self._fetched)
            self._fetched.clear()
            full = [tp for tp, size_bytes in self._sizes.items() if size_bytes >= self._partition_bytes_max]
            self._changed.add_all(full)
            self._sizes.clear()
            self._size_bytes = 0
            return taken
        if self._errors:
            tp = next(iter(self._errors))
            self._changed.add(tp)
            raise self._errors.pop(tp)
        return ()


class FetchQueue:
    """Fetches on their way to the application, in order of arrival; those of paused partitions lie aside.

    Invariants: the fetches of a partition lie in offset order; the IO thread only appends, in one step, and the thread
    that polls does all else. An exception of a signal handler may end any step: a fetch gets to its new place before it
    leaves the old one, so no fetch is lost. A fetch that is here twice does no harm: offsets below the position are
    passed over.
    """

    def __init__(self) -> None:
        # The IO thread only appends here.
        self._arrived: deque[Sequence[Fetched]] = deque()
        self._fetched: deque[Fetched] = deque()
        # The fetches of each paused partition.
        self.paused: dict[TopicPartition, deque[Fetched]] = {}

    def add(self, fetched: Sequence[Fetched]) -> None:
        """Adds fetches that have arrived. Called on the IO thread."""
        self._arrived.append(fetched)

    def take_in(self) -> None:
        """Moves arrived fetches to their places. An interruption may leave a fetch there twice, which does no harm."""
        while self._arrived:
            for each in self._arrived[0]:
                self.paused.get(each.topic_partition, self._fetched).append(each)
            self._arrived.popleft()

    def first(self) -> Fetched | None:
        return self._fetched[0] if self._fetched else None

    def end_first(self) -> None:
        self._fetched.popleft()

    def cut_first(self, batch: RecordBatch) -> None:
        """Cuts off the first batch of the first fetch: the batch was handed over, or passed over."""
        self._fetched[0] = _behind_first(self._fetched[0], batch)

    def put_back(self, fetches: Mapping[tuple[Any, ...], Fetched]) -> None:
        """Puts these fetches in front of all others, in the place of their remains."""
        others = [each for each in self._fetched if key_of(each) not in fetches]
        self._fetched = deque((*fetches.values(), *others))

    def pause(self, topic_partition: TopicPartition) -> None:
        own = deque(each for each in self._fetched if each.topic_partition == topic_partition)
        self.paused[topic_partition] = own
        self._fetched = self._without(topic_partition)

    def resume(self, topic_partition: TopicPartition) -> None:
        self._fetched.extend(self.paused.get(topic_partition, ()))
        self.paused.pop(topic_partition, None)

    def drop(self, topic_partition: TopicPartition) -> None:
        self._fetched = self._without(topic_partition)
        if topic_partition in self.paused:
            self.paused[topic_partition] = deque()

    def waiting(self) -> Iterator[Fetched]:
        """All fetches, those of a partition in offset order. Safe in a signal handler that has interrupted a step."""
        return chain(*self.paused.values(), tuple(self._fetched), *tuple(self._arrived))

    def _without(self, topic_partition: TopicPartition) -> deque[Fetched]:
        return deque(each for each in self._fetched if each.topic_partition != topic_partition)


def key_of(fetched: Fetched) -> tuple[Any, ...]:
    """Identifies a fetch, even when its first batches were handed over."""
    return fetched[:3]


def _behind_first(fetched: Fetched, batch: RecordBatch) -> Fetched:
    """The fetch without its first batch."""
    first, *others = fetched.buffers
    rest = first[batch.size_bytes :]
    return fetched._replace(buffers=(rest, *others) if rest.size else tuple(others))
