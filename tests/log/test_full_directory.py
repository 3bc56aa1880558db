"""A data directory whose disk is full, and one whose disk failed: errors, records kept, and going on."""

import logging

import pytest

from rayka.config.topic_config import TopicConfig
from rayka.errors import DiskFull, StorageError
from rayka.log.log import Log
from rayka.log.log_directory import LogDirectory
from rayka.log.shutdown_files import BOOT_FILE
from rayka.testing.memory_disk import MemoryDisk
from tests.log.directory_support import (
    DIRECTORY_ID,
    ORDERS,
    PATH,
    TOPIC_ID,
    formatted_disk,
    open_directory,
    open_orders,
    run,
)
from tests.log.support import SMALL, batch, fill, read_offsets, result_of

ROOM_BYTES = 1 << 20
FULL = DiskFull("cannot append to /data/broker-1/orders-0: disk full")


def _said(caplog: pytest.LogCaptureFixture, level: int) -> list[str]:
    return [each.getMessage() for each in caplog.records if each.levelno == level]


# ---- No room ----


def test_a_full_directory_is_logged_once_with_what_met_no_room(caplog: pytest.LogCaptureFixture) -> None:
    directory = open_directory(formatted_disk())
    directory.on_full(FULL)
    directory.on_full(DiskFull("another write"))
    assert (directory.full, _said(caplog, logging.ERROR)) == (
        FULL,
        [f"{PATH} takes no writes until {FULL.until}: {FULL}"],
    )


def test_a_directory_that_others_lead_for_stays_reported_until_there_is_room(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO)
    directory = open_directory(formatted_disk())
    directory.on_full(FULL, is_reported_offline=True)
    directory.on_full(FULL)
    assert (directory.is_reported_offline, directory.has_recovered) == (True, False)
    directory.on_room()
    assert (directory.full, directory.is_reported_offline, directory.has_recovered) == (None, False, True)
    assert _said(caplog, logging.INFO) == [f"{PATH} takes writes again"]


def test_a_directory_that_was_full_and_never_reported_has_nothing_to_recover_from() -> None:
    directory = open_directory(formatted_disk())
    directory.on_full(FULL)
    assert not directory.is_reported_offline
    directory.on_room()
    assert (directory.full, directory.has_recovered) == (None, False)


def test_a_directory_that_has_recovered_once_says_so_also_after_it_was_full_again() -> None:
    directory = open_directory(formatted_disk())
    directory.on_full(FULL, is_reported_offline=True)
    directory.on_room()
    directory.on_full(FULL)
    directory.on_room()
    assert directory.has_recovered


@pytest.mark.parametrize(("free_bytes", "has_room"), [(ROOM_BYTES - 1, False), (ROOM_BYTES, True)])
def test_there_is_room_when_a_mebibyte_can_be_written(free_bytes: int, has_room: bool) -> None:
    disk = formatted_disk()
    directory = open_directory(disk)
    before = disk.list(PATH)
    disk.fill_up(after_bytes=free_bytes)
    assert directory.has_room() is has_room
    assert disk.list(PATH) == before


def test_a_disk_that_fails_when_it_is_asked_for_room_is_not_taken_for_a_full_one() -> None:
    disk = formatted_disk()
    directory = open_directory(disk)
    disk.fail("write")
    with pytest.raises(StorageError, match="Input/output"):
        directory.has_room()


def test_checkpoints_that_find_no_room_stay_what_they_were_and_the_directory_stays_online() -> None:
    disk = formatted_disk()
    directory = open_directory(disk)
    fill(open_orders(directory), 3)
    run(directory.checkpoint(lambda: {ORDERS: 2}))
    disk.fill_up()
    with pytest.raises(DiskFull):
        run(directory.checkpoint(lambda: {ORDERS: 6}))
    assert (directory.full is not None, directory.failure) == (True, None)
    disk.process_crash()
    assert open_directory(disk).checkpoints.high_watermarks.get(ORDERS) == 2


def test_a_broker_epoch_that_finds_no_room_is_not_known_to_the_next_process() -> None:  # H3
    disk = formatted_disk()
    directory = open_directory(disk)
    directory.shutdown.record_broker_epoch(5)
    disk.fill_up()
    directory.shutdown.record_broker_epoch(6)
    assert directory.full is not None
    disk.process_crash()
    assert open_directory(disk).shutdown.previous_broker_epoch == 5


