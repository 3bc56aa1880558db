"""Followers' fetches at a leader: the high watermark, deletions on all replicas, and the replica to read from."""

from typing import Any

import msgspec
import pytest

from rayka.errors import NotLeaderOrFollower, OffsetNotAvailable, OffsetOutOfRange, UnknownLeaderEpoch
from rayka.ids import ZERO_ID, OffsetAndEpoch
from rayka.metadata.image import BrokerImage, PartitionImage
from rayka.partition.partition import FoundOffset, Partition
from rayka.partition.partition_follower import PartitionFollower
from rayka.protocol.fetch import EARLIEST_TIMESTAMP, LATEST_TIMESTAMP
from rayka.protocol.produce import ACKS_ALL, ACKS_LEADER
from tests.log.support import result_of
from tests.partition.support import (
    BROKER,
    LAG_MAX_MS,
    NOW_MS,
    append,
    broker_image,
    changed,
    fetch,
    followed_from,
    followers,
    new_partition,
)

REPLICAS = (BROKER, 2, 3)
ALL_IN_SYNC = changed(replicas=REPLICAS, isr=REPLICAS)
ALONE = changed(replicas=REPLICAS)
ACTIVE = {each: broker_image(each, epoch=each * 10, rack=f"rack-{each}") for each in REPLICAS}


def leader(
    state: PartitionImage = ALL_IN_SYNC, brokers: dict[int, BrokerImage] | None = None, **config: Any
) -> Partition:
    """One with three records."""
    partition = new_partition(state=state, brokers=ACTIVE if brokers is None else brokers, **config)
    append(partition, b"a", b"b", b"c", acks=ACKS_LEADER)
    return partition


def live_below(partition: Partition, offset: int, now_ms: int) -> dict[int, int]:
    """The live followers whose logs begin below an offset, and where."""
    live = partition.as_leader().live_followers(now_ms)
    return {each.replica_id: each.log_start_offset for each in live if each.log_start_offset < offset}


# ---- How far it is committed ----


def test_the_high_watermark_is_what_every_member_of_the_isr_has() -> None:  # B1, G13
    partition = leader()
    assert not followed_from(partition, 2, 3).is_high_watermark_raised
    assert followed_from(partition, 3, 1).is_high_watermark_raised
    assert partition.high_watermark == 1
    assert followed_from(partition, 3, 2).is_high_watermark_raised
    assert partition.high_watermark == 2


def test_a_producer_waits_until_all_members_have_its_record() -> None:  # B15, G13
    partition = leader()
    appended = append(partition, b"d", acks=ACKS_ALL)
    followed_from(partition, 2, 4)
    assert not partition.as_leader().is_acknowledged(appended, ACKS_ALL)
    followed_from(partition, 3, 4)
    assert partition.as_leader().is_acknowledged(appended, ACKS_ALL)


def test_a_follower_that_went_back_does_not_lower_the_high_watermark() -> None:  # B1
    partition = leader(changed(replicas=(BROKER, 2), isr=(BROKER, 2)))
    followed_from(partition, 2, 3)
    assert not followed_from(partition, 2, 1).is_high_watermark_raised
    assert (partition.high_watermark, followers(partition)[0].log_end_offset) == (3, 1)


def test_a_replica_that_is_about_to_join_is_waited_for() -> None:  # B1
    partition = leader(ALONE)
    assert partition.high_watermark == 3
    followed_from(partition, 2, 3, broker_epoch=20)
    append(partition, b"d", acks=ACKS_LEADER)
    assert partition.high_watermark == 3
    assert followed_from(partition, 2, 4, broker_epoch=20).is_high_watermark_raised


def test_a_replica_that_fell_behind_is_not_waited_for_any_more() -> None:  # B1
    partition = leader(ALONE, brokers={**ACTIVE, 2: broker_image(2, epoch=20)})
    state = msgspec.structs.replace(ALONE, partition_epoch=11)
    followed_from(partition, 2, 3, broker_epoch=20)
    partition.update_state(state, now_ms=0)  # the proposal is over
    append(partition, b"d", acks=ACKS_LEADER)
    assert not partition.maybe_increment_high_watermark(LAG_MAX_MS)
    assert partition.maybe_increment_high_watermark(LAG_MAX_MS + 1)


@pytest.mark.parametrize(
    "broker",
    [
        broker_image(2, epoch=20, is_fenced=True),
        broker_image(2, epoch=20, is_in_controlled_shutdown=True),
        broker_image(2, epoch=25),
        broker_image(2, epoch=20, offline_directories=(ZERO_ID,)),
    ],
)
def test_a_replica_that_may_not_join_is_not_waited_for(broker: BrokerImage) -> None:  # B1
    brokers = dict(ACTIVE)
    partition = leader(ALONE, brokers=brokers)
    followed_from(partition, 2, 3, broker_epoch=20)
    partition.update_state(msgspec.structs.replace(ALONE, partition_epoch=11), now_ms=0)
    brokers[2] = broker
    append(partition, b"d", acks=ACKS_LEADER)
    assert partition.high_watermark == 4


