"""Which log a broker compacts next, how fast, and what ends a cleaning, on a clock that jumps (F20, F27)."""

import asyncio
from collections.abc import Sequence
from uuid import UUID

import pytest

from rayka.cleaner.compaction import cleanable
from rayka.cleaner.offset_map import SLOT_BYTES
from rayka.errors import DiskFull, ErrorCode, StorageError
from rayka.log.log import Log
from rayka.metadata.metadata_records import RemoveTopicRecord
from rayka.node.inbox import completed
from rayka.node.produce_handler import ProduceHandler
from rayka.ports import Buffer, Job, RunningJob
from rayka.protocol.batch_encode import encode_batch
from rayka.protocol.produce import ACKS_LEADER, ProducePartition, ProduceRequest
from rayka.testing.memory_disk import MemoryDisk
from tests.metadata.support import ORDERS, topic
from tests.node.controller_support import until
from tests.node.move_support import FullDisk
from tests.node.produce_support import TIMEOUT_MS, WALL_CLOCK_MS
from tests.node.replica_support import BROKER, DATA_DIR, Broker, broker_configured, configured, run

BACKOFF_S = 15
NEWER = UUID(int=101)
COMPACTED = {"cleanup_policy": "compact", "segment_bytes": 1024, "min_cleanable_dirty_ratio": 0.01}


async def leading(disk: MemoryDisk | None = None, *, partitions: int = 1, **config: object) -> Broker:
    """Broker 1 leads compacted partitions, each of segments with one key."""
    broker = await Broker.start(disk, **config)
    new = [broker.new_partition(number, leader_id=BROKER, isr=(BROKER,)) for number in range(partitions)]
    await broker.apply(*configured(**COMPACTED), *new)
    for number in range(partitions):
        for _ in range(40):
            await put(broker, number)
    return broker


async def put(
    broker: Broker,
    number: int = 0,
    *,
    key: bytes = b"key",
    value: bytes = b"." * 200,
    topic_id: UUID = ORDERS,
) -> None:
    """One record of a key."""
    records = encode_batch([value], keys=[key], timestamps_ms=WALL_CLOCK_MS)
    request = ProduceRequest(ACKS_LEADER, TIMEOUT_MS, (ProducePartition(topic_id, number, records),))
    response = await completed(ProduceHandler(broker.replicas, lambda: WALL_CLOCK_MS).handle(request))
    assert response.partitions[0].error_code is ErrorCode.NONE


def log_of(broker: Broker, number: int = 0) -> Log:
    return broker.partition(number).log


def test_a_topic_that_is_not_compacted_any_more_loses_nothing_to_a_cleaning_under_way() -> None:  # F20
    async def main() -> None:
        broker = await leading(log_cleaner_io_max_bytes_per_second=1000)
        size_bytes = log_of(broker).segments.size_bytes
        await asyncio.sleep(BACKOFF_S + 2)
        await broker.apply(*configured(cleanup_policy="delete"))
        await asyncio.sleep(600)
        assert (log_of(broker).segments.size_bytes, log_of(broker).cleaned_offset) == (size_bytes, 0)
        await broker.apply(*configured(cleanup_policy="compact"))
        await asyncio.sleep(600)
        assert log_of(broker).segments.size_bytes < size_bytes / 4
        await broker.stop()

    run(main)


def test_the_log_with_the_most_to_gain_comes_first() -> None:  # F20
    async def main() -> None:
        broker = await leading(partitions=2, log_cleaner_io_max_bytes_per_second=1000)
        log_of(broker).cleaned_offset = 20
        ratios = [cleanable(log_of(broker, number), 40, WALL_CLOCK_MS).dirty_ratio for number in range(2)]
        assert ratios[0] < 0.6 < ratios[1] == 1
        await until(lambda: log_of(broker).cleaned_offset > 20 or log_of(broker, 1).cleaned_offset > 0)
        assert [log_of(broker, number).cleaned_offset for number in range(2)] == [20, 39]
        await broker.stop()

    run(main)


def leftovers(broker: Broker) -> list[str]:
    """What cleanings have not put in place, in the directories of all logs."""
    logs = [f"{DATA_DIR}/{name}" for name in broker.disk.list(DATA_DIR) if name.startswith("orders-")]
    return [each for log in logs for each in broker.disk.list(log) if each.endswith((".cleaned", ".swap"))]


