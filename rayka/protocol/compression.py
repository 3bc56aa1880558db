"""The codecs of a batch's block: none, gzip, lz4 (frame format) and zstd. Kafka: `Compression`.

Decompression is bounded: it never produces more bytes than the table of contents declares, and less, more or
trailing bytes are CorruptRecord. Snappy has a number in the format and no implementation
(UNSUPPORTED_COMPRESSION_TYPE).

pyarrow's own lz4 and gzip hand out uninitialised memory where a frame holds less than declared, so those two
codecs come from where the produced size is known; zstd frames carry theirs.
"""

import zlib
from typing import Protocol

import lz4.frame
import pyarrow as pa

from rayka.errors import CorruptRecord, UnsupportedCompressionType
from rayka.ports import Buffer
from rayka.protocol.batch_header import Codec

_GZIP_WINDOW_BITS = 31
_GZIP_LEVEL = 6


def compress(codec: Codec, block: memoryview) -> Buffer:
    """The block as one frame of the codec."""
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
    """The block of exactly size_bytes a frame holds; raises CorruptRecord when it holds anything else."""
    try:
        block = _decompress(codec, frame, size_bytes)
    except (OSError, RuntimeError, EOFError, zlib.error) as error:
        raise CorruptRecord(
            f"{codec.name} frame of {len(frame)} bytes does not decompress: {error}"
        ) from error
    if len(block) != size_bytes:
        raise CorruptRecord(
            f"{codec.name} frame does not hold the {size_bytes} bytes that the batch declares"
        )
    return block


def _decompress(codec: Codec, frame: memoryview, size_bytes: int) -> Buffer:
    match codec:
        case Codec.GZIP:
            return _whole(zlib.decompressobj(_GZIP_WINDOW_BITS), frame, size_bytes)
        case Codec.LZ4:
            return _whole(lz4.frame.LZ4FrameDecompressor(), frame, size_bytes)
        case Codec.ZSTD:
            return memoryview(pa.Codec("zstd").decompress(pa.py_buffer(frame), size_bytes)).cast("B")
    raise _unsupported(codec)


class _Decompressor(Protocol):
    @property
    def eof(self) -> bool: ...

    @property
    def unused_data(self) -> bytes | None: ...

    def decompress(self, data: memoryview, max_length: int, /) -> bytes: ...


def _whole(decompressor: _Decompressor, frame: memoryview, size_bytes: int) -> bytes:
    """What the frame holds, read one byte beyond the declared size so that a longer one shows itself."""
    block = decompressor.decompress(frame, size_bytes + 1)
    if not decompressor.eof or decompressor.unused_data:
        raise CorruptRecord(f"a frame of {len(frame)} bytes does not end where its block ends")
    return block


def _unsupported(codec: Codec) -> UnsupportedCompressionType:
    return UnsupportedCompressionType(f"{codec.name.lower()} is not supported: use none, gzip, lz4 or zstd")
