"""Replicas move between the data directories of a broker while they serve.

Kafka: `ReplicaAlterLogDirsThreadTest`, `AlterReplicaLogDirsRequestTest`.
"""

import asyncio
import errno
from collections.abc import Sequence
from random import Random

import pytest

from rayka.errors import ErrorCode, StorageError
from rayka.ids import OffsetAndEpoch
from rayka.log.local_disk import storage_error
from rayka.node.data_directories import SPARE_BYTES
from rayka.testing.memory_disk import MemoryDisk
from tests.log.producer_support import append, produced
from tests.log.support import EndingDisk, MachineEnded
from tests.node.controller_support import until
from tests.node.move_support import ONE, TWO, FullDisk, Mover
from tests.node.replica_support import (
    BROKER,
    LEADER,
    LEADER_EPOCH,
    answered,
    batch,
    broker_configured,
    changed,
    given,
    run,
    settle,
)
from tests.node.test_log_dirs import described


def test_a_replica_moves_with_all_that_is_in_it() -> None:  # F4
    async def main() -> None:
        mover = await Mover.start()
        for number in range(5):
            await mover.produce(b"%d" % number)
        assert (await mover.ask(TWO)).error_code is ErrorCode.NONE
        await mover.until_in(TWO)
        await mover.produce(b"5")
        assert mover.values() == [b"%d" % number for number in range(6)]
        assert mover.names(TWO) == ["orders-0"]
        assert [each.endswith("-delete") for each in mover.names(ONE)] == [True]
        assert mover.broker.replicas.problems() == []
        await mover.stop()

    run(main)


async def _moving_until_it_ends(disk: EndingDisk, count: int, flush: str) -> tuple[Mover, list[bytes], int]:
    """A machine that ends at this change of the disk while a replica moves and is written to: what was acknowledged,
    and how many of these records were durable.
    """
    mover = await Mover.start(disk, flush=flush, segment_bytes=1024)
    acknowledged, durable_count = [], 0
    disk.left = -1
    for number in range(400):
        value = b"%03d" % number * 60
        if number == 8:
            disk.left = count
            await mover.ask(TWO)
        try:
            result = await mover.produce(value)
        except MachineEnded:
            break
        if disk.has_ended or result.error_code is not ErrorCode.NONE:
            break
        acknowledged.append(value)
        durable_count = mover.broker.partition().log.flushed_offset
        await asyncio.sleep(0.001)
        if mover.where == TWO and not mover.broker.replicas.moves.running:
            break
    await asyncio.sleep(1.5)  # the old log is deleted
    await mover.end()
    return mover, acknowledged, durable_count


@pytest.mark.parametrize("is_power_lost", [False, True])
@pytest.mark.parametrize("flush", ["none", "batch"])
def test_a_machine_may_end_at_any_step_of_a_move(flush: str, is_power_lost: bool) -> None:  # B33, F13
    """After the end of the process nothing is missing; after a power cut nothing that was synced."""
    random = Random(7)

    async def main() -> None:
        count, is_through = 1, False
        while not is_through:
            disk = EndingDisk()
            mover, acknowledged, durable_count = await _moving_until_it_ends(disk, count, flush)
            is_through = not disk.has_ended
            disk.left = -1
            if is_power_lost:
                disk.power_loss(random)
            else:
                disk.process_crash()
            kept_count = durable_count if is_power_lost else len(acknowledged)
            assert flush == "none" or durable_count == len(acknowledged)
            await mover.restart(disk)
            values = mover.values()
            assert values[:kept_count] == acknowledged[:kept_count], (count, kept_count, len(values))
            assert (await mover.produce(b"last")).error_code is ErrorCode.NONE
            await asyncio.sleep(3)
            assert mover.where == mover.named_path, count
            assert [path for path in (ONE, TWO) if mover.names(path)] == [mover.where], count
            assert mover.names(mover.where) == ["orders-0"], count
            assert mover.values() == [*values, b"last"], count
            await mover.end()
            disk.process_crash()
            count += 1
        assert count > 20

    run(main)


