"""The process in which jobs of the real disk run; `job_process` is the node's end.

It has a lower priority than its node, and ends with it, however that ends: it finds the socket closed, and on Linux the
kernel kills it, so that none writes any more when the node's next process begins.
"""

import ctypes
import os
import signal
import sys
import traceback
from collections.abc import Generator
from contextlib import suppress
from multiprocessing.connection import Connection
from typing import Any

from rayka.errors import RaykaError
from rayka.log.job_process import Word
from rayka.log.local_disk import LocalDisk
from rayka.ports import Job, Slice

_NICENESS = 15  # above the node's: with 10 a node that wakes still waits a whole slice for its processor
_IDLE_S = 60.0
_TOLD_SLICES = 8  # as one: each that is told takes a turn of the node
_TOLD_BYTES = 8 << 20
_PR_SET_PDEATHSIG = 1


def serve(descriptor: int, parent_id: int) -> None:
    """Runs one job after another, until the node closes the socket or has no job for a minute."""
    with suppress(OSError):  # where a sandbox forbids it, jobs compete with requests
        os.nice(_NICENESS)
    _die_with(parent_id)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the node, which ends this
    connection = Connection(descriptor)
    with suppress(EOFError, ConnectionError):
        while connection.poll(_IDLE_S):
            connection.send(_outcome(connection.recv(), connection))


def _die_with(parent_id: int) -> None:
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent_id:
            sys.exit(1)


def _outcome(job: Job, connection: Connection) -> tuple[Word, Exception | None]:
    disk = LocalDisk(max_open_files=2)  # what the node removes is not kept open for long
    try:
        _run(told(job.run(disk)), connection)
    except (EOFError, ConnectionError):
        raise
    except Exception as error:
        if not isinstance(error, RaykaError):
            traceback.print_exc()
        return Word.FAILED, error
    finally:
        disk.close()
    return Word.ENDED, None


def _run(steps: Generator[Any, Any, None], connection: Connection) -> None:
    answer = None
    with suppress(StopIteration):
        while True:
            connection.send((Word.STEP, steps.send(answer)))
            answer = connection.recv()


def told(steps: Generator[Any, Any, None]) -> Generator[Any, Any, None]:
    """The steps, of which several slices are one."""
    count = size_bytes = 0
    answer = None
    while True:
        try:
            step = steps.send(answer)
        except StopIteration:
            return
        answer = None
        if isinstance(step, Slice):
            count, size_bytes = count + 1, size_bytes + step.size_bytes
            if count < _TOLD_SLICES and size_bytes < _TOLD_BYTES:
                continue
            step, count, size_bytes = Slice(size_bytes), 0, 0
        answer = yield step
