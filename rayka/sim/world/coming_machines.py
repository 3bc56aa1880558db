"""The machines of a run that come and go: which are there, which are spoken for, which is dead for good."""

import asyncio
from contextlib import suppress
from random import Random

from rayka.ids import node_name
from rayka.sim.run_options import BROKERS_MIN, SCALING_ID
from rayka.sim.world.injector import Repairs
from rayka.sim.world.machines import Machine, SimCluster


class ComingMachines:
    """Of one run. `claimed` are those that the operator empties, or Ray, which drains them."""

    def __init__(self, cluster: SimCluster, repairs: Repairs) -> None:
        self._cluster = cluster
        self._repairs = repairs
        self.claimed: dict[int, None] = {}
        self.dead: dict[int, None] = {}
        self._end = asyncio.Event()

    def __repr__(self) -> str:
        present = [each.node_id for each in self.present]
        return f"<ComingMachines present={present} claimed={list(self.claimed)} dead={list(self.dead)}>"

    @property
    def is_asking(self) -> bool:
        """Whether machines are to come and go; in the end all come back but the dead one."""
        return not self._end.is_set()

    def stop_asking(self) -> None:
        """Ends the tasks under way."""
        self._end.set()

    async def pause(self, random: Random, mean_s: float) -> None:
        """For longer or shorter than that, at most until the end."""
        with suppress(TimeoutError):
            await asyncio.wait_for(self._end.wait(), random.expovariate(1) * mean_s)

    def tell(self, what: str) -> None:
        self._cluster.trace.add(SCALING_ID, "scale", what)

    @property
    def all(self) -> list[Machine]:
        """The machines that may come and go."""
        machines = self._cluster.machines
        return [
            machines[each] for each in self._cluster.options.broker_ids if not machines[each].is_controller
        ]

    @property
    def present(self) -> list[Machine]:
        return [each for each in self.all if not each.is_absent]

    @property
    def absent(self) -> list[Machine]:
        """The machines that may join now."""
        return [
            each for each in self.all if each.is_absent and each.node_id not in {**self.dead, **self.claimed}
        ]

    def spared(self, random: Random) -> Machine | None:
        """One that may go, if there are enough others."""
        able = [each for each in self.present if each.swapped_with is None]
        return random.choice(able) if able and self._is_enough() else None

    def claim(self, random: Random) -> Machine | None:
        """One to be emptied, which no other empties, if there are enough others; until it is released."""
        able = [
            each for each in self.present if each.swapped_with is None and each.node_id not in self.claimed
        ]
        if not able or not self._is_enough(without=self.claimed):
            return None
        machine = random.choice(able)
        self.claimed[machine.node_id] = None
        return machine

    def release(self, machine: Machine) -> None:
        self.claimed.pop(machine.node_id, None)

    def _is_enough(self, without: dict[int, None] | None = None) -> bool:
        brokers = [self._cluster.machines[each] for each in self._cluster.options.broker_ids]
        left = [each for each in brokers if not each.is_absent and each.node_id not in (without or {})]
        return len(left) > BROKERS_MIN

    def join(self, machine: Machine) -> None:
        self.tell(f"{node_name(machine.node_id)} joins")
        machine.is_absent = False
        self._cluster.start(machine.node_id)

    def die(self, machine: Machine) -> None:
        """Stops the machine for good, whatever the machine does at this moment."""
        self.tell(f"{node_name(machine.node_id)} dies for good")
        self.dead[machine.node_id] = None
        machine.is_absent = True
        self._repairs.on_damage(machine.node_id, "the end of the machine", True)
        self._cluster.kill(machine.node_id, is_silent=True)
