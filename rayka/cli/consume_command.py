"""`rayka consume`: prints the records of a topic in a format, or as lines of JSON.

Writes only whole records, also when Ctrl-C ends the command, unless the reader of the pipe has stopped reading. In a
group, written records are committed. Kafka: `kcat -C` and `-G`, `kafka-console-consumer`.
"""

import io
import os
import re
import select
import signal
import sys
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from datetime import datetime
from itertools import islice
from typing import TYPE_CHECKING, Any, BinaryIO, NamedTuple

import click

from rayka.cli.output import parse_moment
from rayka.cli.record_text import json_line, parse_format
from rayka.cli.shared_options import DATA, Target, client_config_option, target_options

if TYPE_CHECKING:
    from rayka.cli.record_text import Format
    from rayka.client.bootstrap import ClusterHandle
    from rayka.client.consumer.consumer import Consumer
    from rayka.client.consumer.reader import Reader
    from rayka.client.consumer.record import Record
    from rayka.ids import TopicPartition

_BUFFER_BYTES = 1 << 16
_POLL_RECORDS = 500
# After this time without a record the command checks that the pipe still has a reader.
_POLL_MS = 500
# For the rest of the buffer after Ctrl-C.
_LAST_WRITE_S = 0.1
_WORDS = {"beginning": "earliest", "earliest": "earliest", "end": "latest", "latest": "latest"}


class Start(NamedTuple):
    """The start of reading."""

    # A bound of `rayka.read`; counts if `offset` is None.
    bound: str | int | datetime = "earliest"
    # Below 0: the last -offset records of each partition.
    offset: int | None = None


@click.command()
@click.argument("topic_name", metavar="TOPIC")
@click.option(
    "--from",
    "-o",
    "start",
    default="beginning",
    show_default=True,
    metavar="WHERE",
    help="beginning, end, an offset, -N (the last N of each partition), a time as 2026-01-31T12:00, or @MS.",
)
@click.option(
    "--partition", "-p", "numbers", multiple=True, type=click.IntRange(min=0), help="Which; all otherwise."
)
@click.option(
    "--group",
    "-g",
    "group_id",
    metavar="GROUP",
    help="Begin where this group has come to, and commit what is printed.",
)
@click.option("--count", "-c", type=click.IntRange(min=0), help="End after so many records.")
@click.option("--exit", "-e", "ends", is_flag=True, help="End where the topic ended when the command began.")
@click.option(
    "--format", "-f", "text", type=DATA, metavar="FORMAT", help=r"What to print of a record; %s\n otherwise."
)
@click.option(
    "--key-delimiter", "-K", type=DATA, metavar="TEXT", help="Print keys, and this between key and value."
)
@click.option(
    "--delimiter", "-D", type=DATA, metavar="TEXT", help=r"Print this after each value; \n otherwise."
)
@click.option("--null", "-Z", "shows_null", is_flag=True, help="Print NULL for a key or value that is none.")
@client_config_option
@target_options
def consume(
    *,
    topic_name: str,
    start: str,
    numbers: tuple[int, ...],
    group_id: str | None,
    count: int | None,
    ends: bool,
    configs: dict[str, Any],
    target: Target,
    **shape: Any,
) -> None:
    r"""Print the records of TOPIC, and wait for more until Ctrl-C.

    A FORMAT is kcat's: %t topic, %p partition, %o offset, %T timestamp in ms, %k key, %s value, %K and %S their lengths
    (-1: none), %R the value's length as four bytes, %h headers, %% a percent sign, \n \r \t \e \0 \\ \xHH.

    With --group, --from (beginning or end) counts where the group has committed nothing. Its members share the
    partitions, unless --partition names some.

    With --json each record is a line of JSON, from which `rayka produce --json` makes the same record again.
    """
    to_bytes = _format_of(target.as_json, **shape)
    where = parse_start(start)
    from rayka.client.consumer.consumer import Consumer

    handle = target.cluster()
    if group_id is not None:
        given = {
            **configs,
            "group_id": group_id,
            "auto_offset_reset": _reset_to(start),
            "enable_auto_commit": False,
        }
        with whole_records() as output, Consumer(cluster=handle, config=given) as consumer:
            ends_at = range_from(topic_name, handle, where, numbers, configs).end_offsets
            generations: list[list[TopicPartition]] = []
            if numbers:
                consumer.assign([tp for tp in ends_at if tp.partition in numbers])
            else:
                consumer.subscribe(topic_name, on_assign=generations.append)
            is_read = (
                None if not ends else lambda: bool(numbers or generations) and _is_read(consumer, ends_at)
            )
            print_in_group(consumer, to_bytes, output, count=count, is_read=is_read)
        return
    reader = range_from(topic_name, handle, where, numbers, configs)
    with whole_records() as output:
        if ends:
            write(islice(reader, count), to_bytes, output)
            return
        # A subscription reads all partitions, and those added later.
        topics = () if numbers else (topic_name,)
        with Consumer(*topics, cluster=handle, config=configs, auto_offset_reset="earliest") as consumer:
            starts = {tp: at for tp, at in reader.start_offsets.items() if tp.partition in numbers or topics}
            if numbers:
                consumer.assign(starts)
            for tp, offset in starts.items():
                consumer.seek(tp, offset)
            write(islice(_followed(consumer, output), count), to_bytes, output)


def _reset_to(start: str) -> str:
    """The reset policy for a group without committed offsets. Raises click.BadParameter."""
    if start not in _WORDS:
        raise click.BadParameter(
            f"expected beginning or end with --group, found {start!r}", param_hint="--from"
        )
    return _WORDS[start]


