"""The directories of partitions in one data directory, by their names: `orders-3`, and those that are out of the way.

Invariant: a name that was given up is free at once; what had it is kept under another until it is removed, or for good.
Kafka: `LogManager.asyncDelete`, `UnifiedLog.logDeleteDirName`, `logFutureDirName`, `logStrayDirName` (F4).
"""

import posixpath
import re
from uuid import UUID

from rayka.ids import TopicPartition
from rayka.ports import Disk

# `partition.metadata`: which topic, by id, a partition's directory belongs to (F4). Kafka:
# `PartitionMetadataFile`.

PARTITION_METADATA_FILE = "partition.metadata"


def encode_partition_metadata(topic_id: UUID) -> bytes:
    """The file's content."""
    return f"version: 0\ntopic_id: {topic_id}\n".encode()


def decode_partition_metadata(content: bytes) -> UUID | None:
    """The topic's id, or None when the content is torn."""
    lines = content.decode("ascii", errors="replace").split("\n")
    if len(lines) != 3 or lines[0] != "version: 0" or not lines[1].startswith("topic_id: "):
        return None
    try:
        return UUID(lines[1].removeprefix("topic_id: "))
    except ValueError:
        return None


def read_partition_metadata(disk: Disk, path: str) -> UUID | None:
    """The topic's id, or None when the file is missing or torn: the directory was never synced as that
    topic's.
    """
    return decode_partition_metadata(disk.read_at(path, 0, 256)) if disk.exists(path) else None


DELETED_SUFFIX = "-delete"
STRAY_SUFFIX = "-stray"
FUTURE_SUFFIX = "-future"
# With partition, id and suffix they stay below the 255 bytes of a file's name.
_TOPIC_CHARACTERS_MAX = 200
_PARTITION_DIRECTORY = re.compile(r"(.+)-(\d+)")
_FUTURE_DIRECTORY = re.compile(r".+-(\d+)\.([0-9a-f]{32})-future")


class PartitionDirectories:
    """Which partitions have a directory here."""

    def __init__(self, disk: Disk, path: str) -> None:
        self._disk = disk
        self._path = path

    def __repr__(self) -> str:
        return f"<PartitionDirectories {self._path}>"

    def all(self) -> dict[TopicPartition, UUID | None]:
        """The partitions, their logs open or not, with their topics' ids where they are known."""
        matches = map(_PARTITION_DIRECTORY.fullmatch, self._disk.list(self._path))
        found = [TopicPartition(match[1], int(match[2])) for match in matches if match]
        return {each: self.topic_id(each) for each in found}

    def paths(self) -> list[str]:
        """Their directories."""
        names = self._disk.list(self._path)
        return [posixpath.join(self._path, name) for name in names if _PARTITION_DIRECTORY.fullmatch(name)]

    def deleted(self) -> list[str]:
        """Directories of deleted logs that are yet to be removed."""
        names = self._disk.list(self._path)
        return [posixpath.join(self._path, name) for name in names if name.endswith(DELETED_SUFFIX)]

    def path(self, topic_partition: TopicPartition) -> str:
        return posixpath.join(self._path, f"{topic_partition.topic}-{topic_partition.partition}")

    def topic_id(self, topic_partition: TopicPartition) -> UUID | None:
        """The id of the topic that the directory is of; None where it does not say."""
        path = posixpath.join(self.path(topic_partition), PARTITION_METADATA_FILE)
        return read_partition_metadata(self._disk, path)

    def rename(self, topic_partition: TopicPartition, suffix: str) -> str | None:
        """Takes the directory out of the way if there is one; returns where it is now."""
        path = self.path(topic_partition)
        if not self._disk.exists(path):
            return None
        topic_id = self.topic_id(topic_partition)
        return self._renamed(
            path, self._stem(topic_partition, topic_id.hex if topic_id else "unknown"), suffix
        )

    # ---- Futures: copies on their way into this data directory ----------------------------------------------

    def future_path(self, topic_partition: TopicPartition, topic_id: UUID) -> str:
        """Where a replica is copied to that moves here; it gets the partition's name when it takes its place."""
        return self._stem(topic_partition, topic_id.hex) + FUTURE_SUFFIX

    def futures(self) -> list[tuple[UUID, int, str]]:
        """Topic id, number of the partition and path of each such copy."""
        matches = map(_FUTURE_DIRECTORY.fullmatch, self._disk.list(self._path))
        return [
            (UUID(hex=match[2]), int(match[1]), posixpath.join(self._path, match[0]))
            for match in matches
            if match
        ]

    def delete_future(self, path: str) -> str | None:
        """Gives the copy up; returns where it is now, to be removed."""
        if not self._disk.exists(path):
            return None
        return self._renamed(path, path.removesuffix(FUTURE_SUFFIX), DELETED_SUFFIX)

    def _stem(self, topic_partition: TopicPartition, topic_id: str) -> str:
        name = f"{topic_partition.topic[:_TOPIC_CHARACTERS_MAX]}-{topic_partition.partition}"
        return posixpath.join(self._path, f"{name}.{topic_id}")

    def _renamed(self, path: str, stem: str, suffix: str) -> str:
        renamed, number = stem + suffix, 1
        while self._disk.exists(renamed):  # a replica may go, come back, and go again
            number += 1
            renamed = f"{stem}.{number}{suffix}"
        self._disk.rename(path, renamed)
        return renamed
