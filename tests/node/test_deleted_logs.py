"""The files of deleted logs: their names are free at once, and they are removed later (`file.delete.delay.ms`)."""

import asyncio
from typing import Any
from uuid import UUID

import pytest

from rayka.metadata.metadata_records import RemoveTopicRecord
from rayka.node.replica_admin import LogDirsHandler
from rayka.ports import Disk
from rayka.protocol.produce import ACKS_LEADER
from rayka.protocol.topics import DescribeLogDirsRequest
from rayka.testing.memory_disk import MemoryDisk
from tests.metadata.support import ORDERS, topic
from tests.node.broker_support import records
from tests.node.fetch_support import append
from tests.node.replica_support import BROKER, DATA_DIR, Broker, configured, run
from tests.partition.support import append_one

DELAY_S = 60
NEWER = UUID(int=101)
REMOVE = RemoveTopicRecord(topic_id=ORDERS)


async def filled(disk: Disk | None = None, count: int = 1, **configs: Any) -> Broker:
    """Leads partitions with a record each."""
    broker = await Broker.start(disk)
    led = [broker.new_partition(number, leader_id=BROKER, isr=(BROKER,)) for number in range(count)]
    await broker.apply(*configured(**configs), *led)
    for number in range(count):
        append(broker, b"a", number=number)
    return broker


def deleted(broker: Broker) -> list[str]:
    """Directories that are to be removed."""
    names = broker.disk.list(DATA_DIR)
    assert not [each for each in names if each.startswith("orders") and not each.endswith("-delete")]
    return [each for each in names if each.endswith("-delete")]


@pytest.mark.parametrize(("configs", "delay_s"), [({}, DELAY_S), ({"file_delete_delay_ms": 5_000}, 5)])
def test_the_files_of_a_deleted_topic_are_removed_after_the_delay(configs: Any, delay_s: int) -> None:
    async def main() -> None:
        broker = await filled(count=3, **configs)
        await broker.apply(REMOVE)
        assert deleted(broker) == [f"orders-{number}.{ORDERS.hex}-delete" for number in range(3)]
        await asyncio.sleep(delay_s - 1)
        assert len(deleted(broker)) == 3
        await asyncio.sleep(2)
        assert deleted(broker) == []
        await broker.stop()

    run(main)


def test_what_the_end_of_a_process_left_is_removed_after_the_next_start() -> None:
    async def main() -> None:
        disk = MemoryDisk()
        broker = await filled(disk, count=3)
        await broker.apply(REMOVE)
        await broker.stop()
        again = await Broker.start(disk)
        await asyncio.sleep(1)
        assert deleted(again) == []
        await again.stop()

    run(main)


def test_a_replica_that_goes_comes_back_and_goes_again_meets_nothing_of_itself() -> None:
    async def main() -> None:
        broker = await filled()
        led = broker.new_partition(leader_id=BROKER, isr=(BROKER,))
        for count in (1, 2, 3):
            await broker.apply(broker.moved_away())
            assert len(deleted(broker)) == count
            await broker.apply(led)
            assert broker.partition().log.log_end_offset == 0
            append(broker, b"b")
        assert broker.replicas.problems() == []
        await broker.stop()

    run(main)


def test_a_topic_that_is_created_again_keeps_its_files_when_those_of_the_first_are_removed() -> None:
    async def main() -> None:
        broker = await filled()
        await broker.apply(REMOVE, topic(topic_id=NEWER))
        await broker.apply(broker.new_partition(topic_id=NEWER, leader_id=BROKER, isr=(BROKER,)))
        partition = broker.replica(topic_id=NEWER).partition
        append_one(
            partition.as_leader(), records(b"b", b"c"), ACKS_LEADER, now_ms=0, timestamp_ms=1_700_000_000_000
        )
        handler = LogDirsHandler(broker.replicas)
        (replica,) = (await handler.describe(DescribeLogDirsRequest())).directories[0].replicas
        assert replica.size_bytes == partition.log.segments.size_bytes  # and nothing of the first
        await asyncio.sleep(DELAY_S + 1)
        assert partition.log.read(0, max_bytes=1000, end_offset=2).next_offset == 2
        assert [each for each in broker.disk.list(DATA_DIR) if each.startswith("orders")] == ["orders-0"]
        await broker.stop()

    run(main)


def test_a_disk_that_fails_to_remove_takes_its_directory_offline() -> None:
    async def main() -> None:
        disk = MemoryDisk()
        broker = await filled(disk)
        await broker.apply(REMOVE)
        disk.fail("write", "-delete")
        await asyncio.sleep(DELAY_S + 1)
        assert len(broker.replicas.problems()) == 1
        assert broker.directories.changed.is_set()
        await broker.stop()

    run(main)
