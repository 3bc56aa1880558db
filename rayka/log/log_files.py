"""Where the files of one log live, what of them is not synced, and the small ones beside the segments.

A new log has no files before its first record: an empty directory says no more than none, and thousands of partitions
are made at once.
"""

import posixpath
from collections.abc import Generator, Mapping
from typing import NamedTuple, TypeVar

from rayka.ports import Disk

# What of a log a power cut would take: the files and names changed since they were last synced.
#
# The node takes a plan, awaits `Disk.sync` with it and reports back; whatever changed meanwhile stays unsynced.
# So any number that wait for durability can share one sync. Kafka: the flush part of `UnifiedLog` and
# `LocalLog` (F13).


class SyncPlan(NamedTuple):
    """What to sync, and what is durable then: the log up to `up_to_offset`.

    `change` counts the changes, `truncation` the truncations, that the plan knows of.
    """

    files: tuple[str, ...]
    directories: tuple[str, ...]
    up_to_offset: int
    change: int
    truncation: int

    @property
    def is_empty(self) -> bool:
        return not self.files and not self.directories


class UnsyncedPaths:
    """Paths changed and not yet synced, each with the number of its last change."""

    def __init__(self) -> None:
        self._change = 0
        self._files: dict[str, int] = {}
        self._directories: dict[str, int] = {}

    def __repr__(self) -> str:
        return f"<UnsyncedPaths files={list(self._files)} directories={list(self._directories)}>"

    def content_changed(self, path: str) -> None:
        """Bytes were appended to the file."""
        self._change += 1
        self._files[path] = self._change

    def file_replaced(self, path: str) -> None:
        """The name leads to a new inode with unsynced content."""
        self.content_changed(path)
        self.name_changed(path)

    def name_changed(self, path: str) -> None:
        """The name was created, removed or given to another inode."""
        self._change += 1
        self._directories[posixpath.dirname(path)] = self._change

    def has_content(self, path: str) -> bool:
        """Whether a power cut may take the file's content."""
        return path in self._files

    def moved(self, directory: str, target: str) -> None:
        """The directory has this name now; no plan of before is under way."""
        self._files = {_renamed(path, directory, target): each for path, each in self._files.items()}
        self._directories = {
            _renamed(path, directory, target): each for path, each in self._directories.items()
        }

    def plan(self, up_to_offset: int, truncation: int) -> SyncPlan:
        """Everything that is unsynced now."""
        return SyncPlan(tuple(self._files), tuple(self._directories), up_to_offset, self._change, truncation)

    def plan_of(self, path: str, up_to_offset: int, truncation: int) -> SyncPlan:
        """This file and its name, if they are unsynced now."""
        files = tuple(each for each in self._files if each == path)
        directories = tuple(each for each in self._directories if each == posixpath.dirname(path))
        return SyncPlan(files, directories, up_to_offset, self._change, truncation)

    def on_synced(self, plan: SyncPlan) -> None:
        """The plan's paths are durable as they were when it was made."""
        for changes, paths in ((self._files, plan.files), (self._directories, plan.directories)):
            for path in paths:
                if changes.get(path, plan.change + 1) <= plan.change:
                    del changes[path]


def _renamed(path: str, directory: str, target: str) -> str:
    is_in_it = path == directory or path.startswith(f"{directory}/")
    return target + path[len(directory) :] if is_in_it else path


class LogFiles:
    """The directory of one log. `awaited`: what is to stand beside the first segment, by name, of a log that has no
    files yet.
    """

    def __init__(self, disk: Disk, directory: str, awaited: Mapping[str, bytes] | None = None) -> None:
        self.disk = disk
        self.directory = directory
        self.unsynced = UnsyncedPaths()
        self._awaited = awaited

    def __repr__(self) -> str:
        return f"<LogFiles {self.directory} {self.unsynced!r}>"

    @property
    def are_awaited(self) -> bool:
        """Whether there is no directory yet."""
        return self._awaited is not None

    def make(self) -> None:
        """Makes the directory, and in it what was awaited."""
        if self._awaited is not None:
            self.disk.make_directory(self.directory)
            self.unsynced.name_changed(self.directory)
            self.write(self._awaited)
            self._awaited = None

    def move_to(self, directory: str) -> None:
        """Renames the directory, if there is one yet; paths that were asked for before are of the old name."""
        if not self.are_awaited:
            self.disk.rename(self.directory, directory)
            self.unsynced.moved(self.directory, directory)
            self.unsynced.name_changed(directory)
        self.directory = directory

    def rename(self, source: str, target: str) -> None:
        """Gives a file of the directory another name."""
        self.disk.rename(source, target)
        self.unsynced.name_changed(target)

    def remove(self, path: str) -> None:
        """Removes a file of the directory."""
        self.disk.unlink(path)
        self.unsynced.name_changed(path)

    def path(self, name: str) -> str:
        return posixpath.join(self.directory, name)

    def write(self, files: Mapping[str, bytes]) -> None:
        """Replaces small files, by name."""
        for name, content in files.items():
            self.disk.write(self.path(name), content)
            self.unsynced.file_replaced(self.path(name))


# Long work on a log, by slices: a generator that yields after each, so that an event loop can let others have their
# turn. What a slice has done stays done; the work counts once the generator has ended.


ResultT = TypeVar("ResultT")
Slices = Generator[None, None, ResultT]
SLICE_BATCHES = 1_000  # of a few microseconds each
SLICE_BYTES = 4 << 20  # a CRC over so much takes about a millisecond


def run_to_end(work: Slices[ResultT]) -> ResultT:
    """What the work comes to, with nothing in between its slices."""
    while True:
        try:
            next(work)
        except StopIteration as end:
            result: ResultT = end.value
            return result
