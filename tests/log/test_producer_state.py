"""Duplicates, gaps and epochs of idempotent producers; the cases of Kafka's ProducerStateManagerTest that apply."""

import logging

import pytest

from rayka.errors import ApiError, ErrorCode, StorageError
from rayka.log.log import Log
from tests.log.producer_support import LAST, PRODUCER, answer, append, known, produced
from tests.log.support import DIRECTORY, SMALL, batch, new_log, opened_log, read_offsets, sync

OUT_OF_ORDER = ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
FENCED = ErrorCode.INVALID_PRODUCER_EPOCH


@pytest.fixture
def log() -> Log:
    return new_log()[1]


def test_batches_in_sequence_are_appended(log: Log) -> None:  # C5
    assert [answer(log, produced(sequence, 3)) for sequence in (0, 3, 6)] == [(0, 2), (3, 5), (6, 8)]
    assert known(log.producers) == {PRODUCER: (0, [(0, 2, 0, 2), (3, 5, 3, 5), (6, 8, 6, 8)])}


@pytest.mark.parametrize("sequence", [4, 6, 0, 1, 100])
def test_a_gap_or_a_step_back_is_out_of_order(log: Log, sequence: int) -> None:  # C5
    append(log, produced(0, 2))
    append(log, produced(2, 3))
    assert answer(log, produced(sequence)) is OUT_OF_ORDER


def test_a_batch_sent_again_has_its_old_offsets_and_time_and_is_not_appended(log: Log) -> None:  # C3
    first = append(log, produced(0, 3, timestamp_ms=77))
    append(log, produced(3))
    again = append(log, produced(0, 3, timestamp_ms=77))
    assert again == first._replace(is_duplicate=True)
    assert (again.first_offset, again.last_offset, again.max_timestamp_ms) == (0, 2, 77)
    assert log.log_end_offset == 4


@pytest.mark.parametrize(("sequence", "count"), [(0, 2), (0, 4), (1, 2), (1, 3)])
def test_only_the_very_same_sequences_are_a_duplicate(log: Log, sequence: int, count: int) -> None:  # C3
    append(log, produced(0, 3))
    append(log, produced(3))
    assert answer(log, produced(sequence, count)) is OUT_OF_ORDER


def test_the_last_five_batches_are_recognised_and_an_older_one_is_out_of_order(log: Log) -> None:  # C2, C7
    for sequence in range(6):
        append(log, produced(sequence))
    assert [answer(log, produced(sequence)) for sequence in range(1, 6)] == [(n, n) for n in range(1, 6)]
    assert answer(log, produced(0)) is OUT_OF_ORDER


def test_an_unknown_producer_may_begin_with_any_sequence(log: Log) -> None:  # C5
    assert answer(log, produced(15, 2)) == (0, 1)
    assert answer(log, produced(17)) == (2, 2)


def test_sequences_wrap_to_zero(log: Log) -> None:  # C1, C5
    append(log, produced(LAST - 3, 3))
    assert answer(log, produced(LAST, 2)) == (3, 4)  # the sequences LAST and 0
    assert answer(log, produced(1)) == (5, 5)
    assert answer(log, produced(LAST, 2)) == (3, 4)


def test_zero_follows_the_highest_sequence_and_nothing_else_does(log: Log) -> None:  # C5
    append(log, produced(LAST))
    assert answer(log, produced(1)) is OUT_OF_ORDER
    assert answer(log, produced(0)) == (1, 1)


# ---- Epochs ----


def test_an_epoch_that_is_over_is_refused(log: Log) -> None:  # C4
    append(log, produced(0, epoch=3))
    assert answer(log, produced(1, epoch=2)) is FENCED
    assert answer(log, produced(0, epoch=2)) is FENCED
    expected = "orders-0: producer 4711 sends in epoch 2, which ended: its epoch is 3"
    with pytest.raises(ApiError, match=expected):
        append(log, produced(0, epoch=2))


def test_a_new_epoch_begins_with_sequence_zero(log: Log) -> None:  # C4
    append(log, produced(0, 5, epoch=3))
    assert answer(log, produced(5, epoch=4)) is OUT_OF_ORDER
    with pytest.raises(ApiError, match="orders-0: producer 4711 begins epoch 4 with sequence 5; expected 0"):
        append(log, produced(5, epoch=4))
    assert answer(log, produced(0, 2, epoch=4)) == (5, 6)
    assert known(log.producers) == {PRODUCER: (4, [(0, 1, 5, 6)])}


