"""The batches of a segment's file, a slice of work at a time, without mapping it: a map would count as memory.

Kafka: the read buffer of `Cleaner`, which grows to the largest batch, too.
"""

from collections.abc import Iterator
from struct import Struct

from crc32c import crc32c

from rayka.errors import CorruptRecord
from rayka.log.segment_file import SCANNED, SegmentFile
from rayka.protocol.batch_format import CRC_START, HEADER_BYTES, LENGTH_FIELD_END, RecordBatch

CHUNK_BYTES = 512 << 10
CHUNK_BATCHES = 100
_LARGE_BYTES = 16 << 20
_LENGTH = Struct(">8xi")


def chunks(file: SegmentFile, end: int) -> Iterator[list[RecordBatch]]:
    """All batches up to the end of the file's whole batches, in slices that take a few milliseconds each.

    Raises CorruptRecord that names the file and the position where there is no whole batch, or one with a wrong CRC.
    """
    position = 0
    while position < end:
        left = end - position
        first = _size_at(memoryview(file.read(position, min(HEADER_BYTES, left))), 0)
        if first > left:
            raise CorruptRecord(f"{file.path}: no whole batch at position {position}")
        try:
            if first > _LARGE_BYTES:
                _check_large(file, position, first)
            batches = _split(memoryview(file.read(position, min(max(CHUNK_BYTES, first), left))))
        except CorruptRecord as error:
            raise CorruptRecord(f"{file.path}, at position {position} or later: {error}") from error
        yield batches
        position += sum(each.size_bytes for each in batches)


def _check_large(file: SegmentFile, position: int, size_bytes: int) -> None:
    """A wrong length may say a gigabyte: so much is read at once only when the CRC says that it is one batch. Raises
    CorruptRecord.
    """
    header = file.read(position, HEADER_BYTES)
    expected, found = SCANNED.unpack_from(header)[4], crc32c(header[CRC_START:])
    for begin in range(position + HEADER_BYTES, position + size_bytes, CHUNK_BYTES):
        found = crc32c(file.read(begin, min(CHUNK_BYTES, position + size_bytes - begin)), found)
    if found != expected:
        raise CorruptRecord(f"a batch of {size_bytes} bytes has CRC {found}, expected {expected}")


def _split(data: memoryview) -> list[RecordBatch]:
    """The whole batches that the data begins with, so many as one slice takes."""
    batches: list[RecordBatch] = []
    position = 0
    while len(batches) < CHUNK_BATCHES:
        size_bytes = _size_at(data, position)
        if position + size_bytes > len(data):
            break
        batch = RecordBatch(data[position : position + size_bytes])
        batch.check_crc()
        batches.append(batch)
        position += size_bytes
    return batches


def _size_at(data: memoryview, position: int) -> int:
    """The size of the batch that begins there; that of a header where fewer bytes are left."""
    if len(data) - position < HEADER_BYTES:
        return HEADER_BYTES
    return max(HEADER_BYTES, LENGTH_FIELD_END + int(_LENGTH.unpack_from(data, position)[0]))
