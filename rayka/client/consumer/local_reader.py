"""Reading file ranges from brokers' data directories on this machine (design §3)."""

import logging
from collections.abc import Sequence
from uuid import UUID

import numpy as np

from rayka.errors import TooManyOpenFiles
from rayka.log.mapped_reader import LocalDirectories, MappedReader
from rayka.protocol.fetch import FileRange
from rayka.protocol.membership import MetadataBroker

logger = logging.getLogger(__name__)


class LocalReader:
    """Maps what brokers on this machine hold."""

    def __init__(self) -> None:
        self._mapped = MappedReader()
        self._directories = LocalDirectories()

    def directory_ids(self, brokers: Sequence[MetadataBroker]) -> tuple[UUID, ...]:
        """The data directories of these brokers that this process can read."""
        return self._directories.ids(each for broker in brokers for each in broker.directories)

    def rack(self, brokers: Sequence[MetadataBroker]) -> str:
        """The rack of the first broker whose files are here; empty when there is none, or they are not to be read."""
        return next((each.rack for each in brokers if self._directories.ids(each.directories)), "")

    def read(self, ranges: Sequence[FileRange], topic_id: UUID) -> tuple[np.ndarray, ...] | None:
        """The bytes of the topic's ranges, mapped; None when a file is gone or was replaced: ask again."""
        buffers = []
        for each in ranges:
            try:
                view = self._mapped.read(each, topic_id)
            except TooManyOpenFiles as error:
                logger.warning("%s; asking over the network", error)
                self._directories.on_no_descriptor()
                return None
            self._directories.on_read(is_found=view is not None)
            if view is None:
                logger.info("%s is not what its broker described; asking again", each.path)
                return None
            buffers.append(np.frombuffer(view, dtype=np.uint8))
        return tuple(buffers)

    def close(self) -> None:
        """Lets go of the maps; arrays that were handed out stay valid."""
        self._mapped.close()
