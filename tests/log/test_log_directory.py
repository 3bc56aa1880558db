"""Data directories: their owners, how they were left, and what survives a crash (B4, B30, H3, design §4)."""

import asyncio
import shutil
import tempfile
from functools import partial
from random import Random

import pytest

from rayka.config.topic_config import TopicConfig
from rayka.errors import InconsistentTopicId, StorageError
from rayka.ids import TopicPartition
from rayka.log.checkpoint_files import LOG_START_OFFSET_FILE as STARTS_FILE
from rayka.log.checkpoint_files import RECOVERY_POINT_FILE as POINTS_FILE
from rayka.log.checkpoint_files import read_offsets as read_offsets_file
from rayka.log.local_disk import LocalDisk
from rayka.log.log_directory import LogDirectory
from rayka.log.log_files import SLICE_BATCHES
from rayka.log.mapped_reader import MappedReader
from rayka.log.shutdown_files import BOOT_FILE, CLEAN_SHUTDOWN_FILE
from rayka.testing.memory_disk import MemoryDisk
from tests.log.directory_support import (
    DIRECTORY_ID,
    ORDERS,
    OTHER_TOPIC_ID,
    PATH,
    TOPIC_ID,
    formatted_disk,
    open_directory,
    open_orders,
    run,
)
from tests.log.support import SMALL, fill, ranges_of, read_offsets, result_of


@pytest.fixture
def disk() -> MemoryDisk:
    return formatted_disk()


# ---- Whose it is ----


def test_a_formatted_directory_survives_power_loss_and_opens(disk: MemoryDisk) -> None:
    disk.power_loss(Random(0))
    directory = open_directory(disk)
    assert (directory.node_id, directory.directory_id, directory.cluster_id) == (1, DIRECTORY_ID, "")
    assert repr(directory) == "<LogDirectory /data/broker-1 of broker-1 logs=0>"


def test_a_directory_is_formatted_once(disk: MemoryDisk) -> None:
    with pytest.raises(StorageError, match="/data/broker-1 is formatted already"):
        run(LogDirectory.format(disk, PATH, node_id=1, directory_id=DIRECTORY_ID))


def test_a_missing_directory_is_refused() -> None:
    with pytest.raises(StorageError, match=r"data directory /gone of broker-1 is missing; .*--replace 1:"):
        run(LogDirectory.open(MemoryDisk(), "/gone", node_id=1))


def test_an_unformatted_directory_is_refused() -> None:
    disk = MemoryDisk()
    disk.make_directory(PATH)
    with pytest.raises(StorageError, match=r"is not formatted: expected meta\.properties"):
        open_directory(disk)


def test_a_directory_of_another_node_is_refused(disk: MemoryDisk) -> None:
    with pytest.raises(StorageError, match="/data/broker-1 belongs to broker-1, expected controller-3001"):
        run(LogDirectory.open(disk, PATH, node_id=3001))


def test_a_directory_formatted_for_a_cluster_is_that_clusters() -> None:
    disk = MemoryDisk()
    run(LogDirectory.format(disk, PATH, node_id=1, directory_id=DIRECTORY_ID, cluster_id="ours"))
    assert open_directory(disk, "ours").cluster_id == "ours"


def test_a_directory_that_has_no_cluster_yet_opens_in_any(disk: MemoryDisk) -> None:
    assert open_directory(disk, "ours").cluster_id == ""


def test_a_directory_of_another_cluster_is_refused(disk: MemoryDisk) -> None:
    directory = open_directory(disk)
    run(directory.adopt_cluster_id("ours"))
    with pytest.raises(StorageError, match=f"{PATH} belongs to cluster ours, expected cluster theirs"):
        run(directory.adopt_cluster_id("theirs"))
    directory.release()
    with pytest.raises(StorageError, match="belongs to cluster ours, expected cluster theirs"):
        open_directory(disk, "theirs")
    assert open_directory(disk, "ours").cluster_id == "ours"


def test_damaged_meta_properties_are_refused(disk: MemoryDisk) -> None:
    disk.write(f"{PATH}/meta.properties", b"node.id=")
    with pytest.raises(StorageError, match=r"meta\.properties is damaged"):
        open_directory(disk)


