"""What followers get from a leader, and what their fetches tell it."""

import asyncio

import pytest

from rayka.errors import ErrorCode
from rayka.ids import NO_EPOCH, NO_NODE, OffsetAndEpoch
from rayka.metadata.metadata_records import BrokerRegistrationChangeRecord, ConfigRecord, RemoveTopicRecord
from rayka.node.fetch_handler import CATCH_UP_BYTES, FetchHandler, ListOffsetsHandler
from rayka.node.inbox import completed
from rayka.partition.quota import PACE_MS
from rayka.protocol.configs import ResourceType
from rayka.protocol.fetch import (
    LATEST_TIMESTAMP,
    MAX_TIMESTAMP,
    FetchPartition,
    ListOffsetsPartition,
    ListOffsetsRequest,
)
from tests.metadata.support import ORDERS, registered
from tests.node.fetch_support import (
    FOLLOWER,
    FOLLOWER_EPOCH,
    FOLLOWERS,
    WAIT_MS,
    Session,
    append,
    at,
    commit,
    consume,
    follow,
    follower_request,
    led,
    new_led,
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
    Broker,
    batch,
    changed,
    configured,
    now_ms,
    run,
)
from tests.partition.support import followers

LAG_MS = 30_000


async def elect_again(broker: Broker) -> None:
    """Broker 1 leads in the next epoch, 1."""
    await broker.apply(changed(leader_id=BROKER))
    assert broker.partition().leader_epoch == 1


# ---- What is read ----


def test_a_follower_reads_to_the_log_end_and_a_consumer_to_the_high_watermark() -> None:  # G1
    async def main() -> None:
        broker, handler = await led()
        append(broker, b"a")
        assert values(await follow(handler, at(0))) == [b"a"]
        assert values(await consume(handler, at(0))) == []
        await commit(handler, 1)
        assert values(await consume(handler, at(0))) == [b"a"]
        await broker.stop()

    run(main)


def test_a_follower_is_not_bound_by_what_consumers_may_have_at_once() -> None:  # G5
    async def main() -> None:
        broker, handler = await led(fetch_max_bytes=1024)
        for _ in range(3):
            append(broker, b"x" * 1000)
        await commit(handler, 3)
        assert (await follow(handler, at(0))).next_offset == 3
        assert (await consume(handler, at(0))).next_offset == 1
        await broker.stop()

    run(main)


def test_an_answer_names_the_epoch_of_its_last_batch() -> None:  # G2
    async def main() -> None:
        broker, handler = await led()
        append(broker, b"a")
        await elect_again(broker)
        append(broker, b"b")
        result = await follow(handler, at(0, current_leader_epoch=1))
        assert (result.next_offset, result.last_fetched_epoch) == (2, 1)
        assert (await follow(handler, at(2, current_leader_epoch=1))).last_fetched_epoch == NO_EPOCH
        await broker.stop()

    run(main)


def test_the_latest_offset_is_the_log_end_for_a_follower_and_the_high_watermark_for_a_consumer() -> (
    None
):  # G12
    async def main() -> None:
        broker, handler = await led()
        append(broker, b"a", b"b")
        await commit(handler, 1)
        asked = (ListOffsetsPartition(ORDERS, 0, LATEST_TIMESTAMP, LEADER_EPOCH),)
        lookup = ListOffsetsHandler(broker.replicas)
        found = [
            (await lookup.handle(ListOffsetsRequest(asked, replica_id=each))).partitions[0]
            for each in (FOLLOWER, NO_NODE)
        ]
        assert [(each.offset, each.leader_epoch) for each in found] == [(2, LEADER_EPOCH), (1, LEADER_EPOCH)]
        await broker.stop()

    run(main)


def test_a_topic_that_is_deleted_during_a_search_by_time_is_unknown_and_its_directory_stays_online() -> None:
    async def main() -> None:
        broker, handler = await led()
        for _ in range(5):  # a turn for each segment
            append(broker, b"a")
            broker.partition().log.roll(0)
        await commit(handler, 5)
        asked = ListOffsetsPartition(ORDERS, 0, MAX_TIMESTAMP, LEADER_EPOCH)
        lookup = ListOffsetsHandler(broker.replicas)
        searching = asyncio.create_task(lookup.handle(ListOffsetsRequest((asked,))))
        await asyncio.sleep(0)
        assert not searching.done()
        await broker.apply(RemoveTopicRecord(topic_id=ORDERS))
        (found,) = (await searching).partitions
        assert found.error_code is ErrorCode.UNKNOWN_TOPIC_ID
        assert broker.replicas.problems() == []
        await broker.stop()

    run(main)


