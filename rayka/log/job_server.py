"""The process that runs jobs of the real disk; `job_process` is the node's end.

It has a lower priority than its node and offers its processor to others all the time. It ends with its node, however
the node ends: it finds the socket closed, and on Linux the kernel kills it, so that it writes nothing when the node's
next process begins.
"""

import ctypes
import os
import signal
import sys
import time
import traceback
from collections.abc import Generator, Iterator
from contextlib import contextmanager, suppress
from multiprocessing.connection import Connection
from typing import Any

from rayka.errors import RaykaError
from rayka.log.job_process import MessageKind
from rayka.log.local_disk import LocalDisk
from rayka.ports import Job, Slice

# Added to the node's: with 10 a node that wakes still waits a whole slice for its processor.
_NICENESS = 15
# A process of a low priority still gets its share, and Linux lets it run for up to one tick, 4 ms, once it has begun. A
# node or client that wakes in that time waits for the end of the tick.
_GIVES_WAY_EVERY_S = 0.0003
# Of the time. With less the process gives way no more, or on a busy machine a job would never end.
_LEAST_SHARE = 0.05
_IDLE_S = 60.0
# So many slices are reported as one: each report takes a turn of the node.
_JOINED_SLICES = 8
_JOINED_BYTES = 8 << 20
_PR_SET_PDEATHSIG = 1


def serve(descriptor: int, parent_id: int) -> None:
    """Runs one job after another, until the node closes the socket or has no job for a minute."""
    # Where a sandbox forbids it, jobs compete with requests.
    with suppress(OSError):
        os.nice(_NICENESS)
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent_id:
            sys.exit(1)
    # Ctrl-C is for the node, which ends this process.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    connection = Connection(descriptor)
    with suppress(EOFError, ConnectionError):
        while connection.poll(_IDLE_S):
            # The first job imports its modules here.
            with _giving_way():
                job = connection.recv()
            connection.send(_outcome(job, connection))


@contextmanager
def _giving_way() -> Iterator[None]:
    """Offers this processor to others every now and then during the block, between two bytecodes."""
    used_s, began_s = time.process_time(), time.monotonic()

    def give_way(*_: object) -> None:
        if time.process_time() - used_s >= _LEAST_SHARE * (time.monotonic() - began_s):
            os.sched_yield()

    signal.signal(signal.SIGALRM, give_way)
    signal.setitimer(signal.ITIMER_REAL, _GIVES_WAY_EVERY_S, _GIVES_WAY_EVERY_S)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)


def _outcome(job: Job, connection: Connection) -> tuple[MessageKind, Exception | None]:
    # Few files stay open, so files that the node removes are freed soon.
    disk = LocalDisk(max_open_files=2)
    try:
        _run(joined_slices(job.run(disk)), connection)
    except (EOFError, ConnectionError):
        raise
    except Exception as error:
        if not isinstance(error, RaykaError):
            traceback.print_exc()
        return MessageKind.FAILED, error
    finally:
        disk.close()
    return MessageKind.ENDED, None


def _run(steps: Generator[Any, Any, None], connection: Connection) -> None:
    answer = None
    with suppress(StopIteration):
        while True:
            with _giving_way():
                step = steps.send(answer)
            connection.send((MessageKind.STEP, step))
            answer = connection.recv()


def joined_slices(steps: Generator[Any, Any, None]) -> Generator[Any, Any, None]:
    """The steps of the job, with several slices joined to one."""
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
            if count < _JOINED_SLICES and size_bytes < _JOINED_BYTES:
                continue
            step, count, size_bytes = Slice(size_bytes), 0, 0
        answer = yield step
