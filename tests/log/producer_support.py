"""Builders for tests of idempotence in a log: batches of producers, and the answers of a log to them."""

from rayka.errors import ApiError, ErrorCode
from rayka.log.appending import AppendInfo
from rayka.log.log import Log
from rayka.log.producer_state import ProducerStates
from rayka.protocol.batch_encode import encode_batch
from rayka.protocol.batch_format import ProducerSequence, RecordBatch

PRODUCER = 4711
LAST = 2**31 - 1  # the highest sequence

Known = dict[int, tuple[int, list[tuple[int, int, int, int]]]]


def produced(
    base_sequence: int,
    count: int = 1,
    *,
    epoch: int = 0,
    producer_id: int = PRODUCER,
    timestamp_ms: int = 1000,
    size_bytes: int = 10,
) -> RecordBatch:
    """A batch as an idempotent producer sends it."""
    sequence = ProducerSequence(producer_id, epoch, base_sequence)
    values = [bytes(size_bytes)] * count
    return RecordBatch(encode_batch(values, timestamps_ms=timestamp_ms, sequence=sequence))


def append(log: Log, batch: RecordBatch, now_ms: int = 0) -> AppendInfo:
    return log.append_as_leader([batch], 0, now_ms=now_ms)


def answer(log: Log, batch: RecordBatch) -> tuple[int, int] | ErrorCode:
    """First and last offset, or the error; nothing is appended for an error."""
    before = log.log_end_offset
    try:
        info = append(log, batch)
    except ApiError as error:
        assert log.log_end_offset == before
        return error.code
    assert log.log_end_offset == (before if info.is_duplicate else info.last_offset + 1)
    return info.first_offset, info.last_offset


def known(states: ProducerStates) -> Known:
    """All that is known, comparable: epoch, and of each batch sequences and offsets, inclusive."""
    return {
        producer_id: (
            entry.producer_epoch,
            [
                (each.first_sequence, each.last_sequence, each.first_offset, each.last_offset)
                for each in entry.batches
            ],
        )
        for producer_id, entry in states.items()
    }
