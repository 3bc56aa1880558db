"""`rayka log clean --dry-run`: the records that a cleaning would keep."""

import json
from pathlib import Path

from click.testing import CliRunner

from rayka.cleaner.file_cleaning import dry_run
from rayka.cli.log_commands import log as log_command
from rayka.log.local_disk import LocalDisk
from tests.cleaner.support import COMPACTED, SETTINGS, clean, put
from tests.log.support import new_log, opened_log


def test_a_dry_run_says_what_the_cleaning_does_then_and_changes_nothing() -> None:
    disk, log = new_log(COMPACTED)
    for number in range(30):
        put(log, *[(key, b"%d" % number * 20) for key in (b"a", b"b", b"c")])
    put(log, (b"c", None))
    log.roll(0)
    before = {name: disk.size(f"{log.directory}/{name}") for name in disk.list(log.directory)}
    said = dry_run(
        disk,
        log.directory,
        map_bytes=1 << 16,
        delete_retention_ms=1000,
        timestamp_ms=50_000,
        secret=b"s" * 16,
    )
    assert {name: disk.size(f"{log.directory}/{name}") for name in disk.list(log.directory)} == before
    counts = clean(disk, log, SETTINGS).counts
    assert (said.kept_records, said.tombstones, said.keys) == (counts.kept_records, counts.tombstones, 3)
    assert said.input_records == counts.input_records == 91


def test_the_command_prints_it(tmp_path: Path) -> None:
    disk = LocalDisk()
    log = opened_log(disk, str(tmp_path / "orders-0"), COMPACTED)
    for number in range(30):
        put(log, (b"a", b"%d" % number * 20))
    disk.close()
    arguments = ["clean", "--dry-run", str(tmp_path / "orders-0")]
    result = CliRunner().invoke(log_command, [*arguments, "--json"])
    assert json.loads(result.output)[0]["keys"] == 1
    assert "1 of 28" in CliRunner().invoke(log_command, arguments).output
