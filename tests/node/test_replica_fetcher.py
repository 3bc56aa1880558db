"""A broker follows a leader: what it asks, what it does with the answers, and what holds a partition up.

Kafka: `ReplicaFetcherThreadTest`, `AbstractFetcherThreadTest`, `AbstractFetcherManagerTest`.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any
from uuid import UUID

import msgspec
import pytest

from rayka.errors import ErrorCode, NetworkException
from rayka.ids import OffsetAndEpoch
from rayka.log.local_disk import LocalDisk
from rayka.log.log_directory import LogDirectory
from rayka.partition.quota import PACE_MS
from rayka.protocol.fetch import (
    FIRST_SESSION_EPOCH,
    FetchResponse,
    FileRange,
)
from rayka.protocol.membership import RegisteredDirectory
from rayka.testing.memory_disk import MemoryDisk
from tests.metadata.support import registered
from tests.node.controller_support import HeldDisk
from tests.node.replica_support import (
    BROKER,
    BROKER_EPOCH,
    CLUSTER_ID,
    LEADER,
    ORDERS,
    OTHER,
    SESSION,
    Broker,
    CountingDisk,
    answered,
    batch,
    changed,
    configured,
    given,
    now_ms,
    offsets_found,
    position,
    positions,
    run,
)

WAIT_MS, BACKOFF_MS = 500, 1_000


async def following(*numbers: int) -> Broker:
    broker = await Broker.start()
    await broker.apply(*(broker.new_partition(number) for number in numbers))
    return broker


# ---- The stream ------------------------------------------------------------------------------------------------------


def test_a_follower_asks_its_leader_from_the_end_of_its_log_in_the_leaders_epoch() -> None:  # B17, G14
    async def main() -> None:
        broker = await following(0, 1)
        asked = await broker.next_fetch()
        request, fetch = asked.request, position(asked.request)
        assert (asked.node_id, request.replica_id, request.replica_epoch) == (LEADER, BROKER, BROKER_EPOCH)
        assert (request.cluster_id, request.session_epoch, request.max_wait_ms) == (CLUSTER_ID, 0, 0)
        assert positions(request) == {0: 0, 1: 0}
        assert (fetch.current_leader_epoch, fetch.last_fetched_epoch, fetch.log_start_offset) == (0, -1, 0)
        await broker.stop()

    run(main)


def test_what_came_is_appended_and_the_next_request_leaves_at_once_and_names_only_what_changed() -> (
    None
):  # G14
    async def main() -> None:
        broker = await following(0, 1)
        asked = await broker.begin_session(given(0, batch(b"a", b"b"), high_watermark=1), given(1))
        request = asked.request
        assert (request.session_id, request.session_epoch, request.max_wait_ms) == (SESSION, 1, WAIT_MS)
        assert (positions(request), position(request).last_fetched_epoch) == ({0: 2}, 0)
        assert asked.at_ms == now_ms()
        asked.answer(answered(given(1, batch(b"c"), high_watermark=1)))
        asked = await broker.next_fetch()
        assert (asked.request.session_epoch, positions(asked.request)) == (2, {1: 1})
        assert [each.log.log_end_offset for each in broker.replicas.partitions] == [2, 1]
        await broker.stop()

    run(main)


def test_the_high_watermark_is_the_leaders_as_far_as_the_log_has_it_and_the_log_begins_where_the_leaders_does() -> (
    None
):
    async def main() -> None:  # B3
        broker = await following(0)
        asked = await broker.begin_session(given(0, batch(b"a"), batch(b"b", offset=1), high_watermark=5))
        partition = broker.partition()
        assert partition.high_watermark == 2
        asked.answer(answered(given(0, high_watermark=2, log_start_offset=1)))
        asked = await broker.next_fetch()
        assert (partition.log.log_start_offset, position(asked.request).log_start_offset) == (1, 1)
        await broker.stop()

    run(main)


def test_batches_from_before_segments_became_small_are_copied_all_the_same() -> None:  # F10, B18
    async def main() -> None:
        broker = await Broker.start()
        await broker.apply(*configured(segment_bytes=1024), broker.new_partition())
        large = [batch(bytes(5_000), offset=offset) for offset in range(2)]
        asked = await broker.begin_session(given(0, *large, high_watermark=2))
        assert positions(asked.request) == {0: 2}
        assert broker.replicas.problems() == []
        assert len(broker.partition().log.segments) == 2
        await broker.stop()

    run(main)


def test_while_nothing_changes_one_request_waits_at_the_leader_at_a_time() -> None:
    async def main() -> None:
        broker = await following(0)
        asked = await broker.begin_session(given(0))
        for _ in range(3):
            assert await broker.fetches_nothing_for(WAIT_MS)
            asked.answer(answered())
            asked = await broker.next_fetch()
            assert (asked.request.partitions, asked.request.max_wait_ms) == ((), WAIT_MS)
        await broker.stop()

    run(main)


def test_a_partition_that_comes_later_does_not_wait_for_a_request_that_the_leader_holds_back() -> None:
    async def main() -> None:
        broker = await following(0)
        held_back = await broker.begin_session(given(0))
        await broker.apply(broker.new_partition(1))
        asked = await broker.next_fetch()
        assert (asked.request.session_epoch, positions(asked.request)) == (2, {1: 0})
        held_back.answer(FetchResponse((), ErrorCode.INVALID_FETCH_SESSION_EPOCH))
        assert await broker.fetches_nothing_for(WAIT_MS)
        asked.answer(answered(given(1, batch(b"a"))))
        assert positions((await broker.next_fetch()).request) == {1: 1}
        await broker.stop()

    run(main)


def test_an_overtaken_request_that_is_never_answered_holds_nothing_up() -> None:
    async def main() -> None:
        broker = await following(0)
        await broker.begin_session(given(0))  # the second request: its answer is lost
        await broker.apply(broker.new_partition(1))
        overtaking = await broker.next_fetch()
        answered_at_ms = now_ms()
        overtaking.answer(answered(given(1)))
        asked = await broker.next_fetch()
        assert asked.at_ms == answered_at_ms
        assert await broker.fetches_nothing_for(WAIT_MS)  # one at a time, as ever
        asked.answer(answered())
        assert (await broker.next_fetch()).at_ms == answered_at_ms + WAIT_MS
        await broker.stop()

    run(main)


def test_what_an_overtaken_request_was_told_and_did_not_bring_is_asked_for_again() -> None:  # G14
    async def main() -> None:
        broker = await following(0)
        lost = await broker.begin_session(given(0))
        await broker.apply(broker.new_partition(1))
        overtaking = await broker.next_fetch()
        lost.fail(NetworkException("the answer was lost"))
        overtaking.answer(answered(given(1)))
        asked = await broker.next_fetch()
        assert (asked.request.session_epoch, positions(asked.request)) == (FIRST_SESSION_EPOCH, {0: 0, 1: 0})
        asked.answer(answered(given(0), given(1)))
        assert (await broker.next_fetch()).request.session_epoch == 1
        await broker.stop()

    run(main)


def test_records_that_two_requests_bring_are_appended_once() -> None:
    async def main() -> None:
        broker = await following(0)
        held_back = await broker.begin_session(given(0))
        await broker.apply(broker.new_partition(1))
        overtaking = await broker.next_fetch()
        overtaking.answer(answered(given(0, batch(b"a")), given(1)))
        await broker.next_fetch()
        held_back.answer(answered(given(0, batch(b"a"), high_watermark=1)))
        assert await broker.fetches_nothing_for(10)
        assert (broker.partition().log.log_end_offset, broker.partition().high_watermark) == (1, 1)
        assert broker.replicas.problems() == []
        await broker.stop()

    run(main)


def test_a_session_that_the_leader_has_dropped_begins_anew_at_once_with_everything() -> None:  # G14
    async def main() -> None:
        broker = await following(0, 1)
        asked = await broker.begin_session(given(0), given(1))
        asked.answer(FetchResponse((), ErrorCode.FETCH_SESSION_ID_NOT_FOUND))
        asked = await broker.next_fetch()
        assert (asked.request.session_epoch, positions(asked.request)) == (FIRST_SESSION_EPOCH, {0: 0, 1: 0})
        assert asked.at_ms == now_ms()
        await broker.stop()

    run(main)


def test_a_leader_that_keeps_no_sessions_is_asked_for_everything_and_waits_as_ever() -> None:  # G14
    async def main() -> None:
        broker = await following(0, 1)
        (await broker.next_fetch()).answer(FetchResponse((given(0), given(1))))
        asked = await broker.next_fetch()
        assert (asked.request.session_epoch, asked.request.max_wait_ms) == (FIRST_SESSION_EPOCH, WAIT_MS)
        assert positions(asked.request) == {0: 0, 1: 0}
        await broker.stop()

    run(main)


def test_after_a_failed_call_there_is_a_pause_and_then_a_new_session() -> None:
    async def main() -> None:
        broker = await following(0)
        asked = await broker.begin_session(given(0))
        for _ in range(3):
            failed_at_ms = now_ms()
            asked.fail(NetworkException("gone"))
            asked = await broker.next_fetch()
            assert now_ms() - failed_at_ms == BACKOFF_MS
            assert (asked.request.session_epoch, positions(asked.request)) == (FIRST_SESSION_EPOCH, {0: 0})
        await broker.stop()

    run(main)


def test_metadata_that_names_a_new_epoch_ends_the_pause() -> None:
    async def main() -> None:
        broker = await following(0)
        (await broker.begin_session(given(0))).fail(NetworkException("restarting"))
        await broker.apply(changed(leader_id=LEADER))
        assert position((await broker.next_fetch()).request).current_leader_epoch == 1
        await broker.stop()

    run(main)


# ---- Where logs part -------------------------------------------------------------------------------------------------


def test_a_log_that_parted_from_the_leaders_is_cut_and_fetched_from_there() -> None:  # B22, B23
    async def main() -> None:
        broker = await following(0)
        asked = await broker.begin_session(given(0, batch(b"a"), batch(b"b", offset=1)))
        await broker.apply(changed(leader_id=OTHER))
        asked = await broker.next_fetch()
        assert (asked.node_id, position(asked.request).last_fetched_epoch) == (OTHER, 0)
        asked.answer(answered(given(0, diverging_epoch=OffsetAndEpoch(1, 0))))
        asked = await broker.next_fetch()
        assert positions(asked.request) == {0: 1}
        asked.answer(answered(given(0, batch(b"c", offset=1, epoch=1), high_watermark=2)))
        await broker.next_fetch()
        partition = broker.partition()
        assert (partition.log.log_end_offset, partition.log.epochs.epoch_of(1), partition.high_watermark) == (
            2,
            1,
            2,
        )
        await broker.stop()

    run(main)


def test_both_sides_step_down_through_their_epochs_until_they_agree() -> None:  # B22, KIP-279
    async def main() -> None:
        broker = await following(0)
        mine = [batch(b"a"), batch(b"b", offset=1, epoch=1), batch(b"c", offset=2, epoch=3)]
        await broker.apply(*(changed(leader_id=LEADER) for _ in range(3)))
        (await broker.begin_session()).answer(answered(given(0, *mine)))
        await broker.next_fetch()
        await broker.apply(changed(leader_id=OTHER))
        asked = await broker.next_fetch()
        asked.answer(answered(given(0, diverging_epoch=OffsetAndEpoch(9, 2))))  # epoch 2 is missing here
        asked = await broker.next_fetch()
        assert (position(asked.request).fetch_offset, position(asked.request).last_fetched_epoch) == (2, 1)
        asked.answer(answered(given(0, diverging_epoch=OffsetAndEpoch(1, 0))))
        asked = await broker.next_fetch()
        assert (position(asked.request).fetch_offset, position(asked.request).last_fetched_epoch) == (1, 0)
        await broker.stop()

    run(main)


@pytest.mark.parametrize(
    ("leader_start", "leader_end", "expected"),
    [(10, 20, (10, 10)), (0, 1, (0, 1))],
    ids=["all of it was deleted there", "it ends earlier there"],
)
def test_a_position_out_of_the_leaders_range_moves_into_it(
    leader_start: int, leader_end: int, expected: tuple[int, int]
) -> None:  # B25
    async def main() -> None:
        broker = await following(0, 1)
        asked = await broker.begin_session(given(0, batch(b"a"), batch(b"b", offset=1)), given(1))
        asked.answer(answered(given(0, error_code=ErrorCode.OFFSET_OUT_OF_RANGE)))
        lookup = await broker.others.lookups.get()
        others_go_on = await broker.next_fetch()
        assert [each.partition for each in others_go_on.request.forgotten] == [0]
        assert (lookup.node_id, lookup.request.replica_id) == (LEADER, BROKER)
        lookup.answer(offsets_found(leader_start, leader_end))
        asked = await broker.next_fetch()
        log = broker.partition().log
        assert (log.log_start_offset, log.log_end_offset) == expected
        assert positions(asked.request) == {0: expected[1]}
        await broker.stop()

    run(main)


def test_a_leader_that_cannot_be_asked_for_its_offsets_is_asked_again_later() -> None:  # B25
    async def main() -> None:
        broker = await following(0)
        asked = await broker.begin_session(given(0))
        asked.answer(answered(given(0, error_code=ErrorCode.OFFSET_OUT_OF_RANGE)))
        (await broker.others.lookups.get()).fail(NetworkException("gone"))
        asked = await broker.next_fetch()
        assert positions(asked.request) == {0: 0}
        await broker.stop()

    run(main)


# ---- What is wrong with one partition --------------------------------------------------------------------------------


def test_a_corrupt_batch_holds_up_its_partition_alone_and_is_fetched_again(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def main() -> None:
        broker = await following(0, 1)
        damaged = batch(b"a" * 100)
        damaged[100] ^= 1
        asked = await broker.begin_session(given(0, damaged), given(1, batch(b"b")))
        corrupt_at_ms = now_ms()
        assert positions(asked.request) == {1: 1}
        assert [each.partition for each in asked.request.forgotten] == [0]
        assert broker.partition(0).log.log_end_offset == 0
        (problem,) = broker.replicas.problems()
        assert "orders-0 cannot be copied from broker-2" in problem
        assert problem in caplog.text
        again = await broker.next_fetch()
        assert (now_ms() - corrupt_at_ms, positions(again.request)) == (BACKOFF_MS, {0: 0})
        again.answer(answered(given(0, batch(b"a" * 100))))
        await broker.next_fetch()
        assert (broker.partition(0).log.log_end_offset, broker.replicas.problems()) == (1, [])
        await broker.stop()

    run(main)


def test_an_epoch_that_is_over_is_not_asked_for_until_there_is_newer_metadata() -> None:  # B24
    async def main() -> None:
        broker = await following(0)
        asked = await broker.begin_session(given(0))
        asked.answer(answered(given(0, error_code=ErrorCode.FENCED_LEADER_EPOCH)))
        assert await broker.fetches_nothing_for(60_000)
        await broker.apply(changed(leader_id=LEADER))
        assert position((await broker.next_fetch()).request).current_leader_epoch == 1
        await broker.stop()

    run(main)


@pytest.mark.parametrize("answer", [{"error_code": ErrorCode.FENCED_LEADER_EPOCH}, {"high_watermark": 0}])
def test_what_is_in_another_epoch_by_now_is_not_asked_for_until_the_rest_of_the_metadata_is_applied(
    answer: dict[str, Any],
) -> None:  # B26
    async def main() -> None:
        broker = await following(0, 1)
        asked = await broker.begin_session(given(0), given(1))
        state = broker.image.topics_by_id[ORDERS].partitions[0]
        newer = msgspec.structs.replace(state, leader_epoch=1, partition_epoch=1)
        broker.partition(0).update_state(newer, now_ms=now_ms())  # and others are still to come
        asked.answer(answered(given(0, **answer), given(1, high_watermark=0)))
        asked = await broker.next_fetch()
        assert [each.partition for each in asked.request.forgotten] == [0]
        assert await broker.fetches_nothing_for(10_000)
        await broker.apply(changed(0, leader_id=LEADER))
        assert position((await broker.next_fetch()).request, 0).current_leader_epoch == 1
        await broker.stop()

    run(main)


@pytest.mark.parametrize("error_code", [ErrorCode.UNKNOWN_LEADER_EPOCH, ErrorCode.NOT_LEADER_OR_FOLLOWER])
def test_a_leader_that_does_not_know_yet_that_it_leads_is_asked_soon_and_then_ever_more_rarely(
    error_code: ErrorCode,
) -> None:
    async def main() -> None:  # B24
        broker = await following(0)
        asked = await broker.begin_session(given(0, error_code=error_code))
        pauses = []
        for _ in range(8):
            before_ms = now_ms()
            asked.answer(answered(given(0, error_code=error_code)))
            asked = await broker.next_fetch()
            pauses.append(now_ms() - before_ms)
        assert pauses == [40, 80, 160, 320, 640, 1000, 1000, 1000]
        asked.answer(answered(given(0)))  # it leads
        asked = await broker.next_fetch()
        before_ms = now_ms()
        asked.answer(answered(given(0, error_code=error_code)))
        await broker.next_fetch()
        assert now_ms() - before_ms == 20
        await broker.stop()

    run(main)


def test_an_answer_that_was_asked_for_in_an_older_epoch_is_ignored() -> None:  # B26
    async def main() -> None:
        broker = await following(0)
        asked = await broker.begin_session(given(0))
        await broker.apply(changed(leader_id=OTHER))
        assert (await broker.next_fetch()).node_id == OTHER
        asked.answer(answered(given(0, batch(b"a"))))
        assert await broker.fetches_nothing_for(10)
        assert broker.partition().log.log_end_offset == 0
        await broker.stop()

    run(main)


def test_a_high_watermark_of_an_older_epoch_of_the_same_leader_is_ignored() -> None:  # B26
    async def main() -> None:
        broker = await following(0)
        held_back = await broker.begin_session(given(0, batch(b"a")))
        await broker.apply(changed(leader_id=LEADER))
        assert position((await broker.next_fetch()).request).current_leader_epoch == 1
        held_back.answer(answered(given(0, high_watermark=1)))
        assert await broker.fetches_nothing_for(10)
        assert broker.partition().high_watermark == 0
        await broker.stop()

    run(main)


def test_a_replica_that_becomes_leader_follows_no_other() -> None:  # B17
    async def main() -> None:
        broker = await following(0)
        asked = await broker.begin_session(given(0, batch(b"a")))
        await broker.apply(changed(leader_id=BROKER))
        asked.answer(answered(given(0, batch(b"b", offset=1))))
        assert await broker.fetches_nothing_for(60_000)
        assert (broker.partition().is_leader, broker.partition().log.log_end_offset) == (True, 1)
        await broker.stop()

    run(main)


def test_a_partition_without_a_leader_is_fetched_from_no_broker() -> None:
    async def main() -> None:
        broker = await following(0)
        asked = await broker.begin_session(given(0))
        await broker.apply(changed(leader_id=-1))
        asked.answer(answered())
        assert await broker.fetches_nothing_for(60_000)
        await broker.stop()

    run(main)


def test_partitions_are_followed_from_their_own_leaders_and_the_end_of_one_changes_nothing_for_others() -> (
    None
):
    async def main() -> None:
        broker = await Broker.start()
        await broker.apply(broker.new_partition(0), broker.new_partition(1, leader_id=OTHER))
        asked = [await broker.next_fetch(), await broker.next_fetch()]
        assert [(each.node_id, positions(each.request)) for each in asked] == [
            (LEADER, {0: 0}),
            (OTHER, {1: 0}),
        ]
        await broker.apply(changed(0, leader_id=OTHER))
        for each in asked:
            each.answer(answered(*(given(number) for number in positions(each.request))))
        moved = await broker.next_fetch()
        assert (moved.node_id, positions(moved.request)) == (OTHER, {0: 0})
        assert await broker.fetches_nothing_for(60)
        await broker.stop()

    run(main)


def test_a_change_of_the_isr_disturbs_no_fetch() -> None:
    async def main() -> None:
        broker = await following(0)
        await broker.begin_session(given(0))
        await broker.apply(changed(isr=(LEADER,)))
        assert await broker.fetches_nothing_for(WAIT_MS)
        await broker.stop()

    run(main)


# ---- Disks -----------------------------------------------------------------------------------------------------------


def test_with_flush_batch_a_position_is_told_only_after_the_sync_and_holds_up_no_other() -> None:
    async def main() -> None:
        disk = HeldDisk()
        broker = await Broker.start(disk)
        await broker.apply(*configured(flush="batch"), broker.new_partition(0), broker.new_partition(1))
        disk.is_open.clear()
        asked = await broker.begin_session(given(0, batch(b"a")), given(1))
        assert (positions(asked.request), [each.partition for each in asked.request.forgotten]) == ({}, [0])
        disk.is_open.set()
        asked = await broker.next_fetch()
        assert positions(asked.request) == {0: 1}
        assert broker.partition().log.flushed_offset == 1
        await broker.stop()

    run(main)


def test_a_full_disk_stops_the_log_that_met_it_and_no_other() -> None:
    async def main() -> None:
        disk = MemoryDisk()
        broker = await Broker.start(disk)
        await broker.apply(broker.new_partition(0), broker.new_partition(1))
        asked = await broker.begin_session(given(0), given(1, batch(b"b")))
        disk.fill_up(after_bytes=10)
        asked.answer(answered(given(0, batch(b"a" * 1000))))
        asked = await broker.next_fetch()
        assert [each.partition for each in asked.request.forgotten] == [0]
        assert "disk full" in broker.replicas.problems()[0]
        assert broker.partition(0).failure is None
        disk.fill_up(after_bytes=1 << 30)
        asked.answer(answered(given(1, batch(b"c", offset=1))))
        assert positions((await broker.next_fetch()).request) == {1: 2}
        await broker.stop()

    run(main)


def test_a_failed_disk_takes_its_partitions_offline_and_they_are_not_fetched() -> None:
    async def main() -> None:
        disk = MemoryDisk()
        broker = await Broker.start(disk)
        await broker.apply(broker.new_partition(0), broker.new_partition(1))
        asked = await broker.begin_session(given(0), given(1))
        disk.fail("write", "orders-0/")
        asked.answer(answered(given(0, batch(b"a"))))
        assert await broker.fetches_nothing_for(60_000)
        assert broker.directories.changed.is_set()
        assert all(each.failure is not None for each in broker.replicas.partitions)
        await broker.stop()

    run(main)


# ---- The leader's files ---------------------------------------------------------------------------------------------


class OwnDisk(LocalDisk):
    """The machine's disk, without the thread that syncs."""

    async def sync(
        self, files: Sequence[str], directories: Sequence[str], *, in_background: bool = False
    ) -> None:
        pass


