"""What this machine can do at most, each measured by the plainest code that does that one thing.

Rates are per second, durations in seconds. The benchmarks take these as limits, in turn with their own values; run
alone, this module prints them.
"""

import mmap
import os
import random
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import crc32c
import numpy as np
import pyarrow as pa

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


def run(*, quick: bool = False) -> list[Row]:
    """The limits by themselves. Those of Ray need a running Ray, so `benchmarks.client` reports them."""
    rounds = 3 if quick else 7
    values = payloads(10_000, 100)
    with tempfile.TemporaryDirectory(prefix="rayka-bench-") as name:
        directory = Path(name)
        file = directory / "data"
        file.write_bytes(random.Random(3).randbytes(64 << 20))
        return [
            _row(
                "pyarrow.array(values)", "10,000 x 100 B", lambda: arrow_encode(values), "records/s", rounds
            ),
            _row(
                "append to a list, two-slot handle",
                "100 B",
                lambda: append_loop(values, 20),
                "records/s",
                rounds,
            ),
            _row(
                "one slotted object per record", "100 B", lambda: record_loop(values, 20), "records/s", rounds
            ),
            _row("memory copy", "256 MB", memory_copy, "B/s", rounds),
            _row("CRC-32C of a mapped file", "64 MB", lambda: (64 << 20) / crc_pass(file), "B/s", rounds),
            _row("fsync p50", "4 KB appended", lambda: fsync_p50(directory), "s", rounds),
        ]


def _row(what: str, settings: str, measure: Callable[[], float], unit: str, rounds: int) -> Row:
    return Row(what=what, settings=settings, value=median_of(measure, rounds=rounds), unit=unit)
