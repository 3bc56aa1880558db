"""Machines of a run that Ray announces to go, and the supervisor that empties them (decision 073).

A machine that drains goes at its deadline, which is known or not, or stays after all, because the drain is withdrawn.
One that went comes back a while later, with its disk. The supervisor takes the real steps by real requests, over the
simulated network; it remembers nothing, so another one would go on likewise. The active controller moves the replicas.
In the end no machine drains and no broker is marked.
"""

import asyncio
from random import Random
from typing import TypeVar

from rayka.client.admin.drained_brokers import (
    NO_DEADLINE,
    DrainedBrokers,
    DrainStep,
    Mark,
    StopDrained,
    next_step,
)
from rayka.errors import RaykaError
from rayka.ids import node_name
from rayka.node.controller_link import ControllerLink
from rayka.ports import Request
from rayka.sim.checks.drained_machines import DrainedMachines
from rayka.sim.clients.acting import Acting
from rayka.sim.clients.broker_scaling import until
from rayka.sim.run_options import DRAINER_ID
from rayka.sim.world.coming_machines import ComingMachines
from rayka.sim.world.machines import Machine, SimCluster

_AT_ONCE_MAX = 2
_LOOK_S, _SOON_S = 1.0, 0.1
_CALL_TIMEOUT_MS, _ANSWER_TIMEOUT_S = 2_000, 10.0
ResponseT = TypeVar("ResponseT")


class MachineDrains(Acting):
    """Drains machines as Ray does. Does nothing in a run without brokers that come."""

    def __init__(self, cluster: SimCluster, machines: ComingMachines, drained: DrainedMachines) -> None:
        super().__init__(cluster, DRAINER_ID)
        self._machines = machines
        self._drained = drained
        self._random = Random(f"drains {cluster.options.seed}")
        network = cluster.network.port(self.process)
        self._link = ControllerLink(network)
        self._brokers = DrainedBrokers(network, self._ask, lambda: self.loop.wall_clock_ms)
        self._drains: dict[int, int] = {}  # what Ray says: nodes, and the deadlines of their machines
        self._stopping: dict[int, None] = {}
        self._has_marks = False

    def __repr__(self) -> str:
        return f"<MachineDrains {self._drains} has_marks={self._has_marks}>"

    def start(self) -> None:
        """Begins."""
        if self.options.comers and self.options.elastic.drain_pause_s:
            for _ in range(_AT_ONCE_MAX):
                self.begin("drains", self._announce())
            self.begin("drains", self._supervise())

    # ---- Ray ---------------------------------------------------------------------------------------------------------

    async def _announce(self) -> None:
        while self._machines.is_asking:
            await self._machines.pause(self._random, self.options.elastic.drain_pause_s)
            machine = self._machines.claim(self._random) if self._machines.is_asking else None
            if machine is not None:
                await self._drain(machine)
                self._machines.release(machine)

    async def _drain(self, machine: Machine) -> None:
        node_id, name = machine.node_id, node_name(machine.node_id)
        left_ms = self._random.choice((2_000, 8_000, 20_000))
        is_known, is_withdrawn = self._random.random() < 0.8, self._random.random() < 0.4
        self._drains[node_id] = self.loop.wall_clock_ms + left_ms if is_known else NO_DEADLINE
        self.tell("drain", f"{name} drains, {left_ms} ms" + " without a deadline" * (not is_known))
        end_ms = self.loop.now_ms + int(left_ms * (self._random.random() if is_withdrawn else 1))
        await until(
            lambda: (
                not self._machines.is_asking or node_id in self._machines.dead or self.loop.now_ms >= end_ms
            )
        )
        if not is_withdrawn and self._machines.is_asking and node_id not in self._machines.dead:
            self.tell("drain", f"the machine of {name} goes")
            machine.is_absent = True
            self.cluster.kill(node_id, is_silent=True)
        del self._drains[node_id]
        if machine.is_absent and machine.process is None:
            await asyncio.sleep(self._random.random() * 5)
        await until(lambda: node_id not in self._stopping)
        if node_id not in self._machines.dead:
            self._machines.join(machine)

    # ---- The supervisor ----------------------------------------------------------------------------------------------

    async def _supervise(self) -> None:
        while self._machines.is_asking or self._drains or self._has_marks:
            try:
                has_stepped = await self._look()
            except (RaykaError, TimeoutError) as error:
                self.tell("drain", f"failed: {error!r}"[:150])
                has_stepped = False
            await asyncio.sleep(_SOON_S if has_stepped else _LOOK_S)

    async def _look(self) -> bool:
        """One look, and one step at most; whether a step was taken."""
        if not self._drains and not self._has_marks:
            return False
        actors = [each.node_id for each in self.cluster.machines.values() if each.process is not None]
        seen = await self._brokers.see(dict(self._drains), actors)
        self._has_marks = bool(seen.marks)
        step = next_step(seen)
        if step is None:
            return False
        self.tell("drain", f"{type(step).__name__} of {list(step.node_ids)}: {step.reason}"[:200])
        refusal = await self._take(step)
        if refusal:
            self.tell("drain", f"refused: {refusal}"[:200])
            return False
        await self._brokers.record(step.kind, step.node_ids, step.reason)
        return True

    async def _take(self, step: DrainStep) -> str:
        if isinstance(step, Mark):
            self._has_marks = True
        if isinstance(step, StopDrained):
            await self._stop([each for each in step.node_ids if each in self._drains])
        refusal = await self._brokers.take(step)
        if isinstance(step, Mark):
            self._drained.on_marked(step.node_ids)
        return refusal

    async def _stop(self, node_ids: list[int]) -> None:
        """Under control; nothing starts there again while the machine drains."""
        machines = [self.cluster.machines[each] for each in node_ids]
        self._stopping = dict.fromkeys(node_ids)
        for machine in machines:
            machine.is_absent = True
            self.cluster.stop(machine.node_id)
        await until(lambda: all(each.process is None for each in machines))
        self._stopping = {}

    async def _ask(self, request: Request[ResponseT]) -> ResponseT:
        async with asyncio.timeout(_ANSWER_TIMEOUT_S):
            return await self._link.call_until_answered(request, _CALL_TIMEOUT_MS)
