"""The outcome of each record of a batch that did not end as one: it went in parts, or records of it were refused.

A record has an index, by which its future knows it, and a place. A refused record loses its place, and those behind it
move up. Parts, offsets and sequences count places. Invariants: each record is either refused, or in a part that is
over, or left; parts end in the order of their places. In Kafka a batch ends as one.
"""

from collections.abc import Iterator, Mapping
from typing import NamedTuple

import numpy as np

from rayka.client.producer.acknowledgement import offset_after
from rayka.ids import NO_OFFSET, NO_TIMESTAMP


class PartEnd(NamedTuple):
    """Where a part is in the log, or why it is not there."""

    base_offset: int = NO_OFFSET
    log_append_time_ms: int = NO_TIMESTAMP
    error: Exception | None = None


class PartEnds:
    """The parts that are over, and the refused records. `last`: the end of the records that are left, once known."""

    __slots__ = ("_begins", "_ends", "_indexes", "_refusals", "done_count", "last")

    def __init__(self, record_count: int) -> None:
        # By place: the index of each record that is not refused, ascending.
        self._indexes = np.arange(record_count)
        # By index: the error of each refused record.
        self._refusals: dict[int, Exception] = {}
        # Of each part that is over: its first place, and its end.
        self._begins: list[int] = []
        self._ends: list[PartEnd] = []
        # Places in parts that are over; 0 <= done_count <= len(_indexes).
        self.done_count = 0
        self.last = PartEnd()

    def __repr__(self) -> str:
        return f"<PartEnds parts={len(self._ends)} refused={len(self._refusals)} left={self.left_count}>"

    @property
    def left_count(self) -> int:
        """Records that are neither refused nor in a part that is over."""
        return len(self._indexes) - self.done_count

    def end_part(self, record_count: int, end: PartEnd) -> None:
        """The part that was next is over."""
        self._begins.append(self.done_count)
        self._ends.append(end)
        self.done_count += record_count

    def refuse(self, errors: Mapping[int, Exception]) -> None:
        """Ends these records with an error each. Their numbers count from the first record that is left."""
        places = np.fromiter(errors, np.int64) + self.done_count
        self._refusals.update(zip(self._indexes[places].tolist(), errors.values(), strict=True))
        self._indexes = np.delete(self._indexes, places)

    # ---- Outcomes, once the batch is done ----

    def failures(self, index: int, count: int) -> Iterator[tuple[np.ndarray, Exception]]:
        """By error, the indexes of records in [index, index + count) that are not in the log."""
        for each in sorted(self._refusals.keys() & range(index, index + count)):
            yield np.array([each]), self._refusals[each]
        for _, begin, end, part in self._parts(index, count):
            if part.error is not None:
                yield self._indexes[begin:end], part.error

    def runs(self, index: int, count: int) -> list[tuple[int, int]]:
        """Base offset and length of the runs that these records, all acknowledged, make in the log."""
        return [
            (offset_after(part.base_offset, begin - part_begin), end - begin)
            for part_begin, begin, end, part in self._parts(index, count)
        ]

    def end_of(self, index: int) -> tuple[int, PartEnd]:
        """The part of an acknowledged record, and how many records are before it there."""
        ((part_begin, begin, _, part),) = self._parts(index, 1)
        return begin - part_begin, part

    def _parts(self, index: int, count: int) -> Iterator[tuple[int, int, int, PartEnd]]:
        """Of each part with some of these records: its first place, and their places [begin, end) there."""
        first, last = np.searchsorted(self._indexes, (index, index + count)).tolist()
        edges = [*self._begins, self.done_count, len(self._indexes)]
        for number, part in enumerate([*self._ends, self.last]):
            begin, end = max(first, edges[number]), min(last, edges[number + 1])
            if begin < end:
                yield edges[number], begin, end, part
