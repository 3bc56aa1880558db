"""What the tests of the quorum's driver share: a counter replicated by a log of its own, on memory disks."""

import asyncio
from collections.abc import Coroutine, Sequence
from random import Random
from typing import Any, TypeVar
from uuid import UUID

from rayka.config.broker_config import BrokerConfig
from rayka.errors import ApiError, NetworkException, NotController
from rayka.ids import ReplicaKey
from rayka.node.inbox import Inbox
from rayka.node.quorum_directory import format_controller
from rayka.node.quorum_driver import QuorumDriver
from rayka.node.quorum_log import QuorumLog
from rayka.node.quorum_requests import QuorumRequests
from rayka.node.replicated_shard import ReplicatedShard
from rayka.node.settings import NodeSettings
from rayka.node.tasks import Tasks
from rayka.ports import Network, Request
from rayka.protocol.apis import ServedBy
from rayka.raft.voters import VoterSet
from rayka.shard.shard import NotHere, Result, Timer
from rayka.shard.shard_records import RecordCodec, value_codec
from rayka.sim.loop import VirtualLoop
from rayka.testing.in_process_network import Switch
from rayka.testing.memory_disk import MemoryDisk
from tests.node.controller_support import Crashes, until

ResponseT = TypeVar("ResponseT")
PATIENCE_S = 60
IDS = (3001, 3002, 3003)
VOTERS = VoterSet(tuple(ReplicaKey(each, UUID(int=each)) for each in IDS))
CODEC: RecordCodec[int] = value_codec(lambda record: b"%d" % record, int)
CONFIG = BrokerConfig(
    controller_quorum_election_timeout_ms=50,
    controller_quorum_fetch_timeout_ms=150,
    controller_quorum_request_timeout_ms=150,
    controller_quorum_election_backoff_max_ms=20,
)


class Counter:
    """Adds what it is told, and answers with the total. A timer is set."""

    def __init__(self) -> None:
        self.total = 0
        self.offsets: list[int] = []
        self.last_not_here: NotHere | None = None

    def handle(self, request: Any, *, now_ms: int, next_offset: int) -> Result[int, int]:
        if isinstance(request, Timer):
            return Result([], self.total, [request])
        return Result([request] if request else [], self.total + request)

    def replay(self, record: int, offset: int) -> None:
        if record == 13:
            raise ZeroDivisionError("a bug")
        self.total += record
        self.offsets.append(offset)

    def on_active(self, *, now_ms: int, next_offset: int) -> list[Timer]:
        return []

    def not_here(self, why: NotHere) -> ApiError:
        self.last_not_here = why
        return NotController(why.reason, why.leader_id, why.leader_epoch, may_have_run=why.may_have_run)


class CounterNode:
    """A replica of the counter."""

    serves = ServedBy.QUORUM

    def __init__(self, disk: MemoryDisk, network: Network, node_id: int, **changes: Any) -> None:
        fields: dict[str, Any] = {
            "node_id": node_id,
            "cluster_name": "test",
            "data_dirs": (f"/data/counter-{node_id}",),
            "config": CONFIG,
            "disk": disk,
            "network": network,
            "random": Random(node_id),
            "wall_clock_ms": lambda: 1_700_000_000_000,
            "crash": Crashes(),
        }
        self.settings = NodeSettings(**(fields | changes))
        self.tasks = Tasks(self.settings.crash)
        self.driver: QuorumDriver
        self.requests: QuorumRequests
        self.log: QuorumLog[int]
        self.shard: ReplicatedShard[Counter, int]

    def handle(self, request: Request[Any]) -> Coroutine[Any, Any, Any]:
        return self.requests.handle(request)

    async def start(self) -> None:
        self.driver = await QuorumDriver.open(self.settings, self.tasks)
        self.requests = QuorumRequests(self.driver, self.settings.config)
        self.log = QuorumLog(self.driver, CODEC)
        self.shard = ReplicatedShard(self.settings.node_id, self.log, Counter)
        self.tasks.start("quorum", self.driver.run())
        self.tasks.start("shard", self.shard.run())

    def kill(self) -> None:
        self.tasks.abandon()
        self.shard.abandon()
        self.driver.release()


class Silence:
    """A network in which no node answers; it remembers what was sent, and to which node."""

    def __init__(self) -> None:
        self.sent: list[tuple[int, Request[Any]]] = []

    async def call(self, node_id: int, request: Request[ResponseT], timeout_ms: int) -> ResponseT:
        self.sent.append((node_id, request))
        raise NetworkException(f"no process answers as node {node_id}")

    async def node_ids(self) -> Sequence[int]:
        return IDS


class Counters:
    """Three replicas on memory disks, plugged into one switch."""

    def __init__(self, disks: dict[int, MemoryDisk] | None = None) -> None:
        self.disks = disks or {each: MemoryDisk() for each in IDS}
        self.switch = Switch(IDS, Random(1))
        self.nodes: dict[int, CounterNode] = {}

    async def start(self, *node_ids: int) -> None:
        """These replicas, all by default, on what they have on disk."""
        for each in node_ids or IDS:
            node = CounterNode(self.disks[each], self.switch.network(each), each)
            if not self.disks[each].exists(node.settings.data_dirs[0]):
                await format_voter(node.settings)
            await node.start()
            self.nodes[each] = node
            self.switch.attach(each, Inbox(node))

    def kill(self, node_id: int) -> None:
        self.switch.detach(node_id)
        self.nodes.pop(node_id).kill()

    async def active(self) -> CounterNode:
        """The replica that leads, once one does."""
        await until(lambda: any(node.shard.is_active for node in self.nodes.values()))
        return next(node for node in self.nodes.values() if node.shard.is_active)

    async def add(self, number: int) -> int:
        """The total afterwards, as the leader answers it."""
        total: int = await (await self.active()).shard.submit(number)
        return total

    async def until_all_have(self, total: int) -> None:
        await until(lambda: all(node.shard.shard.total == total for node in self.nodes.values()))


def run(scenario: Coroutine[Any, Any, None]) -> None:
    """On virtual time: a pause costs nothing, and a wait without an end fails at once."""
    loop = VirtualLoop()
    try:
        loop.run_until_complete(asyncio.wait_for(scenario, PATIENCE_S))
    finally:
        loop.cancel_all()
        loop.close()


async def format_voter(settings: NodeSettings, cluster_id: str = "counters") -> None:
    """As one of the three first voters."""
    directory_id = UUID(int=settings.node_id)
    await format_controller(settings, cluster_id=cluster_id, directory_id=directory_id, voters=VOTERS)
