"""Recovery of an unclean log, beside a CRC-32C pass over the same mapped file: both read every byte once."""

import shutil
import tempfile
from functools import partial

import numpy as np
from crc32c import crc32c

from benchmarks.harness import Bar, Row, compare
from benchmarks.limits import seconds
from rayka.config.topic_config import TopicConfig
from rayka.log.local_disk import LocalDisk
from rayka.log.log_files import run_to_end
from rayka.log.log_opening import ShutdownState, opening_log
from rayka.protocol.batch_encode import encode_batch
from rayka.protocol.batch_format import RecordBatch

BAR = Bar(3.0, at_most=True)
CONFIG = TopicConfig(segment_bytes=(1 << 30) + (64 << 20))
RECORD_BYTES = 1024


def run(*, quick: bool = False) -> list[Row]:
    size_bytes, rounds = (128 << 20, 2) if quick else (1 << 30, 7)
    return [
        _recovery(size_bytes, 1 << 20, rounds, BAR),
        _recovery(size_bytes // 4, 16 << 10, rounds, None),
    ]


def _recovery(size_bytes: int, batch_bytes: int, rounds: int, bar: Bar | None) -> Row:
    directory, disk = tempfile.mkdtemp(), LocalDisk()
    try:
        path = _write_log(disk, f"{directory}/recovery-0", size_bytes, batch_bytes)
        measured = compare(
            partial(seconds, partial(_recover, disk, f"{directory}/recovery-0", size_bytes)),
            partial(seconds, lambda: crc32c(disk.map(path))),
            rounds=rounds,
        )
    finally:
        disk.close()
        shutil.rmtree(directory)
    settings = f"{size_bytes >> 20} MiB in batches of {batch_bytes >> 10} KiB"
    return measured.row("recovery of an unclean log", settings, "s", "a CRC-32C pass over the file", bar=bar)


def _write_log(disk: LocalDisk, directory: str, size_bytes: int, batch_bytes: int) -> str:
    """One segment of equal batches, neither synced nor closed; returns its path."""
    value = np.random.default_rng(1).bytes(RECORD_BYTES)
    record_count = batch_bytes // (RECORD_BYTES + 4)
    batch = RecordBatch(encode_batch([value] * record_count, timestamps_ms=1))
    log = run_to_end(
        opening_log(disk, directory, CONFIG, ShutdownState(recovery_point=0), now_ms=0, new_files={})
    )
    while log.segments.size_bytes < size_bytes:
        log.append_as_leader([batch], 0, now_ms=0)
    assert len(log.segments) == 1
    return log.segments.first.path


def _recover(disk: LocalDisk, directory: str, size_bytes: int) -> None:
    log = run_to_end(
        opening_log(disk, directory, CONFIG, ShutdownState(recovery_point=0), now_ms=0, new_files={})
    )
    assert log.recovery.cut is None
    assert log.recovery.scanned_bytes >= size_bytes