@pytest.mark.parametrize(
    ("epoch", "error"), [(0, ErrorCode.FENCED_LEADER_EPOCH), (2, ErrorCode.UNKNOWN_LEADER_EPOCH)]
)
def test_a_fetch_of_another_epoch_is_refused_at_once_and_counts_for_nothing(
    epoch: int, error: ErrorCode
) -> None:  # B24, G2, G7
    async def main() -> None:
        broker, handler = await led()
        append(broker, b"a")
        await elect_again(broker)
        for each in FOLLOWERS:
            result = await follow(
                handler, at(1, current_leader_epoch=epoch), replica_id=each, max_wait_ms=WAIT_MS
            )
            assert (result.error_code, passed_ms()) == (error, 0)
        assert broker.partition().high_watermark == 0
        await broker.stop()

    run(main)


def test_a_follower_that_has_diverged_learns_where_at_once_and_counts_for_nothing() -> None:  # B23, G2, G7
    async def main() -> None:
        broker, handler = await led()
        append(broker, b"a")
        await elect_again(broker)
        append(broker, b"b")
        asked = at(2, current_leader_epoch=1, last_fetched_epoch=0)
        for each in FOLLOWERS:
            result = await follow(handler, asked, replica_id=each, max_wait_ms=WAIT_MS)
            assert (result.diverging_epoch, values(result)) == (OffsetAndEpoch(1, 0), [])
        assert (broker.partition().high_watermark, passed_ms()) == (0, 0)
        await broker.stop()

    run(main)


def test_a_broker_that_is_no_replica_gets_nothing() -> None:  # B5
    async def main() -> None:
        broker, handler = await led()
        append(broker, b"a")
        result = await follow(handler, at(0), replica_id=9)
        assert (result.error_code, values(result)) == (ErrorCode.NOT_LEADER_OR_FOLLOWER, [])
        await broker.stop()

    run(main)


def test_a_process_that_has_ended_counts_for_nothing() -> None:  # B5
    async def main() -> None:
        broker, handler = await led()
        append(broker, b"a")
        for each in FOLLOWERS:
            result = await follow(handler, at(1), replica_id=each, replica_epoch=0)
            assert result.error_code is ErrorCode.NOT_LEADER_OR_FOLLOWER
        assert broker.partition().high_watermark == 0
        await broker.stop()

    run(main)


# ---- What a fetch tells the leader, and which requests it wakes ----


def test_a_followers_fetch_wakes_the_consumers_that_wait_for_the_high_watermark() -> None:  # G8, G13
    async def main() -> None:
        broker, handler = await led()
        waiting = await parked(handler, request(at(0), max_wait_ms=WAIT_MS))
        append(broker, b"a")
        await asyncio.sleep(0.1)
        assert not waiting.done()
        await commit(handler, 1)
        assert values((await waiting).partitions[0]) == [b"a"]
        assert passed_ms() == 100
        await broker.stop()

    run(main)


def test_an_append_wakes_a_followers_fetch() -> None:  # G8
    async def main() -> None:
        broker, handler = await led()
        waiting = await parked(handler, follower_request(at(0), max_wait_ms=WAIT_MS))
        append(broker, b"a")
        assert values((await waiting).partitions[0]) == [b"a"]
        assert passed_ms() == 0
        await broker.stop()

    run(main)


def test_a_higher_high_watermark_alone_does_not_end_a_followers_wait() -> None:  # G15
    async def main() -> None:
        broker, handler = await led()
        append(broker, b"a")
        waiting = await parked(handler, follower_request(at(1), max_wait_ms=WAIT_MS))
        await follow(handler, at(1), replica_id=OTHER)
        assert broker.partition().high_watermark == 1
        assert (await waiting).partitions[0].high_watermark == 1
        assert passed_ms() == WAIT_MS
        await broker.stop()

    run(main)


def test_a_follower_counts_when_it_asks_and_not_again_when_it_is_answered() -> None:  # B6
    async def main() -> None:
        broker, handler = await led()
        waiting = await parked(handler, follower_request(at(0), max_wait_ms=WAIT_MS))
        await asyncio.sleep(0.2)
        append(broker, b"a")
        await waiting
        (state,) = [each for each in followers(broker.partition()) if each.replica_id == FOLLOWER]
        assert (state.last_fetch_ms, state.last_caught_up_ms) == (now_ms() - 200, now_ms() - 200)
        await broker.stop()

    run(main)


