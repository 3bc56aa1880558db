"""A disk that is slow or hangs holds up what is in its own data directory, and goes offline after a bound; the broker's
other directories go on.

Kafka's directories share the threads of requests and of the scheduler, where a disk that hangs stops them one by one.
"""

import asyncio
from collections.abc import Awaitable, Callable
from functools import partial

import pytest

from rayka.errors import ErrorCode
from rayka.log.checkpoint_files import HIGH_WATERMARK_FILE, decode_offsets
from rayka.log.log import PrefixCopy
from rayka.node.load_meter import LoadMeter
from rayka.node.replica import Truncations
from rayka.node.replica_admin import DeleteRecordsHandler, LogDirsHandler
from rayka.protocol.produce import ACKS_ALL
from rayka.protocol.topics import (
    DeleteRecordsPartition,
    DeleteRecordsRequest,
    DescribeLogDirsRequest,
)
from rayka.testing.memory_disk import MemoryDisk
from tests.metadata.support import ORDERS
from tests.node.controller_support import until
from tests.node.move_support import ONE, TWO
from tests.node.produce_support import produce
from tests.node.replica_support import BROKER, BROKER_EPOCH, Broker, changed, configured, run

SOON_S, BOUND_S = 20, 60  # what is done on a disk that is well, and when the other one is given up
BOTH = (0, 1)


async def led(disk: MemoryDisk) -> Broker:
    """Broker 1 alone leads partition 0 in directory one and partition 1 in directory two; each has records."""
    broker = await Broker.start(disk, data_dirs=(ONE, TWO), log_segment_delete_delay_ms=1_000)
    homes = [each.directory_id for each in broker.directories.all]
    partitions = [
        broker.new_partition(
            each, leader_id=BROKER, isr=(BROKER,), replicas=(BROKER,), directories=(homes[each],)
        )
        for each in BOTH
    ]
    await broker.apply(*configured(flush="batch", file_delete_delay_ms=1_000), *partitions)
    for each in BOTH:
        assert (await produce(broker, each, acks=ACKS_ALL)).error_code is ErrorCode.NONE
    return broker


# Each does the same in both directories, and returns when it is done in the second.


async def acknowledge(broker: Broker) -> None:
    first = asyncio.ensure_future(produce(broker, 0, acks=ACKS_ALL))
    assert (await produce(broker, 1, acks=ACKS_ALL)).error_code is ErrorCode.NONE
    assert not first.done()


async def checkpoint(broker: Broker) -> None:
    assert isinstance(broker.disk, MemoryDisk)
    path, wanted = f"{TWO}/{HIGH_WATERMARK_FILE}", broker.partition(1).high_watermark
    disk = broker.disk

    def is_saved() -> bool:
        found = disk.durable_file(path)
        offsets = None if found is None else decode_offsets(bytes(found.data))
        return offsets is not None and wanted in offsets.values()

    await until(is_saved)


async def remove(broker: Broker) -> None:
    for each in (ONE, TWO):
        broker.disk.make_directory(f"{each}/gone-delete")
        broker.replicas.logs._deleted.add(broker.directories.all[each == TWO], (f"{each}/gone-delete",), 0)
    await until(lambda: not broker.disk.exists(f"{TWO}/gone-delete"))
    assert broker.disk.exists(f"{ONE}/gone-delete")


async def lead_in_another_epoch(broker: Broker) -> None:
    await broker.apply(*(changed(each, leader_id=BROKER, isr=(BROKER,)) for each in BOTH))
    await broker.apply(*(changed(each, leader_id=BROKER, isr=(BROKER,)) for each in BOTH))
    log = broker.partition(1).log
    assert log.latest_epoch == broker.partition(1).leader_epoch
    assert (await produce(broker, 1, acks=ACKS_ALL)).error_code is ErrorCode.NONE


async def delete_records(broker: Broker) -> None:
    handler = DeleteRecordsHandler(broker.replicas)
    requests = [DeleteRecordsRequest(60_000, (DeleteRecordsPartition(ORDERS, each, 1),)) for each in BOTH]
    first = asyncio.ensure_future(handler.handle(requests[0]))
    answered = await handler.handle(requests[1])
    assert [each.error_code for each in answered.partitions] == [ErrorCode.NONE]
    assert not first.done()


async def truncate(broker: Broker) -> None:
    truncations = Truncations(broker.disk)
    for each in BOTH:
        broker.disk.append(f"{(ONE, TWO)[each]}/file", [b"0123"])

    def cut(home: str, copied: PrefixCopy | None) -> PrefixCopy | None:
        return None if copied else PrefixCopy(f"{home}/file", f"{home}/copy", 2, 0)

    one, two = broker.directories.all
    first = asyncio.ensure_future(truncations.run(one, partial(cut, ONE), lambda: True))
    await asyncio.sleep(0)
    assert await truncations.run(two, partial(cut, TWO), lambda: True)
    assert not first.done()


