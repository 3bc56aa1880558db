"""Makes the faults happen at their times, and end when their durations are over."""

import posixpath
from collections.abc import Callable, Sequence
from contextvars import Context
from random import Random

from rayka.sim.loop import START_US
from rayka.sim.world.exchange import Link
from rayka.sim.world.faults import DAMAGING, Fault, FaultKind
from rayka.sim.world.machines import Machine, SimCluster

# What ends faults, and what an operator does about what they leave: damaged, rotten and empty disks.
#
# Faults end one by one in the safety phase, and all of them in the liveness phase, where the operator is at work, too.


_ENOUGH_BYTES = 1 << 62
_RESTART_PAUSE_MS = 15_000
_PATIENCE_MS = 10_000


class Repairs:
    """Makes machines whole again. `damaged` are those that may have lost what they had synced, `rotten` the brokers
    that may give rotten batches to their readers; `on_damage` is called for each loss, with whether it may be all.
    """

    def __init__(self, cluster: SimCluster) -> None:
        self._cluster = cluster
        self.damaged: dict[int, None] = {}
        self.rotten: dict[int, None] = {}
        self._restarted_ms: dict[int, int] = {}
        self.on_damage: Callable[[int, str, bool], None] = lambda node_id, why, is_all: None

    def mend_disk(self, machine: Machine) -> None:
        """The disk works again; a node that has failed with it needs a restart."""
        machine.disk.slowness = 1.0
        machine.disk.fill_up(_ENOUGH_BYTES)
        machine.disk.mend()
        if machine.has_failed:
            self._cluster.kill(machine.node_id)
            self._cluster.start(machine.node_id)

    def wipe(self, machine: Machine, on_done: Callable[[], None]) -> None:
        """Gives a machine that is down an empty disk."""
        self.rotten.pop(machine.node_id, None)
        self.on_damage(machine.node_id, "an empty disk", True)
        task = self._cluster.loop.create_task(
            self._cluster.replace_disk(machine), name="format", context=Context()
        )
        task.add_done_callback(lambda _: on_done(), context=Context())

    def heal(self) -> None:
        """Ends every fault: links, pauses and disks are as new, and every node is up."""
        self._cluster.network.heal()
        for machine in self._cluster.machines.values():
            self._cluster.undo_swap(machine)
            self.mend_disk(machine)
            if machine.process is not None and machine.process.is_paused:
                self._cluster.loop.resume(machine.process)
            self._cluster.start(machine.node_id)

    def restart_homeless(self) -> None:
        """Restarts a broker on a new disk whose replicas could not move there, because no broker led them."""
        for machine in self._cluster.brokers:
            is_new = (
                self._cluster.loop.now_ms - self._restarted_ms.get(machine.node_id, 0) < _RESTART_PAUSE_MS
            )
            if machine.is_serving and machine.lacks_replicas and not is_new:
                self._cluster.trace.add(machine.node_id, "restart", machine.lacks_replicas)
                self._restarted_ms[machine.node_id] = self._cluster.loop.now_ms
                self._cluster.kill(machine.node_id)
                self._cluster.start(machine.node_id)

    def replace_rotten(self, since_ms: int) -> None:
        """What an operator does with a node that reports that its disk is damaged; and, when the others had their time
        to copy what can be read there, with a broker that gives rotten batches to their readers."""
        is_late = self._cluster.loop.now_ms - since_ms > _PATIENCE_MS
        for node_id in self.damaged:
            machine = self._cluster.machines[node_id]
            problem = machine.start_failure or (machine.damage if machine.is_serving else "")
            if is_late and node_id in self.rotten:
                problem = problem or "bit rot"
            if problem:
                self.rotten.pop(node_id, None)
                self._cluster.trace.add(node_id, "replace", problem)
                self._cluster.kill(node_id)
                self.wipe(machine, lambda node_id=node_id: self._cluster.start(node_id))  # type: ignore[misc]


