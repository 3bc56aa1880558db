"""What a pass of retention does to logs that are stopped or opened again, and when the next one begins, on a clock that
jumps (F11).
"""

import asyncio
from collections.abc import Mapping, Sequence

from rayka.errors import DiskFull, ErrorCode
from rayka.testing.memory_disk import MemoryDisk
from tests.node.produce_support import produce
from tests.node.replica_support import BROKER, Broker, broker_configured, configured, now_ms, run

SEGMENTS = {"segment_bytes": 1024, "index_interval_bytes": 0}
SMALL = SEGMENTS | {"retention_bytes": 3000}
RARELY = {"log_retention_check_interval_ms": 3_000_000}


async def filled(
    configs: Mapping[str, int] = SMALL, *, disk: MemoryDisk | None = None, **config: object
) -> Broker:
    """Broker 1 leads partition 0, of more bytes than it is to keep."""
    broker = await Broker.start(disk, **config)
    await broker.apply(*configured(**configs), broker.new_partition(leader_id=BROKER, isr=(BROKER,)))
    await fill(broker)
    return broker


async def fill(broker: Broker) -> None:
    for _ in range(60):
        assert (await produce(broker)).error_code is ErrorCode.NONE


def test_what_has_expired_goes_also_from_a_log_that_a_full_disk_has_stopped() -> None:
    async def main() -> None:
        disk = MemoryDisk()
        broker = await filled(disk=disk, log_retention_check_interval_ms=1000)
        log = broker.partition().log
        disk.fill_up(10)
        assert (await produce(broker)).error_code is ErrorCode.KAFKA_STORAGE_ERROR
        disk.fill_up(1000)  # a file that is removed makes no room here
        await asyncio.sleep(3)
        assert isinstance(log.failure, DiskFull)
        assert log.log_start_offset > 20
        await broker.stop()

    run(main)


def test_a_log_that_is_opened_again_waits_for_the_next_pass() -> None:
    """It refuses to change meanwhile, and that is no failure of its directory."""

    async def main() -> None:
        broker = await filled(**RARELY)
        log, retention = broker.partition().log, broker.replicas.logs.retention
        log.is_reopened = True
        await retention.look()
        assert (log.log_start_offset, broker.replica().directory.failure) == (0, None)
        log.is_reopened = False
        await retention.look()
        assert log.log_start_offset > 20
        await broker.stop()

    run(main)


def test_what_all_brokers_keep_and_how_often_they_look_count_as_soon_as_they_are_altered() -> None:  # F11
    async def main() -> None:
        broker = await filled(SEGMENTS, log_retention_check_interval_ms=3_600_000)
        await asyncio.sleep(60)
        await broker.apply(*broker_configured(log_retention_bytes=3000))
        await asyncio.sleep(60)
        log = broker.partition().log
        assert log.log_start_offset == 0
        await broker.apply(*broker_configured(log_retention_check_interval_ms=1000))
        await asyncio.sleep(2)
        assert log.log_start_offset > 20
        await fill(broker)
        start_offset = log.log_start_offset
        await asyncio.sleep(2)
        assert log.log_start_offset > start_offset + 20
        await broker.stop()

    run(main)


class SlowDisk(MemoryDisk):
    """A sync takes ten seconds."""

    is_slow = False

    async def sync(
        self, files: Sequence[str], directories: Sequence[str], *, in_background: bool = False
    ) -> None:
        await asyncio.sleep(10 * self.is_slow)
        await super().sync(files, directories, in_background=in_background)


def test_a_pass_that_is_asked_for_during_another_one_follows_it_at_once() -> None:
    async def main() -> None:
        disk = SlowDisk()
        broker = await filled(disk=disk, **RARELY)
        log, retention = broker.partition().log, broker.replicas.logs.retention
        disk.is_slow = True
        retention.look_soon()
        await asyncio.sleep(5)
        start_offset = log.log_start_offset
        assert start_offset > 20
        await fill(broker)
        retention.look_soon()
        await asyncio.sleep(60)
        assert log.log_start_offset > start_offset + 20
        await broker.stop()

    run(main)


def test_records_are_acknowledged_while_a_pass_waits_for_the_disk() -> None:  # F11
    async def main() -> None:
        disk = SlowDisk()
        broker = await filled(disk=disk, **RARELY)
        disk.is_slow = True
        looking = asyncio.create_task(broker.replicas.logs.retention.look())
        await asyncio.sleep(5)
        assert broker.partition().log.log_start_offset > 20
        begin_ms = now_ms()
        assert (await produce(broker)).error_code is ErrorCode.NONE
        assert (now_ms(), looking.done()) == (begin_ms, False)
        await looking
        await broker.stop()

    run(main)
