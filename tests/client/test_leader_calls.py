"""Which leaders a client asks, how long it waits, and which errors it reports; in virtual time (G12, G18)."""

import asyncio
from typing import Any

import pytest

from rayka.client.admin.admin_partitions import AsyncPartitionAdmin
from rayka.client.leader_calls import LIST_OFFSETS, LeaderCalls
from rayka.errors import (
    ErrorCode,
    InvalidRequest,
    NotLeaderOrFollower,
    OffsetOutOfRange,
    RaykaError,
    RequestTimedOut,
    RetriableApiError,
    TopicRecreated,
    UnavailableError,
    UnknownTopicOrPartition,
)
from rayka.ids import NO_NODE, TopicPartition
from rayka.protocol.fetch import EARLIEST_TIMESTAMP
from rayka.protocol.membership import MetadataRequest
from rayka.protocol.topics import DeleteRecordsRequest, DeleteRecordsResponse, DeleteRecordsResult
from tests.client.offset_support import AT_A, AT_B, NEW_ID, OLD_ID, A, B, Brokers, now_ms, play

BOTH = {AT_A: EARLIEST_TIMESTAMP, AT_B: EARLIEST_TIMESTAMP}
TIMEOUT_MS = 60_000


class LookedUp:
    """The results of a look-up, and when they came, in milliseconds since it began."""

    def __init__(self) -> None:
        self.began_ms = now_ms()
        self.found_ms: dict[TopicPartition, int] = {}
        self.refused: dict[TopicPartition, RaykaError] = {}

    def on_found(self, found: Any) -> None:
        self.found_ms.update(dict.fromkeys(found, now_ms() - self.began_ms))

    def on_refused(self, topic_partition: TopicPartition, error: RaykaError) -> None:
        self.refused[topic_partition] = error


def look_up(brokers: Brokers, after_ms: int, wanted: dict[TopicPartition, int] = BOTH) -> LookedUp:
    """The results, after so long, of a look-up that goes on after errors."""

    async def scene(leaders: LeaderCalls) -> LookedUp:
        told = LookedUp()
        asking = asyncio.get_running_loop().create_task(
            leaders.call(LIST_OFFSETS, wanted, TIMEOUT_MS, on_found=told.on_found, on_refused=told.on_refused)
        )
        await asyncio.sleep(after_ms / 1000)
        asking.cancel()
        return told

    told: LookedUp = play(brokers, scene)
    return told


def test_all_leaders_are_asked_at_once() -> None:  # G12
    brokers = Brokers()
    found = play(brokers, lambda leaders: leaders.call(LIST_OFFSETS, BOTH, TIMEOUT_MS))
    assert {tp: each.offset for tp, each in found.items()} == {AT_A: 10, AT_B: 11}
    assert [node_id for node_id, _ in brokers.asked] == [A, B]


def test_a_silent_leader_holds_up_its_own_partitions_only() -> None:
    brokers = Brokers()
    brokers.silent = [A]
    assert look_up(brokers, after_ms=50).found_ms == {AT_B: 0}


def test_what_another_leader_refuses_is_asked_again_while_one_is_silent() -> None:  # G18
    brokers = Brokers()
    brokers.silent, brokers.refusals[B] = [A], [ErrorCode.OFFSET_NOT_AVAILABLE] * 2
    assert list(look_up(brokers, after_ms=2_000).found_ms) == [AT_B]


@pytest.mark.parametrize("is_mute", [False, True])
def test_a_silent_leader_is_left_for_the_next_as_soon_as_there_is_one(is_mute: bool) -> None:
    brokers = Brokers()
    brokers.silent, brokers.is_mute = [A], is_mute

    async def scene(leaders: LeaderCalls) -> int:
        asyncio.get_running_loop().call_later(0.5, lambda: brokers.leaders.__setitem__(0, B))
        began_ms = now_ms()
        await leaders.call(LIST_OFFSETS, BOTH, TIMEOUT_MS)
        return now_ms() - began_ms

    assert 500 <= play(brokers, scene) <= 800  # a look every 100 ms, and the pause after a failure