def test_a_new_leadership_ends_a_followers_wait() -> None:  # G8
    async def main() -> None:
        broker, handler = await led()
        waiting = await parked(handler, follower_request(at(0), max_wait_ms=WAIT_MS))
        await broker.apply(changed(leader_id=FOLLOWER))
        result = (await waiting).partitions[0]
        assert (result.error_code, passed_ms()) == (ErrorCode.FENCED_LEADER_EPOCH, 0)
        await broker.stop()

    run(main)


def test_a_follower_that_has_caught_up_is_proposed_for_the_isr() -> None:  # B11, G13
    async def main() -> None:
        broker, handler = await led(0)
        await broker.apply(new_led(broker, isr=(BROKER,)))
        append(broker, b"a")
        await follow(handler, at(1))
        (item,) = (await broker.others.proposals.get()).request.partitions
        assert [each.broker_id for each in item.isr] == [BROKER, FOLLOWER]
        await broker.stop()

    run(main)


# ---- Within a session ----


def test_a_quiet_session_is_answered_with_nothing() -> None:  # G14
    async def main() -> None:
        broker, handler = await led(3)
        session = Session(handler)
        assert len((await session.fetch(at(0, 0), at(0, 1), at(0, 2))).partitions) == 3
        for _ in range(2):
            response = await session.fetch(max_wait_ms=WAIT_MS)
            assert (response.partitions, response.error_code) == ((), ErrorCode.NONE)
        assert passed_ms() == 2 * WAIT_MS
        await broker.stop()

    run(main)


def test_within_a_session_the_high_watermark_is_told_without_records() -> None:  # G14
    async def main() -> None:
        broker, handler = await led(3)
        append(broker, b"a", number=1)
        session = Session(handler)
        await session.fetch(at(0, 0), at(1, 1), at(0, 2))
        assert (await session.fetch()).partitions == ()
        await follow(handler, at(1, 1), replica_id=OTHER)
        (told,) = (await session.fetch()).partitions
        assert (told.partition, told.high_watermark, values(told)) == (1, 1, [])
        await broker.stop()

    run(main)


def test_what_a_followers_own_fetch_commits_is_told_to_it() -> None:  # G13, G14
    async def main() -> None:
        broker, handler = await led()
        append(broker, b"a")
        await follow(handler, at(1), replica_id=OTHER)
        session = Session(handler)
        await session.fetch(at(0))
        (told,) = (await session.fetch(at(1))).partitions
        assert told.high_watermark == broker.partition().high_watermark == 1
        await broker.stop()

    run(main)


def test_within_a_session_records_of_one_partition_come_alone() -> None:  # G8, G14
    async def main() -> None:
        broker, handler = await led(3)
        session = Session(handler)
        await session.fetch(at(0, 0), at(0, 1), at(0, 2))
        await session.fetch()
        waiting = await parked(handler, session.next(max_wait_ms=WAIT_MS))
        append(broker, b"a", number=2)
        assert [(each.partition, values(each)) for each in (await waiting).partitions] == [(2, [b"a"])]
        await broker.stop()

    run(main)


def test_what_did_not_fit_comes_with_the_next_answer() -> None:  # G5, G14
    async def main() -> None:
        broker, handler = await led(2)
        for number in (0, 1):
            append(broker, b"x" * 1000, number=number)
        session = Session(handler)
        await session.fetch(at(0, 0, max_bytes=10), at(0, 1, max_bytes=10))
        assert [values(each) != [] for each in (await session.fetch()).partitions] == [True]
        second = await session.fetch(max_wait_ms=WAIT_MS)
        assert ([each.partition for each in second.partitions], passed_ms()) == ([0], 0)
        await broker.stop()

    run(main)


def test_a_later_request_overtakes_the_one_that_waits() -> None:  # G14
    async def main() -> None:
        broker, handler = await led()
        session = Session(handler)
        await session.fetch(at(0))
        waiting = await parked(handler, session.next(max_wait_ms=WAIT_MS))
        later = asyncio.create_task(completed(handler.handle(session.next(max_wait_ms=WAIT_MS))))
        assert (await waiting).error_code is ErrorCode.INVALID_FETCH_SESSION_EPOCH
        append(broker, b"a")
        assert values((await later).partitions[0]) == [b"a"]
        assert passed_ms() == 0
        await broker.stop()

    run(main)


