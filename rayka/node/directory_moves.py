"""The moves of one broker's replicas between its data directories: which are wanted, and those under way (KIP-113,
KIP-858).

A move goes like this:

1. The log is copied into a future log in the new directory while the replica goes on: slices of some hundred kilobytes,
   at a bounded rate, and every truncation and deletion since.
2. The copy has all records, and is durable. The controller is told of the new directory.
3. The metadata name the new directory. No sync of the log begins any more; the rest is copied, and synced there.
4. In one turn of the event loop the last records are copied, the copy gets the partition's name, and is the log.
5. That name becomes durable, with the epochs and producers that the copy took over, then the checkpoints of the new
   directory. Then the old log is deleted.

A crash before step 4 leaves the log where it is; whichever directory the metadata name, the next process goes on with
the copy (`DataDirectories.source_of_copy`). After step 4 the old log is the one that the metadata do not name.

Invariants:

- A replica has one move at a time, and the newest wish counts. A replica that moves is not compacted.
- `num.replica.alter.log.dirs.threads` moves are made at once, all of them together at
  `replica.alter.log.dirs.io.max.bytes.per.second`.
- Records that the log had synced are synced in the copy when it takes the log's place.
- A move that ends early is named with the reason and leaves no copy behind. The metadata name the old directory again
  before anything else is done with the replica: no metadata that are still to be read name another one.

Kafka: `ReplicaManager.alterReplicaLogDirs`, `ReplicaAlterLogDirsManager`, `ReplicaAlterLogDirsThread`,
`AssignmentsManager`.
"""

import asyncio
import logging
import math
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager
from enum import Enum
from functools import partial

from rayka import clock
from rayka.config.broker_config import BrokerConfig
from rayka.errors import (
    ApiError,
    CorruptRecord,
    DamagedLog,
    ErrorCode,
    InvariantBroken,
    PassingStorageError,
    RetriableApiError,
    StorageError,
    error_for,
)
from rayka.ids import NO_OFFSET, TopicIdPartition
from rayka.log.log import Log
from rayka.log.log_copy import SLICE_BYTES, LogCopy
from rayka.log.log_directory import LogDirectory
from rayka.node.controller_link import ControllerLink, Pauses
from rayka.node.data_directories import SPARE_BYTES
from rayka.node.log_manager import LogManager
from rayka.node.replica import Replica, ReplicaOwner, Truncations, key_of
from rayka.node.tasks import Pace, Signal, result_in_turns
from rayka.protocol.fetch import PartitionKey
from rayka.protocol.membership import AssignedReplica, AssignReplicasToDirsRequest

_REASONS_MAX = 1_000
# How long a move waits for metadata: briefly, because its copy must keep up.
_LOOK_S = 0.01
_logger = logging.getLogger(__name__)

# Takes the copy as the log, by the function that it is given; False: the copy lacks something yet.
Exchange = Callable[[PartitionKey, Callable[[], Replica | None]], Awaitable[bool]]


