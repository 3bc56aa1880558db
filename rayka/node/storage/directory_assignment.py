"""Which directory of this broker the metadata name for one replica, and how the controller is told of another one.

Invariant: when a directory was taken back, no metadata that are still to be read name another one. Kafka:
`AssignmentsManager` (KIP-858).
"""

import logging
from collections.abc import Awaitable, Callable
from typing import NamedTuple

from rayka.errors import ApiError, ErrorCode, RetriableApiError, error_for
from rayka.ids import NO_OFFSET, TopicIdPartition
from rayka.log.log_directory import LogDirectory
from rayka.node.clock import now_s
from rayka.node.controller_link import ControllerLink, Pauses
from rayka.node.replication.replica import Replica, ReplicaOwner, key_of
from rayka.node.replication.truncations import Truncations
from rayka.node.settings import NodeSettings
from rayka.node.signal import Signal
from rayka.node.storage.data_directories import DataDirectories
from rayka.node.storage.log_manager import LogManager
from rayka.protocol.membership import AssignedReplica, AssignReplicasToDirsRequest

_LOOK_S = 0.01  # while the metadata have yet to come
_logger = logging.getLogger(__name__)


class MoveParts(NamedTuple):
    """What all moves of one broker work with. `metadata` is notified at another image, `spend` waits until so
    many bytes are paid for at the bounded rate, or the move does not go on.
    """

    settings: NodeSettings
    directories: DataDirectories
    owner: ReplicaOwner
    logs: LogManager
    link: ControllerLink
    metadata: Signal
    spend: Callable[[int, Callable[[], bool]], Awaitable[None]]
    truncations: Truncations


class DirectoryAssignment:
    """The assignment of one replica."""

    def __init__(self, parts: MoveParts, replica: Replica) -> None:
        self._parts = parts
        self._owner = parts.owner
        self._key = key_of(replica.partition)
        self._name = replica.topic_partition

    def __repr__(self) -> str:
        return f"<DirectoryAssignment of {self._name}>"

    def is_named(self, directory: LogDirectory) -> bool:
        """Whether the metadata say that the replica is in this directory."""
        image = self._owner.image
        state = None if image is None else image.partition(TopicIdPartition(*self._key))
        return (
            state is not None and state.directory_of(self._parts.settings.node_id) == directory.directory_id
        )

    async def wait_for_metadata(self) -> None:
        """Until there may be others; not for long, because a copy is to keep up."""
        await self._parts.metadata.wait(now_s() + _LOOK_S)

    async def tell(self, directory: LogDirectory, check: Callable[[], object]) -> int:
        """Returns, when the controller knows the directory, the metadata offset from which on it is named. Raises the
        ApiError that refuses it, and what the check raises between two attempts.
        """
        pauses = Pauses()
        while True:
            try:
                return await self._tell(directory)
            except RetriableApiError as error:
                _logger.info("%s: the controller was not told of its directory: %s", self._name, error)
            await pauses.pause()
            check()

    async def _tell(self, directory: LogDirectory) -> int:
        settings, broker_epoch = self._parts.settings, self._parts.directories.broker_epoch
        replica = AssignedReplica(*self._key, directory.directory_id)
        request = AssignReplicasToDirsRequest(settings.node_id, broker_epoch, (replica,))
        timeout_ms = settings.config.controller_quorum_request_timeout_ms
        response = await self._parts.link.call(request, timeout_ms)
        (result,) = response.replicas
        if result.error_code is not ErrorCode.NONE:
            raise error_for(result.error_code, result.error_message)
        return response.metadata_offset

    async def take_back(self) -> None:
        """Returns when the metadata that are known here name the directory where the replica is, or it is not here any
        more.
        """
        next_offset = NO_OFFSET
        try:
            if (replica := self._owner.find(self._key)) is not None:
                next_offset = await self.tell(replica.directory, self._check_here)
        except _Gone:
            return
        except ApiError as error:
            _logger.warning("%s: the controller refused its directory: %s", self._name, error)
            return
        while self._owner.find(self._key) is not None and self._known_offset() < next_offset:
            await self.wait_for_metadata()

    def _check_here(self) -> None:
        if self._owner.find(self._key) is None:
            raise _Gone

    def _known_offset(self) -> int:
        image = self._owner.image
        return NO_OFFSET if image is None else image.next_offset


class _Gone(Exception):
    """The replica is not here any more."""