def test_a_call_to_a_silent_leader_is_not_given_up_while_it_still_leads_some_of_its_partitions() -> None:
    brokers = Brokers()
    brokers.leaders, brokers.silent = [A, A], [A]

    async def scene(leaders: LeaderCalls) -> None:
        loop = asyncio.get_running_loop()
        asking = loop.create_task(leaders.call(LIST_OFFSETS, BOTH, TIMEOUT_MS))
        await asyncio.sleep(0.5)
        brokers.leaders[0] = B
        await asyncio.sleep(3)
        assert len(brokers.asked) == 1
        brokers.leaders[1] = B
        await asking

    play(brokers, scene)
    assert [node_id for node_id, _ in brokers.asked] == [A, B]


def test_a_partition_without_a_leader_holds_up_no_other() -> None:
    brokers = Brokers()
    brokers.leaders[0] = NO_NODE
    assert look_up(brokers, after_ms=50).found_ms == {AT_B: 0}


def test_a_partition_that_does_not_exist_is_refused_and_holds_up_no_other() -> None:
    missing = TopicPartition("orders", 2)
    told = look_up(Brokers(), 50, {missing: EARLIEST_TIMESTAMP, **BOTH})
    assert told.found_ms == {AT_A: 0, AT_B: 0}
    assert isinstance(told.refused[missing], UnknownTopicOrPartition)


def test_the_first_error_that_no_retry_mends_is_raised_while_another_leader_is_silent() -> None:
    brokers = Brokers()
    brokers.silent = [A]
    with pytest.raises(UnknownTopicOrPartition, match="found 2"):
        play(
            brokers,
            lambda leaders: leaders.call(LIST_OFFSETS, {**BOTH, TopicPartition("orders", 2): -1}, TIMEOUT_MS),
        )


@pytest.mark.parametrize("is_mute", [False, True])
def test_without_an_answer_the_time_is_the_end(is_mute: bool) -> None:
    brokers = Brokers()
    brokers.silent, brokers.is_mute = [A, B], is_mute

    async def scene(leaders: LeaderCalls) -> int:
        began_ms = now_ms()
        with pytest.raises(UnavailableError, match="'scripted'"):
            await leaders.call(LIST_OFFSETS, BOTH, TIMEOUT_MS)
        return now_ms() - began_ms

    assert TIMEOUT_MS - 2_000 <= play(brokers, scene) <= TIMEOUT_MS


def test_offsets_of_a_topic_that_was_created_again_are_not_those_that_were_asked_for() -> None:
    brokers = Brokers()
    brokers.topic_id = NEW_ID
    with pytest.raises(TopicRecreated, match=f"expected id {OLD_ID}, found {NEW_ID}"):
        play(
            brokers,
            lambda leaders: leaders.call(LIST_OFFSETS, BOTH, TIMEOUT_MS, topic_ids={"orders": OLD_ID}),
        )


def test_offsets_of_two_topics_of_one_name_are_never_mixed() -> None:
    brokers = Brokers()
    brokers.refusals[B] = [ErrorCode.UNKNOWN_TOPIC_ID]

    def create_again() -> None:
        brokers.topic_id = NEW_ID

    brokers.on_asked = create_again
    with pytest.raises(TopicRecreated):
        play(brokers, lambda leaders: leaders.call(LIST_OFFSETS, BOTH, TIMEOUT_MS))


def test_a_topic_that_was_created_again_before_anything_was_found_is_the_one_that_is_asked_for() -> None:
    brokers = Brokers()
    brokers.refusals = {A: [ErrorCode.UNKNOWN_TOPIC_ID], B: [ErrorCode.UNKNOWN_TOPIC_ID]}

    def create_again() -> None:
        brokers.topic_id = NEW_ID

    brokers.on_asked = create_again
    found = play(brokers, lambda leaders: leaders.call(LIST_OFFSETS, BOTH, TIMEOUT_MS))
    assert [each.topic_id for each in found.values()] == [NEW_ID, NEW_ID]