@pytest.mark.parametrize("case", ["moved away", "deleted"])
def test_a_replica_that_goes_in_the_middle_of_its_cleaning_leaves_nothing_behind(case: str) -> None:
    async def main() -> None:
        broker = await leading(partitions=2, log_cleaner_io_max_bytes_per_second=1000)
        directory, other = broker.replica().directory, log_of(broker, 1)
        await asyncio.sleep(BACKOFF_S + 15)
        assert leftovers(broker)
        if case == "deleted":
            await broker.apply(RemoveTopicRecord(topic_id=ORDERS), topic(topic_id=NEWER))
            number = broker.new_partition(leader_id=BROKER, isr=(BROKER,), topic_id=NEWER)
            await broker.apply(*configured(**COMPACTED), number)
            for _ in range(40):
                await put(broker, topic_id=NEWER)
            other = broker.replica(topic_id=NEWER).partition.log
        else:
            await broker.apply(broker.moved_away())
        await asyncio.sleep(120)
        assert other.cleaned_offset == 39
        assert (directory.failure, leftovers(broker)) == (None, [])
        await broker.stop()

    run(main)


def test_a_log_that_finds_no_room_does_not_keep_the_others_from_being_compacted() -> None:  # F27
    async def main() -> None:
        disk = FullDisk()
        broker = await leading(disk, partitions=3)
        disk.full_path = f"{DATA_DIR}/orders-0/"
        await asyncio.sleep(4 * BACKOFF_S)
        assert [log_of(broker, number).cleaned_offset for number in range(3)] == [0, 39, 39]
        disk.full_path = "nothing"
        await asyncio.sleep(2 * BACKOFF_S)
        assert log_of(broker).cleaned_offset == 39
        await broker.stop()

    run(main)


def test_a_cleaning_that_ended_early_is_made_up_for_although_others_are_always_due() -> None:  # F20, F27
    """The log is the dirtiest; the other one gets records faster than they are compacted."""

    async def main() -> None:
        disk = FullDisk()
        broker = await leading(disk, partitions=2, log_cleaner_io_max_bytes_per_second=1000)
        log_of(broker, 1).cleaned_offset = 20
        disk.full_path = f"{DATA_DIR}/orders-0/"
        cleaner = broker.replicas.logs.cleaner
        await until(lambda: (cleaning := cleaner.cleaning(broker.replica())) is not None and cleaning.problem)
        disk.full_path = "nothing"
        for _ in range(300):
            for number in range(5):
                await put(broker, 1, key=b"%d" % number)
            await asyncio.sleep(1)
        assert log_of(broker).cleaned_offset == 39
        await broker.stop()

    run(main)


def test_a_long_cleaning_takes_one_place_and_others_follow_each_other_in_the_next() -> None:  # F20
    async def main() -> None:
        broker = await leading(
            partitions=3, log_cleaner_threads=2, log_cleaner_io_max_bytes_per_second=10_000
        )
        await broker.apply(*configured(segment_bytes=10_000))
        for _ in range(200):
            await put(broker, value=bytes(9_000))
        await asyncio.sleep(BACKOFF_S + 100)
        assert [log_of(broker, number).cleaned_offset for number in range(3)] == [0, 39, 39]
        await asyncio.sleep(600)
        assert log_of(broker).cleaned_offset == 239
        await broker.stop()

    run(main)


def test_all_cleanings_together_stay_below_the_rate() -> None:  # F27
    async def main() -> None:
        broker = await leading(partitions=2, log_cleaner_threads=2, log_cleaner_io_max_bytes_per_second=1000)
        read_bytes = sum(log_of(broker, number).segments.size_bytes for number in range(2))
        await asyncio.sleep(BACKOFF_S + 2 * read_bytes / 1000 - 3)
        assert not all(log_of(broker, number).cleaned_offset for number in range(2))
        await asyncio.sleep(10)
        assert all(log_of(broker, number).cleaned_offset for number in range(2))
        await broker.stop()

    run(main)


def test_another_rate_counts_from_the_next_slice_on() -> None:  # F27
    async def main() -> None:
        broker = await leading(log_cleaner_io_max_bytes_per_second=10_000)
        await asyncio.sleep(BACKOFF_S + 1)
        await broker.apply(*broker_configured(log_cleaner_io_max_bytes_per_second=100))
        await asyncio.sleep(30)
        assert not log_of(broker).cleaned_offset
        await broker.apply(*broker_configured(log_cleaner_io_max_bytes_per_second=10_000))
        await asyncio.sleep(20)  # a slice of 1 KB at the slow rate takes ten
        assert log_of(broker).cleaned_offset
        await broker.stop()

    run(main)


def test_a_raised_rate_counts_within_a_second_for_what_waits_already() -> None:  # F27
    async def main() -> None:
        broker = await leading(log_cleaner_io_max_bytes_per_second=1)
        await asyncio.sleep(BACKOFF_S + 1_000)
        assert not log_of(broker).cleaned_offset
        await broker.apply(*broker_configured(log_cleaner_io_max_bytes_per_second=1e9))
        await asyncio.sleep(2)
        assert log_of(broker).cleaned_offset
        await broker.stop()

    run(main)


