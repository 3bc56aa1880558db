"""Records on their way into the log: what arrives while the leader flushes becomes its next batches (A25).

An append gets its offsets at once. Appends share a batch as long as it stays below `BATCH_BYTES_MAX`; one
append is never divided, so it is replayed whole or not at all. Kafka: `BatchAccumulator`, without its linger:
a flush is linger enough.
"""

from collections.abc import Sequence

import numpy as np
import pyarrow as pa

from rayka.protocol.batch_encode import encode_batch
from rayka.protocol.batch_header import RecordBatch
from rayka.raft.control_records import ControlRecord, encode_control_batch

BATCH_BYTES_MAX = 8 << 20


class BatchAccumulator:
    """Collects the appends of one leader epoch, whose first batch is the leader's own control batch (A24)."""

    def __init__(self, first_offset: int, control_records: Sequence[ControlRecord]) -> None:
        self._control_records = control_records
        self._batches: list[list[bytes]] = []
        self._last_batch_bytes = 0
        self.next_offset = first_offset + len(control_records)

    def __repr__(self) -> str:
        return f"<BatchAccumulator next_offset={self.next_offset} batches={len(self._batches)}>"

    def append(self, values: Sequence[bytes]) -> int:
        """Takes the values in as one; the offset of the first."""
        assert values, "an append holds at least one record"
        size_bytes = sum(map(len, values))
        if not self._batches or self._last_batch_bytes + size_bytes > BATCH_BYTES_MAX:
            self._batches.append([])
            self._last_batch_bytes = 0
        self._batches[-1].extend(values)
        self._last_batch_bytes += size_bytes
        first_offset = self.next_offset
        self.next_offset += len(values)
        return first_offset

    def drain(self, *, timestamp_ms: int) -> list[RecordBatch]:
        """Everything taken in since the last time, encoded; the accumulator is empty then."""
        encoded = [
            encode_batch(_binary_array(values), timestamps_ms=timestamp_ms) for values in self._batches
        ]
        if self._control_records:
            encoded.insert(0, encode_control_batch(self._control_records, timestamp_ms=timestamp_ms))
        self._control_records, self._batches = (), []
        return [RecordBatch(batch) for batch in encoded]


def _binary_array(values: Sequence[bytes]) -> pa.BinaryArray:
    """The values as Arrow, made by hand: `pa.array` imports pandas where it is installed, 0.9 s in which nobody is
    served.
    """
    offsets = np.zeros(len(values) + 1, np.int32)
    np.cumsum([len(value) for value in values], out=offsets[1:])
    data = b"".join(values)
    return pa.Array.from_buffers(pa.binary(), len(values), [None, pa.py_buffer(offsets), pa.py_buffer(data)])