@pytest.mark.parametrize("state", [{"is_fenced": True}, {"is_in_controlled_shutdown": True}])
def test_a_member_is_waited_for_until_the_controller_has_dropped_it(state: dict[str, bool]) -> None:  # B1
    """Whether it may still come is not the leader's to say: until then it may be elected."""
    brokers = {**ACTIVE, 2: broker_image(2, epoch=20, **state)}
    partition = leader(changed(replicas=(BROKER, 2), isr=(BROKER, 2)), brokers=brokers)
    assert not partition.maybe_increment_high_watermark(10 * LAG_MAX_MS)
    followed_from(partition, 2, 2, broker_epoch=20)
    assert partition.high_watermark == 2
    partition.update_state(changed(replicas=(BROKER, 2), partition_epoch=11), now_ms=0)
    assert partition.high_watermark == 3


def test_positions_of_an_older_leader_epoch_do_not_count() -> None:  # B16, B24
    """In between another may have led, and cut what the follower had."""
    partition = leader(changed(replicas=(BROKER, 2), isr=(BROKER, 2)))
    followed_from(partition, 2, 3)
    partition.update_state(
        changed(replicas=(BROKER, 2), isr=(BROKER, 2), leader_epoch=6, partition_epoch=11), now_ms=0
    )
    append(partition, b"d", acks=ACKS_LEADER)
    assert (partition.high_watermark, followers(partition)[0].has_fetched) == (3, False)


def test_positions_within_a_leader_epoch_are_kept_and_new_replicas_have_none() -> None:  # B16
    partition = leader(changed(replicas=(BROKER, 2), isr=(BROKER, 2)))
    followed_from(partition, 2, 3)
    partition.update_state(changed(replicas=REPLICAS, isr=(BROKER, 2), partition_epoch=11), now_ms=0)
    assert [each.log_end_offset for each in followers(partition)] == [3, -1]
    partition.update_state(changed(replicas=(BROKER, 3), isr=(BROKER,), partition_epoch=12), now_ms=0)
    assert [each.replica_id for each in followers(partition)] == [3]


def test_a_follower_knows_of_no_other_replica() -> None:  # B17
    partition = leader()
    followed_from(partition, 2, 3)
    partition.update_state(
        changed(replicas=REPLICAS, isr=REPLICAS, leader_id=2, leader_epoch=6, partition_epoch=11), now_ms=0
    )
    assert isinstance(partition.role, PartitionFollower)
    assert (partition.isr, partition.maximal_isr) == ((), ())


# ---- Whose fetches count ----


def test_a_broker_that_is_no_replica_does_not_count() -> None:  # B5
    with pytest.raises(NotLeaderOrFollower, match=r"broker 4 is none of its replicas \[1, 2, 3\]"):
        followed_from(leader(), 4, 3)


def test_an_older_process_of_a_broker_does_not_count() -> None:  # B5
    partition = leader()
    followed_from(partition, 2, 1, broker_epoch=30)  # newer than the metadata here
    for broker_epoch in (19, 29):
        with pytest.raises(NotLeaderOrFollower, match=f"epoch 30 or later, found {broker_epoch}"):
            followed_from(partition, 2, 3, broker_epoch=broker_epoch)
    assert followers(partition)[0].log_end_offset == 1


def test_an_older_process_than_the_metadata_knows_does_not_count() -> None:  # B5
    with pytest.raises(NotLeaderOrFollower, match="epoch 20 or later, found 19"):
        followed_from(leader(), 2, 3, broker_epoch=19)


def test_a_follower_reads_to_the_log_end_and_says_its_leader_epoch() -> None:  # G1, B24
    partition = leader()
    asked = fetch(0, current_leader_epoch=5)
    assert partition.read(asked, max_bytes=1 << 20, min_one_batch=True, is_follower=True).next_offset == 3
    assert partition.read(asked, max_bytes=1 << 20, min_one_batch=True).next_offset == 0
    assert partition.available_bytes(0, 1 << 20, is_follower=True) > 0
    assert partition.available_bytes(0, 1 << 20) == 0
    with pytest.raises(UnknownLeaderEpoch, match="here 5"):
        partition.read(fetch(0), max_bytes=1 << 20, min_one_batch=True, is_follower=True)


