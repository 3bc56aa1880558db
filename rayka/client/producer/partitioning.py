"""The application's own partitioner: which partition a record goes to that names none.

Invariant: what it gives is checked before a record goes anywhere. Kafka: Partitioner.
"""

from collections.abc import Callable, Iterable, Sequence
from typing import TypeAlias

import numpy as np

from rayka.client.arguments import is_int
from rayka.errors import NoSuchTopic
from rayka.ids import NO_NODE
from rayka.protocol.membership import MetadataTopic

Partitioner: TypeAlias = Callable[[bytes | None, Sequence[int], Sequence[int]], int | None]
ANY = -1  # where the producer chooses
# Topics whose partitions are remembered.
_KNOWN_MAX = 100
_Known: TypeAlias = tuple[MetadataTopic, Sequence[int], Sequence[int]]


class Partitioning:
    """A partitioner, and the partitions that it chooses from; `metadata_of` returns a topic as it is known."""

    def __init__(self, partitioner: Partitioner, metadata_of: Callable[[str], MetadataTopic | None]) -> None:
        self._partitioner = partitioner
        self._metadata_of = metadata_of
        self._known: dict[str, _Known] = {}

    def __repr__(self) -> str:
        return f"<Partitioning by {self._partitioner!r}>"

    def partition(self, topic: str, key: bytes | None) -> int | None:
        """The partition for a key; None where the producer chooses as without a partitioner.

        Raises what the partitioner raises, with a note that names it; TypeError, and NoSuchTopic for a number that the
        topic does not have.
        """
        every, available = self._partitions(topic)
        try:
            chosen = self._partitioner(key, every, available)
        except Exception as error:
            error.add_note(f"raised by the producer's partitioner for topic {topic!r}, key {key!r}")
            raise
        if chosen is None:
            return None
        if not is_int(chosen):
            raise TypeError(f"partitioner: expected it to return int or None, found {type(chosen).__name__}")
        if not 0 <= chosen < len(every):
            raise NoSuchTopic(
                f"partitioner: it chose partition {chosen} of topic {topic!r}, which has {len(every)}, "
                "numbered from 0"
            )
        return chosen

    def partitions(self, topic: str, keys: Iterable[bytes | None]) -> np.ndarray:
        """As `partition`, for each key; ANY where the producer chooses."""
        chosen = (self.partition(topic, key) for key in keys)
        return np.fromiter((ANY if each is None else each for each in chosen), np.int64)

    def _partitions(self, topic: str) -> tuple[Sequence[int], Sequence[int]]:
        """All partitions, and those with a leader; made once for each version of the metadata."""
        metadata, known = self._metadata_of(topic), self._known.get(topic)
        if metadata is None:
            self._known.pop(topic, None)
            raise NoSuchTopic(f"topic {topic!r} was deleted")
        # Some of these topics may be gone.
        if len(self._known) > _KNOWN_MAX:
            self._known.clear()
        if known is None or known[0] is not metadata:
            every = tuple(each.partition for each in metadata.partitions)
            available = tuple(each.partition for each in metadata.partitions if each.leader_id != NO_NODE)
            known = self._known[topic] = (metadata, every, available)
        return known[1], known[2]
