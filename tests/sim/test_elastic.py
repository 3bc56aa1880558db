"""Brokers join, leave, flap and die for good under load, while the cluster heals and balances itself."""

import pytest

from rayka.sim.elastic_plan import BROKERS_MIN
from rayka.sim.run_options import swarm
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


def test_seeds_draw_brokers_that_come() -> None:
    drawn = [swarm(seed) for seed in range(400)]
    elastic = [each for each in drawn if each.comers]
    assert 30 <= len(elastic) <= 70
    assert all(each.topics and not each.members and not each.combined for each in elastic)
    assert all(each.brokers >= BROKERS_MIN and 1 <= each.comers <= 3 for each in elastic)
    assert not any({*each.fault_kinds} & {*DAMAGING, FaultKind.WALL_CLOCK} for each in elastic)
    assert len({each.elastic.has_death for each in elastic}) == 2
    assert not any(swarm(seed, brokers=3).comers for seed in range(100))