def test_a_directory_in_use_is_refused_and_free_after_its_process_died(disk: MemoryDisk) -> None:
    open_directory(disk)
    with pytest.raises(StorageError, match=r"/data/broker-1 is in use: .*\.lock is locked by"):
        open_directory(disk)
    disk.process_crash()
    open_directory(disk)


def test_a_failed_open_leaves_no_lock(disk: MemoryDisk) -> None:
    disk.fail("read", "checkpoint")
    disk.write(f"{PATH}/recovery-point-offset-checkpoint", b"0\n0\n")
    with pytest.raises(StorageError, match="Input/output"):
        open_directory(disk)
    open_directory(disk)


# ---- How it was left ----


def test_after_a_clean_shutdown_nothing_is_scanned_and_everything_is_durable(disk: MemoryDisk) -> None:
    directory = open_directory(disk)
    directory.shutdown.record_broker_epoch(5)
    log = open_orders(directory)
    fill(log, 30, epoch=2)
    run(directory.close({ORDERS: 60}, broker_epoch=5))
    disk.power_loss(Random(3))
    again = open_directory(disk)  # B30
    assert (
        again.shutdown.was_clean,
        again.shutdown.previous_broker_epoch,
        again.shutdown.known_broker_epoch,
    ) == (True, 5, 5)
    assert not disk.exists(f"{PATH}/{CLEAN_SHUTDOWN_FILE}")
    log = open_orders(again)
    assert (log.recovery.scanned_bytes, read_offsets(log), log.latest_epoch) == (0, list(range(60)), 2)
    assert (again.checkpoints.high_watermarks.get(ORDERS), log.flushed_offset) == (60, 60)  # B4


def test_a_process_that_is_killed_before_it_registers_leaves_a_clean_shutdown_behind_as_it_was(
    disk: MemoryDisk,
) -> None:  # H3
    directory = open_directory(disk)
    fill(open_orders(directory), 30)
    run(directory.close({ORDERS: 60}, broker_epoch=5))
    disk.power_loss(Random(3))
    open_directory(disk)
    disk.process_crash()
    assert open_directory(disk).shutdown.previous_broker_epoch == 5
    disk.power_loss(Random(3))
    assert open_directory(disk).shutdown.previous_broker_epoch == -1  # by now there may be something to lose


def test_a_killed_process_counts_as_clean_for_its_registration_and_its_logs_are_scanned(
    disk: MemoryDisk,
) -> None:
    directory = open_directory(disk)
    directory.shutdown.record_broker_epoch(5)
    fill(open_orders(directory), 30)
    disk.process_crash()
    again = open_directory(disk)
    log = open_orders(again)
    assert (again.shutdown.was_clean, again.shutdown.previous_broker_epoch) == (False, 5)  # H3, design §4
    assert (log.recovery.scanned_bytes > 0, read_offsets(log)) == (True, list(range(60)))


def test_after_a_failure_only_the_epoch_is_known(disk: MemoryDisk) -> None:  # H2, H3
    directory = open_directory(disk)
    directory.shutdown.record_broker_epoch(5)
    directory.go_offline(StorageError("broken"))
    directory.shutdown.record_broker_epoch(6)  # says no more
    disk.process_crash()
    again = open_directory(disk)
    assert (again.shutdown.previous_broker_epoch, again.shutdown.known_broker_epoch) == (-1, 5)


def test_a_machine_that_lost_power_may_have_lost_records_and_says_so(disk: MemoryDisk) -> None:
    directory = open_directory(disk)
    directory.shutdown.record_broker_epoch(5)
    disk.sync_now([f"{PATH}/{BOOT_FILE}"], [PATH])
    disk.power_loss(Random(0))
    again = open_directory(disk)
    assert (again.shutdown.previous_broker_epoch, again.shutdown.known_broker_epoch) == (-1, 5)  # H3, H2


def _damage(disk: MemoryDisk) -> None:
    """Flips a bit in the body of the second batch of orders-0."""
    disk.flip_bit(f"{PATH}/orders-0/{0:020d}.log", 400)


def _lose_only_the_page_cache(disk: MemoryDisk) -> None:
    """A power cut that takes nothing, as it may be."""
    names = [f"{PATH}/orders-0/{name}" for name in disk.list(f"{PATH}/orders-0")]
    disk.sync_now([*names, f"{PATH}/{BOOT_FILE}"], [f"{PATH}/orders-0", PATH])
    disk.power_loss(Random(0))


