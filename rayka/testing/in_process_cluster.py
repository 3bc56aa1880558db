"""A cluster in this process, for tests: the real nodes and the real wire format, no Ray, no other process.

Nodes run on the IO thread that clients use too. `kill` is what `kill -9` is to a process: tasks stop where
they are, nothing is flushed or closed, locks are released, the page cache stays. Invariant: when `stop`
returns, no task, lock, thread or temporary file of the cluster is left, and a node that crashed by a bug is
an error.
"""

import asyncio
import os
import shutil
import tempfile
import time
from collections.abc import Callable, Collection, Coroutine, Iterable, Mapping, Sequence
from dataclasses import dataclass
from random import Random, SystemRandom
from types import TracebackType
from typing import Any, Self

from rayka import forks
from rayka.client import io_thread
from rayka.config import BrokerConfig
from rayka.ids import FIRST_BROKER_ID, FIRST_CONTROLLER_ID, Role, node_name, role_of
from rayka.log.local_disk import LocalDisk
from rayka.log.meta_properties import META_PROPERTIES_FILE
from rayka.node.broker_node import BrokerNode
from rayka.node.controller_link import ControllerLink
from rayka.node.controller_node import ControllerNode
from rayka.node.inbox import Inbox
from rayka.node.quorum.format import format_first_voters
from rayka.node.settings import NodeSettings
from rayka.node.storage.data_directories import DataDirectories
from rayka.ports import Disk
from rayka.protocol.membership import MetadataPartition, MetadataRequest, StatusRequest, StatusResponse
from rayka.testing.in_process_network import InProcessNetwork, Switch

_START_TIMEOUT_S = 60.0
_CALL_TIMEOUT_MS = 5_000
_POLL_S = 0.01


@dataclass(frozen=True, slots=True)
class InProcessDescription:
    """The cluster's name, and each running node's own account of itself."""

    name: str
    nodes: tuple[StatusResponse, ...]


@dataclass(frozen=True, slots=True)
class _Running:
    """One process, if it were one."""

    node: BrokerNode | ControllerNode
    owned_disk: LocalDisk | None


def cluster(
    brokers: int = 1,
    *,
    controllers: int = 1,
    data_dir: str | Sequence[str] | None = None,
    config: Mapping[str, Any] | None = None,
    disks: Mapping[int, Disk] | None = None,
    racks: Mapping[int, str] | None = None,
    name: str = "testing",
) -> "InProcessCluster":
    """A running cluster of controllers (nodes from 3001) and brokers (nodes from 1); use it in a `with`
    statement.

    `data_dir`: a directory, or several over which each broker spreads its partitions; a temporary one,
    removed at the end, by default. Data that is there is kept and served. `config` has Kafka's broker keys.
    `disks` replaces the real disk of some nodes, `racks` says where they are, both by id. Pass the cluster to
    clients as `cluster=`.
    """
    return InProcessCluster(
        name,
        node_ids=[
            *range(FIRST_CONTROLLER_ID, FIRST_CONTROLLER_ID + controllers),
            *range(FIRST_BROKER_ID, FIRST_BROKER_ID + brokers),
        ],
        data_dirs=[data_dir] if isinstance(data_dir, str) else data_dir,
        config=BrokerConfig.parse(config or {}, what="config"),
        disks=disks or {},
        racks=racks or {},
    )


