"""What the parts of a broker node call a replica: the partition, and where it lives.

A replica that has no log here, because its disk could not give it one, is `Unusable`. Kafka: `HostedPartition`.
"""

from collections.abc import Sequence
from typing import NamedTuple, Protocol
from uuid import UUID

from rayka.errors import ApiError, InvalidTopic, PassingStorageError, StorageError
from rayka.ids import TopicPartition, is_internal
from rayka.log.log_directory import LogDirectory
from rayka.metadata.image import BrokerImage, MetadataImage
from rayka.node.storage.flusher import Flusher
from rayka.partition.partition import Partition

# Topic id and number: cheaper to hash than a struct, and asked for in every request.
PartitionKey = tuple[UUID, int]


class Replica(NamedTuple):
    """A partition, and the directory and the flusher that it shares with others."""

    partition: Partition
    directory: LogDirectory
    flusher: Flusher

    @property
    def topic_partition(self) -> TopicPartition:
        return self.partition.topic_partition

    def waits_for_room(self, directory: LogDirectory) -> bool:
        """Whether its log, in that directory, met a full disk in the middle of a change."""
        return self.directory is directory and isinstance(self.partition.log.failure, PassingStorageError)


class Unusable(NamedTuple):
    """A partition whose log could not be opened, the directory that holds it if that is here, and why."""

    topic_partition: TopicPartition
    directory: LogDirectory | None
    error: StorageError

    def waits_for_room(self, directory: LogDirectory) -> bool:
        """Whether it could not be opened because that directory was full."""
        return self.directory is directory and isinstance(self.error, PassingStorageError)


class ReplicaOwner(Protocol):
    """What serves the replicas of a broker, as its parts see it: where they find them, and say what has happened."""

    image: MetadataImage | None

    @property
    def replicas(self) -> list[Replica]: ...

    def find(self, key: PartitionKey) -> Replica | None: ...

    def add(self, replica: Replica) -> None: ...

    def broker(self, broker_id: int) -> BrokerImage | None: ...

    def wake(self, partition: Partition) -> None:
        """Requests that wait for the partition look at it again, as when its log begins later now."""

    def on_follower_appended(self, replica: Replica, *, is_high_watermark_moved: bool) -> None: ...

    def on_synced(self, partitions: Sequence[Partition]) -> None:
        """What these partitions' logs held when the sync began is durable."""

    def on_storage_error(self, replica: Replica, error: StorageError) -> ApiError: ...

    def on_directory_failed(self, directory: LogDirectory, error: StorageError) -> None:
        """The directory is offline from now on."""


def check_not_internal(partition: Partition) -> None:
    """Raises InvalidTopic for a topic whose records are a state machine's: what clients did to them would break it."""
    if is_internal(partition.topic_partition.topic):
        raise InvalidTopic(
            f"{partition.topic_partition} is the cluster's own; clients read it and write nothing"
        )


def key_of(partition: Partition) -> PartitionKey:
    """How requests name the partition."""
    return partition.topic_id, partition.topic_partition.partition
