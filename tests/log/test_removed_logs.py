"""Logs that are deleted, set aside or forgotten: their files, and the directory's memory of them."""

from random import Random

import pytest

from rayka.ids import TopicPartition
from rayka.log.checkpoint_files import HIGH_WATERMARK_FILE
from rayka.log.log_directory import LogDirectory
from rayka.testing.memory_disk import MemoryDisk
from tests.log.directory_support import (
    ORDERS,
    OTHER_TOPIC_ID,
    PATH,
    TOPIC_ID,
    formatted_disk,
    open_directory,
    open_orders,
    run,
)
from tests.log.support import SMALL, fill, read_offsets, result_of


def _filled() -> tuple[MemoryDisk, LogDirectory]:
    disk = formatted_disk()
    directory = open_directory(disk)
    log = open_orders(directory)
    fill(log, 3)
    run(directory.sync([log]))
    run(directory.checkpoint(lambda: {ORDERS: 6}))
    return disk, directory


def test_a_log_that_is_set_aside_keeps_its_files_under_a_name_that_nothing_reads_or_removes() -> None:  # F4
    disk, directory = _filled()
    kept = directory.set_aside_log(ORDERS)
    assert kept == f"{PATH}/orders-0.{TOPIC_ID.hex}-stray"
    assert f"{0:020d}.log" in disk.list(kept)
    assert (
        directory.logs,
        directory.partitions.all(),
        directory.checkpoints.high_watermarks.get(ORDERS),
    ) == ({}, {}, None)
    directory.release()
    again = open_directory(disk)
    assert (again.partitions.all(), again.partitions.deleted(), disk.exists(kept)) == ({}, [], True)


def test_setting_aside_a_log_that_is_not_there_moves_nothing() -> None:
    _, directory = _filled()
    other = TopicPartition("orders", 1)
    assert (directory.set_aside_log(other), directory.delete_log(other)) == (None, None)
    assert directory.partitions.all() == {ORDERS: TOPIC_ID}


def test_the_name_of_a_log_that_was_set_aside_is_free_and_nothing_is_missed_in_the_next_one() -> None:
    disk, directory = _filled()
    run(directory.forget([ORDERS]))
    directory.set_aside_log(ORDERS)
    log = result_of(directory.open_log(ORDERS, OTHER_TOPIC_ID, SMALL, now_ms=0))
    fill(log, 1)
    assert read_offsets(log) == [0, 1]
    disk.process_crash()
    again = result_of(open_directory(disk).open_log(ORDERS, OTHER_TOPIC_ID, SMALL, now_ms=0))
    assert read_offsets(again) == [0, 1]


@pytest.mark.parametrize("suffix", ["stray", "delete"])
def test_a_log_that_goes_comes_back_and_goes_again_overwrites_none_that_went_before(suffix: str) -> None:
    disk, directory = _filled()
    go = directory.set_aside_log if suffix == "stray" else directory.delete_log
    stem = f"{PATH}/orders-0.{TOPIC_ID.hex}"
    for expected in (f"{stem}-{suffix}", f"{stem}.2-{suffix}", f"{stem}.3-{suffix}"):
        assert go(ORDERS) == expected
        fill(open_orders(directory), 1)
    assert disk.exists(f"{stem}-{suffix}/{0:020d}.log")


def test_a_log_of_a_topic_whose_id_is_not_known_can_be_deleted_too() -> None:
    disk, directory = _filled()
    disk.write(f"{PATH}/orders-0/partition.metadata", b"")
    assert directory.delete_log(ORDERS) == f"{PATH}/orders-0.unknown-delete"


@pytest.mark.parametrize("is_kept", [True, False])
def test_a_log_that_is_gone_need_not_be_recovered_before_a_clean_shutdown(is_kept: bool) -> None:  # B30
    disk, directory = _filled()
    disk.process_crash()
    directory = open_directory(disk)
    if is_kept:
        directory.set_aside_log(ORDERS)
    else:
        directory.delete_log(ORDERS)
    run(directory.close({}))
    assert open_directory(disk).shutdown.was_clean


def test_a_log_that_was_never_recovered_leaves_no_clean_shutdown() -> None:  # B30
    disk, _ = _filled()
    disk.process_crash()
    run(open_directory(disk).close({}))
    assert not open_directory(disk).shutdown.was_clean


def test_what_is_forgotten_is_out_of_the_checkpoints_before_anything_else_happens() -> None:
    disk = formatted_disk()
    directory = open_directory(disk)
    fill(open_orders(directory), 1)
    run(directory.checkpoint(lambda: {ORDERS: 1}))  # the least that can be saved
    run(directory.forget([ORDERS]))
    disk.power_loss(Random(0))
    assert open_directory(disk).checkpoints.high_watermarks.get(ORDERS) is None


def test_forgetting_logs_of_which_nothing_is_saved_writes_nothing() -> None:
    disk = formatted_disk()
    directory = open_directory(disk)
    fill(open_orders(directory), 1)
    run(directory.forget([ORDERS, TopicPartition("orders", 1)]))
    assert not disk.exists(f"{PATH}/{HIGH_WATERMARK_FILE}")


def test_a_log_that_was_emptied_before_its_directory_was_removed_is_not_missed() -> None:  # A51
    disk, directory = _filled()
    directory.logs[ORDERS].increment_log_start_offset(6)
    run(directory.checkpoint(lambda: {ORDERS: 6}))
    disk.process_crash()
    disk.remove_directory(f"{PATH}/orders-0")
    log = open_orders(open_directory(disk))
    assert (log.log_start_offset, log.log_end_offset) == (6, 6)


def test_a_clean_shutdown_that_names_no_epoch_is_clean_all_the_same() -> None:  # B30, H3
    disk = formatted_disk()
    disk.write(f"{PATH}/.kafka_cleanshutdown", b'{"version": 0}')
    directory = open_directory(disk)
    assert (directory.shutdown.was_clean, directory.shutdown.previous_broker_epoch) == (True, -1)
