"""What a producer learns of records that the cluster took."""

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

import msgspec
import numpy as np

from rayka.ids import NO_OFFSET, NO_TIMESTAMP


class RecordMetadata(msgspec.Struct, frozen=True):
    """Where a record is in the log. `offset` is -1 with acks=0; `timestamp_ms` is the one that the log holds.

    Kafka: RecordMetadata.
    """

    topic: str
    partition: int
    offset: int
    timestamp_ms: int


class BatchMetadata(msgspec.Struct, frozen=True):
    """Where a run of records of one `send_batch` is: offsets [base_offset, base_offset + record_count) of a partition.

    `base_offset` is -1 with acks=0.
    """

    topic: str
    partition: int
    base_offset: int
    record_count: int


class BatchFailure(msgspec.Struct, frozen=True):
    """Rows of one `send_batch` that were not acknowledged, and why. They are numbered from 0 in the data as it was
    given, and ascend.
    """

    error: Exception
    rows: Sequence[int]


def offset_after(base_offset: int, index: int) -> int:
    """The offset of the record at an index, which stays unknown (-1) where the base is."""
    return NO_OFFSET if base_offset == NO_OFFSET else base_offset + index


# The outcome of each record of a batch that did not end as one.
#
# Such a batch went in parts, records of it were refused, or its records were divided among other batches because its
# partition is gone. A record has an index, by which its future knows it. Invariants: each record is either refused, or
# in a part that is over, or left; the records of a part lie in the log one behind the other, in the order of their
# indexes. In Kafka a batch ends as one.


class PartEnd(NamedTuple):
    """Where a part is in the log, or why it is not there."""

    partition: int
    base_offset: int = NO_OFFSET
    log_append_time_ms: int = NO_TIMESTAMP
    error: Exception | None = None


class PartEnds:
    """The parts that are over, and the refused records. `last`: the end of the records that are left, once known."""

    __slots__ = ("_ended", "_left", "_refusals", "last")

    def __init__(self, record_count: int) -> None:
        # The indexes of the records that are neither refused nor in a part that is over, ascending.
        self._left = np.arange(record_count)
        # By index: the error of each refused record.
        self._refusals: dict[int, Exception] = {}
        # Of each part that is over: the indexes of its records, ascending, and its end.
        self._ended: list[tuple[np.ndarray, PartEnd]] = []
        self.last: PartEnd | None = None

    @property
    def left_count(self) -> int:
        """Records that are neither refused nor in a part that is over."""
        return len(self._left)

    def end_part(self, record_count: int, end: PartEnd) -> None:
        """Ends the part that was next: the first of the records that are left."""
        self._ended.append((self._left[:record_count], end))
        self._left = self._left[record_count:]

    def refuse(self, errors: Mapping[int, Exception]) -> None:
        """Ends these records with an error each. Their numbers count from the first record that is left."""
        numbers = np.fromiter(errors, np.int64)
        self._refusals.update(zip(self._left[numbers].tolist(), errors.values(), strict=True))
        self._left = np.delete(self._left, numbers)

    def take_left(self) -> np.ndarray:
        """Gives the records that are left to other batches; returns their indexes. `add` brings their ends back."""
        left, self._left = self._left, self._left[:0]
        return left

    def add(self, indexes: np.ndarray, ends: "PartEnds") -> None:
        """Adds the ends of another batch, whose records have these indexes here."""
        for number, error in ends._refusals.items():
            self._refusals[int(indexes[number])] = error
        self._ended += [(indexes[numbers], end) for numbers, end in ends._all_ended()]

    # ---- Outcomes, once the batch is done ----

    def failures(self, index: int, count: int) -> Iterator[tuple[np.ndarray, Exception]]:
        """By error, the indexes of records in [index, index + count) that are not in the log."""
        for each in sorted(self._refusals.keys() & range(index, index + count)):
            yield np.array([each]), self._refusals[each]
        for indexes, begin, end, part in self._parts(index, count):
            if part.error is not None:
                yield indexes[begin:end], part.error

    def runs(self, index: int, count: int) -> list[tuple[int, int, int]]:
        """Partition, base offset and length of the runs that these records, all acknowledged, make in the log."""
        return [
            (part.partition, offset_after(part.base_offset, begin), end - begin)
            for _, begin, end, part in self._parts(index, count)
        ]

    def end_of(self, index: int) -> tuple[int, PartEnd]:
        """The part of an acknowledged record, and how many records are before it there."""
        ((_, begin, _, part),) = self._parts(index, 1)
        return begin, part

    def _all_ended(self) -> Iterator[tuple[np.ndarray, PartEnd]]:
        yield from self._ended
        if self.last is not None:
            yield self._left, self.last

    def _parts(self, index: int, count: int) -> Iterator[tuple[np.ndarray, int, int, PartEnd]]:
        """Of each part with some of these records: its indexes, and which of them, [begin, end), are asked for."""
        for indexes, part in self._all_ended():
            begin, end = np.searchsorted(indexes, (index, index + count)).tolist()
            if begin < end:
                yield indexes, begin, end, part
