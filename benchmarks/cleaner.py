"""Compaction of one log, records of 100 bytes of which one in ten has a key of its own, beside a copy of the same
bytes with their CRC, and beside Kafka's cleaner.

Beside the copy it is processor time of one core: both work in one thread, and what the disk takes to sync is no
business of the code. Kafka says in its log how long its one thread took; ours is then measured by the same clock, syncs
included. The memory is what the process of a cleaning has for itself. All are measured on a copy of the same
log.
"""

import asyncio
import shutil
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path

import numpy as np
from crc32c import crc32c

from benchmarks import cleaner_beside, cleaner_turns
from benchmarks.harness import Bar, Row, compare, in_turn
from rayka.cleaner.compaction import Compaction, SyncNeeded, cleanable
from rayka.cleaner.file_cleaning import CleaningSettings, SegmentGroup
from rayka.config.topic_config import TopicConfig
from rayka.log.local_disk import LocalDisk
from rayka.log.log import Log
from rayka.log.log_files import run_to_end
from rayka.log.log_opening import ShutdownState, opening_log
from rayka.ports import Slice
from rayka.protocol.batch_encode import encode_batch
from rayka.protocol.batch_format import RecordBatch

BAR = Bar(1 / 0.3, at_most=True)  # 30 % of the speed of the copy
PEER_BAR = Bar(1 / 3, at_most=True)  # three times as fast
CONFIG = TopicConfig(segment_bytes=256 << 20, cleanup_policy="compact")
RECORD_BYTES, KEY_BYTES = 100, 8
BATCH_RECORDS = 10_000
MAP_BYTES = 128 << 20
ROOM_BYTES = 64 << 20


def run(*, quick: bool = False, kafka_jars: Path | None = None) -> Iterator[Row]:
    yield from cleaner_turns.rows(quick=quick)  # first, so that it is the process's first cleaning
    yield from _alone(kafka_jars, quick=quick)
    yield from cleaner_beside.rows(kafka_jars, quick=quick)


def _alone(kafka_jars: Path | None, *, quick: bool) -> Iterator[Row]:
    size_bytes, rounds = (64 << 20, 1) if quick else (1 << 30, 3)
    directory, disk = tempfile.mkdtemp(), LocalDisk()
    try:
        original = f"{directory}/original-0"
        _write_log(disk, original, size_bytes)
        settings = f"{size_bytes >> 20} MiB of {RECORD_BYTES} B records, one key in ten"
        measured = compare(partial(_clean_s, disk, original), partial(_copy_s, disk, original), rounds=rounds)
        yield measured.row(
            "compaction, processor time", settings, "s", "copying the bytes with their CRC", bar=BAR
        )
        largest_mib = _largest_bytes(disk, original) / 2**20
        yield Row.allowed("memory of a compaction", largest_mib, "MiB", (MAP_BYTES + ROOM_BYTES) / 2**20)
        if kafka_jars is not None:
            yield _beside_kafka(disk, original, kafka_jars, settings, rounds, size_bytes)
    finally:
        disk.close()
        shutil.rmtree(directory)


def _beside_kafka(
    disk: LocalDisk, original: str, jars: Path, settings: str, rounds: int, size_bytes: int
) -> Row:
    measures: dict[str, Callable[[], float]] = {
        "kafka": partial(cleaner_beside.kafka_cleaning_s, jars, Path(original).parent, size_bytes),
        "rayka": partial(_clean_s, disk, original, time.perf_counter),
    }
    taken = in_turn(measures, rounds=rounds)
    ours_s, theirs_s = (statistics.median(taken[name]) for name in ("rayka", "kafka"))
    return Row(
        what="compaction, by the clock",
        settings=settings,
        unit="s",
        value=ours_s,
        peer=theirs_s,
        ratio_bar=PEER_BAR,
    )