# ---- Logs that are opened anew ----


def _stopped_half_way(disk: MemoryDisk, directory: LogDirectory, config: TopicConfig = SMALL) -> Log:
    """A log of 10 records, synced and from offset 4 on, into which an append met a full disk."""
    log = open_orders(directory, config)
    fill(log, 5)
    run(directory.sync([log]))
    log.increment_log_start_offset(4)
    disk.fill_up(after_bytes=10)
    with pytest.raises(DiskFull):
        fill(log, 1)
    return log


def test_a_log_that_a_full_disk_stopped_goes_on_where_it_was_once_it_is_opened_anew() -> None:
    disk = formatted_disk()
    directory = open_directory(disk)
    stopped = _stopped_half_way(disk, directory)
    disk.fill_up(after_bytes=1 << 30)
    log = result_of(directory.reopen_log(ORDERS, TOPIC_ID, SMALL, now_ms=0))
    assert directory.logs[ORDERS] is log is not stopped
    assert (log.log_start_offset, log.flushed_offset, log.log_end_offset) == (4, 10, 10)
    fill(log, 1)
    assert read_offsets(log) == list(range(4, 12))


def test_the_segments_of_a_log_opened_anew_are_as_old_as_that() -> None:  # F10
    disk = formatted_disk()
    directory = open_directory(disk)
    config = TopicConfig(segment_ms=1000)
    _stopped_half_way(disk, directory, config)
    disk.fill_up(after_bytes=1 << 30)
    log = result_of(directory.reopen_log(ORDERS, TOPIC_ID, config, now_ms=5000))
    counts = []
    for now_ms in (6000, 6001):
        log.append_as_leader([batch([b"v"], -1)], 0, now_ms=now_ms)
        counts.append(len(log.segments))
    assert counts == [1, 2]


def test_a_log_that_cannot_be_opened_anew_is_what_it_was() -> None:
    disk = formatted_disk()
    directory = open_directory(disk)
    stopped = _stopped_half_way(disk, directory)
    disk.fail("read")
    with pytest.raises(StorageError, match="Input/output"):
        result_of(directory.reopen_log(ORDERS, TOPIC_ID, SMALL, now_ms=0))
    assert directory.logs == {ORDERS: stopped}
    assert read_offsets(stopped) == list(range(4, 10))


# ---- A disk that failed ----


def test_the_first_failure_is_logged_and_what_follows_is_not(caplog: pytest.LogCaptureFixture) -> None:
    directory = open_directory(formatted_disk())
    first = StorageError("cannot sync orders-0")
    directory.go_offline(first)
    directory.go_offline(StorageError("cannot read orders-1"))
    assert (directory.failure, _said(caplog, logging.ERROR)) == (first, [f"{PATH} is offline: {first}"])


def test_a_failed_disk_that_keeps_what_its_next_start_must_not_believe_is_logged(
    caplog: pytest.LogCaptureFixture,
) -> None:  # H3
    class Stuck(MemoryDisk):
        def unlink(self, path: str) -> None:
            raise StorageError(f"cannot remove {path}")

    disk = Stuck()
    run(LogDirectory.format(disk, PATH, node_id=1, directory_id=DIRECTORY_ID))
    directory = open_directory(disk)
    directory.shutdown.record_broker_epoch(5)
    directory.go_offline(StorageError("broken"))
    assert _said(caplog, logging.ERROR)[1] == (
        f"{PATH}: cannot remove {PATH}/{BOOT_FILE}; its next start may report a clean shutdown"
    )


def test_a_failed_disk_that_cannot_even_say_so_is_logged_with_what_the_next_start_will_not_know(
    caplog: pytest.LogCaptureFixture,
) -> None:  # H2
    disk = formatted_disk()
    directory = open_directory(disk)
    directory.shutdown.record_broker_epoch(5)
    disk.fail("write", BOOT_FILE)
    directory.go_offline(StorageError("broken"))
    [warning] = _said(caplog, logging.WARNING)
    assert warning.startswith(f"{PATH}: cannot write {PATH}/{BOOT_FILE}: ")
    assert warning.endswith("no later process will know that it had epoch 5")
    assert not disk.exists(f"{PATH}/{BOOT_FILE}")
