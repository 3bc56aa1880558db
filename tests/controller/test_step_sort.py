"""What is sorted step by step is sorted, and no step does much."""

import itertools

from hypothesis import given
from hypothesis import strategies as st

from rayka.controller.planning.shapes import RUN, sorted_in_steps


def in_steps(entries: list[tuple[int, int]]) -> tuple[list[tuple[int, int]], int]:
    """What comes of it, and in how many steps."""
    sorting = sorted_in_steps(entries)
    for count in itertools.count(1):
        try:
            next(sorting)
        except StopIteration as end:
            return end.value, count
    raise AssertionError("it does not end")


@given(st.lists(st.integers(0, 50), max_size=20), st.sampled_from((1, RUN // 10, RUN)))
def test_it_is_sorted(drawn: list[int], times: int) -> None:
    entries = [(each, number) for number, each in enumerate(drawn * times)]
    assert in_steps(entries)[0] == sorted(entries)


def test_a_short_list_takes_one_step_and_a_long_one_many() -> None:
    entries = [(-number, number) for number in range(10 * RUN)]
    assert in_steps(entries[:RUN])[1] == 1
    assert in_steps(entries)[1] == 1 + 10 + 10 * RUN // 8
