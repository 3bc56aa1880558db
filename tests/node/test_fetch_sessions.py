"""Fetch sessions: what is asked, told and forgotten, whose session makes room, and that nothing is lost (G14)."""

from random import Random

import msgspec
import numpy as np
import pytest
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from rayka.errors import ErrorCode, FetchSessionIdNotFound, InvalidFetchSessionEpoch
from rayka.ids import NO_NODE, ZERO_ID, OffsetAndEpoch, TopicIdPartition
from rayka.node.fetch_sessions import EVICTION_MS, FetchContext, FetchSessions
from rayka.node.parked import Parked
from rayka.protocol.fetch import (
    FINAL_SESSION_EPOCH,
    FIRST_SESSION_EPOCH,
    NO_SESSION,
    SESSION_EPOCH_MAX,
    FetchPartition,
    FetchPartitionResult,
    FetchRequest,
    FetchResponse,
    FetchSessionHandler,
    PartitionKey,
    next_session_epoch,
)

FOLLOWER = 2
SLOTS = 4


def fetch(partition: int, offset: int = 0) -> FetchPartition:
    return FetchPartition(ZERO_ID, partition, offset, 100)


def request(
    *fetches: FetchPartition, session_id: int = NO_SESSION, epoch: int = 0, **changes: object
) -> FetchRequest:
    return FetchRequest(0, 1, 100, fetches, session_id=session_id, session_epoch=epoch, **changes)


def result(partition: int, *, size: int = 0, **changes: object) -> FetchPartitionResult:
    made = FetchPartitionResult(ZERO_ID, partition, high_watermark=5, log_start_offset=0, next_offset=0)
    return msgspec.structs.replace(made, records=np.zeros(size, dtype=np.uint8), **changes)


def new_sessions(slots: int = SLOTS) -> FetchSessions:
    return FetchSessions(Parked(), slots, Random(1))


def begin(
    sessions: FetchSessions, *fetches: FetchPartition, now_ms: int = 0, **changes: object
) -> FetchContext:
    return sessions.begin(request(*fetches, **changes), now_ms)


def read(context: FetchContext) -> list[int]:
    return [each.partition for each in context.to_read()]


def answer(context: FetchContext, *results: FetchPartitionResult) -> list[int]:
    """Settles what was read and tells it; the numbers of the partitions that are in the answer."""
    for each in results:
        context.settle(each)
    return [each.partition for each in context.tell(results)]


def quiet_session(count: int) -> tuple[FetchSessions, int]:
    """A session of so many partitions, all of which were told and read to their end; its next epoch is 2."""
    sessions = new_sessions()
    first = begin(sessions, *map(fetch, range(count)))
    answer(first, *map(result, range(count)))
    session_id = first.session.session_id
    second = begin(sessions, session_id=session_id, epoch=1)
    assert answer(second, *map(result, range(count))) == []
    return sessions, session_id


# ---- Epochs and ids ----


def test_a_request_without_session_reads_and_tells_everything() -> None:
    sessions = new_sessions()
    context = begin(sessions, fetch(0), fetch(1), epoch=FINAL_SESSION_EPOCH)
    assert read(context) == [0, 1]
    assert answer(context, result(0), result(1)) == [0, 1]
    assert (context.session.session_id, repr(sessions)) == (NO_SESSION, "<FetchSessions 0 of 4>")


@pytest.mark.parametrize("epoch", [FINAL_SESSION_EPOCH, FIRST_SESSION_EPOCH])
def test_what_has_no_session_is_watched_until_its_request_ends(epoch: int) -> None:
    parked: Parked[PartitionKey] = Parked()
    sessions = FetchSessions(parked, 0, Random(1))
    context = begin(sessions, fetch(0), fetch(1), epoch=epoch)
    assert (context.session.session_id, repr(parked)) == (NO_SESSION, "<Parked keys=2>")
    sessions.end(context)
    assert repr(parked) == "<Parked keys=0>"


def test_what_is_in_a_session_is_watched_after_its_request() -> None:
    parked: Parked[PartitionKey] = Parked()
    sessions = FetchSessions(parked, SLOTS, Random(1))
    sessions.end(begin(sessions, fetch(0), fetch(1)))
    assert repr(parked) == "<Parked keys=2>"


def test_a_full_request_begins_a_session_and_tells_everything() -> None:
    context = begin(new_sessions(), fetch(0), fetch(1))
    assert context.session.session_id != NO_SESSION
    assert answer(context, result(0), result(1)) == [0, 1]


