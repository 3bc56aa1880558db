"""When a node writes a snapshot of its state, what it holds, and what goes with its help (A46, A47, A51)."""

import asyncio
from collections.abc import Callable, Iterator

import pytest

from rayka.config.broker_config import BrokerConfig
from rayka.ids import OffsetAndEpoch
from rayka.metadata.image_snapshot import image_of as loaded
from rayka.metadata.image_snapshot import image_records
from rayka.metadata.metadata_records import MetadataRecord, NoOpRecord, decode_record
from rayka.node.controller_node import ControllerNode
from rayka.node.metadata_follower import METADATA_CODEC
from rayka.node.quorum_driver import QuorumDriver
from rayka.node.snapshot_generator import SnapshotGenerator, SnapshotSchedule, data_batches
from rayka.protocol.membership import MetadataRequest
from rayka.raft.snapshot import SnapshotStore, decode_snapshot, encode_snapshot
from rayka.testing.memory_disk import MemoryDisk
from tests.metadata.support import active, image_of, partition, topic
from tests.node.controller_support import (
    METADATA_DIR,
    Crashes,
    HeldDisk,
    new_cluster,
    new_topic,
    started,
    until,
)

CONFIG = BrokerConfig(
    metadata_log_max_record_bytes_between_snapshots=1000,
    metadata_log_max_snapshot_interval_ms=60_000,
    metadata_max_idle_interval_ms=0,
)


# ---- When ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("record_bytes", "now_ms", "is_due"),
    [
        (999, 100, False),
        (1000, 100, True),
        (1, 60_099, False),
        (1, 60_100, True),
        (0, 10**9, False),
    ],
)
def test_one_is_due_after_so_many_bytes_or_so_much_time(record_bytes: int, now_ms: int, is_due: bool) -> None:
    schedule = SnapshotSchedule(CONFIG, now_ms=100)  # A47
    assert schedule.is_due(record_bytes, now_ms) == is_due
    assert schedule.next_ms(record_bytes) == (60_100 if record_bytes else None)


def test_the_interval_counts_from_the_last_one() -> None:
    schedule = SnapshotSchedule(CONFIG, now_ms=100)
    schedule.on_done(5000)
    assert (schedule.is_due(1, 64_999), schedule.is_due(1, 65_000)) == (False, True)


def test_without_an_interval_only_the_bytes_count() -> None:
    config = CONFIG.model_copy(update={"metadata_log_max_snapshot_interval_ms": 0})
    schedule = SnapshotSchedule(config, now_ms=100)
    assert (schedule.is_due(999, 10**12), schedule.next_ms(999)) == (False, None)


def test_the_metadata_comes_back_out_of_a_snapshot() -> None:  # A45, H9
    image = image_of([*active(1, 2), topic(), *(partition(number, (1, 2)) for number in range(300))])
    batches = data_batches(image_records(image), METADATA_CODEC, timestamp_ms=1)
    parts = encode_snapshot(OffsetAndEpoch(image.next_offset, 3), None, batches, timestamp_ms=1)
    snapshot = decode_snapshot(b"".join(map(bytes, parts)), "p")
    assert len(snapshot.data) == 4  # small enough for others to have their turn in between
    assert loaded(map(decode_record, snapshot.values()), image.next_offset) == image


# ---- A controller ----------------------------------------------------------------------------------------------------


def _driver(node: ControllerNode) -> QuorumDriver:
    assert node._parts is not None
    return node._parts.driver


async def _until(node: ControllerNode, is_so: Callable[[SnapshotStore], bool]) -> SnapshotStore:
    store = _driver(node).directory.snapshots
    async with asyncio.timeout(10):
        while not is_so(store):
            await _driver(node).news.wait(float("inf"))
    return store


async def _create(node: ControllerNode, *numbers: int) -> None:
    for number in numbers:
        await node.handle(new_topic(f"topic-{number}"))


async def _topics(node: ControllerNode) -> list[str]:
    return [each.name for each in (await node.handle(MetadataRequest(None, 0))).topics]


def test_the_active_controller_writes_what_is_committed_and_begins_again_with_it() -> None:  # A46, A47
    async def scenario() -> None:
        disk = HeldDisk()
        node = await new_cluster(disk, config=CONFIG)
        await _create(node, *range(10))
        store = await _until(node, lambda store: store.latest is not None)
        assert node.observed is not None
        quorum = node.observed.driver.quorum
        latest = store.latest
        assert latest is not None
        assert latest.offset <= quorum.high_watermark
        assert store.load(latest).voters == quorum.voters
        topics = await _topics(node)
        node.kill()
        again = await started(disk, config=CONFIG)
        assert await _topics(again) == topics
        await again.stop()

    asyncio.run(scenario())


def test_what_is_not_committed_is_in_no_snapshot() -> None:  # A46
    async def scenario() -> None:
        disk = HeldDisk()
        node = await new_cluster(disk, config=CONFIG)
        disk.is_open.clear()
        creating = [asyncio.ensure_future(_create(node, number)) for number in range(10)]
        for _ in range(20):
            await asyncio.sleep(0)
        assert not any(each.done() for each in creating)
        store = _driver(node).directory.snapshots
        latest = store.latest
        disk.is_open.set()
        await asyncio.gather(*creating)
        await _until(node, lambda store: store.latest != latest)
        assert node.observed is not None
        assert all(each.offset <= node.observed.driver.quorum.high_watermark for each in store.ids)
        await node.stop()

    asyncio.run(scenario())


