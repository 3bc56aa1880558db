"""Recovery of an unclean log against a CRC-32C pass over the same bytes: both read one mapped file once.

`python -m benchmarks.recovery [size in MB]`
"""

import shutil
import sys
import tempfile
import time
from collections.abc import Callable
from typing import Any

import numpy as np
from crc32c import crc32c

from rayka.config import TopicConfig
from rayka.log.disk import LocalDisk
from rayka.log.log import Log
from rayka.protocol.batch_encode import encode_batch
from rayka.protocol.batch_header import RecordBatch

BAR = 3.0  # at most so many times the limit's time
CONFIG = TopicConfig(segment_bytes=(1 << 30) + (64 << 20))


def run(size_bytes: int = 1 << 30, batch_bytes: int = 1 << 20, rounds: int = 5) -> list[dict[str, Any]]:
    """Writes a log of this size without syncing or closing it, then recovers it; the median of some rounds."""
    directory, disk = tempfile.mkdtemp(), LocalDisk()
    try:
        path = _write_log(disk, f"{directory}/recovery-0", size_bytes, batch_bytes)
        limits, values = [], []
        for _ in range(rounds):
            limits.append(_seconds(lambda: crc32c(disk.map(path))))
            values.append(_seconds(lambda: _recover(disk, f"{directory}/recovery-0", size_bytes)))
    finally:
        disk.close()
        shutil.rmtree(directory)
    value, limit = float(np.median(values)), float(np.median(limits))
    return [
        {
            "what": f"recover {size_bytes >> 20} MiB of unclean log, {batch_bytes >> 10} KiB batches",
            "value": value,
            "unit": "s",
            "limit": limit,
            "share": value / limit,
            "bar": BAR,
        }
    ]


def _write_log(disk: LocalDisk, directory: str, size_bytes: int, batch_bytes: int) -> str:
    """Full batches of 1 KB records, in one segment; returns its path."""
    record_count = batch_bytes // 1028
    blob = np.random.default_rng(1).bytes(1024)
    batch = RecordBatch(encode_batch([blob] * record_count, timestamps_ms=1))
    log = Log.open(disk, directory, CONFIG, recovery_point=0, is_clean=False, now_ms=0)
    while log.size_bytes < size_bytes:
        log.append_as_leader([batch], 0, now_ms=0)
    assert log.segment_count == 1
    return log.file_ranges(0, max_bytes=1, end_offset=log.log_end_offset).ranges[0].path


def _recover(disk: LocalDisk, directory: str, size_bytes: int) -> None:
    log = Log.open(disk, directory, CONFIG, recovery_point=0, is_clean=False, now_ms=0)
    assert log.recovery.cut is None
    assert log.recovery.scanned_bytes >= size_bytes


def _seconds(call: Callable[[], object]) -> float:
    begin = time.perf_counter()
    call()
    return time.perf_counter() - begin


if __name__ == "__main__":
    for row in run(int(sys.argv[1]) << 20 if len(sys.argv) > 1 else 1 << 30):
        print(row)
