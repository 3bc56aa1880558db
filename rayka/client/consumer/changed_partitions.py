"""The partitions whose fetch a consumer has to plan again, each once, in the order in which they changed first.

Invariant: a change that comes while a partition is here adds nothing, so planning costs at most as much as has changed.
Kafka has no such thing: its consumer plans all partitions at each poll.
"""

from collections.abc import Iterable
from itertools import islice

from rayka.ids import TopicPartition


class ChangedPartitions(dict[TopicPartition, None]):
    """See the module."""

    def add(self, topic_partition: TopicPartition) -> None:
        self[topic_partition] = None

    def add_all(self, partitions: Iterable[TopicPartition]) -> None:
        self.update(dict.fromkeys(partitions))

    def take(self, count_max: int | None = None) -> list[TopicPartition]:
        """The first ones, so many at most; they are not here any more."""
        taken = list(islice(self, count_max))
        for tp in taken:
            del self[tp]
        return taken
