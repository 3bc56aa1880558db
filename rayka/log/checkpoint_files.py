"""Small text files: offsets by partition for a whole data directory, two markers beside the segments of a log, and
durable replacement of files.

A checkpoint is Kafka's: lines with version 0, the number of entries, then `topic partition offset` (F4). Recovery
point, high watermark, log start offset and the offset up to which a log is compacted each have one. A power cut may
tear a checkpoint. A torn one counts as missing, which is safe for each of them: more is scanned or cleaned again, the
high watermark starts lower. Kafka: `CheckpointFile`, `OffsetCheckpointFile`, `Utils.atomicMoveWithFallback`.

A marker says at once what the checkpoints say later:

- `recovery-point-lowered`: recovery begins here, whatever the checkpoint says, until the checkpoint is saved anew.
- `log-start-raised`: the first segment begins here, because the segments before it were removed on purpose.

A marker is written before its change and into the directory of the segments, so a power cut takes its name after
theirs. A power cut may tear the content: then everything is scanned, and the records found count as all there were. An
operator makes an empty marker, with the same effect, to go on without lost records. Kafka has no markers; it does not
notice missing records.
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
    """The content of a file with these entries."""
    return "".join(f"{line}\n" for line in (_VERSION, len(entries), *entries)).encode()


def decode_lines(data: bytes) -> list[list[str]] | None:
    """The entries' words; None when the file is torn, damaged or of another version."""
    text = data.decode("ascii", errors="replace")
    lines = text.split("\n")
    if len(lines) < 3 or lines[-1] or lines[0] != str(_VERSION) or lines[1] != str(len(lines) - 3):
        return None
    return [line.split(" ") for line in lines[2:-1]]


def encode_offsets(offsets: Mapping[TopicPartition, int]) -> bytes:
    """A checkpoint of offsets, sorted by partition."""
    return encode_lines([f"{each.topic} {each.partition} {offsets[each]}" for each in sorted(offsets)])


def decode_offsets(data: bytes) -> dict[TopicPartition, int] | None:
    """The offsets in a checkpoint; None when it is damaged."""
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


async def replace_durably(disk: Disk, contents: Mapping[str, bytes]) -> None:
    """Replaces files so that a power cut leaves of each the old content or the new one, whole (A8).

    The new content is durable on return. All files share two syncs: of the contents, then of the names.
    """
    aside = {path: f"{path}.new" for path in contents}
    for path, data in contents.items():
        disk.write(aside[path], data)
    await disk.sync(list(aside.values()), [])
    for path in contents:
        disk.rename(aside[path], path)
    await disk.sync([], sorted({posixpath.dirname(path) for path in contents}))


# ---- Markers -------------------------------------------------------------------------------------------------

LOWERED_RECOVERY_POINT_FILE = "recovery-point-lowered"
RAISED_LOG_START_FILE = "log-start-raised"


def lowered_recovery_point(scan_from: int) -> dict[str, bytes]:
    """The marker, by name, that makes recovery begin here."""
    return {LOWERED_RECOVERY_POINT_FILE: encode_lines([str(scan_from)])}


def raised_log_start(first_offset: int) -> dict[str, bytes]:
    """The marker, by name, that no record before this offset is missing."""
    return {RAISED_LOG_START_FILE: encode_lines([str(first_offset)])}


def read_lowered_recovery_point(disk: Disk, directory: str, recovery_point: int) -> int:
    """Where recovery begins: the checkpoint's recovery point, or the marker's if that is lower."""
    lowered = _read(disk, posixpath.join(directory, LOWERED_RECOVERY_POINT_FILE), missing=recovery_point)
    return min(recovery_point, lowered or 0)


def read_raised_log_start(disk: Disk, directory: str) -> int | None:
    """The offset at which the first segment begins at the latest; None: not known, because the marker is torn
    or empty.
    """
    return _read(disk, posixpath.join(directory, RAISED_LOG_START_FILE), missing=0)


def is_given_up(disk: Disk, directory: str) -> bool:
    """Whether an operator has made a marker, to go on without lost records."""
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
