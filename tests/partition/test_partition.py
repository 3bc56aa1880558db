"""One replica: leadership, appends, acknowledgements, reads and offsets."""

from typing import Any

import pytest

from rayka.config.topic_config import FlushPolicy, MessageTimestampType, TopicConfig
from rayka.errors import (
    ApiError,
    DiskFull,
    FencedLeaderEpoch,
    InvalidRecord,
    KafkaStorageError,
    NotEnoughReplicas,
    NotEnoughReplicasAfterAppend,
    NotLeaderOrFollower,
    OffsetNotAvailable,
    OffsetOutOfRange,
    OutOfOrderSequence,
    RecordBatchTooLarge,
    RecordTooLarge,
    StorageError,
    UnknownLeaderEpoch,
)
from rayka.ids import NO_NODE, NO_TIMESTAMP, ZERO_ID, OffsetAndEpoch
from rayka.metadata.image import PartitionImage
from rayka.partition.follower_states import FollowerFetch
from rayka.partition.partition import FoundOffset, Partition
from rayka.partition.partition_follower import PartitionFollower
from rayka.partition.partition_leader import Appended, PartitionLeader
from rayka.protocol.batch_decode import decode
from rayka.protocol.batch_encode import encode_batch
from rayka.protocol.batch_format import ProducerSequence, TimestampType, split_batches
from rayka.protocol.fetch import EARLIEST_TIMESTAMP, LATEST_TIMESTAMP, MAX_TIMESTAMP
from rayka.protocol.produce import ACKS_ALL, ACKS_LEADER, ACKS_NONE
from rayka.testing.memory_disk import MemoryDisk
from tests.log.support import result_of
from tests.partition.support import (
    BROKER,
    LED_HERE,
    NOW_MS,
    append,
    append_one,
    changed,
    fetch,
    followed_from,
    new_partition,
    read,
    records,
    sync,
)

UNDER_REPLICATED = changed(replicas=(BROKER, 2, 3))


# ---- Leadership ----


def test_a_new_leadership_begins_at_the_log_end_offset() -> None:  # B16
    partition = new_partition()
    append(partition, b"a", b"b")
    partition.update_state(changed(leader_epoch=6), now_ms=0)
    assert repr(partition) == "<Partition orders-3 leader epoch=6 hw=2 leo=2 isr=[1]>"
    assert partition.as_leader().epoch_start_offset == 2
    assert partition.log.end_offset_for_epoch(5) == OffsetAndEpoch(2, 5)


def test_another_leader_epoch_has_another_role_and_another_state_of_the_epoch_has_not() -> None:  # B16, B17
    """So nothing that a role knows is left in the next one."""
    partition = new_partition()
    roles = [partition.role]
    for state in (
        changed(partition_epoch=10),
        changed(leader_epoch=6, partition_epoch=11),
        changed(leader_id=2, leader_epoch=7, partition_epoch=12),
        changed(leader_epoch=8, partition_epoch=13),
    ):
        partition.update_state(state, now_ms=0)
        roles.append(partition.role)
    assert roles[0] is roles[1]
    assert [type(each) for each in roles[1:]] == [
        PartitionLeader,
        PartitionLeader,
        PartitionFollower,
        PartitionLeader,
    ]
    assert len({id(each) for each in roles}) == 4


def test_a_partition_goes_by_the_id_of_its_topic() -> None:
    assert new_partition().topic_id == ZERO_ID


def test_a_change_within_the_epoch_keeps_where_it_began() -> None:  # B16
    partition = new_partition()
    append(partition, b"a")
    partition.update_state(changed(), now_ms=0)
    assert (partition.as_leader().epoch_start_offset, partition.role.state.partition_epoch) == (0, 10)


def test_a_state_of_an_older_partition_epoch_changes_nothing() -> None:  # B16
    partition = new_partition(state=changed(leader_epoch=6))
    partition.update_state(LED_HERE, now_ms=0)
    assert partition.leader_epoch == 6


