"""How much a broker allows itself to fetch of partitions that it is not in sync with (B45, G17).

Kafka's quota is that of the replicas that topics name. Rayka's own are two: one for the replicas that reassignments
add, and one for replicas that leave a broker (decision 078).

The second quota bounds how fast replicas leave a broker that serves: all of them together at the rate of one broker. A
reassignment copies each replica that it removes to a successor. The successors of one broker share
`reassignment.replication.throttled.rate`: each has an even part while it copies. With the whole rate for each of them,
a drain copied as many times faster as there were successors, and clients of all these brokers waited for so long.

Exempt are successors of a replica that is not in sync, because the partition lacks a replica until they are there, and
successors of replicas on a machine that Ray drains, because the machine goes soon (decision 073).

Invariant: the counters equal a recount over every partition of the image.
"""

from collections import Counter
from collections.abc import Iterable
from typing import NamedTuple
from uuid import UUID

from rayka.config.broker_config import BrokerConfig
from rayka.controller.placeable_directories import is_draining
from rayka.ids import TopicIdPartition
from rayka.metadata.image import MetadataImage, PartitionImage
from rayka.partition.partition import Partition
from rayka.partition.quota import PacedQuota, Quota, ReplicationQuota, ReplicationQuotas


class Departure(NamedTuple):
    """A replica in sync that goes once its successor has all of its records."""

    broker_id: int
    successor_id: int


class DepartingReplicas:
    """The departures of a cluster, and the quotas of this broker where it is a successor."""

    def __init__(self, broker_id: int, bytes_per_second: int) -> None:
        self.bytes_per_second = bytes_per_second
        self._broker_id = broker_id
        # By topic id and partition number; no empty entries.
        self._departures: dict[UUID, dict[int, tuple[Departure, ...]]] = {}
        # By broker: how many of its replicas each other broker copies.
        self._successors: dict[int, Counter[int]] = {}
        # By broker: the part of its rate that this broker has.
        self._quotas: dict[int, PacedQuota] = {}

    def __repr__(self) -> str:
        return f"<DepartingReplicas { {each: self._quotas[each] for each in sorted(self._quotas)} }>"

    def quotas(self, partition: PartitionImage) -> tuple[PacedQuota, ...]:
        """The quotas that count what this broker fetches of the partition."""
        return tuple(
            self._quotas[broker_id]
            for broker_id, successor_id in departures(partition)
            if successor_id == self._broker_id and broker_id in self._quotas
        )

    # ---- Metadata --------------------------------------------------------------------------------------

    def forget(self, topic_ids: Iterable[UUID]) -> None:
        """Forgets deleted topics."""
        for topic_id in topic_ids:
            for departing in self._departures.pop(topic_id, {}).values():
                self._count(departing, -1)

    def put(self, key: TopicIdPartition, partition: PartitionImage) -> None:
        """Replaces the state of the partition."""
        numbers = self._departures.get(key.topic_id, {})
        before, after = numbers.pop(key.partition, ()), departures(partition)
        if after:
            self._departures.setdefault(key.topic_id, numbers)[key.partition] = after
        elif before and not numbers:
            del self._departures[key.topic_id]
        self._count(before, -1)
        self._count(after, 1)

    def share(self, image: MetadataImage) -> None:
        """Applies what was put: divides the rate of each broker among the successors that run."""
        for broker_id, counts in self._successors.items():
            if self._broker_id not in counts or is_draining(image, broker_id):
                self._quotas.pop(broker_id, None)
                continue
            running = [each for each in counts if each in image.brokers and image.brokers[each].is_active]
            quota = self._quotas.setdefault(broker_id, PacedQuota(0))
            quota.bytes_per_second = -(-self.bytes_per_second // max(1, len(running)))

    def _count(self, departing: Iterable[Departure], by: int) -> None:
        for broker_id, successor_id in departing:
            counts = self._successors.setdefault(broker_id, Counter())
            counts[successor_id] += by
            if not counts[successor_id]:
                del counts[successor_id]


def departures(partition: PartitionImage) -> tuple[Departure, ...]:
    """The departures under way; without a leader to copy from there are none."""
    if not partition.adding_replicas or not partition.has_leader:
        return ()
    return tuple(
        Departure(broker_id, successor_id)
        for broker_id, successor_id in zip(
            partition.removing_replicas, partition.adding_replicas, strict=False
        )
        if broker_id in partition.isr and successor_id not in partition.isr
    )


class FollowerQuotas:
    """The quotas of one broker, for all leaders that it fetches from."""

    def __init__(self, broker_id: int, config: BrokerConfig) -> None:
        added = config.reassignment_replication_throttled_rate
        self._broker_id = broker_id
        self._quotas = ReplicationQuotas(
            ReplicationQuota(config.follower_replication_throttled_rate), PacedQuota(added)
        )
        self.departing = DepartingReplicas(broker_id, added)

    def configure(self, config: BrokerConfig) -> None:
        """Sets other rates; that of departing replicas counts from the next `share` on."""
        added = config.reassignment_replication_throttled_rate
        self._quotas.named.bytes_per_second = config.follower_replication_throttled_rate
        self._quotas.added.bytes_per_second = self.departing.bytes_per_second = added

    def pause_ms(self, partition: Partition, now_ms: int) -> int:
        """How long the partition must not be fetched; 0: it may be fetched now."""
        return max([each.pause_ms(now_ms) for each in self._counting(partition)], default=0)

    def record(self, partition: Partition, size_bytes: int, now_ms: int) -> None:
        """Counts bytes of the partition that were fetched."""
        for each in self._counting(partition):
            each.record(size_bytes, now_ms)

    def _counting(self, partition: Partition) -> tuple[Quota, ...]:
        """The quotas that count the partition."""
        state, throttled = partition.role.state, partition.config.follower_replication_throttled_replicas
        # The usual case, once for each answer of a leader.
        if not throttled and not state.adding_replicas:
            return ()
        return self._quotas.of(
            throttled,
            partition.topic_partition.partition,
            self._broker_id,
            is_added=self._broker_id in state.adding_replicas,
        ) + self.departing.quotas(state)
