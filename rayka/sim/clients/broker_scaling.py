"""Brokers of a run that come and go: what an operator, or a supervisor, asks for, and what happens to machines beside
the faults that every run has.

The operator is the real `AsyncAdmin`. A broker joins on an empty disk. One that is to leave is drained, stopped when it
holds nothing, forgotten, and its disk is emptied; it stays after all where that takes too long. Balances are asked for
and cancelled. A machine that flaps ends and begins several times; one may die for good, whatever it does then. In the
end every machine but that one is there, none is cordoned, and the dead one is forgotten when it holds nothing any more.
"""

import asyncio
from collections.abc import Callable, Coroutine
from contextvars import Context
from random import Random
from typing import Any

from rayka.client.admin.admin_configs import resource_of
from rayka.client.admin.async_admin import AsyncAdmin
from rayka.config.client_config import AdminConfig
from rayka.errors import BrokerIdNotRegistered, InvalidRequest, RaykaError
from rayka.ids import node_name
from rayka.protocol.configs import CORDONED, DRAIN, AlterConfigOp, ConfigChange
from rayka.protocol.load import MOVES_AS_CONFIGURED
from rayka.sim.checks.checkers import Checkers
from rayka.sim.checks.replica_views import Replication
from rayka.sim.clients.acting import Acting
from rayka.sim.clients.data_clients import SimHandle
from rayka.sim.run_options import SCALING_ID
from rayka.sim.world.coming_machines import ComingMachines
from rayka.sim.world.machines import Machine, SimCluster

_TIMEOUT_MS = 4_000
_LOOK_S = 0.25
_DRAIN_AGAIN_S = 4.0
_DRAIN_MS_MAX = 30_000
# Longer than the controller waits between two plans.
_FORGOTTEN_MS = 8_000
_FORGET_TRIES = 60


