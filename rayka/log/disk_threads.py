"""Threads for the blocking calls of the real disk. Each data directory has its own: a slow disk holds up no other one.

A data directory has four threads, each started with its first call: for syncs that acknowledgements wait for, for syncs
of background work (compaction, moves), for copies, and for removals. A thread makes one call after the other. A call
that makes no progress for `hang_timeout_s` fails with DiskNotResponding, and so do the calls behind it. The thread
cannot be ended: if the disk answers later, the thread goes on with the next call. Time in which the process itself was
stopped (SIGSTOP, a frozen container, a paused machine) does not count.

Kafka flushes on the threads of its requests and of its scheduler, where a disk that hangs stops them all.
"""

import asyncio
import logging
import posixpath
import threading
from collections.abc import Callable
from contextlib import suppress
from enum import Enum
from queue import SimpleQueue

from rayka.errors import DiskNotResponding, StorageError

HANG_TIMEOUT_S = 60.0
_END_WAIT_S = 5.0
# A call hangs that has made no progress at so many looks in a row. A process that was stopped in between looks once.
_LOOKS = 8
# Called with the next action, such as `sync /data/a`.
Progress = Callable[[str], None]
Call = Callable[..., None]
_logger = logging.getLogger(__name__)


class Work(Enum):
    """Kinds of work, each with a thread in every data directory."""

    SYNC = "sync"
    BACKGROUND_SYNC = "background"
    COPY = "copy"
    REMOVAL = "removal"


def hangs(action: str, hang_timeout_s: float) -> DiskNotResponding:
    """The error of a disk that does not answer."""
    return DiskNotResponding(
        f"cannot {action}: the disk has not answered for {hang_timeout_s:g} s; look at the disk and its mount, then"
        " restart the node"
    )


class DiskThread:
    """One thread. Methods are called on event loops; only the calls handed to the thread run on it."""

    def __init__(self, name: str, hang_timeout_s: float) -> None:
        self._name = name
        self._hang_timeout_s = hang_timeout_s
        self._calls: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        self._thread: threading.Thread | None = None
        self._waiting: dict[asyncio.Future[None], None] = {}
        # The event loop on which `_look` is due.
        self._looking: asyncio.AbstractEventLoop | None = None
        self._is_closed = False
        # The action under way; empty while the thread is idle.
        self._action = ""
        # Grows with each action that begins.
        self._progress_count = 0
        # The progress that the last look found, and how many looks in a row have found this one.
        self._seen_progress = 0
        self._same_looks = 0

    async def run(self, call: Call, *given: object) -> None:
        """Makes the call on the thread, with a `Progress` and these arguments. Raises the errors of the call,
        DiskNotResponding, and StorageError if the thread was ended.
        """
        if self._is_closed:
            raise StorageError("the data directory is closed")
        if self._is_hung():
            raise hangs(self._action, self._hang_timeout_s)
        loop = asyncio.get_running_loop()
        done: asyncio.Future[None] = loop.create_future()
        self._waiting[done] = None

        def end(error: BaseException | None) -> None:
            if done.done():
                return
            if error is None:
                done.set_result(None)
            else:
                done.set_exception(error)

        def make() -> None:
            error: BaseException | None = None
            try:
                call(self._on_progress, *given)
            except BaseException as raised:
                error = raised
            # The loop may be closed.
            with suppress(RuntimeError):
                loop.call_soon_threadsafe(end, error)

        self._begin(make)
        if self._looking is not loop:
            self._looking, self._same_looks = loop, 0
            self._look_later(loop)
        try:
            await done
        finally:
            del self._waiting[done]

    def post(self, call: Call, *given: object) -> bool:
        """Queues the call; logs its errors. False when the thread has ended."""

        def make_and_log() -> None:
            try:
                call(*given)
            except Exception as error:
                # A raised error would end the thread, and later calls would wait in vain.
                _logger.warning("%s: %s failed: %s", self._name, getattr(call, "__name__", call), error)

        if not self._is_closed:
            self._begin(make_and_log)
        return not self._is_closed

    def close(self) -> None:
        """Ends the thread after its queued calls, and waits a few seconds for the end."""
        self._is_closed = True
        self._calls.put(None)
        if self._thread is not None and not self._is_hung():
            self._thread.join(_END_WAIT_S)

    def _begin(self, call: Callable[[], None]) -> None:
        if self._thread is None:
            # A daemon: the end of the process does not wait for a disk that hangs.
            self._thread = threading.Thread(target=self._work, name=self._name, daemon=True)
            self._thread.start()
        self._calls.put(call)

    def _work(self) -> None:
        while (call := self._calls.get()) is not None:
            self._on_progress(self._name)
            call()
            self._action = ""

    def _on_progress(self, action: str) -> None:
        self._progress_count += 1
        self._action = action

    def _is_hung(self) -> bool:
        is_same = self._seen_progress == self._progress_count
        return bool(self._action) and is_same and self._same_looks >= _LOOKS

    def _look_later(self, loop: asyncio.AbstractEventLoop) -> None:
        loop.call_later(self._hang_timeout_s / _LOOKS, self._look, loop)

    def _look(self, loop: asyncio.AbstractEventLoop) -> None:
        """Fails all waiting calls if the current one makes no progress; else looks again later, while calls wait."""
        if self._looking is not loop:
            return
        is_same = bool(self._action) and self._seen_progress == self._progress_count
        self._seen_progress, self._same_looks = self._progress_count, self._same_looks + 1 if is_same else 0
        if self._waiting and not self._is_hung():
            self._look_later(loop)
            return
        self._looking = None
        for done in self._waiting:
            if not done.done():
                done.set_exception(hangs(self._action, self._hang_timeout_s))


class DiskThreads:
    """All threads of one disk. Paths outside of its data directories share four."""

    def __init__(self, hang_timeout_s: float = HANG_TIMEOUT_S) -> None:
        self._hang_timeout_s = hang_timeout_s
        self._directories: dict[str, None] = {}
        self._threads: dict[tuple[str, Work], DiskThread] = {}
        self._is_closed = False

    def add_directory(self, path: str) -> None:
        """Gives a data directory its own threads."""
        self._directories[path] = None

    def of(self, path: str, work: Work) -> DiskThread:
        """The thread for this work on a path, of the innermost data directory: a controller's directory may lie in its
        broker's.
        """
        directory = path
        while directory not in self._directories and directory:
            parent = posixpath.dirname(directory)
            directory = parent if parent != directory else ""
        key = (directory, work)
        thread = self._threads.get(key)
        if thread is None:
            thread = self._threads[key] = DiskThread(f"rayka-{work.value}", self._hang_timeout_s)
            if self._is_closed:
                thread.close()
        return thread

    def close(self) -> None:
        """Ends all threads."""
        self._is_closed = True
        for thread in self._threads.values():
            thread.close()
