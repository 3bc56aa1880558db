"""How long one turn of a compaction holds the event loop up: the processor time of the longest one of a cleaning.

What the broker gives to another process is done in between and not counted; so are syncs. The first cleaning of the
process counts, too: what it imports, the broker would wait for.
"""

import asyncio
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np

from benchmarks.harness import Row
from rayka.cleaner.compaction import Compaction, SyncNeeded, cleanable
from rayka.cleaner.file_cleaning import CleaningSettings, SegmentGroup, Step, Steps
from rayka.config.topic_config import TopicConfig
from rayka.log.local_disk import LocalDisk
from rayka.log.log import Log
from rayka.log.log_files import run_to_end
from rayka.log.log_opening import ShutdownState, opening_log
from rayka.protocol.batch_encode import encode_batch
from rayka.protocol.batch_format import Codec, RecordBatch

ALLOWED_S = 0.020
LARGE = TopicConfig(segment_bytes=64 << 20, cleanup_policy="compact")
SMALL = TopicConfig(segment_bytes=2048, cleanup_policy="compact")
KEYS = 10_000
MAP_BYTES = 32 << 20


def rows(*, quick: bool = False) -> Iterator[Row]:
    """One for each kind of log."""
    batch_count, segment_count = (8, 30) if quick else (64, 300)
    packed_records = 60_000 if quick else 600_000
    yield _row(f"{batch_count} batches of 10,000 records of 100 B", LARGE, 10_000, batch_count)
    settings = f"4 batches of {packed_records:,} records of 100 B, zstd"
    yield _row(settings, LARGE, packed_records, 4, codec=Codec.ZSTD)
    yield _row(f"{segment_count} segments of 2 kB, to be joined", SMALL, 15, segment_count)


def _row(settings: str, config: TopicConfig, records: int, batches: int, *, codec: Codec = Codec.NONE) -> Row:
    disk = LocalDisk()
    try:
        with tempfile.TemporaryDirectory() as directory:
            log = _filled(disk, f"{directory}/turns-0", config, records, batches, codec=codec)
            longest_s = longest_turn_s(disk, log)
    finally:
        disk.close()
    return Row.allowed("longest turn of a compaction", longest_s, "s", ALLOWED_S, settings=settings)


def _filled(
    disk: LocalDisk, directory: str, config: TopicConfig, records: int, batches: int, *, codec: Codec
) -> Log:
    """A log of so many batches of so many records each, all sealed and durable."""
    log = run_to_end(
        opening_log(disk, directory, config, ShutdownState(recovery_point=0), now_ms=0, new_files={})
    )
    random, values = np.random.default_rng(1), [bytes(92)] * records
    for _ in range(batches):
        keys = [each.tobytes() for each in random.integers(0, KEYS, records, np.int64)]
        batch = RecordBatch(encode_batch(values, keys=keys, timestamps_ms=1, codec=codec))
        log.append_as_leader([batch], 0, now_ms=0)
    log.roll(0)
    plan = log.unsynced()
    asyncio.run(disk.sync(plan.files, plan.directories))
    log.on_synced(plan)
    log.config = LARGE
    return log


def longest_turn_s(disk: LocalDisk, log: Log) -> float:
    """The processor time of the longest turn of a cleaning of the log, the choice of what to clean being the first."""
    longest_s = 0.0

    @contextmanager
    def measured() -> Iterator[None]:
        nonlocal longest_s
        begin_s = time.thread_time()
        yield
        longest_s = max(longest_s, time.thread_time() - begin_s)

    with measured():
        settings = CleaningSettings(MAP_BYTES, 1, b"a secret of the benchmark")
        compaction = Compaction(log, cleanable(log, log.log_end_offset, 1), settings, lambda: True)
    steps, answer = compaction.job.run(disk), None
    while (step := _next_of(steps, answer)) is not None:
        turns = compaction.on_step(step)
        while True:
            try:
                with measured():
                    turn = next(turns)
            except StopIteration as end:
                answer = end.value
                break
            if isinstance(turn, SyncNeeded):
                asyncio.run(disk.sync(turn.files, turn.directories))
    with measured():
        compaction.finish()
    return longest_s


def _next_of(steps: Steps, answer: SegmentGroup | None) -> Step | None:
    try:
        return steps.send(answer)
    except StopIteration:
        return None
