"""Retention of snapshots (A51)."""

import asyncio

import pytest

from rayka.ids import NO_TIMESTAMP, OffsetAndEpoch
from rayka.protocol.batch_encode import encode_batch
from rayka.raft.snapshot import SnapshotStore, earliest_to_keep, encode_snapshot
from rayka.testing.memory_disk import MemoryDisk

IDS = [OffsetAndEpoch(10 * each, 1) for each in (1, 2, 3)]


def _store(*newest_ms: int) -> SnapshotStore:
    """Snapshots whose newest records have these timestamps."""
    store = SnapshotStore(MemoryDisk(), "/data")
    for snapshot_id, timestamp_ms in zip(IDS, newest_ms, strict=False):
        data = [encode_batch([b"x" * 1000], timestamps_ms=1)]
        parts = encode_snapshot(
            snapshot_id, None, data, timestamp_ms=1, last_contained_log_timestamp_ms=timestamp_ms
        )
        asyncio.run(store.write(snapshot_id, parts))
    return store


def _keep(store: SnapshotStore, *, log_bytes: int = 0, bytes_max: int = -1, ms: int = -1) -> object:
    return earliest_to_keep(
        store, log_bytes=log_bytes, retention_bytes=bytes_max, retention_ms=ms, timestamp_ms=1000
    )


@pytest.mark.parametrize(("excess", "kept"), [(0, None), (1, 1), (2, 2), (3, 2), (9, 2)])
def test_the_oldest_go_while_there_is_too_much_but_never_the_newest(excess: int, kept: int | None) -> None:
    store = _store(1, 2, 3)
    size = store.size(IDS[0])
    log_bytes = 500
    bytes_max = log_bytes + 3 * size - excess * size + (size // 2 if excess else 0)
    assert _keep(store, log_bytes=log_bytes, bytes_max=bytes_max) == (None if kept is None else IDS[kept])


@pytest.mark.parametrize(("ms", "kept"), [(900, None), (899, 1), (700, 1), (699, 2), (0, 2), (-1, None)])
def test_those_go_whose_newest_record_is_too_old_but_never_the_newest(ms: int, kept: int | None) -> None:
    assert _keep(_store(100, 300, 500), ms=ms) == (None if kept is None else IDS[kept])


def test_one_that_stands_for_no_record_has_no_age() -> None:
    assert _keep(_store(NO_TIMESTAMP, 300, 500), ms=1) is None


@pytest.mark.parametrize("count", [0, 1])
def test_the_last_one_stays(count: int) -> None:
    store = _store(*range(count))
    assert _keep(store, log_bytes=1 << 40, bytes_max=0, ms=0) is None
