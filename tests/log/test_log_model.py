"""The log against a Python list: random appends, truncations, rolls, reads, syncs and crashes on a lossy disk.

The list is what the log holds. After a process crash it must be the same, and a flipped bit costs no more than the
batch it is in; after power loss everything flushed must be
there, and beyond that only batches in an order in which they once stood: a prefix, and no hole. Readers keep what they
mapped, and it must never change.
"""

from collections.abc import Coroutine
from random import Random
from typing import Any, NamedTuple

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from rayka.config.topic_config import TopicConfig
from rayka.errors import DamagedLog, StorageError
from rayka.log.log import Log
from rayka.log.log_files import SyncPlan
from rayka.log.recovery import Tearing
from rayka.log.segments import first_at_or_after
from rayka.protocol.batch_decode import decode
from rayka.protocol.batch_format import RecordBatch, split_batches
from rayka.testing.memory_disk import MemoryDisk
from tests.log.support import (
    batch,
    open_log,
    placed,
    ranges_of,
    read_batches,
    result_of,
    segment_bases,
    truncate,
)

CONFIG = TopicConfig(segment_bytes=1500, index_interval_bytes=150, segment_index_bytes=120, segment_ms=400)


class Held(NamedTuple):
    """One batch as the list knows it."""

    data: bytes
    base_offset: int
    next_offset: int
    epoch: int
    timestamps_ms: tuple[int, ...]


def held(found: RecordBatch) -> Held:
    timestamps_ms = tuple(decode(found).timestamps_ms.tolist())
    return Held(bytes(found.view), found.base_offset, found.next_offset, found.leader_epoch, timestamps_ms)