class DirectoryMoves:
    """All moves of one broker. `config` may change at any time; `metadata` must be notified of each new image."""

    def __init__(self, owner: ReplicaOwner, logs: LogManager, link: ControllerLink) -> None:
        self.owner = owner
        self.logs = logs
        self.link = link
        self.config: BrokerConfig = owner.settings.config
        self.pace = Pace(lambda: self.config.replica_alter_log_dirs_io_max_bytes_per_second)
        self.truncations = Truncations(owner.settings.disk)
        self.metadata = Signal()
        self.running: dict[PartitionKey, DirectoryMove] = {}
        self._directories = owner.directories
        self._wanted: dict[PartitionKey, LogDirectory] = {}
        # Why moves ended early.
        self._reasons: dict[PartitionKey, str] = {}
        # The ends of logs whose moves an earlier process began (`LogCopy`).
        self._right_below: dict[PartitionKey, int] = {}
        # Moves that are not wanted any more; there may be a copy.
        self._dropped: dict[PartitionKey, LogDirectory] = {}
        self._news = Signal()
        logs.cleaner.is_paused = self.has_copy

    def problems(self) -> list[str]:
        """Why moves have ended early, one line each, until the replica is moved again."""
        return list(self._reasons.values())

    @property
    def worker_count(self) -> int:
        """How many moves are made at once."""
        return self.config.num_replica_alter_log_dirs_threads or len(self._directories.all)

    # ---- Wishes ------------------------------------------------------------------------------------------------------

    def want(self, replica: Replica, target: LogDirectory) -> None:
        """Wants the replica in this directory. A move of the replica to another directory ends, as far as it can."""
        key = key_of(replica.partition)
        self._reasons.pop(key, None)
        running = self.running.get(key)
        waiting = self._wanted.get(key)
        if running is not None and running.target is not target:
            running.cancel(f"the replica is to be in {target.path}")
        if running is None and waiting not in (None, target):
            self._dropped[key] = waiting
        if running is None and replica.directory is target:
            self._wanted.pop(key, None)
        else:
            self._wanted[key] = target
        self._news.notify()

    def resume(self, replicas: Mapping[PartitionKey, object]) -> None:
        """Goes on with the moves that an earlier process began, and removes copies without a move. Called after the
        first metadata, before a client has appended anything.
        """
        for directory in self._directories.online():
            for topic_id, number, path in directory.partitions.futures():
                replica = replicas.get((topic_id, number))
                if isinstance(replica, Replica) and replica.directory is not directory:
                    self._wanted[topic_id, number] = directory
                    self._right_below[topic_id, number] = replica.partition.log.log_end_offset
                elif replica is None or isinstance(replica, Replica):
                    self.logs.delete_future(directory, path)
        self._news.notify()

    def is_bound_for(self, directory: LogDirectory | None, replica: Replica) -> bool:
        """True if the replica, which the metadata place in that directory, is on its way there, or was."""
        running = self.running.get(key_of(replica.partition))
        is_running = running is not None and running.target is directory
        if directory is None or directory.failure is not None:
            return is_running
        return is_running or directory.futures.exists(replica.topic_partition, replica.partition.topic_id)

    def has_copy(self, replica: Replica) -> bool:
        """True while a move of the replica is under way, or one that an earlier process began waits. If its log were
        compacted, a tombstone might go before it is copied, and the value in the copy would stay.
        """
        key = key_of(replica.partition)
        return key in self.running or key in self._right_below

    def on_gone(self, key: PartitionKey) -> None:
        """Forgets a replica that is not here any more."""
        for known in (self._wanted, self._reasons, self._right_below, self._dropped):
            known.pop(key, None)
        running = self.running.get(key)
        if running is not None:
            running.abandon()

    # ---- Moving ------------------------------------------------------------------------------------------------------

    async def run(self, exchange: Exchange) -> None:
        """Makes one move after another, for ever; several of these run beside each other."""
        while True:
            replica = self._next()
            if replica is None:
                await self._news.wait(math.inf)
                continue
            key = key_of(replica.partition)
            dropped, right_below = self._dropped.pop(key, None), self._right_below.pop(key, None)
            move = DirectoryMove(self, replica, dropped or self._wanted[key], right_below=right_below)
            if dropped is not None:
                move.cancel("it is not wanted any more")
            await self._move(move, exchange)

    def _next(self) -> Replica | None:
        for waiting in (self._dropped, self._wanted):
            for key, target in list(waiting.items()):
                replica = self.owner.find(key)
                if key in self.running:
                    continue
                if replica is not None and replica.directory is not target:
                    return replica
                del waiting[key]
        return None

    async def _move(self, move: "DirectoryMove", exchange: Exchange) -> None:
        key = move.key
        self.running[key] = move
        try:
            await move.run(exchange)
        except MoveCancelled as cause:
            if not move.is_withdrawn:
                reason = f"{move.topic_partition} stays in {move.source.path}: {cause}"
                self._reasons[key] = reason
                if len(self._reasons) > _REASONS_MAX:
                    del self._reasons[next(iter(self._reasons))]
                _logger.warning("its move to %s is cancelled: %s", move.target.path, reason)
        finally:
            del self.running[key]
            if self._wanted.get(key) is move.target and not move.is_withdrawn:
                del self._wanted[key]
            self._news.notify()


