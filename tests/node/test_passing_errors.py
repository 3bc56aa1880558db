"""A data directory that refuses calls for a while is not given up: no descriptor is free for its files (EMFILE,
ENFILE), or its file system is read-only (EROFS). As on a full disk, its logs are read where they can be, and go on
afterwards.

Kafka takes such a directory offline until the broker restarts (`LogDirFailureChannel`).
"""

import asyncio
import errno
from functools import partial

import pytest

from rayka.errors import ErrorCode, StorageError
from rayka.metadata.metadata_records import RemoveTopicRecord
from rayka.node.replica_admin import DeleteRecordsHandler
from rayka.protocol.fetch import FetchPartition
from rayka.protocol.topics import DeleteRecordsPartition, DeleteRecordsRequest
from rayka.testing.memory_disk import MemoryDisk, Operation
from tests.metadata.support import ORDERS
from tests.node.full_disk_support import LOOK_S, produce
from tests.node.replica_support import BROKER, DATA_DIR, Broker, configured, run

REFUSED_S = 90  # every background task has its turn
SEGMENT_BYTES = 1024  # of a few records


def read(broker: Broker) -> int:
    """How many bytes of partition 0 are given."""
    fetch = FetchPartition(ORDERS, 0, broker.partition().log.log_start_offset, 1 << 20)
    found = broker.partition().read(fetch, max_bytes=1 << 20, min_one_batch=True)
    return len(found.records)


async def led(disk: MemoryDisk) -> Broker:
    """Broker 1 alone leads partitions 0 and 1, whose segments are small and expire."""
    broker = await Broker.start(disk, log_retention_check_interval_ms=5_000)
    partitions = [broker.new_partition(each, leader_id=BROKER, isr=(BROKER,)) for each in (0, 1)]
    config = configured(segment_bytes=SEGMENT_BYTES, retention_bytes=2048, flush_ms=1_000)
    await broker.apply(*config, *partitions)
    for _ in range(20):
        assert await produce(broker) is ErrorCode.NONE
    return broker


async def use(broker: Broker) -> None:
    """What a broker does with its logs all day; each may be refused."""
    for _ in range(20):
        await produce(broker)
        await produce(broker, number=1)
        try:
            read(broker)
        except StorageError as error:
            broker.replicas.on_storage_error(broker.replica(), error)  # as each handler that reads does
    end_offset = broker.partition(1).log.log_end_offset
    request = DeleteRecordsRequest(1_000, (DeleteRecordsPartition(ORDERS, 1, end_offset),))
    await DeleteRecordsHandler(broker.replicas).handle(request)


@pytest.mark.parametrize(
    ("number", "operation"),
    [
        (errno.EMFILE, "write"),
        (errno.EMFILE, "read"),
        (errno.ENFILE, "write"),
        (errno.EROFS, "write"),
        (errno.EROFS, "name"),
    ],
)
def test_whatever_is_refused_for_a_while_the_directory_goes_on_afterwards(
    number: int, operation: Operation
) -> None:
    """From each operation on in turn, for a minute and a half."""

    async def refuse_from(disk: MemoryDisk, after: int) -> None:
        broker = await led(disk)
        disk.fail(operation, times=-1, number=number, after=after)
        await use(broker)
        await asyncio.sleep(REFUSED_S)
        assert broker.directories.offline_paths() == ()
        assert operation == "read" or read(broker) > 0
        disk.mend()
        await asyncio.sleep(2 * LOOK_S)
        problems = (after, broker.replicas.problems())
        assert problems == (after, [])
        assert [await produce(broker, number=each) for each in (0, 1)] == [ErrorCode.NONE] * 2
        await broker.apply(RemoveTopicRecord(topic_id=ORDERS))
        await asyncio.sleep(REFUSED_S)
        assert broker.directories.offline_paths() == ()
        await broker.stop()

    for after in range(1_000):
        disk = MemoryDisk()
        run(partial(refuse_from, disk, after))
        if disk.failure_count == 0:
            break
    assert 5 < after < 999


@pytest.mark.parametrize("where", ["", "-delete"], ids=["renamed", "removed"])
def test_a_topic_that_is_deleted_on_a_read_only_disk_goes_when_the_disk_is_writable(where: str) -> None:  # F4
    async def main() -> None:
        disk = MemoryDisk()
        broker = await led(disk)
        for operation in ("write", "name"):
            disk.fail(operation, where, times=-1, number=errno.EROFS)
        await broker.apply(RemoveTopicRecord(topic_id=ORDERS))
        await asyncio.sleep(REFUSED_S)
        assert any(each.startswith("orders-0") for each in disk.list(DATA_DIR))
        disk.mend()
        await asyncio.sleep(REFUSED_S)
        assert not any(each.startswith("orders") for each in disk.list(DATA_DIR))
        assert (broker.directories.offline_paths(), broker.directories.full_paths()) == ((), ())
        await broker.stop()

    run(main)
