"""Changes of partitions that follow when a broker comes, goes or loses a directory.

A broker is electable for a partition while it is active and the directory of its replica works. This module finds the
partitions to change and the rules of their topics; `partition_change` chooses the leaders.
Kafka: `ReplicationControlManager.generateLeaderAndIsrUpdates`, `LeaderAcceptor` (B44).
"""

from collections.abc import Collection, Iterator, Mapping
from uuid import UUID

from rayka.config.broker_config import BrokerConfig
from rayka.config.topic_config import TopicConfig
from rayka.controller.partition_change import PartitionChangeBuilder
from rayka.controller.placeable_directories import is_draining, placeable_directories
from rayka.controller.replica_index import ReplicaIndex
from rayka.errors import InvariantBroken
from rayka.ids import TopicIdPartition
from rayka.metadata.image import BrokerImage, MetadataImage, PartitionImage, topic_config
from rayka.metadata.metadata_records import PartitionChangeRecord


class Elections:
    """Changes of the partitions of one image. `brokers`: the brokers after a change that is not in the image yet."""

    def __init__(
        self,
        image: MetadataImage,
        config: BrokerConfig,
        replicas: ReplicaIndex,
        *,
        brokers: Mapping[int, BrokerImage] | None = None,
    ) -> None:
        self.image = image
        self._config = config
        # The partitions that each broker of the image holds.
        self.replicas = replicas
        self._brokers = image.brokers if brokers is None else brokers
        # Caches: rules by topic id; and by broker the online directories, the registered directories, and how many
        # replicas each directory has that may take more.
        self._rules: dict[UUID, TopicConfig] = {}
        self._directories: dict[int, Collection[UUID]] = {}
        self._registered: dict[int, Collection[UUID]] = {}
        self._held_counts: dict[int, dict[UUID, int]] = {}

    def __repr__(self) -> str:
        return f"<Elections {self.image!r} {self.replicas!r}>"

    def is_electable(self, partition: PartitionImage, broker_id: int) -> bool:
        """Whether the broker may lead and be in the ISR: it is active, and its replica's directory works (B40)."""
        directories = self._directories.get(broker_id)
        if directories is None:
            broker = self._brokers.get(broker_id)
            directories = broker.online_directories if broker is not None and broker.is_active else ()
            self._directories[broker_id] = directories
        return partition.directory_of(broker_id) in directories

    def is_draining(self, broker_id: int) -> bool:
        """Whether the broker leads a partition only if no other broker can, because Ray drains its machine."""
        return is_draining(self.image, broker_id)

    def change(
        self, key: TopicIdPartition, *, becomes: PartitionImage | None = None
    ) -> PartitionChangeBuilder:
        """Begins a change by the topic's rules; with no further call it only elects a leader if needed. `becomes` gives
        the new directories, which decide which replicas may lead.
        """
        partition = self.partition(key)
        placed = becomes or partition
        rules = self._rules.get(key.topic_id)
        if rules is None:
            name = self.image.topics_by_id[key.topic_id].name
            rules = self._rules[key.topic_id] = topic_config(self.image, self._config, name)
        builder = PartitionChangeBuilder(
            key,
            partition,
            is_electable=lambda broker_id: self.is_electable(placed, broker_id),
            is_draining=self.is_draining,
            min_isr=min(rules.min_insync_replicas, len(partition.replicas)),
            has_elr=self.image.has_eligible_leader_replicas,
            home_of=self._home_of,
        )
        return builder.is_unclean_election_allowed(rules.unclean_leader_election_enable)

    def after(
        self, broker: BrokerImage, *, is_unclean_shutdown: bool = False
    ) -> Iterator[PartitionChangeRecord | None]:
        """Yields the change of each partition that the broker holds, if the broker's state becomes `broker`.

        A broker that is not electable any more leaves the ISR and the lead. A partition without a leader gets an
        election if the broker is electable (B44). After an unclean shutdown the broker leaves the ELR, too (B42).
        """
        brokers = {**self.image.brokers, broker.broker_id: broker}
        then = Elections(self.image, self._config, self.replicas, brokers=brokers)
        lost = (broker.broker_id,) if is_unclean_shutdown else ()
        return (then._after(broker.broker_id, key, lost) for key in self.replicas.of(broker.broker_id).held)

    def _after(
        self, broker_id: int, key: TopicIdPartition, lost: tuple[int, ...]
    ) -> PartitionChangeRecord | None:
        partition = self.partition(key)
        if self.is_electable(partition, broker_id):
            return None if partition.has_leader else self.change(key).build()
        known = partition.isr + (partition.eligible_leader_replicas if lost else ())
        if broker_id not in known and not self._is_homeless(broker_id, partition.directory_of(broker_id)):
            return None
        isr = tuple(each for each in partition.isr if each != broker_id)
        return self.change(key).target_isr(isr).unclean_shutdown_replicas(lost).build()

    def _is_homeless(self, broker_id: int, home: UUID | None) -> bool:
        """Whether the broker is registered without the directory."""
        registered = self._registered.get(broker_id)
        if registered is None:
            broker = self._brokers.get(broker_id)
            ids = () if broker is None else tuple(each.directory_id for each in broker.directories)
            registered = self._registered[broker_id] = ids
        return bool(registered) and home not in registered

    def _home_of(self, broker_id: int, home: UUID) -> UUID:
        """The directory for the replica: the same one, or if that is gone the placeable one with the fewest
        replicas.
        """
        if not self._is_homeless(broker_id, home):
            return home
        counts = self._held_counts.get(broker_id)
        if counts is None:
            counts = self._held_counts[broker_id] = self._count_held(broker_id)
        fewest = min(counts, key=lambda directory_id: counts[directory_id])
        counts[fewest] += 1
        return fewest

    def _count_held(self, broker_id: int) -> dict[UUID, int]:
        """Replicas by directory, for the broker's placeable directories; without one for its online directories, and
        without one of these for all its directories.
        """
        broker = self._brokers[broker_id]
        placeable = placeable_directories(self.image, self._config, broker)
        working = (
            placeable or broker.online_directories or tuple(each.directory_id for each in broker.directories)
        )
        return {each: self.replicas.of(broker_id).directories[each] for each in working}

    def partition(self, key: TopicIdPartition) -> PartitionImage:
        """The partition. Precondition: the image has it."""
        partition = self.image.partition(key)
        if partition is None:
            raise InvariantBroken(f"{self!r}: there is no {key}")
        return partition
