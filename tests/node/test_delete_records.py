"""Records are deleted from the beginning of a log, here and on its followers (G11)."""

import asyncio

import pytest

from rayka.errors import ErrorCode
from rayka.metadata.metadata_records import BrokerRegistrationChangeRecord
from rayka.node.fetch_handler import FetchHandler
from rayka.node.replica_admin import DeleteRecordsHandler
from rayka.protocol.fetch import EARLIEST_TIMESTAMP
from rayka.protocol.topics import (
    DeleteRecordsPartition,
    DeleteRecordsRequest,
    DeleteRecordsResponse,
    DeleteRecordsResult,
)
from rayka.testing.memory_disk import MemoryDisk
from tests.metadata.support import ORDERS, directory
from tests.node.broker_support import create_topic, memory_cluster, values_in
from tests.node.fetch_support import (
    FOLLOWER,
    FOLLOWERS,
    append,
    at,
    commit,
    consume,
    follow,
    led,
    passed_ms,
)
from tests.node.replica_support import BROKER, DATA_DIR, OTHER, Broker, changed, run

TIMEOUT_MS = 1_000


async def filled(
    count: int = 3, isr: tuple[int, ...] = (BROKER, *FOLLOWERS), **config: object
) -> tuple[Broker, FetchHandler]:
    """A partition of so many records, all of them committed."""
    broker, handler = await led(**config)
    for _ in range(count):
        append(broker, b"a")
    await commit(handler, count)
    if isr != broker.partition().isr:
        await broker.apply(changed(isr=isr))
    return broker, handler


async def delete(
    broker: Broker, before_offset: int, timeout_ms: int = TIMEOUT_MS
) -> "asyncio.Task[DeleteRecordsResponse]":
    """A deletion under way."""
    request = DeleteRecordsRequest(timeout_ms, (DeleteRecordsPartition(ORDERS, 0, before_offset),))
    task = asyncio.create_task(DeleteRecordsHandler(broker.replicas).handle(request))
    await asyncio.sleep(0.01)
    return task


async def delete_on_all(broker: Broker, handler: FetchHandler, before_offset: int) -> DeleteRecordsResult:
    deleting = await delete(broker, before_offset)
    start = broker.partition().log.log_start_offset
    for each in FOLLOWERS:
        await follow(handler, at(3, log_start_offset=start), replica_id=each)
    return (await deleting).partitions[0]


@pytest.mark.parametrize(("before_offset", "log_start_offset"), [(2, 2), (-1, 3), (3, 3), (0, 0)])
def test_a_log_begins_at_the_offset_or_at_the_high_watermark(
    before_offset: int, log_start_offset: int
) -> None:
    async def main() -> None:
        broker, handler = await filled()
        append(broker, b"not committed")
        result = await delete_on_all(broker, handler, before_offset)
        assert (result.error_code, result.low_watermark) == (ErrorCode.NONE, log_start_offset)
        assert broker.partition().log.log_start_offset == log_start_offset
        await broker.stop()

    run(main)


@pytest.mark.parametrize("before_offset", [4, -2])
def test_an_offset_above_the_high_watermark_is_out_of_range(before_offset: int) -> None:
    async def main() -> None:
        broker, _ = await filled()
        append(broker, b"not committed")
        (result,) = (await (await delete(broker, before_offset))).partitions
        assert (result.error_code, broker.partition().log.log_start_offset) == (
            ErrorCode.OFFSET_OUT_OF_RANGE,
            0,
        )
        await broker.stop()

    run(main)


def test_the_answer_waits_for_every_live_replica() -> None:
    async def main() -> None:
        broker, handler = await filled()
        deleting = await delete(broker, 2)
        await follow(handler, at(3, log_start_offset=2))
        await asyncio.sleep(0.5)
        assert not deleting.done()
        await follow(handler, at(3, log_start_offset=2), replica_id=FOLLOWERS[1])
        assert (await deleting).partitions[0].low_watermark == 2
        await broker.stop()

    run(main)