@pytest.mark.parametrize("news", [{"log_cleaner_backoff_ms": 100}, {"log_cleaner_threads": 2}])
def test_a_shorter_pause_and_more_threads_count_within_a_second_for_a_cleaner_that_rests(
    news: dict[str, int],
) -> None:
    async def main() -> None:
        broker = await leading(log_cleaner_backoff_ms=3_600_000)
        await asyncio.sleep(60)
        assert not log_of(broker).cleaned_offset
        await broker.apply(*broker_configured(**news))
        await asyncio.sleep(2)
        assert log_of(broker).cleaned_offset
        await broker.stop()

    run(main)


class NoRoomToRemove(MemoryDisk):
    """Has no room to remove the first segment of partition 0, as a file system that never writes in place."""

    is_full = True

    def unlink(self, path: str) -> None:
        if self.is_full and path.endswith(f"orders-0/{0:020d}.log"):
            raise DiskFull(f"cannot remove {path}: disk full")
        super().unlink(path)


def test_a_log_whose_swap_met_a_full_disk_goes_on_when_there_is_room() -> None:  # F27
    async def main() -> None:
        disk = NoRoomToRemove()
        broker = await leading(disk)
        await asyncio.sleep(3 * BACKOFF_S)
        assert isinstance(log_of(broker).failure, DiskFull)
        disk.is_full = False
        await asyncio.sleep(3 * BACKOFF_S)
        await put(broker)
        assert log_of(broker).cleaned_offset == 39
        await broker.stop()

    run(main)


class WatchedDisk(MemoryDisk):
    """Knows how little room there was."""

    least_bytes = 1 << 62

    def append(self, path: str, buffers: Sequence[Buffer]) -> int:
        begin = super().append(path, buffers)
        self.least_bytes = min(self.least_bytes, self.free_bytes(DATA_DIR))
        return begin


def test_a_cleaning_leaves_room_to_the_logs_that_are_appended_to() -> None:  # F27
    async def main() -> None:
        disk = WatchedDisk()
        broker = await leading(disk)
        await broker.apply(*configured(segment_bytes=1 << 20))
        for number in range(30):
            await put(broker, key=b"%d" % number, value=bytes(100_000))
        disk.fill_up(900_000)
        await asyncio.sleep(2 * BACKOFF_S)
        assert disk.least_bytes > 850_000
        cleaning = broker.replicas.logs.cleaner.cleaning(broker.replica())
        assert cleaning is not None
        assert "is not compacted until there is room" in cleaning.problem
        await put(broker)
        disk.fill_up(1 << 30)
        await asyncio.sleep(2 * BACKOFF_S)
        assert log_of(broker).cleaned_offset > 39
        await broker.stop()

    run(main)


class CountingDisk(MemoryDisk):
    """Knows how many jobs were started."""

    job_count = 0

    def start(self, job: Job) -> RunningJob:
        self.job_count += 1
        return super().start(job)


def test_a_log_that_takes_no_changes_is_left_alone() -> None:  # F27
    async def main() -> None:
        disk = CountingDisk()
        broker = await leading(disk, partitions=2)
        log_of(broker).failure = StorageError("damaged")
        await asyncio.sleep(4 * BACKOFF_S)
        assert disk.job_count == 1  # of the other one
        await broker.stop()

    run(main)


def test_cleanings_at_once_share_the_memory_for_their_maps(caplog: pytest.LogCaptureFixture) -> None:  # F21
    async def main() -> None:
        broker = await leading(
            partitions=2, log_cleaner_threads=2, log_cleaner_dedupe_buffer_size=2 * 200 * SLOT_BYTES
        )
        for number in range(2):
            for key in range(300):
                await put(broker, number, key=b"%d" % key, value=b"")
        await asyncio.sleep(BACKOFF_S + 1)
        await broker.stop()

    caplog.set_level("INFO")
    run(main)
    assert "; 180 keys in the map" in caplog.text
    assert "; 301 keys in the map" not in caplog.text


def test_a_broker_without_threads_for_it_says_that_it_compacts_nothing() -> None:  # F20
    async def main() -> None:
        broker = await leading(log_cleaner_threads=0)
        await asyncio.sleep(4 * BACKOFF_S)
        cleaning = broker.replicas.logs.cleaner.cleaning(broker.replica())
        assert cleaning is not None
        assert (cleaning.problem, cleaning.last) == ("log.cleaner.threads is 0 on this broker", None)
        await broker.stop()

    run(main)
