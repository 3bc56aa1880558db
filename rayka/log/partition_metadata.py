"""`partition.metadata`: which topic, by id, a partition's directory belongs to (F4). Kafka:
`PartitionMetadataFile`.
"""

from uuid import UUID

from rayka.ports import Disk

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
