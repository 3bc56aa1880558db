"""One run: a cluster, its clients, faults for so many seconds (safety), then none (liveness), checkers all the while.

In the safety phase nothing has to work, but nothing may be broken. Then every fault is healed and every node started,
and within a minute of virtual time everything that was pending must have ended: every operation, every start, every
replica and every broker caught up with what is committed, and a new topic must be acknowledged. A replica that copies
slowly is waited for: the minute begins again when a log has grown, ten minutes in all; but not when all that is left is
a group that does not settle, as each of its rebalances writes a record. What is left is named.
Kafka: `RaftEventSimulationTest`; FoundationDB and TigerBeetle have the two phases.
"""

import gc
import logging
import traceback
from collections.abc import Callable, Mapping, Sequence
from contextvars import Context
from enum import IntEnum
from functools import partial
from random import Random
from typing import Any

import msgspec

from rayka.ids import TopicPartition
from rayka.metadata.image import MetadataImage
from rayka.sim.checks.checkers import Checkers, Violation, quorum_of
from rayka.sim.checks.data_history import DataHistory, History
from rayka.sim.checks.drained_machines import DrainedMachines
from rayka.sim.checks.ledger import Ledger
from rayka.sim.checks.moves import Moves
from rayka.sim.checks.partition_states import PartitionStates
from rayka.sim.checks.replica_checkers import ReplicaCheckers
from rayka.sim.checks.replica_views import Replication
from rayka.sim.checks.watches import BrokerWatch, ControllerWatch
from rayka.sim.clients.broker_scaling import BrokerScaling
from rayka.sim.clients.data_clients import DataClients
from rayka.sim.clients.group_clients import GroupClients
from rayka.sim.clients.machine_drains import MachineDrains
from rayka.sim.clients.operations import PartitionOperator, TopicGrowth
from rayka.sim.clients.register_clients import PartitionHosts, RegisterClients
from rayka.sim.clients.workload import Workload
from rayka.sim.loop import START_US, Livelock, VirtualLoop
from rayka.sim.run_options import SimOptions, TopicPlan
from rayka.sim.trace import Trace
from rayka.sim.world.coming_machines import ComingMachines
from rayka.sim.world.faults import draw_faults
from rayka.sim.world.injector import Injector, Repairs
from rayka.sim.world.machines import Machine, SimCluster
from rayka.sim.world.simulated_network import SimNetwork

LIVENESS_SECONDS = 60  # without a replica that has copied more
LIVENESS_SECONDS_MAX = 600
REST_SECONDS_MAX = 300  # until nothing has moved for a minute, where brokers come and go
_STEP_US = 250_000  # how often the liveness phase looks whether it is over


class Verdict(IntEnum):
    """The end of a run; the command's exit code."""

    OK = 0
    CRASH = 1
    SAFETY = 2
    LIVENESS = 3


class Outcome(msgspec.Struct, frozen=True):
    """The result of a run."""

    seed: int
    verdict: Verdict
    trace_hash: str
    event_count: int
    fault_count: int
    simulated_ms: int
    committed_end: int
    operations: dict[str, int]
    sends: dict[str, int] = {}
    lanes: dict[str, int] = {}
    polled_count: int = 0
    loss_count: int = 0
    violation: Violation | None = None

    def __str__(self) -> str:
        ended = self.verdict.name if self.violation is None else f"{self.verdict.name}: {self.violation}"
        return f"seed {self.seed}: {ended}"