def test_an_unknown_session_is_not_found() -> None:
    with pytest.raises(FetchSessionIdNotFound, match="fetch session 7 is not known"):
        begin(new_sessions(), session_id=7, epoch=1)


def test_a_session_belongs_to_its_follower() -> None:
    sessions = new_sessions()
    session_id = begin(sessions, fetch(0), replica_id=FOLLOWER).session.session_id
    with pytest.raises(FetchSessionIdNotFound):
        begin(sessions, session_id=session_id, epoch=1, replica_id=3)
    begin(sessions, session_id=session_id, replica_id=3)  # nor can another one end it
    begin(sessions, session_id=session_id, epoch=1, replica_id=FOLLOWER)


@pytest.mark.parametrize("epoch", [2, 5])
def test_a_request_that_does_not_follow_the_last_one_is_refused(epoch: int) -> None:
    sessions = new_sessions()
    session_id = begin(sessions, fetch(0)).session.session_id
    with pytest.raises(InvalidFetchSessionEpoch, match=f"expected epoch 1, found {epoch}"):
        begin(sessions, session_id=session_id, epoch=epoch)


def test_a_repeated_request_is_refused() -> None:
    sessions = new_sessions()
    session_id = begin(sessions, fetch(0)).session.session_id
    begin(sessions, session_id=session_id, epoch=1)
    with pytest.raises(InvalidFetchSessionEpoch):
        begin(sessions, session_id=session_id, epoch=1)


def test_after_the_largest_epoch_comes_one() -> None:
    sessions = new_sessions()
    session = begin(sessions, fetch(0)).session
    session.epoch = SESSION_EPOCH_MAX
    begin(sessions, session_id=session.session_id, epoch=SESSION_EPOCH_MAX)
    assert session.epoch == 1
    begin(sessions, session_id=session.session_id, epoch=1)
    assert next_session_epoch(FINAL_SESSION_EPOCH) == FINAL_SESSION_EPOCH


def test_what_was_read_to_its_end_and_told_is_not_looked_at_again() -> None:  # G14
    sessions = new_sessions()
    first = begin(sessions, fetch(0), fetch(1))
    read(first)
    first.settle(result(0))  # the other one has more
    assert [each.partition for each in first.tell([result(0), result(1)])] == [0, 1]
    assert read(begin(sessions, session_id=first.session.session_id, epoch=1)) == [1]


def test_what_was_read_to_its_end_before_the_last_look_is_looked_at_again() -> None:  # G14
    sessions = new_sessions()
    first = begin(sessions, fetch(0))
    read(first)
    first.settle(result(0))
    read(first)
    first.tell([result(0)])
    assert read(begin(sessions, session_id=first.session.session_id, epoch=1)) == [0]


def test_what_was_woken_while_it_was_read_is_looked_at_again() -> None:  # G14
    parked: Parked[PartitionKey] = Parked()
    sessions = FetchSessions(parked, SLOTS, Random(1))
    first = begin(sessions, fetch(0))
    read(first)
    first.settle(result(0))
    parked.wake((ZERO_ID, 0))
    first.tell([result(0)])
    assert read(begin(sessions, session_id=first.session.session_id, epoch=1)) == [0]


def test_what_an_overtaken_request_has_read_is_not_told_by_it() -> None:
    sessions = new_sessions()
    session_id = begin(sessions, fetch(0)).session.session_id
    held_back = begin(sessions, session_id=session_id, epoch=1)
    later = begin(sessions, session_id=session_id, epoch=2)
    with pytest.raises(InvalidFetchSessionEpoch, match="went on without this request"):
        held_back.tell([result(0, size=9)])
    assert answer(later, result(0, size=9)) == [0]


@pytest.mark.parametrize("epoch", [FIRST_SESSION_EPOCH, FINAL_SESSION_EPOCH])
def test_a_full_request_that_names_a_session_ends_it(epoch: int) -> None:
    sessions = new_sessions()
    session_id = begin(sessions, fetch(0)).session.session_id
    begin(sessions, fetch(0), session_id=session_id, epoch=epoch)
    with pytest.raises(FetchSessionIdNotFound):
        begin(sessions, session_id=session_id, epoch=1)


# ---- What is read and told ----


def test_of_a_quiet_session_nothing_is_read_and_nothing_told() -> None:
    sessions, session_id = quiet_session(3)
    context = begin(sessions, session_id=session_id, epoch=2)
    assert read(context) == []
    assert answer(context) == []