# ---- One move --------------------------------------------------------------------------------------------------------


class MoveCancelled(Exception):
    """The move ends, and the replica stays where it is; the message says why."""


class _Gone(Exception):
    """The replica is not here any more."""


class MoveStage(Enum):
    """How far a move is."""

    COPYING = "the log is copied"
    ASSIGNING = "the controller has been told of the new directory"
    MOVED = "the copy is the log"


class DirectoryMove:
    """Moves one replica to one directory."""

    def __init__(
        self, moves: DirectoryMoves, replica: Replica, target: LogDirectory, *, right_below: int | None = None
    ) -> None:
        """`right_below`: as in `LogCopy`, for a move that an earlier process began."""
        self._moves = moves
        self._owner = moves.owner
        self._logs = moves.logs
        self._settings = moves.owner.settings
        self._right_below = right_below
        self._partition = replica.partition
        # None until the future log is open.
        self.copy: LogCopy | None = None
        # Why the move must end; empty: it goes on.
        self._cancelled = ""
        self._future_path = target.partitions.future_path(replica.topic_partition, replica.partition.topic_id)
        self._cleaned_offset = replica.partition.log.cleaned_offset
        self.key = key_of(replica.partition)
        self.topic_partition = replica.topic_partition
        self.source = replica.directory
        self.target = target
        self.stage = MoveStage.COPYING

    def __repr__(self) -> str:
        return f"<DirectoryMove of {self.topic_partition} to {self.target.path}: {self.stage.value}>"

    @property
    def is_withdrawn(self) -> bool:
        """True if it was cancelled from outside, or its replica is gone: then it does not count as tried."""
        return bool(self._cancelled)

    def cancel(self, reason: str) -> None:
        """Ends the move at its next check, unless the controller was told already."""
        if self.stage is MoveStage.COPYING:
            self._cancelled = self._cancelled or reason

    def abandon(self) -> None:
        """Removes the copy at once: the replica is not here any more."""
        if self.stage is not MoveStage.MOVED:
            self._cancelled = "the replica is not on this broker any more"
            self._logs.delete_future(self.target, self._future_path)

    async def run(self, exchange: Exchange) -> None:
        """Returns when the replica is in the directory. Raises MoveCancelled when it stays where it was."""
        try:
            await self._open()
            await self._catch_up()
            if not self._is_named():
                await self._sync(in_background=True)
                # Until the controller knows the new directory the copy waits; it catches up afterwards.
                self._check()
                self.stage = MoveStage.ASSIGNING
                try:
                    await self._tell_controller(self.target, self._check)
                except ApiError as error:
                    raise MoveCancelled(f"the controller refused the new directory: {error}") from error
            while not self._is_named():
                await self._step()
                await self._wait_for_metadata()
            is_moved = False
            while not is_moved:
                is_moved = await self._take_place(exchange)
        except MoveCancelled:
            if self.stage is MoveStage.ASSIGNING or self._is_named():
                await self._take_back()
            self._logs.delete_future(self.target, self._future_path)
            raise
        await self._settle()

    # ---- Checks ------------------------------------------------------------------------------------------------------

    def _check(self) -> Replica:
        """The replica as it is now; to be called after each pause. Raises MoveCancelled when it must not be moved."""
        replica = self._owner.find(self.key)
        if self._cancelled:
            raise MoveCancelled(self._cancelled)
        if replica is None or replica.partition is not self._partition:
            raise MoveCancelled("the replica is not here any more")
        for directory in (self.target, replica.directory):
            if directory.failure is not None:
                raise MoveCancelled(f"{directory.path} is offline: {directory.failure}")
        return replica

    def _is_going_on(self) -> bool:
        try:
            self._check()
        except MoveCancelled:
            return False
        return True

    @contextmanager
    def _writing(self) -> Iterator[None]:
        """Ends the move at an error of the new directory, and takes that directory offline unless the error passes."""
        try:
            yield
        except PassingStorageError as error:
            raise MoveCancelled(f"{self.target.path} takes no writes: {error}") from error
        except StorageError as error:
            self._logs.fail(self.target, error)
            raise MoveCancelled(f"{self.target.path} failed: {error}") from error

    @contextmanager
    def _reading(self, replica: Replica) -> Iterator[None]:
        """Ends the move at an error of the log."""
        try:
            yield
        except CorruptRecord as error:
            raise MoveCancelled(f"the log is damaged: {error}") from error
        except StorageError as error:
            self._owner.on_storage_error(replica, error)
            raise MoveCancelled(f"{replica.directory.path} failed: {error}") from error

    def _check_room(self, size_bytes: int) -> None:
        with self._writing():
            free_bytes = self._settings.disk.free_bytes(self.target.path)
        if free_bytes < size_bytes + SPARE_BYTES:
            raise MoveCancelled(
                f"{self.target.path} has {free_bytes} bytes of room, and {size_bytes} are to be copied beside"
                f" {SPARE_BYTES} that stay free"
            )

    # ---- Copying -----------------------------------------------------------------------------------------------------

    async def _open(self) -> None:
        """Opens the copy, as an earlier process left it."""
        replica = self._check()
        target, topic_id = self.target, self._partition.topic_id
        # A log there under the partition's name is an old one.
        self._logs.delete(target, self.topic_partition, 0)
        was_begun = target.futures.exists(self.topic_partition, topic_id)
        if was_begun:
            # Since then the log may have been cleaned.
            self._cleaned_offset = 0
        opened = await self._open_future()
        if opened is None:
            self._logs.delete_future(target, self._future_path)
            opened = await self._open_future()
        if opened is None:
            raise MoveCancelled(f"{self._future_path} is damaged")
        self.copy = LogCopy(opened, right_below=self._right_below if was_begun else None)
        self._check_room(max(0, replica.partition.log.segments.size_bytes - opened.segments.size_bytes))

    async def _open_future(self) -> Log | None:
        """The future log; None when it is damaged."""
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
        """Truncates the copy where the log has parted from it, or copies a slice; True once the copy has everything."""
        replica, copy = self._check(), self._opened()
        original = replica.partition.log
        if copy.has_diverged(original):
            with self._writing():
                await self._moves.truncations.run(self.target, partial(copy.cut, original), self._is_going_on)
            return False
        size_bytes = self._copy_slice(replica)
        if size_bytes and is_bounded:
            await self._moves.pace.spend(size_bytes, self._is_going_on)
        return copy.is_complete(self._check().partition.log)

    def _copy_slice(self, replica: Replica) -> int:
        """Copies a slice; returns its size."""
        copy, original = self._opened(), replica.partition.log
        with self._reading(replica):
            piece = copy.read(original, SLICE_BYTES)
        if piece.size_bytes:
            self._check_room(piece.size_bytes)
        with self._writing():
            copy.append(original, piece, clock.now_ms())
        return piece.size_bytes

    def _opened(self) -> LogCopy:
        if self.copy is None:
            raise InvariantBroken(f"{self!r} has not opened its copy")
        return self.copy

    async def _sync(self, *, in_background: bool = False) -> None:
        """Makes the copy durable, and its name."""
        with self._writing():
            await self.target.sync([self._opened().log], in_background=in_background)
        self._check()

    # ---- Metadata ----------------------------------------------------------------------------------------------------

    def _is_named(self) -> bool:
        """True if the metadata place the replica in the new directory."""
        image = self._owner.image
        state = None if image is None else image.partition(TopicIdPartition(*self.key))
        return state is not None and state.directory_of(self._settings.node_id) == self.target.directory_id

    async def _wait_for_metadata(self) -> None:
        await self._moves.metadata.wait(clock.now_s() + _LOOK_S)

    async def _tell_controller(self, directory: LogDirectory, check: Callable[[], object]) -> int:
        """Tells the controller the directory of the replica, until it knows. Returns the metadata offset from which on
        the directory is named. Raises the ApiError that refuses it, and what `check` raises between two attempts.
        """
        pauses = Pauses()
        replica = AssignedReplica(*self.key, directory.directory_id)
        timeout_ms = self._settings.config.controller_quorum_request_timeout_ms
        while True:
            broker_epoch = self._owner.directories.broker_epoch
            request = AssignReplicasToDirsRequest(self._settings.node_id, broker_epoch, (replica,))
            try:
                response = await self._moves.link.call(request, timeout_ms)
                (result,) = response.replicas
                if result.error_code is ErrorCode.NONE:
                    return response.metadata_offset
                raise error_for(result.error_code, result.error_message)
            except RetriableApiError as error:
                _logger.info(
                    "%s: the controller was not told of its directory: %s", self.topic_partition, error
                )
            await pauses.pause()
            check()

    async def _take_back(self) -> None:
        """Returns when the metadata that are known here name the directory where the replica is, or the replica is
        gone.
        """

        def check() -> None:
            if self._owner.find(self.key) is None:
                raise _Gone

        next_offset = NO_OFFSET
        try:
            if (replica := self._owner.find(self.key)) is not None:
                next_offset = await self._tell_controller(replica.directory, check)
        except _Gone:
            return
        except ApiError as error:
            _logger.warning("%s: the controller refused its directory: %s", self.topic_partition, error)
            return
        while self._owner.find(self.key) is not None:
            image = self._owner.image
            if image is not None and image.next_offset >= next_offset:
                return
            await self._wait_for_metadata()

    # ---- Taking its place --------------------------------------------------------------------------------------------

    async def _take_place(self, exchange: Exchange) -> bool:
        """Lets the copy take the log's place; False if it could not yet."""
        replica = self._check()
        replica.flusher.hold(self._partition)
        try:
            # Acknowledgements may wait for it.
            await self._catch_up(is_bounded=False)
            await self._sync()
            return await exchange(self.key, self._exchanged)
        finally:
            replica.flusher.release(self._partition)
            now = self._owner.find(self.key)
            if now is not None and now.partition.needs_sync:
                now.flusher.request(now.partition)

    def _exchanged(self) -> Replica | None:
        """Makes the copy the log, in one turn of the event loop. None when the copy lacks records yet, or is not synced
        as far as the log is.
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
        moved = Replica(partition, self.target, self._logs.flushers[self.target])
        self._owner.add(moved)
        self.stage = MoveStage.MOVED
        try:
            partition.on_log_reopened(log, clock.now_ms())
        except StorageError as error:
            self._owner.on_storage_error(moved, error)
        return moved

    async def _settle(self) -> None:
        """Deletes the old log once nothing can bring it back, also when the replica is gone."""
        target, source = self.target, self.source
        try:
            await self._sync_moved()
            await target.checkpoint(partial(self._logs.high_watermarks, target))
        except PassingStorageError as error:
            _logger.warning("%s: no checkpoint: %s", target.path, error)
        except StorageError as error:
            self._logs.fail(target, error)
            return
        replica = self._owner.find(self.key)
        if replica is None or replica.directory is not source:
            await self._logs.forget([(source, self.topic_partition)])
            self._logs.delete(source, self.topic_partition, self._partition.config.file_delete_delay_ms)
        _logger.info("%s is moved from %s to %s", self.topic_partition, source.path, target.path)

    async def _sync_moved(self) -> None:
        """Makes the new name and the log durable. Raises StorageError, also where the disk is full: a sync that failed
        is not tried again.
        """
        log = self.target.logs.get(self.topic_partition)
        try:
            await self._settings.disk.sync([], [self.target.path])
            if log is not None:
                await self.target.sync([log])
        except PassingStorageError as error:
            raise StorageError(str(error)) from error
