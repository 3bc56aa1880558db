"""The toy state machine on a quorum of its own, under the faults, clients and checkers of the simulator.

The voters are the real replicas of a quorum's log; what they host is `Registers` instead of the controller. Beside what
the clients check, every replica that stands by has, at every offset, what the committed records below it add up to.
"""

import traceback
from collections.abc import Callable, Coroutine, Sequence
from contextvars import Context
from dataclasses import replace
from random import Random
from typing import Any

from rayka.errors import BrokerNotAvailable, KafkaStorageError, NotLeaderOrFollower, StorageError
from rayka.node.quorum_driver import QuorumDriver
from rayka.node.quorum_log import QuorumLog
from rayka.node.quorum_requests import QuorumRequests
from rayka.node.replicated_shard import ReplicatedShard
from rayka.node.settings import NodeSettings
from rayka.node.snapshot_generator import SnapshotGenerator
from rayka.node.tasks import Tasks
from rayka.ports import Request
from rayka.protocol.apis import ServedBy
from rayka.protocol.caller import Answer
from rayka.protocol.quorum_messages import FetchSnapshotRequest
from rayka.raft.quorum import Quorum
from rayka.sim.checks.checkers import Checkers
from rayka.sim.checks.ledger import Ledger
from rayka.sim.clients.register_clients import RegisterClients, RegistersShard
from rayka.sim.loop import START_US, Livelock, Process, VirtualLoop
from rayka.sim.registers import CHANGES, Register, Registers
from rayka.sim.run_options import SimOptions
from rayka.sim.simulation import LIVENESS_SECONDS, Outcome, Quiet, Verdict
from rayka.sim.trace import Trace
from rayka.sim.world.exchange import Exchange
from rayka.sim.world.faults import draw_faults
from rayka.sim.world.injector import Injector, Repairs
from rayka.sim.world.machines import Machine, SimCluster
from rayka.sim.world.simulated_network import SimNetwork

VOTERS: dict[str, Any] = {
    "voters": 3,
    "brokers": 0,
    "clients": 0,
    "registers": 4,
    "voter_changes": False,
}
_STEP_MS = 250  # how often the liveness phase looks whether it is over


def run_on_quorum(options: SimOptions) -> Outcome:
    """One run of the registers on a quorum."""
    return QuorumRun(options).run()


def with_snapshots(options: SimOptions) -> SimOptions:
    """The same with snapshots and cuts of the log behind every few records, and every few more."""
    random = Random(f"snapshots {options.seed}")
    sizes = {
        "metadata_log_max_record_bytes_between_snapshots": random.choice((500, 2_000, 20_000)),
        "metadata_max_retention_bytes": random.choice((1_000, 4_000, 40_000)),
    }
    return replace(options, config=options.config | sizes)


class RegistersNode:
    """One replica: a voter's log, the registers on it, and their snapshots."""

    serves = ServedBy.QUORUM

    def __init__(self, settings: NodeSettings) -> None:
        self.settings = settings
        self.failure: StorageError | None = None
        self.driver: QuorumDriver | None = None
        self.shard: RegistersShard | None = None
        self._requests: QuorumRequests | None = None
        self._tasks = Tasks(settings.crash)

    def __repr__(self) -> str:
        return f"<RegistersNode {self.driver!r}>"

    async def start(self) -> None:
        """Returns when the log is open. Raises StorageError when it cannot be used."""
        driver = self.driver = await QuorumDriver.open(self.settings, self._tasks)
        self._requests = QuorumRequests(driver, self.settings.config)
        self.shard = ReplicatedShard(self.settings.node_id, QuorumLog(driver, CHANGES), Registers)
        snapshots = SnapshotGenerator(self.settings, driver, self.shard, CHANGES)
        for name, run in ("quorum", driver.run), ("shard", self.shard.run), ("snapshots", snapshots.run):
            self._tasks.start(name, self._until_disk_fails(run))

    def handle(self, request: Request[Any]) -> Coroutine[Any, Any, Any]:
        """The answer to another replica."""
        if self.failure is not None:
            raise KafkaStorageError(f"{self!r}: {self.failure}")
        if self._requests is None:
            raise BrokerNotAvailable(f"{self!r} is not open")
        return self._requests.handle(request)

    async def stop(self) -> None:
        """Hands the lead over, and leaves a clean log."""
        driver, shard = self.driver, self.shard
        if driver is not None and self.failure is None:
            await driver.shut_down()
        await self._tasks.stop()
        if driver is not None and shard is not None:
            shard.end(NotLeaderOrFollower(f"{self!r} is shutting down"))
            await driver.close()

    def kill(self) -> None:
        """The end of the process."""
        self._tasks.abandon()
        if self.shard is not None:
            self.shard.abandon()
        if self.driver is not None:
            self.driver.release()

    async def _until_disk_fails(self, run: Callable[[], Coroutine[Any, Any, None]]) -> None:
        try:
            await run()
        except StorageError as error:
            if self.failure is None and self.driver is not None and self.shard is not None:
                self.failure = error
                self.driver.fail(error)
                self.shard.end(KafkaStorageError(str(error)))


