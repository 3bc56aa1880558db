"""One replica on its way from one data directory of a broker to another (KIP-113, KIP-858).

1. The log is copied into a future log in the new directory while it goes on: slices of some hundred kilobytes, at a
   bounded rate, with whatever is truncated or deleted meanwhile.
2. The copy has everything, and is durable. The controller is told of the new directory.
3. The metadata name the new directory. Nothing of the log is synced any more; the rest is copied, and synced there.
4. In one turn of the event loop the last records are copied, the copy gets the partition's name, and is the log.
5. That name is durable, and what the log took over of epochs and producers, then the checkpoints of the new directory;
   then the old log is deleted.

A crash before step 4 leaves the log where it is; whichever directory the metadata name, the next process goes on with
the copy (`DataDirectories.source_of_copy`). After it the old log is the one that is not named. Invariants: nothing that
the log had synced is not synced in the copy when it takes its place; a move that ends early leaves no copy behind, and
the metadata name the old directory again before anything else is done with the replica.

Kafka: `ReplicaAlterLogDirsThread`, `AssignmentsManager`.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from enum import Enum
from functools import partial
from typing import NamedTuple

from rayka.errors import (
    ApiError,
    CorruptRecord,
    DamagedLog,
    ErrorCode,
    PassingStorageError,
    RetriableApiError,
    StorageError,
    error_for,
)
from rayka.ids import NO_OFFSET, TopicIdPartition
from rayka.log.log import Log
from rayka.log.log_copy import SLICE_BYTES, LogCopy
from rayka.log.log_directory import LogDirectory
from rayka.node import clock
from rayka.node.clock import now_s
from rayka.node.controller_link import ControllerLink, Pauses
from rayka.node.data_directories import SPARE_BYTES, DataDirectories
from rayka.node.log_manager import LogManager
from rayka.node.replica import PartitionKey, Replica, ReplicaOwner, Truncations, key_of
from rayka.node.settings import NodeSettings
from rayka.node.tasks import Signal, result_in_turns
from rayka.protocol.membership import AssignedReplica, AssignReplicasToDirsRequest

# Which directory of this broker the metadata name for one replica, and how the controller is told of another one.
#
# Invariant: when a directory was taken back, no metadata that are still to be read name another one. Kafka:
# `AssignmentsManager` (KIP-858).


_LOOK_S = 0.01  # while the metadata have yet to come


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


_logger = logging.getLogger(__name__)

Exchange = Callable[[PartitionKey, Callable[[], Replica | None]], Awaitable[bool]]


class MoveCancelled(Exception):
    """The move ends, and the replica stays where it is; the message says why."""


class MoveStage(Enum):
    """How far a move is."""

    COPYING = "the log is copied"
    ASSIGNING = "the controller has been told of the new directory"
    MOVED = "the copy is the log"


class DirectoryMove:
    """Moves one replica to one directory."""

    def __init__(
        self, parts: MoveParts, replica: Replica, target: LogDirectory, *, right_below: int | None = None
    ) -> None:
        """`right_below`: as `LogCopy` has it, of a move that an earlier process began."""
        self._parts = parts
        self._right_below = right_below
        self._partition = replica.partition
        self.copy: LogCopy | None = None  # before the future log was opened
        self._cancelled = ""
        self._future_path = target.partitions.future_path(replica.topic_partition, replica.partition.topic_id)
        self._cleaned_offset = replica.partition.log.cleaned_offset
        self.key = key_of(replica.partition)
        self.topic_partition = replica.topic_partition
        self._assignment = DirectoryAssignment(parts, replica)
        self.source = replica.directory
        self.target = target
        self.stage = MoveStage.COPYING

    def __repr__(self) -> str:
        return f"<DirectoryMove of {self.topic_partition} to {self.target.path}: {self.stage.value}>"

    @property
    def is_withdrawn(self) -> bool:
        """Whether it was cancelled from outside, or its replica is gone: then it does not count as tried."""
        return bool(self._cancelled)

    def cancel(self, reason: str) -> None:
        """The move ends as soon as it has its turn, unless the controller was told already."""
        if self.stage is MoveStage.COPYING:
            self._cancelled = self._cancelled or reason

    def abandon(self) -> None:
        """The replica is not here any more: its copy goes at once."""
        if self.stage is not MoveStage.MOVED:
            self._cancelled = "the replica is not on this broker any more"
            self._parts.logs.delete_future(self.target, self._future_path)

    async def run(self, exchange: Exchange) -> None:
        """Returns when the replica is in the directory. Raises MoveCancelled when it stays where it was."""
        try:
            await self._open()
            await self._catch_up()
            if not self._is_named():
                await self._sync(in_background=True)
                await self._assign()
            while not self._is_named():
                await self._step()
                await self._assignment.wait_for_metadata()
            is_moved = False
            while not is_moved:
                is_moved = await self._take_place(exchange)
        except MoveCancelled:
            await self._take_back()
            self._parts.logs.delete_future(self.target, self._future_path)
            raise
        await self._settle()

    # ---- Checks ------------------------------------------------------------------------------------------------------

    def _check(self) -> Replica:
        """After each pause: the replica as it is now. Raises MoveCancelled when it is not to be moved any more."""
        replica = self._parts.owner.find(self.key)
        if self._cancelled:
            raise MoveCancelled(self._cancelled)
        if replica is None or replica.partition is not self._partition:
            raise MoveCancelled("the replica is not here any more")
        for directory in (self.target, replica.directory):
            if directory.failure is not None:
                raise MoveCancelled(f"{directory.path} is offline: {directory.failure}")
        return replica

    def _is_named(self) -> bool:
        """Whether the metadata say that the replica is in the new directory."""
        return self._assignment.is_named(self.target)

    @contextmanager
    def _writing(self) -> Iterator[None]:
        """What the new directory fails with in the block ends the move, and takes that directory offline unless that
        passes.
        """
        try:
            yield
        except PassingStorageError as error:
            raise MoveCancelled(f"{self.target.path} takes no writes: {error}") from error
        except StorageError as error:
            self._parts.logs.fail(self.target, error)
            raise MoveCancelled(f"{self.target.path} failed: {error}") from error

    @contextmanager
    def _reading(self, replica: Replica) -> Iterator[None]:
        """What the log fails with in the block ends the move."""
        try:
            yield
        except CorruptRecord as error:
            raise MoveCancelled(f"the log is damaged: {error}") from error
        except StorageError as error:
            self._parts.owner.on_storage_error(replica, error)
            raise MoveCancelled(f"{replica.directory.path} failed: {error}") from error

    def _check_room(self, size_bytes: int) -> None:
        with self._writing():
            free_bytes = self._parts.settings.disk.free_bytes(self.target.path)
        if free_bytes < size_bytes + SPARE_BYTES:
            raise MoveCancelled(
                f"{self.target.path} has {free_bytes} bytes of room, and {size_bytes} are to be copied beside"
                f" {SPARE_BYTES} that stay free"
            )

    # ---- Copying -----------------------------------------------------------------------------------------------------

    async def _open(self) -> None:
        """The copy, from where an earlier process left it."""
        replica = self._check()
        target, topic_id = self.target, self._partition.topic_id
        # What is there under its name is of another time.
        self._parts.logs.delete(target, self.topic_partition, 0)
        was_begun = target.futures.exists(self.topic_partition, topic_id)
        if was_begun:
            self._cleaned_offset = 0  # since then the log may have been cleaned
        opened = await self._open_future()
        if opened is None:  # it is damaged
            self._parts.logs.delete_future(target, self._future_path)
            opened = await self._open_future()
        if opened is None:
            raise MoveCancelled(f"{self._future_path} is damaged")
        self.copy = LogCopy(opened, right_below=self._right_below if was_begun else None)
        self._check_room(max(0, replica.partition.log.segments.size_bytes - opened.segments.size_bytes))

    async def _open_future(self) -> Log | None:
        """The copy; None when it is damaged."""
        log, target = self._partition.log, self.target
        opening = target.futures.opening(
            self.topic_partition,
            self._partition.topic_id,
            log.config,
            start_offset=log.log_start_offset,
            was_clean=target.shutdown.was_clean,
            now_ms=clock.now_ms(),
        )
        with self._writing():
            try:
                return await result_in_turns(opening, 1, check=self._check)
            except DamagedLog:
                return None

    async def _catch_up(self, *, is_bounded: bool = True) -> None:
        is_even = False
        while not is_even:
            is_even = await self._step(is_bounded=is_bounded)
            await asyncio.sleep(0)

    async def _step(self, *, is_bounded: bool = True) -> bool:
        """Takes off what is not in the log any more, or goes on by a slice; whether the copy has everything then."""
        replica, copy = self._check(), self._opened()
        original = replica.partition.log
        if copy.has_diverged(original):
            with self._writing():
                await self._parts.truncations.run(self.target, partial(copy.cut, original), self._is_going_on)
            return False
        size_bytes = self._copy_slice(replica)
        if size_bytes and is_bounded:
            await self._parts.spend(size_bytes, self._is_going_on)
        return copy.is_complete(self._check().partition.log)

    def _copy_slice(self, replica: Replica) -> int:
        """How many bytes were copied."""
        copy, original = self._opened(), replica.partition.log
        with self._reading(replica):
            piece = copy.read(original, SLICE_BYTES)
        if piece.size_bytes:
            self._check_room(piece.size_bytes)
        with self._writing():
            copy.append(original, piece, clock.now_ms())
        return piece.size_bytes

    def _opened(self) -> LogCopy:
        assert self.copy is not None
        return self.copy

    def _is_going_on(self) -> bool:
        try:
            self._check()
        except MoveCancelled:
            return False
        return True

    async def _sync(self, *, in_background: bool = False) -> None:
        """What is in the copy now is durable, and its name."""
        with self._writing():
            await self.target.sync([self._opened().log], in_background=in_background)
        self._check()

    # ---- The controller ----------------------------------------------------------------------------------------------

    async def _assign(self) -> None:
        """The controller knows the new directory. Meanwhile the copy waits: what it lacks is copied afterwards."""
        self._check()
        self.stage = MoveStage.ASSIGNING
        try:
            await self._assignment.tell(self.target, self._check)
        except ApiError as error:
            raise MoveCancelled(f"the controller refused the new directory: {error}") from error

    async def _take_back(self) -> None:
        """The metadata name the old directory again, as far as they may name the new one."""
        if self.stage is MoveStage.ASSIGNING or self._is_named():
            await self._assignment.take_back()

    # ---- Taking its place --------------------------------------------------------------------------------------------

    async def _take_place(self, exchange: Exchange) -> bool:
        """Whether the copy is the log now."""
        replica = self._check()
        replica.flusher.hold(self._partition)
        try:
            await self._catch_up(is_bounded=False)  # acknowledgements may wait for it
            await self._sync()
            return await exchange(self.key, self._exchanged)
        finally:
            replica.flusher.release(self._partition)
            now = self._parts.owner.find(self.key)
            if now is not None and now.partition.needs_sync:
                now.flusher.request(now.partition)

    def _exchanged(self) -> Replica | None:
        """One turn: the replica in its new directory; None when the copy lacks something yet, or is not synced as far
        as the log is.
        """
        replica, copy = self._check(), self._opened()
        original, partition = replica.partition.log, self._partition
        if not copy.has_diverged(original):
            self._copy_slice(replica)
        is_whole = copy.is_complete(original) and copy.log.flushed_offset >= original.flushed_offset
        if not is_whole or not self._is_named():
            return None
        with self._writing():
            copy.log.take_over(original)
            log = self.target.futures.promote(self.topic_partition, partition.topic_id)
        log.cleaned_offset = min(self._cleaned_offset, original.cleaned_offset)
        self.target.logs[self.topic_partition] = log
        replica.directory.logs.pop(self.topic_partition, None)
        replica.flusher.forget(partition)
        self.source = replica.directory
        original.failure = original.failure or StorageError(
            f"{original.name} was moved to {self.target.path}"
        )
        moved = Replica(partition, self.target, self._parts.logs.flushers[self.target])
        self._parts.owner.add(moved)
        self.stage = MoveStage.MOVED
        try:
            partition.on_log_reopened(log, clock.now_ms())
        except StorageError as error:
            self._parts.owner.on_storage_error(moved, error)
        return moved

    async def _settle(self) -> None:
        """The old log goes when nothing can bring it back, also where the replica has gone meanwhile."""
        logs, target, source = self._parts.logs, self.target, self.source
        try:
            await self._sync_moved()
            await target.checkpoint(partial(logs.high_watermarks, target))
        except PassingStorageError as error:
            _logger.warning("%s: no checkpoint: %s", target.path, error)
        except StorageError as error:
            logs.fail(target, error)
            return
        replica = self._parts.owner.find(self.key)
        if replica is None or replica.directory is not source:
            await logs.forget([(source, self.topic_partition)])
            logs.delete(source, self.topic_partition, self._partition.config.file_delete_delay_ms)
        _logger.info("%s is moved from %s to %s", self.topic_partition, source.path, target.path)

    async def _sync_moved(self) -> None:
        """Raises StorageError, also where the disk is full: a sync that failed is not tried again."""
        log = self.target.logs.get(self.topic_partition)
        try:
            await self._parts.settings.disk.sync([], [self.target.path])
            if log is not None:
                await self.target.sync([log])
        except PassingStorageError as error:
            raise StorageError(str(error)) from error
