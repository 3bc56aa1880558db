"""Fetches that a consumer has not handed over yet, in order of arrival; those of paused partitions lie aside.

Invariants: the fetches of a partition lie in offset order; the IO thread only appends, in one step, and the thread that
has the consumer's turn does all else. An exception of a signal handler may end any step: a fetch gets to its new place
before it leaves the old one, so no fetch is lost. A fetch that is there twice does no harm: offsets below the position
are passed over. Kafka: SubscriptionState's paused partitions, FetchBuffer (G16).
"""

from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from itertools import chain
from typing import Any

from rayka.client.consumer.fetch_buffer import Fetched
from rayka.ids import TopicPartition
from rayka.protocol.batch_format import RecordBatch


class FetchQueue:
    """The queue of one consumer. `paused`: the fetches of each paused partition."""

    def __init__(self) -> None:
        # The IO thread only appends here.
        self._arrived: deque[Sequence[Fetched]] = deque()
        self._fetched: deque[Fetched] = deque()
        self.paused: dict[TopicPartition, deque[Fetched]] = {}

    def __repr__(self) -> str:
        return f"<FetchQueue fetched={len(self._fetched)} paused={list(self.paused)}>"

    def add(self, fetched: Sequence[Fetched]) -> None:
        """Takes what has arrived. Called on the IO thread."""
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
        """Puts these fetches in front of all others, in the place of what is left of them."""
        others = [each for each in self._fetched if key_of(each) not in fetches]
        self._fetched = deque((*fetches.values(), *others))

    def pause(self, topic_partition: TopicPartition) -> None:
        self.paused[topic_partition] = deque(self._of(topic_partition))
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

    def _of(self, topic_partition: TopicPartition) -> Iterator[Fetched]:
        return (each for each in self._fetched if each.topic_partition == topic_partition)

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
