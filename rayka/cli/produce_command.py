"""`rayka produce`: sends standard input to a topic as records.

Reads input as it arrives; `buffer.memory` of the producer and `_PENDING_MAX` bound the unacknowledged records. The
command ends at the first record that cannot be sent and names its line; earlier records are delivered first. Kafka:
`kcat -P`, `kafka-console-producer`. Left out: files as messages.
"""

import logging
import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import click

from rayka.cli.output import counted
from rayka.cli.record_text import data_bytes, parse_delimiter, parse_json_line, shown
from rayka.cli.shared_options import DATA, Target, client_config_option, key_and_value, target_options
from rayka.errors import ClientError, RaykaError, SerializationError

if TYPE_CHECKING:
    from rayka.client.producer.delivery_future import DeliveryFuture
    from rayka.client.producer.producer import Producer

_CHUNK_BYTES = 1 << 16
_LINE_BYTES_MAX = 64 << 20
_PENDING_MAX = 100_000
_LAST_DELIVERY_S = 0.1  # after Ctrl-C
Headers = list[tuple[str, bytes | None]]


class Sent(NamedTuple):
    """A record to send, as `Producer.send` takes it."""

    value: bytes | None
    key: bytes | None = None
    headers: Headers | None = None
    timestamp_ms: int | None = None


Parse: TypeAlias = Callable[[bytes], Sent | None]


@click.command()
@click.argument("topic_name", metavar="TOPIC")
@click.option("--key", "-k", type=DATA, metavar="TEXT", help="The key of every record.")
@click.option("--key-delimiter", "-K", type=DATA, metavar="TEXT", help="What ends the key in a line.")
@click.option(
    "--delimiter",
    "-D",
    type=DATA,
    default=r"\n",
    show_default=True,
    metavar="TEXT",
    help="What ends each record.",
)
@click.option(
    "--header",
    "-H",
    "headers",
    type=DATA,
    multiple=True,
    metavar="NAME=VALUE",
    help="Of every record; may be given often.",
)
@click.option("--partition", "-p", type=click.IntRange(min=0), help="Where to; the key's otherwise, or any.")
@click.option("--null", "-Z", "sends_null", is_flag=True, help="An empty key or value is none: a tombstone.")
@client_config_option
@target_options
def produce(
    *,
    topic_name: str,
    partition: int | None,
    configs: dict[str, Any],
    delimiter: str,
    target: Target,
    **shape: Any,
) -> None:
    """Send standard input to TOPIC, one record for each line, and end when all are acknowledged.

    With --json each line is a record as `rayka consume --json` prints it, with key, headers and timestamp; its topic,
    partition and offset are not used.

    The command ends at the first line that cannot be sent, with exit code 1; the lines before it are delivered.
    """
    from rayka.client.producer.producer import Producer

    if target.as_json and any(given not in (None, False, ()) for given in shape.values()):
        raise click.UsageError(
            "--json says all of a record; leave out --key, --key-delimiter, --header and --null"
        )
    parse = parse_json if target.as_json else line_parser(**shape)
    lines = split(_standard_input(), parse_delimiter(delimiter))
    logging.getLogger("rayka.client.producer.outcomes").setLevel(logging.ERROR)  # told below, in one line
    sender = LineSender(Producer(cluster=target.cluster(), config=configs), topic_name, partition)
    try:
        sender.send(lines, parse)
    except KeyboardInterrupt:
        if not target.as_json:
            click.echo(
                f"{counted(sender.delivered_count, 'record')} sent, {sender.failed_count} not", err=True
            )
        raise
    count = sender.delivered_count
    target.report(
        {"topic": topic_name, "records": count}, f"{counted(count, 'record')} sent to topic {topic_name}"
    )


def _standard_input() -> Iterator[bytes]:
    """Yields standard input as it comes. Raises ClientError."""
    try:
        while chunk := os.read(0, _CHUNK_BYTES):
            yield chunk
    except OSError as error:
        raise ClientError(
            f"standard input cannot be read: {error.strerror}; give a file or a pipe"
        ) from error


def split(chunks: Iterable[bytes], delimiter: bytes) -> Iterator[bytes]:
    """Yields the parts between delimiters as they arrive, and the rest after the last delimiter unless it is empty.

    Raises ClientError for a part longer than 64 MiB.
    """
    rest = bytearray()
    for chunk in chunks:
        searched = max(0, len(rest) - len(delimiter) + 1)
        rest += chunk
        if rest.find(delimiter, searched) >= 0:
            *lines, last = bytes(rest).split(delimiter)
            yield from lines
            rest = bytearray(last)
        if len(rest) > _LINE_BYTES_MAX:
            raise ClientError(
                f"expected a record of at most {_LINE_BYTES_MAX} bytes, found none that ends within that; "
                f"is {delimiter!r} the delimiter?"
            )
    if rest:
        yield bytes(rest)


