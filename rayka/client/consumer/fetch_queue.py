"""What a consumer has fetched and not handed over, in order of arrival; what is paused lies aside.

Invariants: of each partition the fetches lie in offset order; the IO thread only appends, in one step, and all else is
done by the thread that has the consumer's turn. An exception of a signal handler may end each step: a fetch gets to its
new place before it leaves the old one, so that none is lost. One that is there twice does no harm, since offsets below
the position are passed over. Kafka: SubscriptionState's paused partitions, FetchBuffer (G16).
"""

from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from itertools import chain
from typing import Any

from rayka.client.consumer.fetch_buffer import Fetched
from rayka.ids import TopicPartition
from rayka.protocol.batch_header import RecordBatch


class FetchQueue:
    """See the module. `paused`: the partitions that are, with what was fetched of them."""

    def __init__(self) -> None:
        self._arrived: deque[Sequence[Fetched]] = deque()  # from the IO thread, which only appends
        self._fetched: deque[Fetched] = deque()
        self.paused: dict[TopicPartition, deque[Fetched]] = {}

    def __repr__(self) -> str:
        return f"<FetchQueue fetched={len(self._fetched)} paused={list(self.paused)}>"

    def add(self, fetched: Sequence[Fetched]) -> None:
        """On the IO thread."""
        self._arrived.append(fetched)

    def take_in(self) -> None:
        """What has arrived; twice what is interrupted."""
        while self._arrived:
            for each in self._arrived[0]:
                self.paused.get(each.topic_partition, self._fetched).append(each)
            self._arrived.popleft()

    def first(self) -> Fetched | None:
        return self._fetched[0] if self._fetched else None

    def end_first(self) -> None:
        self._fetched.popleft()

    def cut_first(self, batch: RecordBatch) -> None:
        """Its first batch was handed over, or passed over."""
        self._fetched[0] = _behind_first(self._fetched[0], batch)

    def put_back(self, fetches: Mapping[tuple[Any, ...], Fetched]) -> None:
        """In front of all others, instead of what is left of them."""
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
        """Of each partition in order; also while another step is under way, which a signal handler interrupts."""
        return chain(*self.paused.values(), tuple(self._fetched), *tuple(self._arrived))

    def _of(self, topic_partition: TopicPartition) -> Iterator[Fetched]:
        return (each for each in self._fetched if each.topic_partition == topic_partition)

    def _without(self, topic_partition: TopicPartition) -> deque[Fetched]:
        return deque(each for each in self._fetched if each.topic_partition != topic_partition)


def key_of(fetched: Fetched) -> tuple[Any, ...]:
    """Of a fetch, also when its first batches were handed over."""
    return fetched[:3]


def _behind_first(fetched: Fetched, batch: RecordBatch) -> Fetched:
    """Without its first batch."""
    first, *others = fetched.buffers
    rest = first[batch.size_bytes :]
    return fetched._replace(buffers=(rest, *others) if rest.size else tuple(others))
