"""The runtime of replicated state machines, with a counter as the machine."""

from collections.abc import Callable, Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rayka.errors import (
    ApiError,
    InvalidRequest,
    InvariantBroken,
    KafkaStorageError,
    NotController,
    RequestTimedOut,
    TooManyRequests,
)
from rayka.shard.runtime import STEPS_PER_TURN, Pending, ShardRuntime
from rayka.shard.shard import RECORDS_PER_BATCH_MAX, Answer, Deferred, NotHere, Result, Steps, Timer


class Log:
    """A log whose high watermark the test moves."""

    def __init__(self) -> None:
        self.records: list[int] = []
        self.appends: list[int] = []
        self.refusal: ApiError | None = None
        self.high_watermark = 0

    @property
    def next_offset(self) -> int:
        return len(self.records)

    def append(self, records: Sequence[int]) -> int:
        if self.refusal is not None:
            raise self.refusal
        self.records += records
        self.appends.append(len(records))
        return len(self.records) - len(records)


class Counter:
    """Adds what it is told; refuses negative numbers; answers with the total. 0 only asks. Of several numbers each is
    a record: those of a list belong together; those of a tuple are steps, whose count is the last record, and the
    answer is the total before.
    """

    def __init__(self) -> None:
        self.total = 0
        self.replayed: list[tuple[int, int]] = []
        self.offsets: list[int] = []
        self.asked_ms = -1

    def handle(self, request: Any, *, now_ms: int, next_offset: int) -> Result[int, int] | Steps[int, int]:
        assert next_offset == len(self.replayed)
        self.asked_ms = now_ms
        if isinstance(request, Deferred):
            return Result((), request)  # type: ignore[arg-type]
        if isinstance(request, Answer):
            return Result([1], self.total + 1, answers=[request])
        if not isinstance(request, int):
            if isinstance(request, tuple):
                return self._steps(request)
            return Result(list(request), self.total + sum(request))
        if request < 0:
            raise InvalidRequest("negative")
        return Result([request] if request else [], self.total + request)

    def _steps(self, request: tuple[Any, ...]) -> Steps[int, int]:
        before = self.total
        for step in request:
            if step == "refuse":
                raise InvalidRequest("step")
            self.offsets.append((yield step))
        return Result([len(request)], before)

    def replay(self, record: int, offset: int) -> None:
        self.total += record
        self.replayed.append((offset, record))

    def on_active(self, *, now_ms: int, next_offset: int) -> list[Timer]:
        return []

    def not_here(self, why: NotHere) -> ApiError:
        return NotController(why.reason)


class Running:
    """A runtime with its log and its machine, at time 0."""

    def __init__(self, *, is_active: bool = True, steps_per_turn: int = STEPS_PER_TURN) -> None:
        self.log = Log()
        self.runtime: ShardRuntime[Counter, int] = ShardRuntime(
            Counter, self.log, steps_per_turn=steps_per_turn
        )
        if is_active:
            self.runtime.activate(0)

    @property
    def counter(self) -> Counter:
        return self.runtime.shard

    def handle(self, request: Any, deadline_ms: int = 100, now_ms: int = 0) -> Pending:
        return self.runtime.handle(request, now_ms=now_ms, deadline_ms=deadline_ms)

    def commit(self, high_watermark: int) -> list[Pending]:
        self.log.high_watermark = high_watermark
        return self.runtime.on_high_watermark()


def test_what_runs_and_what_waits_says_so() -> None:
    running = Running(is_active=False)
    assert repr(running.runtime) == "<ShardRuntime standby replayed=0 pending=0>"
    running.runtime.activate(0)
    answered, refused = running.handle(5), running.handle(-1)
    assert repr(running.runtime) == "<ShardRuntime active replayed=1 pending=2>"
    assert repr(answered) == "<Pending waits for 1 5>"
    running.commit(1)
    assert (repr(answered), repr(refused)) == ("<Pending done 5>", f"<Pending done {refused.error!r}>")
    running.runtime.deactivate(NotController("another leads"))
    assert repr(running.runtime) == "<ShardRuntime standby replayed=0 pending=0>"


