"""Each planted bug is caught, by the checker that names it, with the seed that is known to show it."""

from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import replace

import pytest

from rayka.sim.run_options import NO_LANES
from rayka.sim.simulation import LIVENESS_SECONDS, Verdict
from tests.sim.planted_bugs import PLANTED_BUGS
from tests.sim.planted_compaction_bugs import COMPACTION_BUGS
from tests.sim.planted_elastic_bugs import ELASTIC_BUGS
from tests.sim.planted_group_bugs import GROUP_BUGS
from tests.sim.planted_lane_bugs import LANE_BUGS
from tests.sim.planted_replication_bugs import REPLICATION_BUGS
from tests.sim.planted_retention_bugs import RETENTION_BUGS
from tests.sim.planted_shard_bugs import SHARD_BUGS
from tests.sim.planting import PlantedBug, search

ALL_BUGS = [
    *PLANTED_BUGS,
    *REPLICATION_BUGS,
    *SHARD_BUGS,
    *LANE_BUGS,
    *GROUP_BUGS,
    *COMPACTION_BUGS,
    *RETENTION_BUGS,
    *ELASTIC_BUGS,
]

pytestmark = pytest.mark.apart


@pytest.mark.parametrize("bug", ALL_BUGS, ids=[bug.name for bug in ALL_BUGS])
def test_a_planted_bug_is_caught(bug: PlantedBug, record_property: Callable[[str, object], None]) -> None:
    """A change of the nodes lets the draws of a run fall differently: then the seed is looked for among the first."""
    outcome = bug.run(bug.seed)
    if outcome.violation is None or outcome.violation.checker != bug.checker:
        found, others = search(bug, last_seed=24)
        assert found, f"seed {bug.seed}: {outcome}; no other of the first seeds shows it: {others}"
        record_property("says", f"seed {bug.seed} shows it no more, seed {found} does")
        outcome = bug.run(found)
    assert outcome.verdict in (Verdict.SAFETY, Verdict.LIVENESS), outcome
    if bug.checker == "group-unsettled":  # each rebalance makes a log grow, which is no reason to wait on
        assert outcome.simulated_ms <= (bug.seconds + 5 * LIVENESS_SECONDS) * 1000, outcome


@pytest.mark.parametrize(
    "bug",
    [
        *(
            PLANTED_BUGS[0],
            PLANTED_BUGS[-1],
            REPLICATION_BUGS[0],
            SHARD_BUGS[0],
            SHARD_BUGS[-1],
            LANE_BUGS[0],
            GROUP_BUGS[0],
        ),
        *(COMPACTION_BUGS[0], COMPACTION_BUGS[-1], RETENTION_BUGS[0], ELASTIC_BUGS[0]),
    ],
    ids=lambda bug: bug.name,
)
def test_without_the_bug_the_same_run_is_well(bug: PlantedBug) -> None:
    outcome = bug.run_without(bug.seed)
    assert outcome.verdict is Verdict.OK, outcome


@pytest.mark.parametrize("seed", sorted({bug.seed for bug in LANE_BUGS}))
def test_without_lanes_the_bugs_of_lanes_do_not_show(seed: int) -> None:
    """So it is the lanes of these runs that show them. All are planted at once: none of them may end the run."""
    plain = replace(LANE_BUGS[0], chosen=LANE_BUGS[0].chosen | {"lanes": NO_LANES})
    assert all(bug.chosen == LANE_BUGS[0].chosen for bug in LANE_BUGS)
    with ExitStack() as planted:
        for bug in LANE_BUGS:
            planted.enter_context(bug.plant())
        outcome = plain.run_without(seed)
    assert outcome.verdict is Verdict.OK, outcome


def test_there_are_enough_of_them_and_each_has_a_name_of_its_own() -> None:
    assert len({bug.name for bug in ALL_BUGS}) == len(ALL_BUGS)
    assert len(PLANTED_BUGS) >= 15
    assert len(REPLICATION_BUGS) >= 15
    assert len(GROUP_BUGS) >= 15
    assert len(COMPACTION_BUGS) + len(RETENTION_BUGS) >= 8
    assert len(ELASTIC_BUGS) >= 8
