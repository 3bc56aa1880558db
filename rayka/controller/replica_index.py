"""An index of replicas by broker: the partitions that a broker holds, leads, and is the preferred leader of. With the
index, a change of one broker costs time for its own partitions only.

The deltas between images update the index. Invariant: each answer is the one that a walk over all partitions of the
image would give. Kafka: `BrokersToIsrs`, and `imbalancedPartitions` of `ReplicationControlManager`.
"""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import chain
from uuid import UUID

from rayka.errors import InvariantBroken
from rayka.ids import NO_NODE, TopicIdPartition
from rayka.metadata.delta import MetadataDelta
from rayka.metadata.image import MetadataImage, PartitionImage


class Partitions:
    """A set of partitions, by topic, in the order of their addition. Removes a whole topic in one step."""

    __slots__ = ("_numbers",)

    def __init__(self) -> None:
        self._numbers: dict[UUID, dict[int, None]] = {}

    def __repr__(self) -> str:
        return f"<Partitions topics={len(self._numbers)}>"

    def __iter__(self) -> Iterator[TopicIdPartition]:
        """Iterates over the present partitions; later changes do not matter."""
        captured = [(topic_id, tuple(numbers)) for topic_id, numbers in self._numbers.items()]
        return (TopicIdPartition(topic_id, number) for topic_id, numbers in captured for number in numbers)

    def put(self, key: TopicIdPartition, *, is_in: bool) -> None:
        numbers = self._numbers.get(key.topic_id)
        if is_in:
            if numbers is None:
                numbers = self._numbers[key.topic_id] = {}
            numbers[key.partition] = None
        elif numbers is not None:
            numbers.pop(key.partition, None)
            if not numbers:
                del self._numbers[key.topic_id]

    def remove_topic(self, topic_id: UUID) -> None:
        self._numbers.pop(topic_id, None)


@dataclass(slots=True, eq=False)
class BrokerReplicas:
    """The partitions of one broker. Invariant: `leaderless_count + led_by_others_count <= preferred_count`."""

    # Partitions with a replica on the broker, adding and removing ones included.
    held: Partitions = field(default_factory=Partitions)
    # The number of replicas in each directory of the broker.
    directories: Counter[UUID] = field(default_factory=Counter)
    led_count: int = 0
    # Partitions whose preferred leader, the first replica, is the broker; the fields below are about these only.
    preferred_count: int = 0
    # Partitions without a leader.
    leaderless: Partitions = field(default_factory=Partitions)
    leaderless_count: int = 0
    led_by_others_count: int = 0
    # Partitions led by another broker while this broker is in sync.
    reclaimable: Partitions = field(default_factory=Partitions)

    def __repr__(self) -> str:
        return f"<BrokerReplicas held={self.directories.total()} led={self.led_count} preferred={self.preferred_count}>"

    def count(self, partition: PartitionImage, broker_id: int, by: int) -> None:
        """Begins (`by` 1) or ends (-1) to count the partition."""
        self.led_count += by * (partition.leader_id == broker_id)
        if partition.replicas[0] == broker_id:
            self.preferred_count += by
            self.leaderless_count += by * (not partition.has_leader)
            self.led_by_others_count += by * (partition.has_leader and partition.leader_id != broker_id)


_NONE = BrokerReplicas()


class ReplicaIndex:
    """The index of one image."""

    def __init__(self) -> None:
        self._brokers: dict[int, BrokerReplicas] = {}
        # Partitions whose reassignment is under way.
        self.reassigned = Partitions()

    def __repr__(self) -> str:
        return f"<ReplicaIndex { {key: self._brokers[key] for key in sorted(self._brokers)} }>"

    def of(self, broker_id: int) -> BrokerReplicas:
        """The partitions of the broker, for reading only."""
        return self._brokers.get(broker_id, _NONE)

    def all_leaderless(self) -> Iterator[TopicIdPartition]:
        """The present partitions without a leader."""
        return chain.from_iterable([iter(broker.leaderless) for broker in self._brokers.values()])

    # ---- Changing ----------------------------------------------------------------------------------------------------

    def update(self, delta: MetadataDelta, image: MetadataImage) -> None:
        """Takes in the changes of the delta. `image`: the image after the delta."""
        for topic_id in delta.deleted_topics():
            self._remove_topic(topic_id, delta.image.topics_by_id[topic_id].partitions)
        for key in delta.changed_partitions():
            after = image.partition(key)
            if after is None:
                raise InvariantBroken(f"{delta!r} changed {key}, which is not in {image!r}")
            self._change(key, delta.image.partition(key), after)

    def _change(self, key: TopicIdPartition, before: PartitionImage | None, after: PartitionImage) -> None:
        if before is not None:
            self._count(before, -1)
        self._count(after, 1)
        self.reassigned.put(key, is_in=after.is_reassigned)
        if before is None or before.replicas != after.replicas or before.directories != after.directories:
            self._move(key, before, after)
        first = after.replicas[0]
        if before is not None and before.replicas[0] != first:
            self._place(key, before.replicas[0], is_leaderless=False, is_reclaimable=False)
        is_reclaimable = after.has_leader and after.leader_id != first and first in after.isr
        self._place(key, first, is_leaderless=not after.has_leader, is_reclaimable=is_reclaimable)

    def _count(self, partition: PartitionImage, by: int) -> None:
        first, leader_id = partition.replicas[0], partition.leader_id
        self._known(first).count(partition, first, by)
        if leader_id not in (first, NO_NODE):
            self._known(leader_id).count(partition, leader_id, by)

    def _move(self, key: TopicIdPartition, before: PartitionImage | None, after: PartitionImage) -> None:
        if before is not None:
            for broker_id, directory_id in zip(before.replicas, before.directories, strict=True):
                self._brokers[broker_id].directories[directory_id] -= 1
                if broker_id not in after.replicas:
                    self._brokers[broker_id].held.put(key, is_in=False)
        for broker_id, directory_id in zip(after.replicas, after.directories, strict=True):
            broker = self._known(broker_id)
            broker.directories[directory_id] += 1
            broker.held.put(key, is_in=True)

    def _place(
        self, key: TopicIdPartition, broker_id: int, *, is_leaderless: bool, is_reclaimable: bool
    ) -> None:
        broker = self._known(broker_id)
        broker.leaderless.put(key, is_in=is_leaderless)
        broker.reclaimable.put(key, is_in=is_reclaimable)

    def _remove_topic(self, topic_id: UUID, partitions: tuple[PartitionImage, ...]) -> None:
        for partition in partitions:
            self._count(partition, -1)
            for broker_id, directory_id in zip(partition.replicas, partition.directories, strict=True):
                self._brokers[broker_id].directories[directory_id] -= 1
        self.reassigned.remove_topic(topic_id)
        for broker in self._brokers.values():
            for some in (broker.held, broker.leaderless, broker.reclaimable):
                some.remove_topic(topic_id)

    def _known(self, broker_id: int) -> BrokerReplicas:
        broker = self._brokers.get(broker_id)
        if broker is None:
            broker = self._brokers[broker_id] = BrokerReplicas()
        return broker
