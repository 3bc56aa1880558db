"""What ends the wait of a fetch, here and at a follower, and what a fetch that failed leaves as it was (G8, B5).

Kafka: `DelayedFetchTest`, and of `ReplicaManagerTest` what it asserts of fetches that wait.
"""

import asyncio

import pytest

from rayka.errors import ErrorCode
from rayka.ids import NO_EPOCH, OffsetAndEpoch
from rayka.metadata.metadata_records import PartitionChangeRecord
from rayka.node.fetch_handler import FetchHandler
from rayka.node.inbox import completed
from rayka.protocol.fetch import FINAL_SESSION_EPOCH, FetchRequest
from tests.metadata.support import ORDERS
from tests.node.fetch_support import (
    FOLLOWER,
    FOLLOWERS,
    WAIT_MS,
    Session,
    append,
    at,
    commit,
    follow,
    follower_request,
    led,
    parked,
    passed_ms,
    request,
    values,
)
from tests.node.replica_support import (
    BROKER,
    LEADER,
    LEADER_EPOCH,
    OTHER,
    Asked,
    Broker,
    answered,
    batch,
    changed,
    given,
    run,
    settle,
)
from tests.partition.support import followers


def moved(broker: Broker) -> PartitionChangeRecord:
    """Brokers 2 and 3 are the replicas from now on."""
    there = broker.moved_away()
    return changed(replicas=there.replicas, directories=there.directories, isr=there.isr, leader_id=LEADER)


async def copied() -> tuple[Broker, FetchHandler, Asked[FetchRequest]]:
    """Broker 1 follows, and has two records of which one is committed; the next fetch of its leader waits."""
    broker = await Broker.start()
    await broker.apply(broker.new_partition())
    asked = await broker.begin_session(given(0, batch(b"a"), batch(b"b", offset=1), high_watermark=1))
    return broker, FetchHandler(broker.replicas), asked


# ---- At a leader -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("epoch", "error"),
    [(NO_EPOCH, ErrorCode.NOT_LEADER_OR_FOLLOWER), (LEADER_EPOCH, ErrorCode.FENCED_LEADER_EPOCH)],
)
def test_a_consumer_that_waits_is_told_that_another_broker_leads(epoch: int, error: ErrorCode) -> None:  # G8
    async def main() -> None:
        broker, handler = await led()
        waiting = await parked(handler, request(at(0, current_leader_epoch=epoch), max_wait_ms=WAIT_MS))
        await broker.apply(changed(leader_id=FOLLOWER))
        (result,) = (await waiting).partitions
        assert (result.error_code, passed_ms()) == (error, 0)
        assert (result.leader_id, result.leader_epoch) == (FOLLOWER, LEADER_EPOCH + 1)
        await broker.stop()

    run(main)


def test_a_consumer_that_names_no_epoch_waits_on_when_the_same_broker_leads_again() -> None:  # G8, B24
    async def main() -> None:
        broker, handler = await led()
        waiting = await parked(handler, request(at(0, current_leader_epoch=NO_EPOCH), max_wait_ms=WAIT_MS))
        await broker.apply(changed(leader_id=BROKER))
        await settle()
        assert not waiting.done()
        append(broker, b"a")
        for each in FOLLOWERS:
            await follow(handler, at(1, current_leader_epoch=1), replica_id=each)
        assert values((await waiting).partitions[0]) == [b"a"]
        await broker.stop()

    run(main)


@pytest.mark.parametrize(
    "asked", [request(at(0), max_wait_ms=WAIT_MS), follower_request(at(0), max_wait_ms=WAIT_MS)]
)
def test_a_waiting_fetch_ends_when_the_replica_was_moved_away(asked: FetchRequest) -> None:  # G8
    async def main() -> None:
        broker, handler = await led()
        waiting = await parked(handler, asked)
        await broker.apply(moved(broker))
        result = (await waiting).partitions[0]
        assert (result.error_code, passed_ms()) == (ErrorCode.NOT_LEADER_OR_FOLLOWER, 0)
        await broker.stop()

    run(main)


def test_a_fetch_that_finds_exactly_as_much_as_it_wants_does_not_wait() -> None:  # G7
    async def main() -> None:
        broker, handler = await led()
        append(broker, b"a")
        size_bytes = (await follow(handler, at(0))).size_bytes
        began_ms = passed_ms()
        asked = follower_request(at(0), min_bytes=size_bytes, max_wait_ms=WAIT_MS)
        response = await completed(handler.handle(asked))
        assert (values(response.partitions[0]), passed_ms()) == ([b"a"], began_ms)
        await broker.stop()

    run(main)


