"""The real disk: files of the operating system, a bounded number of them open.

Files are opened read-only until they are written, so a disk that is mounted read-only can be read. When no descriptor
is free, files that are kept open are closed. If there are none, a call on the event loop raises TooManyOpenFiles, and a
call on a thread waits.

Invariants: no bytes are overwritten, and only `cut` takes some off (decision 039), so the bytes that a reader was given
never change. Appends and reads are synchronous and go to the page cache. Calls that would hold up the event loop run on
threads of the data directory (`disk_threads`), with descriptors of their own: syncs, copies, the removal of
directories, and the closing of large removed files (`OpenFile`). A data directory is a directory that is locked. Jobs
run in other processes (`job_process`). Every OSError becomes a StorageError with path and cause. Kafka has no such
layer (FileRecords, `Utils.flushDir`).
"""

import asyncio
import errno
import fcntl
import logging
import mmap
import os
import socket
import struct
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from types import TracebackType
from typing import TypeVar

import numpy as np

from rayka import descriptors
from rayka.errors import DirectoryTaken, DiskFull, DiskReadOnly, StorageError, TooManyOpenFiles
from rayka.log.disk_threads import HANG_TIMEOUT_S, Call, DiskThread, DiskThreads, Progress, Work
from rayka.log.job_process import JobProcesses
from rayka.ports import Buffer, FileIdentity, FileSlice, Job, Lock, RunningJob

# ---- Open files and slices of them ---------------------------------------------------------------------------------

# The kernel frees so much in about 1 ms.
_SMALL_FILE_BYTES = 4 << 20
# Errors of file systems without sendfile.
_NO_SENDFILE = (errno.EINVAL, errno.ENOSYS, errno.EOPNOTSUPP)
# A socket takes little more at a time.
_READ_BYTES_MAX = 256 << 10


class OpenFile:
    """One descriptor, shared by the disk that appends to the file and by all slices that wait to be sent. The last of
    them closes it, so an answer that is dropped leaves no descriptor behind. Kafka: `FileRecords.slice`, `writeTo`.

    A descriptor that holds the last of a large file is closed on a thread: the kernel frees the pages then, 300 ms for
    1 GiB.
    """

    __slots__ = ("_removals", "descriptor", "is_writable")

    def __init__(self, path: str, flags: int, removals: DiskThread) -> None:
        self._removals = removals
        self.is_writable = flags & os.O_ACCMODE != os.O_RDONLY
        self.descriptor = -1
        self.descriptor = os.open(path, flags | os.O_CLOEXEC, 0o644)

    def __del__(self) -> None:
        if self.descriptor < 0:
            return
        status = os.fstat(self.descriptor)
        if status.st_nlink == 0 and status.st_size > _SMALL_FILE_BYTES:
            # False: the disk is closed.
            if not self._removals.post(os.close, self.descriptor):
                os.close(self.descriptor)
        else:
            os.close(self.descriptor)


class LocalSlice(FileSlice):
    """A slice of an open file, sent by `sendfile`: within the kernel, without a copy of its pages. On a file system
    without `sendfile` the slice is read, piece by piece.
    """

    __slots__ = ("_file",)

    def __init__(self, file: OpenFile, path: str, position: int, size: int) -> None:
        super().__init__(path, position, size)
        self._file = file

    def identity(self) -> FileIdentity:
        status = os.fstat(self._file.descriptor)
        return FileIdentity(device=status.st_dev, inode=status.st_ino, size_bytes=status.st_size)

    def read(self) -> np.ndarray:
        records = np.empty(self.size, dtype=np.uint8)
        try:
            count = os.preadv(self._file.descriptor, (records.data,), self.position)
        except OSError as error:
            raise self._failed(error) from error
        if count < self.size:
            raise self._cut()
        return records

    def send(self, connection: socket.socket, begin: int, bytes_max: int) -> int:
        count = min(self.size - begin, bytes_max)
        try:
            sent = os.sendfile(connection.fileno(), self._file.descriptor, self.position + begin, count)
        except OSError as error:
            if error.errno == errno.EIO:
                raise self._failed(error) from error
            if error.errno not in _NO_SENDFILE:
                raise
            piece = LocalSlice(self._file, self.path, self.position + begin, min(count, _READ_BYTES_MAX))
            sent = connection.send(piece.read().data)
        if not sent:
            raise self._cut()
        return sent

    def _failed(self, error: OSError) -> StorageError:
        return StorageError(f"cannot read {self.path}: {error.strerror}")

    def _cut(self) -> StorageError:
        found = self.identity().size_bytes
        return StorageError(f"{self.path}: expected {self.position + self.size} bytes, found {found}")


