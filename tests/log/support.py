"""Builders for tests of the log: small batches, small segments, reading everything back, and a disk whose machine ends
at a given operation.
"""

import asyncio
from collections.abc import Coroutine, Generator, Sequence
from pathlib import Path
from typing import Any, TypeVar

from rayka.config.topic_config import TopicConfig
from rayka.log.log import Log
from rayka.log.log_files import run_to_end
from rayka.log.log_opening import ShutdownState, opening_log
from rayka.log.recovery import Tearing
from rayka.log.segment import file_ranges
from rayka.ports import Buffer, Disk
from rayka.protocol.batch_decode import decode
from rayka.protocol.batch_encode import encode_batch
from rayka.protocol.batch_format import RecordBatch, split_batches
from rayka.protocol.fetch import FileRange
from rayka.testing.memory_disk import MemoryDisk

ResultT = TypeVar("ResultT")
DIRECTORY = "/data/orders-0"
SMALL = TopicConfig(segment_bytes=2000, index_interval_bytes=200, segment_index_bytes=1000)
GOLDEN = Path(__file__).parent / "golden"


def batch(values: Sequence[bytes] = (b"v",), timestamps_ms: Sequence[int] | int = 1000) -> RecordBatch:
    """One batch as a producer sends it: offsets from 0, no epoch."""
    return RecordBatch(encode_batch(list(values), timestamps_ms=timestamps_ms))


def ranges_of(log: Log, offset: int, *, max_bytes: int, end_offset: int) -> tuple[FileRange, ...]:
    """The places of whole batches in files, as a reader on this machine is given them."""
    return file_ranges(list(log.spans(offset, max_bytes, end_offset, True)))


def placed(base_offset: int, epoch: int = 0, count: int = 1, timestamp_ms: int = 1000) -> RecordBatch:
    """One batch as a follower receives it."""
    given = batch([b"v"] * count, timestamp_ms)
    return RecordBatch(b"".join(map(bytes, given.stamped(base_offset=base_offset, leader_epoch=epoch))))


def opened_log(
    disk: Disk,
    directory: str,
    config: TopicConfig,
    left: ShutdownState = ShutdownState(recovery_point=0),  # noqa: B008 - a value
    *,
    now_ms: int = 0,
) -> Log:
    """The log in a directory, new if there is none."""
    return run_to_end(opening_log(disk, directory, config, left, now_ms=now_ms, new_files={}))


def open_log(
    disk: Disk,
    *,
    recovery_point: int = 0,
    config: TopicConfig = SMALL,
    start: int = 0,
    tearing: Tearing = Tearing.SHORT_TAIL,
) -> Log:
    return opened_log(disk, DIRECTORY, config, ShutdownState(recovery_point, start, tearing))


def new_log(config: TopicConfig = SMALL) -> tuple[MemoryDisk, Log]:
    disk = MemoryDisk()
    disk.make_directory("/data")
    return disk, open_log(disk, config=config)


def result_of(work: Generator[None, None, ResultT] | Coroutine[Any, Any, ResultT]) -> ResultT:
    """Runs a search or a coroutine to its end, without a pause between its slices; returns the result."""
    while True:
        try:
            work.send(None)
        except StopIteration as end:
            found: ResultT = end.value
            return found


def fill(log: Log, batch_count: int, *, epoch: int = 0, size_bytes: int = 50) -> None:
    """Appends batches of two records; the record at offset n has the value `n`, padded, at 1000 + 10 n ms."""
    for _ in range(batch_count):
        offset = log.log_end_offset
        values = [str(each).encode().ljust(size_bytes, b".") for each in (offset, offset + 1)]
        log.append_as_leader([batch(values, [1000 + 10 * offset, 1010 + 10 * offset])], epoch, now_ms=0)


def sync(disk: MemoryDisk, log: Log) -> None:
    plan = log.unsynced()
    disk.sync_now(plan.files, plan.directories)
    log.on_synced(plan)


def truncate(disk: Disk, log: Log, offset: int) -> None:
    """Truncates the log as its node does: what must be copied first is."""
    copy = log.truncate_to(offset)
    if copy is not None:
        asyncio.run(disk.copy_prefix(copy.source, copy.target, copy.size_bytes))
        assert log.truncate_to(offset, copy) is None


def read_batches(log: Log, *, max_bytes: int = 700) -> list[RecordBatch]:
    """All batches, read chunk by chunk, their CRCs checked."""
    found, offset = [], log.log_start_offset
    while offset < log.log_end_offset:
        read = log.read(offset, max_bytes=max_bytes, end_offset=log.log_end_offset)
        assert read.next_offset > offset, (log, read)
        for each in split_batches(read.records):
            each.check_crc()
            found.append(each)
        offset = read.next_offset
    return found


def read_offsets(log: Log) -> list[int]:
    """The offsets of all records."""
    return [int(offset) for each in read_batches(log) for offset in decode(each).offsets]


def segment_path(base_offset: int, suffix: str = ".log") -> str:
    return f"{DIRECTORY}/{base_offset:020d}{suffix}"


def segment_bases(disk: Disk) -> list[int]:
    return [int(name[:20]) for name in disk.list(DIRECTORY) if name.endswith(".log")]


class MachineEnded(Exception):
    """Every operation from the given one on ends so."""


class EndingDisk(MemoryDisk):
    """A disk whose machine ends at a given change of it; -1: never."""

    def __init__(self) -> None:
        super().__init__()
        self.left = -1

    def _change(self) -> None:
        if self.left == 0:
            raise MachineEnded
        self.left -= self.left > 0

    @property
    def has_ended(self) -> bool:
        return self.left == 0

    def append(self, path: str, buffers: Sequence[Buffer]) -> int:
        self._change()
        return super().append(path, buffers)

    def write(self, path: str, data: Buffer) -> None:
        self._change()
        super().write(path, data)

    def rename(self, source: str, target: str) -> None:
        self._change()
        super().rename(source, target)

    def unlink(self, path: str) -> None:
        self._change()
        super().unlink(path)

    def cut(self, path: str, size_bytes: int) -> None:
        self._change()
        super().cut(path, size_bytes)

    async def sync(
        self, files: Sequence[str], directories: Sequence[str], *, in_background: bool = False
    ) -> None:
        self._change()
        await super().sync(files, directories, in_background=in_background)

    def sync_now(self, files: Sequence[str], directories: Sequence[str]) -> None:
        self._change()
        super().sync_now(files, directories)
