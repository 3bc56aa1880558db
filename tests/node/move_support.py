"""What the tests of moves between directories share: broker 1 with two directories, a controller that takes what it is
told of them, and a disk that is full in places.
"""

import asyncio
import errno
from collections.abc import Sequence
from contextlib import suppress
from typing import Any
from uuid import UUID

from rayka.ids import TopicIdPartition
from rayka.log.local_disk import storage_error
from rayka.log.log_directory import LogDirectory
from rayka.metadata.image import PartitionImage
from rayka.metadata.metadata_records import MetadataRecord
from rayka.node.inbox import completed
from rayka.node.produce_handler import ProduceHandler
from rayka.node.replica_admin import LogDirsHandler
from rayka.ports import Buffer
from rayka.protocol.batch_decode import decode
from rayka.protocol.batch_format import split_batches
from rayka.protocol.membership import (
    AssignedReplicaResult,
    AssignReplicasToDirsRequest,
    AssignReplicasToDirsResponse,
)
from rayka.protocol.produce import ACKS_ALL, ProducePartition, ProducePartitionResult, ProduceRequest
from rayka.protocol.topics import AlterReplicaLogDirsRequest, PartitionResult, ReplicaLogDir
from rayka.testing.memory_disk import MemoryDisk
from tests.log.support import MachineEnded
from tests.metadata.support import ORDERS
from tests.node.broker_support import records
from tests.node.controller_support import until
from tests.node.replica_support import BROKER, Asked, Broker, changed, configured

ONE, TWO = "/data/broker-1/one", "/data/broker-1/two"
QUICKLY = {"log_segment_delete_delay_ms": 1000}
ORDERS_0 = TopicIdPartition(ORDERS, 0)


class FullDisk(MemoryDisk):
    """Appends to paths that begin so find no room."""

    full_path = "nothing"

    def append(self, path: str, buffers: Sequence[Buffer]) -> int:
        if path.startswith(self.full_path):
            raise storage_error("append to", path, errno.ENOSPC)
        return super().append(path, buffers)


class Mover:
    """Broker 1 with partition 0 in directory `one`. Made by `start`; `restart` is another process on the same disk."""

    def __init__(self, broker: Broker) -> None:
        self.broker = broker
        self.records: list[MetadataRecord] = []
        self.is_refusing: Any = None  # what the controller answers instead
        self._answering: asyncio.Task[None] | None = None

    @classmethod
    async def start(
        cls, disk: MemoryDisk | None = None, *, isr: tuple[int, ...] = (BROKER,), **config: Any
    ) -> "Mover":
        mover = cls(await Broker.start(disk, data_dirs=(ONE, TWO), **QUICKLY, **config.pop("broker", {})))
        replica = mover.broker.new_partition(leader_id=isr[0], isr=isr)
        await mover.apply(*configured(**config), replica)
        mover.take_assignments()
        return mover

    async def apply(self, *new: MetadataRecord) -> None:
        self.records += new
        await self.broker.apply(*new)

    async def restart(self, disk: MemoryDisk, **config: Any) -> None:
        """Another process, that reads all metadata at once."""
        self.broker = await Broker.start(disk, data_dirs=(ONE, TWO), **QUICKLY, **config)
        await self.broker.apply(*self.records)
        self.take_assignments()

    async def end(self) -> None:
        """The end of the process; nothing is written any more."""
        self.broker.tasks.abandon()
        if self._answering is not None:
            self._answering.cancel()
        await asyncio.sleep(0)

    async def stop(self) -> None:
        if self._answering is not None:
            self._answering.cancel()
        await self.broker.stop()

    # ---- The controller --------------------------------------------------------------------------------------

    def take_assignments(self) -> None:
        self._answering = asyncio.get_running_loop().create_task(self._answer_forever())

    def hold_assignments(self) -> None:
        assert self._answering is not None
        self._answering.cancel()

    async def _answer_forever(self) -> None:
        with suppress(MachineEnded):
            while True:
                await self.answer_one()

    async def answer_one(self, *, is_applied: bool = True) -> None:
        """Takes one assignment; the broker reads of it a moment after its answer, or with the next metadata."""
        asked = await self.broker.others.assignments.get()
        await self.answer_to(asked, is_applied=is_applied)

    async def answer_to(self, asked: Asked[AssignReplicasToDirsRequest], *, is_applied: bool = True) -> None:
        """As `answer_one`, of an assignment that was taken already."""
        (each,) = asked.request.replicas
        replicas = (AssignedReplicaResult(each.topic_id, each.partition),)
        record = self.named(each.directory_id)
        asked.answer(AssignReplicasToDirsResponse(replicas, self.broker.image.next_offset + 1))
        if is_applied:
            await asyncio.sleep(0.005)
            await self.apply(record)
        else:
            self.records.append(record)

    def apply_later(self, record: MetadataRecord) -> None:
        """The next process reads it."""
        self.records.append(record)

    def named(self, directory_id: UUID) -> MetadataRecord:
        """The metadata name this directory."""
        others = self._state().directories[1:]
        return changed(directories=(directory_id, *others))

    def _state(self) -> PartitionImage:
        state = self.broker.image.partition(ORDERS_0)
        assert state is not None
        return state

    @property
    def named_path(self) -> str:
        """The directory that the metadata name."""
        directory_id = self._state().directory_of(BROKER)
        return next(each.path for each in self.directories if each.directory_id == directory_id)

    # ---- The broker ------------------------------------------------------------------------------------------

    @property
    def directories(self) -> list[LogDirectory]:
        return self.broker.directories.all

    async def ask(self, path: str, topic: str = "orders", partition: int = 0) -> PartitionResult:
        """Asks for a move."""
        broker = self.broker
        handler = LogDirsHandler(broker.replicas)
        request = AlterReplicaLogDirsRequest((ReplicaLogDir(topic, partition, path),))
        return (await handler.alter(request)).partitions[0]

    async def produce(self, *values: bytes) -> ProducePartitionResult:
        request = ProduceRequest(ACKS_ALL, 10_000, (ProducePartition(ORDERS, 0, records(*values)),))
        handler = ProduceHandler(self.broker.replicas, lambda: 1_700_000_000_000)
        return (await completed(handler.handle(request))).partitions[0]

    def values(self) -> list[bytes | None]:
        """All values in the log."""
        log, found = self.broker.partition().log, []
        offset = log.log_start_offset
        while offset < log.log_end_offset:
            read = log.read(offset, max_bytes=1 << 20, end_offset=log.log_end_offset)
            found += [value for batch in split_batches(read.records) for value in decode(batch).values_list()]
            offset = read.next_offset
        return found

    @property
    def lag(self) -> int:
        """How many offsets the copy lacks."""
        (move,) = self.broker.replicas.moves.running.values()
        assert move.copy is not None
        return self.broker.partition().log.log_end_offset - move.copy.log.log_end_offset

    @property
    def where(self) -> str:
        """In which directory the replica is."""
        return self.broker.replica().directory.path

    async def until_in(self, path: str) -> None:
        """Returns once the replica is there and the move has ended."""
        moves = self.broker.replicas.moves
        await until(lambda: self.where == path and not moves.running)

    async def until_cancelled(self) -> str:
        """Why the move ended early."""
        moves = self.broker.replicas.moves
        await until(lambda: bool(moves.problems()) and not moves.running)
        (problem,) = moves.problems()
        return problem

    def names(self, path: str) -> list[str]:
        """What is in a directory of partitions, live or on the way."""
        return [each for each in self.broker.disk.list(path) if each.startswith("orders")]
