"""Clients of the registers (`sim.registers`), on whatever logs nodes host them, and what must hold of them.

A client asks one node after another until one answers; it runs its request in the node's process, so a process that is
paused or gone does not answer. Checked: what a node acknowledged is never lost, so no version is given twice
(`register-lost`); in the end every replica has made the same of the same records (`register-standby`). After a legal
loss of a log nothing is asked of its registers any more.
"""

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from contextvars import Context
from functools import partial
from random import Random
from typing import Any, Protocol

from rayka.errors import ApiError, RequestTimedOut
from rayka.ids import TopicPartition
from rayka.node.replicated_shard import ReplicatedShard
from rayka.sim.checks.checkers import Checkers
from rayka.sim.checks.replica_views import Replication
from rayka.sim.clients.acting import Acting
from rayka.sim.loop import PROCESS
from rayka.sim.registers import REGISTERS_TOPIC, Get, Put, Register, Registers, registers_type
from rayka.sim.run_options import REGISTER_CLIENT_ID
from rayka.sim.world.machines import Machine, SimCluster

# Where the registers are: on which machines and logs, and what these have lost by right.


RegistersShard = ReplicatedShard[Registers, Any]


class RegisterHosts(Protocol):
    """What the clients of the registers know of the nodes; the logs have the numbers from 0 on."""

    log_count: int

    @property
    def machines(self) -> Sequence[Machine]:
        """The machines that a client asks."""
        ...

    def creation_on(self, machine: Machine) -> Callable[[], Coroutine[Any, Any, None]] | None:
        """What creates the logs, to be run in the machine's process; None when no node runs there. Raises ApiError."""
        ...

    def shard_on(self, machine: Machine, number: int) -> RegistersShard | None:
        """The registers of a log on a machine, active or standing by."""
        ...

    def shards(self, number: int) -> list[RegistersShard]:
        """The shards of all machines that serve."""
        ...

    def has_lost(self, number: int) -> bool:
        """Whether records that were acknowledged may be gone, because too many disks are."""
        ...

    def is_usable(self, number: int) -> bool:
        """Not when every replica of the log was lost with its disk."""
        ...


class PartitionHosts:
    """Brokers, with the registers on the partitions of an internal topic."""

    log_count = 2

    def __init__(self, cluster: SimCluster, replication: Replication) -> None:
        self._cluster = cluster
        self._replication = replication

    @property
    def machines(self) -> Sequence[Machine]:
        return self._cluster.brokers

    def creation_on(self, machine: Machine) -> Callable[[], Coroutine[Any, Any, None]] | None:
        topic = registers_type(self.log_count, min(3, self._cluster.options.brokers)).topic
        return None if machine.broker is None else partial(machine.broker.create_internal_topic, topic)

    def shard_on(self, machine: Machine, number: int) -> RegistersShard | None:
        broker = machine.broker
        if broker is None or not machine.is_serving:
            return None
        for shard_key, shard in broker.shards.shards.items():
            if shard_key[1] == number and isinstance(shard.shard, Registers):
                return shard
        return None

    def shards(self, number: int) -> list[RegistersShard]:
        found = (self.shard_on(each, number) for each in self.machines)
        return [each for each in found if each is not None]

    def has_lost(self, number: int) -> bool:
        return self._replication.has_lost(TopicPartition(REGISTERS_TOPIC, number))

    def is_usable(self, number: int) -> bool:
        truth = self._replication.truth_named(TopicPartition(REGISTERS_TOPIC, number))
        state = None if truth is None else self._replication.state_of(truth)
        rotten = self._replication.rotten
        return state is None or state.has_leader or not all(each in rotten for each in state.replicas)


_KEYS = 6
_LEASED_KEYS = 2
_LEASE_MS = 700
_TIMEOUT_S = 3.0
_PAUSE_S = 0.05


