"""Plain asyncio sockets, and nothing else: what calls between processes take at least in Python.

An echo over a Unix socket and over TCP, and the copies of an acknowledgement by all: the client sends to the leader,
which appends to a file and sends to its followers, each of which appends to a file of its own and answers; then the
leader answers. Each in a process of its own; no log, no checks, no encoding, no order to restore after a failure.
`python -m benchmarks.bare_sockets` is one of these processes.
"""

import asyncio
import os
import socket
import subprocess
import sys
import time
from collections import deque
from collections.abc import Callable, Sequence
from pathlib import Path
from struct import Struct
from typing import Any

_HEAD = Struct("<IQ")  # bytes of the payload, id of the request
_BUFFER_BYTES = 8 << 20  # a frame has at most as many
_START_TIMEOUT_S = 20.0
_HOST = "127.0.0.1"
_OnFrame = Callable[["Frames", int, memoryview], None]


class Frames(asyncio.BufferedProtocol):
    """One connection: frames out, and frames in to a callback, which must copy what it keeps."""

    def __init__(self, on_frame: _OnFrame) -> None:
        self._on_frame = on_frame
        self._buffer = memoryview(bytearray(_BUFFER_BYTES))
        self._filled = 0
        self._transport: Any = None

    def connection_made(self, transport: Any) -> None:
        self._transport = transport
        connection = transport.get_extra_info("socket")
        if connection.family != socket.AF_UNIX:
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._buffer[self._filled :]

    def buffer_updated(self, nbytes: int) -> None:
        self._filled += nbytes
        begin = 0
        while self._filled - begin >= _HEAD.size:
            size, number = _HEAD.unpack_from(self._buffer, begin)
            end = begin + _HEAD.size + size
            if end > self._filled:
                break
            self._on_frame(self, number, self._buffer[begin + _HEAD.size : end])
            begin = end
        self._buffer[: self._filled - begin] = self._buffer[begin : self._filled]
        self._filled -= begin

    def send(self, number: int, payload: bytes | memoryview = b"") -> None:
        head = _HEAD.pack(len(payload), number)
        if len(payload) <= 8 << 10:
            self._transport.write(b"".join((head, payload)))
        else:
            self._transport.writelines((head, payload))

    def close(self) -> None:
        self._transport.close()


# ---- The processes ---------------------------------------------------------------------------------------------------


def _echo(connection: Frames, number: int, payload: memoryview) -> None:
    connection.send(number, bytes(payload))


class _Leader:
    """Appends what clients send, has it copied, answers. Followers connect to a path of their own."""

    def __init__(self, file: Path) -> None:
        self._descriptor = _new_file(file)
        self._followers: dict[Frames, int] = {}  # and the number of the last record that each has
        self._count = 0
        self._unanswered: deque[tuple[int, Frames, int]] = deque()

    def on_record(self, client: Frames, number: int, payload: memoryview) -> None:
        os.write(self._descriptor, payload)
        if not self._followers:
            client.send(number)
            return
        self._count += 1
        self._unanswered.append((self._count, client, number))
        copy = bytes(payload)
        for each in self._followers:
            each.send(self._count, copy)

    def on_follower(self, follower: Frames, number: int, _: memoryview) -> None:
        """Its greeting, which has the number 0, or that it has a record."""
        self._followers[follower] = number
        copied = min(self._followers.values())
        while self._unanswered and self._unanswered[0][0] <= copied:
            _, client, answered = self._unanswered.popleft()
            client.send(answered)


async def _serve(role: str, *arguments: str) -> None:
    loop = asyncio.get_running_loop()
    match role, arguments:
        case "echo", (path,):
            await loop.create_unix_server(lambda: Frames(_echo), path)
        case "echo-tcp", (port,):
            await loop.create_server(lambda: Frames(_echo), _HOST, int(port))
        case "leader", (path, file):
            leader = _Leader(Path(file))
            await loop.create_unix_server(lambda: Frames(leader.on_follower), f"{path}-followers")
            await loop.create_unix_server(lambda: Frames(leader.on_record), path)
        case "follower", (path, file):
            descriptor = _new_file(Path(file))

            def append(connection: Frames, number: int, payload: memoryview) -> None:
                os.write(descriptor, payload)
                connection.send(number)

            _, connection = await loop.create_unix_connection(lambda: Frames(append), f"{path}-followers")
            connection.send(0)
        case _:
            raise ValueError(f"expected a role and its arguments, found {role} {arguments}")
    print("ready", flush=True)
    await loop.run_in_executor(None, sys.stdin.read)  # until the process that started this one ends