class Injector:
    """Carries out a list of faults. What is random in one is drawn from its number, whatever else happens."""

    def __init__(self, cluster: SimCluster, repairs: Repairs) -> None:
        self._loop = cluster.loop
        self._cluster = cluster
        self._network = cluster.network
        self._repairs = repairs
        self.done_count = 0

    def schedule(self, faults: Sequence[Fault]) -> None:
        """Arranges for all of them."""
        for fault in faults:
            when_us = START_US + fault.begin_ms * 1000
            self._loop.call_at_us(when_us, self._begin, fault, context=Context())

    def _begin(self, fault: Fault) -> None:
        self._cluster.trace.add(fault.node_id, "fault", str(fault))
        self.done_count += 1
        machine = self._cluster.machines[fault.node_id]
        if fault.kind in DAMAGING:
            self._repairs.damaged[fault.node_id] = None
        _BEGIN[fault.kind](self, fault, machine)

    def _later(self, fault: Fault, callback: Callable[..., None], *arguments: object) -> None:
        when_us = self._loop.now_us + fault.duration_ms * 1000
        self._loop.call_at_us(when_us, self._end, fault, callback, arguments, context=Context())

    def _end(self, fault: Fault, callback: Callable[..., None], arguments: Sequence[object]) -> None:
        self._cluster.trace.add(fault.node_id, "end", str(fault))
        callback(*arguments)

    def _random(self, fault: Fault) -> Random:
        return Random(f"fault {self._cluster.options.seed} {fault.number}")

    # ---- Processes ---------------------------------------------------------------------------------------------------

    def _kill(self, fault: Fault, machine: Machine) -> None:
        self._cluster.kill(fault.node_id)
        self._later(fault, self._cluster.start, fault.node_id)

    def _lose_power(self, fault: Fault, machine: Machine) -> None:
        self._repairs.on_damage(fault.node_id, "power loss", False)
        self._cluster.lose_power(fault.node_id, self._random(fault))
        self._later(fault, self._cluster.start, fault.node_id)

    def _lose_power_all(self, fault: Fault, machine: Machine) -> None:
        random = self._random(fault)
        for node_id in self._cluster.machines:
            self._repairs.on_damage(node_id, "power loss", False)
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

    def _cut(self, fault: Fault, machine: Machine) -> None:
        links = _links(fault, self._network.all_ids)
        self._network.links.cut(links)
        self._later(fault, self._network.links.mend, links)

    def _clog(self, fault: Fault, machine: Machine) -> None:
        link = (fault.node_id, fault.peer_ids[0])
        self._network.links.clog(link, 20 + fault.amount * 2_000)
        self._later(fault, self._network.links.clog, link, 0.0)

    # ---- Disks and clocks --------------------------------------------------------------------------------------------

    def _slow_disk(self, fault: Fault, machine: Machine) -> None:
        machine.disk.slowness = 5 + 200 * fault.amount
        self._later(fault, self._repairs.mend_disk, machine)

    def _full_disk(self, fault: Fault, machine: Machine) -> None:
        machine.disk.fill_up(int(fault.amount * 4_000))
        self._later(fault, self._repairs.mend_disk, machine)

    def _disk_error(self, fault: Fault, machine: Machine) -> None:
        machine.disk.fail("sync")
        self._later(fault, self._repairs.mend_disk, machine)

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
            self._repairs.on_damage(machine.node_id, "bit rot", True)
            if not is_metadata:
                self._repairs.rotten[machine.node_id] = None
            path = posixpath.join(directory, names[-1])
            machine.disk.rot(path, fault.amount, random.randrange(1_000))
        if is_metadata or random.random() < 0.5:
            self._kill(fault, machine)

    def _wipe(self, fault: Fault, machine: Machine) -> None:
        self._cluster.kill(fault.node_id, is_silent=True)
        self._repairs.wipe(machine, lambda: self._later(fault, self._cluster.start, fault.node_id))

    def _swap(self, fault: Fault, machine: Machine) -> None:
        machines = [machine, *(self._cluster.machines[each] for each in fault.peer_ids)]
        if len(machines) == 2 and all(each.swapped_with is None and not each.is_absent for each in machines):
            self._cluster.swap(*machines)
            self._later(fault, self._cluster.undo_swap, machine)


def _links(fault: Fault, all_ids: Sequence[int]) -> list[Link]:
    """The links that a fault of the network cuts."""
    side = (fault.node_id, *fault.peer_ids) if fault.kind is FaultKind.SPLIT else (fault.node_id,)
    others = (
        [each for each in all_ids if each not in side] if fault.kind is FaultKind.SPLIT else fault.peer_ids
    )
    there = [(one, other) for one in side for other in others]
    back = [(other, one) for one, other in there]
    if fault.kind is FaultKind.CUT_ONE_WAY:
        return there
    return back if fault.kind is FaultKind.DEAFEN else [*there, *back]


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
    FaultKind.ISOLATE: Injector._cut,
    FaultKind.CUT_LINK: Injector._cut,
    FaultKind.CUT_ONE_WAY: Injector._cut,
    FaultKind.DEAFEN: Injector._cut,
    FaultKind.SPLIT: Injector._cut,
    FaultKind.CLOG: Injector._clog,
    FaultKind.SLOW_DISK: Injector._slow_disk,
    FaultKind.FULL_DISK: Injector._full_disk,
    FaultKind.DISK_ERROR: Injector._disk_error,
    FaultKind.WALL_CLOCK: Injector._wall_clock,
    FaultKind.BIT_ROT: Injector._bit_rot,
    FaultKind.WIPE: Injector._wipe,
    FaultKind.SWAP: Injector._swap,
}
