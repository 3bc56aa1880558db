"""The command line of the simulator: what it refuses."""

import pytest
from click.testing import CliRunner

from rayka.sim.command import replay_command, sim
from rayka.sim.run_options import swarm


@pytest.mark.parametrize(
    "given",
    [("--faults", "-3"), ("--faults", "nan"), ("--seconds", "nan"), ("--seconds", "-5"), ("--ops", "-1")],
)
def test_amounts_that_no_run_can_have_are_refused(given: tuple[str, str]) -> None:
    outcome = CliRunner().invoke(sim, ["--seed", "1", *given])
    assert outcome.exit_code == 2
    assert given[0] in outcome.output


def test_all_that_is_chosen_goes_together() -> None:
    """Also where the seed alone has no topics, or draws that its topics keep all records."""
    for seed in range(100):
        options = swarm(seed, members=3, comers=2, coordinators=2, compacts=True, expires=True)
        assert (options.members, options.comers, options.coordinators) == (3, 2, 2)
        assert options.topics
        assert all(each.configs["cleanup.policy"] == "compact,delete" for each in options.topics)
        wanted = {"log_cleaner_backoff_ms", "log_retention_check_interval_ms", "offsets_topic_num_partitions"}
        assert wanted <= options.config.keys()


def test_a_replay_has_the_flags_of_its_run() -> None:
    chosen = {"seconds": 20.0, "compacts": True, "only_faults": ()}
    assert replay_command(7, chosen) == "rayka sim --seed 7 --seconds 20 --compacts --only-faults ,"


def test_compaction_and_retention_can_be_asked_for_with_any_seed_that_has_topics() -> None:
    """Also where the seed draws a group, which is left out then."""
    compacted = [each for seed in range(100) if (each := swarm(seed, compacts=True)).topics]
    assert all(topic.is_compacted for each in compacted for topic in each.topics)
    expiring = [each for seed in range(100) if (each := swarm(seed, expires=True)).topics]
    assert all("retention.ms" in topic.configs for each in expiring for topic in each.topics)
    assert len(compacted) == len(expiring) > 50
    assert not any(each.members for each in (*compacted, *expiring))
