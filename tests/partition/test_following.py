"""A replica that follows: appends, truncations, and the histories of KIP-101 (B3, B17-B27)."""

from typing import Any

import msgspec
import numpy as np
import pytest

from rayka.config.topic_config import FlushPolicy
from rayka.errors import ApiError, CorruptRecord, FencedLeaderEpoch, NotLeaderOrFollower, UnknownLeaderEpoch
from rayka.ids import NO_TIMESTAMP, OffsetAndEpoch
from rayka.log.log import Log
from rayka.partition.partition import Partition
from rayka.protocol.batch_format import RecordBatch
from rayka.protocol.fetch import LATEST_TIMESTAMP
from rayka.testing.memory_disk import MemoryDisk
from tests.log.support import result_of
from tests.partition.support import (
    BROKER,
    append,
    changed,
    fetch,
    new_partition,
    position,
    read,
    records,
    sync,
)

LED_ELSEWHERE = changed(replicas=(BROKER, 2), isr=(BROKER, 2), leader_id=2)


def placed(offset: int, epoch: int, *values: bytes) -> bytes:
    """A batch as a leader has it."""
    stamped = RecordBatch(records(*(values or (b"v",)))).stamped(base_offset=offset, leader_epoch=epoch)
    return b"".join(map(bytes, stamped))


def follower(*lineage: tuple[int, int], disk: MemoryDisk | None = None, **config: Any) -> Partition:
    """A follower in epoch 5 with so many records, one a batch, of each epoch."""
    partition = new_partition(disk, state=LED_ELSEWHERE, **config)
    for epoch, count in lineage:
        for _ in range(count):
            follow(partition, placed(partition.log.log_end_offset, epoch))
    return partition


def follow(
    partition: Partition,
    given: bytes,
    *,
    leader_epoch: int = 5,
    high_watermark: int = 0,
    log_start_offset: int = 0,
) -> bool:
    """Whether the high watermark moved."""
    return partition.as_follower(leader_epoch).append(
        given,
        high_watermark=high_watermark,
        log_start_offset=log_start_offset,
        now_ms=0,
    )


def end_and_epochs(log: Log) -> tuple[int, int]:
    return log.log_end_offset, log.latest_epoch


# ---- Appending ----


def test_a_follower_keeps_offsets_and_epochs_and_asks_behind_them() -> None:  # B17, B18
    partition = follower()
    is_high_watermark_moved = follow(partition, placed(0, 3, b"a", b"b") + placed(2, 4), high_watermark=2)
    assert (is_high_watermark_moved, partition.needs_sync) == (True, False)
    assert position(partition) == OffsetAndEpoch(3, 4)
    assert partition.log.end_offset_for_epoch(3) == OffsetAndEpoch(2, 3)


@pytest.mark.parametrize(("leader_says", "expected"), [(1, 1), (3, 3), (99, 3), (0, 0)])
def test_its_high_watermark_is_the_leaders_as_far_as_it_has_that(
    leader_says: int, expected: int
) -> None:  # B3
    partition = follower((4, 3))
    follow(partition, b"", high_watermark=2)
    assert follow(partition, b"", high_watermark=leader_says)
    assert partition.high_watermark == expected


def test_it_deletes_what_the_leader_has_deleted() -> None:  # B3, G11
    partition = follower((4, 3))
    follow(partition, b"", high_watermark=3, log_start_offset=2)
    assert (partition.log.log_start_offset, partition.high_watermark) == (2, 3)
    follow(partition, b"", high_watermark=0, log_start_offset=0)
    assert (partition.log.log_start_offset, partition.high_watermark) == (2, 2)


def test_with_flush_batch_it_asks_for_more_only_after_a_sync() -> None:
    disk = MemoryDisk()
    partition = follower(disk=disk, flush=FlushPolicy.BATCH)
    follow(partition, placed(0, 5))
    assert partition.needs_sync
    sync(partition, disk)
    assert not partition.needs_sync


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (placed(1, 5), "expected a batch at offset 2"),
        (placed(3, 5), "expected a batch at offset 2"),
        (placed(2, 5) + placed(4, 5), "expected a batch at offset 3"),
        (placed(2, 3), "expected epoch 4 or later"),
        (placed(2, 5) + placed(3, 4), "expected epoch 5 or later"),
        (placed(2, 5)[:-8], "does not fill"),
        (placed(2, 5) + b"\0" * 64, "magic"),
    ],
)
def test_what_is_out_of_place_is_not_appended(given: bytes, message: str) -> None:  # B18
    partition = follower((4, 2))
    with pytest.raises(CorruptRecord, match=message):
        follow(partition, given, high_watermark=2)
    assert (end_and_epochs(partition.log), partition.high_watermark) == ((2, 4), 0)


