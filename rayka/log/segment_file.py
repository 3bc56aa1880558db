"""The file of one segment: whole batches, one after another.

No byte is overwritten, and no byte that a reader may read later is taken off (decision 039): a cut that would take some
copies the part that stays, gives the copy the name, and leaves the old inode to the readers. The segment knows the
sizes: the file may be longer during a write or after one that failed. Kafka: `FileRecords`.
"""

import posixpath
from collections.abc import Iterator, Sequence
from struct import Struct
from typing import NamedTuple

from rayka.errors import CorruptRecord, StorageError
from rayka.log.local_disk import TEMPORARY_SUFFIX
from rayka.log.log_files import LogFiles
from rayka.ports import Buffer
from rayka.protocol.batch_format import HEADER_BYTES, LENGTH_FIELD_END, MAGIC

LOG_SUFFIX = ".log"
# Bytes that recovery cut off, kept for an operator; never read, never removed.
CUT_SUFFIX = ".cut"
# Base offset, length, epoch, magic, CRC, attributes, last offset delta, max timestamp.
SCANNED = Struct(">qiibIhi8xq")
# Read at once while walking from header to header.
_WALK_BYTES = 4096


class BatchPosition(NamedTuple):
    """The place of one batch in its segment."""

    position: int
    size_bytes: int
    base_offset: int
    last_offset: int
    max_timestamp_ms: int


class SegmentFile:
    """One file of batches."""

    def __init__(self, files: LogFiles, base_offset: int, suffix: str = "") -> None:
        self._files = files
        self._disk = files.disk
        self._unsynced = files.unsynced
        self._final_path = files.path(f"{base_offset:020d}{LOG_SUFFIX}")
        self.path = self._final_path + suffix

    def create(self) -> None:
        """Makes the file, empty."""
        self._disk.append(self.path, ())
        self._unsynced.file_replaced(self.path)

    def append(self, buffers: Sequence[Buffer], size_bytes: int) -> None:
        """Writes at the end of the file, which must be at `size_bytes`. Raises StorageError; a part of the buffers may
        be in the file then.
        """
        begin = self._disk.append(self.path, buffers)
        self._unsynced.content_changed(self.path)
        if begin != size_bytes:
            raise StorageError(f"{self.path}: expected {size_bytes} bytes, found {begin}; restart the node")

    def read(self, position: int, size_bytes: int) -> bytes:
        """Reads exactly these bytes, in one call. Raises CorruptRecord where the file is shorter."""
        data = self._disk.read_at(self.path, position, size_bytes)
        if len(data) < size_bytes:
            raise CorruptRecord(
                f"{self.path}: {len(data)} bytes at {position}, expected up to {position + size_bytes}"
            )
        return data

    def batches(self, position: int, end: int) -> Iterator[BatchPosition]:
        """The batches from `position` to `end`, by their headers. Raises CorruptRecord where there is no whole
        batch.
        """
        chunk, begin = b"", position
        while position < end:
            if position + HEADER_BYTES > begin + len(chunk):
                begin = position
                chunk = self._disk.read_at(self.path, position, min(_WALK_BYTES, end - position))
                if len(chunk) < HEADER_BYTES:
                    raise CorruptRecord(f"{self.path}: the file ends within a batch at position {position}")
            base_offset, length, _, magic, _, _, last_delta, max_timestamp_ms = SCANNED.unpack_from(
                chunk, position - begin
            )
            size_bytes = LENGTH_FIELD_END + length
            if magic != MAGIC or size_bytes < HEADER_BYTES or position + size_bytes > end:
                raise CorruptRecord(
                    f"{self.path}: no whole batch at position {position}: magic {magic}, {size_bytes} bytes"
                )
            yield BatchPosition(position, size_bytes, base_offset, base_offset + last_delta, max_timestamp_ms)
            position += size_bytes

    # ---- Replacing, cutting and removing ---------------------------------------------------------------------

    @property
    def replacement_path(self) -> str:
        """The path of a file that will replace this one. A file left there is removed when the log opens."""
        return self.path + TEMPORARY_SUFFIX

    def replace(self) -> None:
        """Puts the file at `replacement_path`, already synced, in the place of this one."""
        self._files.rename(self.replacement_path, self.path)

    def rename(self, suffix: str) -> None:
        """Gives the file this suffix; replaces a file of that name."""
        before, self.path = self.path, self._final_path + suffix
        self._files.rename(before, self.path)

    def on_moved(self) -> None:
        """The log's directory was renamed."""
        suffix = self.path[len(self._final_path) :]
        self._final_path = self._files.path(posixpath.basename(self._final_path))
        self.path = self._final_path + suffix

    def cut(self, size_bytes: int) -> None:
        """Cuts the file in place."""
        self._disk.cut(self.path, size_bytes)
        self._unsynced.content_changed(self.path)

    def copy_aside(self, cut_off: memoryview) -> str:
        """Copies bytes that will be cut off to a name that is never read; returns the path."""
        aside, target = self.replacement_path, self._cut_path()
        if self._disk.exists(aside):
            self._disk.unlink(aside)
        self._disk.append(aside, [cut_off])
        self._disk.rename(aside, target)
        self._unsynced.file_replaced(target)
        return target

    def set_aside(self) -> str:
        """Renames the file to a name that is never read; returns the path."""
        target = self._cut_path()
        self._files.rename(self.path, target)
        return target

    def _cut_path(self) -> str:
        """`<segment>.log.cut`, with a number when an earlier cut has that name."""
        path, number = self.path + CUT_SUFFIX, 1
        while self._disk.exists(path):
            number += 1
            path = f"{self.path}{CUT_SUFFIX}.{number}"
        return path