def _write_log(disk: LocalDisk, directory: str, size_bytes: int) -> None:
    """Records with keys at random, of as many as a tenth of them."""
    random = np.random.default_rng(1)
    record_count = size_bytes // RECORD_BYTES
    value = random.bytes(RECORD_BYTES - KEY_BYTES)
    log = _opened(disk, directory)
    for _ in range(record_count // BATCH_RECORDS):
        numbers = random.integers(0, record_count // 10, BATCH_RECORDS, np.int64)
        keys = [each.tobytes() for each in numbers]
        log.append_as_leader(
            [RecordBatch(encode_batch([value] * BATCH_RECORDS, keys=keys, timestamps_ms=1))], 0, now_ms=0
        )
    log.roll(0)
    log.close()


def _opened(disk: LocalDisk, directory: str) -> Log:
    log = run_to_end(
        opening_log(disk, directory, CONFIG, ShutdownState(recovery_point=0), now_ms=0, new_files={})
    )
    plan = log.unsynced()
    asyncio.run(disk.sync(plan.files, plan.directories))
    log.on_synced(plan)
    return log


def _compaction(disk: LocalDisk, original: str) -> Compaction:
    """One of a copy of the log."""
    copy = f"{original[:-2]}-copy-0"
    shutil.rmtree(copy, ignore_errors=True)
    shutil.copytree(original, copy)
    log = _opened(disk, copy)
    settings = CleaningSettings(MAP_BYTES, 1, b"a secret of the benchmark")
    return Compaction(log, cleanable(log, log.log_end_offset, 1), settings, lambda: True)


def _clean_s(disk: LocalDisk, original: str, clock: Callable[[], float] = time.process_time) -> float:
    compaction = _compaction(disk, original)
    begin_s = clock()
    for step in _steps(compaction, disk):
        if isinstance(step, SyncNeeded):
            asyncio.run(disk.sync(step.files, step.directories))
    return clock() - begin_s


def _steps(compaction: Compaction, disk: LocalDisk) -> Iterator[Slice | SyncNeeded]:
    """The whole of it in this process."""
    job, answer = compaction.job.run(disk), None
    with suppress(StopIteration):
        while True:
            answer = yield from compaction.on_step(job.send(answer))
    compaction.finish()


def _copy_s(disk: LocalDisk, original: str) -> float:
    target = f"{original[:-2]}-target"
    begin_s = time.process_time()
    for name in disk.list(original):
        if name.endswith(".log"):
            _copy(disk, f"{original}/{name}", f"{target}-{name}")
    return time.process_time() - begin_s


def _copy(disk: LocalDisk, source: str, target: str) -> None:
    disk.append(target, ())
    for position in range(0, disk.size(source), 1 << 20):
        data = disk.read_at(source, position, 1 << 20)
        crc32c(data)
        disk.append(target, [data])
    disk.unlink(target)


def _largest_bytes(disk: LocalDisk, original: str) -> int:
    """How much memory the process of a cleaning has for itself at most, its interpreter and libraries included."""
    return asyncio.run(_run_elsewhere(disk, _compaction(disk, original)))


async def _run_elsewhere(disk: LocalDisk, compaction: Compaction) -> int:
    job, largest = disk.start(compaction.job), 0
    answer: SegmentGroup | None = None
    while (step := await job.next(answer)) is not None:
        largest = max(largest, _children_bytes())
        turns = compaction.on_step(step)
        while True:
            try:
                turn = next(turns)
            except StopIteration as end:
                answer = end.value
                break
            if isinstance(turn, SyncNeeded):
                await disk.sync(turn.files, turn.directories)
    await job.end()
    compaction.finish()
    return largest


def _children_bytes() -> int:
    """What the processes that this one started have, and share with no other."""
    children = [each.read_text().split() for each in Path("/proc/self/task").glob("*/children")]
    return sum(_private_bytes(pid) for each in children for pid in each)


def _private_bytes(pid: str) -> int:
    lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    return sum(int(line.split()[1]) << 10 for line in lines if line.startswith("Private_"))
