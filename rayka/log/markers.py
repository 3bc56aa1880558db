"""Two small files beside the segments of a log. They say at once what the data directory's checkpoints say later.

`recovery-point-lowered`: recovery begins here, whatever the checkpoint says, until that is saved anew.
`log-start-raised`: the first segment begins here, because what was before it was removed on purpose.
Each is written before the change that it tells of, and into the directory of the segments, so a power cut takes
its name after theirs. It may tear the content: then everything is scanned, and what is found counts as all there
was. So may an operator that wants to go on without records that are lost, and makes an empty file. Kafka has no such
files; it does not notice what is missing.
"""

import posixpath

from rayka.log.checkpoint_files import decode_lines, encode_lines
from rayka.ports import Disk

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
