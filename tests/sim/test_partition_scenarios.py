"""The histories of `scenarios/` come out as they are written there (B16-B27; KIP-101, KIP-279; issue 5's faults)."""

import pytest

from tests.sim.partition_scenarios import names, play, read


@pytest.mark.parametrize("name", names())
def test_a_history_comes_out_as_it_is_written(name: str) -> None:
    """`python -m tests.sim.partition_scenarios --rewrite` after a change that is meant."""
    assert play(read(name)) == read(name)


def test_the_histories_of_kip_101_and_279_are_among_them() -> None:
    assert {"kip_101_fast_fail_over", "kip_101_both_crash", "kip_279_unknown_epoch"} <= set(names())