class Simulation:
    """One run, step by step; `run` is all of them. Tests use the parts: cluster, network, workload, checkers."""

    def __init__(self, options: SimOptions, write: Callable[[str], None] | None = None) -> None:
        self.options = options
        self.loop = VirtualLoop()
        self.trace = Trace(self.loop, write)
        self.ledger = Ledger()
        self.checkers = Checkers(self.loop, self.trace, self.ledger)
        self.checkers.is_enabled = options.checks
        self.network = SimNetwork(
            self.loop, options, Random(f"network {options.seed}"), self.trace, self.checkers
        )
        self.cluster = SimCluster(self.loop, options, self.network, self.trace, self.checkers.on_rename)
        if options.checks:
            self.cluster.watch = self._watch
        self.cluster.on_bug = self._on_bug
        self.checkers.machines = self.cluster.machines
        self.history = History(self.ledger)
        self.workload = Workload(self.cluster, self.checkers, self.history)
        self.data_history = DataHistory()
        self.replication = Replication(self.checkers)
        self._replica_checkers = ReplicaCheckers(self.checkers, self.data_history, self.replication)
        self.states = PartitionStates(self.checkers, self._replica_checkers, self.replication, self.cluster)
        self.moves = Moves(self.checkers, self.cluster)
        self.ledger.on_image = self._on_image if options.comers else self.states.on_image
        self.checkers.on_asked, self.checkers.on_answered = self.moves.on_request, self.moves.on_answer
        self.checkers.on_produced = partial(self._replica_checkers.on_produced, self.states.min_isr_floor)
        self.data = DataClients(self.cluster, self.checkers, self.data_history, self.replication)
        self.operator = PartitionOperator(self.cluster, self.replication, self.states)
        self.register_hosts = PartitionHosts(self.cluster, self.replication)
        self.registers = RegisterClients(self.cluster, self.checkers, self.register_hosts)
        self.groups = GroupClients(self.data)
        self.growth = TopicGrowth(self.cluster, self.replication)
        self.growth.on_added = self._on_added
        self.workload.on_created = self._on_created
        self.repairs = Repairs(self.cluster)
        self.repairs.on_damage = self.replication.on_damaged
        self.injector = Injector(self.cluster, self.repairs)
        self._machines = ComingMachines(self.cluster, self.repairs)
        self.scaling = BrokerScaling(self.cluster, self.checkers, self._machines, self.replication)
        self.drained = DrainedMachines(self.checkers)
        self.drains = MachineDrains(self.cluster, self._machines, self.drained)

    def __repr__(self) -> str:
        return f"<Simulation seed={self.options.seed} now_ms={self.loop.now_ms} {self.ledger!r}>"

    def _on_image(self, before: MetadataImage, after: MetadataImage) -> None:
        self.states.on_image(before, after)
        self.moves.on_image(before, after)
        self.drained.on_image(before, after)

    def _on_created(self, topics: Sequence[TopicPlan]) -> None:
        self.data.start(topics)
        self.groups.start(topics)
        self.growth.start(topics)

    def _on_added(self, partitions: Sequence[TopicPartition]) -> None:
        self.data.add(partitions)
        self.groups.add(partitions)

    def _watch(self, machine: Machine) -> list[Callable[[], None]]:
        watches: list[Callable[[], None]] = []
        if machine.is_controller:
            self.checkers.on_started(machine)
            fetch_timeout_ms = self.cluster.config.controller_quorum_fetch_timeout_ms
            watches.append(ControllerWatch(machine, self.checkers, self.loop, fetch_timeout_ms))
        if machine.is_broker:
            watches.append(BrokerWatch(machine, self.checkers, self._replica_checkers))
        return watches

    def _on_bug(self, node_id: int, error: BaseException) -> None:
        cause = "".join(traceback.format_tb(error.__traceback__)[-6:])
        self.checkers.report("crash", node_id, f"{error!r}; {cause}")

    # ---- Running -----------------------------------------------------------------------------------------------------

    def run(self) -> Outcome:
        """Both phases; the first violation ends them."""
        with Quiet():
            try:
                self.begin()
                self.run_safety()
                if self.checkers.violation is None:
                    self.run_liveness()
            except Livelock as error:
                self.checkers.report("livelock", 0, str(error))
            outcome = self.outcome()
            self.close()
            return outcome

    def close(self) -> None:
        """Ends all processes and what they were doing; nothing is checked any more."""
        self.checkers.is_enabled = False
        for each in (self.data, self.groups, self.registers):
            each.close()
        for machine in self.cluster.machines.values():
            if machine.process is not None:
                self.cluster.kill(machine.node_id)
        self.loop.cancel_all()
        self.loop.close()

    def begin(self) -> None:
        """Formats and starts everything."""
        self.loop.run_until_complete(self.loop.create_task(self.cluster.format(), context=Context()))
        for node_id in self.cluster.machines:
            self.cluster.start(node_id)
        for each in (self.workload, self.operator, self.registers, self.scaling, self.drains):
            each.start()

    def run_safety(self) -> None:
        """The faults and the clients."""
        self.injector.schedule(draw_faults(self.options))
        self.run_until_ms(int(self.options.seconds * 1000))

    def run_until_ms(self, since_begin_ms: int, is_done: Callable[[], bool] | None = None) -> None:
        """Runs until so long after the begin, a violation, or `is_done`."""
        checkers = self.checkers

        def is_over() -> bool:
            return checkers.violation is not None or (is_done is not None and is_done())

        self.loop.run_until(START_US + since_begin_ms * 1000, is_over)

    def run_liveness(self) -> None:
        """Heals everything; whatever still waits a minute later is a violation."""
        begin_ms = self.loop.now_ms
        self.trace.add("-", "phase", "liveness")
        clients = (self.workload, self.data, self.operator, self.growth, self.registers, self._machines)
        for each in clients:
            each.stop_asking()
        self.repairs.heal()
        proof = self.loop.create_task(
            self.workload.create_until_acknowledged(), name="proof", context=Context()
        )
        patience = LivenessDeadline(self.loop.now_us)
        waiting = ["everything"]
        while waiting and not patience.is_over(self.loop.now_us) and self.checkers.violation is None:
            self.repairs.heal()  # what failed meanwhile, or was still under a fault's hand
            self.repairs.replace_rotten(begin_ms)
            self.repairs.restart_homeless()
            self.operator.rescue()
            self.run_until_ms((self.loop.now_us + _STEP_US - START_US) // 1000)
            waiting = self._waiting(proof)
            if waiting != self.groups.unsettled():
                patience.look(self.loop.now_us, self.replication.log_ends())
        if waiting:
            seconds = (self.loop.now_ms - begin_ms) // 1000
            checker = "group-unsettled" if waiting == self.groups.waiting() else "liveness"
            self.checkers.report(checker, 0, f"after {seconds} s without faults: {'; '.join(waiting)}")
        elif self.options.comers:
            self._run_rest(proof)
        self.check_final()

    def _run_rest(self, proof: Any) -> None:
        """Nothing changes any more: after a while no replica moves for a minute, and all is as it should be."""
        begin_ms = self.loop.now_ms
        self.trace.add("-", "phase", "rest")
        waiting = ["a minute without a move"]
        while waiting and self.checkers.violation is None:
            if self.loop.now_ms - begin_ms > REST_SECONDS_MAX * 1000:
                evidence = f"{REST_SECONDS_MAX} s without a change: {self.moves!r}; {'; '.join(waiting)}"
                self.checkers.report("rest", 0, evidence)
            self.run_until_ms((self.loop.now_us + _STEP_US - START_US) // 1000)
            if self.moves.is_at_rest(begin_ms):
                waiting = self._waiting(proof)

    def _waiting(self, proof: Any) -> list[str]:
        """The operations that have not ended, and the replicas that have not caught up."""
        found = [str(each) for each in self.history.pending()[:5]]
        for each in (self.data, self.states, self.registers, self.groups, self.scaling, self.drains):
            found += each.waiting()
        if not proof.done():
            found.append("no new topic was acknowledged")
        for machine in self.cluster.machines.values():
            problem = "" if machine.is_absent else self._problem(machine)
            if problem:
                found.append(f"{machine!r} {problem}")
        return found

    def _problem(self, machine: Machine) -> str:
        if not machine.is_serving:
            return f"does not serve: {machine.start_failure}"
        end, broker = self.ledger.end, machine.broker
        if broker is not None:
            observed = broker.observed
            offset = observed.follower.image.next_offset if observed is not None else 0
            if offset < end:
                return f"has applied up to {offset}, committed is {end}"
        quorum = quorum_of(machine)
        if machine.controller is not None:
            offset = quorum.known_high_watermark if quorum is not None else -1
            if offset < end:
                return f"knows of commits up to {offset}, committed is {end}"
        return ""

    def check_final(self) -> None:
        """The history as a whole, and what the disks have to say."""
        self.checkers.report_if("history", 0, self.history.check_final())
        if self.options.comers:
            self.checkers.report_if("stale-replica", 0, self.moves.check_final(self.replication.image))
        self.checkers.report_if("register-standby", 0, self.registers.check_final())
        truths = self.replication.truths.values()
        self.checkers.report_if("lost-write", 0, self.data_history.check_final(truths))
        self.checkers.report_if("group-undelivered", 0, self.groups.check_final())
        self.checkers.report_if("group-went-back", 0, self.groups.check_stored(self.cluster.brokers))
        for machine in self.cluster.machines.values():
            if machine.disk.dead_writers:
                self.checkers.report("dead-process", machine.node_id, machine.disk.dead_writers[0])

    # ---- The result --------------------------------------------------------------------------------------------------

    def outcome(self) -> Outcome:
        """The result so far."""
        violation = self.checkers.violation
        return Outcome(
            seed=self.options.seed,
            verdict=Verdict.OK
            if violation is None
            else _OTHER_VERDICTS.get(violation.checker, Verdict.SAFETY),
            trace_hash=self.trace.hash(),
            event_count=self.trace.count,
            fault_count=self.injector.done_count,
            simulated_ms=(self.loop.now_us - START_US) // 1000,
            committed_end=self.ledger.end,
            operations=self.history.counts(),
            sends=self.data_history.counts(),
            lanes=dict(self.network.lanes.counts),
            polled_count=self.data_history.polled_count,
            loss_count=sum(each.has_lost for each in self.replication.truths.values()),
            violation=violation,
        )


class LivenessDeadline:
    """The deadline of the liveness phase: a minute, and another one whenever a replica's log has grown."""

    def __init__(self, begin_us: int) -> None:
        self._limit_us = begin_us + LIVENESS_SECONDS_MAX * 1_000_000
        self._deadline_us = begin_us + LIVENESS_SECONDS * 1_000_000
        self._ends: Mapping[Any, int] = {}

    def is_over(self, now_us: int) -> bool:
        return now_us >= min(self._deadline_us, self._limit_us)

    def look(self, now_us: int, log_ends: Mapping[Any, int]) -> None:
        """The log end offset of each replica, as it is now."""
        if any(end > self._ends.get(replica, end) for replica, end in log_ends.items()):
            self._deadline_us = now_us + LIVENESS_SECONDS * 1_000_000
        self._ends = log_ends


_OTHER_VERDICTS = {
    "crash": Verdict.CRASH,
    "liveness": Verdict.LIVENESS,
    "livelock": Verdict.LIVENESS,
    "rest": Verdict.LIVENESS,
    "group-unsettled": Verdict.LIVENESS,
}


class Quiet:
    """Silences the nodes' log lines and automatic garbage collection during a run."""

    def __enter__(self) -> None:
        self._logger = logging.getLogger("rayka")
        self._level = self._logger.level
        self._logger.setLevel(logging.CRITICAL + 1)
        self._was_enabled = gc.isenabled()
        gc.disable()

    def __exit__(self, *_: object) -> None:
        self._logger.setLevel(self._level)
        if self._was_enabled:
            gc.enable()
