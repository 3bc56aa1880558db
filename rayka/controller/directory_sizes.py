"""Sizes of the brokers' directories: soft state, from heartbeats.

A replica placed since the last heartbeat counts as an average replica of its broker. Otherwise one request for many
partitions would put all of them into the directory that was the emptiest before. Without known sizes, as after a change
of controller, all replicas count the same. Kafka's brokers count partitions (`LogManager.nextLogDirs`).
"""

from collections.abc import Mapping, Sequence
from typing import NamedTuple
from uuid import UUID

from rayka.metadata.image import BrokerImage


class _Known(NamedTuple):
    broker_epoch: int
    # Bytes of the replicas in each directory.
    sizes: Mapping[UUID, int]
    # Replicas in each directory when the heartbeat came.
    counts: Mapping[UUID, int]


class DirectoryLoads:
    """The sizes of one broker's directories while replicas are placed; each placement counts."""

    def __init__(self, directories: Sequence[UUID], counts: Mapping[UUID, int], known: _Known | None) -> None:
        self._counts = {each: counts.get(each, 0) for each in directories}
        self._known = known
        total_count = sum(known.counts.values()) if known is not None else 0
        total_bytes = sum(known.sizes.values()) if known is not None else 0
        self._replica_bytes = max(1, total_bytes // total_count) if total_bytes and total_count else 0

    def __repr__(self) -> str:
        return f"<DirectoryLoads {[(str(each), self._bytes(each)) for each in self._counts]}>"

    def choose(self) -> UUID:
        """Chooses the directory with the fewest bytes, then the fewest replicas, then the first one, and counts one
        more replica in it.
        """
        chosen = min(self._counts, key=lambda each: (self._bytes(each), self._counts[each]))
        self._counts[chosen] += 1
        return chosen

    def _bytes(self, directory_id: UUID) -> int:
        """The reported bytes and the estimated bytes of the replicas that came since."""
        if self._known is None:
            return 0
        new_count = max(0, self._counts[directory_id] - self._known.counts.get(directory_id, 0))
        return self._known.sizes.get(directory_id, 0) + new_count * self._replica_bytes


class DirectorySizes:
    """The last reported sizes, by broker."""

    def __init__(self) -> None:
        self._known: dict[int, _Known] = {}

    def __repr__(self) -> str:
        return f"<DirectorySizes of {list(self._known)}>"

    def on_heartbeat(self, broker: BrokerImage, sizes: Sequence[int], counts: Mapping[UUID, int]) -> None:
        """Takes in sizes in the order of the registered directories; ignores an empty list of a broker that does not
        know them yet.
        """
        if len(sizes) == len(broker.directories):
            ids = [each.directory_id for each in broker.directories]
            by_id = dict(zip(ids, sizes, strict=True))
            self._known[broker.broker_id] = _Known(broker.broker_epoch, by_id, dict(counts))

    def loads(
        self, broker: BrokerImage, directories: Sequence[UUID], counts: Mapping[UUID, int]
    ) -> DirectoryLoads:
        """The loads of these directories; `counts`: the replicas that each holds now."""
        known = self._known.get(broker.broker_id)
        is_current = known is not None and known.broker_epoch == broker.broker_epoch
        return DirectoryLoads(directories, counts, known if is_current else None)
