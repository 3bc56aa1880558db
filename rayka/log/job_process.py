"""Runs jobs of the real disk in other processes, so that they neither wait for the interpreter's lock of the node nor
take it.

A process (`job_server`) is started for the first job, serves one job at a time, and ends after a minute without one.
Node and process talk over a private socket: the job, then steps and answers in turn. Kafka has threads instead
(`LogCleaner.CleanerThread`).
"""

import asyncio
import os
import socket
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from enum import IntEnum
from multiprocessing.connection import Connection
from typing import Any

from rayka.ports import Job, JobDied

# At once; further jobs wait.
_JOBS_MAX = 16
_BEGIN = "import sys; sys.path[:] = {path!r}; from rayka.log.job_server import serve; serve({descriptor}, {parent})"


class MessageKind(IntEnum):
    """The kind of a message from a process."""

    STEP = 0
    FAILED = 1
    ENDED = 2


class JobProcesses:
    """The processes of one disk."""

    def __init__(self) -> None:
        # A process dies with the thread that started it; threads of the pool live as long as the pool.
        self._threads = ThreadPoolExecutor(max_workers=_JOBS_MAX, thread_name_prefix="rayka-job")
        self._alive: dict[int, _Process] = {}
        self._idle: list[_Process] = []

    def start(self, job: Job) -> "ProcessJob":
        return ProcessJob(self, job)

    def close(self) -> None:
        """Kills all processes."""
        for process in list(self._alive.values()):
            process.kill()
        self._threads.shutdown()
        # Those that a thread started before it ended.
        for process in list(self._alive.values()):
            process.kill()

    async def call(self, function: Any, *given: object) -> Any:
        """Makes the call on a thread of the pool."""
        return await asyncio.get_running_loop().run_in_executor(self._threads, function, *given)

    def begin(self, job: Job) -> "tuple[_Process, tuple[MessageKind, Any]]":
        """Gives the job to an idle process, or to a new one; returns the first message. Raises JobDied."""
        while self._idle:
            # An idle process may have ended, after a minute without a job.
            with suppress(JobDied):
                return self._asked(self._idle.pop(), job)
        process = _Process()
        self._alive[process.pid] = process
        return self._asked(process, job)

    def _asked(self, process: "_Process", job: Job) -> "tuple[_Process, tuple[MessageKind, Any]]":
        try:
            return process, process.ask(job)
        except JobDied:
            self.forget(process)
            raise

    def give_back(self, process: "_Process") -> None:
        """The process has no job any more."""
        self._idle.append(process)

    def forget(self, process: "_Process") -> None:
        """Kills the process, unless it is dead."""
        process.kill()
        self._alive.pop(process.pid, None)


class ProcessJob:
    """A job in another process. See `RunningJob`."""

    def __init__(self, processes: JobProcesses, job: Job) -> None:
        self._processes = processes
        self._job = job
        self._process: _Process | None = None

    async def next(self, answer: object) -> Any:
        if self._process is None:
            kind, value = await self._processes.call(self._begin)
        else:
            kind, value = await self._ask(self._process, answer)
        if kind is MessageKind.STEP:
            return value
        process, self._process = self._process, None
        if process is not None:
            self._processes.give_back(process)
        if kind is MessageKind.FAILED:
            raise value
        return None

    def _begin(self) -> "tuple[MessageKind, Any]":
        self._process, first = self._processes.begin(self._job)
        return first

    async def _ask(self, process: "_Process", answer: object) -> tuple[MessageKind, Any]:
        """Asks on the event loop: a thread that wakes for each step would take the interpreter's lock from requests."""
        try:
            return await process.ask_soon(answer)
        except (EOFError, OSError) as error:
            # Not on a thread of the pool: the disk may be closed, and its threads have ended.
            await asyncio.to_thread(process.kill)
            raise process.died() from error

    async def end(self) -> None:
        process, self._process = self._process, None
        if process is not None:
            await self._processes.call(self._processes.forget, process)


class _Process:
    """The node's end of one process. Its calls wait, except `ask_soon`."""

    def __init__(self) -> None:
        try:
            own, its = socket.socketpair()
        except OSError as error:
            raise JobDied(f"cannot start a process: {error}") from error
        with its:
            begin = _BEGIN.format(path=sys.path, descriptor=its.fileno(), parent=os.getpid())
            # Each thread takes memory.
            environment = {**os.environ, "OPENBLAS_NUM_THREADS": "1"}
            try:
                self._process = subprocess.Popen(
                    [sys.executable, "-c", begin],
                    stdin=subprocess.DEVNULL,
                    pass_fds=[its.fileno()],
                    env=environment,
                )
            except OSError as error:
                own.close()
                raise JobDied(f"cannot start a process: {error}") from error
        self._connection = Connection(own.detach())
        # The event loop waits for the socket.
        self._is_read = False
        self.pid = self._process.pid

    def ask(self, message: object) -> tuple[MessageKind, Any]:
        """Sends the message and waits for the answer. Raises JobDied."""
        try:
            self._connection.send(message)
            kind, value = self._connection.recv()
        except (EOFError, OSError) as error:
            self.kill()
            raise self.died() from error
        return kind, value

    async def ask_soon(self, message: object) -> tuple[MessageKind, Any]:
        """As `ask`, without blocking the event loop. Raises EOFError, OSError; the process must be killed then."""
        loop = asyncio.get_running_loop()
        is_readable: asyncio.Future[None] = loop.create_future()
        self._connection.send(message)
        descriptor, self._is_read = self._connection.fileno(), True
        loop.add_reader(descriptor, _set, is_readable)
        try:
            await is_readable
        finally:
            self._is_read = False
            loop.remove_reader(descriptor)
        kind, value = self._connection.recv()
        return kind, value

    def died(self) -> JobDied:
        return JobDied(
            f"process {self.pid} ended with {self._process.returncode}; the node's log may say why"
        )

    def kill(self) -> None:
        """Kills the process, and returns when it is gone. A socket that an event loop reads stays open, for the loop to
        find the end.
        """
        self._process.kill()
        self._process.wait()
        if not self._is_read:
            with suppress(OSError):
                self._connection.close()


def _set(future: "asyncio.Future[None]") -> None:
    if not future.done():
        future.set_result(None)