def test_a_request_is_told_the_time() -> None:
    running = Running()
    running.handle(5, now_ms=77)
    assert running.counter.asked_ms == 77


def test_a_response_waits_until_its_records_are_committed() -> None:  # A65
    running = Running()
    pending = running.handle(5)
    assert not pending.is_done
    assert running.commit(1) == [pending]
    assert (pending.is_done, pending.response, pending.error) == (True, 5, None)


def test_the_next_request_sees_records_that_are_not_committed_yet() -> None:  # A65
    running = Running()
    running.handle(5)
    assert running.handle(2).response == 7
    assert running.counter.replayed == [(0, 5), (1, 2)]
    assert running.runtime.replayed_offset == 2


def test_a_response_without_records_waits_for_what_was_replayed_before_it() -> None:  # A65
    running = Running()
    first, second = running.handle(5), running.handle(0)
    assert (second.response, second.is_done) == (5, False)
    assert running.commit(1) == [first, second]


def test_an_error_waits_too() -> None:
    running = Running()
    running.handle(5)
    refused = running.handle(-1)
    assert (type(refused.error), refused.is_done) == (InvalidRequest, False)
    assert refused in running.commit(1)


def test_what_needs_nothing_is_done_at_once() -> None:
    running = Running()
    assert running.handle(0).is_done
    assert running.handle(-1).is_done


def test_after_the_deadline_the_response_is_an_error_and_the_records_stay() -> None:
    running = Running()
    late, patient = running.handle(5, deadline_ms=10), running.handle(6, deadline_ms=20)
    assert running.runtime.expire(9) == []
    assert running.runtime.expire(10) == [late]
    assert isinstance(late.error, RequestTimedOut)
    assert str(late.error).startswith("not committed in time; it may be later")
    assert running.log.records == [5, 6]
    assert running.commit(2) == [patient]


def test_a_timeout_says_what_is_wrong() -> None:
    running = Running()
    late = running.handle(5, deadline_ms=10)
    running.runtime.expire(10, "two of three voters are silent")
    assert str(late.error).startswith(
        "not committed in time: two of three voters are silent; it may be later"
    )


def test_when_the_node_gives_up_every_waiting_request_fails() -> None:
    running = Running()
    waiting = [running.handle(5), running.handle(0)]
    assert running.runtime.fail(KafkaStorageError("disk")) == waiting
    assert [type(each.error) for each in waiting] == [KafkaStorageError, KafkaStorageError]
    assert running.commit(1) == []


def test_committed_records_are_replayed_before_leading() -> None:  # A41
    running = Running(is_active=False)
    running.log.records = [1, 2]
    running.log.high_watermark = 2
    running.runtime.replay_committed([(0, 1), (1, 2)], 2)
    running.runtime.activate(0)
    assert running.handle(0).response == 3
    assert running.counter.replayed == [(0, 1), (1, 2)]


def test_a_replica_that_has_not_replayed_everything_cannot_lead() -> None:  # A41
    running = Running(is_active=False)
    running.log.records = [1, 2]
    running.log.high_watermark = 2
    running.runtime.replay_committed([(0, 1)], 1)
    with pytest.raises(AssertionError, match="has not seen everything"):
        running.runtime.activate(0)


def test_a_deposed_leader_fails_all_that_wait_and_begins_from_committed_state() -> None:  # A66
    running = Running()
    running.handle(5)
    running.commit(1)
    waiting = [running.handle(7), running.handle(0)]
    assert running.runtime.deactivate(NotController("another leads")) == waiting
    assert [type(each.error) for each in waiting] == [NotController, NotController]
    assert (running.counter.total, running.runtime.replayed_offset) == (0, 0)
    running.log.records = [5, 1]  # what the next leader wrote there
    running.runtime.replay_committed([(0, 5), (1, 1)], 2)
    assert (running.counter.total, running.runtime.replayed_offset) == (6, 2)
    running.log.high_watermark = 2
    assert running.runtime.on_high_watermark() == []