# Of a file that is written aside, then renamed; a file left there is removed when a log opens.
TEMPORARY_SUFFIX = ".tmp"
_BOOT_ID_PATH = "/proc/sys/kernel/random/boot_id"
# Linux's IOV_MAX.
_BUFFERS_PER_WRITE = 1024
_LOCK_NOTE_BYTES = 64
# Copied at a time, as one step of progress.
_COPY_BYTES = 16 << 20
_FICLONERANGE = 0x4020940D
_NO_COPY_FILE_RANGE = (errno.ENOSYS, errno.EXDEV, errno.EINVAL, errno.EOPNOTSUPP)
_OPEN_FILES_MAX = 512
# One part in eight of the process's descriptors, so that the disks of a few nodes fit into one process.
_OPEN_FILES_SHARE = 8
# Files that are closed together when no descriptor is free.
_CLOSED_AT_ONCE = 8
_DESCRIPTOR_WAIT_S = 0.1
# Waits from one line in the log to the next.
_WAITS_PER_WARNING = 100
_logger = logging.getLogger(__name__)
ResultT = TypeVar("ResultT")


class _StorageErrors:
    """Turns an OSError of its block into a StorageError with the action and the path."""

    __slots__ = ("_action", "_path")

    def __init__(self, action: str, path: str) -> None:
        self._action = action
        self._path = path

    def __enter__(self) -> None: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None
    ) -> None:
        if isinstance(error, OSError):
            raise storage_error(self._action, self._path, error.errno) from error


def storage_error(action: str, path: str, number: int | None) -> StorageError:
    """The StorageError for a failed call on a path, by its errno."""
    cause = os.strerror(number) if number is not None else "unknown error"
    if number in (errno.ENOSPC, errno.EDQUOT):
        return DiskFull(f"cannot {action} {path}: disk full ({cause}); free some space")
    if number == errno.EROFS:
        return DiskReadOnly(f"cannot {action} {path}: its file system is read-only; mount it writable")
    if number in descriptors.NO_DESCRIPTOR:
        return TooManyOpenFiles(f"cannot {action} {path}: {cause}; raise the limit (ulimit -n)")
    return StorageError(f"cannot {action} {path}: {cause}")