def test_a_follower_that_is_truncated_while_it_moves_keeps_nothing_of_what_was_cut() -> None:  # B22
    async def main() -> None:
        mover = await Mover.start(isr=(LEADER, BROKER), segment_bytes=1024)
        broker, old = mover.broker, [batch(b"old %d" % number * 40, offset=number) for number in range(9)]
        asked = await broker.begin_session(given(0, *old, high_watermark=3))
        mover.hold_assignments()
        await mover.ask(TWO)
        assignment = await broker.others.assignments.get()
        assert mover.lag == 0
        asked.answer(answered(given(0, diverging_epoch=OffsetAndEpoch(offset=4, epoch=LEADER_EPOCH))))
        asked = await broker.next_fetch()
        new = [batch(b"new", offset=4, epoch=LEADER_EPOCH + 1)]
        await mover.apply(changed(leader_id=LEADER))
        asked = await broker.next_fetch()
        asked.answer(answered(given(0, *new, high_watermark=4, leader_epoch=LEADER_EPOCH + 1)))
        await settle()
        await mover.answer_to(assignment)
        await mover.until_in(TWO)
        assert mover.values() == [*(b"old %d" % number * 40 for number in range(4)), b"new"]
        await mover.stop()

    run(main)


def test_records_deleted_while_a_replica_moves_are_not_in_the_copy() -> None:
    async def main() -> None:
        mover = await Mover.start(segment_bytes=1024)
        for number in range(20):
            await mover.produce(b"%d" % number * 100)
        mover.hold_assignments()
        await mover.ask(TWO)
        assignment = await mover.broker.others.assignments.get()
        mover.broker.partition().log.increment_log_start_offset(15)
        await mover.answer_to(assignment)
        await mover.until_in(TWO)
        log = mover.broker.partition().log
        assert (log.log_start_offset, log.log_end_offset) == (15, 20)
        assert mover.values()[-5:] == [b"%d" % number * 100 for number in range(15, 20)]
        await mover.stop()

    run(main)


def test_what_is_known_of_producers_and_epochs_moves_along() -> None:  # B20, C8
    async def main() -> None:
        mover = await Mover.start()
        partition = mover.broker.partition()
        for sequence in range(3):
            append(partition.log, produced(sequence))
        await mover.apply(changed(leader_id=BROKER))
        before = dict(partition.log.producers.items())
        await mover.ask(TWO)
        await mover.until_in(TWO)
        assert dict(partition.log.producers.items()) == before
        assert [tuple(each) for each in partition.log.epochs.entries] == [(0, 0), (1, 3)]
        await mover.stop()

    run(main)


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("is_rolled", [False, True])
def test_after_a_move_a_power_cut_forgets_no_producer_of_deleted_records(
    seed: int, *, is_rolled: bool
) -> None:  # C8, F13
    """Once the old log is gone the copy alone knows them."""

    async def main() -> None:
        disk = MemoryDisk()
        mover = await Mover.start(disk)
        log = mover.broker.partition().log
        for sequence in range(3):
            append(log, produced(sequence))
        log.roll(0)
        await mover.broker.replica().directory.sync([log])
        log.increment_log_start_offset(3)
        append(log, produced(0, producer_id=8))
        await mover.ask(TWO)
        await mover.until_in(TWO)
        await until(lambda: not mover.names(ONE))
        if is_rolled:
            append(mover.broker.partition().log, produced(0, producer_id=9))
            mover.broker.partition().log.roll(0)
            disk.sync_now([f"{TWO}/orders-0/{3:020d}.log"], [f"{TWO}/orders-0"])  # all but its snapshot
        await mover.end()
        disk.power_loss(Random(seed))
        await mover.restart(disk)
        assert append(mover.broker.partition().log, produced(2)).is_duplicate
        await mover.stop()

    run(main)


