"""What this machine can do at most, each measured by the plainest code that does that one thing.

Rates are per second, durations in seconds. The benchmarks take these as limits, in turn with their own values; run
alone, this module prints them.
"""

import mmap
import os
import random
import socket
import statistics
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any

import crc32c
import numpy as np
import pyarrow as pa

from benchmarks.bare_sockets import BareCalls, bare_copies, echo_over_tcp, echo_over_unix
from benchmarks.harness import Row, median_of


def seconds(work: Callable[[], Any]) -> float:
    started = time.perf_counter()
    work()
    return time.perf_counter() - started


def payloads(count: int, size_bytes: int) -> list[bytes]:
    """Distinct values of one size that do not compress."""
    chance = random.Random(1)
    return [chance.randbytes(size_bytes) for _ in range(count)]


# ---- One process ----


def arrow_encode(values: Sequence[bytes], repeats: int = 50) -> float:
    """Records/s that `pyarrow.array(values)` takes in."""
    return len(values) * repeats / seconds(lambda: [pa.array(values, pa.binary()) for _ in range(repeats)])


class Handle:
    """What a `send` must hand back at least: two slots."""

    __slots__ = ("batch", "index")

    def __init__(self, batch: list[bytes], index: int) -> None:
        self.batch = batch
        self.index = index


def append_loop(values: Sequence[bytes], repeats: int) -> float:
    """Records/s of a loop that appends each to a list and keeps the two-slot handle it gets."""
    batch: list[bytes] = []

    def send(value: bytes) -> Handle:
        batch.append(value)
        return Handle(batch, len(batch) - 1)

    def loop() -> None:
        for _ in range(repeats):
            for value in values:
                send(value)

    return len(values) * repeats / seconds(loop)


class SlottedRecord:
    """What a consumer must build at least for each record: one object with the seven fields of a record."""

    __slots__ = ("headers", "key", "offset", "partition", "timestamp_ms", "topic", "value")

    def __init__(
        self,
        topic: str,
        partition: int,
        offset: int,
        timestamp_ms: int,
        key: None,
        value: bytes,
        headers: tuple[()],
    ) -> None:
        self.topic = topic
        self.partition = partition
        self.offset = offset
        self.timestamp_ms = timestamp_ms
        self.key = key
        self.value = value
        self.headers = headers


def record_loop(values: Sequence[bytes], repeats: int) -> float:
    """Records/s of a loop that builds one slotted object per record."""

    def loop() -> None:
        for _ in range(repeats):
            for offset, value in enumerate(values):
                SlottedRecord("topic", 0, offset, 0, None, value, ())

    return len(values) * repeats / seconds(loop)


def memory_copy(size_bytes: int = 256 << 20) -> float:
    """Bytes/s from one numpy array to another."""
    source, target = np.ones(size_bytes, np.uint8), np.zeros(size_bytes, np.uint8)
    return size_bytes / seconds(lambda: np.copyto(target, source))


# ---- The disk ----


def crc_pass(path: Path) -> float:
    """Seconds of a CRC-32C pass over a mapped file, 1 MB at a time."""
    return seconds(lambda: _crc_of(path))


def _crc_of(path: Path, chunk_bytes: int = 1 << 20) -> int:
    crc = 0
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as mapped:
        with memoryview(mapped) as view:
            for start in range(0, len(view), chunk_bytes):
                crc = crc32c.crc32c(view[start : start + chunk_bytes], crc)
    return crc


def fsync_p50(directory: Path, size_bytes: int = 4096, count: int = 50) -> float:
    """Median seconds of an fsync after appending a few bytes."""
    path = directory / "fsync"
    with path.open("wb", buffering=0) as file:
        return statistics.median(_one_fsync(file.fileno(), bytes(size_bytes)) for _ in range(count))


def _one_fsync(descriptor: int, data: bytes) -> float:
    os.write(descriptor, data)
    return seconds(lambda: os.fsync(descriptor))