class LogModel(RuleBasedStateMachine):
    disk: MemoryDisk
    log: Log

    @initialize()
    def open(self) -> None:
        self.disk = MemoryDisk()
        self.disk.make_directory("/data")
        self.disk.sync_now([], ["/"])
        self.log = open_log(self.disk, config=CONFIG)
        self.batches: list[Held] = []
        self.neighbours: set[tuple[bytes, bytes]] = set()
        self.epoch = 0
        self.recovery_point = 0
        self.maps: list[tuple[memoryview, bytes]] = []
        self.syncing: tuple[Coroutine[Any, Any, None], SyncPlan] | None = None

    def teardown(self) -> None:
        self._forget_sync()

    def _forget_sync(self) -> None:
        if getattr(self, "syncing", None) is not None:
            self.syncing[0].close()
            self.syncing = None

    @property
    def end_offset(self) -> int:
        return self.log.log_end_offset

    def _appended(self, first_offset: int) -> None:
        """Takes over what the log says it appended, and which batches are neighbours."""
        data = self.log.read(first_offset, max_bytes=1 << 20, end_offset=self.end_offset)
        assert next(split_batches(data.records)).base_offset == first_offset
        for found in read_batches(self.log):
            if found.base_offset >= first_offset:
                self._hold(held(found))

    def _hold(self, each: Held) -> None:
        self.neighbours.add((self.batches[-1].data if self.batches else b"", each.data))
        self.batches.append(each)

    # ---- Writing ----

    @rule(
        times=st.lists(st.lists(st.integers(0, 1000), min_size=1, max_size=4), min_size=1, max_size=3),
        size_bytes=st.integers(0, 150),
    )
    def append_as_leader(self, times: list[list[int]], size_bytes: int) -> None:
        batches = [batch([bytes(size_bytes)] * len(each), each) for each in times]
        expected = self.end_offset
        info = self.log.append_as_leader(batches, self.epoch, now_ms=0)
        assert info.first_offset == expected
        assert info.last_offset + 1 == info.first_offset + sum(map(len, times)) == self.end_offset
        assert info.max_timestamp_ms == max(map(max, times))
        self._appended(info.first_offset)

    @rule(gap=st.integers(0, 3), count=st.integers(1, 4), timestamp_ms=st.integers(0, 1000))
    def append_as_follower(self, gap: int, count: int, timestamp_ms: int) -> None:
        base_offset = self.end_offset + gap
        self.log.append_as_follower([placed(base_offset, self.epoch, count, timestamp_ms)], now_ms=0)
        self._appended(base_offset)

    @rule()
    def begin_epoch(self) -> None:
        self.epoch += 1
        self.log.assign_epoch(self.epoch, self.end_offset)

    @rule()
    def roll(self) -> None:
        self.log.roll(0)

    @rule(data=st.data())
    def truncate(self, data: st.DataObject) -> None:
        offset = data.draw(st.integers(0, self.end_offset + 2))
        truncate(self.disk, self.log, offset)
        self.batches = [each for each in self.batches if each.next_offset <= offset]
        last = self.batches[-1].next_offset if self.batches else 0
        assert last <= self.end_offset <= max(offset, last)
        self.epoch += 1

    # ---- Durability ----

    @rule()
    def sync(self) -> None:
        plan = self.log.unsynced()
        self.disk.sync_now(plan.files, plan.directories)
        self.log.on_synced(plan)
        assert self.log.flushed_offset == self.end_offset

    @precondition(lambda self: self.syncing is None)
    @rule()
    def begin_sync(self) -> None:
        plan = self.log.unsynced()
        self.syncing = self.disk.sync(plan.files, plan.directories), plan
        self.syncing[0].send(None)

    @precondition(lambda self: self.syncing is not None)
    @rule()
    def end_sync(self) -> None:
        assert self.syncing is not None
        coroutine, plan = self.syncing
        self.syncing = None
        try:
            coroutine.send(None)
        except StopIteration:
            self.log.on_synced(plan)

    @rule()
    def save_recovery_point(self) -> None:
        self.recovery_point = self.log.flushed_offset
        self.log.on_recovery_point_saved(self.recovery_point)

    # ---- Crashing ----

    @rule()
    def kill_the_process(self) -> None:
        self._forget_sync()
        self.disk.process_crash()
        self.log = open_log(self.disk, recovery_point=self.recovery_point, config=CONFIG)
        assert self.log.recovery.cut is None
        self._check_all()

    @rule(kept_bytes=st.integers(0, 600))
    def tear_an_append_and_kill_the_process(self, kept_bytes: int) -> None:
        given = [batch([b"torn"] * 2, 500), batch([b"torn"] * 3, 500)]
        size_bytes = sum(each.size_bytes for each in given)
        self.log.roll(0)
        self.disk.tear_next_append(self.log.segments.active.path, min(kept_bytes, size_bytes - 1))
        try:
            self.log.append_as_leader(given, self.epoch, now_ms=0)
        except StorageError:
            assert self.log.failure is not None
        self._check_all()
        self._forget_sync()
        self.disk.process_crash()
        self.log = open_log(self.disk, recovery_point=self.recovery_point, config=CONFIG)
        found = [held(each) for each in read_batches(self.log)]
        assert found[: len(self.batches)] == self.batches
        assert len(found) <= len(self.batches) + 1
        for each in found[len(self.batches) :]:
            self._hold(each)

    @precondition(lambda self: self.batches)
    @rule(data=st.data())
    def flip_a_bit_and_kill_the_process(self, data: st.DataObject) -> None:
        number = data.draw(st.integers(0, len(self.batches) - 1))
        victim = self.batches[number]
        within = data.draw(
            st.sampled_from([*range(8, 12), *range(16, len(victim.data))])
        )  # covered by the CRC
        place = ranges_of(self.log, victim.base_offset, max_bytes=1, end_offset=self.end_offset)[0]
        flip = place.path, place.position + within, data.draw(st.integers(0, 7))
        self._forget_sync()
        self.disk.flip_bit(*flip)
        self.disk.process_crash()
        self.recovery_point = 0  # as if no checkpoint had ever been saved: everything is scanned
        was_cut = False
        try:
            self.log = open_log(self.disk, config=CONFIG)
        except DamagedLog:
            assert number < len(self.batches) - 1 or len(segment_bases(self.disk)) > 1
        else:
            was_cut = self.log.recovery.cut is not None
            self._check_damage(number, place.position)
        if not was_cut:
            self.disk.flip_bit(*flip)
        self.log = open_log(self.disk, recovery_point=self.recovery_point, config=CONFIG)
        self._check_all()

    def _check_damage(self, number: int, position: int) -> None:
        """The batch is unreadable in its place, or was the last and looks torn; all others are read as before."""
        victim, recovery = self.batches[number], self.log.recovery
        if recovery.cut is not None:
            assert number == len(self.batches) - 1
            self.batches.pop()
            return
        [damaged] = recovery.damaged
        assert damaged[1:] == (position, victim.base_offset, victim.next_offset - 1)
        for each in self.batches:
            found = self.log.read(each.base_offset, max_bytes=1, end_offset=self.end_offset).records
            assert (found == each.data) == (each is not victim)

    @rule(seed=st.integers(0, 1 << 30))
    def lose_power(self, seed: int) -> None:
        self._forget_sync()
        flushed = [each for each in self.batches if each.next_offset <= self.log.flushed_offset]
        self.disk.power_loss(Random(seed))
        self.disk.make_directory("/data")
        self.log = open_log(
            self.disk, recovery_point=self.recovery_point, config=CONFIG, tearing=Tearing.ANYWHERE
        )
        found = [held(each) for each in read_batches(self.log)]
        assert found[: len(flushed)] == flushed
        previous = b""
        for each in found:
            assert (previous, each.data) in self.neighbours, f"a hole before offset {each.base_offset}"
            previous = each.data
        self.batches = found
        self.epoch += 1

    @rule()
    def shut_down_cleanly(self) -> None:
        self._forget_sync()
        self.log.close()
        self.sync()
        self.save_recovery_point()
        self.log = open_log(
            self.disk, recovery_point=self.recovery_point, tearing=Tearing.NOTHING, config=CONFIG
        )
        assert self.log.recovery.scanned_bytes == 0
        self._check_all()

    # ---- Reading ----

    @rule(data=st.data())
    def read(self, data: st.DataObject) -> None:
        offset = data.draw(st.integers(0, self.end_offset))
        end_offset = data.draw(st.integers(0, self.end_offset))
        max_bytes = data.draw(st.integers(1, 2000))
        found = self.log.read(offset, max_bytes=max_bytes, end_offset=end_offset)
        expected = [
            each for each in self.batches if each.next_offset > offset and each.next_offset <= end_offset
        ]
        if not found.records:
            assert not expected
            return
        assert next(split_batches(found.records)).base_offset == expected[0].base_offset
        joined = b"".join(each.data for each in expected)
        assert joined.startswith(found.records)
        assert len(found.records) <= max(max_bytes, len(expected[0].data))
        assert offset < found.next_offset <= end_offset

    @rule(timestamp_ms=st.integers(0, 1001), data=st.data())
    def look_up_by_time(self, timestamp_ms: int, data: st.DataObject) -> None:
        end_offset = data.draw(st.integers(0, self.end_offset))
        found = result_of(first_at_or_after(self.log, timestamp_ms, end_offset=end_offset))
        records = [
            (each.base_offset + number, each_ms)
            for each in self.batches
            for number, each_ms in enumerate(each.timestamps_ms)
        ]
        first = next((offset for offset, each_ms in records if each_ms >= timestamp_ms), end_offset)
        assert (found.offset if found else end_offset) == min(first, end_offset)

    @rule(data=st.data())
    def map_a_range(self, data: st.DataObject) -> None:
        offset = data.draw(st.integers(0, self.end_offset))
        for each in ranges_of(self.log, offset, max_bytes=3000, end_offset=self.end_offset):
            assert self.disk.identity(each.path).inode == each.inode
            view = self.disk.map(each.path)[each.position : each.position + each.size_bytes]
            self.maps.append((view, bytes(view)))

    def _check_all(self) -> None:
        assert [held(each) for each in read_batches(self.log)] == self.batches

    @invariant()
    def nothing_mapped_has_changed(self) -> None:
        assert all(view == content for view, content in getattr(self, "maps", ()))

    @invariant()
    def offsets_and_epochs_agree(self) -> None:
        if not hasattr(self, "log"):
            return
        assert self.log.log_start_offset <= self.log.flushed_offset <= self.log.log_end_offset
        assert all(self.log.epochs.epoch_of(each.base_offset) == each.epoch for each in self.batches)
        if self.batches:
            assert self.batches[-1].next_offset <= self.log.log_end_offset


TestLogModel = LogModel.TestCase
TestLogModel.settings = settings(max_examples=150, stateful_step_count=40)
