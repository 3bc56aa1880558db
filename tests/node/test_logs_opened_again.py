"""The log that a full disk has stopped is opened again by slices: it is read meanwhile, and others have their turn."""

import asyncio
from collections.abc import Callable, Sequence
from functools import partial

from rayka.errors import ErrorCode, StorageError
from rayka.log.log_files import SLICE_BATCHES
from rayka.log.shutdown_files import CLEAN_SHUTDOWN_FILE
from rayka.protocol.fetch import FetchPartition
from rayka.testing.memory_disk import MemoryDisk
from tests.node.full_disk_support import LOOK_S, ROOM, Meddler, leading, produce
from tests.node.replica_support import (
    BROKER,
    DATA_DIR,
    LEADER,
    ORDERS,
    Broker,
    batch,
    changed,
    configured,
    given,
    positions,
    run,
    settle,
)

SEGMENT = f"{DATA_DIR}/orders-0/{0:020d}.log"
BATCHES = 4 * SLICE_BATCHES


async def full_of_batches(disk: MemoryDisk, isr: Sequence[int] = (BROKER,)) -> Broker:
    """Broker 1 leads partition 0, which takes some slices to open, and met a full disk."""
    broker = await Broker.start(disk)
    await broker.apply(broker.new_partition())
    await broker.begin_session(
        given(0, *(batch(b"a", offset=each) for each in range(BATCHES)), high_watermark=BATCHES)
    )
    await broker.apply(changed(leader_id=BROKER, isr=tuple(isr)))
    await settle()
    disk.fill_up(after_bytes=10)
    assert await produce(broker) is ErrorCode.KAFKA_STORAGE_ERROR
    return broker


def damage_with_room(disk: MemoryDisk) -> None:
    """The first batch has no good length, and another one is behind it: that is no torn write."""
    disk.fill_up(after_bytes=ROOM)
    disk.cut(SEGMENT, len(batch(b"a")))
    disk.flip_bit(SEGMENT, 11)
    disk.append(SEGMENT, [batch(b"b", offset=1)])


async def turns_until(condition: Callable[[], bool]) -> int:
    count = 0
    while not condition():
        count += 1
        await asyncio.sleep(0)
    return count


def test_others_have_their_turn_while_a_log_is_opened_again() -> None:
    async def main() -> None:
        disk = Meddler()
        broker = await full_of_batches(disk)
        partition = broker.partition()
        stopped = partition.log
        disk.meddle = partial(turns_until, lambda: partition.log is not stopped)
        disk.fill_up(after_bytes=ROOM)
        await asyncio.sleep(LOOK_S)
        assert disk.answer is not None
        assert await disk.answer >= BATCHES // SLICE_BATCHES
        assert await produce(broker) is ErrorCode.NONE
        await broker.stop()

    run(main)


def test_others_have_their_turn_while_a_log_is_opened_for_the_first_time() -> None:
    async def main() -> None:
        disk = Meddler()
        broker = await full_of_batches(disk)
        await broker.stop()
        disk.process_crash()
        disk.fill_up(after_bytes=ROOM)
        broker = await Broker.start(disk)
        disk.meddle = partial(turns_until, lambda: bool(broker.replicas.partitions))
        await broker.apply(broker.new_partition(leader_id=BROKER, isr=(BROKER,)))
        assert disk.answer is not None
        assert await disk.answer >= BATCHES // SLICE_BATCHES
        await broker.stop()

    run(main)


def test_a_log_that_is_being_opened_again_is_read_and_takes_no_append() -> None:
    async def main() -> None:
        disk = Meddler()
        broker = await full_of_batches(disk)
        partition = broker.partition()
        stopped = partition.log

        async def ask() -> tuple[ErrorCode, int, bool]:
            error = await produce(broker)
            found = partition.read(FetchPartition(ORDERS, 0, 0, 100), max_bytes=100, min_one_batch=True)
            return error, found.next_offset, partition.log is stopped

        disk.meddle = ask
        disk.fill_up(after_bytes=ROOM)
        await asyncio.sleep(LOOK_S)
        assert disk.answer is not None
        assert await disk.answer == (ErrorCode.KAFKA_STORAGE_ERROR, 1, True)
        assert await produce(broker) is ErrorCode.NONE
        assert partition.log.log_end_offset == BATCHES + 1
        await broker.stop()

    run(main)


def test_a_configuration_that_changes_while_a_log_is_opened_again_counts_for_it() -> None:
    async def main() -> None:
        disk = Meddler()
        broker = await full_of_batches(disk)
        disk.meddle = partial(broker.apply, *configured(segment_bytes=100_000))
        disk.fill_up(after_bytes=ROOM)
        await asyncio.sleep(LOOK_S)
        assert await produce(broker) is ErrorCode.NONE
        assert len(broker.partition().log.segments) == 2
        await broker.stop()

    run(main)


def test_a_disk_that_fails_while_a_log_is_opened_leaves_the_partition_offline() -> None:  # F13
    async def main() -> None:
        disk = Meddler()
        broker = await full_of_batches(disk)
        await broker.stop()
        disk.process_crash()
        disk.fill_up(after_bytes=ROOM)
        broker = await Broker.start(disk)

        async def fail() -> None:
            broker.directories.all[0].go_offline(StorageError("the disk was pulled out"))

        disk.meddle = fail
        await broker.apply(broker.new_partition(leader_id=BROKER, isr=(BROKER,)))
        assert broker.directories.offline_paths() == (DATA_DIR,)
        assert not broker.replicas.partitions
        assert await produce(broker) is ErrorCode.KAFKA_STORAGE_ERROR
        await broker.stop()

    run(main)


def test_a_replica_whose_log_is_found_damaged_when_it_is_opened_again_is_copied_from_a_new_leader() -> None:
    async def main() -> None:
        disk = MemoryDisk()
        broker = await leading(disk, isr=(BROKER, LEADER))
        damage_with_room(disk)
        await asyncio.sleep(LOOK_S)
        assert await produce(broker) is ErrorCode.KAFKA_STORAGE_ERROR
        await broker.apply(changed(leader_id=LEADER, isr=(LEADER,)))
        assert positions((await broker.next_fetch()).request) == {0: 0}
        assert broker.replicas.problems() == []
        await broker.stop()

    run(main)


def test_a_log_found_shorter_than_what_was_committed_is_not_used() -> None:
    async def main() -> None:
        disk = MemoryDisk()
        broker = await leading(disk)
        assert broker.partition().high_watermark == 1
        disk.cut(SEGMENT, 0)
        disk.fill_up(after_bytes=ROOM)
        await asyncio.sleep(LOOK_S)
        assert await produce(broker) is ErrorCode.KAFKA_STORAGE_ERROR
        assert any("shortened" in each for each in broker.replicas.problems())
        await broker.stop()

    run(main)


def test_a_broker_with_a_log_found_damaged_does_not_shut_down_cleanly() -> None:  # B30
    async def main() -> None:
        disk = MemoryDisk()
        broker = await leading(disk)
        damage_with_room(disk)
        await asyncio.sleep(LOOK_S)
        await broker.tasks.stop()
        await broker.directories.close(broker.replicas.logs.high_watermarks)
        assert not disk.exists(f"{DATA_DIR}/{CLEAN_SHUTDOWN_FILE}")

    run(main)
