"""The command line of the simulator: what it refuses."""

import pytest
from click.testing import CliRunner

from rayka.sim.command import sim


@pytest.mark.parametrize(
    "given",
    [("--faults", "-3"), ("--faults", "nan"), ("--seconds", "nan"), ("--seconds", "-5"), ("--ops", "-1")],
)
def test_amounts_that_no_run_can_have_are_refused(given: tuple[str, str]) -> None:
    outcome = CliRunner().invoke(sim, ["--seed", "1", *given])
    assert outcome.exit_code == 2
    assert given[0] in outcome.output