def sendfile_rate(path: Path, chunk_bytes: int = 1 << 20) -> float:
    """Bytes/s from a file in the page cache to a thread that receives, over a Unix socket, without a copy here."""
    sender, receiver = socket.socketpair()
    size_bytes = path.stat().st_size
    with sender, receiver, path.open("rb") as file:
        receiving = threading.Thread(target=_receive, args=(receiver, size_bytes))
        receiving.start()

        def send() -> None:
            position = 0
            while position < size_bytes:
                position += os.sendfile(sender.fileno(), file.fileno(), position, chunk_bytes)
            receiving.join()

        return size_bytes / seconds(send)


def _receive(connection: socket.socket, left_bytes: int) -> None:
    buffer = bytearray(1 << 20)
    while left_bytes:
        left_bytes -= connection.recv_into(buffer)


def copy_file_range_rate(path: Path, chunk_bytes: int = 1 << 20) -> float:
    """Bytes/s from one file to the end of another, new one, by the kernel."""
    size_bytes, target = path.stat().st_size, path.with_suffix(".copy")
    with path.open("rb") as source, target.open("wb", buffering=0) as copy:

        def copy_all() -> None:
            left_bytes = size_bytes
            while left_bytes:
                left_bytes -= os.copy_file_range(source.fileno(), copy.fileno(), min(chunk_bytes, left_bytes))

        taken_s = seconds(copy_all)
    target.unlink()
    return size_bytes / taken_s


def file_append_rate(directory: Path, sizes: Sequence[int], *, files: int) -> float:
    """Bytes/s of one process that appends buffers of these sizes to some new files in turn."""
    buffers = {size: random.Random(4).randbytes(size) for size in sizes}
    with tempfile.TemporaryDirectory(dir=directory) as name:
        descriptors = [os.open(f"{name}/{number}", os.O_WRONLY | os.O_CREAT) for number in range(files)]

        def append() -> None:
            for number, size in enumerate(sizes):
                os.write(descriptors[number % files], buffers[size])

        taken_s = seconds(append)
        for each in descriptors:
            os.close(each)
    return sum(sizes) / taken_s


# ---- Ray ----


class _Noop:
    """An actor whose methods do nothing; async, as a broker is."""

    def __init__(self) -> None:
        self._ready: dict[int, np.ndarray] = {}

    async def take(self, data: Any) -> None:
        """Takes the data and drops it."""

    async def append(self, path: str, data: Any) -> None:
        """Takes the data and writes it to the end of a file, as a log must at least."""
        _append(path, data)

    async def pid(self) -> int:
        return os.getpid()

    async def give(self, size_bytes: int) -> np.ndarray:
        """The same bytes each time."""
        if size_bytes not in self._ready:
            self._ready[size_bytes] = np.frombuffer(random.Random(1).randbytes(size_bytes), np.uint8)
        return self._ready[size_bytes]


def _append(path: str, data: Any) -> None:
    with open(path, "ab", buffering=0) as file:
        file.write(data)


