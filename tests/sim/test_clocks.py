"""Wall clocks of nodes an hour apart from each other and from the clients', from the begin on, under faults.

Time in the log is of clients and leaders, so retention, look-ups by time and the expiry of offsets use foreign clocks;
no timeout may. `python -m tests.sim.test_clocks FIRST LAST` tries more seeds.
"""

import sys

import pytest

from rayka.sim.run_options import TopicPlan, swarm
from rayka.sim.simulation import Outcome, Simulation, Verdict

HOUR_MS = 3_600_000
SECONDS = 15.0


def run(seed: int) -> Outcome:
    """Every third node is an hour slow, every third an hour fast."""
    kinds = {"compacts": seed % 3 == 1, "expires": seed % 3 == 2}
    topics = (TopicPlan("data0", 2, 3, {}),)
    options = swarm(
        seed, seconds=SECONDS, members=3, coordinators=seed % 2, topics=topics, brokers=3, **kinds
    )
    simulation = Simulation(options)
    for number, machine in enumerate(simulation.cluster.machines.values()):
        machine.wall_offset_ms = (number % 3 - 1) * HOUR_MS
    return simulation.run()


@pytest.mark.sim
@pytest.mark.parametrize("seed", [1, 2, 3, 4])
def test_clocks_that_are_an_hour_apart_lose_nothing_and_hold_up_nobody(seed: int) -> None:
    outcome = run(seed)
    assert outcome.verdict is Verdict.OK, outcome
    assert sum(outcome.sends.values()) > 0


if __name__ == "__main__":
    for each in range(int(sys.argv[1]), int(sys.argv[2])):
        print(run(each), flush=True)
