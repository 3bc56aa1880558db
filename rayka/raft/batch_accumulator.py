"""Records on their way into the log: what arrives while the leader flushes becomes its next batches (A25).

An append gets its offsets at once. Appends share a batch as long as it stays below `BATCH_BYTES_MAX`; one append is
never divided, so it is replayed whole or not at all. Control records have a batch of their own. It dies with its
leader: what was not drained by then was never in a log. Kafka: `BatchAccumulator`, without its linger: a flush is
linger enough.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from rayka.errors import InvariantBroken, RecordBatchTooLarge, TooManyRequests
from rayka.protocol.batch_encode import encode_batch
from rayka.protocol.batch_format import RecordBatch
from rayka.raft.control_records import ControlRecord, encode_control_batch

BATCH_BYTES_MAX = 8 << 20
ACCUMULATED_BYTES_MAX = 8 * BATCH_BYTES_MAX


@dataclass(slots=True, eq=False)
class _Records:
    """A batch that grows. `keys` is None as long as no record has one."""

    values: list[bytes | None] = field(default_factory=list)
    keys: list[bytes | None] | None = None

    def extend(self, values: Sequence[bytes | None], keys: Sequence[bytes | None] | None) -> None:
        if keys is not None and self.keys is None:
            self.keys = [None] * len(self.values)
        if self.keys is not None:
            self.keys.extend([None] * len(values) if keys is None else keys)
        self.values.extend(values)


class BatchAccumulator:
    """Collects the appends of one leader epoch, whose first batch is the leader's own control batch (A24)."""

    def __init__(self, first_offset: int, control_records: Sequence[ControlRecord]) -> None:
        self._batches: list[_Records | tuple[ControlRecord, ...]] = []
        self._last_batch_bytes = 0
        self._size_bytes = 0
        self.next_offset = first_offset
        if control_records:
            self.append_control(control_records)

    def __repr__(self) -> str:
        return f"<BatchAccumulator next_offset={self.next_offset} batches={len(self._batches)}>"

    @property
    def is_empty(self) -> bool:
        return not self._batches

    def append(self, values: Sequence[bytes | None], keys: Sequence[bytes | None] | None = None) -> int:
        """Takes the records in as one; the offset of the first. Without `keys` none has one.

        Raises RecordBatchTooLarge when they do not fit a batch, TooManyRequests when too much waits already.
        """
        if not values:
            raise InvariantBroken("an append holds at least one record")
        size_bytes = sum(len(each) for each in (*values, *(keys or ())) if each is not None)
        self._check_size(size_bytes)
        if not self._fits_last_batch(size_bytes):
            self._batches.append(_Records())
            self._last_batch_bytes = 0
        last = self._batches[-1]
        if not isinstance(last, _Records):
            raise InvariantBroken(f"{self!r}: an append goes to the end of {last!r}")
        last.extend(values, keys)
        self._last_batch_bytes += size_bytes
        self._size_bytes += size_bytes
        return self._take_offsets(len(values))

    def append_control(self, records: Sequence[ControlRecord]) -> int:
        """Takes in records of the quorum itself, as a batch of their own; the offset of the first."""
        self._batches.append(tuple(records))
        return self._take_offsets(len(records))

    def drain(self, *, timestamp_ms: int) -> list[RecordBatch]:
        """Everything taken in since the last time, encoded; the accumulator is empty then."""
        batches, self._batches, self._size_bytes = self._batches, [], 0
        return [RecordBatch(_encode(batch, timestamp_ms)) for batch in batches]

    def _check_size(self, size_bytes: int) -> None:
        if size_bytes > BATCH_BYTES_MAX:
            raise RecordBatchTooLarge(
                f"records of one append are {size_bytes} bytes, more than the {BATCH_BYTES_MAX} of a batch"
            )
        if self._size_bytes + size_bytes > ACCUMULATED_BYTES_MAX:
            raise TooManyRequests(f"{self._size_bytes} bytes wait for the disk; try again later")

    def _fits_last_batch(self, size_bytes: int) -> bool:
        is_open = bool(self._batches) and isinstance(self._batches[-1], _Records)
        return is_open and self._last_batch_bytes + size_bytes <= BATCH_BYTES_MAX

    def _take_offsets(self, count: int) -> int:
        first_offset = self.next_offset
        self.next_offset += count
        return first_offset


def _encode(batch: _Records | tuple[ControlRecord, ...], timestamp_ms: int) -> np.ndarray:
    if isinstance(batch, tuple):
        return encode_control_batch(batch, timestamp_ms=timestamp_ms)
    return encode_batch(batch.values, keys=batch.keys, timestamps_ms=timestamp_ms)
