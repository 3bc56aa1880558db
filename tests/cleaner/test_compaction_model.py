"""Random logs, cleanings and crashes: what a reader of a cleaned log knows is what a reader of the whole log knows."""

from contextlib import suppress
from random import Random
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from rayka.cleaner.compaction import Compaction, SyncNeeded
from rayka.cleaner.file_cleaning import CleaningAborted
from rayka.log.log import Log
from rayka.log.recovery import Tearing
from rayka.log.segment_removal import has_swap
from rayka.protocol.batch_format import Codec, ProducerSequence, RecordBatch
from rayka.testing.memory_disk import MemoryDisk
from tests.cleaner.support import (
    COMPACTED,
    HERE,
    SETTINGS,
    Found,
    keyed,
    newest_of,
    part_of,
    records_of,
    steps_of,
    table_of,
)
from tests.log.support import EndingDisk, MachineEnded, open_log, sync

KEYS = st.sampled_from([b"", b"a", b"b", b"c", b"a longer key than the others" * 3, None])
VALUES = st.sampled_from([b"1", b"2" * 40, None])
BATCHES = st.lists(st.tuples(KEYS, VALUES), min_size=1, max_size=6)
SLOTS = st.sampled_from([12, 1000])


class Model:
    """A log and all that was ever appended to it."""

    def __init__(self) -> None:
        self.disk = EndingDisk()
        self.disk.make_directory("/data")
        self.log = open_log(self.disk, config=COMPACTED)
        self.disk.sync_now([], ["/", "/data"])
        self.all: list[Found] = []
        self.sent: list[RecordBatch] = []
        self.timestamp_ms = SETTINGS.timestamp_ms

    def append(self, records: list[tuple[bytes | None, bytes | None]], codec: Codec) -> None:
        sequence = ProducerSequence(5, 0, sum(each.record_count for each in self.sent))
        batch = keyed(records, sequence=sequence, codec=codec)
        self.log.append_as_leader([batch], 0, now_ms=0)
        self.all += [(len(self.all) + number, *each) for number, each in enumerate(records)]
        self.sent.append(batch)

    def clean(self, slots: int, change: int) -> None:
        """A cleaning that ends before that change of the disk."""
        settings_now = SETTINGS._replace(map_bytes=24 * slots, timestamp_ms=self.timestamp_ms)
        compaction = Compaction(self.log, part_of(self.disk, self.log), settings_now, **HERE)
        self.disk.left = change
        with suppress(CleaningAborted, MachineEnded):
            for step in steps_of(compaction, self.disk):
                if isinstance(step, SyncNeeded):
                    self.disk.sync_now(step.files, step.directories)
        self.disk.left = -1
        self.timestamp_ms += 600

    def restart(self, seed: int | None) -> None:
        """With a seed the power is cut, without one the process is killed; the log was synced before it changed."""
        flushed_offset, cleaned_offset = self.log.flushed_offset, self.log.cleaned_offset
        assert flushed_offset == self.log.log_end_offset
        self.disk.process_crash() if seed is None else self.disk.power_loss(Random(seed))
        if has_swap(self.disk, self.log.directory):
            self.disk.sync_now([], [self.log.directory])
        tearing = Tearing.SHORT_TAIL if seed is None else Tearing.ANYWHERE
        self.log = open_log(self.disk, config=COMPACTED, recovery_point=flushed_offset, tearing=tearing)
        self.log.cleaned_offset = cleaned_offset

    def check(self) -> None:
        found, log = records_of(self.log), self.log
        assert log.log_end_offset == len(self.all)
        assert set(found) <= set(self.all)
        assert [each[0] for each in found] == sorted({each[0] for each in found})
        assert table_of(found) == table_of(self.all)
        kept, newest = (newest_of(each, log.log_end_offset) for each in (found, self.all))
        assert all(kept[key] == each for key, each in newest.items() if each[2] is not None)
        for batch in self.sent[-5:]:
            assert log.append_as_leader([batch], 0, now_ms=0).is_duplicate  # C3


def check_producers_are_in_the_log(disk: MemoryDisk, log: Log, sent: list[RecordBatch]) -> None:
    """A replica that has nothing but the log's batches recognises what was sent (C2)."""
    for name in disk.list(log.directory):
        if name.endswith(".snapshot"):
            disk.unlink(f"{log.directory}/{name}")
    again = open_log(disk, config=COMPACTED)
    for batch in sent[-5:]:
        assert again.append_as_leader([batch], 0, now_ms=0).is_duplicate


SEEDS = st.none() | st.integers(0, 1000)
STEPS = st.one_of(
    st.tuples(st.just("append"), BATCHES, st.sampled_from([Codec.NONE, Codec.LZ4])),
    st.tuples(st.just("append"), BATCHES, st.just(Codec.NONE)),
    st.tuples(st.just("clean"), SLOTS, st.just(-1) | st.integers(0, 60)),
    st.tuples(st.just("restart"), SEEDS, st.none()),
)


@settings(max_examples=30, deadline=None)
@given(st.lists(STEPS, max_size=25), SEEDS)
def test_a_cleaned_log_tells_what_the_whole_log_tells(
    steps: list[tuple[str, Any, Any]], seed: int | None
) -> None:  # F20-F26
    model = Model()
    for what, first, second in steps:
        if what == "append":
            model.append(first, second)
        elif what == "clean":
            model.clean(first, second)
            model.restart(seed)
        else:
            sync(model.disk, model.log)
            model.restart(first)
        model.check()
    if model.sent:
        check_producers_are_in_the_log(model.disk, model.log, model.sent)
