"""Reads file ranges on the machine that holds the log: segments are mapped, not copied (decision 046).

Besides `rayka.log.local_disk` the only module that opens log files. A range names path, device and inode. So the reader
notices a segment that was removed, replaced or truncated (a new inode under the old name) since the answer, and asks
again over the network. Without a free descriptor TooManyOpenFiles is raised. Records that were read stay valid: nothing
cuts them off or overwrites them. The caller checks CRCs. Kafka has no such thing.
"""

import mmap
import os
import posixpath
from collections import OrderedDict
from collections.abc import Callable, Iterable
from typing import TypeVar
from uuid import UUID
from weakref import WeakValueDictionary

import numpy as np

from rayka.descriptors import NO_DESCRIPTOR
from rayka.errors import TooManyOpenFiles
from rayka.log.meta_properties import META_PROPERTIES_FILE, decode_meta_properties
from rayka.log.partition_directories import PARTITION_METADATA_FILE, decode_partition_metadata
from rayka.protocol.batch_format import HEADER_BYTES
from rayka.protocol.fetch import FileRange
from rayka.protocol.membership import RegisteredDirectory

# A segment of 1 GiB is mapped eight times at most while it grows.
REMAPPED_BYTES_MIN = 16 << 20
ResultT = TypeVar("ResultT")


class MappedReader:
    """Maps segments and keeps the most recently used ones mapped, at most `max_maps`.

    A map has a descriptor, and lasts as long as a reader keeps records from it. So a map in use is shared, and a
    segment that grows is mapped again only when it has doubled; the records appended in between are copied.
    """

    def __init__(self, max_maps: int = 64) -> None:
        self._max_maps = max_maps
        # By device and inode, least recently used first.
        self._maps: OrderedDict[tuple[int, int], mmap.mmap] = OrderedDict()
        # The maps of which a reader still has records.
        self._in_use: WeakValueDictionary[tuple[int, int], mmap.mmap] = WeakValueDictionary()

    def __repr__(self) -> str:
        return f"<MappedReader maps={len(self._maps)}/{self._max_maps}>"

    def read(self, file_range: FileRange, topic_id: UUID | None = None) -> memoryview | None:
        """The range's bytes, whole batches from `base_offset` on. None when they are not here any more or, with
        `topic_id`, are another topic's. A mapped file keeps its inode, so the topic is checked once, when the file is
        mapped.
        """
        stop = file_range.position + file_range.size_bytes
        key = (file_range.device, file_range.inode)
        mapped = self._in_use.get(key)
        if mapped is not None and len(mapped) < stop and not _has_doubled(file_range, len(mapped)):
            copied = copy_range(file_range)
            return None if copied is None else copied.data
        if mapped is None or len(mapped) < stop:
            mapped = _of_file(file_range, lambda file, size: mmap.mmap(file, size, access=mmap.ACCESS_READ))
            if mapped is None or topic_id not in (None, topic_id_beside(file_range.path)):
                self._maps.pop(key, None)
                return None
        self._maps[key] = self._in_use[key] = mapped
        self._maps.move_to_end(key)
        if len(self._maps) > self._max_maps:
            self._maps.popitem(last=False)
        records = memoryview(mapped)[file_range.position : stop]
        return records if _begins_at(records, file_range.base_offset) else None

    def close(self) -> None:
        """Releases all maps; records that a reader keeps stay readable."""
        self._maps.clear()


def _has_doubled(file_range: FileRange, mapped_bytes: int) -> bool:
    """Whether the file has grown enough to be mapped again as a whole."""
    try:
        size_bytes = os.stat(file_range.path).st_size
    except OSError:
        return False
    return size_bytes >= mapped_bytes + max(mapped_bytes, REMAPPED_BYTES_MIN)


def copy_range(file_range: FileRange) -> np.ndarray | None:
    """Copies the range's bytes; None when they are not here any more. For a reader that reads each range once: copying
    is cheaper than mapping a file that grows.
    """
    records = np.empty(file_range.size_bytes, dtype=np.uint8)
    count = _of_file(
        file_range, lambda descriptor, _: os.preadv(descriptor, (records.data,), file_range.position)
    )
    return records if count == records.size and _begins_at(records.data, file_range.base_offset) else None


