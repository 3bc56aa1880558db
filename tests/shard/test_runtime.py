"""The runtime of replicated state machines, with a counter as the machine."""

from collections.abc import Sequence
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from rayka.errors import ApiError, InvalidRequest, KafkaStorageError, RequestTimedOut
from rayka.shard.runtime import Pending, ShardRuntime
from rayka.shard.shard import Result


class Log:
    """A log whose high watermark the test moves."""

    def __init__(self) -> None:
        self.records: list[int] = []
        self.high_watermark = 0

    @property
    def next_offset(self) -> int:
        return len(self.records)

    def append(self, records: Sequence[int]) -> int:
        self.records += records
        return len(self.records) - len(records)


class Counter:
    """Adds what it is told; refuses negative numbers; answers with the total. 0 only asks."""

    def __init__(self) -> None:
        self.total = 0
        self.replayed: list[tuple[int, int]] = []

    def handle(self, request: Any, *, now_ms: int, next_offset: int) -> Result[int, int]:
        assert next_offset == len(self.replayed)
        if request < 0:
            raise InvalidRequest("negative")
        return Result([request] if request else [], self.total + request)

    def replay(self, record: int, offset: int) -> None:
        self.total += record
        self.replayed.append((offset, record))


class Running:
    """A runtime with its log and its machine, at time 0."""

    def __init__(self) -> None:
        self.log = Log()
        self.counter = Counter()
        self.runtime: ShardRuntime[int] = ShardRuntime(self.counter, self.log)

    def handle(self, request: int, deadline_ms: int = 100) -> Pending:
        return self.runtime.handle(request, now_ms=0, deadline_ms=deadline_ms)

    def commit(self, high_watermark: int) -> list[Pending]:
        self.log.high_watermark = high_watermark
        return self.runtime.on_high_watermark()


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
    assert running.log.records == [5, 6]
    assert running.commit(2) == [patient]


def test_when_the_node_gives_up_everyone_who_waits_is_told() -> None:
    running = Running()
    waiting = [running.handle(5), running.handle(0)]
    assert running.runtime.fail(KafkaStorageError("disk")) == waiting
    assert [type(each.error) for each in waiting] == [KafkaStorageError, KafkaStorageError]
    assert running.commit(1) == []


def test_committed_records_are_replayed_before_leading() -> None:
    running = Running()
    running.log.records = [1, 2]
    running.runtime.replay_committed([(0, 1), (1, 2)])
    assert running.handle(0).response == 3


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