def _new_file(path: Path) -> int:
    return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)


def start_process(module: str, *arguments: str) -> "subprocess.Popen[str]":
    """`python -m module arguments…`, once it has said that it is ready; it ends with its standard input."""
    command = [sys.executable, "-m", module, *arguments]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    if process.stdout.readline() != "ready\n":
        raise RuntimeError(f"{' '.join(command)} ended with {process.wait(_START_TIMEOUT_S)}")
    return process


def end_process(process: "subprocess.Popen[str]") -> None:
    """Ends what `start_process` has started."""
    process.terminate()
    process.communicate(timeout=_START_TIMEOUT_S)


# ---- Their caller ----------------------------------------------------------------------------------------------------


class BareCalls:
    """Calls to one of these processes, from this one; made by the functions below. `close` ends all of them."""

    def __init__(self, processes: Sequence["subprocess.Popen[str]"], address: str | int) -> None:
        self._processes = processes
        self._runner = asyncio.Runner()
        self._waiting: dict[int, asyncio.Future[None]] = {}
        self._connection = self._runner.run(self._connect(address))
        self._count = 0

    def round_trips(self, size_bytes: int, count: int) -> list[float]:
        """Seconds of each call with so many bytes, one after the other."""
        payload = bytes(size_bytes)

        async def call() -> list[float]:
            taken = []
            for _ in range(count):
                began = time.perf_counter()
                await self._call(payload)
                taken.append(time.perf_counter() - began)
            return taken

        return self._runner.run(call())

    def call_rate(self, size_bytes: int, *, in_flight: int, seconds_long: float) -> float:
        """Calls/s, so many at a time."""
        payload, deadline = bytes(size_bytes), time.perf_counter() + seconds_long
        count = 0

        async def caller() -> None:
            nonlocal count
            while time.perf_counter() < deadline:
                await self._call(payload)
                count += 1

        return self._timed(count_of=lambda: count, callers=[caller() for _ in range(in_flight)])

    def byte_rate(self, sizes: Sequence[int], *, in_flight: int) -> float:
        """Bytes/s of calls of these sizes, one way, so many at a time."""
        left, payloads = iter(sizes), {size: os.urandom(size) for size in sizes}

        async def caller() -> None:
            for size in left:
                await self._call(payloads[size])

        return self._timed(count_of=lambda: sum(sizes), callers=[caller() for _ in range(in_flight)])

    def close(self) -> None:
        self._connection.close()
        self._runner.close()
        for each in self._processes:
            end_process(each)

    def _timed(self, *, count_of: Callable[[], int], callers: Sequence[Any]) -> float:
        async def together() -> float:
            began = time.perf_counter()
            await asyncio.gather(*callers)
            return time.perf_counter() - began

        taken_s = self._runner.run(together())
        return count_of() / taken_s

    async def _connect(self, address: str | int) -> Frames:
        loop = asyncio.get_running_loop()
        if isinstance(address, int):
            return (await loop.create_connection(lambda: Frames(self._on_answer), _HOST, address))[1]
        return (await loop.create_unix_connection(lambda: Frames(self._on_answer), address))[1]

    async def _call(self, payload: bytes) -> None:
        self._count += 1
        waiting = self._waiting[self._count] = asyncio.get_running_loop().create_future()
        self._connection.send(self._count, payload)
        await waiting

    def _on_answer(self, _: Frames, number: int, payload: memoryview) -> None:
        self._waiting.pop(number).set_result(None)


def echo_over_unix(directory: Path) -> BareCalls:
    """A process that answers with what it is sent."""
    path = str(directory / "echo")
    return BareCalls([start_process(__name__, "echo", path)], path)


def echo_over_tcp() -> BareCalls:
    """The same over TCP on this machine."""
    with socket.socket() as listener:
        listener.bind((_HOST, 0))
        port = int(listener.getsockname()[1])
    return BareCalls([start_process(__name__, "echo-tcp", str(port))], port)


def bare_copies(directory: Path, *, replicas: int) -> BareCalls:
    """A leader that appends to a file, and its followers, which append to theirs before it answers."""
    path = str(directory / f"leader-{replicas}")
    processes = [start_process(__name__, "leader", path, f"{path}.log")]
    for number in range(1, replicas):
        processes.append(start_process(__name__, "follower", path, f"{path}.{number}.log"))
    return BareCalls(processes, path)


if __name__ == "__main__":
    asyncio.run(_serve(*sys.argv[1:]))
