"""A copied prefix shares its whole blocks with the file that it is of, where the file system can (`FICLONERANGE`)."""

import asyncio
import errno
import fcntl
import os
import struct
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from rayka.errors import DiskFull, StorageError
from rayka.log.local_disk import LocalDisk

FICLONERANGE = 0x4020940D
CANNOT_SHARE = (errno.EOPNOTSUPP, errno.ENOTTY, errno.EXDEV, errno.EINVAL, errno.ENOSYS)
REST_BYTES = 5


class Calls:
    """Results of the system calls of one copy. `share` stands for the call, and may make the real one."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, share: Callable[[int, int, bytes], None]) -> None:
        self.errors: list[int | None] = []
        self.copied_from: list[int] = []
        copy_file_range = os.copy_file_range

        def ioctl(descriptor: int, request: int, argument: bytes) -> None:
            assert request == FICLONERANGE
            try:
                share(descriptor, request, argument)
            except OSError as error:
                self.errors.append(error.errno)
                raise
            self.errors.append(None)

        def recorded(source: int, target: int, count: int, position: int) -> int:
            self.copied_from.append(position)
            return copy_file_range(source, target, count, position)

        monkeypatch.setattr(fcntl, "ioctl", ioctl)
        monkeypatch.setattr(os, "copy_file_range", recorded)


class Copy:
    """A prefix of three blocks and a rest, of a file that is longer."""

    def __init__(self, directory: str) -> None:
        self.source, self.target = f"{directory}/a", f"{directory}/b"
        self.shared_bytes = 3 * os.stat(directory).st_blksize
        self.size_bytes = self.shared_bytes + REST_BYTES
        content = bytes(number % 251 for number in range(self.size_bytes + 1000))
        Path(self.source).write_bytes(content)
        self.expected = content[: self.size_bytes]

    def run(self) -> None:
        disk = LocalDisk()
        try:
            asyncio.run(disk.copy_prefix(self.source, self.target, self.size_bytes))
        finally:
            disk.close()


@pytest.fixture
def copy() -> Iterator[Copy]:
    with tempfile.TemporaryDirectory() as directory:
        yield Copy(directory)


def test_the_real_call_shares_whole_blocks_or_everything_is_copied(
    copy: Copy, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = Calls(monkeypatch, fcntl.ioctl)
    copy.run()
    assert Path(copy.target).read_bytes() == copy.expected
    (error,) = calls.errors
    assert error is None or error in CANNOT_SHARE
    assert calls.copied_from[0] == (copy.shared_bytes if error is None else 0)


def test_only_the_rest_is_copied_behind_what_is_shared(copy: Copy, monkeypatch: pytest.MonkeyPatch) -> None:
    def share(descriptor: int, request: int, argument: bytes) -> None:
        source, begin, size_bytes, at = struct.unpack("=qQQQ", argument)
        os.pwrite(descriptor, os.pread(source, size_bytes, begin), at)

    calls = Calls(monkeypatch, share)
    copy.run()
    assert Path(copy.target).read_bytes() == copy.expected
    assert calls.copied_from == [copy.shared_bytes]


@pytest.mark.parametrize("number", CANNOT_SHARE)
def test_where_blocks_cannot_be_shared_all_is_copied(
    copy: Copy, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    def share(descriptor: int, request: int, argument: bytes) -> None:
        raise OSError(number, os.strerror(number))

    calls = Calls(monkeypatch, share)
    copy.run()
    assert Path(copy.target).read_bytes() == copy.expected
    assert calls.copied_from[0] == 0


@pytest.mark.parametrize(("number", "error"), [(errno.ENOSPC, DiskFull), (errno.EIO, StorageError)])
def test_a_disk_that_fails_or_is_full_is_not_asked_for_a_copy_too(
    copy: Copy, monkeypatch: pytest.MonkeyPatch, number: int, error: type[StorageError]
) -> None:
    def share(descriptor: int, request: int, argument: bytes) -> None:
        raise OSError(number, os.strerror(number))

    calls = Calls(monkeypatch, share)
    with pytest.raises(error, match="cannot copy"):
        copy.run()
    assert (calls.copied_from, os.path.exists(copy.target)) == ([], False)
