"""The histories of `scenarios/` come out as they are written there (B16-B27; KIP-101, KIP-279; issue 5's faults)."""

from collections.abc import Callable

import pytest

from rayka.partition.partition import Partition
from tests.sim.partition_scenarios import names, play, read
from tests.sim.planting import replaced


@pytest.mark.parametrize("name", names())
def test_a_history_comes_out_as_it_is_written(name: str) -> None:
    """`python -m tests.sim.partition_scenarios --rewrite` after a change that is meant."""
    assert play(read(name)) == read(name)


def test_the_histories_of_kip_101_and_279_are_among_them() -> None:
    assert {"kip_101_fast_fail_over", "kip_101_both_crash", "kip_279_unknown_epoch"} <= set(names())


def counts_fetches_of_older_epochs(original: Callable[..., None]) -> Callable[..., None]:
    return lambda self, leader_epoch: original(self, max(leader_epoch, self.leader_epoch))


def test_a_follower_that_is_counted_with_a_stale_epoch_is_found() -> None:  # B24
    """No seed shows it: connections keep calls in order, so that hardly any fetch arrives so late."""
    with replaced(Partition, "_check_epoch", counts_fetches_of_older_epochs):
        outcome = play(read("late_fetch"))
    assert "VIOLATION isr-member" in outcome
    assert "VIOLATION" not in read("late_fetch")
