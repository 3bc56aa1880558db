"""A log whose directory was removed by hand does not come back empty (B4, B30, F13)."""

import asyncio
from random import Random
from uuid import UUID

import pytest

from rayka.errors import DamagedLog
from rayka.ids import TopicPartition
from rayka.log.log import Log
from rayka.log.log_directory import LogDirectory
from rayka.testing.memory_disk import MemoryDisk
from tests.log.support import SMALL, fill, read_offsets, result_of, truncate

TOPIC_ID, OTHER_TOPIC_ID = UUID(int=8), UUID(int=9)
ORDERS, PATH, LOG_PATH = TopicPartition("orders", 0), "/data/broker-1", "/data/broker-1/orders-0"
REFUSED = rf"^{LOG_PATH} has no log files, but {PATH} had records of orders-0 up to offset 60: .*Restore it"


def _open_directory(disk: MemoryDisk) -> LogDirectory:
    return asyncio.run(LogDirectory.open(disk, PATH, node_id=1))


def _open_orders(directory: LogDirectory, topic_id: UUID = TOPIC_ID) -> Log:
    return result_of(directory.open_log(ORDERS, topic_id, SMALL, now_ms=0))


def _filled() -> tuple[MemoryDisk, LogDirectory, Log]:
    disk = MemoryDisk()
    asyncio.run(LogDirectory.format(disk, PATH, node_id=1, directory_id=UUID(int=7)))
    directory = _open_directory(disk)
    log = _open_orders(directory)
    fill(log, 30)
    return disk, directory, log


def _empty(disk: MemoryDisk, *, keep_directory: bool) -> None:
    disk.remove_directory(LOG_PATH)
    if keep_directory:
        disk.make_directory(LOG_PATH)


@pytest.mark.parametrize("keep_directory", [False, True])
def test_a_directory_removed_after_a_clean_shutdown_is_missed(keep_directory: bool) -> None:
    disk, directory, _ = _filled()
    asyncio.run(directory.close({ORDERS: 60}))
    _empty(disk, keep_directory=keep_directory)
    for _ in range(2):  # also by a process that finds no clean shutdown any more
        again = _open_directory(disk)
        with pytest.raises(DamagedLog, match=REFUSED):
            _open_orders(again)
        again.release()


@pytest.mark.parametrize("is_synced", [False, True])
@pytest.mark.parametrize("keep_directory", [False, True])
def test_a_directory_removed_after_a_kill_is_missed(is_synced: bool, keep_directory: bool) -> None:
    disk, directory, log = _filled()
    if is_synced:
        asyncio.run(directory.sync([log]))
    asyncio.run(directory.checkpoint(lambda: {ORDERS: 60}))
    disk.process_crash()
    _empty(disk, keep_directory=keep_directory)
    with pytest.raises(DamagedLog, match=REFUSED):
        _open_orders(_open_directory(disk))


def test_what_a_power_cut_takes_may_be_everything_that_was_not_synced() -> None:
    for seed in range(20):
        disk, directory, _ = _filled()
        asyncio.run(directory.checkpoint(lambda: {ORDERS: 60}))  # the high watermark is not synced data
        disk.power_loss(Random(seed))
        offsets = read_offsets(_open_orders(_open_directory(disk)))
        assert offsets == list(range(len(offsets)))


def test_what_was_synced_is_missed_after_a_power_cut_too() -> None:
    disk, directory, log = _filled()
    asyncio.run(directory.sync([log]))
    asyncio.run(directory.checkpoint(lambda: {ORDERS: 60}))
    disk.power_loss(Random(0))
    disk.remove_directory(LOG_PATH)
    with pytest.raises(DamagedLog, match=REFUSED):
        _open_orders(_open_directory(disk))


def test_an_operator_can_go_on_without_the_records() -> None:
    disk, directory, _ = _filled()
    asyncio.run(directory.close({ORDERS: 60}))
    disk.remove_directory(LOG_PATH)
    disk.make_directory(LOG_PATH)
    disk.write(f"{LOG_PATH}/recovery-point-lowered", b"")
    log = _open_orders(_open_directory(disk))
    fill(log, 1)
    assert read_offsets(log) == [0, 1]


@pytest.mark.parametrize("marker", ["recovery-point-lowered", "log-start-raised"])
def test_a_broker_that_goes_on_without_records_may_not_count_as_one_that_has_lost_nothing(
    marker: str,
) -> None:  # H3, B33
    disk, directory, _ = _filled()
    directory.shutdown.record_broker_epoch(5)
    disk.process_crash()
    disk.write(f"{LOG_PATH}/{marker}", b"")
    for _ in range(2):  # also when the next process ends before it has said so
        again = _open_directory(disk)
        assert (again.shutdown.previous_broker_epoch, again.shutdown.known_broker_epoch) == (-1, 5)
        disk.process_crash()


def test_what_a_log_writes_itself_is_no_loss() -> None:  # H3
    disk, directory, log = _filled()
    directory.shutdown.record_broker_epoch(5)
    asyncio.run(directory.sync([log]))
    truncate(disk, log, 20)
    disk.process_crash()
    assert disk.exists(f"{LOG_PATH}/recovery-point-lowered")
    assert _open_directory(disk).shutdown.previous_broker_epoch == 5


def test_a_log_that_never_had_a_record_is_not_missed() -> None:
    disk, directory, _ = _filled()
    other = TopicPartition("orders", 1)
    result_of(directory.open_log(other, TOPIC_ID, SMALL, now_ms=0))
    asyncio.run(directory.close({ORDERS: 60, other: 0}))
    again = _open_directory(disk)
    assert result_of(again.open_log(other, TOPIC_ID, SMALL, now_ms=0)).log_end_offset == 0


def test_a_log_that_was_forgotten_before_it_was_deleted_is_not_missed_in_the_next_one_of_its_name() -> None:
    disk, directory, log = _filled()
    asyncio.run(directory.sync([log]))
    asyncio.run(directory.checkpoint(lambda: {ORDERS: 60}))
    asyncio.run(directory.forget([ORDERS]))
    directory.delete_log(ORDERS)
    disk.process_crash()
    again = _open_directory(disk)
    assert _open_orders(again, OTHER_TOPIC_ID).log_end_offset == 0


def test_a_checkpoint_that_waited_does_not_bring_back_what_was_forgotten() -> None:
    disk, directory, _ = _filled()
    asyncio.run(directory.checkpoint(lambda: {ORDERS: 60}))

    async def together() -> None:
        await asyncio.gather(
            directory.checkpoint(), directory.forget([ORDERS]), directory.checkpoint(lambda: {ORDERS: 60})
        )

    asyncio.run(together())
    directory.delete_log(ORDERS)
    disk.process_crash()
    assert _open_orders(_open_directory(disk), OTHER_TOPIC_ID).log_end_offset == 0
