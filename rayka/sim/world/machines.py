"""The machines of one simulation: each a disk, a wall clock, and the node that runs there just now, if any.

A node is the real one, in a process of its own (`rayka.sim.loop`). What would restart it on Ray does so here:
a node that could not start tries again, one whose process ended is started by what ended it, and one that found its
incarnation over (StaleBrokerEpoch) comes back at once. Any other exception that reaches `crash` is a bug, and a
violation. Invariant: at most one process of a node is alive.
"""

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from contextvars import Context
from dataclasses import replace
from random import Random
from typing import Any, Protocol

from rayka.config.broker_config import BrokerConfig
from rayka.errors import ApiError, DamagedLog, PassingStorageError, RaykaError, StorageError
from rayka.ids import node_name, random_uuid, role_of
from rayka.node.broker_node import BrokerNode, BrokerParts
from rayka.node.combined_node import CombinedNode
from rayka.node.controller_node import ControllerNode
from rayka.node.data_directories import DataDirectories
from rayka.node.inbox import Node
from rayka.node.quorum_directory import format_controller, format_first_voters, metadata_directory
from rayka.node.settings import NodeSettings, combined_controller_directory, controller_settings
from rayka.protocol.membership import NodeState
from rayka.sim.loop import Process, VirtualLoop
from rayka.sim.registers import registers_type
from rayka.sim.run_options import SimOptions
from rayka.sim.trace import Trace
from rayka.sim.world.simulated_disk import SimDisk
from rayka.sim.world.simulated_network import SimNetwork

_RESTART_S = 1.0
_STOP_TIMEOUT_S = 30.0


class SimNode(Node, Protocol):
    """A node that a machine can run: a controller, a broker, both, or the host of another state machine."""

    async def start(self) -> None: ...

    async def stop(self) -> None: ...

    def kill(self) -> None: ...


class Machine:
    """One machine: `node` is None while none runs; `is_serving` once its start has returned. While it `is_absent`, for
    it has not come yet or has gone, nothing starts.

    A process that begins while it is `swapped_with` another machine is given that one's disk and directory.
    """

    def __init__(self, node_id: int, disk: SimDisk, *, is_controller: bool, is_broker: bool) -> None:
        self.node_id = node_id
        self.disk = disk
        self.is_controller = is_controller
        self.is_broker = is_broker
        self.data_dir = f"/data/{node_name(node_id)}"
        self.metadata_dir = metadata_directory(
            combined_controller_directory(self.data_dir) if is_broker else self.data_dir
        )
        self.incarnation = 0
        self.wall_offset_ms = 0
        self.process: Process | None = None
        self.node: SimNode | None = None
        self.life: asyncio.Task[None] | None = None
        self.is_serving = False
        self.start_failure = ""
        self.swapped_with: Machine | None = None
        self.is_absent = False

    def __repr__(self) -> str:
        return f"<Machine {node_name(self.node_id)} #{self.incarnation} {self.node!r}>"

    def make_node(self, settings: NodeSettings) -> SimNode:
        """The node of the roles that this machine has."""
        if not self.is_controller:
            return BrokerNode(settings)
        return CombinedNode(settings) if self.is_broker else ControllerNode(settings)

    @property
    def controller(self) -> ControllerNode | None:
        """The controller that runs here just now."""
        node = self.node
        if isinstance(node, ControllerNode):  # asked for after each event: the likeliest first
            return node
        return node.controller if isinstance(node, CombinedNode) else None

    @property
    def broker(self) -> BrokerNode | None:
        """The broker that runs here just now; in a combined node that may be another one soon."""
        node = self.node
        if isinstance(node, BrokerNode):
            return node
        return node.broker if isinstance(node, CombinedNode) else None

    @property
    def has_failed(self) -> bool:
        """Whether the node runs, but cannot use its disk any more: it needs another process. A broker whose disk was
        full goes on by itself.
        """
        observed = self._observed_broker
        if observed is not None:
            failures = [each.log.failure for each in observed.replicas.partitions]
            if observed.directories.offline_paths() or any(
                not isinstance(each, PassingStorageError | None) for each in failures
            ):
                return True
        nodes = (self.broker, self.controller)
        return any(node is not None and node.state is NodeState.FAILED for node in nodes)

    @property
    def damage(self) -> str:
        """The damaged logs that a serving broker reports: the broker needs another disk."""
        return "; ".join(str(each) for each in self._unusable() if isinstance(each, DamagedLog))

    @property
    def lacks_replicas(self) -> str:
        """The replicas whose directory a serving broker does not have, as the broker reports them."""
        return "; ".join(str(each) for each in self._unusable() if not isinstance(each, DamagedLog))

    def _unusable(self) -> Sequence[StorageError]:
        return self._observed_broker.replicas.unusable if self._observed_broker is not None else ()

    @property
    def _observed_broker(self) -> BrokerParts | None:
        return self.broker.observed if self.broker is not None else None