class NoopActor:
    """A running no-op actor, and what calls to it reach. Ray must be initialised; `close` ends the actor."""

    def __init__(self) -> None:
        import ray

        self._ray = ray
        self._buffers: dict[int, np.ndarray] = {}  # by size
        started = time.perf_counter()
        self._actor = ray.remote(_Noop).options(num_cpus=0, max_concurrency=1000).remote()
        ray.get(self._actor.take.remote(b""))
        self.start_s = time.perf_counter() - started
        self.pid: int = ray.get(self._actor.pid.remote())

    def round_trip_p50(self, size_bytes: int, count: int) -> float:
        """Median seconds of one call with so many bytes, one in flight, by `ray.get`: the shortest way there is."""
        data = bytes(size_bytes)
        return statistics.median(
            seconds(lambda: self._ray.get(self._actor.take.remote(data))) for _ in range(count)
        )

    def take_rate(self, sizes: Sequence[int], *, in_flight: int) -> float:
        """Bytes/s when numpy buffers of these sizes are sent, so many calls at a time."""
        calls = [lambda data=data: self._actor.take.remote(data) for data in self._of_sizes(sizes)]
        return sum(sizes) / seconds(lambda: self._run(calls, in_flight))

    def append_rate(self, sizes: Sequence[int], *, in_flight: int) -> float:
        """Bytes/s when the actor writes them to a new file, too, in the directory for temporary files."""
        with tempfile.TemporaryDirectory(prefix="rayka-bench-") as name:
            path = str(Path(name) / "data")
            calls = [
                lambda data=data: self._actor.append.remote(path, data) for data in self._of_sizes(sizes)
            ]
            return sum(sizes) / seconds(lambda: self._run(calls, in_flight))

    def _of_sizes(self, sizes: Sequence[int]) -> list[np.ndarray]:
        for size in sizes:
            if size not in self._buffers:
                self._buffers[size] = np.frombuffer(random.Random(2).randbytes(size), np.uint8)
        return [self._buffers[size] for size in sizes]

    def give_rate(self, sizes: Sequence[int], *, in_flight: int) -> float:
        """Bytes/s when numpy buffers of these sizes are answered, so many calls at a time."""
        self._ray.get([self._actor.give.remote(size) for size in dict.fromkeys(sizes)])
        calls = [lambda size=size: self._actor.give.remote(size) for size in sizes]
        return sum(sizes) / seconds(lambda: self._run(calls, in_flight))

    def _run(self, calls: Sequence[Callable[[], Any]], in_flight: int) -> None:
        waiting: list[Any] = []
        for call in calls:
            if len(waiting) == in_flight:
                done, waiting = self._ray.wait(waiting, num_returns=1)
                self._ray.get(done)
            waiting.append(call())
        self._ray.get(waiting)

    def close(self) -> None:
        self._ray.kill(self._actor)


# ---- Alone ----


def run(*, quick: bool = False) -> Iterator[Row]:
    """The limits by themselves. Those of Ray need a running Ray, so `benchmarks.client` reports them."""
    rounds = 3 if quick else 7
    values = payloads(10_000, 100)
    with tempfile.TemporaryDirectory(prefix="rayka-bench-") as name:
        directory = Path(name)
        file = directory / "data"
        file.write_bytes(random.Random(3).randbytes(64 << 20))
        for what, settings, unit, measure in (
            ("pyarrow.array(values)", "10,000 x 100 B", "records/s", partial(arrow_encode, values)),
            ("append to a list, two-slot handle", "100 B", "records/s", partial(append_loop, values, 20)),
            ("one slotted object per record", "100 B", "records/s", partial(record_loop, values, 20)),
            ("memory copy", "256 MB", "B/s", memory_copy),
            ("CRC-32C of a mapped file", "64 MB", "B/s", lambda: (64 << 20) / crc_pass(file)),
            ("fsync p50", "4 KB appended", "s", partial(fsync_p50, directory)),
            ("sendfile over a Unix socket", "64 MB, 1 MB at a time", "B/s", partial(sendfile_rate, file)),
            ("copy_file_range", "64 MB, 1 MB at a time", "B/s", partial(copy_file_range_rate, file)),
        ):
            yield Row(what=what, settings=settings, unit=unit, value=median_of(measure, rounds=rounds))
        for where, make in (
            ("echo over a Unix socket", partial(echo_over_unix, directory)),
            ("echo over TCP", echo_over_tcp),
            ("copies for one replica", partial(bare_copies, directory, replicas=1)),
            ("copies for three replicas", partial(bare_copies, directory, replicas=3)),
        ):
            with closing(make()) as calls:
                yield from _call_rows(where, calls, rounds=rounds, seconds_long=0.2 if quick else 1.0)


def _call_rows(name: str, calls: BareCalls, *, rounds: int, seconds_long: float) -> Iterator[Row]:
    """What plain asyncio sockets between processes reach."""
    measures: tuple[tuple[str, str, Callable[[], float]], ...] = (
        ("1 KB, one in flight, p50", "s", lambda: statistics.median(calls.round_trips(1000, 200))),
        (
            "1 KB, 200 in flight",
            "requests/s",
            lambda: calls.call_rate(1000, in_flight=200, seconds_long=seconds_long),
        ),
        ("1 MB, 5 in flight, one way", "B/s", lambda: calls.byte_rate([1 << 20] * 50, in_flight=5)),
    )
    for settings, unit, measure in measures:
        yield Row(what=name, settings=settings, unit=unit, value=median_of(measure, rounds=rounds))