@pytest.mark.parametrize(("saved", "expected"), [(None, 0), (2, 2), (99, 3)])
def test_the_high_watermark_is_loaded_within_the_log(saved: int | None, expected: int) -> None:  # B4
    partition = new_partition(state=changed(leader_id=NO_NODE))
    partition.update_state(changed(leader_epoch=6, partition_epoch=11), now_ms=0)
    append(partition, b"a", b"b", b"c")
    partition.load_high_watermark(saved)
    assert partition.high_watermark == expected


# ---- Appending ----


def test_an_append_gets_offset_and_epoch_and_is_committed_by_the_only_replica() -> None:  # B1, B18
    partition = new_partition()
    append(partition, b"a")
    appended = append(partition, b"b", b"c")
    assert (appended.base_offset, appended.required_offset, appended.leader_epoch) == (1, 3, 5)
    assert partition.high_watermark == 3
    assert partition.as_leader().is_acknowledged(appended, ACKS_ALL)
    stored = list(split_batches(read(partition, 0).records))
    assert [(each.base_offset, each.leader_epoch) for each in stored] == [(0, 5), (1, 5)]


def test_a_topic_that_stamps_records_gives_all_of_them_the_time_of_the_append() -> None:  # B18
    partition = new_partition(message_timestamp_type=MessageTimestampType.LOG_APPEND_TIME)
    appended = append_one(
        partition.as_leader(), records(b"a", b"b", timestamp_ms=3), ACKS_ALL, now_ms=0, timestamp_ms=NOW_MS
    )
    (batch,) = split_batches(read(partition, 0).records)
    assert appended.log_append_time_ms == NOW_MS
    assert batch.timestamp_type is TimestampType.LOG_APPEND_TIME
    assert decode(batch).timestamps_ms.tolist() == [NOW_MS, NOW_MS]


def test_a_batch_that_was_sent_before_has_the_time_of_its_first_append() -> None:  # B18, C3
    partition = new_partition(message_timestamp_type=MessageTimestampType.LOG_APPEND_TIME)
    data = encode_batch([b"a"], timestamps_ms=3, sequence=ProducerSequence(7, 0, 0))
    times = [
        append_one(
            partition.as_leader(), data, ACKS_ALL, now_ms=0, timestamp_ms=NOW_MS + after_ms
        ).log_append_time_ms
        for after_ms in (0, 50)
    ]
    assert times == [NOW_MS, NOW_MS]
    partition.update_config(TopicConfig())
    again = append_one(partition.as_leader(), data, ACKS_ALL, now_ms=0, timestamp_ms=NOW_MS)
    assert (again.base_offset, again.log_append_time_ms) == (0, NO_TIMESTAMP)


def test_where_producers_stamp_records_an_append_has_no_time() -> None:  # B18
    assert append(new_partition(), b"a").log_append_time_ms == NO_TIMESTAMP


def test_a_leaders_log_of_records_without_a_time_begins_a_new_segment_by_the_clock() -> None:  # F4
    partition = new_partition(segment_ms=1_000)
    for now_ms in (0, 10_000):
        append_one(
            partition.as_leader(),
            records(b"a", timestamp_ms=NO_TIMESTAMP),
            ACKS_ALL,
            now_ms=now_ms,
            timestamp_ms=NOW_MS,
        )
    assert len(partition.log.segments) == 2


def test_a_new_configuration_counts_from_the_next_request_on() -> None:
    partition = new_partition()
    append(partition, b"a" * 1_000)
    partition.update_config(TopicConfig(max_message_bytes=500, segment_bytes=1_024))
    with pytest.raises(RecordTooLarge, match=r"^orders-3: "):
        append(partition, b"a" * 1_000)
    append(partition, b"a")
    assert (partition.config.max_message_bytes, len(partition.log.segments)) == (500, 2)


def test_a_replica_that_does_not_lead_appends_nothing() -> None:
    partition = new_partition(state=changed(leader_id=2))
    with pytest.raises(NotLeaderOrFollower, match="broker 2 does, in epoch 5"):
        append(partition, b"a")
    assert partition.log.log_end_offset == 0


def test_a_refused_batch_leaves_the_log_as_it_was() -> None:  # B18
    partition = new_partition(max_message_bytes=100)
    with pytest.raises(RecordTooLarge):
        append(partition, b"a" * 1000)
    assert partition.log.log_end_offset == 0