def test_under_the_same_boot_id_nothing_is_cut_for_damage_in_the_middle(disk: MemoryDisk) -> None:
    for _ in range(3):
        log = open_orders(open_directory(disk))
        fill(log, 30 - log.log_end_offset // 2)
        disk.process_crash()
    _damage(disk)
    log = open_orders(open_directory(disk))
    assert (log.recovery.cut, len(log.recovery.damaged), log.log_end_offset) == (None, 1, 60)


def test_under_another_boot_id_it_is_cut_also_by_the_second_process_that_tries(disk: MemoryDisk) -> None:
    directory = open_directory(disk)
    fill(open_orders(directory), 30)
    _lose_only_the_page_cache(disk)
    _damage(disk)
    open_directory(disk).shutdown.record_broker_epoch(5)
    disk.process_crash()  # before it opened the log
    log = open_orders(open_directory(disk))
    assert (log.log_end_offset, len(log.recovery.kept_paths) > 0) == (2, True)  # B31


def test_a_log_recovered_since_the_power_cut_is_not_cut_after_a_kill(disk: MemoryDisk) -> None:
    fill(open_orders(open_directory(disk)), 30)
    _lose_only_the_page_cache(disk)
    for _ in range(2):
        log = open_orders(open_directory(disk))
        assert log.log_end_offset == 60
        disk.process_crash()
    _damage(disk)
    assert open_orders(open_directory(disk)).recovery.cut is None


def test_after_a_failed_sync_the_page_cache_is_not_trusted(disk: MemoryDisk) -> None:
    directory = open_directory(disk)
    fill(open_orders(directory), 30)
    disk.fail("sync")
    with pytest.raises(StorageError):
        run(directory.sync(list(directory.logs.values())))
    disk.process_crash()
    _damage(disk)
    assert open_orders(open_directory(disk)).log_end_offset == 2


def test_a_log_whose_every_append_is_synced_is_not_cut_under_another_boot_id_either(disk: MemoryDisk) -> None:
    fill(open_orders(open_directory(disk)), 30)
    _lose_only_the_page_cache(disk)
    _damage(disk)
    log = result_of(open_directory(disk).open_log(ORDERS, TOPIC_ID, SMALL, now_ms=0, is_always_synced=True))
    assert (log.recovery.cut, len(log.recovery.damaged)) == (None, 1)


def test_a_clean_shutdown_counts_once_even_if_power_is_lost_right_after_the_next_start(
    disk: MemoryDisk,
) -> None:
    run(open_directory(disk).close({}, broker_epoch=5))
    for seed in range(10):
        open_directory(disk)
        disk.power_loss(Random(seed))
        assert not disk.exists(f"{PATH}/{CLEAN_SHUTDOWN_FILE}")


def test_a_clean_shutdown_does_not_come_back_when_the_process_that_took_it_was_killed_before_its_sync(
    disk: MemoryDisk,
) -> None:
    run(open_directory(disk).close({}, broker_epoch=5))
    for seed in range(20):
        disk.unlink(f"{PATH}/{CLEAN_SHUTDOWN_FILE}")
        open_directory(disk)
        disk.power_loss(Random(seed))
        again = open_directory(disk)
        assert not again.shutdown.was_clean, seed
        run(again.close({}, broker_epoch=5))


def test_a_torn_clean_shutdown_file_is_none(disk: MemoryDisk) -> None:
    disk.write(f"{PATH}/{CLEAN_SHUTDOWN_FILE}", b'{"version": 0, "brok')
    assert not open_directory(disk).shutdown.was_clean


def test_a_directory_with_a_failed_log_is_not_shut_down_cleanly(disk: MemoryDisk) -> None:
    directory = open_directory(disk)
    log = open_orders(directory)
    disk.tear_next_append(f"{PATH}/orders-0/{0:020d}.log", 10)
    with pytest.raises(StorageError):
        fill(log, 1)
    run(directory.close({}, broker_epoch=5))
    assert not open_directory(disk).shutdown.was_clean


def test_a_failed_sync_takes_the_directory_offline_for_good(disk: MemoryDisk) -> None:
    directory = open_directory(disk)
    directory.shutdown.record_broker_epoch(5)
    log = open_orders(directory)
    fill(log, 1)
    disk.fail("sync", "orders-0")
    with pytest.raises(StorageError, match="cannot sync"):
        run(directory.sync([log]))
    with pytest.raises(StorageError, match="/data/broker-1 is offline: cannot sync"):
        run(directory.sync([log]))
    assert (log.flushed_offset, repr(directory).endswith("offline>")) == (0, True)
    run(directory.close({}, broker_epoch=5))
    again = open_directory(disk)
    assert (again.shutdown.was_clean, again.shutdown.previous_broker_epoch) == (False, -1)


# ---- Logs ----


def test_one_sync_makes_several_logs_durable(disk: MemoryDisk) -> None:
    directory = open_directory(disk)
    logs = [
        result_of(directory.open_log(TopicPartition("orders", number), TOPIC_ID, SMALL, now_ms=0))
        for number in range(3)
    ]
    for log in logs:
        fill(log, 3)
    run(directory.sync(logs))
    disk.power_loss(Random(1))
    again = open_directory(disk)
    assert again.partitions.all() == {TopicPartition("orders", number): TOPIC_ID for number in range(3)}
    for number in range(3):
        log = result_of(again.open_log(TopicPartition("orders", number), TOPIC_ID, SMALL, now_ms=0))
        assert read_offsets(log) == list(range(6))


def test_a_checkpoint_spares_the_next_start_the_scan_of_what_is_durable(disk: MemoryDisk) -> None:
    directory = open_directory(disk)
    log = open_orders(directory)
    fill(log, 60)
    run(directory.sync([log]))
    run(directory.checkpoint(lambda: {ORDERS: 90}))
    disk.process_crash()
    again = open_directory(disk)
    log = open_orders(again)
    assert 0 < log.recovery.scanned_bytes <= SMALL.segment_bytes
    assert (again.checkpoints.high_watermarks.get(ORDERS), log.flushed_offset) == (90, 120)


def test_a_checkpoint_is_written_by_each_process_and_then_when_something_has_changed(
    disk: MemoryDisk,
) -> None:
    directory, inodes = open_directory(disk), set()

    def checkpoint(high_watermark: int) -> int:
        run(directory.checkpoint(lambda: {ORDERS: high_watermark}))
        inodes.add(disk.identity(f"{PATH}/{POINTS_FILE}").inode)
        return len(inodes)

    fill(open_orders(directory), 100)
    assert [checkpoint(90), checkpoint(90), checkpoint(91)] == [1, 1, 2]
    disk.fail("sync", "checkpoint")
    with pytest.raises(StorageError):
        checkpoint(92)
    directory.release()
    directory = open_directory(disk)
    open_orders(directory)
    assert [checkpoint(91), checkpoint(91)] == [3, 3]


def test_a_checkpoint_keeps_what_it_says_of_partitions_not_opened_yet(disk: MemoryDisk) -> None:
    directory = open_directory(disk)
    fill(open_orders(directory), 3)
    run(directory.close({ORDERS: 6}))
    again = open_directory(disk)
    run(again.checkpoint())
    assert again.checkpoints.high_watermarks.get(ORDERS) == 6


def test_a_directory_of_another_topic_of_that_name_is_refused(disk: MemoryDisk) -> None:
    directory = open_directory(disk)
    fill(open_orders(directory), 1)
    directory.release()
    with pytest.raises(InconsistentTopicId, match=f"is of topic {TOPIC_ID}, expected {OTHER_TOPIC_ID}"):
        result_of(open_directory(disk).open_log(ORDERS, OTHER_TOPIC_ID, SMALL, now_ms=0))


def test_a_log_is_opened_once(disk: MemoryDisk) -> None:
    directory = open_directory(disk)
    open_orders(directory)
    with pytest.raises(AssertionError, match=f"{PATH} of broker-1 .*has the log of orders-0 open already"):
        open_orders(directory)


def test_a_deleted_log_is_gone_and_its_name_is_free(disk: MemoryDisk) -> None:
    directory = open_directory(disk)
    fill(open_orders(directory), 3)
    run(directory.checkpoint(lambda: {ORDERS: 6}))
    directory.delete_log(ORDERS)
    assert (
        directory.partitions.all(),
        directory.logs,
        directory.checkpoints.high_watermarks.get(ORDERS),
    ) == ({}, {}, None)
    log = result_of(directory.open_log(ORDERS, OTHER_TOPIC_ID, SMALL, now_ms=0))
    assert log.log_end_offset == 0


def test_a_new_log_has_no_files_before_its_first_record(disk: MemoryDisk) -> None:
    directory = open_directory(disk)
    before = disk.list(PATH)
    log = open_orders(directory)
    log.assign_epoch(3, 0)
    assert (disk.list(PATH), log.unsynced().is_empty, log.read(0, max_bytes=1, end_offset=0).records) == (
        before, True, b"",
    )  # fmt: skip
    fill(log, 1, epoch=3)
    assert directory.partitions.all() == {ORDERS: TOPIC_ID}
    assert PATH in log.unsynced().directories
    disk.process_crash()
    again = open_orders(open_directory(disk))
    assert (read_offsets(again), again.latest_epoch) == ([0, 1], 3)


def test_logs_without_records_are_checkpointed_closed_and_deleted_like_others(disk: MemoryDisk) -> None:
    directory = open_directory(disk)
    log = open_orders(directory)
    run(directory.checkpoint(lambda: {ORDERS: 0}))
    log.roll(0)
    log.truncate_to(0)
    run(directory.close({ORDERS: 0}))
    again = open_directory(disk)
    assert (again.shutdown.was_clean, open_orders(again).log_end_offset) == (True, 0)
    again.delete_log(ORDERS)
    assert again.partitions.all() == {}


def test_the_longest_topic_name_can_be_deleted() -> None:
    root = tempfile.mkdtemp()
    real, path = LocalDisk(), f"{root}/broker-1"

    async def cycle() -> None:
        await LogDirectory.format(real, path, node_id=1, directory_id=DIRECTORY_ID)
        directory = await LogDirectory.open(real, path, node_id=1)
        longest = [TopicPartition("t" * 249, number) for number in (0, 99_999)]
        for each in longest:
            fill(result_of(directory.open_log(each, TOPIC_ID, SMALL, now_ms=0)), 1)
        for each in longest:
            directory.delete_log(each)
        assert directory.partitions.all() == {}
        directory.release()

    run(cycle())
    real.close()
    shutil.rmtree(root)


def test_the_recovery_point_of_a_deleted_log_says_nothing_of_the_next_one(disk: MemoryDisk) -> None:
    directory = open_directory(disk)
    fill(open_orders(directory), 30)
    run(directory.sync(list(directory.logs.values())))
    run(directory.checkpoint(lambda: {ORDERS: 60}))
    directory.delete_log(ORDERS)
    log = result_of(directory.open_log(ORDERS, OTHER_TOPIC_ID, SMALL, now_ms=0))
    fill(log, 20)
    disk.append(f"{PATH}/orders-0/{32:020d}.log", [b"torn"])
    disk.process_crash()
    again = result_of(open_directory(disk).open_log(ORDERS, OTHER_TOPIC_ID, SMALL, now_ms=0))
    assert (read_offsets(again), again.flushed_offset) == (list(range(40)), 0)
    assert again.recovery.cut is not None


@pytest.mark.parametrize("seed", range(24))
def test_no_recovery_point_is_on_disk_before_the_log_start_that_it_rests_on(
    disk: MemoryDisk, seed: int
) -> None:  # F13, A51
    directory = open_directory(disk)
    log = open_orders(directory)
    fill(log, 30)
    log.increment_log_start_offset(40)
    run(directory.sync([log]))
    checkpoint = directory.checkpoint()
    for _ in range(2):  # until it waits for the second sync: the files have their names, and none is durable
        checkpoint.send(None)
    checkpoint.close()
    disk.power_loss(Random(seed))
    points, starts = (read_offsets_file(disk, f"{PATH}/{name}") for name in (POINTS_FILE, STARTS_FILE))
    assert starts == {ORDERS: 40} or points == {}


def test_a_deleted_log_keeps_its_files_until_they_are_removed(disk: MemoryDisk) -> None:
    directory = open_directory(disk)
    fill(open_orders(directory), 1)
    path = directory.delete_log(ORDERS)
    assert path == f"{PATH}/orders-0.{TOPIC_ID.hex}-delete"
    assert f"{0:020d}.log" in disk.list(path)
    directory.release()
    again = open_directory(disk)
    assert (again.partitions.all(), again.partitions.deleted()) == ({}, [path])
    run(again.remove_deleted(again.partitions.deleted()))
    assert not disk.exists(path)


def test_a_reader_that_has_mapped_a_deleted_log_keeps_its_bytes_and_no_other_maps_it() -> None:
    root = tempfile.mkdtemp()
    disk = LocalDisk()

    async def cycle() -> None:
        await LogDirectory.format(disk, root, node_id=1, directory_id=DIRECTORY_ID)
        directory = await LogDirectory.open(disk, root, node_id=1)
        log = result_of(directory.open_log(ORDERS, TOPIC_ID, SMALL, now_ms=0))
        fill(log, 1)
        (given,) = ranges_of(log, 0, max_bytes=1000, end_offset=2)
        reader = MappedReader()
        view = reader.read(given)
        assert view is not None
        before = bytes(view)
        path = directory.delete_log(ORDERS)
        assert path is not None
        assert MappedReader().read(given) is None
        await directory.remove_deleted([path])
        assert not disk.exists(path)
        assert (bytes(view), reader.read(given)) == (before, before)
        directory.release()

    run(cycle())
    disk.close()
    shutil.rmtree(root)


@pytest.mark.parametrize("steps", range(14))
def test_a_power_cut_leaves_a_deleted_log_whole_or_takes_it(disk: MemoryDisk, steps: int) -> None:
    """However far the removal has come: a part of a log under its name might be opened as the whole."""
    directory = open_directory(disk)
    log = open_orders(directory)
    fill(log, 30)
    run(directory.sync([log]))

    async def delete_in_part() -> None:
        await directory.forget([ORDERS])
        path = directory.delete_log(ORDERS)
        assert path is not None
        removing = asyncio.create_task(directory.remove_deleted([path]))
        for _ in range(steps):
            await asyncio.sleep(0)
        removing.cancel()

    run(delete_in_part())
    disk.power_loss(Random(steps))
    again = open_directory(disk)
    if ORDERS in again.partitions.all():
        assert read_offsets(open_orders(again)) == list(range(60))
    else:
        run(again.remove_deleted(again.partitions.deleted()))
        assert not [name for name in disk.list(PATH) if name.startswith("orders")]


def test_on_the_real_disk_a_directory_is_locked_closed_and_opened_again() -> None:
    root = tempfile.mkdtemp()
    disk, path = LocalDisk(), f"{root}/nested/broker-1"

    async def cycle() -> None:
        await LogDirectory.format(disk, path, node_id=1, directory_id=DIRECTORY_ID, cluster_id="ours")
        directory = await LogDirectory.open(disk, path, node_id=1, cluster_id="ours")
        with pytest.raises(StorageError, match=r"in use: .*locked by process \d+"):
            await LogDirectory.open(disk, path, node_id=1)
        fill(result_of(directory.open_log(ORDERS, TOPIC_ID, SMALL, now_ms=0)), 30)
        await directory.close({ORDERS: 60}, broker_epoch=3)
        again = await LogDirectory.open(disk, path, node_id=1)
        log = result_of(again.open_log(ORDERS, TOPIC_ID, SMALL, now_ms=0))
        assert (again.shutdown.was_clean, read_offsets(log)) == (True, list(range(60)))
        again.release()

    run(cycle())
    disk.close()
    shutil.rmtree(root)


def test_a_log_that_is_recovered_is_opened_in_several_turns_of_the_event_loop(disk: MemoryDisk) -> None:
    directory = open_directory(disk)
    fill(open_orders(directory, TopicConfig()), 3 * SLICE_BATCHES)
    disk.process_crash()
    opening = open_directory(disk).open_log(ORDERS, TOPIC_ID, TopicConfig(), now_ms=0)
    for _ in range(3):
        opening.send(None)  # it is not done
    assert result_of(opening).log_end_offset == 6 * SLICE_BATCHES


def test_checkpoints_wait_for_each_other(disk: MemoryDisk) -> None:
    directory = open_directory(disk)
    fill(open_orders(directory), 3)

    async def together() -> None:
        await asyncio.gather(*(directory.checkpoint(partial(dict, {ORDERS: number})) for number in (2, 4, 6)))

    run(together())
    directory.release()
    assert open_directory(disk).checkpoints.high_watermarks.get(ORDERS) == 6