class InProcessCluster:
    """Made by `cluster`; a handle for clients."""

    def __init__(
        self,
        name: str,
        *,
        node_ids: Sequence[int],
        data_dirs: Sequence[str] | None,
        config: BrokerConfig,
        disks: Mapping[int, Disk],
        racks: Mapping[int, str],
    ) -> None:
        forks.refuse()
        self._name = name
        self._config = config
        self._disks = disks
        self._racks = racks
        self._node_ids = list(node_ids)
        self._temporary_dir = None if data_dirs else tempfile.mkdtemp(prefix="rayka-")
        self._data_dirs = list(data_dirs or [self._temporary_dir or ""])
        self._random = Random(SystemRandom().getrandbits(64))
        self._running: dict[int, _Running] = {}
        self._crashes: list[tuple[int, BaseException]] = []
        self.switch = Switch(node_ids, self._random)
        try:
            io_thread.run(self._start(), _START_TIMEOUT_S)
        except BaseException:
            self._abandon()
            raise

    def __repr__(self) -> str:
        return f"<InProcessCluster {self._name} {[node_name(each) for each in self._running]}>"

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None
    ) -> None:
        if forks.is_cut_off():  # the nodes are the parent's
            return
        if error is None:
            self.stop()
        else:
            self._abandon()  # the test's own failure is the one to see

    # ---- For clients -----------------------------------------------------------------------------------

    @property
    def name(self) -> str:
        return self._name

    def network(self) -> InProcessNetwork:
        """A new caller to the nodes; its calls are awaited on the IO thread."""
        return self.switch.network()

    def describe(self) -> InProcessDescription:
        """What the running nodes say of themselves."""
        return io_thread.run(self._describe(), _START_TIMEOUT_S)

    # ---- For tests -------------------------------------------------------------------------------------

    def data_dirs(self, node_id: int) -> tuple[str, ...]:
        """The data directories of one node; a controller has one."""
        directories = self._data_dirs[:1] if role_of(node_id) is Role.CONTROLLER else self._data_dirs
        return tuple(os.path.join(each, node_name(node_id)) for each in directories)

    def kill(self, node_id: int) -> None:
        """Ends the node as `kill -9` would. Raises ValueError when it does not run."""
        io_thread.run(self._kill(node_id), _START_TIMEOUT_S)

    def restart(self, node_id: int) -> None:
        """Starts the node on what it has on disk, after a controlled shutdown if it runs; returns when it
        serves: a controller, when one is active, if there can be one. Raises ValueError when the cluster has no such
        node."""
        io_thread.run(self._restart(node_id), _START_TIMEOUT_S)

    def replace_disk(self, node_id: int) -> None:
        """Gives a broker that does not run new, empty data directories, as a new machine would have them. Raises
        ValueError when it runs, or is a controller."""
        io_thread.run(self._replace_disk(node_id), _START_TIMEOUT_S)

    def partition(self, a: int, b: int) -> None:
        """Nothing passes between these two nodes any more, in either direction, until `heal`. What they send is held
        back, so their calls time out."""
        io_thread.call_soon(lambda: self.switch.part(a, b))

    def heal(self) -> None:
        """Everything passes again between all nodes, first what was held back."""
        io_thread.call_soon(self.switch.heal)

    def await_active_controller(self) -> int:
        """The node that leads the metadata and serves, once there is one. Raises TimeoutError after a minute."""
        return io_thread.run(self._await_active(), _START_TIMEOUT_S)

    def await_isr(self, topic: str, partition: int, isr: Collection[int]) -> MetadataPartition:
        """The partition as the active controller knows it, once exactly these brokers are in sync. Raises TimeoutError
        after a minute."""
        return self.await_partition(topic, partition, lambda state: sorted(state.isr) == sorted(isr))

    def await_partition(
        self, topic: str, partition: int, condition: Callable[[MetadataPartition], bool]
    ) -> MetadataPartition:
        """The partition as the active controller knows it, once the condition holds. Raises TimeoutError after a
        minute."""
        return io_thread.run(self._await_partition(topic, partition, condition), _START_TIMEOUT_S)

    def fail_calls(
        self, api_name: str, *, times: int = 1, is_executed: bool = False, node_id: int | None = None
    ) -> None:
        """The next calls of this API end in NetworkException; with `is_executed` the node has done its work
        by then."""
        io_thread.call_soon(
            lambda: self.switch.fail_calls(api_name, times=times, is_executed=is_executed, node_id=node_id)
        )

    def stop(self) -> None:
        """A controlled shutdown of all nodes. Raises RuntimeError if one has crashed by a bug."""
        try:
            io_thread.run(self._stop(), _START_TIMEOUT_S)
        finally:
            self._abandon()
        for node_id, error in self._crashes:
            raise RuntimeError(f"{node_name(node_id)} crashed: {error!r}") from error

    # ---- On the IO thread ------------------------------------------------------------------------------

    async def _start(self) -> None:
        settings = {each: self._settings(each) for each in self._node_ids}
        if not any(_is_formatted(each) for each in settings.values()):
            await self._format(settings)
        for role in (Role.CONTROLLER, Role.BROKER):
            nodes = {node_id: each for node_id, each in settings.items() if role_of(node_id) is role}
            await _all(self._start_node(node_id, each) for node_id, each in nodes.items())
        await self._await_active()

    async def _format(self, settings: Mapping[int, NodeSettings]) -> None:
        voters = [each for node_id, each in settings.items() if role_of(node_id) is Role.CONTROLLER]
        await format_first_voters(voters)
        for node_id, each in settings.items():
            if role_of(node_id) is Role.BROKER:
                await DataDirectories.format(each)

    def _settings(self, node_id: int) -> NodeSettings:
        return NodeSettings(
            node_id=node_id,
            cluster_name=self._name,
            data_dirs=self.data_dirs(node_id),
            config=self._config,
            disk=self._disks.get(node_id) or LocalDisk(),
            network=self.switch.network(node_id),
            random=self._random,
            wall_clock_ms=_wall_clock_ms,
            crash=lambda error: self._on_crash(node_id, error),
            pid=os.getpid(),
            rack=self._racks.get(node_id, ""),
        )

    async def _start_node(self, node_id: int, settings: NodeSettings) -> None:
        is_controller = role_of(node_id) is Role.CONTROLLER
        node = ControllerNode(settings) if is_controller else BrokerNode(settings)
        owned_disk = settings.disk if isinstance(settings.disk, LocalDisk) else None
        self._running[node_id] = _Running(node, owned_disk)
        self.switch.attach(node_id, Inbox(node))
        try:
            await node.start()
        except BaseException:
            if node_id in self._running:  # else its crash has ended it already
                await self._kill(node_id)
            raise

    async def _kill(self, node_id: int) -> None:
        if node_id not in self._running:
            raise ValueError(f"node_id: expected a running node of {self!r}, found {node_id!r}")
        self._end(node_id, self._running[node_id])

    def _end(self, node_id: int, running: _Running) -> None:
        del self._running[node_id]
        self.switch.detach(node_id)
        running.node.kill()
        _close_disk(running)

    async def _restart(self, node_id: int) -> None:
        if node_id not in self._node_ids:
            raise ValueError(f"node_id: expected one of {self._node_ids}, found {node_id!r}")
        if node_id in self._running:
            await self._stop_node(node_id)
        await self._start_node(node_id, self._settings(node_id))
        if role_of(node_id) is Role.CONTROLLER and self._can_be_active():
            await self._await_active()

    def _can_be_active(self) -> bool:
        voters = [each for each in self._node_ids if role_of(each) is Role.CONTROLLER]
        return not self.switch.is_parted and 2 * sum(each in self._running for each in voters) > len(voters)

    async def _await_active(self) -> int:
        """Asks until a controller answers what only the active one does."""
        link = ControllerLink(self.network())
        return (await link.call_until_answered(MetadataRequest(()), _CALL_TIMEOUT_MS)).controller_id

    async def _await_partition(
        self, topic: str, partition: int, condition: Callable[[MetadataPartition], bool]
    ) -> MetadataPartition:
        link = ControllerLink(self.network())
        while True:
            response = await link.call_until_answered(MetadataRequest((topic,)), _CALL_TIMEOUT_MS)
            known = response.topics[0].partitions
            if partition < len(known) and condition(known[partition]):
                return known[partition]
            await asyncio.sleep(_POLL_S)

    async def _replace_disk(self, node_id: int) -> None:
        if node_id in self._running or role_of(node_id) is not Role.BROKER:
            raise ValueError(f"node_id: expected a broker that does not run, found {node_name(node_id)}")
        settings = self._settings(node_id)
        for path in settings.data_dirs:
            settings.disk.remove_directory(path)
        await DataDirectories.format(settings)

    async def _stop_node(self, node_id: int) -> None:
        running = self._running[node_id]
        await running.node.stop()
        del self._running[node_id]
        self.switch.detach(node_id)
        _close_disk(running)

    async def _stop(self) -> None:
        """Brokers first, all at once: their shutdown needs the controller, and waits for brokers that stay. Then one
        controller after another, the leader last: it would wait for a successor."""
        self.switch.heal()
        await _all(self._stop_node(each) for each in list(self._running) if role_of(each) is Role.BROKER)
        statuses = (await self._describe()).nodes
        for status in sorted(statuses, key=lambda each: each.leader_id == each.node_id):
            await self._stop_node(status.node_id)

    def _on_crash(self, node_id: int, error: BaseException) -> None:
        self._crashes.append((node_id, error))
        running = self._running.get(node_id)
        if running is not None:
            self._end(node_id, running)

    async def _describe(self) -> InProcessDescription:
        network = self.network()
        nodes = [
            await network.call(each, StatusRequest(), _CALL_TIMEOUT_MS) for each in sorted(self._running)
        ]
        return InProcessDescription(self._name, tuple(nodes))

    # ---- The end ---------------------------------------------------------------------------------------

    def _abandon(self) -> None:
        """Ends what still runs, and removes what is temporary."""
        io_thread.run(self._kill_all(), _START_TIMEOUT_S)
        if self._temporary_dir is not None:
            shutil.rmtree(self._temporary_dir, ignore_errors=True)

    async def _kill_all(self) -> None:
        for node_id in list(self._running):
            await self._kill(node_id)


async def _all(coroutines: Iterable[Coroutine[Any, Any, None]]) -> None:
    """Runs them together; when all have ended, the first one's error is raised."""
    for outcome in await asyncio.gather(*coroutines, return_exceptions=True):
        if outcome is not None:
            raise outcome


def _is_formatted(settings: NodeSettings) -> bool:
    return any(settings.disk.exists(os.path.join(path, META_PROPERTIES_FILE)) for path in settings.data_dirs)


def _close_disk(running: _Running) -> None:
    if running.owned_disk is not None:
        running.owned_disk.close()


def _wall_clock_ms() -> int:
    return time.time_ns() // 1_000_000
