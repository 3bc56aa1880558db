"""Where the files of one log live, what of them is not synced, and the small ones beside the segments.

A new log has no files before its first record: an empty directory says no more than none, and thousands of partitions
are made at once.
"""

import posixpath
from collections.abc import Mapping

from rayka.log.unsynced import Unsynced
from rayka.ports import Disk


class LogFiles:
    """The directory of one log. `awaited`: what is to stand beside the first segment, by name, of a log that has no
    files yet.
    """

    def __init__(self, disk: Disk, directory: str, awaited: Mapping[str, bytes] | None = None) -> None:
        self.disk = disk
        self.directory = directory
        self.unsynced = Unsynced()
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
