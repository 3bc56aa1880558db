"""Retention on a real disk: what is written passes through, and the partition stays as small as it has to be."""

from collections.abc import Callable
from pathlib import Path

import pytest

import rayka
from rayka.cluster import Cluster
from tests.ray import small_directory
from tests.ray.support import wait_until

pytestmark = pytest.mark.ray
SEGMENT_BYTES, KEPT_BYTES = 20_000, 60_000
CONFIGS = {
    "segment.bytes": str(SEGMENT_BYTES),
    "retention.bytes": str(KEPT_BYTES),
    "file.delete.delay.ms": "0",
}
ROUNDS = 30
VALUE = b"." * 1000


def test_a_partition_never_outgrows_its_bytes_by_more_than_its_active_segment(
    start: Callable[..., Cluster], tmp_path: Path
) -> None:  # F11
    """The oldest segment goes once the others have the bytes that are kept, so one more is there at the most."""
    cluster = start(data_dir=str(tmp_path), config={"log.retention.check.interval.ms": 100})
    with rayka.Admin(cluster=cluster) as admin:
        admin.create_topic("orders", partitions=1, configs=CONFIGS)
    with rayka.Producer(cluster=cluster, batch_size=5_000) as producer:
        for _ in range(ROUNDS):  # a segment each, ten times what is kept
            for future in [producer.send("orders", VALUE) for _ in range(SEGMENT_BYTES // len(VALUE))]:
                future.result()
            wait_until(lambda: _bytes_in(tmp_path) <= KEPT_BYTES + 2 * SEGMENT_BYTES)
    partition = rayka.TopicPartition("orders", 0)
    with rayka.Consumer(cluster=cluster) as consumer:
        begin, end = (
            consumer.beginning_offsets([partition])[partition],
            consumer.end_offsets([partition])[partition],
        )
    assert end == ROUNDS * (SEGMENT_BYTES // len(VALUE))
    assert (end - begin) * len(VALUE) >= KEPT_BYTES - SEGMENT_BYTES
    assert begin > 0


def test_what_passes_through_a_small_directory_never_fills_it(
    start: Callable[..., Cluster], tmp_path: Path
) -> None:  # F11, F28
    """Three times its size, in topics that expire by time, by bytes, and compacted. `python -m
    tests.ray.small_directory` does so for an hour.
    """
    limit_bytes = 8 << 20
    cluster = start(data_dir=str(tmp_path), config=small_directory.CONFIG)
    passed = small_directory.write_while(
        lambda passed: passed.written_bytes < 3 * limit_bytes, cluster, tmp_path, limit_bytes
    )
    assert passed.largest_bytes <= limit_bytes
    small_directory.check_kept(cluster, limit_bytes)


def _bytes_in(directory: Path) -> int:
    """Of the topic's log files, those that are about to be removed too; one may go while this looks."""
    return sum(_size(each) for each in directory.rglob("orders-0/*.log*"))


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return 0