def test_records_that_are_not_committed_are_no_reason_to_answer_a_consumer() -> None:  # G8, G1
    async def main() -> None:
        broker, handler = await led()
        append(broker, b"a")
        await commit(handler, 1)
        append(broker, b"b" * 1000)
        waiting = await parked(handler, request(at(0), min_bytes=500, max_wait_ms=WAIT_MS))
        append(broker, b"c" * 1000)
        assert (values((await waiting).partitions[0]), passed_ms()) == ([b"a"], WAIT_MS)
        await broker.stop()

    run(main)


def test_a_session_that_has_nothing_left_is_answered_at_once_and_can_be_asked_for_more() -> None:  # G7, G14
    async def main() -> None:
        broker, handler = await led()
        session = Session(handler)
        await session.fetch(at(0))
        session.wanted.forget(ORDERS, 0)
        assert (await session.fetch(max_wait_ms=WAIT_MS)).partitions == ()
        append(broker, b"a")
        (result,) = (await session.fetch(at(0), max_wait_ms=WAIT_MS)).partitions
        assert (values(result), passed_ms()) == ([b"a"], 0)
        await broker.stop()

    run(main)


def test_a_fetch_without_session_that_is_broken_off_watches_nothing_any_more() -> None:  # G9
    async def main() -> None:
        broker, handler = await led()
        waiting = await parked(
            handler, request(at(0), session_epoch=FINAL_SESSION_EPOCH, max_wait_ms=WAIT_MS)
        )
        assert repr(broker.replicas.parked) == "<Parked keys=1>"
        waiting.cancel()
        await asyncio.wait([waiting])
        assert repr(broker.replicas.parked) == "<Parked keys=0>"
        await broker.stop()

    run(main)


# ---- At a follower ---------------------------------------------------------------------------------------------------


def test_a_consumer_that_waits_at_a_follower_gets_what_the_leader_has_committed() -> None:  # G8, G15
    async def main() -> None:
        broker, handler, asked = await copied()
        waiting = await parked(handler, request(at(1), rack_id="left", max_wait_ms=WAIT_MS))
        asked.answer(answered(given(0, high_watermark=2)))
        assert (values((await waiting).partitions[0]), passed_ms()) == ([b"b"], 0)
        await broker.stop()

    run(main)


def test_a_consumer_that_waits_at_a_follower_is_told_that_its_log_was_cut() -> None:  # G8, G3
    async def main() -> None:
        broker, handler, asked = await copied()
        waiting = await parked(
            handler, request(at(2, current_leader_epoch=NO_EPOCH), rack_id="left", max_wait_ms=WAIT_MS)
        )
        asked.answer(answered(given(0, diverging_epoch=OffsetAndEpoch(1, 0))))
        result = (await waiting).partitions[0]
        assert (result.error_code, passed_ms()) == (ErrorCode.OFFSET_OUT_OF_RANGE, 0)
        await broker.stop()

    run(main)


# ---- What failed says nothing ----------------------------------------------------------------------------------------


def test_a_followers_fetch_that_is_out_of_range_leaves_what_is_known_of_it() -> None:  # B5, G3
    async def main() -> None:
        broker, handler = await led()
        append(broker, b"a", b"b")
        await follow(handler, at(1))
        (known,) = [each for each in followers(broker.partition()) if each.replica_id == FOLLOWER]
        before = (known.log_end_offset, known.last_fetch_ms, known.last_caught_up_ms)
        await asyncio.sleep(1)
        assert (await follow(handler, at(3))).error_code is ErrorCode.OFFSET_OUT_OF_RANGE
        assert (known.log_end_offset, known.last_fetch_ms, known.last_caught_up_ms) == before
        await broker.stop()

    run(main)


def test_what_is_wrong_with_one_partition_of_a_fetch_changes_nothing_for_the_others() -> None:  # B5, G13
    async def main() -> None:
        broker, handler = await led(3)
        await broker.apply(changed(1, leader_id=OTHER))
        for number in (0, 2):
            append(broker, b"a", number=number)
        asked = follower_request(*(at(0, number) for number in (0, 1, 2)), max_wait_ms=WAIT_MS)
        results = (await completed(handler.handle(asked))).partitions
        assert [(each.partition, each.error_code, values(each)) for each in results] == [
            (0, ErrorCode.NONE, [b"a"]), (1, ErrorCode.FENCED_LEADER_EPOCH, []), (2, ErrorCode.NONE, [b"a"]),
        ]  # fmt: skip
        await broker.stop()

    run(main)