class LineSender:
    """Sends lines to a topic and counts their outcomes.

    Invariants: a line is parsed whole before its record is sent; no line is sent after the first failure is known.
    """

    def __init__(
        self,
        producer: "Producer",
        topic_name: str,
        partition: int | None = None,
        *,
        pending_max: int = _PENDING_MAX,
    ) -> None:
        self.line_count = 0
        self.delivered_count = 0
        self.failed_count = 0
        self._producer = producer
        self._topic_name = topic_name
        self._partition = partition
        self._pending_max = pending_max
        self._failure: tuple[int, Exception] | None = None
        self._pending: deque[tuple[int, DeliveryFuture]] = deque()  # with their lines

    def __repr__(self) -> str:
        return (
            f"<LineSender to {self._topic_name} lines={self.line_count} delivered={self.delivered_count} "
            f"failed={self.failed_count}>"
        )

    def send(self, lines: Iterable[bytes], parse: Parse) -> None:
        """Sends the lines and closes the producer; returns when every record is acknowledged.

        Raises the error of the first line that failed, naming the line, after the outcomes of the records before it;
        and KeyboardInterrupt, after a moment for records under way.
        """
        try:
            with closing(self._producer):
                for line in lines:
                    self.line_count += 1
                    self._send(parse(line))
                    if self._failure is not None:
                        break
        except (RaykaError, KeyboardInterrupt) as error:
            self._settle(0)
            if self._failure is None and isinstance(error, RaykaError):
                self._failure = (self.line_count, error)
            if isinstance(error, KeyboardInterrupt):
                raise
        self._settle(0)
        if self._failure is not None:
            raise self._told(*self._failure)

    def _send(self, record: Sent | None) -> None:
        if record is None:
            return
        value, key, headers, timestamp_ms = record
        future = self._producer.send(
            self._topic_name,
            value,
            key=key,
            headers=headers,
            timestamp_ms=timestamp_ms,
            partition=self._partition,
        )
        self._pending.append((self.line_count, future))
        self._settle(self._pending_max)

    def _settle(self, pending_max: int) -> None:
        """Counts finished records, and waits while too many are pending."""
        pending = self._pending
        while pending and (len(pending) > pending_max or pending[0][1].done()):
            line, future = pending.popleft()
            error = future.exception()
            if error is None:
                self.delivered_count += 1
                continue
            self.failed_count += 1
            self._failure = self._failure or (line, error)

    def _told(self, line: int, error: Exception) -> Exception:
        """The error, of the same class, with its line and the outcomes of the other lines."""
        others = f"{counted(self.delivered_count, 'record')} delivered, {self.failed_count} failed"
        error.args = (f"line {line}: {error}; {others}, nothing after line {self.line_count} was sent",)
        return error


@contextmanager
def closing(producer: "Producer") -> Iterator[None]:
    """Closes the producer at the end: waits for records under way, after Ctrl-C only a moment."""
    timeout = None
    try:
        yield
    except KeyboardInterrupt:
        timeout = _LAST_DELIVERY_S
        raise
    finally:
        with suppress(TimeoutError):
            producer.close(timeout)


def line_parser(
    *,
    key: str | None = None,
    key_delimiter: str | None = None,
    headers: Sequence[str] = (),
    sends_null: bool = False,
) -> Parse:
    """Makes a record of a line that is a value, or a key and a value. Raises click.UsageError."""
    if key is not None and key_delimiter is not None:
        raise click.UsageError("--key gives all records one key, --key-delimiter each its own; leave one out")
    pairs: Headers | None = [_header(each) for each in headers] or None
    fixed_key = None if key is None else os.fsencode(key)
    separator = None if key_delimiter is None else parse_delimiter(key_delimiter)

    def parse(line: bytes) -> Sent:
        found_key, value = fixed_key, line
        if separator is not None:
            found_key, found, value = line.partition(separator)
            if not found:
                raise SerializationError(
                    f"expected a key that ends with {separator!r}, found none in {shown(line)}"
                )
        if sends_null:
            return Sent(value or None, found_key or None, pairs)
        return Sent(value, found_key, pairs)

    return parse


def _header(text: str) -> tuple[str, bytes]:
    """A header's name is text, its value bytes. Raises click.BadParameter."""
    name, value = key_and_value(text, "NAME=VALUE", "--header")
    try:
        name.encode()
    except UnicodeEncodeError:
        raise click.BadParameter(
            f"expected a name in UTF-8, found {os.fsencode(name)!r}", param_hint="--header"
        ) from None
    return name, os.fsencode(value)


def parse_json(line: bytes) -> Sent | None:
    """Parses a record from a line of JSON; None for an empty line."""
    if not line.strip():
        return None
    record = parse_json_line(line)
    headers = [(name, data_bytes(value)) for name, value in record.headers]
    return Sent(data_bytes(record.value), data_bytes(record.key), headers or None, record.timestamp_ms)