def print_in_group(
    consumer: "Consumer",
    to_bytes: "Format",
    output: BinaryIO,
    *,
    count: int | None,
    is_read: "Callable[[], bool] | None",
) -> None:
    """Writes records and commits those written; ends after `count` records, or once `is_read` says so."""
    left = sys.maxsize if count is None else count
    while left > 0:
        records = consumer.poll(_POLL_MS, max_records=min(left, _POLL_RECORDS))
        write(records, to_bytes, output)
        output.flush()
        if records:
            consumer.commit_async()
            left -= len(records)
        elif is_read is not None and is_read():
            return
        if _has_no_reader(output):
            raise BrokenPipeError


def _is_read(consumer: "Consumer", ends: "Mapping[TopicPartition, int]") -> bool:
    """Whether all assigned partitions are read up to `ends`; True without any (the group has enough other members)."""
    return all(consumer.position(tp) >= ends.get(tp, 0) for tp in consumer.assignment())


def parse_start(text: str) -> Start:
    """Parses `--from`. Raises click.BadParameter."""
    if text in _WORDS:
        return Start(_WORDS[text])
    if re.fullmatch(r"-?[0-9]{1,18}", text):
        return Start(offset=int(text))
    try:
        return Start(parse_moment(text))
    except ValueError as error:
        raise click.BadParameter(
            f"expected beginning, end, an offset, -N, a time since 1970 as 2026-01-31T12:00, or @MS; found {text!r}",
            param_hint="--from",
        ) from error


def range_from(
    topic_name: str, cluster: "ClusterHandle", start: Start, numbers: Collection[int], configs: dict[str, Any]
) -> "Reader":
    """The existing records from the start on, of the partitions of these numbers or of all.

    Raises click.BadParameter and the errors of `rayka.read`.
    """
    from rayka.client.consumer.reader import read

    whole = read(topic_name, cluster=cluster, config=configs, start=start.bound)
    if not numbers and start.offset is None:
        return whole
    unknown = set(numbers) - {tp.partition for tp in whole.end_offsets}
    if unknown:
        raise click.BadParameter(
            f"expected 0 to {len(whole.end_offsets) - 1}, the partitions of topic {topic_name!r}; "
            f"found {min(unknown)}",
            param_hint="--partition",
        )
    starts = {}
    for tp, first in whole.start_offsets.items():
        end = whole.end_offsets[tp]
        if numbers and tp.partition not in numbers:
            starts[tp] = end
        elif start.offset is None:
            starts[tp] = first
        else:
            starts[tp] = start.offset if start.offset >= 0 else max(first, end + start.offset)
    return read(topic_name, cluster=cluster, config=configs, start=starts, end=whole.end_offsets)


def write(records: "Iterable[Record]", to_bytes: "Format", output: BinaryIO) -> None:
    """Writes the records as they arrive."""
    for record in records:
        output.write(to_bytes(record))


@contextmanager
def whole_records() -> Iterator[BinaryIO]:
    """Standard output for records.

    Each write enters the buffer whole, so that Ctrl-C cuts no record. At the end the buffer is flushed within
    `_LAST_WRITE_S`, which fails if the reader of the pipe has stopped reading.
    """
    sys.stdout.flush()
    output = io.BufferedWriter(io.FileIO(sys.stdout.fileno(), "wb", closefd=False), _BUFFER_BYTES)
    try:
        yield output
    except KeyboardInterrupt:
        _flush_within(_LAST_WRITE_S, output)
        raise
    output.flush()


def _flush_within(seconds: float, output: BinaryIO) -> None:
    """Flushes, or after the timeout drops the rest, also from Python's flush at exit."""
    signal.signal(signal.SIGALRM, signal.default_int_handler)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        output.flush()
    except KeyboardInterrupt:
        os.dup2(os.open(os.devnull, os.O_WRONLY), output.fileno())
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)


def _followed(consumer: "Consumer", output: BinaryIO) -> "Iterator[Record]":
    """Yields records for ever; flushes the output before each wait."""
    while True:
        yield from consumer.poll(_POLL_MS)
        output.flush()
        if _has_no_reader(output):
            raise BrokenPipeError


def _has_no_reader(output: BinaryIO) -> bool:
    """Whether the other end of the pipe is closed, without writing to it."""
    poll = select.poll()
    poll.register(output, 0)
    return any(event & select.POLLERR for _, event in poll.poll(0))


def _format_of(
    as_json: bool, *, text: str | None, key_delimiter: str | None, delimiter: str | None, shows_null: bool
) -> "Format":
    """The format of a printed record. Raises click.UsageError for options that exclude each other, and ConfigError."""
    others: dict[str, object] = {"--key-delimiter": key_delimiter, "--delimiter": delimiter}
    if as_json:
        others |= {"--format": text, "--null": shows_null or None}
    for option, value in others.items():
        if value is not None and (as_json or text is not None):
            taken = "--json" if as_json else "--format"
            raise click.UsageError(f"{taken} says all that is printed of a record; leave out {option}")
    if as_json:
        return json_line
    if text is None:
        key = "" if key_delimiter is None else "%k" + _escaped(key_delimiter)
        text = key + "%s" + (r"\n" if delimiter is None else _escaped(delimiter))
    return parse_format(text, b"NULL" if shows_null else b"")


def _escaped(delimiter: str) -> str:
    return delimiter.replace("%", "%%")
