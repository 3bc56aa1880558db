"""Files of the operating system that stay open while something refers to them, and slices of them.

A descriptor is shared by the disk that appends to the file and by all slices that wait to be sent, and closed with the
last of them: an answer that is dropped, whatever the way, leaves none behind. Kafka: `FileRecords.slice`, `writeTo`.
"""

import errno
import os
import socket

import numpy as np

from rayka.errors import StorageError
from rayka.log.disk_threads import DiskThread
from rayka.ports import FileIdentity, FileSlice

_SMALL_FILE_BYTES = 4 << 20  # the kernel frees so much in about 1 ms
_NO_SENDFILE = (errno.EINVAL, errno.ENOSYS, errno.EOPNOTSUPP)  # what file systems without it answer
_READ_BYTES_MAX = 256 << 10  # a socket takes little more at a time


class OpenFile:
    """One descriptor. Where it holds the last of a large file, it is closed on a thread: the kernel frees the pages
    then, which takes 300 ms for 1 GiB.
    """

    __slots__ = ("_removals", "descriptor", "is_writable")

    def __init__(self, path: str, flags: int, removals: DiskThread) -> None:
        self._removals = removals
        self.is_writable = flags & os.O_ACCMODE != os.O_RDONLY
        self.descriptor = -1
        self.descriptor = os.open(path, flags | os.O_CLOEXEC, 0o644)

    def __repr__(self) -> str:
        return f"<OpenFile {self.descriptor}>"

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
    """A slice of an open file, sent by `sendfile`: within the kernel, its pages are not even copied. Where the file
    system does not have that it is read, piece by piece.
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