class SimCluster:
    """All machines, and the loop, the network and the trace that they share. `watch` makes the functions that look at a
    machine after each callback of its process; `on_bug` is called with exceptions that no code expected.
    """

    def __init__(
        self,
        loop: VirtualLoop,
        options: SimOptions,
        network: SimNetwork,
        trace: Trace,
        on_rename: Callable[[int, str], None],
    ) -> None:
        self.loop = loop
        self.options = options
        self.network = network
        self.trace = trace
        self._on_rename = on_rename
        self._disk_random = Random(f"disk {options.seed}")
        self.config = BrokerConfig.parse(options.config, what="simulation")
        self.cluster_id = ""
        self.watch: Callable[[Machine], Sequence[Callable[[], None]]] = lambda machine: ()
        self.on_bug: Callable[[int, BaseException], None] = lambda node_id, error: None
        self.machines = {each: self._machine(each) for each in options.node_ids}
        for each in options.broker_ids[options.brokers :]:  # they come later
            self.machines[each].is_absent = True

    def __repr__(self) -> str:
        return f"<SimCluster {list(self.machines.values())}>"

    def _machine(self, node_id: int) -> Machine:
        return Machine(
            node_id,
            self._make_disk(node_id),
            is_controller=node_id in self.options.controller_ids,
            is_broker=node_id in (*self.options.broker_ids, *self.options.coordinator_ids),
        )

    def _make_disk(self, node_id: int) -> SimDisk:
        return SimDisk(node_id, self.options.sync_ms, self._disk_random, self.trace, self._on_rename)

    @property
    def controllers(self) -> list[Machine]:
        return [each for each in self.machines.values() if each.is_controller]

    @property
    def brokers(self) -> list[Machine]:
        return [each for each in self.machines.values() if each.is_broker]

    # ---- Formatting --------------------------------------------------------------------------------------------------

    async def format(self) -> None:
        """Makes all disks those of a new cluster, whose voters are all controllers."""
        self.cluster_id = await format_first_voters([self._as_controller(each) for each in self.controllers])
        for each in self.brokers:
            await DataDirectories.format(self._settings(each))

    async def replace_disk(self, machine: Machine) -> None:
        """The machine, which must be down, gets an empty, formatted disk: another replica of the same node id.

        Until it is formatted the machine has an empty one, so that a power cut meanwhile cannot spoil the work of an
        operator that would look at the result.
        """
        assert machine.process is None, f"{machine!r} runs"
        machine.disk = self._make_disk(machine.node_id)
        machine.incarnation += 1
        formatted = self._make_disk(machine.node_id)
        await self._format_anew(machine, formatted)
        self.kill(machine.node_id)  # whatever was started on the empty disk
        machine.disk = formatted

    async def _format_anew(self, machine: Machine, disk: SimDisk) -> None:
        if machine.is_controller:
            settings = replace(self._as_controller(machine), disk=disk)
            directory_id = random_uuid(settings.random)
            await format_controller(
                settings, cluster_id=self.cluster_id, directory_id=directory_id, voters=None
            )
        if machine.is_broker:
            await DataDirectories.format(replace(self._settings(machine), disk=disk))

    def _as_controller(self, machine: Machine) -> NodeSettings:
        settings = self._settings(machine)
        return controller_settings(settings) if machine.is_broker else settings

    def _settings(self, machine: Machine, process: Process | None = None) -> NodeSettings:
        def wall_clock_ms() -> int:
            return self.loop.wall_clock_ms + machine.wall_offset_ms

        home = machine if process is None else machine.swapped_with or machine
        return NodeSettings(
            node_id=machine.node_id,
            cluster_name="sim",
            data_dirs=(home.data_dir,),
            config=self.config,
            disk=home.disk,
            network=self.network.port(process or Process(machine.node_id, 0)),
            random=Random(f"node {self.options.seed} {machine.node_id} {machine.incarnation}"),
            wall_clock_ms=wall_clock_ms,
            crash=lambda error: self._on_crash(machine, process, error),
            steps_per_turn=self.options.steps_per_turn,
            roles=(role_of(machine.node_id),),
            shard_types=(registers_type(),) if self.options.registers else (),
        )

    # ---- Life --------------------------------------------------------------------------------------------------------

    def start(self, node_id: int) -> None:
        """The node's process begins, unless there is one, or the machine is absent."""
        machine = self.machines[node_id]
        if machine.process is not None or machine.is_absent:
            return
        machine.incarnation += 1
        process = machine.process = Process(node_id, machine.incarnation)
        process.watches = self.watch(machine)
        machine.life = self._spawn(self._run(machine, process), process)

    async def _run(self, machine: Machine, process: Process) -> None:
        while True:
            settings = self._settings(machine, process)
            node = machine.node = machine.make_node(settings)
            self.network.attach(process, node)
            self.trace.add(machine.node_id, "start", f"#{process.incarnation}")
            try:
                await node.start()
            except RaykaError as error:
                node.kill()
                self.network.detach(machine.node_id)
                machine.node, machine.start_failure = None, str(error)
                self.trace.add(machine.node_id, "refused", str(error))
                await asyncio.sleep(_RESTART_S)
            else:
                machine.is_serving, machine.start_failure = True, ""
                self.trace.add(machine.node_id, "serving")
                return

    def kill(self, node_id: int, *, is_silent: bool = False) -> None:
        """The process ends where it stands. `is_silent`: no node gets an error, for the whole machine is gone."""
        machine = self.machines[node_id]
        process = machine.process
        if process is None:
            return
        process.is_alive = False
        process.watches = ()
        if machine.life is not None:
            machine.life.cancel()
        self.network.detach(node_id, is_silent=is_silent)
        self.network.lanes.on_caller_gone(process)
        if machine.node is not None:
            machine.node.kill()
        (machine.swapped_with or machine).disk.process_crash()
        machine.process, machine.node, machine.is_serving, machine.start_failure = None, None, False, ""
        self.loop.resume(process)  # what was withheld finds itself cancelled

    def lose_power(self, node_id: int, random: Random) -> None:
        """Cuts the machine's power; a random part of the unsynced bytes is lost."""
        self.kill(node_id, is_silent=True)
        self.machines[node_id].disk.power_loss(random)

    def swap(self, one: Machine, other: Machine) -> None:
        """Both processes end, and the next ones are started on each other's directories."""
        self._start_anew(one, other, (other, one))

    def undo_swap(self, machine: Machine) -> None:
        """Both are started on their own directories again, if they were swapped."""
        if machine.swapped_with is not None:
            self._start_anew(machine, machine.swapped_with, (None, None))

    def _start_anew(
        self, one: Machine, other: Machine, swapped: tuple[Machine | None, Machine | None]
    ) -> None:
        self.kill(one.node_id)
        self.kill(other.node_id)
        one.swapped_with, other.swapped_with = swapped
        self.start(one.node_id)
        self.start(other.node_id)

    def stop(self, node_id: int) -> None:
        """A controlled shutdown begins; then the process ends, also when the shutdown takes too long."""
        machine = self.machines[node_id]
        node, process = machine.node, machine.process
        if node is None or process is None or not machine.is_serving:
            self.kill(node_id)
            return
        machine.is_serving = False
        machine.life = self._spawn(self._stop(machine, node, process), process)

    async def _stop(self, machine: Machine, node: SimNode, process: Process) -> None:
        try:
            async with asyncio.timeout(_STOP_TIMEOUT_S):
                await node.stop()
        except (TimeoutError, StorageError) as error:  # it ends either way
            self.trace.add(machine.node_id, "unclean", repr(error))
        if machine.process is process:
            self.trace.add(machine.node_id, "stopped")
            self.loop.call_soon(self._end_stopped, machine, process, context=Context())

    def _end_stopped(self, machine: Machine, process: Process) -> None:
        if machine.process is process:
            self.kill(machine.node_id)

    def _on_crash(self, machine: Machine, process: Process | None, error: BaseException) -> None:
        if machine.process is not process or process is None:
            return
        self.trace.add(machine.node_id, "crash", repr(error))
        if not isinstance(error, ApiError):
            self.on_bug(machine.node_id, error)
        self.loop.call_soon(self._end_stopped, machine, process, context=Context())
        self.loop.call_later(_RESTART_S, self.start, machine.node_id, context=Context())

    def _spawn(self, coroutine: Coroutine[Any, Any, None], process: Process) -> "asyncio.Task[None]":
        task = self.loop.create_task(coroutine, name="life", context=process.context)
        task.add_done_callback(self._on_life_over)
        return task

    def _on_life_over(self, task: "asyncio.Task[None]") -> None:
        error = None if task.cancelled() else task.exception()
        if error is not None:
            for machine in self.machines.values():
                if machine.life is task:
                    self.on_bug(machine.node_id, error)