@pytest.mark.parametrize("is_told", [False, True])
def test_a_directory_that_fails_cancels_the_move_and_the_replica_goes_on(is_told: bool) -> None:
    async def main() -> None:
        disk = MemoryDisk()
        mover = await Mover.start(disk)
        await mover.produce(b"a")
        mover.hold_assignments()
        if is_told:
            await mover.ask(TWO)
            await mover.answer_one(is_applied=False)
        disk.fail("write", TWO)
        await (mover.produce(b"more") if is_told else mover.ask(TWO))
        mover.take_assignments()
        problem = await mover.until_cancelled()
        assert f"orders-0 stays in {ONE}: {TWO} failed" in problem
        assert (mover.where, mover.named_path) == (ONE, ONE)
        assert (await mover.produce(b"b")).error_code is ErrorCode.NONE
        assert mover.values() == [b"a", *([b"more"] if is_told else []), b"b"]
        await mover.stop()

    run(main)


def test_a_directory_without_room_cancels_the_move_and_has_its_room_again() -> None:
    async def main() -> None:
        disk = MemoryDisk()
        mover = await Mover.start(disk)
        for _ in range(50):
            await mover.produce(b"a" * 100_000)
        disk.fill_up(after_bytes=SPARE_BYTES + (2 << 20))
        await mover.ask(TWO)
        problem = await mover.until_cancelled()
        assert f"orders-0 stays in {ONE}: {TWO} has " in problem
        assert "stay free" in problem
        await asyncio.sleep(1)
        assert mover.names(TWO) == []
        assert disk.free_bytes(TWO) > SPARE_BYTES
        assert (await mover.produce(b"b")).error_code is ErrorCode.NONE
        disk.fill_up(after_bytes=1 << 40)
        await mover.ask(TWO)
        await mover.until_in(TWO)
        assert mover.broker.replicas.problems() == []
        await mover.stop()

    run(main)


def test_a_disk_that_fills_up_while_a_replica_moves_cancels_the_move() -> None:
    async def main() -> None:
        disk = FullDisk()
        mover = await Mover.start(disk)
        for _ in range(9):
            await mover.produce(b"a" * 100_000)
        disk.full_path = TWO
        await mover.ask(TWO)
        assert f"orders-0 stays in {ONE}: {TWO} takes no writes" in await mover.until_cancelled()
        assert (await mover.produce(b"b")).error_code is ErrorCode.NONE
        assert (mover.directories[1].failure, mover.directories[1].full) == (None, None)
        await mover.stop()

    run(main)


def test_when_the_old_directory_fails_after_the_new_one_was_told_the_metadata_name_the_old_one_again() -> (
    None
):
    async def main() -> None:
        mover = await Mover.start(isr=(BROKER, LEADER))
        mover.hold_assignments()
        await mover.ask(TWO)
        await mover.answer_one(is_applied=False)
        mover.broker.replicas.logs.fail(mover.directories[0], StorageError("it is on fire"))
        await mover.apply(*mover.records[-1:])
        mover.take_assignments()
        assert "is offline" in await mover.until_cancelled()
        assert mover.named_path == ONE
        assert mover.names(TWO) == []
        await mover.stop()

    run(main)


def test_a_damaged_log_is_not_copied() -> None:
    async def main() -> None:
        disk = MemoryDisk()
        mover = await Mover.start(disk)
        await mover.produce(b"a" * 1000)
        disk.flip_bit(f"{ONE}/orders-0/{0:020d}.log", 500)
        await mover.ask(TWO)
        assert "the log is damaged" in await mover.until_cancelled()
        assert mover.where == ONE
        await mover.stop()

    run(main)


def test_a_move_that_is_asked_for_the_other_way_round_ends() -> None:
    async def main() -> None:
        mover = await Mover.start(broker={"replica_alter_log_dirs_io_max_bytes_per_second": 1000})
        for _ in range(5):
            await mover.produce(b"a" * 100_000)
        await mover.ask(TWO)
        await asyncio.sleep(60)
        assert mover.lag
        await mover.ask(ONE)
        await mover.until_in(ONE)
        await asyncio.sleep(1)
        assert (mover.names(ONE), mover.names(TWO)) == (["orders-0"], [])
        assert mover.broker.replicas.problems() == []
        await mover.stop()

    run(main)


