"""The histories of `scenarios/` come out as they are written there (B16-B27; KIP-101, KIP-279; issue 5's faults)."""

import pytest

from rayka.partition.partition import Partition
from tests.sim.partition_scenarios import names, play, read
from tests.sim.planted_replication_bugs import counts_fetches_of_older_epochs
from tests.sim.planting import replaced


@pytest.mark.parametrize("name", names())
def test_a_history_comes_out_as_it_is_written(name: str) -> None:
    """`python -m tests.sim.partition_scenarios --rewrite` after a change that is meant."""
    assert play(read(name)) == read(name)


def test_the_histories_of_kip_101_and_279_are_among_them() -> None:
    assert {"kip_101_fast_fail_over", "kip_101_both_crash", "kip_279_unknown_epoch"} <= set(names())


def test_a_follower_that_is_counted_with_a_stale_epoch_is_found() -> None:  # B24
    """Were the fetch counted, its sender would be in sync without a record that is committed."""
    problem = r"fetch-epoch .* a fetch of epoch 0 was accepted in epoch 2"
    with (
        replaced(Partition, "_check_epoch", counts_fetches_of_older_epochs),
        pytest.raises(AssertionError, match=problem),
    ):
        play(read("late_fetch"))