def test_a_request_that_is_overtaken_before_it_has_begun_to_wait_is_answered() -> None:  # G14
    async def main() -> None:
        broker, handler = await led()
        session = Session(handler)
        await session.fetch(at(0))
        first, second = (handler.handle(session.next(max_wait_ms=WAIT_MS)) for _ in range(2))
        later = asyncio.create_task(completed(second))
        assert (await completed(first)).error_code is ErrorCode.INVALID_FETCH_SESSION_EPOCH
        append(broker, b"a")
        assert values((await later).partitions[0]) == [b"a"]
        assert passed_ms() == 0
        await broker.stop()

    run(main)


def test_an_unknown_session_is_an_error_of_the_whole_answer() -> None:  # G14
    async def main() -> None:
        broker, handler = await led()
        response = await completed(handler.handle(follower_request(session_id=5, session_epoch=1)))
        assert (response.error_code, response.partitions) == (ErrorCode.FETCH_SESSION_ID_NOT_FOUND, ())
        await broker.stop()

    run(main)


def test_a_follower_of_an_idle_partition_stays_caught_up() -> None:  # B5, B10
    async def main() -> None:
        broker, handler = await led()
        sessions = [Session(handler, each) for each in FOLLOWERS]
        for each in sessions:
            await each.fetch(at(0))
        while passed_ms() < 10 * LAG_MS:
            await asyncio.gather(*(each.fetch(max_wait_ms=WAIT_MS) for each in sessions))
        append(broker, b"a")
        assert broker.partition().as_leader().maybe_shrink_isr(now_ms=now_ms() + 20_000) is None
        await broker.stop()

    run(main)


def test_a_follower_of_an_idle_partition_is_told_that_the_log_was_opened_anew_and_ends_earlier() -> (
    None
):  # B5, G3
    async def main() -> None:
        broker, handler = await led()
        append(broker, b"a")
        session = Session(handler)
        await session.fetch(at(0))
        await session.fetch(at(1))
        await session.fetch()
        broker.partition().log.truncate_to(0)  # and nothing is woken yet
        await asyncio.sleep(LAG_MS / 1000)
        (result,) = (await session.fetch()).partitions
        assert result.error_code is ErrorCode.OFFSET_OUT_OF_RANGE
        await broker.stop()

    run(main)


def test_a_follower_of_an_idle_partition_is_told_when_it_does_not_count_any_more() -> None:  # B5
    async def main() -> None:
        broker, handler = await led()
        session = Session(handler)
        await session.fetch(at(0))
        assert (await session.fetch()).partitions == ()
        await broker.apply(registered(FOLLOWER, epoch=FOLLOWER_EPOCH + 1, is_fenced=False))
        await asyncio.sleep(LAG_MS / 1000)
        began_ms = passed_ms()
        (result,) = (await session.fetch(max_wait_ms=WAIT_MS)).partitions
        assert (result.error_code, passed_ms()) == (ErrorCode.NOT_LEADER_OR_FOLLOWER, began_ms)
        await broker.stop()

    run(main)


def test_a_follower_that_nothing_keeps_out_any_more_joins_the_isr_though_its_partition_is_idle() -> (
    None
):  # B11
    async def main() -> None:
        broker, handler = await led(0)
        await broker.apply(
            BrokerRegistrationChangeRecord(broker_id=FOLLOWER, broker_epoch=1, is_fenced=True),
            new_led(broker, isr=(BROKER,)),
        )
        session = Session(handler)
        await session.fetch(at(0))
        await session.fetch()
        assert broker.others.proposals.empty()
        await broker.apply(
            BrokerRegistrationChangeRecord(broker_id=FOLLOWER, broker_epoch=1, is_fenced=False)
        )
        await session.fetch()
        assert len((await broker.others.proposals.get()).request.partitions) == 1
        await broker.stop()

    run(main)


# ---- Readers in racks ----


async def in_racks(isr: tuple[int, ...]) -> tuple[Broker, FetchHandler]:
    """The leader and one follower are left, the other follower is right."""
    broker, handler = await led(0)
    racks = {BROKER: "left", FOLLOWER: "right", OTHER: "left"}
    await broker.apply(
        *(
            registered(each, epoch=7 if each == BROKER else 1, rack=rack, is_fenced=False)
            for each, rack in racks.items()
        ),
        new_led(broker, isr=isr),
    )
    append(broker, b"a")
    return broker, handler