def test_what_is_damaged_is_not_appended_and_can_be_fetched_again() -> None:  # B18
    partition = follower((4, 2))
    good = placed(2, 5, b"a") + placed(3, 5, b"b")
    damaged = np.frombuffer(good, dtype=np.uint8).copy()
    damaged[-9] ^= 1
    with pytest.raises(CorruptRecord, match="orders-3: batch at offset 3: CRC-32C expected"):
        follow(partition, damaged.tobytes())
    assert end_and_epochs(partition.log) == (2, 4)
    follow(partition, good)
    assert partition.log.log_end_offset == 4


def test_records_of_a_later_epoch_than_its_own_are_refused() -> None:  # B26
    partition = follower((4, 2))
    with pytest.raises(UnknownLeaderEpoch, match="no epoch after 5"):
        follow(partition, placed(2, 5) + placed(3, 6))
    assert end_and_epochs(partition.log) == (2, 4)


@pytest.mark.parametrize(("epoch", "error"), [(4, FencedLeaderEpoch), (6, UnknownLeaderEpoch)])
def test_an_answer_of_another_leader_epoch_changes_nothing(epoch: int, error: type[ApiError]) -> None:  # B26
    partition = follower((4, 2))
    with pytest.raises(error):
        follow(partition, placed(2, 4), leader_epoch=epoch)
    with pytest.raises(error):
        partition.as_follower(epoch).truncate_to(OffsetAndEpoch(0, 4))
    with pytest.raises(error):
        partition.as_follower(epoch).on_out_of_range(leader_log_start_offset=9, leader_log_end_offset=9)
    assert end_and_epochs(partition.log) == (2, 4)


def test_a_state_of_an_older_partition_epoch_changes_nothing_of_a_follower() -> None:  # B16
    partition = follower((4, 2))
    partition.update_state(changed(leader_epoch=6, partition_epoch=8), now_ms=0)
    assert (partition.is_leader, partition.leader_epoch, end_and_epochs(partition.log)) == (False, 5, (2, 4))


def test_a_leader_follows_no_other() -> None:  # B26
    with pytest.raises(NotLeaderOrFollower, match="follows nobody"):
        follow(new_partition(), placed(0, 5))


def test_an_empty_log_begins_inside_the_batch_that_the_leader_begins_in() -> None:  # B25, G4
    partition = follower()
    partition.as_follower(5).on_out_of_range(leader_log_start_offset=4, leader_log_end_offset=6)
    follow(partition, placed(3, 5, b"a", b"b", b"c"), high_watermark=6, log_start_offset=4)
    assert (partition.log.log_start_offset, partition.log.log_end_offset, partition.high_watermark) == (
        4,
        6,
        6,
    )


def test_an_empty_log_begins_at_the_last_record_of_the_batch_that_the_leader_begins_in() -> None:  # B25, G4
    partition = follower()
    partition.as_follower(5).on_out_of_range(leader_log_start_offset=5, leader_log_end_offset=6)
    follow(partition, placed(3, 5, b"a", b"b", b"c"), high_watermark=6, log_start_offset=5)
    assert (partition.log.log_start_offset, partition.log.log_end_offset) == (5, 6)


def test_a_log_with_records_takes_no_batch_that_begins_before_its_end() -> None:  # B18
    partition = follower((5, 2))
    with pytest.raises(CorruptRecord, match="orders-3: expected a batch at offset 2"):
        follow(partition, placed(1, 5, b"a", b"b", b"c"))
    assert partition.log.log_end_offset == 2


def test_an_answer_says_whether_the_high_watermark_moved() -> None:  # B3
    partition = follower()
    moved = [
        follow(partition, placed(offset, 5), high_watermark=high_watermark)
        for offset, high_watermark in enumerate((1, 1, 2))
    ]
    assert moved == [True, False, True]


def test_a_followers_log_of_records_without_a_time_begins_a_new_segment_by_the_clock() -> None:  # F4
    partition = follower(segment_ms=1_000)
    timeless = RecordBatch(records(b"v", timestamp_ms=NO_TIMESTAMP))
    for offset, now_ms in enumerate((0, 10_000)):
        given = b"".join(map(bytes, timeless.stamped(base_offset=offset, leader_epoch=5)))
        partition.as_follower(5).append(given, high_watermark=0, log_start_offset=0, now_ms=now_ms)
    assert len(partition.log.segments) == 2