class RegistersMachine(Machine):
    """A machine whose node is a replica of the registers."""

    node: RegistersNode | None

    def make_node(self, settings: NodeSettings) -> RegistersNode:
        return RegistersNode(settings)

    @property
    def has_failed(self) -> bool:
        return self.node is not None and self.node.failure is not None


class QuorumHosts:
    """The voters, with the registers on the one log that they have. A minority of them loses its disk, so nothing that
    was acknowledged does.
    """

    log_count = 1

    def __init__(self, cluster: SimCluster) -> None:
        for each in cluster.controllers:
            cluster.machines[each.node_id] = RegistersMachine(
                each.node_id, each.disk, is_controller=True, is_broker=False
            )
        self.machines: Sequence[Machine] = cluster.controllers

    def creation_on(self, machine: Machine) -> Callable[[], Coroutine[Any, Any, None]] | None:
        return _already_there

    def shard_on(self, machine: Machine, number: int) -> RegistersShard | None:
        return machine.node.shard if isinstance(machine.node, RegistersNode) and machine.is_serving else None

    def shards(self, number: int) -> list[RegistersShard]:
        return [shard for each in self.machines if (shard := self.shard_on(each, number)) is not None]

    def has_lost(self, number: int) -> bool:
        return False

    def is_usable(self, number: int) -> bool:
        return True


async def _already_there() -> None:
    """The log was made when the disks were formatted."""


class QuorumCheckers(Checkers):
    """Those of elections, fetches and calls. Snapshots hold other records here than those that it knows."""

    def on_rename(self, node_id: int, path: str) -> None:
        if not path.endswith(".checkpoint"):
            super().on_rename(node_id, path)

    def on_answer(self, process: Process, exchange: Exchange, answer: Answer) -> None:
        if not isinstance(exchange.request, FetchSnapshotRequest):
            super().on_answer(process, exchange, answer)


class CommittedRegisters:
    """What the committed records add up to at each offset, as they are in the log of the first replica that says so."""

    def __init__(self) -> None:
        self._newest = Registers()
        self.states: list[dict[str, Register]] = [{}]

    def extend(self, quorum: Quorum, high_watermark: int) -> None:
        """A replica says that everything below the high watermark is committed."""
        while len(self.states) <= high_watermark:
            begin = len(self.states) - 1
            read = quorum.read_committed(begin, max_bytes=1 << 20)
            changes = dict(CHANGES.committed(read.records, begin))
            for offset in range(begin, read.next_offset):
                if offset in changes:
                    self._newest.replay(changes[offset], offset)
                self.states.append(dict(self._newest.registers))


class RegistersWatch:
    """Looks at one replica after each callback of its process."""

    def __init__(self, machine: Machine, checkers: Checkers, committed: CommittedRegisters) -> None:
        self._machine = machine
        self._checkers = checkers
        self._committed = committed
        self._seen = (-1, -1)

    def __call__(self) -> None:
        node = self._machine.node
        if not isinstance(node, RegistersNode) or node.driver is None or node.shard is None:
            return
        high_watermark = node.driver.quorum.known_high_watermark
        seen = (high_watermark, node.shard.replayed_offset)
        if seen == self._seen:
            return
        self._seen = seen
        self._committed.extend(node.driver.quorum, high_watermark)
        if node.shard.stands_by:
            self._compare(node.shard)

    def _compare(self, shard: RegistersShard) -> None:
        states, offset = self._committed.states, shard.replayed_offset
        expected = states[offset] if offset < len(states) else "not committed"
        if shard.shard.registers != expected:
            evidence = f"at offset {offset}: {shard.shard.registers}, expected {expected}"
            self._checkers.report("register-standby", self._machine.node_id, evidence)


