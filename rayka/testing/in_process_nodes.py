"""The nodes of a cluster in this process, on the IO thread: their disks and directories, and which of them run.

Invariant: a node that is in `running` can be called through the switch, and no other one.
"""

import asyncio
import os
import time
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from dataclasses import dataclass
from random import Random, SystemRandom
from typing import Any

from rayka.config.broker_config import BrokerConfig
from rayka.errors import InvalidArgument
from rayka.ids import Role, node_name, role_of
from rayka.log.local_disk import LocalDisk
from rayka.log.meta_properties import META_PROPERTIES_FILE
from rayka.node.broker_node import BrokerNode
from rayka.node.controller_link import ControllerLink
from rayka.node.controller_node import ControllerNode
from rayka.node.data_directories import DataDirectories
from rayka.node.inbox import Inbox
from rayka.node.quorum_directory import format_first_voters
from rayka.node.settings import NodeSettings
from rayka.ports import Disk
from rayka.protocol.membership import MetadataPartition, MetadataRequest, StatusRequest, StatusResponse
from rayka.testing.in_process_network import InProcessNetwork, Switch

_CALL_TIMEOUT_MS = 5_000
_POLL_S = 0.01


@dataclass(frozen=True, slots=True)
class InProcessDescription:
    """The cluster's name, and each running node's own account of itself."""

    name: str
    nodes: tuple[StatusResponse, ...]


@dataclass(frozen=True, slots=True)
class RunningNode:
    """One process, if it were one."""

    node: BrokerNode | ControllerNode
    owned_disk: LocalDisk | None


