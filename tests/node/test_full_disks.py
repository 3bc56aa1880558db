"""A data directory that is full is read, and takes part again by itself when there is room.

Kafka takes such a directory offline until the broker restarts (`LogDirFailureChannel`).
"""

import asyncio
import errno
from functools import partial

import pytest

from rayka.errors import ErrorCode
from rayka.ids import OffsetAndEpoch
from rayka.log.local_disk import storage_error
from rayka.node.replica_admin import LogDirsHandler
from rayka.ports import Buffer
from rayka.protocol.fetch import FetchPartition
from rayka.protocol.topics import DescribeLogDirsRequest
from rayka.testing.memory_disk import MemoryDisk
from tests.node.full_disk_support import LOOK_S, ROOM, TRY_S, Meddler, leading, produce
from tests.node.replica_support import (
    BROKER,
    BROKER_EPOCH,
    DATA_DIR,
    LEADER,
    ORDERS,
    OTHER,
    Broker,
    answered,
    batch,
    changed,
    given,
    positions,
    run,
    settle,
)


def test_a_leader_alone_takes_appends_again_when_there_is_room() -> None:
    async def main() -> None:
        disk = MemoryDisk()
        broker = await leading(disk)
        for _ in range(5):
            await asyncio.sleep(TRY_S)
            assert await produce(broker) is ErrorCode.KAFKA_STORAGE_ERROR
        disk.fill_up(after_bytes=ROOM)
        await asyncio.sleep(LOOK_S)
        partition = broker.partition()
        assert [await produce(broker) for _ in range(3)] == [ErrorCode.NONE] * 3
        assert (partition.log.log_end_offset, partition.high_watermark) == (4, 4)
        assert broker.replicas.problems() == []
        await broker.stop()

    run(main)


def test_a_leader_that_syncs_each_batch_acknowledges_again() -> None:  # F13
    async def main() -> None:
        disk = MemoryDisk()
        broker = await leading(disk, flush="batch")
        disk.fill_up(after_bytes=ROOM)
        await asyncio.sleep(LOOK_S)
        assert await produce(broker) is ErrorCode.NONE
        assert broker.partition().log.flushed_offset == 2
        await broker.stop()

    run(main)


def test_what_a_quota_frees_is_found_by_time() -> None:
    async def main() -> None:
        disk = MemoryDisk()
        broker = await leading(disk)
        disk.fill_up(after_bytes=8 << 20)  # the file system says that this is next to nothing
        await asyncio.sleep(LOOK_S)
        assert await produce(broker) is ErrorCode.KAFKA_STORAGE_ERROR
        await asyncio.sleep(TRY_S)
        assert await produce(broker) is ErrorCode.NONE
        await broker.stop()

    run(main)


def test_a_follower_fetches_on_when_there_is_room() -> None:
    async def main() -> None:
        disk = MemoryDisk()
        broker = await Broker.start(disk)
        await broker.apply(broker.new_partition())
        asked = await broker.begin_session(given(0, batch(b"a"), high_watermark=1))
        disk.fill_up(after_bytes=10)
        asked.answer(answered(given(0, batch(b"b", offset=1))))
        assert await broker.fetches_nothing_for(60_000)
        assert broker.partition().high_watermark == 1
        disk.fill_up(after_bytes=ROOM)
        asked = await broker.next_fetch()
        assert positions(asked.request) == {0: 1}
        await broker.stop()

    run(main)


def test_a_leader_on_a_full_disk_hands_over_to_a_replica_in_sync_until_there_is_room() -> None:  # B40
    async def main() -> None:
        disk = MemoryDisk()
        broker = await leading(disk, isr=(BROKER, LEADER))
        directory = broker.directories.all[0]
        assert broker.directories.offline_ids() == (directory.directory_id,)
        assert (directory.failure, broker.directories.recovered_ids()) == (None, ())
        broker.directories.changed.clear()
        await broker.apply(changed(leader_id=LEADER, isr=(LEADER,)))
        disk.fill_up(after_bytes=ROOM)
        asked = await broker.next_fetch()
        assert positions(asked.request) == {0: 1}
        assert broker.directories.offline_ids() == ()
        assert broker.directories.recovered_ids() == (directory.directory_id,)
        assert broker.directories.changed.is_set()
        await broker.stop()

    run(main)