class RegisterClients(Acting):
    """All clients of one run, and what they were told."""

    def __init__(self, cluster: SimCluster, checkers: Checkers, hosts: RegisterHosts) -> None:
        super().__init__(cluster, REGISTER_CLIENT_ID)
        self._checkers = checkers
        self._hosts = hosts
        self._random = Random(f"registers {cluster.options.seed}")
        self._acknowledged: dict[str, Register] = {}  # by key: the newest
        self._given: dict[tuple[str, int], str] = {}  # by key and version: the value
        self._number = 0
        self._is_asking = True
        self._asking: list[asyncio.Task[None]] = []
        self._proofs: list[asyncio.Task[None]] = []

    def start(self) -> None:
        """Begins to ask, if the run has registers."""
        if self.options.registers:
            self.begin("create", self._create())
            for number in range(self.options.registers):
                self._asking.append(self.begin(f"registers {number}", self._ask_forever()))

    # ---- Asking ------------------------------------------------------------------------------------------------------

    async def _create(self) -> None:
        """Some node creates the logs, as the first use of a coordinator does."""
        while True:
            machine = self._random.choice(self._hosts.machines)
            try:
                create = self._hosts.creation_on(machine)
                if create is not None:
                    await self._call(machine, create)
                    return
            except ApiError as error:
                self.tell("create", f"failed: {error.code.name}")
            await asyncio.sleep(_PAUSE_S)

    async def _ask_forever(self) -> None:
        while self._is_asking:
            await asyncio.sleep(self._random.expovariate(4))
            if self._random.random() < 0.15:
                await self._try(
                    Put(f"lease-{self._random.randrange(_LEASED_KEYS)}", self._value(), _LEASE_MS)
                )
            elif self._random.random() < 0.2:
                await self._try(Get(self._key()))
            else:
                await self._put(self._key())

    def _key(self) -> str:
        return f"key-{self._random.randrange(_KEYS)}"

    def _value(self) -> str:
        self._number += 1
        return str(self._number)

    async def _put(self, key: str) -> bool:
        """Whether it was acknowledged."""
        before, value = self._acknowledged.get(key), self._value()
        version = await self._try(Put(key, value))
        if not isinstance(version, int):
            return False
        self._on_acknowledged(key, Register(value, version), before)
        return True

    async def _try(self, request: Put | Get) -> Any:
        """The answer; None when no node gave one."""
        number = self._log_of(request.key)
        machines = self._hosts.machines
        for machine in self._random.sample(machines, len(machines)):
            shard = self._hosts.shard_on(machine, number)
            if shard is None:
                continue
            try:
                return await self._call(machine, partial(shard.submit, request))
            except ApiError as error:
                self.tell("register", f"{request.key} {error.code.name}")
        await asyncio.sleep(_PAUSE_S)
        return None

    async def _call(self, machine: Machine, make: Callable[[], Coroutine[Any, Any, Any]]) -> Any:
        """What the coroutine returns that runs in the machine's process. Raises RequestTimedOut when it does not."""
        process = machine.process
        context = Context() if process is None else process.context
        answered: asyncio.Future[Any] = self.loop.create_future()
        task = self.loop.create_task(_outcome(make, answered), name="register", context=context)
        await asyncio.sleep(self.options.latency_ms / 1000)
        try:
            async with asyncio.timeout(_TIMEOUT_S):
                return await answered
        except TimeoutError:
            task.cancel()
            raise RequestTimedOut(f"{machine!r} did not answer") from None

    # ---- What must hold ----------------------------------------------------------------------------------------------

    def _on_acknowledged(self, key: str, register: Register, before: Register | None) -> None:
        self.tell("register", f"{key} {register}")
        known = self._given.setdefault((key, register.version), register.value)
        if self._has_lost(key):
            return
        if known != register.value:
            self._report(
                "register-lost", f"{key}: version {register.version} was {known}, now {register.value}"
            )
        if before is not None and register.version <= before.version:
            self._report("register-lost", f"{key}: {register} was given after {before} was acknowledged")
        newest = self._acknowledged.get(key)
        if newest is None or newest.version < register.version:
            self._acknowledged[key] = register

    def _report(self, checker: str, evidence: str) -> None:
        self._checkers.report(checker, REGISTER_CLIENT_ID, evidence)

    def _log_of(self, key: str) -> int:
        return int(key.rpartition("-")[2]) % self._hosts.log_count

    def _has_lost(self, key: str) -> bool:
        return self._hosts.has_lost(self._log_of(key))

    # ---- The end -----------------------------------------------------------------------------------------------------

    def stop_asking(self) -> None:
        """No new requests; then every register that was ever acknowledged must take another change."""
        self._is_asking = False
        if self.options.registers:
            self._proofs = [self.begin("proof", self._prove(f"key-{each}")) for each in range(_KEYS)]

    async def _prove(self, key: str) -> None:
        is_proven = False
        while not is_proven and self._hosts.is_usable(self._log_of(key)):
            is_proven = await self._put(key)

    def waiting(self) -> list[str]:
        """The operations that have not ended, and the replicas that have not caught up."""
        found = [f"{each.get_name()} of the registers" for each in self._asking if not each.done()]
        found += ["a register takes no change" for each in self._proofs if not each.done()]
        if not found and self._proofs:
            found += [each for number in range(self._hosts.log_count) for each in self._standbys(number)]
        return found

    def _standbys(self, number: int) -> list[str]:
        """The replicas that have not made the same of the records as the others yet, when no lease is left."""
        shards = self._hosts.shards(number)
        if any(key.startswith("lease") for each in shards for key in each.shard.registers):
            return [f"a lease of log {number} goes on"]
        standbys = {each.replayed_offset for each in shards if not each.takes_requests}
        is_behind = any(each.replayed_offset > end for each in shards for end in standbys)
        return [f"{shards} have not replayed as much"] if len(standbys) > 1 or is_behind else []

    def check_final(self) -> str:
        """The registers of the replicas are the same, and hold what was acknowledged."""
        for number in range(self._hosts.log_count) if self.options.registers else ():
            states = [each.shard.registers for each in self._hosts.shards(number)]
            if any(each != states[0] for each in states):
                return f"log {number}: {states}"
            for key, register in self._acknowledged.items():
                if states and self._log_of(key) == number and not self._has_lost(key):
                    found = states[0].get(key)
                    if found is None or found.version < register.version:
                        return f"{key}: {register} was acknowledged, found {found}"
        return ""

    def close(self) -> None:
        """Ends what still waits."""
        for task in self.tasks:
            task.cancel()


async def _outcome(
    make: Callable[[], Coroutine[Any, Any, Any]],
    answered: "asyncio.Future[Any]",
) -> None:
    """Tells the client what came of it; nothing when the process ends first, which may be before this begins."""
    process = PROCESS.get()
    if process is not None and not process.is_alive:
        return
    try:
        response = await make()
    except ApiError as refusal:
        if not answered.done():
            answered.set_exception(refusal)
    else:
        if not answered.done():
            answered.set_result(response)
