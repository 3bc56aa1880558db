"""How far a log is clean, for the next process: never behind where it was truncated (F20)."""

from rayka.log.log_directory import LogDirectory
from rayka.testing.memory_disk import MemoryDisk
from tests.cleaner.support import COMPACTED, SETTINGS, clean, put, records_of, table_of
from tests.log.directory_support import formatted_disk, open_directory, open_orders, run
from tests.log.support import truncate


def cleaned() -> tuple[MemoryDisk, LogDirectory]:
    """A log of 40 records, clean, and a checkpoint that says so."""
    disk = formatted_disk()
    directory = open_directory(disk)
    log = open_orders(directory, COMPACTED)
    for number in range(40):
        put(log, (b"k%d" % number, b"old"))
    clean(disk, log)
    run(directory.checkpoint())
    return disk, directory


def test_a_restarted_process_goes_on_behind_what_was_cleaned() -> None:  # F20
    disk, _ = cleaned()
    disk.process_crash()
    assert open_orders(open_directory(disk), COMPACTED).cleaned_offset == 40


def test_what_came_after_a_truncation_is_not_clean_for_the_process_after_a_crash() -> None:  # F20
    """Else a tombstone there would go after its horizon, and the value before it would stay."""
    disk, directory = cleaned()
    (log,) = directory.logs.values()
    truncate(disk, log, 10)
    put(log, (b"a", b"1"))
    put(log, (b"a", None))
    for number in range(60):
        put(log, (b"b", b"%d" % number))
    disk.process_crash()
    log = open_orders(open_directory(disk), COMPACTED)
    assert log.cleaned_offset <= 10
    before = table_of(records_of(log))
    for timestamp_ms in (50_000, 60_000):
        clean(disk, log, SETTINGS._replace(timestamp_ms=timestamp_ms))
        put(log, (b"b", b"last"))
    assert table_of(records_of(log)) == before | {b"b": b"last"}
