"""What the offset and the time index share: fixed-size entries in one buffer, kept as they stand in the file.

The index of the active segment is a bytearray that grows, that of a sealed one the bytes of its file; a
look-up bisects the buffer itself, so nothing is unpacked that is not asked for. Kafka: `AbstractIndex`. Left
out: Kafka maps a preallocated file and trims it; here the file is written when the segment is sealed or the
log closed, and recovery rebuilds it.
"""

from bisect import bisect_right
from struct import Struct
from typing import ClassVar, Self


class SparseIndex:
    """Entries of two integers, both rising; the last field but one is what look-ups compare."""

    ENTRY: ClassVar[Struct]

    def __init__(self, base_offset: int, data: bytes = b"") -> None:
        self.base_offset = base_offset
        self._data = bytearray(data)

    def __len__(self) -> int:
        return len(self._data) // self.ENTRY.size

    def __repr__(self) -> str:
        return f"<{type(self).__name__} base={self.base_offset} entries={len(self)}>"

    @property
    def data(self) -> bytes:
        """The file's content."""
        return bytes(self._data)

    @classmethod
    def load(cls, base_offset: int, data: bytes) -> Self | None:
        """The index in a file's content, or None when it fails its sanity check and must be rebuilt (F5)."""
        index = cls(base_offset, data)
        return index if len(data) % cls.ENTRY.size == 0 and index.is_sane() else None

    def is_sane(self) -> bool:
        """Whether the last entry could have been written by this class."""
        raise AssertionError("each kind of index has its own check")

    def _entry(self, number: int) -> tuple[int, int]:
        first, second = self.ENTRY.unpack_from(self._data, number * self.ENTRY.size)
        return first, second

    def _floor(self, field: int, value: int) -> int:
        """Number of the last entry whose field is at most the value, or -1."""
        return bisect_right(range(len(self)), value, key=lambda number: self._entry(number)[field]) - 1

    def _keep(self, count: int) -> None:
        del self._data[count * self.ENTRY.size :]
