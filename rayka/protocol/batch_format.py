"""The format of a record batch: header, table of contents, and codecs. One form on disk, on the wire and in memory.

**Header.** 64 bytes: Kafka's 61 (F1, F2; big-endian) and three zero bytes. The CRC-32C covers everything from the
attributes to the end, so a broker writes offset and leader epoch into a batch without computing the CRC again. The body
is columnar (`batch_encode`, `batch_decode`).

**Table of contents.** The MessagePack array `[body version, uncompressed size, [[column id, length], ...]]`, never
compressed, directly behind the header. Sizes are written as 32-bit integers whatever their value, so the size of the
table follows from the number of columns: two fixed structs read it, and any MessagePack tool prints it. Up to 7 zeros
follow, then the block of columns, which ends where the batch ends. No codec's frame begins with a zero. In the
decompressed block every column begins at a multiple of 8, in the order of the table. Column ids rise.

**Codecs.** None, gzip, lz4 (frame format) and zstd. Decompression is bounded: it never produces more bytes than the
table of contents declares; fewer, more or trailing bytes are CorruptRecord. Snappy has a number in the format and no
implementation (UNSUPPORTED_COMPRESSION_TYPE). pyarrow's own lz4 and gzip return uninitialised memory where a frame
holds less than declared, so these two codecs come from libraries that tell the produced size; zstd frames carry the
size.

Kafka: `DefaultRecordBatch`, `Compression`.
"""

import zlib
from collections.abc import Iterator
from enum import IntEnum
from functools import cache
from struct import Struct
from typing import NamedTuple, Protocol

import lz4.frame
import pyarrow as pa
from crc32c import crc32c

from rayka.errors import CorruptRecord, UnsupportedCompressionType
from rayka.ports import Buffer

HEADER_BYTES = 64
# "R": Kafka's own magic 2 has another body.
MAGIC = 82
ALIGNMENT_BYTES = 8
# The field `batch_length` counts the bytes behind itself.
LENGTH_FIELD_END = 12
# The attributes are the first field that the CRC covers.
CRC_START = 21

CODEC_MASK = 0b0000_0111
TIMESTAMP_TYPE_BIT = 1 << 3
TRANSACTIONAL_BIT = 1 << 4
CONTROL_BIT = 1 << 5
DELETE_HORIZON_BIT = 1 << 6
NULL_KEY_BIT = 1 << 7

HEADER = Struct(">qiibIhiqqqhii3s")
_LENGTH = Struct(">8xi")
RESERVED = b"\0\0\0"
NO_PRODUCER_ID = -1
SEQUENCE_MAX = 2**31 - 1

BODY_VERSION = 1

# Bytes of MessagePack. _ARRAY: of up to 15 items, whose number is added.
_ARRAY_OF_2 = 0x92
_ARRAY_OF_3 = 0x93
_ARRAY = 0x90
_UINT32 = 0xCE
# The table of contents up to the number of columns.
_PREFIX = Struct(">BBBIB")

_GZIP_WINDOW_BITS = 31
_GZIP_LEVEL = 6


class Codec(IntEnum):
    """The compression of a batch's columns: attribute bits 0-2 (F2)."""

    NONE = 0
    GZIP = 1
    SNAPPY = 2
    LZ4 = 3
    ZSTD = 4


# By number: a lookup here takes a third of the time of `Codec(number)`.
_CODECS = tuple(Codec)


class TimestampType(IntEnum):
    """The origin of the records' timestamps, producer or log: attribute bit 3 (F2)."""

    CREATE_TIME = 0
    LOG_APPEND_TIME = 1


class ProducerSequence(NamedTuple):
    """The producer of a batch, and the place of the batch in that producer's sequence (C1). All -1: the producer is not
    idempotent.
    """

    producer_id: int = NO_PRODUCER_ID
    producer_epoch: int = -1
    # The number of the batch's first record among the producer's records for the partition.
    base_sequence: int = -1

    def after(self, record_count: int) -> "ProducerSequence":
        """The sequence of the batch behind one of `record_count` records; unchanged without a producer id."""
        if self.producer_id == NO_PRODUCER_ID:
            return self
        return self._replace(base_sequence=sequence_after(self.base_sequence, record_count))


NO_SEQUENCE = ProducerSequence()


def sequence_after(sequence: int, count: int) -> int:
    """The sequence `count` records later: 0 follows 2^31 - 1 (C1)."""
    return (sequence + count) & SEQUENCE_MAX


