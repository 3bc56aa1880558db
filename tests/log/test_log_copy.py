"""A copy of a log that follows what happens to the log, and then takes its place (KIP-113).

The model appends to a log, truncates it, deletes at its start, ends its process or cuts its power, copies slices, and
lets the copy take the log's place. Whatever the order, a copy that says that it is even holds what the log holds.
"""

from random import Random
from uuid import UUID

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from rayka.config.topic_config import TopicConfig
from rayka.errors import CorruptRecord
from rayka.ids import TopicPartition
from rayka.log.leader_epoch_cache import EpochStart
from rayka.log.log import Log
from rayka.log.log_copy import LogCopy
from rayka.log.log_directory import FutureLogs
from rayka.log.log_files import run_to_end
from rayka.log.log_opening import ShutdownState
from rayka.log.partition_directories import PartitionDirectories
from rayka.log.recovery import Tearing
from rayka.protocol.batch_decode import decode
from rayka.protocol.batch_format import split_batches
from rayka.testing.memory_disk import MemoryDisk
from tests.log.producer_support import produced
from tests.log.support import (
    SMALL,
    fill,
    new_log,
    opened_log,
    placed,
    read_batches,
    result_of,
    sync,
    truncate,
)

ROOTS = ("/one", "/two")
ORDERS, TOPIC_ID = TopicPartition("orders", 0), UUID(int=100)
CONFIG = TopicConfig(segment_bytes=1500, index_interval_bytes=150, segment_index_bytes=120)


def cut(disk: MemoryDisk, copy: LogCopy, original: Log) -> None:
    needed = copy.cut(original)
    if needed is not None:
        result_of(disk.copy_prefix(needed.source, needed.target, needed.size_bytes))
        assert copy.cut(original, needed) is None


def step(disk: MemoryDisk, copy: LogCopy, original: Log, max_bytes: int = 300) -> bool:
    """One slice; whether the copy has everything then."""
    if copy.has_diverged(original):
        cut(disk, copy, original)
    else:
        copy.append(original, copy.read(original, max_bytes), now_ms=0)
    return copy.is_complete(original)


def catch_up(disk: MemoryDisk, copy: LogCopy, original: Log) -> None:
    for _ in range(1000):
        if step(disk, copy, original):
            return
    raise AssertionError((copy, original))


def copied_into(disk: MemoryDisk, root: str, original: Log, config: TopicConfig = SMALL) -> LogCopy:
    disk.make_directory(root)
    futures = FutureLogs(disk, PartitionDirectories(disk, root))
    opening = futures.opening(
        ORDERS, TOPIC_ID, config, start_offset=original.log_start_offset, was_clean=False, now_ms=0
    )
    return LogCopy(run_to_end(opening))


def contents(log: Log) -> list[bytes]:
    return [bytes(each.view) for each in read_batches(log)]


def make() -> tuple[MemoryDisk, Log]:
    disk = MemoryDisk()
    disk.make_directory("/one")
    return disk, opened_log(disk, "/one/orders-0", SMALL)


def test_a_copy_has_the_batches_the_epochs_and_the_indexes_of_its_log() -> None:
    disk, log = make()
    for epoch in (1, 3, 4):
        fill(log, 20, epoch=epoch)
    copy = copied_into(disk, "/two", log)
    catch_up(disk, copy, log)
    assert contents(copy.log) == contents(log)
    assert copy.log.epochs.entries == log.epochs.entries
    assert [each.base_offset for each in copy.log.segments] == [each.base_offset for each in log.segments]


def test_a_copy_that_begins_within_a_batch_begins_there() -> None:
    disk, log = make()
    log.append_as_follower([placed(0, count=10), placed(10, count=10)], now_ms=0)
    log.increment_log_start_offset(13)
    copy = copied_into(disk, "/two", log)
    catch_up(disk, copy, log)
    assert (copy.log.log_start_offset, copy.log.log_end_offset) == (13, 20)


def test_files_below_the_start_of_the_log_are_removed_at_once() -> None:
    """No reader has a file of a copy mapped."""
    disk, log = make()
    fill(log, 100)
    copy = copied_into(disk, "/two", log)
    catch_up(disk, copy, log)
    sync(disk, log)
    sync(disk, copy.log)
    log.increment_log_start_offset(150)
    catch_up(disk, copy, log)
    names = disk.list(copy.log.directory)
    assert not [each for each in names if each.endswith(".deleted")]
    first = copy.log.segments.first.base_offset
    assert 100 < first <= 150
    assert min(int(each[:20]) for each in names if each.endswith(".log")) == first


