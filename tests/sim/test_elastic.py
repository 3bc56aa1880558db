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


def test_brokers_come_where_they_are_asked_for_and_only_there() -> None:
    assert not any(swarm(seed).comers for seed in range(100))
    elastic = [swarm(seed, comers=2) for seed in range(100)]
    assert all(each.comers == 2 and each.brokers >= BROKERS_MIN for each in elastic)
    assert not any(each.members or each.combined for each in elastic)
    assert not any({*each.fault_kinds} & {*DAMAGING, FaultKind.WALL_CLOCK} for each in elastic)
    assert len({each.elastic.has_death for each in elastic}) == 2