class QuorumRun:
    """One run: faults for so many seconds, then none, until every register takes a change on every replica."""

    def __init__(self, options: SimOptions, write: Callable[[str], None] | None = None) -> None:
        self.options = options
        self.loop = VirtualLoop()
        self.trace = Trace(self.loop, write)
        self.checkers = QuorumCheckers(self.loop, self.trace, Ledger())
        random = Random(f"network {options.seed}")
        self.network = SimNetwork(self.loop, options, random, self.trace, self.checkers)
        self.cluster = SimCluster(self.loop, options, self.network, self.trace, self.checkers.on_rename)
        self.register_hosts = QuorumHosts(self.cluster)
        self.committed = CommittedRegisters()
        self.cluster.watch, self.cluster.on_bug = self._watch, self._on_bug
        self.checkers.machines = self.cluster.machines
        self.registers = RegisterClients(self.cluster, self.checkers, self.register_hosts)
        self.repairs = Repairs(self.cluster)
        self.injector = Injector(self.cluster, self.repairs)

    def __repr__(self) -> str:
        return (
            f"<QuorumRun seed={self.options.seed} now_ms={self.loop.now_ms} {self.register_hosts.shards(0)}>"
        )

    def _watch(self, machine: Machine) -> list[Callable[[], None]]:
        self.checkers.on_started(machine)
        return [RegistersWatch(machine, self.checkers, self.committed)]

    def _on_bug(self, node_id: int, error: BaseException) -> None:
        cause = "".join(traceback.format_tb(error.__traceback__)[-6:])
        self.checkers.report("crash", node_id, f"{error!r}; {cause}")

    def run(self) -> Outcome:
        """Both phases; the first violation ends them."""
        with Quiet():
            try:
                self.begin()
                self.injector.schedule(draw_faults(self.options))
                self.run_until_ms(int(self.options.seconds * 1000))
                if self.checkers.violation is None:
                    self._run_liveness()
            except Livelock as error:
                self.checkers.report("livelock", 0, str(error))
            self.close()
        return self._outcome()

    def begin(self) -> None:
        """Formats and starts everything."""
        self.loop.run_until_complete(self.loop.create_task(self.cluster.format(), context=Context()))
        for node_id in self.cluster.machines:
            self.cluster.start(node_id)
        self.registers.start()

    def run_until_ms(self, since_begin_ms: int) -> None:
        """Runs until so long after the begin, or a violation."""
        self.loop.run_until(START_US + since_begin_ms * 1000, lambda: self.checkers.violation is not None)

    def _run_liveness(self) -> None:
        self.trace.add("-", "phase", "liveness")
        self.registers.stop_asking()
        begin_ms, waiting = self.loop.now_ms, ["everything"]
        while waiting and self.checkers.violation is None:
            if self.loop.now_ms - begin_ms > LIVENESS_SECONDS * 1000:
                self.checkers.report("liveness", 0, f"{'; '.join(waiting)}; {self.register_hosts.machines}")
            self.repairs.heal()
            self.repairs.replace_rotten(begin_ms)
            self.run_until_ms(self.loop.now_ms + _STEP_MS - START_US // 1000)
            waiting = [
                f"{each!r} does not serve" for each in self.register_hosts.machines if not each.is_serving
            ]
            waiting += self.registers.waiting()
        self.checkers.report_if("register-standby", 0, self.registers.check_final())

    def close(self) -> None:
        """Ends all processes and what they were doing."""
        self.checkers.is_enabled = False
        self.registers.close()
        for node_id in self.cluster.machines:
            self.cluster.kill(node_id)
        self.loop.cancel_all()
        self.loop.close()

    def _outcome(self) -> Outcome:
        violation = self.checkers.violation
        verdicts = {"crash": Verdict.CRASH, "liveness": Verdict.LIVENESS, "livelock": Verdict.LIVENESS}
        return Outcome(
            seed=self.options.seed,
            verdict=Verdict.OK if violation is None else verdicts.get(violation.checker, Verdict.SAFETY),
            trace_hash=self.trace.hash(),
            event_count=self.trace.count,
            fault_count=self.injector.done_count,
            simulated_ms=(self.loop.now_us - START_US) // 1000,
            committed_end=len(self.committed.states) - 1,
            operations={},
            violation=violation,
        )