def test_a_follower_has_no_high_watermark_of_its_own() -> None:  # B1
    partition = follower((5, 1))
    assert not partition.maybe_increment_high_watermark(now_ms=0)
    assert repr(partition) == "<Partition orders-3 follower epoch=5 hw=0 leo=1 isr=[]>"


# ---- Truncating ----


def test_a_log_that_ends_before_the_epoch_that_the_leader_names_is_cut_by_its_word() -> None:  # B22
    for diverging, end_offset in ((OffsetAndEpoch(1, 5), 1), (OffsetAndEpoch(9, 5), 2)):
        partition = follower((4, 2))
        partition.as_follower(5).truncate_to(diverging)
        assert partition.log.log_end_offset == end_offset


@pytest.mark.parametrize(
    ("diverging", "left"),
    [
        (OffsetAndEpoch(4, 2), (4, 2)),  # the leader's epoch 2 ended earlier
        (OffsetAndEpoch(9, 2), (5, 2)),  # it ended earlier here
        (OffsetAndEpoch(9, 3), (5, 2)),  # epoch 3 is unknown here: as far as the one before, then asked again
        (OffsetAndEpoch(6, 4), (6, 4)),
        (OffsetAndEpoch(9, 4), (7, 4)),  # nothing to cut
        (OffsetAndEpoch(0, 1), (0, -1)),  # all of it is older there
    ],
)
def test_a_log_is_cut_where_both_lineages_part(
    diverging: OffsetAndEpoch, left: tuple[int, int]
) -> None:  # B22, B23
    partition = follower((2, 5), (4, 2))
    partition.as_follower(5).truncate_to(diverging)
    assert end_and_epochs(partition.log) == left


def test_committed_records_stay_although_the_high_watermark_is_not_known_yet() -> None:  # B22
    partition = follower((4, 3))
    partition.as_follower(5).truncate_to(OffsetAndEpoch(2, 4))
    assert (partition.high_watermark, partition.log.log_end_offset) == (0, 2)


def test_below_the_high_watermark_it_is_cut_too() -> None:  # B27
    partition = follower((4, 3))
    follow(partition, b"", high_watermark=3)
    partition.as_follower(5).truncate_to(OffsetAndEpoch(1, 4))
    assert (partition.high_watermark, partition.log.log_end_offset) == (1, 1)


def test_an_epoch_that_it_led_without_a_record_is_forgotten() -> None:  # B16, B22
    """Otherwise it would ask with that epoch for ever."""
    partition = follower((4, 2))
    partition.update_state(changed(leader_epoch=6, partition_epoch=11), now_ms=0)
    following = msgspec.structs.replace(LED_ELSEWHERE, leader_epoch=7, partition_epoch=12)
    partition.update_state(following, now_ms=0)
    assert position(partition) == OffsetAndEpoch(2, 6)
    partition.as_follower(7).truncate_to(OffsetAndEpoch(3, 4))
    assert position(partition) == OffsetAndEpoch(2, 4)


@pytest.mark.parametrize(
    ("leader_start", "leader_end", "left"),
    [
        (0, 2, (0, 2)),  # the leader's log is shorter
        (0, 9, (0, 4)),
        (4, 9, (0, 4)),
        (7, 9, (7, 7)),  # all of it was deleted there
    ],
)
def test_out_of_range_it_goes_on_where_both_can(
    leader_start: int, leader_end: int, left: tuple[int, int]
) -> None:  # B25
    partition = follower((4, 4))
    follow(partition, b"", high_watermark=4)
    partition.as_follower(5).on_out_of_range(
        leader_log_start_offset=leader_start, leader_log_end_offset=leader_end
    )
    assert (partition.log.log_start_offset, partition.log.log_end_offset) == left
    assert partition.high_watermark == left[1]


# ---- Consumers ----


def test_a_consumer_reads_a_follower_only_if_it_may_and_what_is_committed() -> None:  # G1, G15
    partition = follower((4, 3))
    follow(partition, b"", high_watermark=2)
    with pytest.raises(NotLeaderOrFollower):
        read(partition, 0)
    with pytest.raises(NotLeaderOrFollower):
        partition.read(
            fetch(0, current_leader_epoch=5),
            max_bytes=1,
            min_one_batch=True,
            is_follower=True,
            any_replica=True,
        )
    found = partition.read(
        fetch(0, current_leader_epoch=5), max_bytes=1 << 20, min_one_batch=True, any_replica=True
    )
    assert (found.next_offset, found.high_watermark) == (2, 2)
    with pytest.raises(FencedLeaderEpoch):
        partition.check_readable(4, any_replica=True)


