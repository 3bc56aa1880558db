"""The time index of one segment: up to where a timestamp has been reached (F5, F6).

One entry of 12 bytes, (timestamp as i64, offset - base offset as i32), means: the largest timestamp so far is
this, and it is at or before this offset, the last of the first batch that holds it. Entries come with those
of the offset index, the last one when the segment is sealed. Invariant: timestamps strictly rise, offsets
rise. Kafka: `TimeIndex`.
"""

from struct import Struct
from typing import NamedTuple

from rayka.errors import InvariantBroken
from rayka.ids import NO_TIMESTAMP
from rayka.log.sparse_index import SparseIndex


class TimestampedOffset(NamedTuple):
    """An entry: the largest timestamp so far, and the offset at or before which it is."""

    timestamp_ms: int
    offset: int


class TimeIndex(SparseIndex):
    """Offsets by timestamp, sparse."""

    ENTRY = Struct(">qi")

    def maybe_append(self, timestamp_ms: int, offset: int) -> None:
        """Adds an entry unless the largest timestamp is still that of the last one."""
        last = self.last
        if timestamp_ms <= last.timestamp_ms:
            return
        if offset < last.offset:
            raise InvariantBroken(f"{self!r}: offset {offset} of timestamp {timestamp_ms} goes back")
        self._data += self.ENTRY.pack(timestamp_ms, offset - self.base_offset)

    def lookup(self, timestamp_ms: int) -> TimestampedOffset:
        """The last entry at or before a timestamp: no earlier batch holds that timestamp or a later one."""
        return self._at(self._floor(0, timestamp_ms))

    def lookup_offset(self, offset: int) -> TimestampedOffset:
        """The last entry at or before an offset."""
        return self._at(self._floor(1, offset - self.base_offset))

    @property
    def last(self) -> TimestampedOffset:
        """The last entry; (-1, base offset) when there is none."""
        return self._at(len(self) - 1)

    def truncate_to(self, offset: int) -> None:
        """Drops the entries at and above an offset."""
        self._keep(self._floor(1, offset - self.base_offset - 1) + 1)

    def is_sane(self) -> bool:
        return not self or (self._entry(len(self) - 1)[1] >= 0 and self.last.timestamp_ms >= len(self) - 1)

    def _at(self, number: int) -> TimestampedOffset:
        if number < 0:
            return TimestampedOffset(NO_TIMESTAMP, self.base_offset)
        timestamp_ms, relative_offset = self._entry(number)
        return TimestampedOffset(timestamp_ms, self.base_offset + relative_offset)
