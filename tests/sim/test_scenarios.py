"""The properties of Kafka's `RaftEventSimulationTest` (kafka.md §3.1), on whole nodes: scripts instead of drawn faults,
every checker on all the while (I1-I6), and I7, that leadership is stable, where a property asks for it.

What Kafka appends every few milliseconds are here the records of the clients and of the idle controller.
"""

from collections.abc import Callable, Iterable
from itertools import permutations

import pytest

from rayka.sim.checks.checkers import quorum_of
from rayka.sim.run_options import SimOptions
from rayka.sim.simulation import Simulation
from rayka.sim.world.machines import Machine

SEEDS = range(1, 4)
PATIENCE_MS = 60_000
CLUSTERS = [(1, 0), (2, 1), (3, 0), (3, 2), (4, 1), (5, 0), (5, 2)]  # voters, and brokers as observers
FAULT_TOLERANT = [each for each in CLUSTERS if each[0] >= 3]


class Script:
    """A running cluster without drawn faults, and the steps that a property needs."""

    def __init__(self, seed: int, voters: int, brokers: int = 1) -> None:
        options = SimOptions(
            seed=seed, voters=voters, brokers=brokers, clients=1, faults_per_minute=0.0, ops_per_second=5.0,
            config={"controller_quorum_auto_join_enable": True},
        )  # fmt: skip
        self.sim = Simulation(options)
        self.voters = options.controller_ids

    def __enter__(self) -> "Script":
        self.sim.begin()
        return self

    def __exit__(self, *_: object) -> None:
        self.sim.close()

    def until(self, is_done: Callable[[], bool], what: str) -> None:
        """Goes on until something holds, which it must within a minute."""
        self.go_on(PATIENCE_MS, is_done)
        assert is_done(), f"not within {PATIENCE_MS} ms: {what}; {list(self.sim.cluster.machines.values())}"

    def go_on(self, duration_ms: int, is_done: Callable[[], bool] | None = None) -> None:
        sim = self.sim
        now_ms = sim.loop.now_ms - 1_000
        for until_ms in range(now_ms, now_ms + duration_ms, 20):
            sim.run_until_ms(until_ms + 20)
            assert sim.checkers.violation is None, sim.checkers.violation
            if is_done is not None and is_done():
                return

    @property
    def committed(self) -> int:
        return self.sim.ledger.end

    @property
    def elections(self) -> int:
        """How many epochs had a leader."""
        return len(self.sim.checkers.leaders)

    def leader(self) -> Machine:
        """The leader of the newest epoch; waits until there is one."""
        self.until(lambda: bool(self._leaders()), "no voter leads")
        return max(self._leaders(), key=self._epoch)

    def _leaders(self) -> list[Machine]:
        machines = self.sim.cluster.controllers
        return [each for each in machines if (quorum := quorum_of(each)) is not None and quorum.is_leader]

    @staticmethod
    def _epoch(machine: Machine) -> int:
        quorum = quorum_of(machine)
        assert quorum is not None
        return quorum.election.leader_epoch

    def others(self, *node_ids: int) -> list[int]:
        return [each for each in self.voters if each not in node_ids]

    def commit_more(self, count: int = 10) -> int:
        """Waits until so many more records are committed; where that is."""
        target = self.committed + count
        self.until(lambda: self.committed >= target, f"{count} more committed records")
        return self.committed

    def all_reach(self, offset: int, node_ids: Iterable[int] | None = None) -> None:
        """Waits until these nodes, or all, know of commits up to there."""
        machines = self.sim.cluster.machines
        wanted = [machines[each] for each in (node_ids if node_ids is not None else machines)]
        self.until(lambda: all(self.high_watermark(each) >= offset for each in wanted), f"all at {offset}")

    def high_watermark(self, machine: Machine) -> int:
        if machine.is_controller:
            quorum = quorum_of(machine)
            return quorum.known_high_watermark if quorum is not None else -1
        broker = machine.broker
        parts = broker._parts if broker is not None else None
        return parts.follower.image.next_offset if parts is not None else -1

    def part(self, one: Iterable[int], other: Iterable[int]) -> None:
        """Cuts all links between two groups, both ways."""
        there = [(a, b) for a in one for b in other]
        self.sim.network.links.cut([*there, *((b, a) for a, b in there)])

    def isolate(self, node_id: int) -> None:
        self.part([node_id], [each for each in self.sim.network.all_ids if each != node_id])


def scripts(clusters: Iterable[tuple[int, int]]) -> pytest.MarkDecorator:
    return pytest.mark.parametrize(("voters", "brokers"), clusters, ids=str)


@scripts(CLUSTERS)
@pytest.mark.parametrize("seed", SEEDS)
def test_an_initial_leader_is_elected(seed: int, voters: int, brokers: int) -> None:
    with Script(seed, voters, brokers) as script:
        script.leader()
        script.commit_more()
        script.all_reach(10)