@pytest.mark.parametrize(
    ("rack", "sent_to"), [("right", FOLLOWER), ("left", NO_NODE), ("", NO_NODE), ("x", NO_NODE)]
)
def test_a_consumer_is_sent_to_a_replica_in_its_rack(rack: str, sent_to: int) -> None:  # G15, G7
    async def main() -> None:
        broker, handler = await in_racks((BROKER, *FOLLOWERS))
        await commit(handler, 1)
        result = await consume(handler, at(0), rack_id=rack, max_wait_ms=WAIT_MS)
        assert result.preferred_read_replica == sent_to
        assert values(result) == ([] if sent_to == FOLLOWER else [b"a"])
        assert (result.high_watermark, passed_ms()) == (1, 0)
        await broker.stop()

    run(main)


def test_no_reader_is_sent_to_a_replica_that_is_not_in_sync_or_lacks_the_offset() -> None:  # G15
    async def main() -> None:
        broker, handler = await in_racks((BROKER, OTHER))
        await follow(handler, at(1))
        assert (await consume(handler, at(0), rack_id="right")).preferred_read_replica == NO_NODE
        await broker.stop()

    run(main)


def test_a_follower_serves_a_consumer_in_a_rack_up_to_its_own_high_watermark() -> None:  # G1, G15
    async def main() -> None:
        broker, handler = await led(0)
        await broker.apply(broker.new_partition(leader_id=LEADER))
        partition = broker.partition()
        records = [batch(b"a"), batch(b"b", offset=1)]
        for watermark, each in enumerate(records):
            partition.as_follower(LEADER_EPOCH).append(
                each, high_watermark=watermark, log_start_offset=0, now_ms=0
            )
        assert values(await consume(handler, at(0), rack_id="left")) == [b"a"]
        assert (await consume(handler, at(0))).error_code is ErrorCode.NOT_LEADER_OR_FOLLOWER
        assert (await follow(handler, at(0))).error_code is ErrorCode.NOT_LEADER_OR_FOLLOWER
        await broker.stop()

    run(main)


# ---- Throttle ----


def test_a_throttled_follower_gets_nothing_while_the_rate_is_exceeded() -> None:  # G17
    async def main() -> None:
        broker, handler = await led(0, leader_replication_throttled_rate=500)
        await broker.apply(
            new_led(broker, isr=(BROKER, OTHER)), *configured(leader_replication_throttled_replicas="0:1")
        )
        for _ in range(2):
            append(broker, b"x" * 1000)
        session = Session(handler)
        assert len(values((await session.fetch(at(0, max_bytes=10))).partitions[0])) == 1
        waiting = asyncio.create_task(session.fetch(at(1), max_wait_ms=WAIT_MS))
        await asyncio.sleep(0.1)
        append(broker, b"x" * 1000)
        held_back = await waiting
        assert ([values(each) for each in held_back.partitions], passed_ms()) == ([], WAIT_MS)
        in_sync = await follow(handler, at(0), replica_id=OTHER)
        assert len(values(in_sync)) == 3
        await asyncio.sleep(2)
        assert len(values((await session.fetch()).partitions[0])) == 2
        await broker.stop()

    run(main)


def test_what_a_reassignment_adds_is_given_at_its_own_rate_which_can_be_changed() -> None:
    async def main() -> None:
        broker, handler = await led(0, reassignment_replication_throttled_rate=100)
        await broker.apply(new_led(broker, isr=(BROKER,), adding_replicas=(FOLLOWER,)))
        for _ in range(2):
            append(broker, b"x" * 1000)
        session = Session(handler)
        assert len(values((await session.fetch(at(0, max_bytes=10))).partitions[0])) == 1
        began_ms = now_ms()
        held_back = await session.fetch(at(1), max_wait_ms=WAIT_MS)
        assert ([values(each) for each in held_back.partitions], now_ms() - began_ms) == ([], WAIT_MS)
        assert len(values(await follow(handler, at(0), replica_id=OTHER))) == 2  # not added: exempt
        await broker.apply(
            ConfigRecord(
                resource_type=ResourceType.BROKER,
                resource_name="",
                name="reassignment.replication.throttled.rate",
                value="1000000",
            )
        )
        assert len(values((await session.fetch()).partitions[0])) == 1
        await broker.stop()

    run(main)


