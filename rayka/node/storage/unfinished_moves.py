"""What the end of a process leaves of moves between the data directories of one broker.

The metadata name the new directory as soon as the copy there has all that the log has; the log takes its place a moment
later. A process that ends in between leaves a log in one directory and its copy in the one that is named. The log is
what counts: it may have taken appends since. Invariant: a directory that holds the partition's log under its own name
is where the replica is. Kafka: `LogManager.recoverAbandonedFutureLogs`, which takes the copy.
"""

from uuid import UUID

from rayka.ids import TopicPartition
from rayka.log.log_directory import LogDirectory
from rayka.node.storage.data_directories import DataDirectories


class UnfinishedMoves:
    """Looks into the directories of one broker."""

    def __init__(self, directories: DataDirectories) -> None:
        self._directories = directories

    def __repr__(self) -> str:
        return f"<UnfinishedMoves in {self._directories!r}>"

    def is_copied_into(self, home: LogDirectory, topic_partition: TopicPartition, topic_id: UUID) -> bool:
        """Whether the directory has a copy, and not the log."""
        return (
            home.failure is None
            and home.futures.exists(topic_partition, topic_id)
            and not _has_log(home, topic_partition, topic_id)
        )

    def source(
        self, home: LogDirectory, topic_partition: TopicPartition, topic_id: UUID
    ) -> LogDirectory | None:
        """The directory that has the log of which the copy in this one was made; None where there is no copy, or no
        such log.
        """
        if not self.is_copied_into(home, topic_partition, topic_id):
            return None
        others = [each for each in self._directories.online() if each is not home]
        return next((each for each in others if _has_log(each, topic_partition, topic_id)), None)


def _has_log(directory: LogDirectory, topic_partition: TopicPartition, topic_id: UUID) -> bool:
    return directory.partitions.topic_id(topic_partition) == topic_id