def test_a_replica_that_finds_no_room_when_it_begins_to_lead_is_read_and_leads_when_there_is() -> None:
    async def main() -> None:
        disk = MemoryDisk()
        broker = await Broker.start(disk)
        await broker.apply(broker.new_partition())
        await broker.begin_session(given(0, batch(b"a"), batch(b"b", offset=1), high_watermark=1))
        disk.fill_up()
        await broker.apply(changed(leader_id=BROKER, isr=(BROKER,)))
        partition = broker.partition()
        assert (partition.is_leader, partition.high_watermark) == (True, 2)
        disk.fill_up(after_bytes=ROOM)
        await asyncio.sleep(LOOK_S)
        assert await produce(broker) is ErrorCode.NONE
        assert (partition.log.latest_epoch, partition.log.log_end_offset) == (1, 3)
        assert partition.log.end_offset_for_epoch(0).offset == 2
        await broker.stop()

    run(main)


def test_a_replica_that_could_not_be_opened_is_opened_when_there_is_room() -> None:
    async def main() -> None:
        disk = MemoryDisk()
        broker = await Broker.start(disk)
        await broker.apply(broker.new_partition())
        await broker.begin_session(given(0, batch(b"a")))
        await broker.stop()
        disk.unlink(f"{DATA_DIR}/orders-0/leader-epoch-checkpoint")  # it has to be written anew
        broker = await Broker.start(disk)
        disk.fill_up()
        await broker.apply(broker.new_partition())
        assert not broker.replicas.partitions
        assert any("disk full" in each for each in broker.replicas.problems())
        disk.fill_up(after_bytes=ROOM)
        asked = await broker.next_fetch()
        assert positions(asked.request) == {0: 1}
        assert broker.replicas.problems() == []
        await broker.stop()

    run(main)


def test_a_full_directory_is_described_as_full_and_not_as_offline() -> None:
    async def main() -> None:
        disk = MemoryDisk()
        broker = await leading(disk)
        handler = LogDirsHandler(broker.replicas)
        for is_full in (True, False):
            [described] = (await handler.describe(DescribeLogDirsRequest(None))).directories
            assert (described.is_full, "disk full" in described.error) == (is_full, is_full)
            assert broker.directories.full_paths() == ((DATA_DIR,) if is_full else ())
            assert broker.directories.offline_paths() == ()
            disk.fill_up(after_bytes=ROOM)
            await asyncio.sleep(LOOK_S)
        await broker.stop()

    run(main)


def test_a_full_directory_is_one_problem_however_many_logs_found_no_room() -> None:
    async def main() -> None:
        disk = MemoryDisk()
        broker = await Broker.start(disk)
        await broker.apply(
            *(broker.new_partition(each, leader_id=BROKER, isr=(BROKER,)) for each in range(3))
        )
        assert [await produce(broker, number=each) for each in range(3)] == [ErrorCode.NONE] * 3
        disk.fill_up(after_bytes=10)
        for each in range(3):
            assert await produce(broker, number=each) is ErrorCode.KAFKA_STORAGE_ERROR
        (problem,) = broker.replicas.problems()
        assert "disk full" in problem
        await broker.stop()

    run(main)


def test_that_no_checkpoint_has_room_is_logged_once_a_minute(caplog: pytest.LogCaptureFixture) -> None:
    async def main() -> None:
        disk = MemoryDisk()
        broker = await leading(disk)
        await asyncio.sleep(59)
        await broker.stop()

    run(main)
    assert len([each for each in caplog.records if "no checkpoint" in each.getMessage()]) == 1


def test_a_disk_that_fails_while_it_is_looked_at_is_offline() -> None:  # F13
    async def main() -> None:
        disk = MemoryDisk()
        broker = await leading(disk)
        disk.fill_up(after_bytes=ROOM)
        disk.fail("write", ".rayka_room")
        await asyncio.sleep(LOOK_S)
        assert broker.directories.offline_paths() == (DATA_DIR,)
        assert await produce(broker) is ErrorCode.KAFKA_STORAGE_ERROR
        await broker.stop()

    run(main)