def test_what_a_leader_on_this_machine_names_is_copied_from_its_files(tmp_path: Path) -> None:
    async def main() -> None:
        disk = OwnDisk()
        broker = await Broker.start(disk, data_dirs=(str(tmp_path / "own"),))
        theirs = RegisteredDirectory(UUID(int=77), str(tmp_path / "theirs"))
        await LogDirectory.format(disk, theirs.path, node_id=LEADER, directory_id=theirs.directory_id)
        await broker.apply(
            msgspec.structs.replace(registered(LEADER, is_fenced=False), directories=(theirs,)),
            broker.new_partition(0),
        )
        asked = await broker.begin_session(given(0, batch(b"a")))
        assert asked.request.local_directory_ids == (theirs.directory_id,)
        asked.answer(answered(given(0, batch(b"b", offset=1))))
        asked = await broker.next_fetch()
        assert asked.request.local_directory_ids == (theirs.directory_id,)
        disk.append(f"{theirs.path}/log", [batch(b"c", offset=2)])
        found = disk.identity(f"{theirs.path}/log")
        place = FileRange(f"{theirs.path}/log", found.device, found.inode, 0, found.size_bytes, 2)
        asked.answer(answered(given(0, file_ranges=(place,))))
        asked = await broker.next_fetch()
        assert positions(asked.request) == {0: 3}
        asked.answer(answered(given(0, file_ranges=(msgspec.structs.replace(place, inode=1),))))
        asked = await broker.next_fetch()
        assert (positions(asked.request), broker.partition().log.log_end_offset) == ({}, 3)
        await broker.stop()

    run(main)


