"""What ends faults, and what an operator does about what they leave: damaged, rotten and empty disks.

Faults end one by one in the safety phase, and all of them in the liveness phase, where the operator is at work, too.
"""

from collections.abc import Callable
from contextvars import Context

from rayka.sim.world.machines import Machine, SimCluster

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
        """What an operator does with a broker on a new disk whose replicas could not move there: no broker led them."""
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