def test_quiet_partitions_are_refreshed_a_few_with_each_request() -> None:  # B5
    sessions, session_id = quiet_session(100)
    refreshed: list[list[int]] = []
    for place in range(20):
        now_ms = 50 * (place + 1)
        context = begin(sessions, session_id=session_id, epoch=2 + place, now_ms=now_ms)
        refreshed.append([each.partition for each in context.to_refresh(now_ms, 1_000)])
    assert [len(each) for each in refreshed] == [5] * 20
    assert sorted(number for each in refreshed for number in each) == list(range(100))


def test_all_quiet_partitions_are_refreshed_after_a_long_time_and_none_twice() -> None:  # B5
    sessions, session_id = quiet_session(3)
    context = begin(sessions, session_id=session_id, epoch=2)
    assert context.to_refresh(299, 900) == []
    assert [each.partition for each in context.to_refresh(600, 900)] == [0, 1]
    assert [each.partition for each in context.to_refresh(9_000, 900)] == [2, 0, 1]


def test_neither_what_is_read_anyway_is_refreshed_nor_what_was_forgotten() -> None:  # B5, G14
    sessions, session_id = quiet_session(4)
    begin(sessions, session_id=session_id, epoch=2).to_refresh(250, 1_000)
    forgotten = TopicIdPartition(ZERO_ID, 2)
    context = begin(sessions, fetch(1), session_id=session_id, epoch=3, forgotten=(forgotten,))
    assert [each.partition for each in context.to_refresh(9_000, 1_000)] == [3]


def test_what_was_woken_is_read() -> None:
    sessions, session_id = quiet_session(3)
    sessions._parked.wake((ZERO_ID, 1))
    assert read(begin(sessions, session_id=session_id, epoch=2)) == [1]


def test_what_changed_in_the_request_is_read_from_its_new_place() -> None:
    sessions, session_id = quiet_session(3)
    context = begin(sessions, fetch(2, offset=7), session_id=session_id, epoch=2)
    assert [(each.partition, each.fetch_offset) for each in context.to_read()] == [(2, 7)]


def test_a_forgotten_partition_is_neither_read_nor_watched() -> None:
    sessions, session_id = quiet_session(2)
    forgotten = (TopicIdPartition(ZERO_ID, 0),)
    begin(sessions, session_id=session_id, epoch=2, forgotten=forgotten)
    sessions._parked.wake((ZERO_ID, 0))
    assert read(begin(sessions, session_id=session_id, epoch=3)) == []


@pytest.mark.parametrize(
    "news",
    [
        {"size": 9},
        {"high_watermark": 6},
        {"log_start_offset": 1},
        {"diverging_epoch": OffsetAndEpoch(3, 1)},
        {"error_code": ErrorCode.NOT_LEADER_OR_FOLLOWER},
        {"preferred_read_replica": 3},
    ],
)
def test_what_is_news_is_told(news: dict[str, object]) -> None:
    sessions, session_id = quiet_session(2)
    sessions._parked.wake((ZERO_ID, 1))
    context = begin(sessions, session_id=session_id, epoch=2)
    assert answer(context, result(1, **news)) == [1]


def test_a_watermark_is_told_once() -> None:
    sessions, session_id = quiet_session(2)
    sessions._parked.wake((ZERO_ID, 1))
    assert answer(begin(sessions, session_id=session_id, epoch=2), result(1, high_watermark=6)) == [1]
    assert answer(begin(sessions, session_id=session_id, epoch=3), result(1, high_watermark=6)) == []


@pytest.mark.parametrize(
    "unheeded",
    [{"error_code": ErrorCode.NOT_LEADER_OR_FOLLOWER}, {"diverging_epoch": OffsetAndEpoch(3, 1)}],
)
def test_a_watermark_beside_an_error_or_a_parting_is_told_again(unheeded: dict[str, object]) -> None:  # B3
    sessions, session_id = quiet_session(1)
    sessions._parked.wake((ZERO_ID, 0))
    parting = begin(sessions, session_id=session_id, epoch=2)
    assert answer(parting, result(0, high_watermark=6, log_start_offset=2, **unheeded)) == [0]
    after = begin(sessions, fetch(0, offset=3), session_id=session_id, epoch=3)
    assert answer(after, result(0, high_watermark=6, log_start_offset=2)) == [0]


def test_a_watermark_of_another_leader_epoch_is_told_again() -> None:  # B26
    sessions, session_id = quiet_session(1)
    asked = msgspec.structs.replace(fetch(0), current_leader_epoch=1)
    assert answer(begin(sessions, asked, session_id=session_id, epoch=2), result(0)) == [0]