class LocalDisk:
    """The `Disk` port on this machine's file systems. `max_open_files` bounds the descriptors kept open; the default
    follows from the limit of the process.
    """

    def __init__(self, max_open_files: int | None = None, *, hang_timeout_s: float = HANG_TIMEOUT_S) -> None:
        """A call on a thread that makes no progress for `hang_timeout_s` fails."""
        share = descriptors.limit() // _OPEN_FILES_SHARE
        self._max_open_files = max_open_files or max(1, min(_OPEN_FILES_MAX, share))
        # By path, least recently used first.
        self._files: OrderedDict[str, OpenFile] = OrderedDict()
        self._threads = DiskThreads(hang_timeout_s)
        self._jobs = JobProcesses()

    def __repr__(self) -> str:
        return f"<LocalDisk open={len(self._files)}/{self._max_open_files}>"

    def close(self) -> None:
        """Closes the open files and ends the threads; locks stay held."""
        self._files.clear()
        self._threads.close()
        self._jobs.close()

    # ---- Looking -------------------------------------------------------------------------------------------

    def exists(self, path: str) -> bool:
        return os.path.exists(path)

    def size(self, path: str) -> int:
        with _StorageErrors("look at", path):
            return os.stat(path).st_size

    def identity(self, path: str) -> FileIdentity:
        with _StorageErrors("look at", path):
            status = os.stat(path)
            return FileIdentity(device=status.st_dev, inode=status.st_ino, size_bytes=status.st_size)

    def list(self, directory: str) -> list[str]:
        with _StorageErrors("list", directory):
            return sorted(self._make_way(lambda: os.listdir(directory)))

    def free_bytes(self, path: str) -> int:
        with _StorageErrors("look at", path):
            status = os.statvfs(path)
            return status.f_bavail * status.f_frsize

    def boot_id(self) -> str:
        with _StorageErrors("read", _BOOT_ID_PATH), self._make_way(lambda: open(_BOOT_ID_PATH)) as file:
            return file.read().strip()

    # ---- Reading -------------------------------------------------------------------------------------------

    def read_at(self, path: str, position: int, size_bytes: int) -> bytes:
        with _StorageErrors("read", path):
            return os.pread(self._file(path).descriptor, size_bytes, position)

    def slice(self, path: str, position: int, size_bytes: int) -> FileSlice:
        with _StorageErrors("read", path):
            piece = LocalSlice(self._file(path), path, position, size_bytes)
            if piece.identity().size_bytes < position + size_bytes:
                raise OSError(errno.EIO, "the file ended early")
            return piece

    def map(self, path: str) -> memoryview:
        with _StorageErrors("map", path):
            # Kept in a variable, or `_make_way` might close the file.
            file = self._file(path)
            size_bytes = os.fstat(file.descriptor).st_size
            if size_bytes == 0:
                return memoryview(b"")
            # A map has its own descriptor.
            return memoryview(
                self._make_way(lambda: mmap.mmap(file.descriptor, size_bytes, access=mmap.ACCESS_READ))
            )

    # ---- Writing -------------------------------------------------------------------------------------------

    def append(self, path: str, buffers: Sequence[Buffer]) -> int:
        with _StorageErrors("append to", path):
            descriptor = self._writable(path, create=True).descriptor
            position = os.fstat(descriptor).st_size
            _write_all(descriptor, buffers)
            return position

    def write(self, path: str, data: Buffer) -> None:
        aside = path + TEMPORARY_SUFFIX
        with _StorageErrors("write", path):
            self._forget(aside)
            with _filling(aside, self._make_way(lambda: _created(aside))) as descriptor:
                _write_all(descriptor, (data,))
            os.rename(aside, path)
        self._forget(path)

    async def copy_prefix(self, source: str, target: str, size_bytes: int) -> None:
        self._forget(target)
        await self._on_thread(target, Work.COPY, _copy_and_sync, source, target, size_bytes)

    def cut(self, path: str, size_bytes: int) -> None:
        with _StorageErrors("cut", path):
            os.ftruncate(self._writable(path).descriptor, size_bytes)

    # ---- Names ---------------------------------------------------------------------------------------------

    def make_directory(self, path: str) -> None:
        with _StorageErrors("create directory", path):
            os.makedirs(path, exist_ok=True)

    async def discard(self, path: str) -> None:
        self._forget_under(path)
        await self._on_thread(path, Work.REMOVAL, _discard, path)

    def rename(self, source: str, target: str) -> None:
        if os.path.isdir(source):
            self._forget_under(source)
        self._forget(source)
        self._forget(target)
        with _StorageErrors("rename", source), self._outlived(target):
            os.rename(source, target)

    def unlink(self, path: str) -> None:
        self._forget(path)
        with _StorageErrors("remove", path), self._outlived(path):
            os.unlink(path)

    def lock(self, path: str) -> Lock:
        with _StorageErrors("lock", path):
            descriptor = self._make_way(lambda: os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644))
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                holder = os.pread(descriptor, _LOCK_NOTE_BYTES, 0).decode(errors="replace").strip()
                os.close(descriptor)
                raise DirectoryTaken(f"{path} is locked by {holder or 'another process'}") from None
            os.pwrite(descriptor, f"process {os.getpid()}".ljust(_LOCK_NOTE_BYTES).encode(), 0)
            self._threads.add_directory(os.path.dirname(path))
            return _DescriptorLock(descriptor)

    def start(self, job: Job) -> RunningJob:
        return self._jobs.start(job)

    # ---- Durability ----------------------------------------------------------------------------------------

    async def sync(
        self, files: Sequence[str], directories: Sequence[str], *, in_background: bool = False
    ) -> None:
        paths = (*files, *directories)
        if paths:
            work = Work.BACKGROUND_SYNC if in_background else Work.SYNC
            await self._on_thread(paths[0], work, _sync_all, tuple(files), tuple(directories))

    async def _on_thread(self, path: str, work: Work, call: Call, *given: object) -> None:
        """Makes the call on the thread, and repeats it while no descriptor is free: such a call has changed nothing."""
        wait_count = 0
        while True:
            try:
                return await self._threads.of(path, work).run(call, *given)
            except TooManyOpenFiles as error:
                if wait_count % _WAITS_PER_WARNING == 0:
                    _logger.error("%s; it is tried until a descriptor is free", error)
            wait_count += 1
            self._close_some()
            await asyncio.sleep(_DESCRIPTOR_WAIT_S)

    # ---- Open files ----------------------------------------------------------------------------------------

    def _file(self, path: str) -> OpenFile:
        """The file, open for reading."""
        file = self._files.get(path)
        if file is None:
            return self._opened(path, os.O_RDONLY)
        self._files.move_to_end(path)
        return file

    def _writable(self, path: str, *, create: bool = False) -> OpenFile:
        """The file, open for reading and writing. Earlier readers keep the descriptor that they have."""
        file = self._files.get(path)
        if file is not None and file.is_writable:
            self._files.move_to_end(path)
            return file
        return self._opened(path, os.O_RDWR | os.O_APPEND | (os.O_CREAT if create else 0))

    def _opened(self, path: str, flags: int) -> OpenFile:
        file = self._make_way(lambda: OpenFile(path, flags, self._threads.of(path, Work.REMOVAL)))
        self._files[path] = file
        self._files.move_to_end(path)
        if len(self._files) > self._max_open_files:
            self._files.popitem(last=False)
        return file

    def _make_way(self, opening: Callable[[], ResultT]) -> ResultT:
        """Calls `opening`; closes files that are kept open while no descriptor is free. Raises OSError."""
        while True:
            try:
                return opening()
            except OSError as error:
                if error.errno not in descriptors.NO_DESCRIPTOR or not self._files:
                    raise
            self._close_some()

    def _close_some(self) -> None:
        """Closes the files that were not used for longest. A file stays open while a slice of it waits to be sent."""
        for _ in range(min(len(self._files), _CLOSED_AT_ONCE)):
            self._files.popitem(last=False)

    @contextmanager
    def _outlived(self, path: str) -> Iterator[None]:
        """Keeps a file that loses its last name in the block open until the end of the block; `OpenFile` closes it."""
        try:
            outlived = self._make_way(
                lambda: OpenFile(path, os.O_RDONLY, self._threads.of(path, Work.REMOVAL))
            )
        except OSError:
            outlived = None
        yield
        del outlived

    def _forget(self, path: str) -> None:
        self._files.pop(path, None)

    def _forget_under(self, path: str) -> None:
        for each in [each for each in self._files if each == path or each.startswith(path + "/")]:
            self._forget(each)