class BrokerScaling(Acting):
    """An operator that has brokers join and leave. Does nothing in a run without brokers that come."""

    def __init__(
        self, cluster: SimCluster, checkers: Checkers, machines: ComingMachines, replication: Replication
    ) -> None:
        super().__init__(cluster, SCALING_ID)
        self._checkers = checkers
        self._machines = machines
        self._replication = replication
        self._random = Random(f"scaling {cluster.options.seed}")
        self._flap_random = Random(f"flapping {cluster.options.seed}")
        self._fail_over_random = Random(f"fail-overs {cluster.options.seed}")

    def __repr__(self) -> str:
        return f"<Scaling {self._machines!r}>"

    def start(self) -> None:
        """Begins."""
        if self.options.comers:
            for each in (self._scale(), self._flap()):
                self.begin("scaling", each)

    def _is_held(self, node_id: int, *, without_lost: bool = False) -> bool:
        """Whether the broker has a replica, by what is committed. Lost are those of which no other has anything."""
        lost = self._replication.rotten if without_lost else {}
        return any(
            node_id in each.replicas and not all(replica in lost for replica in each.replicas)
            for _, each in self._replication.image.partitions()
        )

    # ---- The operator ----------------------------------------------------------------------------------------------

    async def _scale(self) -> None:
        config = AdminConfig.parse({"default_api_timeout_ms": _TIMEOUT_MS}, what="simulated operator")
        admin = AsyncAdmin(SimHandle(self.cluster.network, self.process), config, self._random)
        while self._machines.is_asking:
            await self._machines.pause(self._random, self.options.elastic.scaling_pause_s)
            if self._machines.is_asking:
                await self._step(admin)
        await self._settle(admin)

    async def _step(self, admin: AsyncAdmin) -> None:
        absent = self._machines.absent
        draw = self._random.random()
        if absent and draw < 0.4:
            self._machines.join(self._random.choice(absent))
        elif draw < 0.55:
            if (machine := self._machines.claim(self._random)) is not None:
                await self._leave(admin, machine)
                self._machines.release(machine)
        else:
            await self._try("balance", admin.balance(MOVES_AS_CONFIGURED))
            if self._random.random() < 0.5:
                await asyncio.sleep(self._random.random())
                await self._try("cancel the balance", admin.cancel_balance())

    async def _try(self, what: str, asked: Coroutine[Any, Any, object]) -> RaykaError | None:
        self._machines.tell(what)
        try:
            await asked
        except RaykaError as error:
            self._machines.tell(f"{what}: {error}"[:150])
            return error
        return None

    async def _leave(self, admin: AsyncAdmin, machine: Machine) -> None:
        """Drained, stopped, forgotten, its disk emptied; or it stays."""
        node_id, name = machine.node_id, node_name(machine.node_id)
        if not await self._drained(admin, node_id):
            await self._stay(admin, node_id)
            return
        self._machines.tell(f"{name} leaves")
        machine.is_absent = True
        self.cluster.stop(node_id)
        await until(lambda: machine.process is None)
        if node_id in self._machines.dead:
            return
        if await self._forgotten(admin, node_id):
            self._machines.tell(f"{name} has left")
            await self.loop.create_task(self.cluster.replace_disk(machine), name="format", context=Context())
        else:
            self._machines.join(machine)
            await self._stay(admin, node_id)

    async def _drained(self, admin: AsyncAdmin, node_id: int) -> bool:
        """Asks until the drain has begun; the cluster goes on with it, whatever ends. Whether the broker is empty."""
        until_ms = self.loop.now_ms + _DRAIN_MS_MAX
        while self._machines.is_asking and self.loop.now_ms < until_ms:
            if await self._try(f"drain {node_name(node_id)}", admin.drain_broker(node_id)) is None:
                if self._fail_over_random.random() < 0.3:
                    await self._end_a_controller()
                break
            await asyncio.sleep(_DRAIN_AGAIN_S)
        idle_since = self.loop.now_ms, self._checkers.ledger.last_epoch
        while self._machines.is_asking and self.loop.now_ms < until_ms:
            if node_id in self._machines.dead:
                return False
            if not self._is_held(node_id):
                return True
            epoch = self._checkers.ledger.last_epoch
            if epoch != idle_since[1] or not self._is_idle(node_id):
                idle_since = self.loop.now_ms, epoch
            elif self.loop.now_ms - idle_since[0] >= _FORGOTTEN_MS:
                await self._check_remembered(admin, node_id)
                return False
            await asyncio.sleep(_LOOK_S)
        return False

    async def _end_a_controller(self) -> None:
        """A controller ends, the active one or not, and begins again: the drain goes on."""
        node_id = self._fail_over_random.choice(self.options.controller_ids)
        if node_id not in self.options.broker_ids:
            self._machines.tell(f"{node_name(node_id)} ends beside a drain")
            self.cluster.kill(node_id)
            await asyncio.sleep(self._fail_over_random.random() * 2)
            self.cluster.start(node_id)

    def _is_idle(self, node_id: int) -> bool:
        """Whether an operator's drain of the broker is under way, and none of its replicas, some of which could."""
        image = self._replication.image
        states = [each for _, each in image.partitions() if node_id in each.replicas]
        is_drained = DRAIN in image.broker_configs(node_id)
        may_move = any(each.has_leader for each in states)
        return is_drained and may_move and not any(each.is_reassigned for each in states)

    async def _check_remembered(self, admin: AsyncAdmin, node_id: int) -> None:
        """A controller that moves nothing of a drained broker says why."""
        try:
            found = [each for each in await admin.describe_drains() if each.broker_id == node_id]
        except RaykaError:
            return
        if found and not found[0].waits_for and self._is_idle(node_id):
            self._checkers.report("drain-forgotten", node_id, f"nothing of it moves: {found[0]!r}")

    async def _forgotten(self, admin: AsyncAdmin, node_id: int) -> bool:
        for _ in range(_FORGET_TRIES):
            error = await self._try(f"forget {node_name(node_id)}", admin.unregister_broker(node_id))
            if error is None or isinstance(error, BrokerIdNotRegistered):
                return True
            if isinstance(error, InvalidRequest) and self._is_held(node_id):
                return False
            await asyncio.sleep(_LOOK_S)
        return False

    async def _stay(self, admin: AsyncAdmin, node_id: int) -> None:
        """Lets the broker take replicas again."""
        change = ConfigChange(CORDONED, AlterConfigOp.DELETE)
        while CORDONED in self._replication.image.broker_configs(node_id):
            await self._try(
                f"{node_name(node_id)} stays", admin.configs.alter(resource_of(None, node_id), (change,))
            )
            await asyncio.sleep(_LOOK_S)

    async def _settle(self, admin: AsyncAdmin) -> None:
        for machine in self._machines.absent:
            self._machines.join(machine)
        for node_id in self.options.broker_ids:
            await self._stay(admin, node_id)
        for node_id in self._machines.dead:
            await self._forget_dead(admin, node_id)

    async def _forget_dead(self, admin: AsyncAdmin, node_id: int) -> None:
        """Until its session is over, the dead one may be given replicas again."""
        while True:
            await until(lambda: not self._is_held(node_id, without_lost=True))
            if self._is_held(node_id) or await self._forgotten(admin, node_id):
                return
            if not self._is_held(node_id):
                self._checkers.report("liveness", node_id, f"{self!r}: the controller does not forget it")
                return

    # ---- The machines ----------------------------------------------------------------------------------------------

    async def _flap(self) -> None:
        random, plan = self._flap_random, self.options.elastic
        while self._machines.is_asking:
            await self._machines.pause(random, plan.flap_pause_s)
            if not self._machines.is_asking or not self._machines.present:
                continue
            may_die = plan.has_death and not self._machines.dead and random.random() < 0.5
            dying = self._machines.spared(random) if may_die else None
            if dying is not None:
                self._machines.die(dying)
                continue
            machine = random.choice(self._machines.present)
            for _ in range(random.choice((1, 3, 6))):
                self._machines.tell(f"{node_name(machine.node_id)} flaps")
                self.cluster.kill(machine.node_id)
                await asyncio.sleep(random.random() * 2)
                self.cluster.start(machine.node_id)
                await asyncio.sleep(random.random() * 3)


async def until(is_so: Callable[[], bool]) -> None:
    """Looks four times a second."""
    while not is_so():  # noqa: ASYNC110 (what is committed tells of no event)
        await asyncio.sleep(_LOOK_S)