def test_what_is_news_is_looked_at_until_it_was_told() -> None:
    sessions, session_id = quiet_session(2)
    sessions._parked.wake((ZERO_ID, 1))
    context = begin(sessions, session_id=session_id, epoch=2)
    context.settle(result(1, high_watermark=6))
    assert read(context) == [1]
    context.settle(result(1))
    assert read(context) == []


def test_that_an_error_is_over_is_told() -> None:
    sessions, session_id = quiet_session(2)
    sessions._parked.wake((ZERO_ID, 1))
    error = result(1, error_code=ErrorCode.UNKNOWN_LEADER_EPOCH)
    assert answer(begin(sessions, session_id=session_id, epoch=2), error) == [1]
    assert answer(begin(sessions, session_id=session_id, epoch=3), result(1)) == [1]


def test_a_partition_that_got_data_stands_behind_the_others() -> None:
    sessions, session_id = quiet_session(3)
    for number in range(3):
        sessions._parked.wake((ZERO_ID, number))
    context = begin(sessions, session_id=session_id, epoch=2)
    context.tell([result(0, size=9), result(1)])
    assert read(begin(sessions, session_id=session_id, epoch=3)) == [1, 2, 0]


# ---- Room ----


def test_without_a_slot_there_is_no_session() -> None:
    sessions = new_sessions(slots=0)
    context = begin(sessions, fetch(0))
    assert (context.session.session_id, answer(context, result(0))) == (NO_SESSION, [0])


def full_cache(replica_id: int = NO_NODE, count: int = 2) -> tuple[FetchSessions, list[int]]:
    sessions = new_sessions(slots=2)
    made = [begin(sessions, *map(fetch, range(count)), replica_id=replica_id, now_ms=each) for each in (0, 1)]
    return sessions, [each.session.session_id for each in made]


def lives(sessions: FetchSessions, session_id: int) -> bool:
    return session_id in sessions._sessions


def test_a_session_that_was_idle_for_too_long_makes_room() -> None:
    sessions, (first, second) = full_cache(FOLLOWER)
    begin(sessions, session_id=first, epoch=1, replica_id=FOLLOWER, now_ms=EVICTION_MS)
    new = begin(sessions, fetch(0), now_ms=EVICTION_MS + 2).session.session_id
    assert (lives(sessions, first), lives(sessions, second), lives(sessions, new)) == (True, False, True)


def test_a_follower_displaces_a_consumer() -> None:
    sessions, (first, _) = full_cache(count=9)
    new = begin(sessions, fetch(0), replica_id=FOLLOWER, now_ms=2).session.session_id
    assert (lives(sessions, first), lives(sessions, new)) == (False, True)


def test_a_consumer_displaces_no_young_session() -> None:
    sessions, _ = full_cache()
    assert begin(sessions, *map(fetch, range(9)), now_ms=2).session.session_id == NO_SESSION


@pytest.mark.parametrize(("size", "has_room"), [(1, False), (2, False), (3, True)])
def test_among_old_sessions_the_larger_stays(size: int, has_room: bool) -> None:
    sessions, ids = full_cache()
    for each in ids:
        begin(sessions, session_id=each, epoch=1, now_ms=EVICTION_MS + 1)
    new = begin(sessions, *map(fetch, range(size)), now_ms=EVICTION_MS + 2)
    assert (new.session.session_id != NO_SESSION) is has_room


def test_a_displaced_session_gets_an_error_and_is_not_watched_any_more() -> None:
    sessions, (first, _) = full_cache()
    held_back = begin(sessions, session_id=first, epoch=1)
    begin(sessions, fetch(7), replica_id=FOLLOWER, now_ms=2)
    begin(sessions, fetch(8), replica_id=FOLLOWER, now_ms=2)
    with pytest.raises(InvalidFetchSessionEpoch):
        held_back.tell([])
    assert repr(sessions._parked) == "<Parked keys=2>"


# ---- Client and node in step, whatever the network does ----

PARTITIONS = st.integers(0, 4)


