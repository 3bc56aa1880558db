"""Kafka's small text files: offsets by partition for a whole data directory, and durable replacement of
files.

A checkpoint is lines: version 0, the number of entries, then `topic partition offset` (F4). Recovery point,
high watermark, log start offset and the offset up to which a log is compacted each have one. A power cut may leave a
checkpoint torn; it is then missing, which is safe for each of them: more is scanned or cleaned again, the high
watermark starts lower. Kafka:
`CheckpointFile`, `OffsetCheckpointFile`.
"""

import logging
import posixpath
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


# Replacing small files so that a power cut cannot tear them (A8). Kafka: `Utils.atomicMoveWithFallback`.


async def replace_durably(disk: Disk, contents: Mapping[str, bytes]) -> None:
    """Replaces files so that after a power cut each has its old content or its new one, whole.

    On return the new content survives. All files share two syncs: of the contents, then of the names.
    """
    aside = {path: f"{path}.new" for path in contents}
    for path, data in contents.items():
        disk.write(aside[path], data)
    await disk.sync(list(aside.values()), [])
    for path in contents:
        disk.rename(aside[path], path)
    await disk.sync([], sorted({posixpath.dirname(path) for path in contents}))


# Two small files beside the segments of a log. They say at once what the data directory's checkpoints say later.
#
# `recovery-point-lowered`: recovery begins here, whatever the checkpoint says, until that is saved anew.
# `log-start-raised`: the first segment begins here, because what was before it was removed on purpose.
# Each is written before the change that it tells of, and into the directory of the segments, so a power cut takes
# its name after theirs. It may tear the content: then everything is scanned, and what is found counts as all there
# was. So may an operator that wants to go on without records that are lost, and makes an empty file. Kafka has no such
# files; it does not notice what is missing.


LOWERED_RECOVERY_POINT_FILE = "recovery-point-lowered"
RAISED_LOG_START_FILE = "log-start-raised"


def lowered_recovery_point(scan_from: int) -> dict[str, bytes]:
    """The file, by name, that makes a recovery begin here."""
    return {LOWERED_RECOVERY_POINT_FILE: encode_lines([str(scan_from)])}


def raised_log_start(first_offset: int) -> dict[str, bytes]:
    """The file, by name, that says that nothing before this offset is missed."""
    return {RAISED_LOG_START_FILE: encode_lines([str(first_offset)])}


def read_lowered_recovery_point(disk: Disk, directory: str, recovery_point: int) -> int:
    """Where recovery begins, with this recovery point in the checkpoint."""
    lowered = _read(disk, posixpath.join(directory, LOWERED_RECOVERY_POINT_FILE), missing=recovery_point)
    return min(recovery_point, lowered or 0)


def read_raised_log_start(disk: Disk, directory: str) -> int | None:
    """Where the first segment has to begin at the latest; None: that is not known."""
    return _read(disk, posixpath.join(directory, RAISED_LOG_START_FILE), missing=0)


def is_given_up(disk: Disk, directory: str) -> bool:
    """Whether an operator has made one of the files, to go on without records that are lost."""
    paths = (posixpath.join(directory, name) for name in (LOWERED_RECOVERY_POINT_FILE, RAISED_LOG_START_FILE))
    return any(disk.exists(path) and not disk.size(path) for path in paths)


def _read(disk: Disk, path: str, *, missing: int) -> int | None:
    """The offset in the file; None when it is torn or empty."""
    if not disk.exists(path):
        return missing
    lines = decode_lines(disk.read_at(path, 0, disk.size(path)))
    if not lines or not lines[0][0].isdecimal():
        return None
    return int(lines[0][0])
