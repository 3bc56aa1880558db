"""Which data directories of brokers can be read on this machine (design §3).

A directory counts as local only when its `meta.properties` can be opened here and names the same directory id. A reader
that keeps finding other files than it was told of (another mount under the same path) reads none any more. A reader
without a free descriptor gets its records over the network for a while. Kafka has no such thing.
"""

from collections.abc import Iterable
from uuid import UUID

from rayka.errors import TooManyOpenFiles
from rayka.log.mapped_reader import is_local_directory
from rayka.protocol.membership import LogDirectory

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

    def ids(self, directories: Iterable[LogDirectory]) -> tuple[UUID, ...]:
        """Those that this process can read."""
        if self._passed_over:
            self._passed_over -= 1
            return ()
        if self._misses >= _MISSES_MAX:
            return ()
        return tuple(each.directory_id for each in directories if self._can_read(each))

    def _can_read(self, directory: LogDirectory) -> bool:
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