# ---- Throttling ------------------------------------------------------------------------------------------------------


def test_a_throttled_replica_that_is_behind_waits_while_the_rate_is_exceeded() -> None:  # B45, G17
    async def main() -> None:
        broker = await Broker.start(follower_replication_throttled_rate=100)
        await broker.apply(
            *configured(follower_replication_throttled_replicas="0:1"),
            broker.new_partition(0),
            broker.new_partition(1),
        )
        first = batch(b"a" * 500)
        asked = await broker.begin_session(given(0, first, high_watermark=9), given(1))
        began_ms = now_ms()
        assert [each.partition for each in asked.request.forgotten] == [0]
        asked = await broker.next_fetch()
        assert positions(asked.request) == {0: 1}
        assert now_ms() - began_ms >= first.size * 1000 / 100
        asked.answer(answered(given(0, batch(b"b" * 500, offset=1), high_watermark=2)))
        assert positions((await broker.next_fetch()).request) == {0: 2}  # in sync: exempt
        await broker.stop()

    run(main)


def test_a_replica_that_a_reassignment_adds_has_a_rate_of_its_own() -> None:
    async def main() -> None:
        broker = await Broker.start(reassignment_replication_throttled_rate=100)
        await broker.apply(
            broker.new_partition(0, adding_replicas=(BROKER,), isr=(LEADER,)), broker.new_partition(1)
        )
        first = batch(b"a" * 500)
        began_ms = now_ms()
        asked = await broker.begin_session(
            given(0, first, high_watermark=9), given(1, first, high_watermark=9)
        )
        assert [each.partition for each in asked.request.forgotten] == [0]
        assert positions(asked.request) == {1: 1}  # no reassignment adds it
        assert positions((await broker.next_fetch()).request) == {0: 1}
        assert now_ms() - began_ms >= first.size * 1000 / 100 - PACE_MS
        await broker.stop()

    run(main)


def test_what_a_large_answer_brings_is_appended_in_several_turns() -> None:
    async def main() -> None:
        disk, numbers = CountingDisk("append"), range(10)
        broker = await Broker.start(disk)
        await broker.apply(*(broker.new_partition(each) for each in numbers))
        asked = await broker.begin_session(*(given(each) for each in numbers))
        records = batch(b"x" * 1_000_000)
        asked.answer(answered(*(given(each, records, high_watermark=1) for each in numbers)))
        await disk.count_turns(len(numbers))
        assert max(disk.counts()) <= 2
        assert positions((await broker.next_fetch()).request) == dict.fromkeys(numbers, 1)
        await broker.stop()

    run(main)