class RecordBatch:
    """A view of one batch's bytes, with its header parsed and checked, and its body untouched.

    Raises CorruptRecord unless the bytes are exactly one batch whose header does not contradict itself. Invariants: the
    size is a multiple of 8; `last_offset_delta >= record_count - 1`, equal unless compaction made gaps. Compaction may
    also leave a batch without records (F25). The CRC is not checked here: see `check_crc`.
    """

    # The whole batch.
    view: memoryview
    base_offset: int
    # The number of bytes behind this field.
    batch_length: int
    leader_epoch: int
    crc: int
    attributes: int
    last_offset_delta: int
    base_timestamp_ms: int
    max_timestamp_ms: int
    producer_id: int
    producer_epoch: int
    base_sequence: int
    record_count: int

    __slots__ = (
        "attributes", "base_offset", "base_sequence", "base_timestamp_ms", "batch_length", "crc",
        "last_offset_delta", "leader_epoch", "max_timestamp_ms", "producer_epoch", "producer_id",
        "record_count", "view",
    )  # fmt: skip

    def __init__(self, buffer: Buffer) -> None:
        view = bytes_view(buffer)
        if len(view) < HEADER_BYTES:
            raise CorruptRecord(f"a batch has a header of {HEADER_BYTES} bytes, found {len(view)}")
        (
            self.base_offset, self.batch_length, self.leader_epoch, magic, self.crc, self.attributes,
            self.last_offset_delta, self.base_timestamp_ms, self.max_timestamp_ms, self.producer_id,
            self.producer_epoch, self.base_sequence, self.record_count, reserved,
        ) = HEADER.unpack_from(view)  # fmt: skip
        self.view = view
        if magic != MAGIC:
            raise CorruptRecord(f"a batch has magic {MAGIC}, found {magic} at offset {self.base_offset}")
        if self.size_bytes != len(view) or len(view) % ALIGNMENT_BYTES:
            raise CorruptRecord(f"{self.summary} does not fill the {len(view)} bytes it stands in")
        deltas = self.record_count, self.last_offset_delta, self.base_offset
        if min(deltas) < 0 or self.last_offset_delta < self.record_count - 1:
            raise CorruptRecord(
                f"{self.summary} contradicts itself: last offset delta {self.last_offset_delta}"
            )
        if self.attributes & CODEC_MASK > Codec.ZSTD or reserved != RESERVED:
            raise CorruptRecord(
                f"{self.summary} has unknown attributes {self.attributes:#x} or reserved bytes set"
            )

    def __repr__(self) -> str:
        return (
            f"<RecordBatch offset={self.base_offset} records={self.record_count} epoch={self.leader_epoch}"
            f" attributes={self.attributes:#x} bytes={self.size_bytes}>"
        )

    @property
    def summary(self) -> str:
        """The batch in errors that reach users; `repr` is for logs."""
        return f"a batch of {self.record_count} records at offset {self.base_offset}"

    @property
    def size_bytes(self) -> int:
        """The size of the whole batch, header included."""
        return LENGTH_FIELD_END + self.batch_length

    @property
    def last_offset(self) -> int:
        """The offset of the last record that the batch had before compaction."""
        return self.base_offset + self.last_offset_delta

    @property
    def next_offset(self) -> int:
        """The lowest offset at which the next batch may begin."""
        return self.base_offset + self.last_offset_delta + 1

    @property
    def last_sequence(self) -> int:
        """The sequence of the last record (C1). Meaningless without a producer id."""
        return sequence_after(self.base_sequence, self.last_offset_delta)

    @property
    def codec(self) -> Codec:
        return _CODECS[self.attributes & CODEC_MASK]

    @property
    def timestamp_type(self) -> TimestampType:
        return TimestampType(bool(self.attributes & TIMESTAMP_TYPE_BIT))

    @property
    def is_transactional(self) -> bool:
        return bool(self.attributes & TRANSACTIONAL_BIT)

    @property
    def is_control(self) -> bool:
        return bool(self.attributes & CONTROL_BIT)

    @property
    def delete_horizon_ms(self) -> int | None:
        """The time from which compaction may remove records without a value; None: compaction has not seen them
        (F23).
        """
        return self.base_timestamp_ms if self.attributes & DELETE_HORIZON_BIT else None

    @property
    def has_null_key(self) -> bool:
        """Whether some record has no key; a broker refuses such a batch for a compacted topic (B18)."""
        return bool(self.attributes & NULL_KEY_BIT)

    def is_crc_valid(self) -> bool:
        return bool(crc32c(self.view[CRC_START:]) == self.crc)

    def check_crc(self, where: str = "") -> None:
        """Raises CorruptRecord with the place `where`, the offset, and the CRC expected and found."""
        found = crc32c(self.view[CRC_START:])
        if found != self.crc:
            place = f"{where}: " if where else ""
            raise CorruptRecord(
                f"{place}batch at offset {self.base_offset}:"
                f" CRC-32C expected {self.crc:#010x}, found {found:#010x}"
            )

    def stamped(
        self, *, base_offset: int, leader_epoch: int, log_append_time_ms: int | None = None
    ) -> list[Buffer]:
        """The batch as the log appends it (B18): a new header, and a view of the body.

        Offset and epoch lie outside the CRC. A log append time becomes the timestamp of every record: the attributes,
        the max timestamp and the CRC change in this case only.
        """
        body = self.view[HEADER_BYTES:]
        attributes, max_timestamp_ms, crc = self.attributes, self.max_timestamp_ms, self.crc
        if log_append_time_ms is not None:
            attributes, max_timestamp_ms = attributes | TIMESTAMP_TYPE_BIT, log_append_time_ms
            header = self._pack(base_offset, leader_epoch, attributes, max_timestamp_ms, 0)
            crc = crc32c(body, crc32c(header[CRC_START:]))
        return [self._pack(base_offset, leader_epoch, attributes, max_timestamp_ms, crc), body]

    def _pack(
        self, base_offset: int, leader_epoch: int, attributes: int, max_timestamp_ms: int, crc: int
    ) -> bytes:
        return HEADER.pack(
            base_offset, self.batch_length, leader_epoch, MAGIC, crc, attributes, self.last_offset_delta,
            self.base_timestamp_ms, max_timestamp_ms, self.producer_id, self.producer_epoch,
            self.base_sequence, self.record_count, RESERVED,
        )  # fmt: skip


