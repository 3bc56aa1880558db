"""Retention of one log of many segments on a real disk: the longest turn of the event loop that it takes.

The wall clock, because a turn is what other requests wait for. Files are renamed in these turns, and removed off the
loop later, which is not measured.
"""

import asyncio
import shutil
import tempfile
import time

from benchmarks.harness import Row
from rayka.config.topic_config import TopicConfig
from rayka.log.local_disk import LocalDisk
from rayka.log.log import Log
from rayka.log.log_files import run_to_end
from rayka.log.log_opening import ShutdownState, opening_log
from rayka.log.retention import Clock, expire
from rayka.protocol.batch_encode import encode_batch
from rayka.protocol.batch_format import RecordBatch

CONFIG = TopicConfig(segment_bytes=1024, index_interval_bytes=0, retention_bytes=1)
TURN_MAX_S = 0.02
_VALUE = b"." * 700  # so large that the next one gets a segment of its own


def run(*, quick: bool = False) -> list[Row]:
    segment_count = 500 if quick else 10_000
    directory, disk = tempfile.mkdtemp(), LocalDisk()
    try:
        turns_s = sorted(_turns_s(_written(disk, f"{directory}/original-0", segment_count)))
    finally:
        disk.close()
        shutil.rmtree(directory)
    settings = f"{segment_count:,} segments expire, {len(turns_s)} turns"
    return [
        Row.allowed("longest turn of the event loop", turns_s[-1], "s", TURN_MAX_S, settings=settings),
        Row(
            what="median turn of the event loop",
            settings=settings,
            value=turns_s[len(turns_s) // 2],
            unit="s",
        ),
        Row(what="all of them together", settings=settings, value=sum(turns_s), unit="s"),
    ]


def _written(disk: LocalDisk, directory: str, segment_count: int) -> Log:
    log = run_to_end(
        opening_log(disk, directory, CONFIG, ShutdownState(recovery_point=0), now_ms=0, new_files={})
    )
    batch = RecordBatch(encode_batch([_VALUE], timestamps_ms=1))
    for _ in range(segment_count + 1):
        log.append_as_leader([batch], 0, now_ms=0)
    plan = log.unsynced()
    asyncio.run(disk.sync(plan.files, plan.directories))
    log.on_synced(plan)
    return log


def _turns_s(log: Log) -> list[float]:
    taken = []
    while True:
        begin_s = time.perf_counter()
        expired = expire(log, log.log_end_offset, Clock(timestamp_ms=2, now_ms=0))
        taken.append(time.perf_counter() - begin_s)
        log.retired.take()
        if expired is None:
            return taken
