"""The directories of partitions in one data directory, by name: `orders-3`, its deleted, stray and future ones, and the
file `partition.metadata` in each.

Invariant: a name that was given up is free at once. Its directory gets another name until it is removed, or for good.
Kafka: `LogManager.asyncDelete`, `UnifiedLog.logDeleteDirName`, `logFutureDirName`, `logStrayDirName`,
`PartitionMetadataFile` (F4).
"""

import posixpath
import re
from uuid import UUID

from rayka.ids import TopicPartition
from rayka.ports import Disk

# ---- partition.metadata: the topic, by id, of a partition's directory -------------------------------------------

PARTITION_METADATA_FILE = "partition.metadata"


def encode_partition_metadata(topic_id: UUID) -> bytes:
    """The content of the file."""
    return f"version: 0\ntopic_id: {topic_id}\n".encode()


def decode_partition_metadata(content: bytes) -> UUID | None:
    """The topic's id; None when the content is torn."""
    lines = content.decode("ascii", errors="replace").split("\n")
    if len(lines) != 3 or lines[0] != "version: 0" or not lines[1].startswith("topic_id: "):
        return None
    try:
        return UUID(lines[1].removeprefix("topic_id: "))
    except ValueError:
        return None


def read_partition_metadata(disk: Disk, path: str) -> UUID | None:
    """The topic's id; None when the file is missing or torn, because the directory was never synced as that topic's."""
    return decode_partition_metadata(disk.read_at(path, 0, 256)) if disk.exists(path) else None


DELETED_SUFFIX = "-delete"
STRAY_SUFFIX = "-stray"
FUTURE_SUFFIX = "-future"
# With partition, id and suffix they stay below the 255 bytes of a file's name.
_TOPIC_CHARACTERS_MAX = 200
_PARTITION_DIRECTORY = re.compile(r"(.+)-(\d+)")
_FUTURE_DIRECTORY = re.compile(r".+-(\d+)\.([0-9a-f]{32})-future")


class PartitionDirectories:
    """The directories of one data directory."""

    def __init__(self, disk: Disk, path: str) -> None:
        self._disk = disk
        self._path = path

    def all(self) -> dict[TopicPartition, UUID | None]:
        """The partitions, their logs open or not, with their topics' ids if known."""
        matches = map(_PARTITION_DIRECTORY.fullmatch, self._disk.list(self._path))
        found = [TopicPartition(match[1], int(match[2])) for match in matches if match]
        return {each: self.topic_id(each) for each in found}

    def paths(self) -> list[str]:
        """The directories of the partitions."""
        names = self._disk.list(self._path)
        return [posixpath.join(self._path, name) for name in names if _PARTITION_DIRECTORY.fullmatch(name)]

    def deleted(self) -> list[str]:
        """Directories of deleted logs, still to be removed."""
        names = self._disk.list(self._path)
        return [posixpath.join(self._path, name) for name in names if name.endswith(DELETED_SUFFIX)]

    def path(self, topic_partition: TopicPartition) -> str:
        return posixpath.join(self._path, f"{topic_partition.topic}-{topic_partition.partition}")

    def topic_id(self, topic_partition: TopicPartition) -> UUID | None:
        """The topic's id in the directory; None if unknown."""
        path = posixpath.join(self.path(topic_partition), PARTITION_METADATA_FILE)
        return read_partition_metadata(self._disk, path)

    def rename(self, topic_partition: TopicPartition, suffix: str) -> str | None:
        """Renames the directory out of the way; returns its new path, or None if there was none."""
        path = self.path(topic_partition)
        if not self._disk.exists(path):
            return None
        topic_id = self.topic_id(topic_partition)
        return self._renamed(
            path, self._stem(topic_partition, topic_id.hex if topic_id else "unknown"), suffix
        )

    # ---- Futures: copies on their way into this data directory ----------------------------------------------

    def future_path(self, topic_partition: TopicPartition, topic_id: UUID) -> str:
        """The directory of a replica that is being copied here; it gets the partition's name when the copy takes the
        replica's place.
        """
        return self._stem(topic_partition, topic_id.hex) + FUTURE_SUFFIX

    def futures(self) -> list[tuple[UUID, int, str]]:
        """Topic id, partition number and path of each future directory."""
        matches = map(_FUTURE_DIRECTORY.fullmatch, self._disk.list(self._path))
        return [
            (UUID(hex=match[2]), int(match[1]), posixpath.join(self._path, match[0]))
            for match in matches
            if match
        ]

    def delete_future(self, path: str) -> str | None:
        """Renames a future directory, to be removed; returns its new path, or None if there was none."""
        if not self._disk.exists(path):
            return None
        return self._renamed(path, path.removesuffix(FUTURE_SUFFIX), DELETED_SUFFIX)

    def _stem(self, topic_partition: TopicPartition, topic_id: str) -> str:
        name = f"{topic_partition.topic[:_TOPIC_CHARACTERS_MAX]}-{topic_partition.partition}"
        return posixpath.join(self._path, f"{name}.{topic_id}")

    def _renamed(self, path: str, stem: str, suffix: str) -> str:
        renamed, number = stem + suffix, 1
        # A replica may go, come back, and go again.
        while self._disk.exists(renamed):
            number += 1
            renamed = f"{stem}.{number}{suffix}"
        self._disk.rename(path, renamed)
        return renamed
