"""Makes the faults happen, and unhappen, at their times."""

import posixpath
from collections.abc import Callable, Sequence
from contextvars import Context
from random import Random

from rayka.sim.loop import START_US, VirtualLoop
from rayka.sim.trace import Trace
from rayka.sim.world.faults import DAMAGING, Fault, FaultKind
from rayka.sim.world.machines import Machine, SimCluster
from rayka.sim.world.simulated_network import Link, SimNetwork

_ENOUGH_BYTES = 1 << 62
_RESTART_PAUSE_MS = 15_000
_PATIENCE_MS = 10_000


class Injector:
    """Carries out a list of faults. What is random in one is drawn from its number, whatever else happens."""

    def __init__(
        self, loop: VirtualLoop, cluster: SimCluster, network: SimNetwork, trace: Trace, seed: int
    ) -> None:
        self._loop = loop
        self._cluster = cluster
        self._network = network
        self._trace = trace
        self._seed = seed
        self.done_count = 0
        self.damaged: dict[int, None] = {}
        self._rotten: dict[int, None] = {}  # brokers that may give rotten batches to their readers
        self._restarted_ms: dict[int, int] = {}
        self.on_wipe: Callable[[Machine], None] = lambda machine: None
        self.on_damage: Callable[[int, str, bool], None] = lambda node_id, why, is_all: None

    def schedule(self, faults: Sequence[Fault]) -> None:
        """Arranges for all of them."""
        for fault in faults:
            when_us = START_US + fault.begin_ms * 1000
            self._loop.call_at_us(when_us, self._begin, fault, context=Context())

    def _begin(self, fault: Fault) -> None:
        self._trace.add(fault.node_id, "fault", str(fault))
        self.done_count += 1
        machine = self._cluster.machines[fault.node_id]
        if fault.kind in DAMAGING:
            self.damaged[fault.node_id] = None
        _BEGIN[fault.kind](self, fault, machine)

    def _later(self, fault: Fault, callback: Callable[..., None], *arguments: object) -> None:
        when_us = self._loop.now_us + fault.duration_ms * 1000
        self._loop.call_at_us(when_us, self._end, fault, callback, arguments, context=Context())

    def _end(self, fault: Fault, callback: Callable[..., None], arguments: Sequence[object]) -> None:
        self._trace.add(fault.node_id, "end", str(fault))
        callback(*arguments)

    def _random(self, fault: Fault) -> Random:
        return Random(f"fault {self._seed} {fault.number}")

    # ---- Processes ---------------------------------------------------------------------------------------------------

    def _kill(self, fault: Fault, machine: Machine) -> None:
        self._cluster.kill(fault.node_id)
        self._later(fault, self._cluster.start, fault.node_id)

    def _lose_power(self, fault: Fault, machine: Machine) -> None:
        self.on_damage(fault.node_id, "power loss", False)
        self._cluster.lose_power(fault.node_id, self._random(fault))
        self._later(fault, self._cluster.start, fault.node_id)

    def _lose_power_all(self, fault: Fault, machine: Machine) -> None:
        random = self._random(fault)
        for node_id in self._cluster.machines:
            self.on_damage(node_id, "power loss", False)
            self._cluster.lose_power(node_id, random)
            self._later(fault, self._cluster.start, node_id)

    def _stop(self, fault: Fault, machine: Machine) -> None:
        self._cluster.stop(fault.node_id)
        self._later(fault, self._after_stop, machine, machine.process)

    def _after_stop(self, machine: Machine, process: object) -> None:
        if machine.process is process:
            self._cluster.kill(machine.node_id)  # longer than its time
        self._cluster.start(machine.node_id)

    def _pause(self, fault: Fault, machine: Machine) -> None:
        process = machine.process
        if process is not None:
            process.is_paused = True
            self._later(fault, self._loop.resume, process)

    # ---- Network -----------------------------------------------------------------------------------------------------

    def _cut(self, fault: Fault, links: Sequence[Link]) -> None:
        self._network.cut(links)
        self._later(fault, self._network.mend, links)

    def _cut_both_ways(self, fault: Fault, machine: Machine) -> None:
        there = [(fault.node_id, peer) for peer in fault.peer_ids]
        self._cut(fault, [*there, *((peer, node_id) for node_id, peer in there)])

    def _cut_one_way(self, fault: Fault, machine: Machine) -> None:
        self._cut(fault, [(fault.node_id, peer) for peer in fault.peer_ids])

    def _deafen(self, fault: Fault, machine: Machine) -> None:
        self._cut(fault, [(peer, fault.node_id) for peer in fault.peer_ids])

    def _split(self, fault: Fault, machine: Machine) -> None:
        others = [
            each for each in self._network.all_ids if each not in fault.peer_ids and each != fault.node_id
        ]
        side = (fault.node_id, *fault.peer_ids)
        there = [(one, other) for one in side for other in others]
        self._cut(fault, [*there, *((other, one) for one, other in there)])

    def _clog(self, fault: Fault, machine: Machine) -> None:
        link = (fault.node_id, fault.peer_ids[0])
        self._network.clog(link, 20 + fault.amount * 2_000)
        self._later(fault, self._network.clog, link, 0.0)

    # ---- Disks and clocks --------------------------------------------------------------------------------------------

    def _slow_disk(self, fault: Fault, machine: Machine) -> None:
        machine.disk.slowness = 5 + 200 * fault.amount
        self._later(fault, self._mend_disk, machine)

    def _full_disk(self, fault: Fault, machine: Machine) -> None:
        machine.disk.fill_up(int(fault.amount * 4_000))
        self._later(fault, self._mend_disk, machine)

    def _disk_error(self, fault: Fault, machine: Machine) -> None:
        machine.disk.fail("sync")
        self._later(fault, self._mend_disk, machine)

    def _mend_disk(self, machine: Machine) -> None:
        """The disk works again; a node that has failed with it needs a restart."""
        machine.disk.slowness = 1.0
        machine.disk.fill_up(_ENOUGH_BYTES)
        machine.disk.mend()
        if machine.has_failed:
            self._cluster.kill(machine.node_id)
            self._cluster.start(machine.node_id)

    def _wall_clock(self, fault: Fault, machine: Machine) -> None:
        machine.wall_offset_ms += int((fault.amount - 0.5) * 20 * fault.duration_ms)

    def _bit_rot(self, fault: Fault, machine: Machine) -> None:
        """A bit of a log with whole batches behind it: damage, not a torn tail. A controller finds it when it starts, a
        broker perhaps when it reads."""
        random = self._random(fault)
        is_metadata = machine.is_controller and (not machine.is_broker or random.random() < 0.5)
        directory = machine.metadata_dir if is_metadata else _any_log(machine, random)
        names = [name for name in machine.disk.names_in(directory) if name.endswith(".log")]
        if names:
            self.on_damage(machine.node_id, "bit rot", True)
            if not is_metadata:
                self._rotten[machine.node_id] = None
            path = posixpath.join(directory, names[-1])
            machine.disk.rot(path, fault.amount, random.randrange(1_000))
        if is_metadata or random.random() < 0.5:
            self._kill(fault, machine)

    def _wipe(self, fault: Fault, machine: Machine) -> None:
        self._cluster.kill(fault.node_id, is_silent=True)
        self.wipe(machine, lambda: self._later(fault, self._cluster.start, fault.node_id))

    def wipe(self, machine: Machine, on_done: Callable[[], None]) -> None:
        """Gives a machine that is down an empty disk."""
        self._rotten.pop(machine.node_id, None)
        self.on_wipe(machine)
        self.on_damage(machine.node_id, "an empty disk", True)
        task = self._loop.create_task(self._cluster.replace_disk(machine), name="format", context=Context())
        task.add_done_callback(lambda _: on_done(), context=Context())

    def _swap(self, fault: Fault, machine: Machine) -> None:
        machines = [machine, *(self._cluster.machines[each] for each in fault.peer_ids)]
        if len(machines) == 2 and all(each.swapped_with is None for each in machines):
            self._cluster.swap(*machines)
            self._later(fault, self._cluster.undo_swap, machine)

    # ---- The end -----------------------------------------------------------------------------------------------------

    def heal(self) -> None:
        """Ends every fault: links, pauses and disks are as new, and every node is up."""
        self._network.heal()
        for machine in self._cluster.machines.values():
            self._cluster.undo_swap(machine)
            self._mend_disk(machine)
            if machine.process is not None and machine.process.is_paused:
                self._loop.resume(machine.process)
            self._cluster.start(machine.node_id)

    def restart_homeless(self) -> None:
        """What an operator does with a broker on a new disk whose replicas could not move there: no broker led them."""
        for machine in self._cluster.brokers:
            is_new = self._loop.now_ms - self._restarted_ms.get(machine.node_id, 0) < _RESTART_PAUSE_MS
            if machine.is_serving and machine.lacks_replicas and not is_new:
                self._trace.add(machine.node_id, "restart", machine.lacks_replicas)
                self._restarted_ms[machine.node_id] = self._loop.now_ms
                self._cluster.kill(machine.node_id)
                self._cluster.start(machine.node_id)

    def replace_rotten(self, since_ms: int) -> None:
        """What an operator does with a node that reports that its disk is damaged; and, when the others had their time
        to copy what can be read there, with a broker that gives rotten batches to their readers."""
        is_late = self._loop.now_ms - since_ms > _PATIENCE_MS
        for node_id in self.damaged:
            machine = self._cluster.machines[node_id]
            problem = machine.start_failure or (machine.damage if machine.is_serving else "")
            if is_late and node_id in self._rotten:
                problem = problem or "bit rot"
            if problem:
                self._rotten.pop(node_id, None)
                self._trace.add(node_id, "replace", problem)
                self._cluster.kill(node_id)
                self.wipe(machine, lambda node_id=node_id: self._cluster.start(node_id))  # type: ignore[misc]


