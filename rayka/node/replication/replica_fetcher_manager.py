"""Which fetcher follows which partition: one for each broker that leads something that this one holds.

Invariant: a partition is followed by at most one fetcher, that of its leader, in its epoch; a fetcher that follows
nothing ends. Kafka: `AbstractFetcherManager`, `ReplicaFetcherManager`.
"""

from collections.abc import Iterable

from rayka.ids import NO_NODE, node_name
from rayka.node.replication.fetch_answers import Shared
from rayka.node.replication.replica import PartitionKey, Replica, key_of
from rayka.node.replication.replica_fetcher import ReplicaFetcher
from rayka.partition.partition import Partition

_Assignment = tuple[int, int]  # leader and leader epoch


class ReplicaFetcherManager:
    """All fetchers of one broker."""

    def __init__(self, shared: Shared) -> None:
        self._shared = shared
        self._fetchers: dict[int, ReplicaFetcher] = {}
        self._assigned: dict[PartitionKey, _Assignment] = {}

    def __repr__(self) -> str:
        return f"<ReplicaFetcherManager {list(self._fetchers.values())}>"

    def assign(self, replicas: Iterable[Replica]) -> None:
        """Follows each of these partitions from its leader, if another broker is that, and from no other (B17).

        While leader and epoch stay the same nothing changes.
        """
        for replica in replicas:
            partition, key = replica.partition, key_of(replica.partition)
            wanted = (partition.leader_id, partition.leader_epoch)
            if self._assigned.get(key) == wanted:
                continue
            self._unassign(key)
            if _is_followed(partition):
                self._assigned[key] = wanted
                self._fetcher(partition.leader_id).follow(replica)
        self._close_idle()

    def remove(self, keys: Iterable[PartitionKey]) -> None:
        """Follows these no more: they are gone from here, or cannot be written."""
        for key in keys:
            self._unassign(key)
        self._close_idle()

    def on_synced(self, partition: Partition) -> None:
        """What was appended to the partition is on the disk."""
        assigned = self._assigned.get(key_of(partition))
        if assigned is not None:
            self._fetchers[assigned[0]].positions.on_synced(key_of(partition))

    def problems(self) -> list[str]:
        """What cannot be copied, and why, one line each."""
        return [problem for each in self._fetchers.values() for problem in each.positions.problems()]

    def _unassign(self, key: PartitionKey) -> None:
        assigned = self._assigned.pop(key, None)
        if assigned is not None:
            self._fetchers[assigned[0]].positions.unfollow(key)

    def _fetcher(self, leader_id: int) -> ReplicaFetcher:
        fetcher = self._fetchers.get(leader_id)
        if fetcher is None:
            fetcher = self._fetchers[leader_id] = ReplicaFetcher(leader_id, self._shared)
            self._shared.tasks.start(f"follow {node_name(leader_id)}", fetcher.run())
        return fetcher

    def _close_idle(self) -> None:
        for leader_id in [key for key, fetcher in self._fetchers.items() if not fetcher.positions]:
            self._fetchers.pop(leader_id).close()


def _is_followed(partition: Partition) -> bool:
    is_writable = partition.failure is None and partition.log.failure is None
    return is_writable and not partition.is_leader and partition.leader_id != NO_NODE
