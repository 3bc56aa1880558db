"""Nodes of several versions of the package in one cluster, in this process, on real files. Between two nodes passes
what passes between processes: the name of an API and bytes; from one version of a node to the next, its files.
"""

import asyncio
import dataclasses
import time
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from contextlib import suppress
from pathlib import Path
from random import Random
from typing import Any, TypeVar

from rayka.client import io_thread
from rayka.errors import ApiError
from rayka.protocol.membership import MetadataPartition, MetadataRequest, NodeState, StatusRequest
from rayka.protocol.quorum_messages import DescribeQuorumRequest
from tests.versions.packages import THIS, Version

ResultT = TypeVar("ResultT")
CONTROLLERS, BROKERS = (3001, 3002, 3003), (1, 2, 3)
CONFIG = {
    "controller.quorum.election.timeout.ms": 200,
    "controller.quorum.fetch.timeout.ms": 500,
    "controller.quorum.request.timeout.ms": 500,
    "controller.quorum.election.backoff.max.ms": 100,
    "broker.heartbeat.interval.ms": 200,
    "default.replication.factor": 3,
    "min.insync.replicas": 2,
    "offsets.topic.num.partitions": 1,
    "group.initial.rebalance.delay.ms": 0,
}
_WAIT_S, _POLL_S, _CALL_TIMEOUT_MS = 60, 0.02, 5_000
_LAG_MAX = 10


class _Running:
    """A node of some version, and the calls that it has not answered yet."""

    def __init__(self, version: Version, node: Any, disk: Any) -> None:
        self.version = version
        self.node = node
        self.disk = disk
        self.inbox = version.get("node.inbox.Inbox")(node)
        self._in_memory = version.get("protocol.wire.in_memory")
        self._open: dict[asyncio.Task[Any], None] = {}

    def handle(self, name: str, header: bytes, body: bytes, payload: Any) -> "asyncio.Task[Any]":
        """On the loop of the nodes. The call starts in the order in which this is called."""
        task = asyncio.get_running_loop().create_task(self._handle(name, header, body, payload))
        self._open[task] = None
        task.add_done_callback(self._open.pop)
        return task

    async def _handle(self, name: str, header: bytes, body: bytes, payload: Any) -> tuple[bytes, Any]:
        answer, buffers = await self.inbox.handle(name, header, body, payload)
        return answer, self._in_memory(buffers)

    def end(self) -> None:
        for task in list(self._open):
            task.cancel()
        self.node.kill()
        self.disk.close()


class _Port:
    """The network port of a node or a client of some version; a client's IO thread may be another than the nodes'."""

    def __init__(self, cluster: "MixedCluster", version: Version) -> None:
        self._cluster = cluster
        self._lost = version.get("errors.NetworkException")
        ids = version.module("ids")
        self._caller = version.get("protocol.caller.Caller")(ids.random_uuid(Random()))

    async def node_ids(self) -> Sequence[int]:
        return [*BROKERS, *CONTROLLERS]

    async def call(self, node_id: int, request: Any, timeout_ms: int) -> Any:
        return await self._caller.call(node_id, request, timeout_ms, self._send)

    def _send(self, call: Any) -> Awaitable[Any]:
        arguments = (call.node_id, call.api.name, call.header, call.request.body, call.request.payload())
        if asyncio.get_running_loop() is self._cluster.loop:
            return self._answer(self._cluster.deliver(*arguments))
        passed = asyncio.run_coroutine_threadsafe(self._cluster.answer(*arguments), self._cluster.loop)
        return self._answer(asyncio.wrap_future(passed))

    async def _answer(self, coming: "asyncio.Future[Any] | None") -> Any:
        if coming is None:
            raise self._lost("the node does not run")
        try:
            answer = await asyncio.shield(coming)
        except asyncio.CancelledError:
            if coming.cancelled():
                raise self._lost("the node's process ended") from None
            raise
        if answer is None:
            raise self._lost("the node does not run")
        return answer


class Handle:
    """What a client of some version is given for the cluster."""

    name = "mixed"

    def __init__(self, cluster: "MixedCluster", version: Version) -> None:
        self._cluster = cluster
        self._version = version

    def network(self, transport: str = "auto") -> _Port:
        return _Port(self._cluster, self._version)