def test_a_gap_is_said_for_good_once_all_in_sync_follow() -> None:  # C5, C11
    """Before, one of them may lead next with what was appended to it as the leader before this one."""
    partition = new_partition(state=changed(replicas=(1, 2, 3), isr=(1, 2)))

    def send(sequence: int) -> Appended:
        batch = encode_batch([b"a"], timestamps_ms=0, sequence=ProducerSequence(7, 0, sequence))
        return append_one(partition.as_leader(), batch, ACKS_ALL, now_ms=0, timestamp_ms=0)

    send(0)
    with pytest.raises(NotEnoughReplicas, match=r"sends sequence 2 .* leads next; try again"):
        send(2)
    followed_from(partition, 3, 0)  # out of sync
    with pytest.raises(NotEnoughReplicas):
        send(2)
    followed_from(partition, 2, 0)
    with pytest.raises(OutOfOrderSequence):
        send(2)
    assert partition.log.log_end_offset == 1


def test_too_few_replicas_in_sync_refuse_acks_all_and_nothing_else() -> None:  # B15
    partition = new_partition(state=UNDER_REPLICATED, min_insync_replicas=2)
    with pytest.raises(NotEnoughReplicas, match=r"in sync are \[1\], min.insync.replicas=2"):
        append(partition, b"a")
    assert partition.log.log_end_offset == 0
    for acks in (ACKS_NONE, ACKS_LEADER):
        assert partition.as_leader().is_acknowledged(append(partition, b"a", acks=acks), acks)


def test_with_too_few_replicas_in_sync_the_high_watermark_stands_still() -> None:  # B1
    partition = new_partition(state=UNDER_REPLICATED, min_insync_replicas=2)
    append(partition, b"a", acks=ACKS_LEADER)
    assert partition.high_watermark == 0


def test_a_topic_cannot_want_more_replicas_in_sync_than_it_has() -> None:  # B1
    partition = new_partition(min_insync_replicas=3)
    assert partition.as_leader().is_acknowledged(append(partition, b"a"), ACKS_ALL)


def test_an_isr_that_shrank_after_the_append_is_said() -> None:  # B15
    partition = new_partition(min_insync_replicas=2, state=changed(replicas=(BROKER, 2), isr=(BROKER, 2)))
    appended = append(partition, b"a")
    partition.as_leader().record_fetch(FollowerFetch(2, -1, 1, 0), now_ms=0)
    partition.update_state(changed(replicas=(BROKER, 2), partition_epoch=11), now_ms=0)
    with pytest.raises(NotEnoughReplicasAfterAppend, match="orders-3"):
        partition.as_leader().is_acknowledged(appended, ACKS_ALL)


@pytest.mark.parametrize("state", [changed(leader_id=2), changed(leader_epoch=6)])
def test_an_append_whose_leadership_is_over_is_not_acknowledged(state: PartitionImage) -> None:  # B15
    partition = new_partition()
    appended = append(partition, b"a")
    partition.update_state(state, now_ms=0)
    with pytest.raises(NotLeaderOrFollower, match=r"leadership changed|broker 2 does, in epoch 5"):
        partition.as_leader().is_acknowledged(appended, ACKS_ALL)


# ---- Durability ----


@pytest.mark.parametrize("acks", [ACKS_LEADER, ACKS_ALL])
def test_with_flush_batch_nothing_is_acknowledged_or_read_before_the_sync(acks: int) -> None:
    disk = MemoryDisk()
    partition = new_partition(disk, flush=FlushPolicy.BATCH)
    appended = append(partition, b"a", acks=acks)
    assert (appended.needs_sync, partition.as_leader().is_acknowledged(appended, acks)) == (True, False)
    assert read(partition, 0).size_bytes == 0
    sync(partition, disk)
    assert partition.maybe_increment_high_watermark(0)
    assert partition.as_leader().is_acknowledged(appended, acks)
    assert read(partition, 0).next_offset == 1


