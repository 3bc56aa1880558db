"""Reading file ranges on the machine that holds the log: segments mapped, never copied (design §3).

With `rayka.log.local_disk` the only module that opens log files. A range names path, device and inode, so a segment
that was truncated (a new inode under the old name), removed or replaced since the answer is noticed, and the caller
asks again over the network. Where no descriptor is free, TooManyOpenFiles is raised. What was given stays valid: none
of it is cut off or overwritten. CRCs are the caller's business. Kafka has no such thing.
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

REMAPPED_BYTES_MIN = 16 << 20  # so a segment of 1 GiB is mapped eight times at most while it grows
ResultT = TypeVar("ResultT")


class MappedReader:
    """Maps segments and keeps the most recently used ones mapped, at most `max_maps` of them.

    Each map has a descriptor, and lasts as long as anything that was read from it is kept. So one that is in use is
    shared, and a segment that grows is mapped again only when it has doubled; what was appended since is copied.
    """

    def __init__(self, max_maps: int = 64) -> None:
        self._max_maps = max_maps
        self._maps: OrderedDict[tuple[int, int], mmap.mmap] = OrderedDict()  # (device, inode) -> bytes
        self._in_use: WeakValueDictionary[tuple[int, int], mmap.mmap] = WeakValueDictionary()

    def __repr__(self) -> str:
        return f"<MappedReader maps={len(self._maps)}/{self._max_maps}>"

    def read(self, file_range: FileRange, topic_id: UUID | None = None) -> memoryview | None:
        """The range's bytes, whole batches from `base_offset` on; None when they are not to be had here any more, or
        with `topic_id` are another topic's. A file that is mapped keeps its inode: one look when it is mapped will do.
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
        """Lets go of all maps; what was read stays readable as long as it is held."""
        self._maps.clear()


def _has_doubled(file_range: FileRange, mapped_bytes: int) -> bool:
    """Whether so much was appended since that the whole file is worth another map."""
    try:
        size_bytes = os.stat(file_range.path).st_size
    except OSError:
        return False
    return size_bytes >= mapped_bytes + max(mapped_bytes, REMAPPED_BYTES_MIN)


def copy_range(file_range: FileRange) -> np.ndarray | None:
    """The range's bytes in memory of this process's own; None when they are not to be had here any more. For a reader
    that reads each range once: then copying is cheaper than mapping a file that grows.
    """
    records = np.empty(file_range.size_bytes, dtype=np.uint8)
    count = _of_file(
        file_range, lambda descriptor, _: os.preadv(descriptor, (records.data,), file_range.position)
    )
    return records if count == records.size and _begins_at(records.data, file_range.base_offset) else None


def _of_file(file_range: FileRange, read: Callable[[int, int], ResultT]) -> ResultT | None:
    """What `read` makes of the file's descriptor and size, if it still is the one that the range was cut from."""
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
    """Raises TooManyOpenFiles where the error says nothing about the file."""
    if error.errno in NO_DESCRIPTOR:
        raise TooManyOpenFiles(f"cannot read {path}: {error.strerror}") from error


def _begins_at(records: memoryview, base_offset: int) -> bool:
    return len(records) >= HEADER_BYTES and int.from_bytes(records[:8], "big") == base_offset


def is_local_directory(path: str, directory_id: UUID) -> bool:
    """Whether the data directory with this id can be read under this path by this process."""
    try:
        with open(posixpath.join(path, META_PROPERTIES_FILE), "rb") as file:
            properties = decode_meta_properties(file.read())
    except OSError as error:
        _refuse_without_descriptor(path, error)
        return False
    return properties is not None and properties.directory_id == directory_id


def topic_id_beside(segment_path: str) -> UUID | None:
    """The topic whose partition's directory holds a segment now; None when this process cannot read it.

    A range that was kept for long needs it: file systems give inode numbers away again, so a topic deleted and
    created again may have its first segment under the same path and inode. Ask after mapping the file.
    """
    try:
        with open(posixpath.join(posixpath.dirname(segment_path), PARTITION_METADATA_FILE), "rb") as file:
            return decode_partition_metadata(file.read())
    except OSError as error:
        _refuse_without_descriptor(segment_path, error)
        return None


# Which data directories of brokers can be read on this machine (design §3).
#
# A directory counts as local only when its `meta.properties` can be opened here and names the same directory id. A
# reader
# that keeps finding other files than it was told of (another mount under the same path) reads none any more. A reader
# without a free descriptor gets its records over the network for a while. Kafka has no such thing.

_MISSES_MAX = 3
_LOOKS_PASSED_OVER = 10


class LocalDirectories:
    """What one reader of file ranges may ask for."""

    def __init__(self) -> None:
        self._is_local: dict[UUID, bool] = {}
        self._misses = 0  # in a row
        # The number of next looks that find nothing.
        self._passed_over = 0

    def __repr__(self) -> str:
        return f"<LocalDirectories known={len(self._is_local)} misses={self._misses}>"

    def ids(self, directories: Iterable[RegisteredDirectory]) -> tuple[UUID, ...]:
        """Those that this process can read."""
        if self._passed_over:
            self._passed_over -= 1
            return ()
        if self._misses >= _MISSES_MAX:
            return ()
        return tuple(each.directory_id for each in directories if self._can_read(each))

    def _can_read(self, directory: RegisteredDirectory) -> bool:
        known = self._is_local.get(directory.directory_id)
        if known is None:
            try:
                known = is_local_directory(directory.path, directory.directory_id)
            except TooManyOpenFiles:
                return False
            self._is_local[directory.directory_id] = known
        return known

    def on_read(self, *, is_found: bool) -> None:
        """A file was what its broker had described, or was not."""
        self._misses = 0 if is_found else self._misses + 1

    def on_no_descriptor(self) -> None:
        """No descriptor was free for a file: the next ten looks find nothing, so that readers ask over the network."""
        self._passed_over = _LOOKS_PASSED_OVER
