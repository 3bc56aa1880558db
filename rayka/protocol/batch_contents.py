"""The table of contents of a batch's body: which columns it has, and how long each is.

It is the MessagePack array `[body version, uncompressed size, [[column id, length], ...]]`, never compressed,
right after the header. Sizes are written as 32-bit integers whatever their value, so the table's own size
follows from the number of columns: reading it is two fixed structs, and any MessagePack tool can still print
it. After it come up to 7 zeros, then the block of buffers, which ends where the batch ends; no codec's frame
begins with a zero.

In the decompressed block every column begins at a multiple of 8, in the order of the table. Column ids rise.
"""

from enum import IntEnum
from functools import cache
from struct import Struct
from typing import NamedTuple

from rayka.errors import CorruptRecord
from rayka.protocol.batch_header import ALIGNMENT_BYTES

BODY_VERSION = 1

_ARRAY_OF_2 = 0x92
_ARRAY_OF_3 = 0x93
_ARRAY = 0x90  # of up to 15
_UINT32 = 0xCE
_PREFIX = Struct(">BBBIB")


class Column(IntEnum):
    """What a column holds. Offsets are int32 and begin at 0; a validity bitmap is there if something is null.

    Values are always there. Without key offsets every key is null; without header offsets no record has
    headers; without timestamp deltas all are equal; without offset deltas the offsets have no gaps.
    """

    KEY_VALIDITY = 1
    KEY_OFFSETS = 2
    KEY_DATA = 3
    VALUE_VALIDITY = 4
    VALUE_OFFSETS = 5
    VALUE_DATA = 6
    HEADER_OFFSETS = 7  # record -> its headers
    HEADER_KEY_OFFSETS = 8
    HEADER_KEY_DATA = 9
    HEADER_VALUE_VALIDITY = 10
    HEADER_VALUE_OFFSETS = 11
    HEADER_VALUE_DATA = 12
    TIMESTAMP_DELTAS = 13  # int64 ms from the base timestamp
    OFFSET_DELTAS = 14  # int32 from the base offset


class Contents(NamedTuple):
    """A parsed table: where each column lies in the decompressed block, where in the body the table ends."""

    columns: dict[int, tuple[int, int]]  # column id -> (begin, length)
    uncompressed_bytes: int
    end: int


def aligned(size_bytes: int) -> int:
    """The next multiple of 8."""
    return (size_bytes + ALIGNMENT_BYTES - 1) & -ALIGNMENT_BYTES


def pack_contents(uncompressed_bytes: int, lengths: list[tuple[int, int]]) -> bytes:
    """The table for columns given as (id, length), ids rising."""
    fields = [_ARRAY_OF_3, BODY_VERSION, _UINT32, uncompressed_bytes, _ARRAY | len(lengths)]
    for column, length in lengths:
        fields += (_ARRAY_OF_2, column, _UINT32, length)
    return _table(len(lengths)).pack(*fields)


def parse_contents(body: memoryview) -> Contents:
    """The table a body begins with. Raises CorruptRecord unless it is one that `pack_contents` writes."""
    if len(body) < _PREFIX.size:
        raise CorruptRecord(f"a body of {len(body)} bytes has no table of contents")
    outer, version, mark, uncompressed_bytes, array = _PREFIX.unpack_from(body)
    if (outer, version, mark, array & 0xF0) != (_ARRAY_OF_3, BODY_VERSION, _UINT32, _ARRAY):
        raise CorruptRecord(f"no table of contents of body version {BODY_VERSION}: {bytes(body[:8]).hex()}")
    table = _table(array & 0x0F)
    if len(body) < table.size:
        raise CorruptRecord(f"the table of contents ends after the body of {len(body)} bytes")
    columns, end = _columns(table.unpack_from(body)[5:])
    if end != uncompressed_bytes:
        raise CorruptRecord(f"columns fill {end} bytes, the table of contents declares {uncompressed_bytes}")
    return Contents(columns, uncompressed_bytes, table.size)


def frame_after(body: memoryview, end: int) -> memoryview:
    """The compressed block: what follows the table after at most 7 zeros."""
    padding = bytes(body[end : end + ALIGNMENT_BYTES - 1])
    return body[end + len(padding) - len(padding.lstrip(b"\0")) :]


def _columns(fields: tuple[int, ...]) -> tuple[dict[int, tuple[int, int]], int]:
    columns: dict[int, tuple[int, int]] = {}
    previous, position = 0, 0
    for pair, column, mark, length in zip(*[iter(fields)] * 4, strict=True):
        if pair != _ARRAY_OF_2 or mark != _UINT32 or not previous < column <= Column.OFFSET_DELTAS:
            raise CorruptRecord(f"the table of contents has an unknown or misplaced column {column}")
        columns[column] = (position, length)
        previous, position = column, position + aligned(length)
    return columns, position


@cache
def _table(column_count: int) -> Struct:
    return Struct(_PREFIX.format + "BBBI" * column_count)