class Lockstep(RuleBasedStateMachine):
    """A caller that copies logs from a node through sessions always ends up with what a fetch without one gives."""

    @initialize(slots=st.integers(0, 2))
    def start(self, slots: int) -> None:
        self.now_ms = 0
        self.parked: Parked[tuple[object, int]] = Parked()
        self.sessions = FetchSessions(self.parked, slots, Random(1))
        self.handler = FetchSessionHandler()
        self.logs = [0] * 5  # a log is its length: what is copied is counted
        self.high_watermarks = [0] * 5
        self.errors = [False] * 5
        self.copied: dict[
            int, tuple[int, int]
        ] = {}  # log end offset and high watermark that the caller knows
        self.sent: list[FetchRequest] = []

    @rule(partition=PARTITIONS, count=st.integers(1, 30))
    def append(self, partition: int, count: int) -> None:
        self.logs[partition] += count
        self.parked.wake((ZERO_ID, partition))

    @rule(partition=PARTITIONS)
    def commit(self, partition: int) -> None:
        self.high_watermarks[partition] = self.logs[partition]
        self.parked.wake((ZERO_ID, partition))

    @rule(partition=PARTITIONS, is_error=st.booleans())
    def break_or_mend(self, partition: int, is_error: bool) -> None:
        self.errors[partition] = is_error
        self.parked.wake((ZERO_ID, partition))

    @rule(partition=PARTITIONS)
    def want(self, partition: int) -> None:
        self.copied.setdefault(partition, (0, 0))
        self.handler.want(fetch(partition, self.copied[partition][0]))

    @rule(partition=PARTITIONS)
    def forget(self, partition: int) -> None:
        self.copied.pop(partition, None)
        self.handler.forget(ZERO_ID, partition)

    @rule(
        passed_ms=st.sampled_from([1, 1, 1, EVICTION_MS + 1]),
        size=st.integers(1, 9),
        replica_id=st.integers(-1, 1),
    )
    def another_caller_comes(self, passed_ms: int, size: int, replica_id: int) -> None:
        self.now_ms += passed_ms
        begin(self.sessions, *map(fetch, range(size)), now_ms=self.now_ms, replica_id=replica_id)

    @rule(which=st.integers(0, 5))
    def an_old_request_comes_again(self, which: int) -> None:
        if which < len(self.sent):
            self.serve(self.sent[-1 - which], 40)

    @rule(arrives=st.booleans())
    def lose(self, arrives: bool) -> None:
        asked = self.ask()
        if arrives:
            self.serve(asked, 40)
        self.handler.on_failure()

    @rule(max_bytes=st.integers(0, 40), waits=st.booleans())
    def exchange(self, max_bytes: int, waits: bool) -> None:
        response = self.serve(self.ask(), max_bytes, waits=waits)
        self.handler.on_response(response)
        for each in response.partitions:
            if each.error_code is ErrorCode.NONE and each.partition in self.copied:
                self.copied[each.partition] = (each.next_offset, each.high_watermark)
                self.handler.want(fetch(each.partition, each.next_offset))

    @rule()
    def catch_up(self) -> None:
        for _ in range(8):
            self.exchange(1_000, False)
        for number, known in self.copied.items():
            if not self.errors[number]:
                assert known == (self.logs[number], self.high_watermarks[number])

    def teardown(self) -> None:
        if hasattr(self, "handler"):
            self.catch_up()

    def ask(self) -> FetchRequest:
        part = self.handler.next()
        asked = request(
            *part.partitions, session_id=part.session_id, epoch=part.session_epoch, forgotten=part.forgotten
        )
        self.sent.append(asked)
        return asked

    def serve(self, asked: FetchRequest, max_bytes: int, *, waits: bool = False) -> FetchResponse:
        """As the node does: a request that waits is read twice, and only the second time is told."""
        try:
            context = self.sessions.begin(asked, self.now_ms)
        except (FetchSessionIdNotFound, InvalidFetchSessionEpoch) as error:
            return FetchResponse((), error.code, str(error))
        if waits:
            self.read_all(context, max_bytes)
        told = context.tell(self.read_all(context, max_bytes))
        self.sessions.end(context)
        return FetchResponse(told, session_id=context.session.session_id)

    def read_all(self, context: FetchContext, max_bytes: int) -> list[FetchPartitionResult]:
        results = []
        for each in context.to_read():
            left = self.logs[each.partition] - each.fetch_offset
            size = 0 if self.errors[each.partition] else min(max_bytes, left)
            max_bytes -= size
            results.append(self.read(each, size))
            if left == 0:
                context.settle(results[-1])
        return results

    def read(self, asked: FetchPartition, size: int) -> FetchPartitionResult:
        number = asked.partition
        if self.errors[number]:
            return FetchPartitionResult(ZERO_ID, number, ErrorCode.NOT_LEADER_OR_FOLLOWER)
        watermark = self.high_watermarks[number]
        return result(number, size=size, high_watermark=watermark, next_offset=asked.fetch_offset + size)

    @invariant()
    def never_more_than_the_slots(self) -> None:
        if hasattr(self, "sessions"):
            assert len(self.sessions._sessions) <= self.sessions._slots


TestLockstep = Lockstep.TestCase
TestLockstep.settings = hypothesis_settings(max_examples=150, stateful_step_count=40, deadline=None)