def test_a_batch_of_another_epoch_is_no_duplicate(log: Log) -> None:  # C3
    append(log, produced(0, epoch=3))
    assert answer(log, produced(0, epoch=4)) == (1, 1)
    assert answer(log, produced(0, epoch=3)) is FENCED


def test_producers_know_nothing_of_one_another(log: Log) -> None:  # C2
    append(log, produced(0, 2))
    assert answer(log, produced(0, 2, producer_id=9)) == (2, 3)
    assert answer(log, produced(2, producer_id=9)) == (4, 4)
    assert answer(log, produced(2)) == (5, 5)


def test_producers_that_are_not_idempotent_are_not_remembered(log: Log) -> None:  # C1
    for _ in range(3):
        log.append_as_leader([batch()], 0, now_ms=0)
    assert (len(log.producers), log.log_end_offset) == (0, 3)


# ---- Replication ----


def copied(log: Log, base_offset: int, sequence: int, epoch: int = 0) -> None:
    given = produced(sequence, epoch=epoch)
    data = b"".join(map(bytes, given.stamped(base_offset=base_offset, leader_epoch=0)))
    log.append_as_follower([type(given)(data)], now_ms=0)


def test_a_follower_checks_no_sequence_and_learns_every_one(log: Log) -> None:  # C2, C6
    for offset, sequence in enumerate((5, 9, 9)):
        copied(log, offset, sequence)
    assert known(log.producers) == {PRODUCER: (0, [(5, 5, 0, 0), (9, 9, 1, 1), (9, 9, 2, 2)])}
    assert answer(log, produced(10)) == (3, 3)


def test_a_follower_takes_an_older_epoch_with_a_warning(
    log: Log, caplog: pytest.LogCaptureFixture
) -> None:  # C4
    copied(log, 0, 0, epoch=3)
    with caplog.at_level(logging.WARNING):
        copied(log, 1, 7, epoch=2)
    assert "of producer 4711 in epoch 2, after one in epoch 3" in caplog.text
    assert known(log.producers) == {PRODUCER: (2, [(7, 7, 1, 1)])}


# ---- Forgetting ----


def test_a_producer_that_is_silent_for_long_is_forgotten(log: Log) -> None:  # C8
    append(log, produced(0), now_ms=1_000)
    append(log, produced(0, producer_id=9), now_ms=1_500)
    log.producers.expire(10_999, 10_000)
    assert list(known(log.producers)) == [PRODUCER, 9]
    log.producers.expire(11_000, 10_000)
    assert list(known(log.producers)) == [9]
    assert answer(log, produced(7)) == (2, 2)  # C5


def test_the_silence_of_a_producer_found_at_a_start_counts_from_the_start() -> None:  # C8
    disk, log = new_log()
    append(log, produced(0))
    again = opened_log(disk, DIRECTORY, SMALL, now_ms=5_000)
    again.producers.expire(5_999, 1_000)
    assert list(known(again.producers)) == [PRODUCER]
    again.producers.expire(6_000, 1_000)
    assert list(known(again.producers)) == []


def test_an_old_timestamp_is_no_silence(log: Log) -> None:  # C8
    append(log, produced(0, timestamp_ms=1), now_ms=5_000)
    log.producers.expire(5_001, 1_000)
    assert answer(log, produced(0)) == (0, 0)


def test_a_producer_outlives_its_records(log: Log) -> None:  # C8
    for sequence in range(60):
        append(log, produced(sequence, size_bytes=100))
    log.increment_log_start_offset(60)
    assert (log.log_start_offset, read_offsets(log)) == (60, [])
    assert answer(log, produced(59)) == (59, 59)
    assert answer(log, produced(70)) is OUT_OF_ORDER


def test_what_a_failed_write_did_not_append_is_not_remembered() -> None:  # C3
    disk, log = new_log()
    append(log, produced(0))
    disk.fill_up(after_bytes=20)
    with pytest.raises(StorageError):
        append(log, produced(1))
    assert known(log.producers) == {PRODUCER: (0, [(0, 0, 0, 0)])}
    sync(disk, log)