def test_a_snapshot_replaces_what_a_standby_knows() -> None:  # A66
    running = Running(is_active=False)
    running.runtime.replay_committed([(0, 1)], 1)
    running.runtime.begin_snapshot()
    running.runtime.replay_committed([(8, 30)], 0)
    running.runtime.replay_committed([(8, 12)], 9)
    assert (running.counter.total, running.runtime.replayed_offset) == (42, 9)


def test_ten_thousand_records_are_committed_together_and_not_more() -> None:  # A68
    running = Running()
    assert len(running.log.records) == 0
    assert running.handle([1] * RECORDS_PER_BATCH_MAX).error is None
    refused = running.handle([1] * (RECORDS_PER_BATCH_MAX + 1))
    while running.runtime.is_busy:
        running.runtime.advance(0)
    assert isinstance(refused.error, InvalidRequest)
    assert str(refused.error) == (
        "the request would write 10,001 records, expected at most 10,000, which are committed together; make several"
        " requests of it"
    )
    assert running.log.appends == [RECORDS_PER_BATCH_MAX]


def test_what_the_log_refuses_is_the_answer() -> None:  # A25
    running = Running()
    running.log.refusal = TooManyRequests("full")
    refused = running.handle(5)
    assert (refused.error, running.counter.total) == (running.log.refusal, 0)


@given(st.lists(st.one_of(st.integers(-1, 5), st.just("commit"), st.just("expire")), max_size=60), st.data())
def test_responses_are_released_in_order_and_never_before_what_they_depend_on(
    steps: list[int | str], data: st.DataObject
) -> None:
    running = Running()
    asked: list[Pending] = []
    released: list[Pending] = []
    for now_ms, step in enumerate(steps):
        if step == "commit":
            high_watermark = data.draw(st.integers(running.log.high_watermark, running.log.next_offset))
            released += running.commit(high_watermark)
        elif step == "expire":
            running.runtime.expire(now_ms)
        else:
            pending = running.handle(int(step), deadline_ms=now_ms + 20)
            asked.append(pending)
            released += [pending] * pending.is_done
    assert [each for each in asked if each in released] == released
    assert all(each.required_offset <= running.log.high_watermark for each in released)
    waiting = [each for each in asked if not each.is_done]
    assert all(each.required_offset > running.log.high_watermark for each in waiting[:1])
    assert running.counter.replayed == list(enumerate(running.log.records))
    assert all(isinstance(each.error, ApiError | None) for each in asked)


# ---- Requests that take several turns --------------------------------------------------------------------------------


def test_a_long_request_writes_a_part_of_its_records_a_turn() -> None:  # A68
    running = Running(steps_per_turn=3)
    pending = running.handle((1, 1, None, 1, 1, 1, 1, 1))
    turns = [(list(running.log.appends), pending.has_run)]
    while running.runtime.is_busy:
        running.runtime.advance(0)
        turns.append((list(running.log.appends), pending.has_run))
    assert turns == [([2], False), ([2, 3], False), ([2, 3, 2, 1], True)]
    assert running.commit(7) == []
    assert running.commit(8) == [pending]
    assert (pending.response, running.counter.total) == (0, 7 + 8)


def test_a_step_is_told_the_offset_of_the_next_record() -> None:  # H3
    running = Running(steps_per_turn=2)
    running.handle((1, 1))
    running.log.records.append(0)  # the log has records of its own
    running.counter.replayed.append((2, 0))
    while running.runtime.is_busy:
        running.runtime.advance(0)
    assert running.counter.offsets == [1, 3]
    assert running.counter.replayed == [(0, 1), (1, 1), (2, 0), (3, 2)]


def test_the_records_of_one_step_are_committed_together() -> None:  # A68
    running = Running(steps_per_turn=2)
    running.handle(([1] * 5, 1, 1))
    running.runtime.advance(0)
    assert running.log.appends == [6, 1, 1]


def test_records_that_are_committed_together_are_replayed_part_by_part() -> None:
    running = Running(steps_per_turn=3)
    pending, second = running.handle([1] * 7), running.handle(0)
    replayed = [running.runtime.replayed_offset]
    while not pending.has_run:
        running.runtime.advance(0)
        replayed.append(running.runtime.replayed_offset)
    assert (running.log.appends, replayed, second.has_run) == ([7], [3, 6, 7], False)
    running.runtime.advance(0)
    assert (second.has_run, second.response) == (True, 7)


