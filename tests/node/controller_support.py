"""What the tests of the controller node share: nodes on a memory disk whose syncs a test can hold back."""

import asyncio
from collections.abc import Callable, Sequence
from random import Random
from typing import Any, TypeVar
from uuid import UUID

from rayka.config.broker_config import BrokerConfig
from rayka.errors import NetworkException
from rayka.ids import METADATA_TOPIC_ID
from rayka.metadata.metadata_records import METADATA_VERSION_MAX
from rayka.node.controller_node import ControllerNode
from rayka.node.quorum_directory import format_first_voters
from rayka.node.settings import NodeSettings
from rayka.ports import Request
from rayka.protocol.fetch import FetchPartition, FetchPartitionResult, FetchRequest
from rayka.protocol.membership import (
    HeartbeatRequest,
    MetadataRequest,
    RegisterBrokerRequest,
    RegisteredDirectory,
)
from rayka.protocol.topics import CreateTopicsRequest, NewTopic
from rayka.testing.memory_disk import MemoryDisk

ResponseT = TypeVar("ResponseT")
DATA_DIR = "/data/controller-3001"
METADATA_DIR = f"{DATA_DIR}/__cluster_metadata-0"
BROKER_DIRECTORY = RegisteredDirectory(UUID(int=9), "/data/broker-1")


class HeldDisk(MemoryDisk):
    """A memory disk that counts its syncs, says that one `began`, and finishes none while `is_open` is cleared."""

    def __init__(self) -> None:
        super().__init__()
        self.is_open = asyncio.Event()
        self.is_open.set()
        self.sync_count = 0
        self.began = asyncio.Event()

    async def sync(
        self, files: Sequence[str], directories: Sequence[str], *, in_background: bool = False
    ) -> None:
        self.sync_count += 1
        self.began.set()
        await self.is_open.wait()
        await super().sync(files, directories, in_background=in_background)


class NoNetwork:
    """A controller alone calls no other node."""

    async def call(self, node_id: int, request: Request[ResponseT], timeout_ms: int) -> ResponseT:
        raise NetworkException(f"no process answers as node {node_id}")

    async def node_ids(self) -> Sequence[int]:
        return []


class Crashes:
    """The crash port: remembers what it was told."""

    def __init__(self) -> None:
        self.errors: list[BaseException] = []
        self.happened = asyncio.Event()

    def __call__(self, error: BaseException) -> None:
        self.errors.append(error)
        self.happened.set()


def settings(disk: MemoryDisk, **changes: Any) -> NodeSettings:
    fields: dict[str, Any] = {
        "node_id": 3001,
        "cluster_name": "test",
        "data_dirs": (DATA_DIR,),
        "config": BrokerConfig(metadata_max_idle_interval_ms=0),
        "disk": disk,
        "network": NoNetwork(),
        "random": Random(1),
        "wall_clock_ms": lambda: 1_700_000_000_000,
        "crash": Crashes(),
    }
    return NodeSettings(**(fields | changes))


async def until(condition: Callable[[], bool]) -> None:
    """Returns when the condition holds."""
    while True:
        if condition():
            return
        await asyncio.sleep(0.001)


async def started(disk: MemoryDisk, **changes: Any) -> ControllerNode:
    """A node on a formatted disk, active."""
    node = ControllerNode(settings(disk, **changes))
    await node.start()
    await until(lambda: node.is_active)
    await node.handle(MetadataRequest(()))  # and its first records are committed
    return node


async def new_cluster(disk: MemoryDisk, **changes: Any) -> ControllerNode:
    """A formatted disk, its controller leading, broker 1 running."""
    await format_first_voters([settings(disk)])
    node = await started(disk, **changes)
    await start_broker(node)
    return node


async def start_broker(node: ControllerNode) -> int:
    """Broker 1 registers and is unfenced; its epoch."""
    epoch = (await node.handle(registration())).broker_epoch
    await node.handle(HeartbeatRequest(1, epoch, epoch, False, False))
    return epoch


def registration(**changes: Any) -> RegisterBrokerRequest:
    fields: dict[str, Any] = {
        "broker_id": 1,
        "cluster_id": "",
        "incarnation_id": UUID(int=5),
        "host": "localhost",
        "directories": (BROKER_DIRECTORY,),
        "max_metadata_version": METADATA_VERSION_MAX,
    }
    return RegisterBrokerRequest(**(fields | changes))


def new_topic(*names: str) -> CreateTopicsRequest:
    return CreateTopicsRequest(tuple(NewTopic(name, 1, 1) for name in names))


def fetch_request(offset: int, last_epoch: int = 1, *, max_wait_ms: int = 0, **changes: Any) -> FetchRequest:
    known = {
        name: changes.pop(name) for name in ("high_watermark", "current_leader_epoch") if name in changes
    }
    partition = FetchPartition(METADATA_TOPIC_ID, 0, offset, 1 << 20, last_fetched_epoch=last_epoch, **known)
    fields: dict[str, Any] = {
        "max_wait_ms": max_wait_ms, "min_bytes": 1, "max_bytes": 1 << 20, "partitions": (partition,), "replica_id": 1,
    }  # fmt: skip
    return FetchRequest(**(fields | changes))


async def fetched(node: ControllerNode, request: FetchRequest) -> FetchPartitionResult:
    (result,) = (await node.handle(request)).partitions
    return result