@scripts(FAULT_TOLERANT)
@pytest.mark.parametrize("is_graceful", [True, False], ids=["stopped", "killed"])
@pytest.mark.parametrize("seed", SEEDS[:1])
def test_a_new_leader_is_elected_after_the_old_one_failed(
    seed: int, is_graceful: bool, voters: int, brokers: int
) -> None:
    with Script(seed, voters, brokers) as script:
        old = script.leader().node_id
        script.commit_more()
        cluster = script.sim.cluster
        (cluster.stop if is_graceful else cluster.kill)(old)
        script.until(lambda: cluster.machines[old].process is None, "the old leader is gone")
        script.all_reach(script.commit_more(), script.others(old))
        cluster.start(old)
        script.all_reach(script.commit_more())


@scripts(CLUSTERS)
@pytest.mark.parametrize("seed", SEEDS[:1])
def test_a_quorum_recovers_after_all_were_killed(seed: int, voters: int, brokers: int) -> None:
    with Script(seed, voters, brokers) as script:
        script.commit_more()
        for node_id in script.voters:
            script.sim.cluster.kill(node_id)
        script.go_on(2_000)
        majority = script.voters[: voters // 2 + 1]
        for node_id in majority:
            script.sim.cluster.start(node_id)
        script.all_reach(script.commit_more(), majority)


@scripts(FAULT_TOLERANT)
@pytest.mark.parametrize("seed", SEEDS[:1])
def test_a_new_leader_is_elected_when_the_old_one_is_partitioned_away(
    seed: int, voters: int, brokers: int
) -> None:
    with Script(seed, voters, brokers) as script:
        old = script.leader().node_id
        script.commit_more()
        script.isolate(old)
        script.all_reach(script.commit_more(), script.others(old))


@pytest.mark.parametrize("seed", SEEDS)
def test_a_majority_that_is_reachable_makes_progress(seed: int) -> None:
    with Script(seed, 5) as script:
        script.commit_more()
        minority, majority = script.voters[:2], script.voters[2:]
        script.part(minority, [*majority, *script.sim.options.broker_ids])
        before = script.committed
        script.all_reach(script.commit_more(), majority)
        machines = script.sim.cluster.machines
        assert all(script.high_watermark(machines[each]) <= before + 10 for each in minority)
        script.sim.network.heal()
        script.all_reach(script.commit_more())


@pytest.mark.parametrize("seed", SEEDS)
def test_leadership_is_assigned_once_though_some_cannot_win(seed: int) -> None:
    """Pre-vote: a voter that never reached a majority does not disturb the others (I7)."""
    with Script(seed, 5) as script:
        a, b, *rest = script.voters
        script.part([a], [b, rest[0], rest[1]])
        script.part([b], [rest[0], rest[1]])
        script.leader()
        script.all_reach(script.commit_more(), [rest[2]])
        epochs = script.elections
        script.commit_more(40)
        assert script.elections == epochs


@pytest.mark.parametrize("seed", SEEDS)
def test_leadership_does_not_change_while_a_majority_is_reachable(seed: int) -> None:
    """Pre-vote: a voter that lost the leader, but not the majority, does not depose it (I7)."""
    with Script(seed, 5) as script:
        leader = script.leader()
        script.all_reach(script.commit_more(), script.voters)
        epoch = script._epoch(leader)
        lost, *followers = script.others(leader.node_id)
        script.part([leader.node_id], [lost])
        script.part([lost], followers[:1])
        script.commit_more(40)
        assert script.leader() is leader
        assert script._epoch(leader) == epoch


@scripts(FAULT_TOLERANT)
@pytest.mark.parametrize("seed", SEEDS[:1])
def test_progress_goes_on_after_one_leader_failed_after_the_other(
    seed: int, voters: int, brokers: int
) -> None:
    with Script(seed, voters, brokers) as script:
        for _ in range(3):
            leader = script.leader().node_id
            script.isolate(leader)
            script.all_reach(script.commit_more(), script.others(leader))
            script.sim.network.heal()


@scripts([(3, 0), (3, 2), (5, 1)])
@pytest.mark.parametrize("seed", SEEDS[:2])
def test_one_node_that_lost_what_was_committed_recovers_it(seed: int, voters: int, brokers: int) -> None:
    """The wiped node is another replica: it observes, takes its former self's place, and catches up (A60)."""
    with Script(seed, voters, brokers) as script:
        script.commit_more()
        cluster, lost = script.sim.cluster, script.voters[seed % voters]
        cluster.kill(lost)
        script.sim.repairs.wipe(cluster.machines[lost], lambda: cluster.start(lost))
        script.all_reach(script.commit_more())
        quorum = quorum_of(cluster.machines[lost])
        assert quorum is not None
        script.until(lambda: quorum.is_voter, "the new replica votes")


def test_every_pair_of_voters_may_be_parted() -> None:
    """Five voters, one link after the other, both ways: clients see nothing but a moment's delay (I1-I6)."""
    with Script(1, 3) as script:
        for one, other in permutations(script.voters, 2):
            script.part([one], [other])
            script.commit_more(3)
            script.sim.network.heal()
