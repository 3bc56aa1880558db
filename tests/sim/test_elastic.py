"""Brokers join, leave, flap and die for good under load, while the cluster heals and balances itself."""

import pytest

from rayka.sim.run_options import BROKERS_MIN, ElasticPlan, swarm
from rayka.sim.simulation import Simulation, Verdict
from rayka.sim.world.faults import DAMAGING, FaultKind

SECONDS = 20.0


@pytest.mark.sim
@pytest.mark.parametrize("seed", [1, 2])
def test_brokers_come_and_go_under_load(seed: int) -> None:  # decisions 062 065 067
    simulation = Simulation(swarm(seed, seconds=SECONDS, comers=2))
    outcome = simulation.run()
    assert outcome.verdict is Verdict.OK, outcome
    assert outcome.sends["acknowledged"] > 0
    assert simulation.moves.count > 0


@pytest.mark.sim
def test_machines_drain_under_load() -> None:  # decision 073
    chosen = {"comers": 2, "elastic": ElasticPlan(drain_pause_s=2.0), "faults_per_minute": 0.0}
    simulation = Simulation(swarm(6, seconds=SECONDS, **chosen))
    outcome = simulation.run()
    assert outcome.verdict is Verdict.OK, outcome
    assert simulation.drained.count > 0


def test_a_run_ends_soon_however_seldom_machines_flap_or_drain() -> None:
    """A pause that was drawn as longer than the minute without faults counted as scaling that goes on."""
    seldom = ElasticPlan(scaling_pause_s=1e6, flap_pause_s=1e6, drain_pause_s=1e6)
    outcome = Simulation(swarm(1, seconds=5.0, comers=1, elastic=seldom)).run()
    assert outcome.verdict is Verdict.OK, outcome


def test_one_run_in_thirteen_has_brokers_that_come() -> None:
    """One in eight of those with topics; none where something is chosen that would be another with them."""
    assert 20 <= sum(bool(swarm(seed).comers) for seed in range(400)) <= 50
    assert not any(swarm(seed, members=3).comers or swarm(seed, brokers=1).comers for seed in range(400))
    assert not any(swarm(seed, comers=0).comers for seed in range(400))


def test_what_brokers_that_come_go_together_with() -> None:
    elastic = [swarm(seed, comers=2) for seed in range(100)]
    assert all(each.comers == 2 and each.brokers >= BROKERS_MIN for each in elastic)
    assert not any(each.members or each.combined for each in elastic)
    assert not any({*each.fault_kinds} & {*DAMAGING, FaultKind.WALL_CLOCK} for each in elastic)
    assert len({each.elastic.has_death for each in elastic}) == 2
    assert len({bool(each.elastic.drain_pause_s) for each in elastic}) == 2