def test_flush_messages_asks_for_a_sync_once_that_many_are_unsynced() -> None:
    disk = MemoryDisk()
    partition = new_partition(disk, flush_messages=3)
    assert [append(partition, b"a").needs_sync for _ in range(3)] == [False, False, True]
    sync(partition, disk)
    assert not append(partition, b"a").needs_sync


def test_a_full_disk_stops_appends_and_not_reads() -> None:
    disk = MemoryDisk()
    partition = new_partition(disk)
    append(partition, b"a")
    disk.fill_up(after_bytes=10)
    with pytest.raises(DiskFull, match="disk full"):
        append(partition, b"b")
    with pytest.raises(StorageError, match=r"until there is room.*disk full"):
        append(partition, b"c")
    assert read(partition, 0).next_offset == 1


def test_a_failed_directory_answers_nothing_but_that() -> None:
    partition = new_partition()
    appended = append(partition, b"a")
    partition.failure = StorageError("cannot sync /data: Input/output error")
    with pytest.raises(KafkaStorageError, match="Input/output error"):
        partition.as_leader().is_acknowledged(appended, ACKS_ALL)
    with pytest.raises(KafkaStorageError, match="Input/output error"):
        read(partition, 0)


# ---- Reading ----


def test_a_read_starts_with_the_batch_that_contains_the_offset() -> None:  # G4
    partition = new_partition()
    append(partition, b"a", b"b", b"c")
    append(partition, b"d")
    result = read(partition, 1)
    assert [each.base_offset for each in split_batches(result.records)] == [0, 3]
    assert (result.next_offset, result.high_watermark, result.log_start_offset) == (4, 4, 0)


def test_at_the_end_of_the_log_a_read_is_empty() -> None:  # G3
    partition = new_partition()
    append(partition, b"a")
    result = read(partition, 1)
    assert (result.size_bytes, result.next_offset) == (0, 1)


@pytest.mark.parametrize("offset", [-1, 2, 1 << 62])
def test_outside_the_log_a_read_is_out_of_range(offset: int) -> None:  # G3
    partition = new_partition()
    append(partition, b"a")
    with pytest.raises(OffsetOutOfRange, match=r"\[0, 1\]"):
        read(partition, offset)


def test_a_partitions_own_bound_counts_too() -> None:  # G5
    partition = new_partition()
    for _ in range(3):
        append(partition, b"a" * 1000)
    batch_bytes = records(b"a" * 1000).size
    assert read(partition, 0, max_bytes=2 * batch_bytes).next_offset == 2


@pytest.mark.parametrize(("min_one_batch", "count"), [(True, 1), (False, 0)])
def test_a_batch_above_the_bound_is_given_only_where_one_is_wanted(
    min_one_batch: bool, count: int
) -> None:  # G6
    partition = new_partition()
    append(partition, b"a" * 1000)
    result = partition.read(fetch(0), max_bytes=10, min_one_batch=min_one_batch)
    assert (len(list(split_batches(result.records))), result.next_offset) == (count, count)


def test_places_in_files_say_the_same_as_bytes() -> None:
    disk = MemoryDisk()
    partition = new_partition(disk)
    append(partition, b"a", b"b")
    from_bytes = read(partition, 0)
    local = partition.read(fetch(0), max_bytes=1 << 20, min_one_batch=True, as_file_ranges=True)
    (found,) = local.file_ranges
    assert disk.read_at(found.path, found.position, found.size_bytes) == bytes(from_bytes.records)  # type: ignore[arg-type]
    assert (local.next_offset, local.size_bytes) == (from_bytes.next_offset, from_bytes.size_bytes)


@pytest.mark.parametrize(("epoch", "error"), [(4, FencedLeaderEpoch), (6, UnknownLeaderEpoch)])
def test_another_leader_epoch_is_refused(epoch: int, error: type[ApiError]) -> None:  # B24, G2
    partition = new_partition()
    with pytest.raises(error, match=f"leader epoch is 5, found {epoch}"):
        read(partition, 0, current_leader_epoch=epoch)
    with pytest.raises(error):
        result_of(partition.find_offset(LATEST_TIMESTAMP, epoch))


def test_the_right_leader_epoch_is_let_in() -> None:  # B24
    assert read(new_partition(), 0, current_leader_epoch=5).next_offset == 0