def test_what_a_whole_request_is_refused_with_is_told_once_and_not_asked_again() -> None:
    brokers = Brokers()
    refusals: list[TopicPartition] = []

    def refuse() -> None:
        raise InvalidRequest("a bug")

    brokers.on_asked = refuse
    play(
        brokers,
        lambda leaders: leaders.call(
            LIST_OFFSETS, BOTH, TIMEOUT_MS, on_refused=lambda tp, error: refusals.append(tp)
        ),
    )
    assert (sorted(refusals), sorted(node_id for node_id, _ in brokers.asked)) == ([AT_A, AT_B], [A, B])


def test_a_topic_that_no_broker_tells_of_yet_holds_up_no_other() -> None:  # G18
    class Slow(Brokers):
        """What is asked about the other topic is answered after ten seconds."""

        async def call(self, node_id: int, request: Any, timeout_ms: int) -> Any:
            if isinstance(request, MetadataRequest) and "payments" in (request.topics or ()):
                await asyncio.sleep(10)
            return await super().call(node_id, request, timeout_ms)

    brokers, wanted = Slow(), {TopicPartition("payments", 0): EARLIEST_TIMESTAMP, **BOTH}

    async def scene(leaders: LeaderCalls) -> dict[TopicPartition, int]:
        await leaders.metadata.topic("orders", TIMEOUT_MS)
        told = LookedUp()
        asking = asyncio.get_running_loop().create_task(
            leaders.call(LIST_OFFSETS, wanted, TIMEOUT_MS, on_found=told.on_found, on_refused=told.on_refused)
        )
        await asyncio.sleep(1)
        asking.cancel()
        return told.found_ms

    assert play(brokers, scene) == {AT_A: 0, AT_B: 0}


# ---- What another API makes of it ----------------------------------------------------------------------------------


class Deleting(Brokers):
    """Deletes records where a leader is asked to, if it says anything; `code` is what it answers."""

    code = ErrorCode.NONE

    async def call(self, node_id: int, request: Any, timeout_ms: int) -> Any:
        if not isinstance(request, DeleteRecordsRequest):
            return await super().call(node_id, request, timeout_ms)
        self.asked.append((node_id, now_ms()))
        if node_id in self.silent:
            await asyncio.sleep(timeout_ms / 1000)
            raise RequestTimedOut(f"node {node_id} did not answer within {timeout_ms} ms")
        results = [
            DeleteRecordsResult(each.topic_id, each.partition, self.code, "as told", each.before_offset)
            for each in request.partitions
        ]
        return DeleteRecordsResponse(tuple(results))


def delete(brokers: Brokers) -> dict[TopicPartition, int]:
    async def scene(leaders: LeaderCalls) -> dict[TopicPartition, int]:
        admin = AsyncPartitionAdmin(leaders.metadata, TIMEOUT_MS)
        if brokers.silent:
            asyncio.get_running_loop().call_later(0.5, lambda: brokers.leaders.__setitem__(0, B))
        return await admin.delete_records({AT_A: 5, AT_B: 6})

    deleted: dict[TopicPartition, int] = play(brokers, scene)
    return deleted


def test_records_are_deleted_by_the_next_leader_when_the_one_asked_is_silent() -> None:  # G11, G18
    brokers = Deleting()
    brokers.silent = [A]
    assert delete(brokers) == {AT_A: 5, AT_B: 6}
    assert brokers.asked[-1][0] == B
    assert 500 <= brokers.asked[-1][1] - brokers.asked[0][1] <= 800


@pytest.mark.parametrize(
    ("code", "expected"),
    [
        (ErrorCode.OFFSET_OUT_OF_RANGE, OffsetOutOfRange),
        (ErrorCode.NOT_LEADER_OR_FOLLOWER, NotLeaderOrFollower),
    ],
)
def test_what_a_leader_refuses_names_the_partition_the_cluster_and_the_node(
    code: ErrorCode, expected: type[Exception]
) -> None:
    brokers = Deleting()
    brokers.code = code
    with pytest.raises(expected, match=r"orders-[01] of cluster 'scripted': broker-[12]: as told"):
        delete(brokers)
    assert (len(brokers.asked) > 2) is issubclass(expected, RetriableApiError)