def test_a_raised_rate_counts_within_a_second_for_a_copy_that_waits() -> None:
    async def main() -> None:
        mover = await Mover.start(broker={"replica_alter_log_dirs_io_max_bytes_per_second": 1})
        for _ in range(5):
            await mover.produce(b"a" * 100_000)
        await mover.ask(TWO)
        await asyncio.sleep(1_000)
        assert mover.lag
        await mover.apply(*broker_configured(replica_alter_log_dirs_io_max_bytes_per_second=1e9))
        begin_s = asyncio.get_running_loop().time()
        await mover.until_in(TWO)
        assert asyncio.get_running_loop().time() - begin_s < 3
        await mover.stop()

    run(main)


def test_a_copy_that_waits_for_its_rate_ends_within_a_second_when_it_is_not_wanted() -> None:
    async def main() -> None:
        mover = await Mover.start(broker={"replica_alter_log_dirs_io_max_bytes_per_second": 1})
        await mover.produce(b"a" * 100_000)
        await mover.ask(TWO)
        await asyncio.sleep(60)
        await mover.ask(ONE)
        await asyncio.sleep(2)
        assert (mover.names(ONE), mover.names(TWO)) == (["orders-0"], [])
        await mover.stop()

    run(main)


def test_copying_stays_below_its_rate() -> None:
    async def main() -> None:
        mover = await Mover.start(broker={"replica_alter_log_dirs_io_max_bytes_per_second": 100_000})
        for _ in range(10):
            await mover.produce(b"a" * 100_000)
        begin_s = asyncio.get_running_loop().time()
        await mover.ask(TWO)
        await mover.until_in(TWO)
        assert 9 < asyncio.get_running_loop().time() - begin_s < 14
        await mover.stop()

    run(main)


def test_a_replica_that_goes_while_it_moves_leaves_nothing_behind() -> None:
    async def main() -> None:
        mover = await Mover.start()
        await mover.produce(b"a")
        mover.hold_assignments()
        await mover.ask(TWO)
        await mover.broker.others.assignments.get()
        await mover.apply(mover.broker.moved_away())
        await asyncio.sleep(3)
        assert mover.names(ONE) + mover.names(TWO) == []
        assert not mover.broker.replicas.moves.running
        await mover.stop()

    run(main)


class SlowDisk(MemoryDisk):
    """Takes ten seconds to make names in directory `two` durable, or finds then that it has no room for them."""

    has_no_room = False

    async def sync(
        self, files: Sequence[str], directories: Sequence[str], *, in_background: bool = False
    ) -> None:
        if TWO in directories:
            await asyncio.sleep(10)
            if self.has_no_room:
                raise storage_error("sync", TWO, errno.ENOSPC)
        await super().sync(files, directories, in_background=in_background)


def test_a_replica_that_goes_before_its_old_log_is_deleted_leaves_nothing_behind() -> None:
    async def main() -> None:
        mover = await Mover.start(SlowDisk())
        await mover.produce(b"a")
        await mover.ask(TWO)
        await until(lambda: mover.where == TWO)
        assert (mover.names(ONE), len(mover.broker.replicas.moves.running)) == (["orders-0"], 1)
        await mover.apply(mover.broker.moved_away())
        await asyncio.sleep(60)
        assert mover.names(ONE) + mover.names(TWO) == []
        await mover.stop()

    run(main)


class SlowerDisk(MemoryDisk):
    """Each sync takes ten seconds, once that is wanted."""

    is_slow = False

    async def sync(
        self, files: Sequence[str], directories: Sequence[str], *, in_background: bool = False
    ) -> None:
        await asyncio.sleep(10 * self.is_slow)
        await super().sync(files, directories, in_background=in_background)


