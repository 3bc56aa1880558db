"""Groups of real consumers under faults: members come and go, coordinators and brokers die, and the group settles."""

import pytest

from rayka.sim.run_options import swarm
from rayka.sim.simulation import Simulation, Verdict

SECONDS = 15.0


@pytest.mark.sim
@pytest.mark.parametrize(("seed", "members", "coordinators"), [(3, 2, 1), (10, 3, 0), (11, 4, 0), (15, 2, 2)])
def test_a_group_keeps_what_it_committed_and_settles(
    seed: int, members: int, coordinators: int
) -> None:  # E1 E5 E10
    options = swarm(seed, seconds=SECONDS, members=members, coordinators=coordinators)
    assert options.topics
    simulation = Simulation(options)
    outcome = simulation.run()
    assert outcome.verdict is Verdict.OK, outcome
    assert simulation.groups.committed_count > 0
