"""A disk in memory that knows what was synced, and breaks on request.

The second implementation of the `Disk` port, for tests and simulation. It keeps two states of everything: what the page
cache holds and what would survive a power cut. Faults: `process_crash` (the page cache survives, locks are gone),
`power_loss` (unsynced bytes and names are lost or torn), torn writes, EIO and other errors on writes, reads, syncs and
changes of names, a disk that hangs or fills up, bit flips. It is more hostile than most file systems: names and bytes
are lost independently of each other.

Invariants: `synced_bytes <= len(data)`; what a `map` returned never changes.
"""

import asyncio
import errno
import posixpath
from collections.abc import Callable, Iterable, Sequence
from random import Random
from typing import Any, Literal, NamedTuple

import numpy as np

from rayka.errors import DirectoryTaken, StorageError, TooManyOpenFiles
from rayka.log.disk_threads import HANG_TIMEOUT_S, hangs
from rayka.log.local_disk import TEMPORARY_SUFFIX, storage_error
from rayka.ports import Buffer, Disk, FileIdentity, FileSlice, Job, Lock, RunningJob
from rayka.testing.memory_tree import Entry, Inode, MemoryDirectory, MemoryTree

Operation = Literal["write", "read", "sync", "name"]
_DESCRIPTOR_WAIT_S = 0.1
_DEVICE = -1  # no real file system has it, so no reader mistakes a path of this disk for a file of its own


class DurableFile(NamedTuple):
    """A file whose name would survive a power cut, and so would its first `synced_bytes`."""

    inode: int
    data: bytearray
    synced_bytes: int


class _Fault:
    """One injected failure: `times` operations of this kind on a path that contains `where`, after the next `after`."""

    def __init__(self, operation: Operation, where: str, times: int, number: int, after: int) -> None:
        self.operation = operation
        self.where = where
        self.times = times
        self.number = number
        self.after = after

    def strikes(self, operation: Operation, path: str) -> bool:
        if self.operation != operation or self.where not in path or self.times == 0:
            return False
        if self.after > 0:
            self.after -= 1
            return False
        self.times -= 1
        return True