def test_a_copy_does_not_take_its_place_when_the_metadata_name_the_old_directory_again() -> None:
    """After a crash the directory that they name would have no log."""

    async def main() -> None:
        disk = SlowerDisk()
        mover = await Mover.start(disk)
        await mover.produce(b"a")
        one, two = mover.directories
        mover.hold_assignments()
        await mover.ask(TWO)
        asked = await mover.broker.others.assignments.get()
        disk.is_slow = True
        await mover.answer_to(asked)
        await asyncio.sleep(1)  # the copy is synced
        await mover.apply(mover.named(one.directory_id))
        await asyncio.sleep(60)
        assert mover.where == mover.named_path == ONE
        disk.is_slow = False
        await mover.apply(mover.named(two.directory_id))
        await mover.until_in(TWO)
        assert mover.values() == [b"a"]
        await mover.stop()

    run(main)


def test_a_new_name_that_cannot_be_made_durable_ends_the_new_directory_and_not_the_old_log() -> None:  # F13
    async def main() -> None:
        disk = SlowDisk()
        mover = await Mover.start(disk)
        await mover.produce(b"a")
        await mover.ask(TWO)
        await until(lambda: mover.where == TWO)
        disk.has_no_room = True
        await asyncio.sleep(60)
        assert mover.directories[1].failure is not None
        assert mover.names(ONE) == ["orders-0"]
        await mover.stop()

    run(main)


def test_a_copy_that_nothing_waits_for_is_removed_at_the_start() -> None:
    async def main() -> None:
        disk = MemoryDisk()
        mover = await Mover.start(disk)
        await mover.produce(b"a")
        mover.hold_assignments()
        await mover.ask(TWO)
        await mover.broker.others.assignments.get()
        await mover.end()
        disk.process_crash()
        mover.apply_later(mover.broker.moved_away())
        await mover.restart(disk)
        await asyncio.sleep(3)
        assert mover.names(ONE) + mover.names(TWO) == []
        await mover.stop()

    run(main)


def test_a_copy_whose_log_is_gone_is_no_replica() -> None:  # B33
    """The metadata name the directory of the copy, and the one that it was copied from is not here any more."""

    async def main() -> None:
        disk = MemoryDisk()
        mover = await Mover.start(disk)
        await mover.produce(b"a")
        mover.hold_assignments()
        await mover.ask(TWO)
        await mover.answer_one(is_applied=False)
        await mover.end()
        disk.process_crash()
        await disk.discard(f"{ONE}/orders-0")
        await mover.restart(disk)
        (problem,) = mover.broker.replicas.problems()
        assert f"orders-0 was being moved to {TWO}" in problem
        assert [each for each in mover.names(TWO) if each.endswith("-future")]
        await mover.stop()

    run(main)


def test_what_was_synced_is_synced_in_the_copy_when_it_takes_its_place() -> None:  # F13
    async def main() -> None:
        mover = await Mover.start(flush="batch", segment_bytes=2048)
        await mover.ask(TWO)
        partition = mover.broker.partition()
        while mover.where == ONE:
            assert (await mover.produce(b"a" * 100)).error_code is ErrorCode.NONE
            assert partition.log.flushed_offset >= partition.high_watermark
            await settle()
        assert (await mover.produce(b"b")).error_code is ErrorCode.NONE
        assert partition.log.flushed_offset == partition.high_watermark == partition.log.log_end_offset
        await mover.stop()

    run(main)


def test_a_log_that_moves_is_not_compacted_meanwhile() -> None:
    async def main() -> None:
        mover = await Mover.start(broker={"replica_alter_log_dirs_io_max_bytes_per_second": 1000})
        for _ in range(3):
            await mover.produce(b"a" * 100_000)
        await mover.ask(TWO)
        await settle()
        cleaner = mover.broker.replicas.logs.cleaner
        assert cleaner.is_paused(mover.broker.replica())
        await mover.ask(ONE)
        await mover.until_in(ONE)
        assert not cleaner.is_paused(mover.broker.replica())
        await mover.stop()

    run(main)


