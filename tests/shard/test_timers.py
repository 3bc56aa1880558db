"""The timers of an active shard. Kafka: `CoordinatorTimerImplTest`, `CoordinatorRuntimeTest.testTimer*`."""

from collections.abc import Iterable
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from rayka.errors import ApiError, NotController, NotEnoughReplicas
from rayka.shard.runtime import TIMER_RETRY_MS, ShardRuntime
from rayka.shard.shard import NotHere, Result, Timer, Timers
from tests.shard.test_runtime import Log


class Clocks:
    """A request is a number to write and the timers to set; writing 0 is writing nothing."""

    def __init__(self) -> None:
        self.replayed: list[int] = []

    def handle(self, request: Any, *, now_ms: int, next_offset: int) -> Result[int, None]:
        number, *timers = request
        return Result([number] if number else [], None, timers)

    def replay(self, record: int, offset: int) -> None:
        self.replayed.append(record)

    def on_active(self, *, now_ms: int, next_offset: int) -> Iterable[Timer]:
        return [Timer("first", now_ms + 10, (99,))]

    def not_here(self, why: NotHere) -> ApiError:
        return NotController(why.reason)


class Running:
    """An active shard; `at` is what happens at a time."""

    def __init__(self) -> None:
        self.log = Log()
        self.runtime: ShardRuntime[Clocks, int] = ShardRuntime(Clocks, self.log)
        self.runtime.activate(0)

    def handle(self, now_ms: int, number: int, *timers: Timer) -> None:
        self.runtime.handle((number, *timers), now_ms=now_ms, deadline_ms=1 << 40)

    def at(self, now_ms: int) -> list[int]:
        """The records of the timers that are due."""
        before = len(self.log.records)
        self.runtime.fire(now_ms)
        while self.runtime.is_busy:
            self.runtime.advance(now_ms)
        return self.log.records[before:]


def test_a_timer_that_is_due_writes_records() -> None:
    running = Running()
    running.handle(0, 0, Timer("a", 5, (1,)))
    assert (running.at(4), running.runtime.next_timer_ms) == ([], 5)
    assert running.at(5) == [1]
    assert running.runtime.shard.replayed == [1]
    assert running.at(6) == []


def test_a_shard_that_becomes_active_names_its_first_timers() -> None:
    running = Running()
    assert running.runtime.next_timer_ms == 10
    assert running.at(10) == [99]
    assert running.runtime.next_timer_ms is None


def test_a_timer_that_is_set_anew_is_put_off_and_one_without_a_request_is_cancelled() -> None:
    running = Running()
    running.handle(0, 0, Timer("a", 5, (1,)), Timer("b", 5, (2,)))
    running.handle(1, 0, Timer("a", 8, (3,)), Timer("b", 0, None))
    assert (running.at(7), running.at(8)) == ([], [3])


def test_the_request_of_a_timer_waits_for_those_before_it_and_runs_in_a_turn_of_its_own() -> None:
    running = Running()
    running.handle(0, 0, Timer("a", 5, (1,)), Timer("b", 5, (2,)))
    running.runtime.fire(5)
    assert (running.runtime.is_busy, running.log.records) == (True, [])
    running.handle(5, 7)
    running.runtime.advance(5)
    assert running.log.records == [1]
    assert running.at(5) == [2, 7]


def test_a_request_that_was_refused_sets_no_timer() -> None:
    running = Running()
    running.log.refusal = NotEnoughReplicas("one in sync")
    running.handle(0, 1, Timer("a", 5, (1,)))
    running.log.refusal = None
    assert running.at(5) == []


def test_a_timer_whose_records_were_refused_is_tried_again() -> None:
    running = Running()
    running.handle(0, 0, Timer("a", 5, (1,)))
    running.log.refusal = NotEnoughReplicas("one in sync")
    assert running.at(5) == []
    running.log.refusal = None
    assert running.runtime.next_timer_ms == 10
    assert running.at(5 + TIMER_RETRY_MS) == [99, 1]


def test_a_timer_that_was_set_anew_before_its_request_was_refused_is_not_put_forward() -> None:
    running = Running()
    put_off = Timer("a", 9_000, (2,))
    running.handle(0, 0, Timer("first", 0, None), Timer("b", 4, (0, put_off)), Timer("a", 5, (1,)))
    running.log.refusal = NotEnoughReplicas("one in sync")
    assert running.at(5) == []
    assert running.runtime.next_timer_ms == 9_000


def test_the_timers_of_a_shard_that_leads_no_more_are_gone() -> None:  # A66
    running = Running()
    running.handle(0, 0, Timer("a", 5, (1,)))
    running.runtime.deactivate(NotController("another leads"))
    assert running.runtime.next_timer_ms is None
    running.runtime.activate(20)
    assert running.at(30) == [99]


def test_a_timer_that_is_put_off_again_and_again_costs_one_entry() -> None:
    timers = Timers()
    for now_ms in range(10_000):
        timers.set(Timer("session", now_ms + 100, "expire"))
    assert len(timers._heap) == 1
    assert timers.next_ms == 10_099
    assert len(timers._heap) == 1


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 20), st.booleans()), max_size=40))
def test_timers_fire_in_the_order_of_their_times(changes: list[tuple[int, int, bool]]) -> None:
    timers, expected = Timers(), dict[int, Timer]()
    for key, due_ms, is_set in changes:
        timer = Timer(key, due_ms, due_ms if is_set else None)
        timers.set(timer)
        expected.pop(key, None)
        if is_set:
            expected[key] = timer
    fired = []
    for now_ms in range(21):
        assert timers.next_ms == min((each.due_ms for each in expected.values()), default=None)
        while (timer_due := timers.take_due(now_ms)) is not None:
            assert timer_due.due_ms == now_ms
            assert expected.pop(timer_due.key) == timer_due
            fired.append(timer_due)
    assert not expected
    assert timers.next_ms is None
