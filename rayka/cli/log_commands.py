"""`rayka log dump`: what stands in the files of logs, whether their node runs or not."""

import json
import os
import time
from contextlib import closing
from dataclasses import asdict
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import click

from rayka.cli.output import Style, counted, print_json, print_table, size
from rayka.cli.shared_options import CommandGroup, json_option

if TYPE_CHECKING:
    from rayka.cli.file_dumps import BatchDump, FileDump

_BATCH_COLUMNS = ("position", "offsets", "records", "epoch", "bytes", "codec", "kind", "crc")
_RECORD_COLUMNS = ("offset", "timestamp", "key", "value")


@click.group(cls=CommandGroup)
def log() -> None:
    """Look into the files of logs."""


@log.command()
@click.argument("paths", metavar="PATH...", nargs=-1, required=True, type=click.Path(exists=True))
@click.option("--records", "with_records", is_flag=True, help="Print the records too, with keys and values.")
@click.option("--metadata", "as_metadata", is_flag=True, help="Print the records as those of the metadata.")
@click.option("--verify", is_flag=True, help="Print only what is damaged; exit code 1 if anything is.")
@json_option
def dump(
    paths: tuple[str, ...], with_records: bool, as_metadata: bool, verify: bool, as_json: bool
) -> int | None:
    """Print what stands in the files PATH, or in all files of the logs in the directories PATH.

    Segments, indexes, leader epochs, snapshots and quorum states are read as they are, and nothing is changed: the node
    that they belong to may run.
    """
    from rayka.cli.file_dumps import FileDumps

    with closing(FileDumps(with_records=with_records, as_metadata=as_metadata)) as files:
        dumps = [each for path in paths for each in files.dump(path)]
    if as_json:
        print_json([asdict(each) for each in dumps])
    elif verify:
        _print_problems(dumps)
    else:
        for each in dumps:
            _print_file(each)
    return 1 if verify and any(each.problems for each in dumps) else None


@log.command()
@click.argument(
    "paths", metavar="PATH...", nargs=-1, required=True, type=click.Path(exists=True, file_okay=False)
)
@click.option(
    "--dry-run", is_flag=True, required=True, help="Change nothing; brokers compact their logs themselves."
)
@click.option("--map-bytes", default=128 << 20, show_default=True, type=click.IntRange(min=1 << 10))
@click.option(
    "--delete-retention-ms", default=24 * 3600 * 1000, show_default=True, type=click.IntRange(min=0)
)
@json_option
def clean(
    paths: tuple[str, ...], dry_run: bool, map_bytes: int, delete_retention_ms: int, as_json: bool
) -> None:
    """Say what a compaction would keep of the logs in the directories PATH, each that of one partition.

    All but the newest segment is read, and nothing is changed: the node that they belong to may run.
    """
    from rayka.cleaner import file_cleaning
    from rayka.log.local_disk import LocalDisk

    with closing(LocalDisk()) as disk:
        found = [
            file_cleaning.dry_run(
                disk,
                path,
                map_bytes=map_bytes,
                delete_retention_ms=delete_retention_ms,
                timestamp_ms=int(time.time() * 1000),
                secret=os.urandom(32),
            )
            for path in paths
        ]
    if as_json:
        print_json([asdict(each) for each in found])
        return
    rows = [
        (
            each.path, each.segments, each.keys, f"{each.kept_records} of {each.input_records}",
            f"{size(each.output_bytes)} of {size(each.input_bytes)}", each.tombstones, each.invalid_records,
        )
        for each in found
    ]  # fmt: skip
    print_table("Kept", ("path", "segments", "keys", "records", "bytes", "tombstones", "without key"), rows)


def _print_problems(dumps: "list[FileDump]") -> None:
    for each in dumps:
        _print_remarks(each, f"{each.path}: ")
    batches = sum(len(each.batches) for each in dumps)
    damaged = sum(bool(each.problems) for each in dumps)
    looked_at = f"{counted(len(dumps), 'file')}, {counted(batches, 'batch', 'batches')}"
    click.echo(f"{looked_at}; {counted(damaged, 'damaged file') if damaged else 'no damaged files'}")


def _print_file(dump: "FileDump") -> None:
    click.echo(f"{dump.path}: {dump.kind}, {size(dump.size_bytes)}")
    if dump.batches:
        rows = [_batch_row(each) for each in dump.batches]
        styles = [Style.PLAIN if each.is_crc_valid else Style.BAD for each in dump.batches]
        print_table("Batches", _BATCH_COLUMNS, rows, styles)
    records = [record for each in dump.batches for record in each.records or ()]
    if records:
        print_table("Records", _RECORD_COLUMNS, [_record_row(each) for each in records])
    if dump.entries:
        print_table("Entries", list(dump.entries[0]), [list(each.values()) for each in dump.entries])
    _print_remarks(dump, "")
    click.echo()


def _print_remarks(dump: "FileDump", prefix: str) -> None:
    for problem in dump.problems:
        click.secho(f"{prefix}damaged: {problem}", fg="red")
    for note in dump.notes:
        click.echo(f"{prefix}note: {note}")


def _batch_row(batch: "BatchDump") -> tuple[object, ...]:
    kinds = {"control": batch.is_control, "transactional": batch.is_transactional}
    return (
        batch.position,
        f"{batch.base_offset}-{batch.last_offset}",
        batch.record_count,
        batch.leader_epoch,
        batch.size_bytes,
        batch.codec,
        " ".join(name for name, is_so in kinds.items() if is_so) or "data",
        batch.crc if batch.is_crc_valid else f"{batch.crc} wrong",
    )


def _record_row(record: dict[str, Any]) -> tuple[object, ...]:
    value = record["value"]
    text = _fields(value) if isinstance(value, dict) else value
    headers = "".join(f"  {name}: {each}" for name, each in record.get("headers", ()))
    return (
        record["offset"],
        _time(record["timestamp_ms"]),
        _cell(record["key"]),
        _cell(text) + headers,
    )


def _time(timestamp_ms: int) -> str:
    """A record may have any timestamp, also one that is no date."""
    try:
        return datetime.fromtimestamp(timestamp_ms / 1000, UTC).isoformat(timespec="milliseconds")
    except (ValueError, OverflowError, OSError):
        return f"{timestamp_ms} ms"


def _fields(record: dict[str, Any]) -> str:
    """A record's fields that say something, compounds as JSON."""
    said = {name: value for name, value in record.items() if value is not None and name != "version"}
    texts = {name: value if isinstance(value, str) else json.dumps(value) for name, value in said.items()}
    return " ".join(f"{name}={text}" for name, text in texts.items())


def _cell(value: object) -> str:
    return "null" if value is None else str(value)