class _DescriptorLock:
    """An exclusive flock. It ends with the descriptor, so also with the process."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor

    def release(self) -> None:
        os.close(self._descriptor)


def _write_all(descriptor: int, buffers: Sequence[Buffer]) -> None:
    """Writes with one writev if the kernel takes everything at once; it may take less when the disk is nearly full."""
    pending = [memoryview(each).cast("B") for each in buffers if len(each)]  # type: ignore[arg-type]
    while pending:
        written = os.writev(descriptor, pending[:_BUFFERS_PER_WRITE])
        while pending and written >= len(pending[0]):
            written -= len(pending.pop(0))
        if written:
            pending[0] = pending[0][written:]


def _created(path: str) -> int:
    """The descriptor of a new inode under this name; removes a file of an earlier attempt."""
    with suppress(FileNotFoundError):
        os.unlink(path)
    return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644)


@contextmanager
def _filling(path: str, descriptor: int) -> Iterator[int]:
    """Closes the new file at the end. Removes it after a failure: on a full disk a part of it would take room."""
    try:
        yield descriptor
    except OSError:
        with suppress(OSError):
            os.unlink(path)
        raise
    finally:
        os.close(descriptor)


def _copy_and_sync(on_progress: Progress, source: str, target: str, size_bytes: int) -> None:
    on_progress(f"copy {source}")
    with _StorageErrors("copy", source):
        from_descriptor = os.open(source, os.O_RDONLY | os.O_CLOEXEC)
        try:
            with _filling(target, _created(target)) as to_descriptor:
                if os.fstat(from_descriptor).st_size < size_bytes:
                    raise OSError(errno.EIO, "the file ended early")
                copied = _share(from_descriptor, to_descriptor, size_bytes)
                # A copy that cannot succeed must not take the last room from all others first.
                room = os.fstatvfs(to_descriptor)
                if room.f_bavail * room.f_frsize < size_bytes - copied:
                    raise OSError(errno.ENOSPC, "not enough room for the copy")
                for _ in _copying(from_descriptor, to_descriptor, copied, size_bytes):
                    on_progress(f"copy {source}")
                os.fdatasync(to_descriptor)
        finally:
            os.close(from_descriptor)


def _share(from_descriptor: int, to_descriptor: int, size_bytes: int) -> int:
    """Shares whole blocks of the file with the new one; returns how many bytes, 0 where the file system cannot."""
    shared_bytes = size_bytes - size_bytes % os.fstat(from_descriptor).st_blksize
    if shared_bytes == 0:
        return 0
    try:
        fcntl.ioctl(to_descriptor, _FICLONERANGE, struct.pack("=qQQQ", from_descriptor, 0, shared_bytes, 0))
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EIO):
            raise
        return 0
    return shared_bytes


def _copying(from_descriptor: int, to_descriptor: int, position: int, size_bytes: int) -> Iterator[None]:
    """Copies the rest, piece by piece, within the kernel; `sendfile` is for file systems without `copy_file_range`."""
    os.lseek(to_descriptor, position, os.SEEK_SET)
    is_known = True
    while position < size_bytes:
        wanted_bytes = min(size_bytes - position, _COPY_BYTES)
        try:
            if is_known:
                copied = os.copy_file_range(from_descriptor, to_descriptor, wanted_bytes, position)
            else:
                copied = os.sendfile(to_descriptor, from_descriptor, position, wanted_bytes)
        except OSError as error:
            if not is_known or error.errno not in _NO_COPY_FILE_RANGE:
                raise
            is_known = False
            continue
        if copied == 0:
            raise OSError(errno.EIO, "the file ended early")
        position += copied
        yield


def _discard(on_progress: Progress, path: str) -> None:
    """Removes a file, or a directory with everything in it. Skips paths that are gone already."""
    with _StorageErrors("remove", path), suppress(FileNotFoundError):
        on_progress(f"remove {path}")
        if not os.path.isdir(path) or os.path.islink(path):
            os.unlink(path)
            return
        for name in os.listdir(path):
            _discard(on_progress, os.path.join(path, name))
        os.rmdir(path)


def _sync_all(on_progress: Progress, files: Sequence[str], directories: Sequence[str]) -> None:
    named = [(path, os.O_RDONLY) for path in files]
    named += [(path, os.O_RDONLY | os.O_DIRECTORY) for path in directories]
    for path, flags in named:
        on_progress(f"sync {path}")
        # A file that was renamed or removed in between: the data that the caller waits for is elsewhere or gone.
        with _StorageErrors("sync", path), suppress(FileNotFoundError):
            descriptor = os.open(path, flags | os.O_CLOEXEC)
            try:
                os.fsync(descriptor)
            finally:
                os.close(descriptor)
