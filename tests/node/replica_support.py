"""What the tests of replicas share: broker 1 with real partitions on a memory disk, on virtual time; what it asks of
other nodes waits until a test answers it.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from random import Random
from typing import Any, Generic, TypeVar
from uuid import UUID

import msgspec
import numpy as np

from rayka.config.broker_config import BrokerConfig
from rayka.errors import ApiError, ErrorCode, RequestTimedOut
from rayka.ids import Role
from rayka.metadata.delta import MetadataDelta
from rayka.metadata.image import MetadataImage
from rayka.metadata.metadata_records import (
    ConfigRecord,
    MetadataRecord,
    PartitionChangeRecord,
    PartitionRecord,
)
from rayka.node.controller_link import ControllerLink
from rayka.node.data_directories import DataDirectories
from rayka.node.replica import Replica
from rayka.node.replica_changes import ReplicaChanges
from rayka.node.replica_manager import ReplicaManager
from rayka.node.settings import NodeSettings
from rayka.node.tasks import Tasks
from rayka.partition.partition import Partition
from rayka.ports import Buffer, Disk, Request
from rayka.protocol.batch_encode import encode_batch
from rayka.protocol.batch_format import split_batches
from rayka.protocol.configs import ResourceType
from rayka.protocol.fetch import (
    FetchPartition,
    FetchPartitionResult,
    FetchRequest,
    FetchResponse,
    ListOffsetsPartitionResult,
    ListOffsetsRequest,
    ListOffsetsResponse,
)
from rayka.protocol.membership import (
    AlterPartitionRequest,
    AssignReplicasToDirsRequest,
    HeartbeatRequest,
    NodeState,
    RegisterBrokerRequest,
    StatusRequest,
    StatusResponse,
)
from rayka.sim.loop import VirtualLoop
from rayka.testing.memory_disk import MemoryDisk
from tests.metadata.support import ORDERS, active, directory, topic

BROKER, LEADER, OTHER, CONTROLLER = 1, 2, 3, 3001
BROKER_EPOCH, LEADER_EPOCH, SESSION = 7, 0, 99
CLUSTER_ID = "the-cluster"
DATA_DIR = "/data/broker-1"
_HOUR_S = 3600
RequestT = TypeVar("RequestT", bound=Request[Any])


def run(main: Callable[[], Awaitable[None]]) -> None:
    """On a clock that jumps; a wait for what never comes ends with a TimeoutError."""

    async def bounded() -> None:
        async with asyncio.timeout(_HOUR_S):
            await main()

    VirtualLoop().run_until_complete(bounded())


async def settle() -> None:
    """Everything that can happen now happens."""
    await asyncio.sleep(0.001)


def now_ms() -> int:
    return int(asyncio.get_running_loop().time() * 1000)


class Asked(Generic[RequestT]):
    """A call that waits to be answered."""

    def __init__(self, node_id: int, request: RequestT) -> None:
        self.node_id = node_id
        self.request = request
        self.at_ms = now_ms()
        self.answered: asyncio.Future[Any] = asyncio.get_running_loop().create_future()

    def answer(self, response: Any) -> None:
        self.answered.set_result(response)

    def fail(self, error: ApiError) -> None:
        self.answered.set_exception(error)


class Others:
    """All other nodes, behind the network port."""

    def __init__(self) -> None:
        self.fetches: asyncio.Queue[Asked[FetchRequest]] = asyncio.Queue()
        self.lookups: asyncio.Queue[Asked[ListOffsetsRequest]] = asyncio.Queue()
        self.proposals: asyncio.Queue[Asked[AlterPartitionRequest]] = asyncio.Queue()
        self.assignments: asyncio.Queue[Asked[AssignReplicasToDirsRequest]] = asyncio.Queue()
        self.registrations: asyncio.Queue[Asked[RegisterBrokerRequest]] = asyncio.Queue()
        self.heartbeats: asyncio.Queue[Asked[HeartbeatRequest]] = asyncio.Queue()
        self._queues: dict[type[Request[Any]], asyncio.Queue[Any]] = {
            FetchRequest: self.fetches,
            ListOffsetsRequest: self.lookups,
            AlterPartitionRequest: self.proposals,
            AssignReplicasToDirsRequest: self.assignments,
            RegisterBrokerRequest: self.registrations,
            HeartbeatRequest: self.heartbeats,
        }

    async def node_ids(self) -> Sequence[int]:
        return [CONTROLLER]

    async def call(self, node_id: int, request: Request[Any], timeout_ms: int) -> Any:
        if isinstance(request, StatusRequest):
            roles = (Role.CONTROLLER,)
            return StatusResponse(
                CONTROLLER, roles, NodeState.RUNNING, 0, "", (), leader_id=CONTROLLER, leader_epoch=1
            )
        asked = Asked(node_id, request)
        self._queues[type(request)].put_nowait(asked)
        try:
            async with asyncio.timeout(timeout_ms / 1000):
                return await asked.answered
        except TimeoutError:
            raise RequestTimedOut(f"node {node_id} did not answer within {timeout_ms} ms") from None


def settings_of(disk: Disk, others: "Others", data_dirs: tuple[str, ...], **config: Any) -> NodeSettings:
    """Of broker 1, whose calls go to `others`."""
    return NodeSettings(
        node_id=BROKER,
        cluster_name="testing",
        data_dirs=data_dirs,
        config=BrokerConfig(**config),
        disk=disk,
        network=others,
        random=Random(1),
        wall_clock_ms=lambda: 1_700_000_000_000,
        crash=lambda error: None,
    )


class Broker:
    """Broker 1. Made by `start`."""

    def __init__(
        self, disk: Disk, directories: DataDirectories, settings: NodeSettings, others: Others
    ) -> None:
        self.crashes: list[BaseException] = []
        self.disk = disk
        self.settings = settings
        self.others = others
        self.directories = directories
        self.tasks = Tasks(self.crashes.append)
        self.replicas = ReplicaManager(settings, directories, ControllerLink(others), self.tasks)
        self.changes = ReplicaChanges(self.replicas, self.tasks)
        self.image = MetadataImage()

    @classmethod
    async def start(
        cls, disk: Disk | None = None, *, data_dirs: tuple[str, ...] = (DATA_DIR,), **config: Any
    ) -> "Broker":
        """On a disk of its own, formatted if it is new."""
        disk, others = disk or MemoryDisk(), Others()
        settings = settings_of(disk, others, data_dirs, **config)
        if not disk.exists(f"{data_dirs[0]}/meta.properties"):
            await DataDirectories.format(settings)
        directories = await DataDirectories.open(settings)
        await directories.on_registered(CLUSTER_ID, BROKER_EPOCH)
        return cls(disk, directories, settings, others)

    async def apply(self, *records: MetadataRecord) -> None:
        """The metadata goes on by these records; it begins with brokers 1 to 3, all active, and the topic."""
        if self.image.next_offset == 0:
            records = (*active(BROKER, epoch=BROKER_EPOCH), *active(LEADER, OTHER), topic(), *records)
        delta = MetadataDelta(self.image)
        for record in records:
            delta.replay(record)
        self.image = delta.apply(self.image.next_offset + len(records))
        await self.changes.apply(delta, self.image)

    async def stop(self) -> None:
        """Ends as a process does; no background task had an error."""
        await self.tasks.stop()
        self.directories.release()
        assert self.crashes == []

    def replica(self, number: int = 0, topic_id: UUID = ORDERS) -> Replica:
        return self.replicas.get(topic_id, number)

    def partition(self, number: int = 0) -> Partition:
        return self.replica(number).partition

    async def next_fetch(self) -> Asked[FetchRequest]:
        return await self.others.fetches.get()

    async def fetches_nothing_for(self, time_ms: int) -> bool:
        """Whether no fetch is sent in this time."""
        try:
            async with asyncio.timeout(time_ms / 1000):
                await self.next_fetch()
        except TimeoutError:
            return True
        return False

    async def begin_session(self, *results: FetchPartitionResult) -> Asked[FetchRequest]:
        """Answers the first fetch of a session; the request that follows it."""
        first = await self.next_fetch()
        first.answer(FetchResponse(results, session_id=SESSION))
        return await self.next_fetch()

    # ---- Records -------------------------------------------------------------------------------------------

    def new_partition(
        self,
        number: int = 0,
        *,
        leader_id: int = LEADER,
        isr: tuple[int, ...] = (LEADER, BROKER),
        **changes: Any,
    ) -> PartitionRecord:
        """A partition on brokers 1 to 3."""
        replicas, own_id = (BROKER, LEADER, OTHER), self.directories.all[0].directory_id
        ids = tuple(own_id if each == BROKER else directory(each).directory_id for each in replicas)
        record = PartitionRecord(
            topic_id=ORDERS,
            partition=number,
            replicas=replicas,
            directories=ids,
            isr=isr,
            leader_id=leader_id,
        )
        return msgspec.structs.replace(record, **changes)

    def moved_away(self, number: int = 0) -> PartitionRecord:
        """A partition that is on the other two brokers."""
        here = self.new_partition(number, isr=(LEADER, OTHER))
        return msgspec.structs.replace(here, replicas=here.replicas[1:], directories=here.directories[1:])


def changed(number: int = 0, **changes: Any) -> PartitionChangeRecord:
    return PartitionChangeRecord(topic_id=ORDERS, partition=number, **changes)


def configured(**values: Any) -> list[MetadataRecord]:
    """The topic's configuration, in snake_case."""
    return [
        ConfigRecord(
            resource_type=ResourceType.TOPIC,
            resource_name="orders",
            name=key.replace("_", "."),
            value=str(value),
        )
        for key, value in values.items()
    ]


