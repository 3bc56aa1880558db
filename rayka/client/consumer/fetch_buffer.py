"""What has arrived for a consumer and was not taken yet: data, and errors for the application.

The brain of fetching, without IO. Invariants: the data of a partition lie in offset order without a hole; fetching
stops while a partition holds its share of bytes, or all hold the total; an error is raised once, after the data that
came before it, and until then its partition is not asked for. Kafka: FetchBuffer (G16).
"""

from collections import deque
from collections.abc import Callable, Collection, Iterable, Sequence
from typing import NamedTuple

import numpy as np

from rayka.client.consumer.changed_partitions import ChangedPartitions
from rayka.errors import RaykaError
from rayka.ids import TopicPartition


class Fetched(NamedTuple):
    """What one fetch brought of one partition: whole batches, of which those before `fetch_offset` are to be dropped.

    `generation` tells whether the position was changed since.
    """

    topic_partition: TopicPartition
    generation: int
    fetch_offset: int
    next_offset: int
    buffers: tuple[np.ndarray, ...]


class FetchBuffer:
    """See the module. `on_error` is called behind each error; partitions that may be asked again are `changed`."""

    def __init__(self, changed: ChangedPartitions, partition_bytes_max: int, total_bytes_max: int) -> None:
        self.on_error: Callable[[], object] = lambda: None
        self._changed = changed
        self._partition_bytes_max = partition_bytes_max
        self._total_bytes_max = total_bytes_max
        self._fetched: deque[Fetched] = deque()
        self._size_bytes = 0
        self._sizes: dict[TopicPartition, int] = {}  # of the partitions that have any bytes
        self._errors: dict[TopicPartition, RaykaError] = {}

    def __repr__(self) -> str:
        return f"<FetchBuffer fetched={len(self._fetched)} errors={len(self._errors)}>"

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
        """The one that waits for the application."""
        return self._errors.get(topic_partition)

    def waiting(self) -> Iterable[Fetched]:
        """What is to be taken, in order of arrival."""
        return self._fetched

    def first_offset(self, topic_partition: TopicPartition) -> int | None:
        """Where what waits of the partition begins; None when nothing waits."""
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
        """The one of a partition that has one, which is the application's now."""
        return self._errors.pop(topic_partition)

    def drop(self, partitions: Collection[TopicPartition]) -> None:
        """Forgets all that arrived of these."""
        for tp in partitions:
            self.forgive(tp)
            self._size_bytes -= self._sizes.pop(tp, 0)
        if partitions and self._fetched:
            self._fetched = deque(each for each in self._fetched if each.topic_partition not in partitions)

    def take(self) -> Sequence[Fetched]:
        """Everything fetched, in order of arrival. An error is raised, once, when nothing was fetched before it."""
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