class MemoryDisk:
    """The `Disk` port in memory, with faults."""

    def __init__(self, *, hang_timeout_s: float = HANG_TIMEOUT_S) -> None:
        self.hang_timeout_s = hang_timeout_s
        self._hangs_where = ""
        self._mended = asyncio.Event()
        self._tree = MemoryTree()
        self._boot_count = 1
        self._locks: dict[str, _MemoryLock] = {}
        self._faults: list[_Fault] = []
        self._torn: dict[str, int] = {}
        self._free_bytes = 1 << 62
        # Operations that failed by `fail`.
        self.failure_count = 0

    def __repr__(self) -> str:
        return (
            f"<MemoryDisk boot={self._boot_count} free_bytes={self._free_bytes} locked={sorted(self._locks)}>"
        )

    # ---- Faults --------------------------------------------------------------------------------------------

    def process_crash(self) -> None:
        """The process is gone: its locks are released, its page cache stays."""
        self._locks.clear()
        self._torn.clear()

    def power_loss(self, random: Random) -> None:
        """The machine is gone: of what was not synced, a random prefix of names and of bytes is left, or
        garbage.
        """
        self.process_crash()
        self._boot_count += 1
        self._tree.lose_power(random)

    def fail(
        self,
        operation: Operation,
        where: str = "",
        times: int = 1,
        *,
        number: int = errno.EIO,
        after: int = 0,
    ) -> None:
        """Operations of this kind on paths that contain `where` end with this errno: `times` of them (-1: all), after
        the next `after`. A failed write writes nothing. With EMFILE no descriptor is free for them: calls that are
        awaited wait then.
        """
        self._faults.append(_Fault(operation, where, times, number, after))

    def hang(self, where: str) -> None:
        """Calls that are awaited, on paths that contain `where`, do not return until the disk is mended, and end with a
        StorageError after `hang_timeout_s`.
        """
        self._hangs_where = where

    def mend(self) -> None:
        """No failure that was arranged happens any more."""
        self._faults.clear()
        self._torn.clear()
        self._hangs_where = ""
        self._mended.set()
        self._mended = asyncio.Event()

    def tear_next_append(self, path: str, kept_bytes: int) -> None:
        """The next append to the path writes only this many bytes, then fails."""
        self._torn[path] = kept_bytes

    def fill_up(self, after_bytes: int = 0) -> None:
        """After this many more bytes the disk is full; the write that meets the end is torn."""
        self._free_bytes = after_bytes

    def flip_bit(self, path: str, position: int, bit: int = 0) -> None:
        """Bit rot: one bit of the file is different from now on, for readers that map it anew."""
        inode = self._tree.inode("flip", path)
        inode.data[position] ^= 1 << bit
        inode.snapshot = b""

    def durable_names(self, directory: str) -> list[str]:
        """The names that the directory surely holds after a power cut, ascending."""
        found = self._tree.find_durable(directory)
        return sorted(found.durable) if isinstance(found, MemoryDirectory) else []

    def durable_file(self, path: str) -> DurableFile | None:
        """The file as a power cut at its worst would leave it."""
        found = self._tree.find_durable(path)
        return DurableFile(found.number, found.data, found.synced_bytes) if isinstance(found, Inode) else None

    # ---- Looking -------------------------------------------------------------------------------------------

    def exists(self, path: str) -> bool:
        return self._tree.find(path) is not None

    def size(self, path: str) -> int:
        return len(self._tree.inode("look at", path).data)

    def identity(self, path: str) -> FileIdentity:
        inode = self._tree.inode("look at", path)
        return FileIdentity(device=_DEVICE, inode=inode.number, size_bytes=len(inode.data))

    def list(self, directory: str) -> list[str]:
        return sorted(self._tree.directory("list", directory).entries)

    def free_bytes(self, path: str) -> int:
        self._tree.directory("look at", path)
        return self._free_bytes

    def boot_id(self) -> str:
        return f"boot-{self._boot_count}"

    # ---- Reading -------------------------------------------------------------------------------------------

    def read_at(self, path: str, position: int, size_bytes: int) -> bytes:
        self._maybe_fail("read", "read", path)
        return bytes(self._tree.inode("read", path).data[position : position + size_bytes])

    def slice(self, path: str, position: int, size_bytes: int) -> FileSlice:
        self._maybe_fail("read", "read", path)
        inode = self._tree.inode("read", path)
        if len(inode.data) < position + size_bytes:
            raise storage_error("read", path, errno.EIO)
        return MemorySlice(inode, path, position, size_bytes)

    def map(self, path: str) -> memoryview:
        self._maybe_fail("read", "map", path)
        return memoryview(self._tree.inode("map", path).image())

    # ---- Writing -------------------------------------------------------------------------------------------

    def append(self, path: str, buffers: Sequence[Buffer]) -> int:
        self._maybe_fail("write", "append to", path)
        entry = self._tree.find(path)
        inode = self._tree.create("append to", path) if entry is None else self._tree.inode("append to", path)
        position = len(inode.data)
        self._write(inode, "append to", path, b"".join(map(bytes, buffers)), self._torn.pop(path, None))
        return position

    def write(self, path: str, data: Buffer) -> None:
        self._maybe_fail("write", "write", path)
        aside = path + TEMPORARY_SUFFIX
        try:
            self._write(self._tree.create("write", aside), "write", path, bytes(data), None)
        except StorageError:
            self._give_back(aside)
            raise
        self.rename(aside, path)

    def start(self, job: Job) -> RunningJob:
        return InlineJob(job, self)

    async def copy_prefix(self, source: str, target: str, size_bytes: int) -> None:
        await self._while_syncing()
        await self._while_hanging("copy", (source, target))
        await self._with_descriptor(lambda: self.copy_prefix_now(source, target, size_bytes))

    def copy_prefix_now(self, source: str, target: str, size_bytes: int) -> None:
        """`copy_prefix` for tests without an event loop."""
        self._maybe_fail("write", "copy", source)
        data = bytes(self._tree.inode("copy", source).data[:size_bytes])
        if len(data) < size_bytes:
            raise storage_error("copy", source, errno.EIO)
        copy = self._tree.create("copy", target)
        try:
            self._write(copy, "copy", source, data, None)
        except StorageError:
            self._give_back(target)
            raise
        copy.synced_bytes = size_bytes

    def cut(self, path: str, size_bytes: int) -> None:
        self._maybe_fail("write", "cut", path)
        inode = self._tree.inode("cut", path)
        self._free_bytes += max(0, len(inode.data) - size_bytes)
        inode.cut(size_bytes)

    def _give_back(self, path: str) -> None:
        """The part of a file that was written takes no room."""
        self._free_bytes += len(self._tree.inode("remove", path).data)
        self.unlink(path)

    def _write(self, inode: Inode, action: str, path: str, data: bytes, torn_at: int | None) -> None:
        kept_bytes = min(len(data), self._free_bytes, len(data) if torn_at is None else torn_at)
        inode.data += data[:kept_bytes]
        self._free_bytes -= kept_bytes
        if kept_bytes < len(data) or torn_at is not None:
            raise storage_error(action, path, errno.EIO if torn_at is not None else errno.ENOSPC)

    # ---- Names ---------------------------------------------------------------------------------------------

    def make_directory(self, path: str) -> None:
        self._maybe_fail("name", "create directory", path)
        self._tree.make_directory(path)

    def remove_directory(self, path: str) -> None:
        self._tree.directory("remove directory", path)
        self._tree.remove("remove directory", path)

    async def discard(self, path: str) -> None:
        """File by file, so the process may end on the way."""
        if not self.exists(path):
            return
        await self._while_hanging("remove", (path,))
        await self._with_descriptor(lambda: self._maybe_fail("write", "remove", path))
        if not isinstance(self._tree.find(path), MemoryDirectory):
            self.unlink(path)
            return
        for name in self.list(path):
            await asyncio.sleep(0)
            each = posixpath.join(path, name)
            if isinstance(self._tree.find(each), MemoryDirectory):
                await self.discard(each)
            else:
                self.unlink(each)
        self.remove_directory(path)

    def rename(self, source: str, target: str) -> None:
        self._maybe_fail("name", "rename", source)
        self._tree.rename(source, target)

    def unlink(self, path: str) -> None:
        self._maybe_fail("name", "remove", path)
        self._tree.inode("remove", path)
        self._tree.remove("remove", path)

    def lock(self, path: str) -> Lock:
        self._maybe_fail("write", "lock", path)
        if path in self._locks:
            raise DirectoryTaken(f"{path} is locked by another node of this process")
        if not self.exists(path):
            self._tree.create("lock", path)
        lock = self._locks[path] = _MemoryLock(self._locks, path)
        return lock

    # ---- Durability ----------------------------------------------------------------------------------------

    async def sync(
        self, files: Sequence[str], directories: Sequence[str], *, in_background: bool = False
    ) -> None:
        wanted = _wanted(map(self._tree.find, files))
        # Others run meanwhile, as on the real disk; what they write is not covered.
        await self._while_syncing()
        await self._while_hanging("sync", (*files, *directories))
        await self._with_descriptor(lambda: self._sync(wanted, files, directories))

    async def _while_syncing(self) -> None:
        """The time that a sync takes; a disk that is slower overrides this."""
        await asyncio.sleep(0)

    def sync_now(self, files: Sequence[str], directories: Sequence[str]) -> None:
        """`sync` for tests without an event loop."""
        wanted = _wanted(map(self._tree.find, files))
        self._sync(wanted, files, directories)

    def _sync(
        self, wanted: Sequence[tuple[Inode, int, int]], files: Sequence[str], directories: Sequence[str]
    ) -> None:
        for path in (*files, *directories):
            self._maybe_fail("sync", "sync", path)
        for inode, size_bytes, cut_count in wanted:
            inode.sync(size_bytes, cut_count)
        for directory in directories:
            entry = self._tree.find(directory)
            if isinstance(entry, MemoryDirectory):
                entry.sync()
        self._on_synced()

    def _on_synced(self) -> None:
        """Something more is durable."""

    def _maybe_fail(self, operation: Operation, action: str, path: str) -> None:
        for fault in self._faults:
            if fault.strikes(operation, path):
                self.failure_count += 1
                raise storage_error(action, path, fault.number)

    async def _while_hanging(self, action: str, paths: Sequence[str]) -> None:
        if not self._hangs_where or not any(self._hangs_where in each for each in paths):
            return
        try:
            async with asyncio.timeout(self.hang_timeout_s):
                await self._mended.wait()
        except TimeoutError:
            raise hangs(f"{action} {paths[0]}", self.hang_timeout_s) from None

    async def _with_descriptor(self, call: Callable[[], None]) -> None:
        """Makes the call, again and again while no descriptor is free."""
        while True:
            try:
                return call()
            except TooManyOpenFiles:
                await asyncio.sleep(_DESCRIPTOR_WAIT_S)


