"""How many brokers the load asks for. Needs no Ray."""

from collections.abc import Callable, Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rayka.actors.scaling_decision import IN_SHARE, Advice, Decider
from rayka.config.cluster_config import CountRange, Scaling
from rayka.ids import Role
from rayka.protocol.load import LoadReport

TARGET = 1_000
OUT_S, IN_S, LOOK_MS = 4, 12, 1_000
RANGE = CountRange(min=3, max=9)
BYTES = Scaling(
    disk_share=None,
    processor_share=None,
    partitions=None,
    bytes_in=TARGET,
    out_window_s=OUT_S,
    in_window_s=IN_S,
)


class World:
    """Brokers that come and go as they are asked to, under some load of all of them together."""

    def __init__(self, count: int, targets: Scaling = BYTES, *, factor_max: int = 1) -> None:
        self.decider = Decider(RANGE, targets)
        self.count = count
        self.factor_max = factor_max
        self.now_ms = 0
        self.counts = [count]
        self.reason = ""

    def run(self, seconds: int, total: Callable[[int], float]) -> None:
        """`total`: the load by the second."""
        for _ in range(seconds):
            self.now_ms += LOOK_MS
            each = LoadReport(1, bytes_in=int(total(self.now_ms // LOOK_MS)) // self.count)
            self.advised([each] * self.count)

    def advised(self, loads: Sequence[LoadReport]) -> None:
        advice = self.decider.advise(loads, self.count, self.factor_max, self.now_ms)
        assert abs(advice.count - self.count) <= 1, "one at a time"
        assert max(RANGE.min, self.factor_max) <= advice.count <= RANGE.max or self.count > RANGE.max
        self.reason = advice.reason
        if advice.count != self.count:
            self.count = advice.count
            self.counts.append(self.count)


@given(
    load=st.integers(0, 12 * TARGET),
    count=st.integers(RANGE.min, RANGE.max),
    factor_max=st.integers(1, RANGE.max),
)
def test_a_load_that_stays_leads_to_rest_where_it_fits(load: int, count: int, factor_max: int) -> None:
    world = World(max(count, factor_max), factor_max=factor_max)
    world.run(12 * IN_S, lambda _: load)
    at_rest = world.count
    world.run(4 * IN_S, lambda _: load)
    assert world.count == at_rest
    assert at_rest == RANGE.max or load // at_rest <= TARGET
    assert at_rest == max(RANGE.min, factor_max) or load // (at_rest - 1) >= IN_SHARE * TARGET - 1
    steps = [later - earlier for earlier, later in zip(world.counts, world.counts[1:], strict=False)]
    assert len(set(steps)) <= 1, "never there and back"


@given(
    middle=st.integers(2 * TARGET, 8 * TARGET),
    swing=st.floats(0, 0.15),
    period_s=st.integers(2, 3 * IN_S),
)
def test_a_load_that_swings_around_a_target_comes_to_rest(middle: int, swing: float, period_s: int) -> None:
    def load(second: int) -> float:
        is_high = second % period_s < period_s / 2
        return middle * (1 + swing if is_high else 1 - swing)

    world = World(4)
    world.run(20 * IN_S, load)
    at_rest = len(world.counts)
    world.run(10 * IN_S, load)
    assert len(world.counts) == at_rest


@given(loads=st.lists(st.integers(0, 20 * TARGET), min_size=1, max_size=300))
def test_there_are_never_more_or_fewer_than_allowed_whatever_the_load_does(loads: list[int]) -> None:
    world = World(RANGE.min, BYTES.model_copy(update={"out_window_s": 0, "in_window_s": 0}), factor_max=4)
    world.count = 4
    for number, load in enumerate(loads):
        world.run(1, lambda _, load=load: load)  # type: ignore[misc]
        assert 4 <= world.count <= RANGE.max, number


def test_a_peak_that_is_shorter_than_the_window_changes_nothing() -> None:
    world = World(3)
    world.run(20, lambda _: 2 * TARGET)
    world.run(OUT_S - 1, lambda _: 20 * TARGET)
    assert world.reason == "bytes_in 6,666 a broker, target 1,000, but not for 4 s yet"
    world.run(200, lambda _: 3 * TARGET)
    assert world.counts == [3]
    world.run(OUT_S + 1, lambda _: 4 * TARGET)
    assert world.counts == [3, 4]


def test_a_low_that_is_shorter_than_the_window_changes_nothing() -> None:
    world = World(4)
    for _ in range(5):
        world.run(IN_S - 1, lambda _: 0)
        world.run(2, lambda _: 4 * TARGET)
    assert world.counts == [4]
    world.run(IN_S + 1, lambda _: 0)
    assert world.counts == [4, 3]
    world.run(5 * IN_S, lambda _: 0)
    assert world.count == RANGE.min
    assert world.reason.endswith("3 brokers, and fewer are not allowed")


def test_a_window_closes_however_many_looks_are_in_it() -> None:
    decider = Decider(RANGE, BYTES.model_copy(update={"in_window_s": 3_600.0}))
    counts = {
        now_ms: decider.advise([LoadReport(1)] * 4, 4, 1, now_ms).count for now_ms in range(0, 3_600_500, 500)
    }
    assert [now_ms for now_ms, count in counts.items() if count != 4] == [3_600_000]


@pytest.mark.parametrize("which", ["out", "in"])
def test_the_reason_names_the_direction_that_scaling_never_takes(which: str) -> None:
    world = World(4, BYTES.model_copy(update={"never": (which,)}))
    world.run(2 * IN_S, lambda _: 20 * TARGET if which == "out" else 0)
    assert world.counts == [4]
    assert world.reason.endswith(f"scaling.never has {which}")


def test_no_broker_comes_below_min_where_scaling_never_goes_out() -> None:
    decider = Decider(RANGE, BYTES.model_copy(update={"never": ("out",)}))
    found = decider.advise([LoadReport(1)] * 2, 2, 1, 0)
    assert found == Advice(2, "there are never fewer than 3; scaling.never has out")


@pytest.mark.parametrize(
    ("targets", "load", "said"),
    [
        (
            {"disk_share": 0.5},
            LoadReport(1, size_bytes=6, free_bytes=4),
            "disk_share 60% a broker, target 50%",
        ),
        (
            {"processor_share": 0.2},
            LoadReport(1, processor_permille=300),
            "processor_share 30% a broker, target 20%",
        ),
        ({"partitions": 100}, LoadReport(1, partition_count=150), "partitions 150 a broker, target 100"),
        ({"bytes_out": 10}, LoadReport(1, bytes_out=11), "bytes_out 11 a broker, target 10"),
    ],
    ids=str,
)
def test_every_target_counts_and_is_named(targets: dict[str, float], load: LoadReport, said: str) -> None:
    none: dict[str, None] = dict.fromkeys(("disk_share", "processor_share", "partitions"))
    decider = Decider(RANGE, Scaling.model_validate({**none, **targets, "out_window_s": 0}))
    assert decider.advise([load] * 3, 3, 1, 0) == Advice(4, said)


def test_a_target_may_be_as_small_as_it_is_allowed_to_be() -> None:
    """What it asks for is beyond any number of brokers."""
    decider = Decider(RANGE, Scaling(processor_share=5e-324, out_window_s=0))
    advice = decider.advise([LoadReport(1, processor_permille=300)] * RANGE.min, RANGE.min, 1, 0)
    assert advice.count == RANGE.min + 1


def test_coordinators_have_a_target_of_their_own_and_no_other() -> None:
    targets = Scaling(coordinator_processor_share=0.5, bytes_in=1, out_window_s=0)
    decider = Decider(RANGE, targets, Role.COORDINATOR)
    busy = LoadReport(
        1, processor_permille=600, bytes_in=10, partition_count=10_000, size_bytes=9, free_bytes=1
    )
    assert decider.advise([busy] * 3, 3, 1, 0) == Advice(4, "processor_share 60% a coordinator, target 50%")
    calm = LoadReport(
        1, processor_permille=450, bytes_in=10, partition_count=10_000, size_bytes=9, free_bytes=1
    )
    assert decider.advise([calm] * 3, 3, 1, 1).count == 3
    none = Decider(RANGE, Scaling(coordinator_processor_share=None), Role.COORDINATOR)
    assert none.advise([busy] * 3, 3, 1, 0) == Advice(3, "no target is set")


def test_another_range_is_reached_at_once() -> None:
    decider = Decider(RANGE, BYTES)
    assert decider.advise([], 10, 1, 0) == Advice(9, "there are never more than 9")
    assert decider.advise([], 3, 5, 0) == Advice(4, "there are never fewer than 5")
    assert decider.advise([], 3, 1, 0).count == 3, "no load is known"