def test_between_two_turns_of_a_request_no_other_runs() -> None:
    running = Running(steps_per_turn=1)
    long, later, latest = running.handle((1, 1, 1)), running.handle(5), running.handle(0)
    ran = []
    while running.runtime.is_busy:
        ran.append(running.runtime.advance(0))
    assert [each for each in ran if each is not None] == [long, later, latest]
    assert running.log.records == [1, 1, 1, 3, 5]
    assert (later.response, latest.response) == (11, 11)
    assert running.commit(5) == [long, later, latest]


def test_a_step_that_is_refused_ends_the_request_and_what_was_written_stays() -> None:
    running = Running(steps_per_turn=1)
    pending, later = running.handle((1, "refuse", 1)), running.handle(0)
    while running.runtime.is_busy:
        running.runtime.advance(0)
    assert isinstance(pending.error, InvalidRequest)
    assert (running.log.records, later.response) == ([1], 1)


def test_after_its_deadline_a_long_request_goes_on_and_one_that_waits_for_it_never_begins() -> None:
    running = Running(steps_per_turn=1)
    long, later = running.handle((1, 1), deadline_ms=10), running.handle(5, deadline_ms=10)
    assert running.runtime.expire(10) == [long, later]
    while running.runtime.is_busy:
        running.runtime.advance(0)
    assert (running.log.records, running.commit(3)) == ([1, 1, 2], [])
    assert isinstance(long.error, RequestTimedOut)


def test_a_shard_that_leads_no_more_does_not_go_on_with_a_long_request() -> None:  # A66
    running = Running(steps_per_turn=1)
    long, later = running.handle((1, 1)), running.handle(5)
    assert running.runtime.deactivate(NotController("another leads")) == [long, later]
    assert not running.runtime.is_busy
    assert [type(long.error), type(later.error), running.log.records] == [NotController, NotController, [1]]


# ---- What must not be ------------------------------------------------------------------------------------------------


def test_what_a_step_writes_as_a_list_is_written_with_what_the_steps_before_it_wrote() -> None:  # A68
    running = Running(steps_per_turn=5)
    pending = running.handle(([1, 2], [3], 4))
    while running.runtime.is_busy:
        running.runtime.advance(0)
    assert running.log.records == [1, 2, 3, 4, 3]
    assert running.counter.replayed == list(enumerate(running.log.records))
    assert running.commit(5) == [pending]


def test_what_waits_to_run_is_told_the_time_at_which_it_begins() -> None:
    running = Running(steps_per_turn=1)
    running.handle((1, 2, 3), now_ms=5)
    waiting = running.handle(7, now_ms=6)
    assert repr(waiting).startswith("<Pending runs or waits to run")
    now_ms = 10
    while running.runtime.is_busy:
        now_ms += 1
        running.runtime.advance(now_ms)
    assert running.counter.asked_ms == now_ms > 12


def test_a_request_waits_for_the_one_that_answers_it_and_then_for_what_that_one_wrote() -> None:
    running = Running()
    first, second = running.handle(Deferred("first")), running.handle(Deferred("second"))
    refusal = InvalidRequest("no")
    answering = running.handle(Answer("first", "yes"))
    refusing = running.handle(Answer("second", error=refusal))
    assert not first.is_done
    assert running.commit(1) == [answering, first]
    assert (first.response, first.error) == ("yes", None)
    assert running.commit(2) == [refusing, second]
    assert second.error is refusal


def test_an_answer_waits_for_its_records_though_the_request_that_gives_it_waits_itself() -> None:  # A65
    class Joining(Counter):
        def handle(
            self, request: Any, *, now_ms: int, next_offset: int
        ) -> Result[int, int] | Steps[int, int]:
            if request == "join":
                return Result([1], Deferred("second"), answers=[Answer("first", "yes")])  # type: ignore[arg-type]
            return super().handle(request, now_ms=now_ms, next_offset=next_offset)

    running = Running()
    running.runtime = ShardRuntime(Joining, running.log)
    running.runtime.activate(0)
    first, second = running.handle(Deferred("first")), running.handle("join")
    assert (first.is_done, running.runtime.can_release) == (False, False)
    assert running.commit(1) == [first]
    assert not second.is_done