def test_a_follower_is_told_the_end_of_the_log_as_the_latest_offset() -> None:  # G12
    partition = leader()
    assert result_of(partition.find_offset(LATEST_TIMESTAMP, 5, is_follower=True)) == FoundOffset(-1, 3, 5)
    assert result_of(partition.find_offset(LATEST_TIMESTAMP, 5)) == FoundOffset(-1, 0, 5)
    assert result_of(partition.find_offset(EARLIEST_TIMESTAMP, 5, is_follower=True)) == FoundOffset(-1, 0, 5)


def test_an_offset_that_a_consumer_was_told_does_not_fall_when_the_leader_changes() -> None:  # G12, B4
    """The new leader knows of less that is committed than its predecessor said."""
    state = changed(replicas=(BROKER, 2), isr=(BROKER, 2), leader_epoch=6, partition_epoch=11)
    partition = leader(changed(replicas=(BROKER, 2), isr=(BROKER, 2)))
    followed_from(partition, 2, 1)
    partition.update_state(state, now_ms=0)
    for offset in (1, 2):
        followed_from(partition, 2, offset)
        for timestamp_ms in (LATEST_TIMESTAMP, NOW_MS):
            with pytest.raises(OffsetNotAvailable, match=f"high watermark {offset} has not reached 3"):
                result_of(partition.find_offset(timestamp_ms, 6))
    followed_from(partition, 2, 3)
    assert result_of(partition.find_offset(LATEST_TIMESTAMP, 6)) == FoundOffset(-1, 3, 6)
    assert result_of(partition.find_offset(NOW_MS, 6)).offset == 0


def test_out_of_range_comes_before_diverging_below_the_logs_begin() -> None:  # G2, G3
    partition = leader(ALONE)
    partition.update_state(changed(replicas=REPLICAS, leader_epoch=6, partition_epoch=11), now_ms=0)
    append(partition, b"d")
    partition.as_leader().delete_records(3)
    asked = fetch(2, current_leader_epoch=6, last_fetched_epoch=4)
    with pytest.raises(OffsetOutOfRange, match=r"\[3, 4\]"):
        partition.read(asked, max_bytes=1 << 20, min_one_batch=True, is_follower=True)
    asked = msgspec.structs.replace(asked, fetch_offset=4)
    read = partition.read(asked, max_bytes=1 << 20, min_one_batch=True, is_follower=True)
    assert read.diverging_epoch == OffsetAndEpoch(0, 4)


# ---- Deleting records ----


def test_records_are_deleted_everywhere_once_every_live_replica_has_deleted_them() -> None:  # G11
    brokers = {**ACTIVE, 3: broker_image(3, is_fenced=True)}
    partition = leader(changed(replicas=REPLICAS, isr=(BROKER, 2)), brokers=brokers)
    assert partition.as_leader().low_watermark(0) == -1
    followed_from(partition, 2, 3)
    assert partition.as_leader().delete_records(2) == 2
    assert (partition.log.log_start_offset, partition.as_leader().low_watermark(0)) == (2, 0)
    assert not followed_from(partition, 2, 3).is_low_watermark_raised
    assert followed_from(partition, 2, 3, log_start_offset=2).is_low_watermark_raised
    assert partition.as_leader().low_watermark(0) == 2


def test_a_replica_in_an_offline_directory_is_not_waited_for() -> None:  # G11
    brokers = {**ACTIVE, 3: broker_image(3, offline_directories=(ZERO_ID,))}
    partition = leader(changed(replicas=REPLICAS, isr=(BROKER, 2)), brokers=brokers)
    followed_from(partition, 2, 3, log_start_offset=1)
    partition.as_leader().delete_records(2)
    assert partition.as_leader().low_watermark(0) == 1
    assert live_below(partition, 2, 0) == {2: 1}


def test_a_replica_out_of_sync_is_waited_for_while_it_fetches() -> None:  # G11
    partition = leader(changed(replicas=REPLICAS, isr=(BROKER, 2)))
    followed_from(partition, 2, 3, log_start_offset=2)
    partition.as_leader().delete_records(2)
    assert live_below(partition, 2, LAG_MAX_MS) == {3: -1}
    assert partition.as_leader().low_watermark(LAG_MAX_MS + 1) == 2
    followed_from(partition, 3, 0, now_ms=LAG_MAX_MS + 1)
    assert partition.as_leader().low_watermark(2 * LAG_MAX_MS + 1) == 0
    assert partition.as_leader().low_watermark(2 * LAG_MAX_MS + 2) == 2


def test_a_replica_in_sync_is_waited_for_whether_it_fetches_or_not() -> None:  # G11
    partition = leader(changed(replicas=(BROKER, 2), isr=(BROKER, 2)))
    partition.as_leader().delete_records(0)
    assert partition.as_leader().low_watermark(10 * LAG_MAX_MS) == -1