def broker_configured(**values: Any) -> list[MetadataRecord]:
    """The configuration of all brokers, in snake_case."""
    return [
        ConfigRecord(
            resource_type=ResourceType.BROKER, resource_name="", name=key.replace("_", "."), value=str(value)
        )
        for key, value in values.items()
    ]


# ---- Answers of a leader ---------------------------------------------------------------------------------------------


def batch(*values: bytes, offset: int = 0, epoch: int = LEADER_EPOCH) -> np.ndarray:
    """One batch as a leader has it in its log."""
    (encoded,) = split_batches(encode_batch(list(values), timestamps_ms=1_700_000_000_000))
    buffers = encoded.stamped(base_offset=offset, leader_epoch=epoch, log_append_time_ms=None)
    return np.concatenate([np.frombuffer(each, dtype=np.uint8) for each in buffers])


def given(number: int = 0, *batches: np.ndarray, **fields: Any) -> FetchPartitionResult:
    """A result of a partition of the topic; the high watermark is 0 unless told."""
    fields = {
        "high_watermark": 0,
        "log_start_offset": 0,
        "leader_id": LEADER,
        "leader_epoch": LEADER_EPOCH,
    } | fields
    if batches:
        fields["records"] = np.concatenate(batches)
    return FetchPartitionResult(ORDERS, number, **fields)


