"""The files of one log: their directory, the changes that a power cut would take, and slices of long work.

A new log has no files before its first record: an empty directory says no more than no directory, and thousands of
partitions are made at once. Kafka: the flush part of `UnifiedLog` and `LocalLog` (F13).
"""

import posixpath
from collections.abc import Generator, Mapping
from typing import NamedTuple, TypeVar

from rayka.ports import Disk


class SyncPlan(NamedTuple):
    """Files and directories to sync. The node takes a plan, awaits `Disk.sync` and reports back; changes after the plan
    stay unsynced. So any number of waiters share one sync.
    """

    files: tuple[str, ...]
    directories: tuple[str, ...]
    # The log below this offset is durable once the plan is synced.
    up_to_offset: int
    # The number of the last change that the plan covers.
    change: int
    # The truncations of the log so far; the plan says nothing of offsets behind a later one.
    truncation: int

    @property
    def is_empty(self) -> bool:
        return not self.files and not self.directories


class UnsyncedPaths:
    """Paths that changed since their last sync: a power cut may take the changes."""

    def __init__(self) -> None:
        # The number of the last change.
        self._change = 0
        # By path, the number of its last change.
        self._files: dict[str, int] = {}
        self._directories: dict[str, int] = {}

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
        """Rewrites recorded paths after a rename. Precondition: no SyncPlan made before the rename is in use."""
        self._files = {_renamed(path, directory, target): each for path, each in self._files.items()}
        self._directories = {
            _renamed(path, directory, target): each for path, each in self._directories.items()
        }

    def plan(self, up_to_offset: int, truncation: int) -> SyncPlan:
        """Everything unsynced now."""
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
    """The directory of one log. `awaited`: files by name, to be made with the first segment, of a log without a
    directory; None: the directory exists.
    """

    def __init__(self, disk: Disk, directory: str, awaited: Mapping[str, bytes] | None = None) -> None:
        self.disk = disk
        self.directory = directory
        self.unsynced = UnsyncedPaths()
        self._awaited = awaited

    @property
    def are_awaited(self) -> bool:
        """Whether the log has no directory yet."""
        return self._awaited is not None

    def make(self) -> None:
        """Makes the directory and the awaited files."""
        if self._awaited is not None:
            self.disk.make_directory(self.directory)
            self.unsynced.name_changed(self.directory)
            self.write(self._awaited)
            self._awaited = None

    def move_to(self, directory: str) -> None:
        """Renames the directory, if it exists. Paths handed out before lead nowhere."""
        if not self.are_awaited:
            self.disk.rename(self.directory, directory)
            self.unsynced.moved(self.directory, directory)
            self.unsynced.name_changed(directory)
        self.directory = directory

    def rename(self, source: str, target: str) -> None:
        """Renames a file of the directory."""
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


# Long work on a log is a generator that yields after each slice, so that the event loop serves others in between.
# Finished slices stay done; the result counts once the generator has ended.

ResultT = TypeVar("ResultT")
Slices = Generator[None, None, ResultT]
# A few microseconds each.
SLICE_BATCHES = 1_000
# A CRC over this much takes about a millisecond.
SLICE_BYTES = 4 << 20


def run_to_end(work: Slices[ResultT]) -> ResultT:
    """Runs all slices at once, and returns the result."""
    while True:
        try:
            next(work)
        except StopIteration as end:
            result: ResultT = end.value
            return result