def test_a_replica_that_does_not_follow_in_time_is_a_timeout_and_the_records_are_gone_here() -> None:
    async def main() -> None:
        broker, handler = await filled()
        (result,) = (await (await delete(broker, 2))).partitions
        assert (result.error_code, passed_ms()) == (ErrorCode.REQUEST_TIMED_OUT, TIMEOUT_MS)
        assert result.error_message == (
            "orders-0: the log begins at 2 on its leader, but not on every live replica within 1000 ms (broker-2 begins"
            " at 0, broker-3 begins at 0); the others follow by themselves as soon as they fetch, so there is no need"
            " to delete again. `rayka topic describe orders` says how far they are behind"
        )
        assert (await consume(handler, at(1))).error_code is ErrorCode.OFFSET_OUT_OF_RANGE
        await broker.stop()

    run(main)


@pytest.mark.parametrize(
    "lost",
    [
        BrokerRegistrationChangeRecord(broker_id=OTHER, broker_epoch=1, is_fenced=True),
        BrokerRegistrationChangeRecord(
            broker_id=OTHER, broker_epoch=1, offline_directories=(directory(OTHER).directory_id,)
        ),
    ],
    ids=["fenced", "offline directory"],
)
def test_a_replica_that_is_lost_is_waited_for_no_longer(lost: BrokerRegistrationChangeRecord) -> None:
    async def main() -> None:
        broker, handler = await filled(isr=(BROKER, FOLLOWER))
        deleting = await delete(broker, 2, timeout_ms=60_000)
        await follow(handler, at(3, log_start_offset=2))
        await broker.apply(lost)
        assert ((await deleting).partitions[0].low_watermark, passed_ms() < 2_000) == (2, True)
        await broker.stop()

    run(main)


def test_a_replica_that_fetches_no_more_is_waited_for_until_it_would_leave_the_isr() -> None:
    async def main() -> None:
        broker, handler = await filled(isr=(BROKER, FOLLOWER))
        deleting = await delete(broker, 2, timeout_ms=60_000)
        await follow(handler, at(3, log_start_offset=2))
        assert (await deleting).partitions[0].low_watermark == 2
        assert 30_000 <= passed_ms() <= 32_000  # replica.lag.time.max.ms
        await broker.stop()

    run(main)


def test_a_leader_that_is_replaced_says_so() -> None:
    async def main() -> None:
        broker, _ = await filled()
        deleting = await delete(broker, 2)
        await broker.apply(changed(leader_id=FOLLOWER))
        assert (await deleting).partitions[0].error_code is ErrorCode.FENCED_LEADER_EPOCH
        await broker.stop()

    run(main)


def test_each_partition_succeeds_or_fails_for_itself() -> None:
    async def main() -> None:
        broker, _ = await filled()
        asked = tuple(DeleteRecordsPartition(ORDERS, number, 0) for number in (9, 0))
        response = await DeleteRecordsHandler(broker.replicas).handle(DeleteRecordsRequest(TIMEOUT_MS, asked))
        codes = [each.error_code for each in response.partitions]
        assert codes == [ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.NONE]
        await broker.stop()

    run(main)


def test_no_kill_brings_deleted_records_back() -> None:
    with memory_cluster() as cluster:
        topic = create_topic(cluster)
        topic.produce(b"a", b"b", b"c")
        request = DeleteRecordsRequest(TIMEOUT_MS, (DeleteRecordsPartition(topic.topic_id, 0, 2),))
        assert topic.call(request).partitions[0].low_watermark == 2
        cluster.kill(1)
        cluster.restart(1)
        assert topic.find_offset(EARLIEST_TIMESTAMP).offset == 2
        assert topic.fetch(1).error_code is ErrorCode.OFFSET_OUT_OF_RANGE
        assert values_in(topic.fetch(2))[2:] == [b"c"]


def test_a_disk_that_cannot_keep_the_new_start_is_an_error() -> None:
    disk = MemoryDisk()

    async def main() -> None:
        broker, _ = await filled(disk=disk)
        disk.fail("sync", DATA_DIR)
        deleting = await delete(broker, 2)
        assert (await deleting).partitions[0].error_code is ErrorCode.KAFKA_STORAGE_ERROR
        await broker.stop()

    run(main)


def test_a_full_disk_that_cannot_keep_the_new_start_is_an_error_and_everything_else_goes_on() -> None:
    disk = MemoryDisk()

    async def main() -> None:
        broker, _ = await filled(disk=disk)
        disk.fill_up()
        deleting = await delete(broker, 2)
        assert (await deleting).partitions[0].error_code is ErrorCode.KAFKA_STORAGE_ERROR
        assert (broker.partition().failure, broker.directories.offline_ids()) == (None, ())
        await broker.stop()

    run(main)