def test_gaps_and_epochs_that_begin_within_them_are_copied_once() -> None:  # F22
    """Compaction removed the first batches of an epoch: it begins before its first batch."""
    disk, log = make()
    log.append_as_follower([placed(0, epoch=1, count=10)], now_ms=0)
    log.assign_epoch(2, 10)
    log.append_as_follower([placed(25, epoch=2, count=5)], now_ms=0)
    copy = copied_into(disk, "/two", log)
    catch_up(disk, copy, log)
    assert [each.base_offset for each in read_batches(copy.log)] == [0, 25]
    assert copy.log.epochs.entries == log.epochs.entries
    assert not copy.has_diverged(log)


def test_a_copy_that_ends_within_a_batch_of_the_log_goes_back_to_its_begin() -> None:
    """The log was truncated and has other, larger batches of the same records."""
    disk, log = make()
    log.append_as_follower([placed(0), placed(1), placed(2)], now_ms=0)
    copy = copied_into(disk, "/two", log)
    catch_up(disk, copy, log)
    truncate(disk, log, 1)
    log.append_as_follower([placed(1, count=5)], now_ms=0)
    catch_up(disk, copy, log)
    assert contents(copy.log) == contents(log)


def test_a_damaged_batch_is_not_copied() -> None:
    disk, log = make()
    fill(log, 3)
    disk.flip_bit("/one/orders-0/00000000000000000000.log", 100)
    copy = copied_into(disk, "/two", log)
    with pytest.raises(CorruptRecord):
        copy.read(log)


def test_a_copy_takes_over_what_is_known_of_producers_whose_records_are_gone() -> None:  # C8
    disk, log = make()
    log.append_as_leader([produced(0)], 0, now_ms=0)
    fill(log, 30)
    log.increment_log_start_offset(40)
    copy = copied_into(disk, "/two", log)
    catch_up(disk, copy, log)
    assert len(copy.log.producers) == 0
    copy.log.take_over(log)
    copy.log.move_to("/two/orders-0")
    assert copy.log.name == "orders-0"
    sync(disk, copy.log)
    copy.log.on_recovery_point_saved(copy.log.flushed_offset)
    reopened = opened_log(disk, "/two/orders-0", SMALL, ShutdownState(copy.log.flushed_offset, 40))
    assert dict(reopened.producers.items()).keys() == dict(log.producers.items()).keys()


