"""Several requests appended together are one write, and each of them has its own outcome (B18, C3-C5)."""

from collections.abc import Sequence

import pytest

from rayka.errors import OutOfOrderSequence, RecordBatchTooLarge, StorageError
from rayka.log.appending import AppendInfo, AppendOutcome
from rayka.log.log import Log
from rayka.protocol.batch_format import RecordBatch
from rayka.testing.memory_disk import MemoryDisk
from tests.log.producer_support import produced
from tests.log.support import batch, new_log, read_batches, read_offsets


def append_all(log: Log, *requests: RecordBatch) -> list[AppendOutcome]:
    return log.append_all_as_leader([[each] for each in requests], 4, now_ms=0)


def offsets(outcomes: Sequence[AppendOutcome]) -> list[tuple[int, int] | type[Exception]]:
    """First and last offset of each, or what it failed with."""
    return [
        (each.first_offset, each.last_offset) if isinstance(each, AppendInfo) else type(each)
        for each in outcomes
    ]


def writes(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many buffers each write has from now on."""
    counts: list[int] = []
    append = MemoryDisk.append

    def counted(disk: MemoryDisk, path: str, buffers: Sequence[bytes]) -> int:
        counts.append(len(buffers))
        return append(disk, path, buffers)

    monkeypatch.setattr(MemoryDisk, "append", counted)
    return counts


def test_requests_are_appended_in_their_order_and_in_one_write(monkeypatch: pytest.MonkeyPatch) -> None:
    _, log = new_log()
    append_all(log, batch([b"first"]))
    counts = writes(monkeypatch)
    outcomes = append_all(log, batch([b"a", b"b"]), batch([b"c"]), produced(0), produced(0, producer_id=1))
    assert offsets(outcomes) == [(1, 2), (3, 3), (4, 4), (5, 5)]
    assert len(counts) == 1
    assert [(each.base_offset, each.leader_epoch) for each in read_batches(log)] == [
        (0, 4), (1, 4), (3, 4), (4, 4), (5, 4),
    ]  # fmt: skip


def test_what_is_wrong_with_one_request_is_its_own_outcome() -> None:
    _, log = new_log()
    outcomes = append_all(log, batch([b"a"]), batch([b"x" * 3000]), batch([b"b"]))
    assert offsets(outcomes) == [(0, 0), RecordBatchTooLarge, (1, 1)]
    assert read_offsets(log) == [0, 1]


def test_a_batch_is_checked_when_what_its_producer_sent_before_is_in_the_log() -> None:  # C3, C5
    _, log = new_log()
    outcomes = append_all(log, produced(0), batch(), produced(1), produced(3), produced(0), produced(2))
    assert offsets(outcomes) == [(0, 0), (1, 1), (2, 2), OutOfOrderSequence, (0, 0), (3, 3)]
    assert read_offsets(log) == [0, 1, 2, 3]


def test_of_a_write_that_fails_no_request_is_appended_and_a_repeated_batch_keeps_its_offsets() -> None:  # C3
    disk, log = new_log()
    append_all(log, produced(0))
    disk.fail("write")
    outcomes = append_all(log, batch(), produced(0), batch(), produced(1))
    assert offsets(outcomes) == [StorageError, (0, 0), StorageError, StorageError]
    assert log.failure is not None
    assert read_offsets(log) == [0]


def test_without_requests_nothing_is_written(monkeypatch: pytest.MonkeyPatch) -> None:
    _, log = new_log()
    counts = writes(monkeypatch)
    assert append_all(log) == []
    assert counts == []