def test_a_replica_that_does_not_lead_serves_no_reads() -> None:
    partition = new_partition(state=changed(leader_id=NO_NODE))
    with pytest.raises(NotLeaderOrFollower):
        read(partition, 0)
    with pytest.raises(NotLeaderOrFollower):
        result_of(partition.find_offset(EARLIEST_TIMESTAMP, -1))


def test_a_reader_whose_log_parts_from_this_one_is_told_where() -> None:  # G2
    partition = new_partition()
    append(partition, b"a", b"b")
    partition.update_state(changed(leader_epoch=8), now_ms=0)
    append(partition, b"c")
    assert read(partition, 3, last_fetched_epoch=8).diverging_epoch is None
    diverging = read(partition, 3, last_fetched_epoch=7)
    assert (diverging.diverging_epoch, diverging.size_bytes) == (OffsetAndEpoch(2, 5), 0)
    assert read(partition, 3, last_fetched_epoch=5).diverging_epoch == OffsetAndEpoch(2, 5)
    with pytest.raises(OffsetOutOfRange, match="epoch 9"):
        read(partition, 3, last_fetched_epoch=9)


@pytest.mark.parametrize(
    ("epoch", "offset", "diverging"),
    [
        (2, 5, (2, 0)),  # epoch 2 is unknown here: where the one before it ended
        (0, 4, (2, 0)),  # epoch 0 ended earlier here
        (6, 6, (13, 4)),
        (5, 9, (13, 4)),
        (10, 18, (17, 10)),  # beyond the end of the log
        (0, 2, None),
        (0, 1, None),
        (7, 14, None),
        (9, 17, None),
        (10, 17, None),  # the epoch that has no record yet
    ],
)
def test_where_a_readers_log_parts_from_one_of_many_epochs(
    epoch: int, offset: int, diverging: tuple[int, int] | None
) -> None:  # B21, B23, G2
    partition = new_partition(state=changed(leader_id=NO_NODE, leader_epoch=0, partition_epoch=0))
    for leader_epoch, count in ((0, 2), (3, 6), (4, 5), (7, 1), (9, 3), (10, 0)):
        state = changed(leader_epoch=leader_epoch, partition_epoch=leader_epoch + 1)
        partition.update_state(state, now_ms=0)
        for _ in range(count):
            append(partition, b"v")
    found = read(partition, offset, last_fetched_epoch=epoch)
    assert found.diverging_epoch == (diverging and OffsetAndEpoch(*diverging))
    assert bool(found.size_bytes) is (diverging is None and offset < 17)


# ---- Offsets ----


def test_a_reader_at_the_begin_of_the_log_is_told_too_where_its_log_parts() -> None:  # G2, G3
    partition = new_partition()
    append(partition, b"a", b"b")
    partition.update_state(changed(leader_epoch=7), now_ms=0)
    append(partition, b"c")
    partition.as_leader().delete_records(1)
    result = read(partition, 1, last_fetched_epoch=6)
    assert (result.diverging_epoch, result.next_offset) == (OffsetAndEpoch(2, 5), 1)


def test_offsets_are_found_by_place_and_by_time() -> None:  # G12
    partition = new_partition()
    for timestamp_ms in (100, 300, 200):
        append_one(
            partition.as_leader(),
            records(b"a", timestamp_ms=timestamp_ms),
            ACKS_ALL,
            now_ms=0,
            timestamp_ms=NOW_MS,
        )
    found = {
        each: result_of(partition.find_offset(each, -1))
        for each in (EARLIEST_TIMESTAMP, LATEST_TIMESTAMP, MAX_TIMESTAMP, 150, 301)
    }
    assert found == {
        EARLIEST_TIMESTAMP: FoundOffset(-1, 0, 5),
        LATEST_TIMESTAMP: FoundOffset(-1, 3, 5),
        MAX_TIMESTAMP: FoundOffset(300, 1, 5),
        150: FoundOffset(300, 1, 5),
        301: FoundOffset(-1, -1, -1),
    }


