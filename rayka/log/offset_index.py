"""The offset index of one segment: where its batches begin (F5).

One entry of 8 bytes, (offset - base offset as i32, position as i32), for every `index.interval.bytes` of log;
an entry is the base offset of a batch and its position. The batch at position 0 has none. Invariant: strictly
rising in both fields. Kafka: `OffsetIndex`, whose entries hold a batch's last offset; a base offset finds the
batch that begins there at once.
"""

from struct import Struct

from rayka.errors import InvariantBroken
from rayka.log.sparse_index import SparseIndex


class OffsetIndex(SparseIndex):
    """Positions by offset, sparse."""

    ENTRY = Struct(">ii")

    def append(self, offset: int, position: int) -> None:
        """Adds the batch that begins here, the last so far."""
        relative_offset = offset - self.base_offset
        last_offset, last_position = self._entry(len(self) - 1) if self else (-1, 0)
        if relative_offset <= last_offset:
            raise InvariantBroken(f"{self!r}: offset {offset} goes back")
        if position <= last_position:
            raise InvariantBroken(f"{self!r}: position {position} goes back")
        self._data += self.ENTRY.pack(relative_offset, position)

    def lookup(self, offset: int) -> int:
        """Position of the last indexed batch that begins at or before the offset; 0 when there is none."""
        number = self._floor(0, offset - self.base_offset)
        return self._entry(number)[1] if number >= 0 else 0

    def lookup_position(self, position: int) -> int:
        """The last indexed position at or before this one; 0 when there is none."""
        number = self._floor(1, position)
        return self._entry(number)[1] if number >= 0 else 0

    @property
    def last_position(self) -> int:
        """Position of the last entry; 0 when there is none."""
        return self._entry(len(self) - 1)[1] if self else 0

    def truncate_to(self, offset: int) -> None:
        """Drops the entries at and above an offset."""
        self._keep(self._floor(0, offset - self.base_offset - 1) + 1)

    def is_sane(self) -> bool:
        if not self:
            return True
        relative_offset, position = self._entry(len(self) - 1)
        return relative_offset >= len(self) - 1 and position >= len(self)
