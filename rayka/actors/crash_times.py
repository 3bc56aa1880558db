"""When a node's process ended itself after an unexpected exception, kept in its directory across restarts.

Three crashes in a minute are a loop that a further restart will not end (design §2). A process killed from outside
leaves no entry: Ray may restart it as often as it likes.
"""

import os
from contextlib import suppress
from pathlib import Path

CRASHES_MAX = 3
WINDOW_MS = 60_000
FILE_NAME = "crash-times"
_DIGITS_MAX = 15  # `int` refuses thousands of them


def record_crash(directory: str, now_ms: int) -> None:
    """Adds a crash; nothing when the directory is not there or cannot be written, which is then the lesser problem."""
    if os.path.isdir(directory):
        lines = [str(each) for each in [*recent_crashes(directory, now_ms), now_ms][-CRASHES_MAX:]]
        with suppress(OSError):
            Path(directory, FILE_NAME).write_bytes("\n".join(lines).encode())


def recent_crashes(directory: str, now_ms: int) -> list[int]:
    """Times of the crashes of the last minute, by the wall clock in ms, oldest first.

    The process reads the file while it ends, and must end whatever is in it: what is not a time is skipped.
    """
    with suppress(OSError):
        lines = Path(directory, FILE_NAME).read_bytes().split()
        times = [int(line) for line in lines if line.isdigit() and len(line) <= _DIGITS_MAX]
        return [each for each in times if now_ms - WINDOW_MS < each <= now_ms]
    return []