def test_a_log_is_not_compacted_while_the_rest_of_a_move_of_an_earlier_process_waits() -> None:
    async def main() -> None:
        disk = MemoryDisk()
        mover = await Mover.start(disk)
        await mover.apply(mover.broker.new_partition(1, leader_id=BROKER, isr=(BROKER,)))
        mover.hold_assignments()
        for number in range(2):
            await mover.ask(TWO, partition=number)
            await mover.broker.others.assignments.get()
        await mover.end()
        disk.process_crash()
        await mover.restart(disk, num_replica_alter_log_dirs_threads=1)
        mover.hold_assignments()
        await settle()
        moves, cleaner = mover.broker.replicas.moves, mover.broker.replicas.logs.cleaner
        replicas = [mover.broker.replica(number) for number in range(2)]
        assert len(moves.running) == 1
        assert all(map(cleaner.is_paused, replicas))
        await mover.apply(*[mover.broker.moved_away(number) for number in range(2)])
        await asyncio.sleep(60)
        assert not any(map(cleaner.is_paused, replicas))
        await mover.stop()

    run(main)


def test_what_is_cleaned_after_a_copy_was_begun_is_dirty_in_the_copy() -> None:  # F20
    async def main() -> None:
        mover = await Mover.start(broker={"replica_alter_log_dirs_io_max_bytes_per_second": 1000})
        log = mover.broker.partition().log
        for _ in range(3):
            await mover.produce(b"a" * 10_000)
        log.cleaned_offset = 1
        await mover.ask(TWO)
        await settle()
        log.cleaned_offset = 3  # by a cleaning that was under way
        await mover.until_in(TWO)
        assert mover.broker.partition().log.cleaned_offset == 1
        await mover.stop()

    run(main)


def test_of_a_copy_that_an_earlier_process_began_nothing_counts_as_clean() -> None:  # F20
    async def main() -> None:
        disk = MemoryDisk()
        mover = await Mover.start(disk)
        await mover.produce(b"a")
        mover.hold_assignments()
        await mover.ask(TWO)
        await mover.broker.others.assignments.get()
        mover.broker.partition().log.cleaned_offset = 1
        await mover.directories[0].checkpoint()
        await mover.end()
        disk.process_crash()
        await mover.restart(disk)
        assert mover.broker.partition().log.cleaned_offset == 1
        await mover.until_in(TWO)
        assert mover.broker.partition().log.cleaned_offset == 0
        await mover.stop()

    run(main)


@pytest.mark.parametrize(
    ("path", "topic", "number", "code", "said"),
    [
        ("/elsewhere", "orders", 0, ErrorCode.LOG_DIR_NOT_FOUND, ONE),
        (TWO, "nothing", 0, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, "'nothing'"),
        (TWO, "orders", 9, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, "0 to 0"),
        (ONE + "/", "orders", 0, ErrorCode.NONE, ""),
    ],
)
def test_what_cannot_be_moved_is_refused_by_name(
    path: str, topic: str, number: int, code: ErrorCode, said: str
) -> None:
    async def main() -> None:
        mover = await Mover.start()
        result = await mover.ask(path, topic, number)
        assert (result.error_code, said in result.error_message) == (code, True)
        await mover.stop()

    run(main)


def test_log_dirs_have_the_copy_and_its_lag() -> None:
    async def main() -> None:
        mover = await Mover.start(broker={"replica_alter_log_dirs_io_max_bytes_per_second": 1000})
        for _ in range(5):
            await mover.produce(b"a" * 100_000)
        await mover.ask(TWO)
        await asyncio.sleep(30)
        one, two = await described(mover.broker)
        (current,), (future,) = one.replicas, two.replicas
        assert (current.is_future, current.log_end_offset) == (False, 5)
        assert (future.is_future, future.log_end_offset, future.offset_lag) == (True, 2, 3)
        await mover.stop()

    run(main)