class InProcessNodes:
    """All nodes of one cluster, running or not. `crashes` are those that ended by a bug."""

    def __init__(
        self,
        name: str,
        *,
        node_ids: Sequence[int],
        data_dirs: Sequence[str],
        config: BrokerConfig,
        disks: Mapping[int, Disk],
        racks: Mapping[int, str],
    ) -> None:
        self.name = name
        self._config = config
        self.disks = disks
        self._racks = racks
        self._node_ids = list(node_ids)
        self._data_dirs = data_dirs
        self._random = Random(SystemRandom().getrandbits(64))
        self.running: dict[int, RunningNode] = {}
        self.crashes: list[tuple[int, BaseException]] = []
        self.switch = Switch(node_ids, self._random)

    def __repr__(self) -> str:
        return f"<InProcessNodes {[node_name(each) for each in self.running]}>"

    def network(self) -> InProcessNetwork:
        """A new caller to the nodes."""
        return self.switch.network()

    def data_dirs(self, node_id: int) -> tuple[str, ...]:
        """The data directories of one node; a controller has one."""
        directories = self._data_dirs[:1] if _is_controller(node_id) else self._data_dirs
        return tuple(os.path.join(each, node_name(node_id)) for each in directories)

    async def start(self) -> None:
        settings = {each: self._settings(each) for each in self._node_ids}
        if not any(_is_formatted(each) for each in settings.values()):
            await self._format(settings)
        for is_controller in (True, False):
            nodes = {each: settings[each] for each in settings if _is_controller(each) is is_controller}
            await _all(self._start_node(node_id, each) for node_id, each in nodes.items())
        await self.await_active()

    async def _format(self, settings: Mapping[int, NodeSettings]) -> None:
        voters = [each for node_id, each in settings.items() if _is_controller(node_id)]
        await format_first_voters(voters)
        for node_id, each in settings.items():
            if not _is_controller(node_id):
                await DataDirectories.format(each)

    def _settings(self, node_id: int) -> NodeSettings:
        return NodeSettings(
            node_id=node_id,
            cluster_name=self.name,
            data_dirs=self.data_dirs(node_id),
            config=self._config,
            disk=self.disks.get(node_id)
            or LocalDisk(hang_timeout_s=self._config.log_dir_hang_timeout_ms / 1000),
            network=self.switch.network(node_id),
            random=self._random,
            wall_clock_ms=_wall_clock_ms,
            processor_seconds=time.process_time,  # of all nodes together
            crash=lambda error: self._on_crash(node_id, error),
            pid=os.getpid(),
            rack=self._racks.get(node_id, ""),
            roles=(role_of(node_id),),
        )

    async def _start_node(self, node_id: int, settings: NodeSettings) -> None:
        node = ControllerNode(settings) if _is_controller(node_id) else BrokerNode(settings)
        owned_disk = settings.disk if isinstance(settings.disk, LocalDisk) else None
        self.running[node_id] = RunningNode(node, owned_disk)
        self.switch.attach(node_id, Inbox(node))
        try:
            await node.start()
        except BaseException:
            if node_id in self.running:  # else its crash has ended it already
                await self.kill(node_id)
            raise

    async def kill(self, node_id: int) -> None:
        if node_id not in self.running:
            raise InvalidArgument(f"node_id: expected a running node of {self!r}, found {node_id!r}")
        self._end(node_id, self.running[node_id])

    def _end(self, node_id: int, running: RunningNode) -> None:
        del self.running[node_id]
        self.switch.detach(node_id)
        running.node.kill()
        _close_disk(running)

    async def restart(self, node_id: int) -> None:
        if node_id not in self._node_ids:
            raise InvalidArgument(f"node_id: expected one of {self._node_ids}, found {node_id!r}")
        if node_id in self.running:
            await self._stop_node(node_id)
        await self._start_node(node_id, self._settings(node_id))
        if _is_controller(node_id) and self._can_be_active():
            await self.await_active()

    def _can_be_active(self) -> bool:
        voters = [each for each in self._node_ids if _is_controller(each)]
        return not self.switch.is_parted and 2 * sum(each in self.running for each in voters) > len(voters)

    async def await_active(self) -> int:
        """Asks until a controller answers what only the active one does."""
        link = ControllerLink(self.network())
        return (await link.call_until_answered(MetadataRequest(()), _CALL_TIMEOUT_MS)).controller_id

    async def await_partition(
        self, topic: str, partition: int, condition: Callable[[MetadataPartition], bool]
    ) -> MetadataPartition:
        link = ControllerLink(self.network())
        while True:
            response = await link.call_until_answered(MetadataRequest((topic,)), _CALL_TIMEOUT_MS)
            known = response.topics[0].partitions
            if partition < len(known) and condition(known[partition]):
                return known[partition]
            await asyncio.sleep(_POLL_S)

    async def replace_disk(self, node_id: int) -> None:
        if node_id in self.running or _is_controller(node_id):
            raise InvalidArgument(
                f"node_id: expected a broker or coordinator that does not run, found {node_name(node_id)}"
            )
        settings = self._settings(node_id)
        for path in settings.data_dirs:
            await settings.disk.discard(path)
        await DataDirectories.format(settings)

    async def _stop_node(self, node_id: int) -> None:
        running = self.running[node_id]
        await running.node.stop()
        del self.running[node_id]
        self.switch.detach(node_id)
        _close_disk(running)

    async def stop(self) -> None:
        """Brokers and coordinators first, all at once: their shutdown needs the controller, and waits for brokers that
        stay. Then one controller after another, the leader last: it would wait for a successor."""
        self.switch.heal()
        await _all(self._stop_node(each) for each in list(self.running) if not _is_controller(each))
        statuses = (await self.describe()).nodes
        for status in sorted(statuses, key=lambda each: each.leader_id == each.node_id):
            await self._stop_node(status.node_id)

    def _on_crash(self, node_id: int, error: BaseException) -> None:
        self.crashes.append((node_id, error))
        running = self.running.get(node_id)
        if running is not None:
            self._end(node_id, running)

    async def describe(self) -> InProcessDescription:
        network = self.network()
        nodes = [await network.call(each, StatusRequest(), _CALL_TIMEOUT_MS) for each in sorted(self.running)]
        return InProcessDescription(self.name, tuple(nodes))

    async def kill_all(self) -> None:
        for node_id in list(self.running):
            await self.kill(node_id)


async def _all(coroutines: Iterable[Coroutine[Any, Any, None]]) -> None:
    """Runs them together; when all have ended, the first one's error is raised."""
    for outcome in await asyncio.gather(*coroutines, return_exceptions=True):
        if outcome is not None:
            raise outcome


def _is_controller(node_id: int) -> bool:
    return role_of(node_id) is Role.CONTROLLER


def _is_formatted(settings: NodeSettings) -> bool:
    return any(settings.disk.exists(os.path.join(path, META_PROPERTIES_FILE)) for path in settings.data_dirs)


def _close_disk(running: RunningNode) -> None:
    if running.owned_disk is not None:
        running.owned_disk.close()


def _wall_clock_ms() -> int:
    return time.time_ns() // 1_000_000