def answered(*results: FetchPartitionResult) -> FetchResponse:
    return FetchResponse(results, session_id=SESSION)


def offsets_found(*offsets: int, error_code: ErrorCode = ErrorCode.NONE) -> ListOffsetsResponse:
    """Where the leader's log of partition 0 begins and ends."""
    return ListOffsetsResponse(
        tuple(ListOffsetsPartitionResult(ORDERS, 0, error_code, offset=offset) for offset in offsets)
    )


def positions(request: FetchRequest) -> dict[int, int]:
    """From where the request asks, by partition."""
    return {each.partition: each.fetch_offset for each in request.partitions}


def position(request: FetchRequest, number: int = 0) -> FetchPartition:
    (found,) = [each for each in request.partitions if each.partition == number]
    return found


class CountingDisk(MemoryDisk):
    """A memory disk that knows which logs were cut (`"cut"`) or appended to (`"append"`) in which turn of the event
    loop.
    """

    def __init__(self, counted: str) -> None:
        super().__init__()
        self._counted = counted
        self._turns: list[set[str]] = []

    def cut(self, path: str, size_bytes: int) -> None:
        self._count("cut", path)
        super().cut(path, size_bytes)

    def append(self, path: str, buffers: Sequence[Buffer]) -> int:
        self._count("append", path)
        return super().append(path, buffers)

    def counts(self) -> list[int]:
        """How many logs it were in each turn."""
        return [len(each) for each in self._turns]

    async def count_turns(self, log_count: int) -> None:
        """Returns when it were so many logs."""
        self._turns.clear()
        while sum(self.counts()) < log_count:
            self._turns.append(set())
            await asyncio.sleep(0)

    def _count(self, act: str, path: str) -> None:
        if act == self._counted and path.endswith(".log") and self._turns:
            self._turns[-1].add(path)