@pytest.mark.parametrize(
    "act", [acknowledge, checkpoint, remove, lead_in_another_epoch, delete_records, truncate]
)
def test_a_disk_that_hangs_holds_up_nothing_in_other_directories(
    act: Callable[[Broker], Awaitable[None]],
) -> None:
    async def main() -> None:
        disk = MemoryDisk()
        broker = await led(disk)
        disk.hang(ONE)
        async with asyncio.timeout(SOON_S):
            await act(broker)
        assert broker.directories.offline_paths() == ()
        disk.mend()  # it was slow: nothing has failed
        await asyncio.sleep(BOUND_S)
        assert broker.directories.offline_paths() == ()
        assert [(await produce(broker, each, acks=ACKS_ALL)).error_code for each in BOTH] == [
            ErrorCode.NONE
        ] * 2
        await broker.stop()

    run(main)


def test_a_disk_that_hangs_is_offline_after_a_bound_and_the_others_go_on() -> None:  # F13
    async def main() -> None:
        disk = MemoryDisk()
        broker = await led(disk)
        disk.hang(ONE)
        asked = asyncio.ensure_future(produce(broker, 0, acks=ACKS_ALL, timeout_ms=2 * BOUND_S * 1000))
        await asyncio.sleep(BOUND_S - 1)
        assert broker.directories.offline_paths() == ()
        await asyncio.sleep(2)
        assert broker.directories.offline_paths() == (ONE,)
        [problem] = broker.replicas.problems()
        assert f"cannot sync {ONE}/" in problem
        assert "the disk has not answered for 60 s; look at the disk and its mount" in problem
        assert (await asked).error_code is ErrorCode.KAFKA_STORAGE_ERROR
        assert (await produce(broker, 1, acks=ACKS_ALL)).error_code is ErrorCode.NONE
        await broker.stop()

    run(main)


def test_a_broker_with_a_disk_that_hangs_stops_and_leaves_the_other_one_clean() -> None:  # B30
    async def main() -> None:
        disk = MemoryDisk()
        broker = await led(disk)
        disk.hang(ONE)
        await broker.tasks.stop()
        async with asyncio.timeout(2 * BOUND_S):
            await broker.directories.close(broker.replicas.logs.high_watermarks)
        cleanly = [disk.exists(f"{each}/.kafka_cleanshutdown") for each in (ONE, TWO)]
        assert cleanly == [False, True]

    run(main)


SYNCHRONOUS = (
    "exists", "size", "identity", "list", "make_directory", "read_at", "slice", "map", "append", "write", "cut",
    "rename", "unlink", "free_bytes",
)  # fmt: skip


class WatchedDisk(MemoryDisk):
    """A memory disk that knows which synchronous calls were made in directory one."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[str] = []

    def __getattribute__(self, name: str) -> object:
        value = super().__getattribute__(name)
        if name not in SYNCHRONOUS:
            return value

        def watched(path: str, *given: object) -> object:
            if path.startswith(ONE):
                self.calls.append(f"{name} {path}")
            return value(path, *given)

        return watched


def test_nothing_waits_on_the_event_loop_for_a_disk_that_hangs() -> None:
    async def main() -> None:
        disk = WatchedDisk()
        broker = await led(disk)
        disk.hang(ONE)
        asked = asyncio.ensure_future(produce(broker, 0, acks=ACKS_ALL))
        await until(lambda: broker.directories.offline_paths() == (ONE,))
        disk.calls.clear()
        await broker.apply(*(changed(each, leader_id=BROKER, isr=(BROKER,)) for each in BOTH))
        for each in BOTH:
            await produce(broker, each, acks=ACKS_ALL)
        await LogDirsHandler(broker.replicas).describe(DescribeLogDirsRequest())
        await LoadMeter(broker.settings, broker.directories, broker.replicas).measure()
        await asyncio.sleep(900)
        assert disk.calls == []
        assert (await asked).error_code is not ErrorCode.NONE
        await broker.stop()

    run(main)


def test_a_later_start_does_not_take_what_a_disk_that_hung_holds_for_whole() -> None:  # H3
    async def main() -> None:
        disk = MemoryDisk()
        broker = await led(disk)
        disk.hang(ONE)
        await until(lambda: broker.directories.offline_paths() == (ONE,))
        disk.mend()
        await asyncio.sleep(1)
        await broker.stop()
        again = await Broker.start(disk, data_dirs=(ONE, TWO))
        assert [each.shutdown.previous_broker_epoch for each in again.directories.all] == [-1, BROKER_EPOCH]
        await again.stop()

    run(main)
