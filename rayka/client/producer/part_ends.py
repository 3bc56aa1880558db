"""What became of the records of a batch that did not end as one: it went in parts, or lost records that were refused.

Records have indexes, by which their futures know them, and places: a record that is refused gives its place away, and
those behind it move up. Parts, offsets and sequences count places. Invariants: each record is either refused, or in a
part that is over, or in what is left; parts end in the order of their places. Kafka has no such thing: there a batch
ends as one.
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
    """See the module. `last` is the end of what was left, known once the batch is done."""

    __slots__ = ("_begins", "_ends", "_indexes", "_refusals", "done_count", "last")

    def __init__(self, record_count: int) -> None:
        self._indexes = np.arange(record_count)  # of the records that are not refused, by their places
        self._refusals: dict[int, Exception] = {}  # by index
        self._begins: list[int] = []  # the first place of each part that is over
        self._ends: list[PartEnd] = []
        self.done_count = 0  # places in parts that are over
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
        """These records of what is left are over, each with an error; counted from the first that is left."""
        places = np.fromiter(errors, np.int64) + self.done_count
        self._refusals.update(zip(self._indexes[places].tolist(), errors.values(), strict=True))
        self._indexes = np.delete(self._indexes, places)

    # ---- What became of records, once the batch is done ----

    def failures(self, index: int, count: int) -> Iterator[tuple[np.ndarray, Exception]]:
        """Which of so many records from an index on are not in the log, by their indexes, and why."""
        for each, error in sorted(self._refusals.items(), key=lambda item: item[0]):
            if index <= each < index + count:
                yield np.array([each]), error
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