@pytest.mark.parametrize("is_clean", [True, False], ids=["stopped", "killed"])
def test_a_broker_that_starts_on_a_full_disk_is_read_and_goes_on_when_there_is_room(is_clean: bool) -> None:
    async def main() -> None:
        disk = MemoryDisk()
        broker = await leading(disk)
        disk.fill_up()
        if is_clean:
            await broker.tasks.stop()
            await broker.directories.close(broker.replicas.logs.high_watermarks)
        else:
            await broker.stop()
            disk.process_crash()
        broker = await Broker.start(disk)
        await broker.apply(broker.new_partition(leader_id=BROKER, isr=(BROKER,), leader_epoch=1))
        partition = broker.partition()
        found = partition.read(FetchPartition(ORDERS, 0, 0, 1 << 20), max_bytes=1 << 20, min_one_batch=True)
        assert (len(found.records) > 0, found.next_offset, partition.high_watermark) == (True, 1, 1)
        assert await produce(broker) is ErrorCode.KAFKA_STORAGE_ERROR
        disk.fill_up(after_bytes=ROOM)
        await asyncio.sleep(LOOK_S)
        assert await produce(broker) is ErrorCode.NONE
        assert (partition.log.log_end_offset, partition.log.epochs.epoch_of(1)) == (2, 1)
        await broker.stop()

    run(main)


class NoRoomFor(MemoryDisk):
    """A memory disk that has no room for files with a name, until there is room again."""

    name = ""

    def write(self, path: str, data: Buffer) -> None:
        if self.name and self.name in path:
            raise storage_error("write", path, errno.ENOSPC)
        super().write(path, data)


def test_a_follower_whose_truncation_met_the_full_disk_half_way_goes_on_when_there_is_room() -> None:  # B27
    async def main() -> None:
        disk = NoRoomFor()
        broker = await Broker.start(disk)
        await broker.apply(broker.new_partition(leader_epoch=1))
        records = (batch(b"a"), batch(b"b", offset=1, epoch=1))
        asked = await broker.begin_session(given(0, *records, leader_epoch=1, high_watermark=2))
        await broker.apply(changed(leader_id=OTHER, isr=(OTHER,)))  # uncleanly: it has the first record only
        asked = await broker.next_fetch()
        disk.name = "leader-epoch-checkpoint"
        asked.answer(answered(given(0, leader_epoch=2, diverging_epoch=OffsetAndEpoch(1, 0))))
        await settle()
        assert broker.directories.full_paths() == (DATA_DIR,)
        disk.name = ""
        await asyncio.sleep(LOOK_S)
        assert broker.crashes == []
        partition = broker.partition()
        assert (partition.log.log_end_offset, partition.high_watermark) == (1, 1)
        await broker.stop()

    run(main)


def test_a_disk_that_fails_when_there_is_room_again_is_offline() -> None:  # F13
    async def main() -> None:
        disk = MemoryDisk()
        broker = await Broker.start(disk)
        disk.fill_up()
        broker.directories.all[0].shutdown.record_broker_epoch(BROKER_EPOCH + 1)
        assert broker.directories.full_paths() == (DATA_DIR,)
        disk.fill_up(after_bytes=ROOM)
        disk.fail("write", ".rayka_boot")
        broker.directories.broker_epoch = BROKER_EPOCH + 1
        await asyncio.sleep(LOOK_S)
        assert (broker.crashes, broker.directories.offline_paths()) == ([], (DATA_DIR,))
        await broker.stop()

    run(main)


def test_an_append_to_a_log_that_has_yet_to_be_opened_again_gives_no_leads_away() -> None:  # B40
    async def main() -> None:
        disk = Meddler()
        broker = await Broker.start(disk)
        await broker.apply(
            *(broker.new_partition(each, leader_id=BROKER, isr=(BROKER, LEADER)) for each in (0, 1))
        )
        assert [await produce(broker, number=each) for each in (0, 1)] == [ErrorCode.NONE] * 2
        disk.fill_up(after_bytes=10)
        assert [await produce(broker, number=each) for each in (0, 1)] == [ErrorCode.KAFKA_STORAGE_ERROR] * 2
        disk.fill_up(after_bytes=ROOM)
        disk.meddle = partial(produce, broker, number=1)
        await asyncio.sleep(LOOK_S)
        assert disk.answer is not None
        assert await disk.answer is ErrorCode.KAFKA_STORAGE_ERROR
        assert broker.directories.offline_ids() == ()
        assert [await produce(broker, number=each) for each in (0, 1)] == [ErrorCode.NONE] * 2
        await broker.stop()

    run(main)