class InlineJob:
    """A job in its caller's own turns: nothing of it depends on another process."""

    def __init__(self, job: Job, disk: Disk) -> None:
        self._job = job
        self._steps = job.run(disk)

    def __repr__(self) -> str:
        return f"<InlineJob {self._job!r}>"

    async def next(self, answer: object) -> Any:
        try:
            return self._steps.send(answer)
        except StopIteration:
            return None

    async def end(self) -> None:
        self._steps.close()


class MemorySlice(FileSlice):
    """A slice of a file in memory, read as late as a real slice: it shows later truncations and changes."""

    __slots__ = ("_inode",)

    def __init__(self, inode: Inode, path: str, position: int, size: int) -> None:
        super().__init__(path, position, size)
        self._inode = inode

    def identity(self) -> FileIdentity:
        return FileIdentity(device=_DEVICE, inode=self._inode.number, size_bytes=len(self._inode.data))

    def read(self) -> np.ndarray:
        data = bytes(self._inode.data[self.position : self.position + self.size])
        if len(data) < self.size:
            raise storage_error("read", self.path, errno.EIO)
        return np.frombuffer(data, dtype=np.uint8)


class _MemoryLock:
    def __init__(self, locks: "dict[str, _MemoryLock]", path: str) -> None:
        self._locks = locks
        self._path = path

    def release(self) -> None:
        if self._locks.get(self._path) is self:  # after a crash another process may hold it
            del self._locks[self._path]


def _wanted(entries: Iterable[Entry | None]) -> list[tuple[Inode, int, int]]:
    """The part of these files that a sync covers if it begins now."""
    return [(each, len(each.data), each.cut_count) for each in entries if isinstance(each, Inode)]