def _any_log(machine: Machine, random: Random) -> str:
    """The directory of one of the broker's partitions; the data directory itself if it has none."""
    names = [each for each in machine.disk.names_in(machine.data_dir) if each.startswith("data")]
    return posixpath.join(machine.data_dir, random.choice(names)) if names else machine.data_dir


_BEGIN: dict[FaultKind, Callable[[Injector, Fault, Machine], None]] = {
    FaultKind.KILL: Injector._kill,
    FaultKind.POWER_LOSS: Injector._lose_power,
    FaultKind.POWER_LOSS_ALL: Injector._lose_power_all,
    FaultKind.STOP: Injector._stop,
    FaultKind.PAUSE: Injector._pause,
    FaultKind.ISOLATE: Injector._cut_both_ways,
    FaultKind.CUT_LINK: Injector._cut_both_ways,
    FaultKind.CUT_ONE_WAY: Injector._cut_one_way,
    FaultKind.DEAFEN: Injector._deafen,
    FaultKind.SPLIT: Injector._split,
    FaultKind.CLOG: Injector._clog,
    FaultKind.SLOW_DISK: Injector._slow_disk,
    FaultKind.FULL_DISK: Injector._full_disk,
    FaultKind.DISK_ERROR: Injector._disk_error,
    FaultKind.WALL_CLOCK: Injector._wall_clock,
    FaultKind.BIT_ROT: Injector._bit_rot,
    FaultKind.WIPE: Injector._wipe,
    FaultKind.SWAP: Injector._swap,
}