class LogCopyModel(RuleBasedStateMachine):
    disk: MemoryDisk
    log: Log
    copy: LogCopy | None

    @initialize()
    def open(self) -> None:
        self.disk = MemoryDisk()
        for root in ROOTS:
            self.disk.make_directory(root)
        self.home, self.epoch, self.copy = 0, 0, None
        self.log = opened_log(self.disk, self._path(0), CONFIG)

    def _path(self, number: int) -> str:
        return f"{ROOTS[number]}/orders-0"

    @rule(count=st.integers(1, 6))
    def append(self, count: int) -> None:
        fill(self.log, count, epoch=self.epoch, size_bytes=30)

    @rule()
    def begin_epoch(self) -> None:
        self.epoch += 1
        self.log.assign_epoch(self.epoch, self.log.log_end_offset)

    @rule(share=st.floats(0, 1))
    def truncate(self, share: float) -> None:
        """Records appended behind the truncation belong to another leader."""
        start, end = self.log.log_start_offset, self.log.log_end_offset
        truncate(self.disk, self.log, start + int(share * (end - start)))
        self.epoch += 1

    @rule(share=st.floats(0, 1))
    def delete_at_start(self, share: float) -> None:
        start, end = self.log.log_start_offset, self.log.log_end_offset
        self.log.increment_log_start_offset(start + int(share * (end - start)))

    @rule(offset=st.integers(1, 50))
    def start_anew(self, offset: int) -> None:
        self.log.truncate_fully_and_start_at(self.log.log_end_offset + offset)
        self.epoch += 1

    @rule()
    def sync(self) -> None:
        sync(self.disk, self.log)

    @precondition(lambda self: self.copy is None)
    @rule()
    def begin_copy(self) -> None:
        self.copy = copied_into(self.disk, ROOTS[1 - self.home], self.log, CONFIG)

    @precondition(lambda self: self.copy is not None)
    @rule(steps=st.integers(1, 8), max_bytes=st.sampled_from([1, 200, 1000, 100_000]))
    def copy_slices(self, steps: int, max_bytes: int) -> None:
        assert self.copy is not None
        for _ in range(steps):
            step(self.disk, self.copy, self.log, max_bytes)

    @precondition(lambda self: self.copy is not None)
    @rule()
    def take_place(self) -> None:
        assert self.copy is not None
        copy = self.copy.log
        catch_up(self.disk, self.copy, self.log)
        assert contents(copy) == contents(self.log)
        sync(self.disk, copy)
        copy.take_over(self.log)
        assert copy.epochs.entries == self.log.epochs.entries
        assert dict(copy.producers.items()).keys() == dict(self.log.producers.items()).keys()
        copy.move_to(self._path(1 - self.home))
        self.disk.sync_now([], [ROOTS[1 - self.home]])
        result_of(self.disk.discard(self._path(self.home)))
        self.disk.sync_now([], [ROOTS[self.home]])
        self.home, self.log, self.copy = 1 - self.home, copy, None

    @rule(seed=st.none() | st.integers(0, 1000))
    def end(self, seed: int | None) -> None:
        """The process ends, or with a seed the machine: the log is recovered, and the copy goes on."""
        had_copy, start_offset = self.copy is not None, self.log.log_start_offset
        left = ShutdownState(self.log.flushed_offset, start_offset, Tearing.SHORT_TAIL)
        if seed is None:
            self.disk.process_crash()
        else:
            sync(self.disk, self.log)
            left = ShutdownState(self.log.flushed_offset, start_offset, Tearing.ANYWHERE)
            self.disk.power_loss(Random(seed))
            self.epoch += 1
        self.log = opened_log(self.disk, self._path(self.home), CONFIG, left)
        self.copy = copied_into(self.disk, ROOTS[1 - self.home], self.log, CONFIG) if had_copy else None

    @invariant()
    def the_copy_is_right_as_far_as_it_says(self) -> None:
        if getattr(self, "copy", None) is None:
            return
        assert self.copy is not None
        end_offset = self.copy.common_end(self.log)
        start_offset = max(self.copy.log.log_start_offset, self.log.log_start_offset)
        for offset in range(start_offset, end_offset):
            assert self._value(self.copy.log, offset) == self._value(self.log, offset), offset

    def _value(self, log: Log, offset: int) -> object:
        read = log.read(offset, max_bytes=1, end_offset=log.log_end_offset)
        return decode_one(read.records, offset) if read.records else None


def decode_one(records: bytes, offset: int) -> tuple[int, object]:
    """The epoch and the value at the offset; the value is None in a gap."""
    (batch,) = split_batches(records)
    decoded = decode(batch)
    found = dict(zip((int(each) for each in decoded.offsets), decoded.values_list(), strict=True))
    return batch.leader_epoch, found.get(offset)


TestLogCopyModel = LogCopyModel.TestCase
TestLogCopyModel.settings = settings(max_examples=60, stateful_step_count=25, deadline=None)


@pytest.mark.parametrize("seed", range(20))
def test_a_copy_is_right_up_to_the_first_offset_that_is_of_another_epoch_in_the_log(seed: int) -> None:  # B22
    random, logs = Random(seed), []
    for _ in range(2):
        _, log = new_log(SMALL)
        fill(log, random.randint(10, 20))
        log.increment_log_start_offset(random.choice([0, 0, 3]))
        starts = sorted(random.sample(range(12), random.randint(0, 3)))
        log.epochs.replace([EpochStart(2 * number, start) for number, start in enumerate(starts)])
        logs.append(log)
    copy, original = logs
    if original.log_start_offset < copy.log_start_offset:
        copy, original = original, copy
    end_offset = min(each.log_end_offset for each in logs)
    differs = [copy.epochs.epoch_of(each) != original.epochs.epoch_of(each) for each in range(end_offset)]
    begin = original.log_start_offset
    expected = next((each for each in range(begin, end_offset) if differs[each]), end_offset)
    assert LogCopy(copy).common_end(original) == expected