def bytes_view(buffer: Buffer) -> memoryview:
    """A view of the buffer's bytes, whatever its element type."""
    # numpy arrays are buffers too.
    return memoryview(buffer).cast("B")  # type: ignore[arg-type]


def split_batches(buffer: Buffer) -> Iterator[RecordBatch]:
    """Yields the batches of a buffer; raises CorruptRecord at bytes that are no whole batch."""
    view = bytes_view(buffer)
    position = 0
    while position < len(view):
        # Fewer bytes than a header: RecordBatch raises the error.
        size_bytes = HEADER_BYTES
        if len(view) - position >= HEADER_BYTES:
            size_bytes = max(HEADER_BYTES, LENGTH_FIELD_END + _LENGTH.unpack_from(view, position)[0])
        batch = RecordBatch(view[position : position + size_bytes])
        yield batch
        position += batch.size_bytes


# ---- Table of contents ---------------------------------------------------------------------------------------------


class Column(IntEnum):
    """The id of a column. Offsets are int32 and begin at 0; a validity bitmap exists if an entry is null.

    The value columns always exist. Without key offsets every key is null; without header offsets no record has headers;
    without timestamp deltas all timestamps are equal; without offset deltas the offsets have no gaps.
    """

    KEY_VALIDITY = 1
    KEY_OFFSETS = 2
    KEY_DATA = 3
    VALUE_VALIDITY = 4
    VALUE_OFFSETS = 5
    VALUE_DATA = 6
    # From a record to its headers.
    HEADER_OFFSETS = 7
    HEADER_KEY_OFFSETS = 8
    HEADER_KEY_DATA = 9
    HEADER_VALUE_VALIDITY = 10
    HEADER_VALUE_OFFSETS = 11
    HEADER_VALUE_DATA = 12
    # int64, milliseconds from the base timestamp.
    TIMESTAMP_DELTAS = 13
    # int32, from the base offset.
    OFFSET_DELTAS = 14


class Contents(NamedTuple):
    """A parsed table of contents."""

    # Begin and length in the decompressed block, by column id.
    columns: dict[int, tuple[int, int]]
    uncompressed_bytes: int
    # The end of the table in the body.
    end: int


def aligned(size_bytes: int) -> int:
    """The next multiple of 8."""
    return (size_bytes + ALIGNMENT_BYTES - 1) & -ALIGNMENT_BYTES


def pack_contents(uncompressed_bytes: int, lengths: list[tuple[int, int]]) -> bytes:
    """The table of contents for columns given as (id, length), ids rising."""
    fields = [_ARRAY_OF_3, BODY_VERSION, _UINT32, uncompressed_bytes, _ARRAY | len(lengths)]
    for column, length in lengths:
        fields += (_ARRAY_OF_2, column, _UINT32, length)
    return _table(len(lengths)).pack(*fields)