def test_what_is_held_back_by_a_pace_is_given_as_soon_as_that_allows() -> None:
    async def main() -> None:
        broker, handler = await led(0, reassignment_replication_throttled_rate=10_000)
        await broker.apply(new_led(broker, isr=(BROKER,), adding_replicas=(FOLLOWER,)))
        for _ in range(2):
            append(broker, b"x" * 1000)
        session = Session(handler)
        first = (await session.fetch(at(0, max_bytes=10))).partitions[0]
        assert len(values(first)) == 1
        began_ms = now_ms()
        second = (await session.fetch(at(1), max_wait_ms=WAIT_MS)).partitions[0]
        pause_ms = -(-first.size_bytes * 1000 // 10_000) - PACE_MS
        assert (len(values(second)), now_ms() - began_ms) == (1, pause_ms)
        await broker.stop()

    run(main)


# ---- In sync with some partitions, not with others ----


LACKING, KEPT_UP = 0, 1


async def with_one_in_sync(batches: int, size_bytes: int) -> tuple[Broker, FetchHandler]:
    """A follower is in the ISR of one partition, which is empty, and not of the other one, which has so much."""
    broker, handler = await led(0)
    await broker.apply(new_led(broker, LACKING, isr=(BROKER, OTHER)), new_led(broker, KEPT_UP))
    for _ in range(batches):
        append(broker, b"x" * size_bytes, number=LACKING)
    return broker, handler


def test_a_follower_gets_first_what_it_keeps_up_with_and_a_bounded_part_of_the_rest() -> None:
    async def main() -> None:
        broker, handler = await with_one_in_sync(30, 100_000)
        session, wanted = Session(handler), {"max_bytes": 10 << 20}
        begun = await session.fetch(at(0, LACKING, **wanted), at(0, KEPT_UP), **wanted)
        assert begun.partitions[0].next_offset == 30  # it keeps up with nothing that is known of
        append(broker, b"news", number=KEPT_UP)
        answer = await session.fetch(at(0, LACKING, **wanted), **wanted)
        assert [each.partition for each in answer.partitions] == [KEPT_UP, LACKING]
        assert values(answer.partitions[0]) == [b"news"]
        assert CATCH_UP_BYTES - 110_000 < answer.partitions[1].size_bytes <= CATCH_UP_BYTES
        await broker.stop()

    run(main)


def test_a_follower_catches_up_however_much_there_is_of_what_it_keeps_up_with() -> None:
    async def main() -> None:
        broker, handler = await with_one_in_sync(1, 100_000)
        session, wanted = Session(handler), {"max_bytes": 1_000}
        await session.fetch(at(1, LACKING, **wanted), at(0, KEPT_UP), **wanted)
        for _ in range(3):
            append(broker, b"n" * 900, number=KEPT_UP)
        answer = await session.fetch(at(0, LACKING, **wanted), **wanted)
        assert [(each.partition, each.next_offset) for each in answer.partitions] == [
            (KEPT_UP, 1),
            (LACKING, 1),
        ]
        await broker.stop()

    run(main)


def test_a_throttled_follower_still_tells_where_it_is() -> None:  # G13, G17
    async def main() -> None:
        broker, handler = await led(0, leader_replication_throttled_rate=0)
        await broker.apply(
            new_led(broker, isr=(BROKER,)), *configured(leader_replication_throttled_replicas="*")
        )
        append(broker, b"x" * 1000)
        broker.replicas.leader_quotas.named.record(1, now_ms())
        await follow(handler, at(0))
        (state,) = [each for each in followers(broker.partition()) if each.replica_id == FOLLOWER]
        assert state.log_end_offset == 0
        await broker.stop()

    run(main)


@pytest.mark.parametrize("offset", [-1, -(2**70), 5, 2**70])
def test_an_offset_that_no_log_has_is_out_of_range(offset: int) -> None:  # G3
    async def main() -> None:
        broker, handler = await led()
        asked = FetchPartition(ORDERS, 0, offset, 100, LEADER_EPOCH)
        assert (await consume(handler, asked)).error_code is ErrorCode.OFFSET_OUT_OF_RANGE
        assert (await follow(handler, asked)).error_code is ErrorCode.OFFSET_OUT_OF_RANGE
        await broker.stop()

    run(main)
