"""The names and inodes of a disk in memory: as the page cache has them, and as a power cut would leave them.

Invariants: `synced_bytes <= len(data)`; names and bytes are lost independently of each other, more hostile than most
file systems.
"""

import errno
import posixpath
from functools import lru_cache
from random import Random
from typing import Union

from rayka.log.local_disk import storage_error


class Inode:
    """One file's bytes; those below `synced_bytes` survive a power cut."""

    __slots__ = ("before_cut", "cut_count", "data", "number", "snapshot", "synced_bytes")

    def __init__(self, number: int) -> None:
        self.number = number
        self.data = bytearray()
        self.before_cut = b""  # all that was there before a cut that is not synced
        self.cut_count = 0
        self.synced_bytes = 0
        self.snapshot = b""

    def image(self) -> bytes:
        """The bytes as they are now, shared by all that map the file before it grows."""
        if len(self.snapshot) != len(self.data):
            self.snapshot = bytes(self.data)
        return self.snapshot

    def cut(self, size_bytes: int) -> None:
        """Takes off what lies behind."""
        self.before_cut = self.before_cut or bytes(self.data)
        self.cut_count += 1
        del self.data[size_bytes:]
        self.synced_bytes = min(self.synced_bytes, size_bytes)
        self.snapshot = b""

    def sync(self, size_bytes: int, cut_count: int) -> None:
        """So many bytes are on the platter, and nothing of what these cuts took; a later cut came too late for it."""
        if cut_count == self.cut_count:
            self.synced_bytes = max(self.synced_bytes, size_bytes)
            self.before_cut = b""

    def lose_power(self, random: Random) -> None:
        """Cuts the unsynced bytes at a random point. Behind it sometimes stands what was cut off before, sometimes the
        file keeps its size and there are zeros instead.
        """
        size_bytes = len(self.data)
        kept_bytes = random.randint(self.synced_bytes, size_bytes)
        del self.data[kept_bytes:]
        if self.before_cut and random.random() < 0.5:
            self.data += self.before_cut[kept_bytes:]
        elif random.random() < 0.25:
            self.data += bytes(size_bytes - kept_bytes)
        self.synced_bytes = len(self.data)
        self.snapshot = self.before_cut = b""


class MemoryDirectory:
    """Names as the page cache has them, as the platter has them, and the changes in between, in order."""

    __slots__ = ("durable", "entries", "journal")

    def __init__(self) -> None:
        self.entries: dict[str, Entry] = {}
        self.durable: dict[str, Entry] = {}
        self.journal: list[dict[str, Entry | None]] = []

    def change(self, changes: "dict[str, Entry | None]") -> None:
        _apply(self.entries, changes)
        self.journal.append(changes)

    def sync(self) -> None:
        self.durable = dict(self.entries)
        self.journal.clear()

    def lose_power(self, random: Random) -> None:
        """Keeps a random prefix of the unsynced changes: a journalling file system loses them in order."""
        for changes in self.journal[: random.randint(0, len(self.journal))]:
            _apply(self.durable, changes)
        self.entries = dict(self.durable)
        self.journal.clear()


Entry = Union[Inode, MemoryDirectory]  # noqa: UP007 - a name used before both classes exist


class MemoryTree:
    """All directories and files of one disk, by path. Errors name the operation and the path."""

    def __init__(self) -> None:
        self._root = MemoryDirectory()
        self._inode_count = 0

    def __repr__(self) -> str:
        return f"<MemoryTree {list(self._root.entries)}>"

    # ---- Looking ---------------------------------------------------------------------------------------------

    def find(self, path: str) -> Entry | None:
        current: Entry | None = self._root
        for name in _names(path):
            if not isinstance(current, MemoryDirectory):
                return None
            current = current.entries.get(name)
        return current

    def inode(self, action: str, path: str) -> Inode:
        entry = self.find(path)
        if not isinstance(entry, Inode):
            raise storage_error(action, path, errno.ENOENT if entry is None else errno.EISDIR)
        return entry

    def directory(self, action: str, path: str) -> MemoryDirectory:
        entry = self.find(path)
        if not isinstance(entry, MemoryDirectory):
            raise storage_error(action, path, errno.ENOENT if entry is None else errno.ENOTDIR)
        return entry

    def _parent(self, action: str, path: str) -> tuple[MemoryDirectory, str]:
        directory, name = posixpath.split(posixpath.normpath(path))
        return self.directory(action, directory), name

    def find_durable(self, path: str) -> Entry | None:
        current: Entry | None = self._root
        for name in _names(path):
            current = current.durable.get(name) if isinstance(current, MemoryDirectory) else None
        return current

    # ---- Changes ---------------------------------------------------------------------------------------------

    def create(self, action: str, path: str) -> Inode:
        parent, name = self._parent(action, path)
        self._inode_count += 1
        inode = Inode(self._inode_count)
        parent.change({name: inode})
        return inode

    def make_directory(self, path: str) -> None:
        current = self._root
        for name in _names(path):
            if name not in current.entries:
                current.change({name: MemoryDirectory()})
            entry = current.entries[name]
            if not isinstance(entry, MemoryDirectory):
                raise storage_error("create directory", path, errno.ENOTDIR)
            current = entry

    def rename(self, source: str, target: str) -> None:
        entry = self.find(source)
        if entry is None:
            raise storage_error("rename", source, errno.ENOENT)
        from_parent, from_name = self._parent("rename", source)
        to_parent, to_name = self._parent("rename", target)
        existing = to_parent.entries.get(to_name)
        if isinstance(existing, MemoryDirectory) and (
            existing.entries or not isinstance(entry, MemoryDirectory)
        ):
            raise storage_error("rename", source, errno.ENOTEMPTY)
        if from_parent is to_parent:
            from_parent.change({from_name: None, to_name: entry})
        else:
            to_parent.change({to_name: entry})
            from_parent.change({from_name: None})

    def remove(self, action: str, path: str) -> None:
        """The name is given up."""
        parent, name = self._parent(action, path)
        parent.change({name: None})

    def lose_power(self, random: Random) -> None:
        """Loses or tears unsynced bytes."""
        inodes: dict[int, Inode] = {}
        self._lose_names(self._root, random, inodes)
        for inode in inodes.values():
            inode.lose_power(random)

    def _lose_names(self, directory: MemoryDirectory, random: Random, inodes: dict[int, Inode]) -> None:
        directory.lose_power(random)
        for entry in directory.entries.values():
            if isinstance(entry, MemoryDirectory):
                self._lose_names(entry, random, inodes)
            else:
                inodes[entry.number] = entry


@lru_cache(maxsize=4096)
def _names(path: str) -> tuple[str, ...]:
    return tuple(name for name in posixpath.normpath(path).split("/") if name and name != ".")


def _apply(entries: dict[str, Entry], changes: dict[str, Entry | None]) -> None:
    for name, entry in changes.items():
        if entry is None:
            entries.pop(name, None)
        else:
            entries[name] = entry
