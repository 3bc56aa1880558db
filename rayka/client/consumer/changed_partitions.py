"""The partitions whose fetch a consumer has to plan again, each once, in the order in which they changed first.

Invariant: a change that comes while a partition is here adds nothing, so planning costs at most as much as has changed.
Kafka has no such thing: its consumer plans all partitions at each poll.
"""

from collections.abc import Iterable
from itertools import islice

from rayka.ids import TopicPartition


class ChangedPartitions:
    """See the module. True while there are any."""

    def __init__(self) -> None:
        self._partitions: dict[TopicPartition, None] = {}

    def __repr__(self) -> str:
        return f"<ChangedPartitions {len(self._partitions)}>"

    def __bool__(self) -> bool:
        return bool(self._partitions)

    def add(self, topic_partition: TopicPartition) -> None:
        self._partitions[topic_partition] = None

    def add_all(self, partitions: Iterable[TopicPartition]) -> None:
        self._partitions.update(dict.fromkeys(partitions))

    def take(self, count_max: int | None = None) -> list[TopicPartition]:
        """The first ones, so many at most; they are not here any more."""
        taken = list(islice(self._partitions, count_max))
        for tp in taken:
            del self._partitions[tp]
        return taken
