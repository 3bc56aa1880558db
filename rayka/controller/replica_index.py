"""Which partitions each broker holds a replica of, so that what happens to one broker costs what it holds and no more.

It follows from the image and is brought up to date by the deltas between images; a change of leaders or ISRs does not
touch it. Kafka: `BrokersToIsrs`.
"""

from collections.abc import Iterable

from rayka.errors import InvariantBroken
from rayka.ids import TopicIdPartition
from rayka.metadata.delta import MetadataDelta
from rayka.metadata.image import MetadataImage


class ReplicaIndex:
    """Partitions by broker, in the order in which the broker got them."""

    def __init__(self) -> None:
        self._partitions: dict[int, dict[TopicIdPartition, None]] = {}

    def __repr__(self) -> str:
        return f"<ReplicaIndex { {key: len(self._partitions[key]) for key in sorted(self._partitions)} }>"

    def of(self, broker_id: int) -> Iterable[TopicIdPartition]:
        """The partitions of which the broker holds a replica, being added or removed included."""
        return self._partitions.get(broker_id, {}).keys()

    def update(self, delta: MetadataDelta, image: MetadataImage) -> None:
        """Takes in what the delta made of its image, which is `image`."""
        for topic_id in delta.deleted_topics():
            for number, partition in enumerate(delta.image.topics_by_id[topic_id].partitions):
                self._move(TopicIdPartition(topic_id, number), partition.replicas, ())
        for key in delta.changed_partitions():
            before, after = delta.image.partition(key), image.partition(key)
            if after is None:
                raise InvariantBroken(f"{delta!r} changed {key}, which is not in {image!r}")
            self._move(key, () if before is None else before.replicas, after.replicas)

    def _move(self, key: TopicIdPartition, before: tuple[int, ...], after: tuple[int, ...]) -> None:
        for broker_id in before:
            if broker_id not in after:
                del self._partitions[broker_id][key]
        for broker_id in after:
            if broker_id not in before:
                self._partitions.setdefault(broker_id, {})[key] = None