@pytest.mark.parametrize(
    ("epoch", "error"),
    [(4, FencedLeaderEpoch), (5, NotLeaderOrFollower), (6, UnknownLeaderEpoch), (-1, NotLeaderOrFollower)],
)
def test_a_follower_checks_the_epoch_before_it_says_that_another_leads(
    epoch: int, error: type[ApiError]
) -> None:  # B24, G2
    partition = follower((4, 3))
    with pytest.raises(error):
        read(partition, 0, current_leader_epoch=epoch)
    with pytest.raises(error):
        result_of(partition.find_offset(LATEST_TIMESTAMP, epoch))


# ---- The histories of KIP-101 ----


def exchange(leader: Partition, partition: Partition) -> None:
    """Fetches until both logs are equal."""
    for _ in range(10):
        end = position(partition)
        asked = fetch(end.offset, current_leader_epoch=leader.leader_epoch, last_fetched_epoch=end.epoch)
        got = leader.read(asked, max_bytes=1 << 20, min_one_batch=True, is_follower=True)
        if got.diverging_epoch is not None:
            partition.as_follower(leader.leader_epoch).truncate_to(got.diverging_epoch)
        else:
            follow(
                partition, got.records, leader_epoch=leader.leader_epoch, high_watermark=got.high_watermark
            )
    assert partition.log.log_end_offset == leader.log.log_end_offset
    assert log_bytes(partition) == log_bytes(leader)


def log_bytes(partition: Partition) -> bytes:
    return partition.log.read(0, max_bytes=1 << 20, end_offset=partition.log.log_end_offset).records


def test_a_follower_that_restarts_and_leads_at_once_loses_nothing() -> None:  # B22, B23
    """1. Both have records 0 and 1; the follower does not know yet that 1 is committed. 2. It restarts, and would have
    cut its log at its high watermark. 3. The leader dies; what the follower has cut, no replica has.
    """
    leader, partition = new_partition(state=changed(leader_epoch=5)), follower()
    append(leader, b"a")
    append(leader, b"b")
    exchange(leader, partition)
    partition.load_high_watermark(1)
    exchange(leader, partition)
    partition.update_state(changed(leader_epoch=6, partition_epoch=11), now_ms=0)
    assert (partition.log.log_end_offset, partition.high_watermark) == (2, 2)


def test_logs_that_were_written_apart_become_one() -> None:  # B22, B23
    """1. The follower lacks record 1 when both lose power. 2. It comes first, and as leader writes another record 1.
    3. The old leader has the same end offset, so only the epochs tell that its record 1 is not the leader's.
    """
    old, new = new_partition(state=changed(leader_epoch=5)), follower()
    append(old, b"a")
    exchange(old, new)
    append(old, b"b")
    new.update_state(changed(leader_epoch=6, partition_epoch=11), now_ms=0)
    append(new, b"x")
    assert old.log.log_end_offset == new.log.log_end_offset
    old.update_state(msgspec.structs.replace(LED_ELSEWHERE, leader_epoch=6, partition_epoch=11), now_ms=0)
    exchange(new, old)


def test_logs_with_epochs_that_the_other_lacks_become_one() -> None:  # B22, B23
    """KIP-279: leaders changed fast, and each wrote records that no other replica has."""
    leader = follower((1, 2), (2, 1), (5, 2))
    leader.update_state(changed(leader_epoch=8, partition_epoch=11), now_ms=0)
    append(leader, b"new")
    partition = follower((1, 2), (3, 2), (4, 1))
    following = msgspec.structs.replace(LED_ELSEWHERE, leader_epoch=8, partition_epoch=11)
    partition.update_state(following, now_ms=0)
    exchange(leader, partition)


def test_offsets_may_be_missing_below_the_leaders_high_watermark_only() -> None:  # F22, B18
    partition = follower((4, 2))
    with pytest.raises(CorruptRecord, match="expected a batch at offset 2"):
        follow(partition, placed(7, 5), high_watermark=6)
    follow(partition, placed(7, 5), high_watermark=7)
    assert partition.log.log_end_offset == 8


def test_in_a_compacted_topic_offsets_may_be_missing_anywhere() -> None:  # F22
    """A leader that has restarted knows a lower high watermark, which may rise only once its follower has copied."""
    partition = follower((4, 2), cleanup_policy="compact")
    follow(partition, placed(7, 5), high_watermark=0)
    assert partition.log.log_end_offset == 8
