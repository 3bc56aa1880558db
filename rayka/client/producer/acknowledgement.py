"""Results of records: positions in the log, failed rows, and the results of the parts of a batch."""

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

import msgspec
import numpy as np

from rayka.ids import NO_OFFSET, NO_TIMESTAMP


class RecordMetadata(msgspec.Struct, frozen=True):
    """The position of an acknowledged record in the log. Kafka: RecordMetadata."""

    topic: str
    partition: int
    # -1 with acks=0.
    offset: int
    # The record's timestamp in the log.
    timestamp_ms: int


class BatchMetadata(msgspec.Struct, frozen=True):
    """The position of a run of records of one `send_batch`: offsets [base_offset, base_offset + record_count)."""

    topic: str
    partition: int
    # -1 with acks=0.
    base_offset: int
    record_count: int


class BatchFailure(msgspec.Struct, frozen=True):
    """Rows of one `send_batch` that failed with the same error."""

    error: Exception
    # Row numbers in the data given to `send_batch`, from 0, ascending.
    rows: Sequence[int]


def offset_after(base_offset: int, index: int) -> int:
    """The offset of the record at an index; NO_OFFSET (-1) if the base offset is unknown."""
    return NO_OFFSET if base_offset == NO_OFFSET else base_offset + index


class PartEnd(NamedTuple):
    """The result of a part: its position in the log, or its error."""

    partition: int
    base_offset: int = NO_OFFSET
    log_append_time_ms: int = NO_TIMESTAMP
    error: Exception | None = None


class PartEnds:
    """The results of a batch whose records do not all have the same result.

    Such a batch was sent in parts, lost refused records, or was divided among other batches after its partition was
    deleted. A record's future finds the record by its index. Invariants: each record is refused, in an ended part, or
    remaining; the records of a part lie next to each other in the log, in the order of their indexes. A batch of Kafka
    always has one result.
    """

    __slots__ = ("_ended", "_left", "_refusals", "last")

    def __init__(self, record_count: int) -> None:
        # Indexes of the remaining records, ascending.
        self._left = np.arange(record_count)
        # By index: the error of each refused record.
        self._refusals: dict[int, Exception] = {}
        # Indexes, ascending, and result of each ended part.
        self._ended: list[tuple[np.ndarray, PartEnd]] = []
        # Result of the remaining records; None until the batch is done.
        self.last: PartEnd | None = None

    @property
    def left_count(self) -> int:
        """Number of records that are neither refused nor in an ended part."""
        return len(self._left)

    def end_part(self, record_count: int, end: PartEnd) -> None:
        """Records the result of the next part, the first `record_count` of the remaining records."""
        self._ended.append((self._left[:record_count], end))
        self._left = self._left[record_count:]

    def refuse(self, errors: Mapping[int, Exception]) -> None:
        """Fails records by their numbers, counted from the first remaining record."""
        numbers = np.fromiter(errors, np.int64)
        self._refusals.update(zip(self._left[numbers].tolist(), errors.values(), strict=True))
        self._left = np.delete(self._left, numbers)

    def take_left(self) -> np.ndarray:
        """Gives the remaining records to other batches; returns their indexes. `add` takes their results back."""
        left, self._left = self._left, self._left[:0]
        return left

    def add(self, indexes: np.ndarray, ends: "PartEnds") -> None:
        """Adds the results of another batch, whose records have the given indexes in this batch."""
        for number, error in ends._refusals.items():
            self._refusals[int(indexes[number])] = error
        self._ended += [(indexes[numbers], end) for numbers, end in ends._all_ended()]

    # ---- Results of a finished batch ----

    def failures(self, index: int, count: int) -> Iterator[tuple[np.ndarray, Exception]]:
        """Yields the indexes of failed records in [index, index + count), by error."""
        for each in sorted(self._refusals.keys() & range(index, index + count)):
            yield np.array([each]), self._refusals[each]
        for indexes, begin, end, part in self._parts(index, count):
            if part.error is not None:
                yield indexes[begin:end], part.error

    def runs(self, index: int, count: int) -> list[tuple[int, int, int]]:
        """Partition, base offset and length of each run in the log of the acknowledged [index, index + count)."""
        return [
            (part.partition, offset_after(part.base_offset, begin), end - begin)
            for _, begin, end, part in self._parts(index, count)
        ]

    def end_of(self, index: int) -> tuple[int, PartEnd]:
        """The number of records before an acknowledged record in its part, and the part's result."""
        ((_, begin, _, part),) = self._parts(index, 1)
        return begin, part

    def _all_ended(self) -> Iterator[tuple[np.ndarray, PartEnd]]:
        yield from self._ended
        if self.last is not None:
            yield self._left, self.last

    def _parts(self, index: int, count: int) -> Iterator[tuple[np.ndarray, int, int, PartEnd]]:
        """Yields each part that overlaps [index, index + count): its indexes, the overlap as places [begin, end) among
        the indexes, and its result.
        """
        for indexes, part in self._all_ended():
            begin, end = np.searchsorted(indexes, (index, index + count)).tolist()
            if begin < end:
                yield indexes, begin, end, part
