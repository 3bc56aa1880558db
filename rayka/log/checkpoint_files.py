"""Kafka's small text files: offsets by partition for a whole data directory, and durable replacement of
files.

A checkpoint is lines: version 0, the number of entries, then `topic partition offset` (F4). Recovery point,
high watermark, log start offset and the offset up to which a log is compacted each have one. A power cut may leave a
checkpoint torn; it is then missing, which is safe for each of them: more is scanned or cleaned again, the high
watermark starts lower. Kafka:
`CheckpointFile`, `OffsetCheckpointFile`.
"""

import logging
from collections.abc import Mapping, Sequence

from rayka.ids import TopicPartition
from rayka.ports import Disk

RECOVERY_POINT_FILE = "recovery-point-offset-checkpoint"
HIGH_WATERMARK_FILE = "replication-offset-checkpoint"
LOG_START_OFFSET_FILE = "log-start-offset-checkpoint"
CLEANER_OFFSET_FILE = "cleaner-offset-checkpoint"
_VERSION = 0
_logger = logging.getLogger(__name__)


def encode_lines(entries: Sequence[str]) -> bytes:
    """A checkpoint file's content."""
    return "".join(f"{line}\n" for line in (_VERSION, len(entries), *entries)).encode()


def decode_lines(data: bytes) -> list[list[str]] | None:
    """The entries' words, or None when the file is torn, damaged or of another version."""
    text = data.decode("ascii", errors="replace")
    lines = text.split("\n")
    if len(lines) < 3 or lines[-1] or lines[0] != str(_VERSION) or lines[1] != str(len(lines) - 3):
        return None
    return [line.split(" ") for line in lines[2:-1]]


def encode_offsets(offsets: Mapping[TopicPartition, int]) -> bytes:
    """A checkpoint of offsets, in the order of the partitions."""
    return encode_lines([f"{each.topic} {each.partition} {offsets[each]}" for each in sorted(offsets)])


def decode_offsets(data: bytes) -> dict[TopicPartition, int] | None:
    """The offsets in a checkpoint, or None when it is damaged."""
    lines = decode_lines(data)
    if lines is None:
        return None
    try:
        return {TopicPartition(topic, int(number)): int(offset) for topic, number, offset in lines}
    except ValueError:
        return None


def read_offsets(disk: Disk, path: str) -> dict[TopicPartition, int]:
    """The offsets in a checkpoint file; none when it is missing, none and a warning when it is damaged."""
    if not disk.exists(path):
        return {}
    offsets = decode_offsets(disk.read_at(path, 0, disk.size(path)))
    if offsets is None:
        _logger.warning("%s is damaged and counts as missing", path)
    return offsets or {}
