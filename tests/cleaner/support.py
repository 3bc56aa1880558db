"""Builders for tests of compaction: logs of small segments, cleanings without a node, and the records that they must
keep.
"""

from collections.abc import Callable, Generator, Sequence

from rayka.cleaner.compaction import FAILURES, Cleanable, Compaction, SyncNeeded, cleanable
from rayka.cleaner.file_cleaning import CleaningSettings
from rayka.config.topic_config import TopicConfig
from rayka.log.log import Log
from rayka.ports import Disk, Slice
from rayka.protocol.batch_decode import decode
from rayka.protocol.batch_encode import encode_batch
from rayka.protocol.batch_format import NO_SEQUENCE, Codec, ProducerSequence, RecordBatch
from rayka.testing.memory_disk import MemoryDisk
from tests.log.support import read_batches, sync

COMPACTED = TopicConfig(
    segment_bytes=1200,
    index_interval_bytes=200,
    segment_index_bytes=1000,
    cleanup_policy="compact",
    min_cleanable_dirty_ratio=0,
    delete_retention_ms=1000,
)
Record = tuple[bytes | None, bytes | None]
Found = tuple[int, bytes | None, bytes | None]  # offset, key, value
SETTINGS = CleaningSettings(map_bytes=1 << 16, timestamp_ms=50_000, secret=b"0123456789abcdef")
HERE: dict[str, Callable[[], bool]] = {"is_wanted": lambda: True, "is_here": lambda: True}


def keyed(
    records: Sequence[Record],
    *,
    timestamp_ms: int = 1000,
    sequence: ProducerSequence = NO_SEQUENCE,
    codec: Codec = Codec.NONE,
) -> RecordBatch:
    """A batch of records with keys, as a producer sends it."""
    keys, values = [key for key, _ in records], [value for _, value in records]
    return RecordBatch(
        encode_batch(values, keys=keys, timestamps_ms=timestamp_ms, sequence=sequence, codec=codec)
    )


def put(log: Log, *records: Record, timestamp_ms: int = 1000) -> None:
    """Appends the records as one batch."""
    log.append_as_leader([keyed(records, timestamp_ms=timestamp_ms)], 0, now_ms=0)


def part_of(disk: MemoryDisk, log: Log, timestamp_ms: int = SETTINGS.timestamp_ms) -> Cleanable:
    """The part of a log that may be cleaned when everything is durable and committed, and the last segment sealed."""
    log.roll(0)
    sync(disk, log)
    return cleanable(log, log.log_end_offset, timestamp_ms)


def steps_of(compaction: Compaction, disk: Disk) -> Generator[Slice | SyncNeeded, None, None]:
    """A cleaning, all of it in one place. Raises CleaningAborted, CorruptRecord and what the disk fails with."""
    steps, answer = compaction.job.run(disk), None
    try:
        while True:
            try:
                step = steps.send(answer)
            except StopIteration:
                break
            answer = yield from compaction.on_step(step)
    except FAILURES as error:
        raise compaction.on_failed(error) from error
    compaction.finish()


def clean(
    disk: MemoryDisk,
    log: Log,
    settings: CleaningSettings = SETTINGS,
    *,
    on_step: Callable[[], None] = lambda: None,
) -> Compaction:
    """Cleans the log as a node does, all in one go; `on_step` is called after each."""
    compaction = Compaction(log, part_of(disk, log, settings.timestamp_ms), settings, **HERE)
    for step in steps_of(compaction, disk):
        if isinstance(step, SyncNeeded):
            disk.sync_now(step.files, step.directories)
        on_step()
    return compaction


def records_of(log: Log) -> list[Found]:
    """All records, with their offsets."""
    found: list[Found] = []
    for batch in read_batches(log):
        decoded = decode(batch)
        found += zip(map(int, decoded.offsets), decoded.keys_list(), decoded.values_list(), strict=True)
    return found


def table_of(records: Sequence[Found]) -> dict[bytes, bytes]:
    """A dictionary fed with the records: a null value removes its key."""
    table: dict[bytes, bytes] = {}
    for _, key, value in records:
        if key is not None and value is not None:
            table[key] = value
        elif key is not None:
            table.pop(key, None)
    return table


def newest_of(records: Sequence[Found], end_offset: int) -> dict[bytes, Found]:
    """The newest record of each key below an offset."""
    return {each[1]: each for each in records if each[1] is not None and each[0] < end_offset}