class MixedCluster:
    """Three controllers and three brokers; each method may be called from any thread."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._running: dict[int, _Running] = {}
        self.crashes: list[BaseException] = []
        self.loop = self._run(_current_loop)
        self._port = _Port(self, THIS)

    # ---- Life ----

    def start_all(self, version: Version) -> None:
        """Formats the cluster by that version, and starts all nodes with it."""
        self._run(lambda: self._format(version))
        for each in (*CONTROLLERS, *BROKERS):
            self._run(lambda each=each: self._begin(each, version))
        self.until_none(self.lacks)

    def replace(self, node_id: int, version: Version) -> None:
        """Stops the node under control, and starts it in that version on its files; returns when it has caught up."""
        self._run(lambda: self._stop(node_id))
        self._run(lambda: self._begin(node_id, version))
        self.until_none(self.lacks)

    def crash(self, node_id: int, version: Version) -> None:
        """The node ends where it stands, and starts in that version."""
        self._run(lambda: self._kill(node_id))
        self._run(lambda: self._begin(node_id, version))
        self.until_none(self.lacks)

    def close(self) -> None:
        for each in list(self._running):
            self._run(lambda each=each: self._kill(each))
        assert self.crashes == []

    def handle(self, version: Version) -> Handle:
        return Handle(self, version)

    async def _format(self, version: Version) -> None:
        settings = {each: self._settings(each, version) for each in (*CONTROLLERS, *BROKERS)}
        format_voters = version.get("node.quorum_directory.format_first_voters")
        await format_voters([settings[each] for each in CONTROLLERS])
        for each in BROKERS:
            await version.get("node.data_directories.DataDirectories").format(settings[each])
        for made in settings.values():
            made.disk.close()

    def _settings(self, node_id: int, version: Version) -> Any:
        ids, settings = version.module("ids"), version.get("node.settings.NodeSettings")
        given: dict[str, Any] = {
            "node_id": node_id,
            "cluster_name": Handle.name,
            "data_dirs": (str(self._directory / f"node-{node_id}"),),
            "config": version.get("config.broker_config.BrokerConfig").parse(CONFIG, what="test"),
            "disk": version.get("log.local_disk.LocalDisk")(),
            "network": _Port(self, version),
            "random": Random(),  # another incarnation each time
            "wall_clock_ms": lambda: time.time_ns() // 1_000_000,
            "crash": self.crashes.append,
            "roles": (ids.role_of(node_id),),
        }
        known = {each.name for each in dataclasses.fields(settings)}
        return settings(**{name: value for name, value in given.items() if name in known})

    async def _begin(self, node_id: int, version: Version) -> None:
        settings = self._settings(node_id, version)
        kind = "controller" if node_id in CONTROLLERS else "broker"
        node = version.get(f"node.{kind}_node.{kind.title()}Node")(settings)
        self._running[node_id] = _Running(version, node, settings.disk)
        await node.start()

    async def _stop(self, node_id: int) -> None:
        await self._running[node_id].node.stop()
        await self._kill(node_id)

    async def _kill(self, node_id: int) -> None:
        self._running.pop(node_id).end()

    # ---- Calls ----

    def deliver(self, node_id: int, *call: Any) -> "asyncio.Task[Any] | None":
        running = self._running.get(node_id)
        return None if running is None else running.handle(*call)

    async def answer(self, node_id: int, *call: Any) -> Any:
        task = self.deliver(node_id, *call)
        return None if task is None else await task

    # ---- Looks ----

    def versions(self) -> dict[int, str]:
        return {each: running.version.name for each, running in sorted(self._running.items())}

    def active(self) -> int:
        """The active controller; -1 while there is none."""
        for each in CONTROLLERS:
            with suppress(ApiError):
                response = self._ask(each, DescribeQuorumRequest())
                if not response.error_code:
                    return int(response.leader_id)
        return -1

    def partitions(self) -> list[MetadataPartition]:
        """Of all topics, as the active controller knows them."""
        topics = self._ask(self.active(), MetadataRequest()).topics
        return [partition for topic in topics for partition in topic.partitions]

    def lacks(self) -> str:
        """What is missing until every node runs and follows, and every replica is in sync; empty when nothing is."""
        try:
            states = {each: self._ask(each, StatusRequest()).state for each in (*BROKERS, *CONTROLLERS)}
            quorum = self._ask(self.active(), DescribeQuorumRequest())
            partitions = self.partitions()
        except ApiError as error:
            return str(error)
        away = {each: state for each, state in states.items() if state != NodeState.RUNNING}
        behind = [each for each in quorum.voters if quorum.high_watermark - each.log_end_offset > _LAG_MAX]
        lagging = [each for each in partitions if sorted(each.isr) != sorted(each.replicas)]
        return " ".join(str(each) for each in (away, behind, lagging) if each)

    def until_none(self, lacks: Callable[[], object]) -> None:
        deadline_s = time.monotonic() + _WAIT_S
        while lacking := lacks():
            assert not self.crashes, self.crashes
            assert time.monotonic() < deadline_s, f"still after {_WAIT_S} s: {lacking}"
            time.sleep(_POLL_S)

    def _ask(self, node_id: int, request: Any) -> Any:
        return self._run(lambda: self._port.call(node_id, request, _CALL_TIMEOUT_MS))

    def _run(self, work: Callable[[], Coroutine[Any, Any, ResultT]]) -> ResultT:
        return io_thread.run(work, _WAIT_S)


async def _current_loop() -> asyncio.AbstractEventLoop:
    return asyncio.get_running_loop()
