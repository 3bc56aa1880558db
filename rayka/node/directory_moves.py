"""The moves of one broker's replicas between its data directories: which are wanted, and those under way (KIP-113).

Invariants: of a replica there is one move at a time, and the newest wish counts; `num.replica.alter.log.dirs.threads`
moves are made at once, all of them together at `replica.alter.log.dirs.io.max.bytes.per.second`; a replica that moves
is not compacted; a move that ends early is named with the reason, and the others go on. What the end of the process
breaks off goes on with the next one. Kafka: `ReplicaManager.alterReplicaLogDirs`, `ReplicaAlterLogDirsManager`.
"""

import logging
import math
from collections.abc import Mapping

from rayka.config.broker_config import BrokerConfig
from rayka.log.log_directory import LogDirectory
from rayka.node.controller_link import ControllerLink
from rayka.node.data_directories import DataDirectories
from rayka.node.directory_move import DirectoryMove, Exchange, MoveCancelled, MoveParts
from rayka.node.log_manager import LogManager
from rayka.node.replica import PartitionKey, Replica, ReplicaOwner, Truncations, key_of
from rayka.node.settings import NodeSettings
from rayka.node.tasks import Pace, Signal

_REASONS_MAX = 1_000
_logger = logging.getLogger(__name__)


class DirectoryMoves:
    """See the module. `config` may change at any time."""

    def __init__(
        self,
        settings: NodeSettings,
        directories: DataDirectories,
        owner: ReplicaOwner,
        logs: LogManager,
        link: ControllerLink,
    ) -> None:
        self._directories = directories
        self._owner = owner
        self._logs = logs
        self._wanted: dict[PartitionKey, LogDirectory] = {}
        self.running: dict[PartitionKey, DirectoryMove] = {}
        self._reasons: dict[PartitionKey, str] = {}
        self._right_below: dict[PartitionKey, int] = {}  # of moves that an earlier process began
        self._dropped: dict[PartitionKey, LogDirectory] = {}  # not wanted any more, and there may be a copy
        self._news = Signal()
        self.config: BrokerConfig = settings.config
        self._pace = Pace(lambda: self.config.replica_alter_log_dirs_io_max_bytes_per_second)
        self.metadata = Signal()  # to be notified at another image
        logs.cleaner.is_paused = self.has_copy
        self._parts = MoveParts(
            settings,
            directories,
            owner,
            logs,
            link,
            self.metadata,
            self._pace.spend,
            Truncations(settings.disk),
        )

    def __repr__(self) -> str:
        return f"<DirectoryMoves wanted={len(self._wanted)} running={list(self.running.values())}>"

    def problems(self) -> list[str]:
        """Why moves have ended early, one line each, until the replica is moved again."""
        return list(self._reasons.values())

    @property
    def worker_count(self) -> int:
        """How many moves are made at once."""
        return self.config.num_replica_alter_log_dirs_threads or len(self._directories.all)

    # ---- What is wanted ----------------------------------------------------------------------------------------------

    def want(self, replica: Replica, target: LogDirectory) -> None:
        """The replica is to be in this directory. A move of it to another one ends, as far as it can."""
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
        """After the first metadata, before a client has appended anything: goes on with what an earlier process began,
        and removes copies that nothing waits for.
        """
        for directory in self._directories.online():
            for topic_id, number, path in directory.partitions.futures():
                replica = replicas.get((topic_id, number))
                if isinstance(replica, Replica) and replica.directory is not directory:
                    self._wanted[topic_id, number] = directory
                    self._right_below[topic_id, number] = replica.partition.log.log_end_offset
                elif replica is None or isinstance(replica, Replica):
                    self._logs.delete_future(directory, path)
        self._news.notify()

    def is_bound_for(self, directory: LogDirectory | None, replica: Replica) -> bool:
        """Whether the replica, which the metadata say is in that directory, is on its way there, or was."""
        running = self.running.get(key_of(replica.partition))
        if directory is None or directory.failure is not None:
            return running is not None and running.target is directory
        return (running is not None and running.target is directory) or directory.futures.exists(
            replica.topic_partition, replica.partition.topic_id
        )

    def has_copy(self, replica: Replica) -> bool:
        """Whether a move of the replica is under way, or one that an earlier process began waits for its turn. If its
        log were compacted, a tombstone might go before it is copied, and the value in the copy stay.
        """
        key = key_of(replica.partition)
        return key in self.running or key in self._right_below

    def on_gone(self, key: PartitionKey) -> None:
        """The replica is not here any more."""
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
            else:
                await self._move(self._begun(replica), exchange)

    def _begun(self, replica: Replica) -> DirectoryMove:
        key = key_of(replica.partition)
        dropped, right_below = self._dropped.pop(key, None), self._right_below.pop(key, None)
        move = DirectoryMove(self._parts, replica, dropped or self._wanted[key], right_below=right_below)
        if dropped is not None:
            move.cancel("it is not wanted any more")
        return move

    def _next(self) -> Replica | None:
        for waiting in (self._dropped, self._wanted):
            for key, target in list(waiting.items()):
                replica = self._owner.find(key)
                if key in self.running:
                    continue
                if replica is not None and replica.directory is not target:
                    return replica
                del waiting[key]
        return None

    async def _move(self, move: DirectoryMove, exchange: Exchange) -> None:
        key, name = move.key, move.topic_partition
        self.running[key] = move
        try:
            await move.run(exchange)
        except MoveCancelled as reason:
            if not move.is_withdrawn:
                self._on_cancelled(move, f"{name} stays in {move.source.path}: {reason}")
        finally:
            del self.running[key]
            if self._wanted.get(key) is move.target and not move.is_withdrawn:
                del self._wanted[key]
            self._news.notify()

    def _on_cancelled(self, move: DirectoryMove, reason: str) -> None:
        self._reasons[move.key] = reason
        if len(self._reasons) > _REASONS_MAX:
            del self._reasons[next(iter(self._reasons))]
        _logger.warning("its move to %s is cancelled: %s", move.target.path, reason)