def _of_file(file_range: FileRange, read: Callable[[int, int], ResultT]) -> ResultT | None:
    """Calls `read` with the file's descriptor and size, if the file is the one that the range was cut from; else
    None.
    """
    try:
        descriptor = os.open(file_range.path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError as error:
        _refuse_without_descriptor(file_range.path, error)
        return None
    try:
        status = os.fstat(descriptor)
        is_same = (status.st_dev, status.st_ino) == (file_range.device, file_range.inode)
        if not is_same or status.st_size < file_range.position + file_range.size_bytes:
            return None
        return read(descriptor, status.st_size)
    except OSError as error:
        _refuse_without_descriptor(file_range.path, error)
        return None
    finally:
        os.close(descriptor)


def _refuse_without_descriptor(path: str, error: OSError) -> None:
    """Raises TooManyOpenFiles if the error does not concern the file."""
    if error.errno in NO_DESCRIPTOR:
        raise TooManyOpenFiles(f"cannot read {path}: {error.strerror}") from error


def _begins_at(records: memoryview, base_offset: int) -> bool:
    return len(records) >= HEADER_BYTES and int.from_bytes(records[:8], "big") == base_offset


def is_local_directory(path: str, directory_id: UUID) -> bool:
    """Whether this process can read the data directory with this id under this path."""
    try:
        with open(posixpath.join(path, META_PROPERTIES_FILE), "rb") as file:
            properties = decode_meta_properties(file.read())
    except OSError as error:
        _refuse_without_descriptor(path, error)
        return False
    return properties is not None and properties.directory_id == directory_id


def topic_id_beside(segment_path: str) -> UUID | None:
    """The topic of the partition's directory that holds a segment; None when this process cannot read it.

    For a range that was kept for long: file systems reuse inode numbers, so a topic deleted and created again may have
    its first segment under the same path and inode. Ask after mapping the file.
    """
    try:
        with open(posixpath.join(posixpath.dirname(segment_path), PARTITION_METADATA_FILE), "rb") as file:
            return decode_partition_metadata(file.read())
    except OSError as error:
        _refuse_without_descriptor(segment_path, error)
        return None


_MISSES_MAX = 3
_LOOKS_PASSED_OVER = 10


class LocalDirectories:
    """The data directories of brokers that this process can read (decision 046), for one reader of file ranges.

    A directory counts as local when this process can open its `meta.properties`, and the directory id there is the
    same. A reader that keeps finding other files than described (another mount under the same path) reads no directory
    any more. A reader without a free descriptor reads over the network for a while. Kafka has no such thing.
    """

    def __init__(self) -> None:
        self._is_local: dict[UUID, bool] = {}
        # Ranges in a row whose file was another one than described.
        self._misses = 0
        # So many further calls of `ids` find nothing.
        self._passed_over = 0

    def __repr__(self) -> str:
        return f"<LocalDirectories known={len(self._is_local)} misses={self._misses}>"

    def ids(self, directories: Iterable[RegisteredDirectory]) -> tuple[UUID, ...]:
        """The directories that this process can read."""
        if self._passed_over:
            self._passed_over -= 1
            return ()
        if self._misses >= _MISSES_MAX:
            return ()
        found = []
        for each in directories:
            is_local = self._is_local.get(each.directory_id)
            if is_local is None:
                try:
                    is_local = is_local_directory(each.path, each.directory_id)
                except TooManyOpenFiles:
                    continue
                self._is_local[each.directory_id] = is_local
            if is_local:
                found.append(each.directory_id)
        return tuple(found)

    def on_read(self, *, is_found: bool) -> None:
        """A file was the one that its broker had described, or was not."""
        self._misses = 0 if is_found else self._misses + 1

    def on_no_descriptor(self) -> None:
        """No descriptor was free for a file. The next ten calls of `ids` find nothing, so that the reader asks over the
        network.
        """
        self._passed_over = _LOOKS_PASSED_OVER
