"""When a node writes a snapshot of its state, and what a failure to do so costs (A47)."""

import asyncio

import pytest

from rayka.config import BrokerConfig
from rayka.errors import StorageError
from rayka.ids import OffsetAndEpoch
from rayka.metadata.records import decode_record
from rayka.metadata.snapshot import image_of as loaded
from rayka.node.snapshot_generator import SnapshotGenerator, image_values
from rayka.raft.snapshot_store import SnapshotStore
from rayka.testing.memory_disk import MemoryDisk
from tests.metadata.support import active, image_of, partition, topic

ID = OffsetAndEpoch(500, 3)
CONFIG = BrokerConfig(
    metadata_log_max_record_bytes_between_snapshots=1000, metadata_log_max_snapshot_interval_ms=60_000
)


class Made:
    """A generator that began at 100 ms, over a memory disk."""

    def __init__(self, config: BrokerConfig = CONFIG) -> None:
        self.disk = MemoryDisk()
        self.store = SnapshotStore(self.disk, "/data")
        self.generator = SnapshotGenerator(self.store, config, now_ms=100)

    async def generate(
        self, snapshot_id: OffsetAndEpoch = ID, values: list[bytes] | None = None, now_ms: int = 5000
    ) -> bool:
        return await self.generator.generate(
            snapshot_id,
            None,
            [b"a"] if values is None else values,
            now_ms=now_ms,
            timestamp_ms=1,
            last_contained_log_timestamp_ms=77,
        )


def test_one_is_due_when_enough_was_committed() -> None:
    generator = Made().generator
    generator.on_committed(999)
    assert not generator.is_due(100)
    generator.on_committed(1)
    assert generator.is_due(100)


def test_one_is_due_when_the_interval_has_passed_and_something_was_committed() -> None:
    generator = Made().generator
    assert not generator.is_due(10**9)
    assert generator.next_due_ms() is None
    generator.on_committed(1)
    assert (generator.is_due(60_099), generator.is_due(60_100)) == (False, True)
    assert generator.next_due_ms() == 60_100


def test_without_an_interval_only_the_bytes_count() -> None:
    config = CONFIG.model_copy(update={"metadata_log_max_snapshot_interval_ms": 0})
    generator = Made(config).generator
    generator.on_committed(999)
    assert not generator.is_due(10**12)
    assert generator.next_due_ms() is None


def test_both_count_from_the_last_one_written_or_loaded() -> None:
    made = Made()
    made.generator.on_committed(5000)
    assert asyncio.run(made.generate(now_ms=5000))
    assert not made.generator.is_due(10**9)
    made.generator.on_committed(999)
    assert (made.generator.is_due(64_999), made.generator.is_due(65_000)) == (False, True)
    made.generator.on_loaded(65_000)
    assert not made.generator.is_due(10**9)


def test_what_is_committed_while_one_is_written_counts_for_the_next() -> None:
    async def scenario() -> None:
        made = Made()
        made.generator.on_committed(5000)
        writing = asyncio.ensure_future(made.generate(values=[b"a"] * 1000))
        await asyncio.sleep(0)
        made.generator.on_committed(1000)
        assert not made.generator.is_due(10**9)  # one at a time
        await writing
        assert made.generator.is_due(5000)

    asyncio.run(scenario())


def test_the_metadata_comes_back_out_of_a_snapshot() -> None:  # A45, H9
    image = image_of([*active(1, 2), topic(), *(partition(number, (1, 2)) for number in range(300))])
    made = Made()
    assert asyncio.run(made.generate(OffsetAndEpoch(image.next_offset, 3), list(image_values(image))))
    (snapshot_id,) = made.store.ids
    snapshot = made.store.load(snapshot_id)
    assert len(snapshot.data) == 4
    assert loaded(map(decode_record, snapshot.values()), snapshot_id.offset) == image
    assert snapshot.last_contained_log_timestamp_ms == 77


def test_an_empty_state_has_a_snapshot_too() -> None:
    made = Made()
    assert asyncio.run(made.generate(values=[]))
    assert list(made.store.load(ID).values()) == []


def test_a_full_disk_costs_the_snapshot_and_nothing_else() -> None:
    made = Made()
    made.generator.on_committed(5000)
    made.disk.fill_up(50)
    assert not asyncio.run(made.generate())
    assert made.store.ids == ()
    assert not made.generator.is_due(5001)  # not again at once


@pytest.mark.parametrize("operation", ["write", "sync"])
def test_a_failing_disk_is_the_nodes_business(operation: str) -> None:
    made = Made()
    made.disk.fail(operation, "checkpoint")  # type: ignore[arg-type]
    with pytest.raises(StorageError):
        asyncio.run(made.generate())


def test_others_run_while_a_large_state_is_written() -> None:
    async def turns_of_others() -> int:
        writing = asyncio.ensure_future(Made().generate(values=[b"x" * 200] * 20_000))
        turns = 0
        while not writing.done():
            turns += 1
            await asyncio.sleep(0)
        return turns

    assert asyncio.run(turns_of_others()) > 20_000 / 96
