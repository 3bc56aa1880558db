"""The toy state machine on a quorum's log under faults: what it acknowledged is there, and its replicas are equal."""

import pytest

from rayka.sim.run_options import swarm
from rayka.sim.simulation import Verdict
from tests.sim.planting import PLAIN, SHORT
from tests.sim.registers_on_quorum import VOTERS, QuorumRun, with_snapshots

SEEDS = range(1, 13)


@pytest.mark.parametrize("seed", SEEDS)
def test_registers_on_a_quorum_outlive_faults(seed: int) -> None:  # A41, A45, A46, A66, A67
    run = QuorumRun(with_snapshots(swarm(seed, seconds=SHORT, **PLAIN | VOTERS)))
    outcome = run.run()
    assert outcome.verdict is Verdict.OK, outcome
    assert outcome.committed_end > 20


def test_a_run_on_a_quorum_repeats() -> None:
    options = with_snapshots(swarm(9, seconds=SHORT, **PLAIN | VOTERS))
    first, second = QuorumRun(options).run(), QuorumRun(options).run()
    assert first == second
    assert first.fault_count > 5
