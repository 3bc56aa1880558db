"""What the parts of a broker node call a replica: the partition, and where it lives.

A replica that has no log here, because its disk could not give it one, is `Unusable`. Kafka: `HostedPartition`.
"""

from typing import NamedTuple
from uuid import UUID

from rayka.errors import DiskFull, InvalidTopic, StorageError
from rayka.ids import TopicPartition, is_internal
from rayka.log.log_directory import LogDirectory
from rayka.node.storage.flusher import Flusher
from rayka.partition.partition import Partition

PartitionKey = tuple[
    UUID, int
]  # topic id and number: cheaper to hash than a struct, and asked for in every request


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
        return self.directory is directory and isinstance(self.partition.log.failure, DiskFull)


class Unusable(NamedTuple):
    """A partition whose log could not be opened, the directory that holds it if that is here, and why."""

    topic_partition: TopicPartition
    directory: LogDirectory | None
    error: StorageError

    def waits_for_room(self, directory: LogDirectory) -> bool:
        """Whether it could not be opened because that directory was full."""
        return self.directory is directory and isinstance(self.error, DiskFull)


def check_not_internal(partition: Partition) -> None:
    """Raises InvalidTopic for a topic whose records are a state machine's: what clients did to them would break it."""
    if is_internal(partition.topic_partition.topic):
        raise InvalidTopic(
            f"{partition.topic_partition} is the cluster's own; clients read it and write nothing"
        )


def key_of(partition: Partition) -> PartitionKey:
    """How requests name the partition."""
    return partition.topic_id, partition.topic_partition.partition