def test_a_time_is_looked_up_below_the_high_watermark_only() -> None:  # G12
    disk = MemoryDisk()
    partition = new_partition(disk, flush=FlushPolicy.BATCH)
    append(partition, b"a")
    assert result_of(partition.find_offset(NOW_MS, -1)) == FoundOffset()
    sync(partition, disk)
    partition.maybe_increment_high_watermark(0)
    assert result_of(partition.find_offset(NOW_MS, -1)).offset == 0


def test_a_new_leader_that_does_not_know_how_far_it_is_committed_says_so() -> None:  # G12, B4
    partition = new_partition(flush=FlushPolicy.BATCH)
    append(partition, b"a")
    partition.update_state(changed(leader_epoch=6), now_ms=0)
    with pytest.raises(OffsetNotAvailable, match="leader epoch 6 began"):
        result_of(partition.find_offset(LATEST_TIMESTAMP, -1))
    assert result_of(partition.find_offset(EARLIEST_TIMESTAMP, -1)).offset == 0


# ---- Batches of this process ----


def append_own(partition: Partition, *values: bytes, timestamp_ms: int = NOW_MS) -> Appended:
    batch = records(*values, timestamp_ms=timestamp_ms)
    return partition.as_leader().append_own(batch, now_ms=0, timestamp_ms=NOW_MS)


@pytest.mark.parametrize("later", [{"timestamp_ms": NOW_MS + 100}, {"config": {"max_message_bytes": 64}}])
def test_a_repeated_batch_is_where_it_was_though_its_topic_would_refuse_it_now(
    later: dict[str, Any],
) -> None:  # C3
    partition = new_partition(message_timestamp_before_max_ms=10)
    batch = encode_batch([b"a", b"b"], timestamps_ms=NOW_MS, sequence=ProducerSequence(7, 0, 0))
    (first,) = partition.as_leader().append_all([(batch, ACKS_ALL)], now_ms=0, timestamp_ms=NOW_MS)
    partition.update_config(partition.config.model_copy(update=later.get("config", {})))
    now_ms = later.get("timestamp_ms", NOW_MS)
    damaged = batch.copy()
    damaged[-1] ^= 1
    again, unknown = partition.as_leader().append_all(
        [(batch, ACKS_ALL), (damaged, ACKS_ALL)], now_ms=0, timestamp_ms=now_ms
    )
    assert isinstance(first, Appended)
    assert isinstance(again, Appended)
    assert (again.base_offset, again.required_offset) == (first.base_offset, first.required_offset)
    assert isinstance(unknown, ApiError)
    assert partition.log.log_end_offset == 2


def test_a_batch_that_this_process_has_encoded_is_appended_whatever_producers_are_allowed() -> None:
    partition = new_partition(message_timestamp_before_max_ms=10)
    assert append_own(partition, b"a", b"b", timestamp_ms=NOW_MS - 11).required_offset == 2
    assert partition.high_watermark == 2


def test_a_batch_of_this_process_may_be_larger_than_a_segment() -> None:  # decision 084
    """A generation of a large group is one record; producers' batches are still split by `segment.bytes`."""
    partition = new_partition(segment_bytes=1_024)
    for size_bytes in (100, 5_000, 100):
        append_own(partition, b"a" * size_bytes)
    assert [each.base_offset for each in partition.log.segments] == [0, 1, 2]
    (refused,) = partition.as_leader().append_all(
        [(records(b"a" * 5_000), ACKS_ALL)], now_ms=0, timestamp_ms=NOW_MS
    )
    assert isinstance(refused, RecordBatchTooLarge)
    assert partition.log.log_end_offset == 3


def test_a_batch_of_this_process_is_refused_for_what_the_topic_is() -> None:  # B15, B18
    too_large = new_partition(max_message_bytes=100)
    compacted = new_partition(cleanup_policy="compact")
    too_few = new_partition(state=UNDER_REPLICATED, min_insync_replicas=2)
    for partition, error in (
        (too_large, RecordTooLarge),
        (compacted, InvalidRecord),
        (too_few, NotEnoughReplicas),
    ):
        with pytest.raises(error, match=r"^orders-3: "):
            append_own(partition, b"a" * 1_000)
        assert partition.log.log_end_offset == 0