def test_a_state_that_may_be_taken_back_is_not_captured() -> None:  # A46, A66
    async def scenario() -> None:
        node = await new_cluster(MemoryDisk(), config=BrokerConfig(metadata_max_idle_interval_ms=0))
        assert node._parts is not None
        driver, shard = node._parts.driver, node._parts.shard
        generator = SnapshotGenerator(node.settings, driver, shard, METADATA_CODEC)
        await generator._maybe_generate()
        committed = driver.directory.snapshots.ids
        assert [each.offset for each in committed] == [driver.quorum.high_watermark]
        shard.run_request(new_topic("not-committed"))
        assert shard.replayed_offset > driver.quorum.high_watermark
        driver.quorum.resign(0)  # the shard does not know yet
        with pytest.raises(StopIteration):  # it does not even begin to wait
            generator._maybe_generate().send(None)
        assert driver.directory.snapshots.ids == committed
        node.kill()

    asyncio.run(scenario())


def test_a_state_that_was_captured_in_an_epoch_that_is_over_is_forgotten() -> None:  # A46, A66
    async def scenario() -> None:
        disk = HeldDisk()
        node = await new_cluster(disk, config=BrokerConfig(metadata_max_idle_interval_ms=0))
        assert node._parts is not None
        driver, shard = node._parts.driver, node._parts.shard
        disk.is_open.clear()
        creating = asyncio.ensure_future(_create(node, 1))
        await until(lambda: driver.quorum.high_watermark < driver.directory.log.log_end_offset)
        captured_offset = shard.replayed_offset
        writing = asyncio.ensure_future(
            SnapshotGenerator(node.settings, driver, shard, METADATA_CODEC)._maybe_generate()
        )
        await asyncio.sleep(0)
        assert not writing.done()
        driver.quorum.resign(0)
        disk.is_open.set()
        await until(lambda: driver.quorum.high_watermark > captured_offset)
        await writing
        assert driver.directory.snapshots.ids == ()
        await asyncio.gather(creating, return_exceptions=True)
        await node.stop()

    asyncio.run(scenario())


def test_one_that_was_overtaken_while_it_was_written_is_removed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # A49
    async def scenario() -> None:
        disk = MemoryDisk()
        node = await new_cluster(disk, config=BrokerConfig(metadata_max_idle_interval_ms=0))
        assert node._parts is not None
        driver, shard = node._parts.driver, node._parts.shard

        def records(offset: int) -> Iterator[MetadataRecord]:
            while driver.quorum.high_watermark == offset:
                yield NoOpRecord()
            driver.directory.log.increment_log_start_offset(driver.directory.log.log_end_offset)

        monkeypatch.setattr(shard.shard, "snapshot", records)
        generator = SnapshotGenerator(node.settings, driver, shard, METADATA_CODEC)
        writing = asyncio.ensure_future(generator._maybe_generate())
        await asyncio.sleep(0)
        assert [name for name in disk.list(METADATA_DIR) if name.endswith(".part")]
        await _create(node, 1)
        await writing
        assert driver.directory.snapshots.ids == ()
        await node.stop()

    asyncio.run(scenario())


def test_old_snapshots_and_the_log_before_the_earliest_go() -> None:  # A51
    async def scenario() -> None:
        disk = HeldDisk()
        config = CONFIG.model_copy(update={"metadata_max_retention_bytes": 3000})
        node = await new_cluster(disk, config=config)
        await _create(node, *range(40))
        store = await _until(node, lambda store: store.latest is not None and store.latest.offset > 60)
        earliest = store.earliest
        assert earliest is not None
        assert node.observed is not None
        assert node.observed.driver.quorum.log.log_start_offset == earliest.offset > 0
        segments = [name for name in disk.list(METADATA_DIR) if name.endswith(".log")]
        assert int(segments[0][:20]) > 0
        topics = await _topics(node)
        assert len(topics) == 40
        node.kill()
        again = await started(disk, config=BrokerConfig(metadata_max_idle_interval_ms=0))  # removes nothing
        assert await _topics(again) == topics
        assert again.observed is not None
        assert again.observed.driver.quorum.log.log_start_offset == earliest.offset
        await again.stop()

    asyncio.run(scenario())


def test_a_full_disk_costs_the_snapshot_and_nothing_else(caplog: pytest.LogCaptureFixture) -> None:
    class NoRoomForSnapshots(MemoryDisk):
        def append(self, path: str, buffers: object) -> int:  # type: ignore[override]
            if path.endswith(".checkpoint.part"):
                self.fill_up(0)
            try:
                return super().append(path, buffers)  # type: ignore[arg-type]
            finally:
                self.fill_up(1 << 40)

    async def scenario() -> None:
        crashes = Crashes()
        node = await new_cluster(NoRoomForSnapshots(), config=CONFIG, crash=crashes)
        await _create(node, *range(20))
        assert len(await _topics(node)) == 20
        assert "no snapshot at offset" in caplog.text
        assert _driver(node).directory.snapshots.ids == ()
        assert not crashes.errors
        await node.stop()

    asyncio.run(scenario())
