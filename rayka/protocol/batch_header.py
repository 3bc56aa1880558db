"""The 64-byte header of a record batch: reading it, stamping it, its CRC, and the walk from batch to batch.

One batch has one form on disk, on the wire and in memory. Its header is Kafka's 61 bytes (F1, F2; big-endian)
and three zero bytes; its body is columnar (`batch_encode`, `batch_decode`) and opaque here. The CRC-32C
covers everything from the attributes to the end, so a broker gives a batch its offset and leader epoch
without recomputing it.

Invariants of a `RecordBatch`: it views exactly one batch; its size is a multiple of 8;
`last_offset_delta >= record_count - 1`, equal unless compaction made gaps. Compaction may also leave one without any
record (F25). Its CRC may still be wrong: ask.

Kafka: `DefaultRecordBatch`.
"""

from collections.abc import Iterator
from enum import IntEnum
from struct import Struct
from typing import NamedTuple

from crc32c import crc32c

from rayka.errors import CorruptRecord
from rayka.ports import Buffer

HEADER_BYTES = 64
MAGIC = 82  # "R": a body that Kafka's own magic 2 does not have
ALIGNMENT_BYTES = 8
LENGTH_FIELD_END = 12  # batchLength counts the bytes after itself
CRC_START = 21  # the attributes: the first byte that the CRC covers

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


class Codec(IntEnum):
    """How a batch's columns are compressed: attribute bits 0-2 (F2)."""

    NONE = 0
    GZIP = 1
    SNAPPY = 2
    LZ4 = 3
    ZSTD = 4


_CODECS = tuple(Codec)  # to look it up by its number there takes a third of the time


class TimestampType(IntEnum):
    """What set the records' timestamps: attribute bit 3 (F2)."""

    CREATE_TIME = 0
    LOG_APPEND_TIME = 1


class ProducerSequence(NamedTuple):
    """Which producer made a batch, and the number of its first record among that producer's for the partition
    (C1). All -1: a producer that is not idempotent.
    """

    producer_id: int = NO_PRODUCER_ID
    producer_epoch: int = -1
    base_sequence: int = -1

    def after(self, record_count: int) -> "ProducerSequence":
        """That of a batch behind one of so many records; what has no producer id has no sequence."""
        if self.producer_id == NO_PRODUCER_ID:
            return self
        return self._replace(base_sequence=sequence_after(self.base_sequence, record_count))


NO_SEQUENCE = ProducerSequence()


def sequence_after(sequence: int, count: int) -> int:
    """The sequence so many records later: behind 2^31 - 1 comes 0 (C1)."""
    return (sequence + count) & SEQUENCE_MAX


class RecordBatch:
    """A view of one batch's bytes, its header parsed and checked, its body untouched.

    Raises CorruptRecord when the bytes are not exactly one batch with a header that makes sense.
    """

    view: memoryview  # the whole batch
    base_offset: int
    batch_length: int  # bytes after this field
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
        """Names the batch in errors that reach users; `repr` is for logs."""
        return f"a batch of {self.record_count} records at offset {self.base_offset}"

    @property
    def size_bytes(self) -> int:
        """Size of the whole batch, header included."""
        return LENGTH_FIELD_END + self.batch_length

    @property
    def last_offset(self) -> int:
        """Offset of the last record, or of the last one before compaction removed it."""
        return self.base_offset + self.last_offset_delta

    @property
    def next_offset(self) -> int:
        """Offset at which the next batch may begin."""
        return self.base_offset + self.last_offset_delta + 1

    @property
    def last_sequence(self) -> int:
        """The sequence of the last record (C1); only where there is a producer id."""
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
        """From when on compaction may remove the records without a value: stamped when it saw them first (F23)."""
        return self.base_timestamp_ms if self.attributes & DELETE_HORIZON_BIT else None

    @property
    def has_null_key(self) -> bool:
        """Whether some record has no key; a broker refuses such a batch for a compacted topic (B18)."""
        return bool(self.attributes & NULL_KEY_BIT)

    def is_crc_valid(self) -> bool:
        return bool(crc32c(self.view[CRC_START:]) == self.crc)

    def check_crc(self, where: str = "") -> None:
        """Raises CorruptRecord that names the place given, the offset, and the CRC expected and found."""
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

        Offset and epoch lie outside the CRC. A log append time becomes the timestamp of every record; only
        then are the attributes, the max timestamp and the CRC written anew.
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
    """The buffer as a view of bytes, whatever its element type."""
    return memoryview(buffer).cast("B")  # type: ignore[arg-type]  # numpy arrays are buffers too


def split_batches(buffer: Buffer) -> Iterator[RecordBatch]:
    """The batches of a buffer, one after another; raises CorruptRecord where no whole batch stands."""
    view = bytes_view(buffer)
    position = 0
    while position < len(view):
        size_bytes = HEADER_BYTES  # RecordBatch says what is wrong with fewer bytes than a header
        if len(view) - position >= HEADER_BYTES:
            size_bytes = max(HEADER_BYTES, LENGTH_FIELD_END + _LENGTH.unpack_from(view, position)[0])
        batch = RecordBatch(view[position : position + size_bytes])
        yield batch
        position += batch.size_bytes