def test_a_replica_has_time_to_fetch_in_each_new_leadership() -> None:  # G11
    partition = leader(ALONE)
    state = changed(replicas=REPLICAS, leader_epoch=6, partition_epoch=11)
    partition.update_state(state, now_ms=10 * LAG_MAX_MS)
    assert live_below(partition, 1, 11 * LAG_MAX_MS) == {2: -1, 3: -1}
    partition.update_state(msgspec.structs.replace(state, partition_epoch=12), now_ms=11 * LAG_MAX_MS)
    assert live_below(partition, 1, 11 * LAG_MAX_MS + 1) == {}


def test_minus_one_deletes_up_to_the_high_watermark() -> None:  # G11
    partition = leader(ALONE)
    assert (partition.as_leader().delete_records(-1), partition.log.log_start_offset) == (3, 3)


@pytest.mark.parametrize("offset", [4, -2])
def test_what_is_not_committed_is_not_deleted(offset: int) -> None:  # G11
    partition = leader(ALONE)
    with pytest.raises(OffsetOutOfRange, match=f"high watermark 3, or -1 for that, found {offset}"):
        partition.as_leader().delete_records(offset)
    assert partition.log.log_start_offset == 0


# ---- Reading elsewhere ----


@pytest.mark.parametrize(
    ("rack_id", "offset", "now_ms", "preferred"),
    [
        ("rack-2", 0, 0, 2),
        ("rack-2", 2, 0, 2),
        ("rack-2", 3, 0, -1),  # it has not come so far
        ("rack-2", 0, LAG_MAX_MS + 1, -1),  # it is about to leave the ISR
        ("rack-1", 0, 0, -1),  # the leader is there
        ("rack-3", 0, 0, -1),  # fenced
        ("rack-4", 0, 0, -1),
        ("", 0, 0, -1),
    ],
)
def test_a_consumer_reads_in_its_rack(rack_id: str, offset: int, now_ms: int, preferred: int) -> None:  # G15
    brokers = {**ACTIVE, 3: broker_image(3, epoch=30, rack="rack-3", is_fenced=True)}
    partition = leader(brokers=brokers)
    followed_from(partition, 2, 2)
    followed_from(partition, 3, 3)
    found = partition.as_leader().preferred_read_replica(rack_id=rack_id, fetch_offset=offset, now_ms=now_ms)
    assert found == preferred


def test_of_several_replicas_in_a_rack_the_most_caught_up_is_read() -> None:  # G15
    brokers = {each: broker_image(each, rack="near" if each > 1 else "far") for each in REPLICAS}
    partition = leader(brokers=brokers)
    followed_from(partition, 2, 2)
    followed_from(partition, 3, 3)
    assert partition.as_leader().preferred_read_replica(rack_id="near", fetch_offset=1, now_ms=0) == 3
    followed_from(partition, 2, 3, now_ms=7)
    assert partition.as_leader().preferred_read_replica(rack_id="near", fetch_offset=1, now_ms=7) == 2


def test_a_follower_that_has_everything_is_read_however_long_ago_it_fetched() -> None:  # G15, B10
    partition = leader()
    followed_from(partition, 2, 3)
    far_ms = 100 * LAG_MAX_MS
    assert partition.as_leader().preferred_read_replica(rack_id="rack-2", fetch_offset=1, now_ms=far_ms) == 2


@pytest.mark.parametrize("rack", ["rack-1", ""])
def test_a_consumer_in_the_leaders_rack_or_in_none_reads_from_the_leader(rack: str) -> None:  # G15
    brokers = {each: broker_image(each, rack=rack) for each in REPLICAS}
    partition = leader(brokers=brokers)
    followed_from(partition, 2, 3)
    assert partition.as_leader().preferred_read_replica(rack_id=rack, fetch_offset=1, now_ms=0) == -1


def test_a_follower_not_in_sync_when_the_leadership_began_has_to_show_it_first() -> None:  # B16
    partition = leader(changed(replicas=REPLICAS, isr=(BROKER, 2)))
    known = {each.replica_id: each.is_caught_up(3, 0, LAG_MAX_MS) for each in followers(partition)}
    assert known == {2: True, 3: False}


def test_a_log_that_starts_later_on_one_follower_raises_no_low_watermark() -> None:  # G11
    partition = leader()
    partition.as_leader().delete_records(0)
    for each in (2, 3):
        followed_from(partition, each, 3)
    update = followed_from(partition, 2, 3, log_start_offset=1)
    assert not update.is_low_watermark_raised


def test_a_replica_that_is_not_in_sync_is_not_read() -> None:  # G15
    partition = leader(changed(replicas=REPLICAS, isr=(BROKER, 3)))
    followed_from(partition, 2, 3)
    assert partition.as_leader().preferred_read_replica(rack_id="rack-2", fetch_offset=1, now_ms=0) == -1
