"""Whether a broker's data directories can be read on this machine, and reading file ranges from them (design §3).

A directory counts as local only when its `meta.properties` can be opened here and names the same directory id. A reader
that keeps finding other files than it was told of (another mount under the same path) asks for bytes from then on.
"""

import logging
from collections.abc import Sequence
from uuid import UUID

import numpy as np

from rayka.log.mapped_reader import MappedReader, is_local_directory
from rayka.protocol.cluster import LogDirectory, MetadataBroker
from rayka.protocol.fetch import FileRange

logger = logging.getLogger(__name__)
_MISSES_MAX = 3


class LocalReader:
    """Maps what brokers on this machine hold."""

    def __init__(self) -> None:
        self._mapped = MappedReader()
        self._is_local: dict[UUID, bool] = {}
        self._misses = 0  # in a row

    def directory_ids(self, brokers: Sequence[MetadataBroker]) -> tuple[UUID, ...]:
        """The data directories of these brokers that this process can read."""
        if self._misses >= _MISSES_MAX:
            return ()
        directories = [each for broker in brokers for each in broker.directories]
        return tuple(each.directory_id for each in directories if self._is_readable(each))

    def rack(self, brokers: Sequence[MetadataBroker]) -> str:
        """The rack of a broker on this machine; empty when there is none, or its files are not to be read."""
        if self._misses >= _MISSES_MAX:
            return ""
        racks = (each.rack for each in brokers if any(map(self._is_readable, each.directories)))
        return next(racks, "")

    def _is_readable(self, directory: LogDirectory) -> bool:
        known = self._is_local.get(directory.directory_id)
        if known is None:
            known = is_local_directory(directory.path, directory.directory_id)
            self._is_local[directory.directory_id] = known
        return known

    def read(self, ranges: Sequence[FileRange]) -> tuple[np.ndarray, ...] | None:
        """The bytes of the ranges, mapped; None when a file is gone or was replaced: ask again."""
        buffers = []
        for each in ranges:
            view = self._mapped.read(each)
            if view is None:
                self._misses += 1
                logger.info("%s is not what its broker described; asking again", each.path)
                return None
            buffers.append(np.frombuffer(view, dtype=np.uint8))
        self._misses = 0
        return tuple(buffers)

    def close(self) -> None:
        """Lets go of the maps; arrays that were handed out stay valid."""
        self._mapped.close()
