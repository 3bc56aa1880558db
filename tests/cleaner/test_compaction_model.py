"""Random logs, cleanings and crashes: what a reader of a cleaned log knows is what a reader of the whole log knows."""

from random import Random

from hypothesis import given, settings
from hypothesis import strategies as st

from rayka.cleaner.compaction import Compaction, SyncNeeded
from rayka.cleaner.file_cleaning import CleaningAborted
from rayka.log.log import Log
from rayka.log.recovery import Tearing
from rayka.log.swap import has_swap
from rayka.protocol.batch_header import Codec, ProducerSequence, RecordBatch
from rayka.testing.memory_disk import MemoryDisk
from tests.cleaner.support import COMPACTED, SETTINGS, Found, keyed, newest_of, part_of, records_of, table_of
from tests.log.support import new_log, open_log, sync

KEYS = st.sampled_from([b"", b"a", b"b", b"c", b"a longer key than the others" * 3, None])
VALUES = st.sampled_from([b"1", b"2" * 40, None])
BATCHES = st.lists(st.tuples(KEYS, VALUES), min_size=1, max_size=6)
SLOTS = st.sampled_from([12, 1000])


class Model:
    """A log and all that was ever appended to it."""

    def __init__(self) -> None:
        self.disk, self.log = new_log(COMPACTED)
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

    def clean(self, slots: int, stop: int) -> None:
        """A cleaning that a crash ends after so many steps."""
        settings_now = SETTINGS._replace(map_bytes=24 * slots, timestamp_ms=self.timestamp_ms)
        compaction = Compaction(self.log, part_of(self.disk, self.log), settings_now, lambda: True)
        try:
            for number, step in enumerate(compaction.run(self.disk)):
                if number == stop:
                    break
                if isinstance(step, SyncNeeded):
                    self.disk.sync_now(step.files, step.directories)
        except CleaningAborted:
            pass
        self.timestamp_ms += 600

    def restart(self, seed: int, *, is_power_cut: bool) -> None:
        sync(self.disk, self.log)
        flushed_offset, cleaned_offset = self.log.flushed_offset, self.log.cleaned_offset
        self.disk.power_loss(Random(seed)) if is_power_cut else self.disk.process_crash()
        if has_swap(self.disk, self.log.directory):
            self.disk.sync_now([], [self.log.directory])
        tearing = Tearing.ANYWHERE if is_power_cut else Tearing.SHORT_TAIL
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


STEPS = st.one_of(
    st.tuples(st.just("append"), BATCHES, st.sampled_from([Codec.NONE, Codec.LZ4])),
    st.tuples(st.just("append"), BATCHES, st.just(Codec.NONE)),
    st.tuples(st.just("clean"), SLOTS, st.sampled_from([0, 3, 5, 7, 9, 1000, 1000])),
    st.tuples(st.just("restart"), st.integers(0, 1000), st.booleans()),
)


@settings(max_examples=30, deadline=None)
@given(st.lists(STEPS, max_size=25))
def test_a_cleaned_log_tells_what_the_whole_log_tells(
    steps: list[tuple[str, object, object]],
) -> None:  # F20-F26
    model = Model()
    for what, first, second in steps:
        if what == "append":
            model.append(first, second)  # type: ignore[arg-type]
        elif what == "clean":
            model.clean(first, second)  # type: ignore[arg-type]
            model.restart(first, is_power_cut=False)  # type: ignore[arg-type]
        else:
            model.restart(first, is_power_cut=bool(second))  # type: ignore[arg-type]
        model.check()
    if model.sent:
        check_producers_are_in_the_log(model.disk, model.log, model.sent)