def test_a_request_whose_deadline_came_while_it_ran_does_not_wait_for_another_one() -> None:
    class Parking(Counter):
        def _steps(self, request: tuple[Any, ...]) -> Steps[int, int]:
            yield from super()._steps(request)
            return Result([], Deferred("late"))  # type: ignore[arg-type]

    running = Running()
    running.runtime = ShardRuntime(Parking, running.log, steps_per_turn=1)
    running.runtime.activate(0)
    late = running.handle((1, 1), deadline_ms=10)
    assert running.runtime.expire(10) == [late]
    while running.runtime.is_busy:
        running.runtime.advance(10)
    answering = running.handle(Answer("late", "yes"))
    assert running.commit(running.log.next_offset) == [answering]
    assert isinstance(late.error, RequestTimedOut)


def test_a_request_that_waits_for_another_one_has_its_time_to_be_committed_from_then_on() -> None:
    running = Running()
    parked = running.handle(Deferred("first"), deadline_ms=100, now_ms=10)
    assert running.runtime.expire(5_000) == []
    answering = running.handle(Answer("first", "yes"), deadline_ms=6_500, now_ms=6_000)
    assert running.runtime.expire(6_089) == []
    assert running.runtime.expire(6_090) == [parked]
    assert isinstance(parked.error, RequestTimedOut)
    assert running.commit(1) == [answering]


def test_requests_that_wait_for_others_end_when_the_shard_leads_no_more() -> None:  # A66
    running = Running()
    parked = running.handle(Deferred("first"))
    refusal = NotController("another leads")
    assert running.runtime.deactivate(refusal) == [parked]
    assert (parked.is_done, parked.error) == (True, refusal)
    running.log.high_watermark = running.log.next_offset
    running.runtime.activate(0)
    running.handle(Answer("first", "late"))
    assert parked.error is refusal


def test_an_answer_of_a_request_that_was_refused_is_not_given() -> None:
    running = Running()
    parked = running.handle(Deferred("first"))
    running.log.refusal = KafkaStorageError("full")
    assert running.handle(Answer("first", "yes")).error is running.log.refusal
    assert not parked.is_done


def test_two_requests_cannot_wait_under_one_key() -> None:
    running = Running()
    running.handle(Deferred("first"))
    with pytest.raises(InvariantBroken, match="a request waits as 'first' already"):
        running.handle(Deferred("first"))


def test_a_runtime_that_is_used_against_its_rules_says_what_it_is() -> None:
    standby, leading = Running(is_active=False), Running()
    standby.runtime.replay_committed([(0, 1)], 1)
    misuses: list[tuple[Callable[[], object], str]] = [
        (lambda: standby.handle(5), "<ShardRuntime standby .*does not lead"),
        (lambda: standby.runtime.advance(0), "<ShardRuntime standby .*does not lead"),
        (lambda: standby.runtime.replay_committed([], 0), "cannot go back to 0"),
        (lambda: leading.runtime.replay_committed([], 1), "<ShardRuntime active .*replayed what it appended"),
        (leading.runtime.begin_snapshot, "<ShardRuntime active .*newer state than any snapshot"),
    ]
    for misuse, says in misuses:
        with pytest.raises(InvariantBroken, match=says):
            misuse()


def test_a_log_that_appends_elsewhere_than_it_said_is_found_out() -> None:
    class Astray(Log):
        def append(self, records: Sequence[int]) -> int:
            return super().append(records) + 1

    runtime: ShardRuntime[Counter, int] = ShardRuntime(Counter, Astray())
    runtime.activate(0)
    with pytest.raises(InvariantBroken, match=r"<ShardRuntime active .*: expected offset 0, got 1"):
        runtime.handle(5, now_ms=0, deadline_ms=1)