def parse_contents(body: memoryview) -> Contents:
    """Parses the table of contents at the beginning of a body. Raises CorruptRecord unless `pack_contents` could have
    written it.
    """
    if len(body) < _PREFIX.size:
        raise CorruptRecord(f"a body of {len(body)} bytes has no table of contents")
    outer, version, mark, uncompressed_bytes, array = _PREFIX.unpack_from(body)
    if (outer, version, mark, array & 0xF0) != (_ARRAY_OF_3, BODY_VERSION, _UINT32, _ARRAY):
        raise CorruptRecord(f"no table of contents of body version {BODY_VERSION}: {bytes(body[:8]).hex()}")
    table = _table(array & 0x0F)
    if len(body) < table.size:
        raise CorruptRecord(f"the table of contents ends after the body of {len(body)} bytes")
    columns: dict[int, tuple[int, int]] = {}
    previous, end = 0, 0
    for pair, column, mark, length in zip(*[iter(table.unpack_from(body)[5:])] * 4, strict=True):
        if pair != _ARRAY_OF_2 or mark != _UINT32 or not previous < column <= Column.OFFSET_DELTAS:
            raise CorruptRecord(f"the table of contents has an unknown or misplaced column {column}")
        columns[column] = (end, length)
        previous, end = column, end + aligned(length)
    if end != uncompressed_bytes:
        raise CorruptRecord(f"columns fill {end} bytes, the table of contents declares {uncompressed_bytes}")
    return Contents(columns, uncompressed_bytes, table.size)


def frame_after(body: memoryview, end: int) -> memoryview:
    """The compressed block of a body: the bytes behind the table's `end` and at most 7 zeros."""
    padding = bytes(body[end : end + ALIGNMENT_BYTES - 1])
    return body[end + len(padding) - len(padding.lstrip(b"\0")) :]


@cache
def _table(column_count: int) -> Struct:
    return Struct(_PREFIX.format + "BBBI" * column_count)


# ---- Codecs --------------------------------------------------------------------------------------------------------


def compress(codec: Codec, block: memoryview) -> Buffer:
    """Compresses a block to one frame of the codec."""
    match codec:
        case Codec.GZIP:
            return zlib.compress(block, _GZIP_LEVEL, _GZIP_WINDOW_BITS)
        case Codec.LZ4:
            frame: bytes = lz4.frame.compress(block)
            return frame
        case Codec.ZSTD:
            return memoryview(pa.Codec("zstd").compress(pa.py_buffer(block))).cast("B")
    raise _unsupported(codec)


def decompress(codec: Codec, frame: memoryview, size_bytes: int) -> Buffer:
    """Decompresses a frame to a block of `size_bytes`; raises CorruptRecord when the frame holds anything else."""
    block: Buffer
    try:
        match codec:
            case Codec.GZIP:
                block = _whole(zlib.decompressobj(_GZIP_WINDOW_BITS), frame, size_bytes)
            case Codec.LZ4:
                block = _whole(lz4.frame.LZ4FrameDecompressor(), frame, size_bytes)
            case Codec.ZSTD:
                block = memoryview(pa.Codec("zstd").decompress(pa.py_buffer(frame), size_bytes)).cast("B")
            case _:
                raise _unsupported(codec)
    except (OSError, RuntimeError, EOFError, zlib.error) as error:
        raise CorruptRecord(
            f"{codec.name} frame of {len(frame)} bytes does not decompress: {error}"
        ) from error
    if len(block) != size_bytes:
        raise CorruptRecord(
            f"{codec.name} frame does not hold the {size_bytes} bytes that the batch declares"
        )
    return block


class _Decompressor(Protocol):
    @property
    def eof(self) -> bool: ...

    @property
    def unused_data(self) -> bytes | None: ...

    def decompress(self, data: memoryview, max_length: int, /) -> bytes: ...


def _whole(decompressor: _Decompressor, frame: memoryview, size_bytes: int) -> bytes:
    """The content of a frame, read one byte beyond the declared size so that a longer frame is found."""
    block = decompressor.decompress(frame, size_bytes + 1)
    if not decompressor.eof or decompressor.unused_data:
        raise CorruptRecord(f"a frame of {len(frame)} bytes does not end where its block ends")
    return block


def _unsupported(codec: Codec) -> UnsupportedCompressionType:
    return UnsupportedCompressionType(f"{codec.name.lower()} is not supported: use none, gzip, lz4 or zstd")
