"""Output of commands: tables for people, plain columns in a pipe, JSON for programs.

rich decorates terminals only (and honours NO_COLOR); a pipe gets every cell whole, whatever its width. rich is
imported late.
"""

import json
import logging
import re
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from datetime import datetime
from enum import StrEnum
from typing import Any

import click

from rayka.client.arguments import given_timestamp_ms


class Style(StrEnum):
    """The colour of a cell on a terminal."""

    PLAIN = ""
    GOOD = "green"
    NOTE = "yellow"
    BAD = "bold red"


class Count(int):
    """A number of things; a terminal shows it with separators, `336,776`.

    Plain ints are identifiers or positions and have no separators.
    """


def print_json(value: Any) -> None:
    """Prints a dataclass or plain values as JSON."""
    plain = asdict(value) if hasattr(value, "__dataclass_fields__") else value
    click.echo(json.dumps(plain, indent=2, default=str))


def print_table(
    title: str, columns: Sequence[str], rows: Sequence[Sequence[object]], styles: Sequence[Style] = ()
) -> None:
    """Prints a table; `styles` has one colour for each row."""
    if sys.stdout.isatty():
        _print_rich(title, columns, rows, styles)
    else:
        _print_plain(columns, rows)


@contextmanager
def working(message: str) -> Iterator[None]:
    """Shows a spinner on a terminal during the block."""
    if not sys.stderr.isatty():
        yield
        return
    from rich.console import Console

    with Console(stderr=True).status(message):
        yield


class OnStderr(logging.Handler):
    """Writes each message as one line, without a level or a place, beside a command's own output.

    Uses `print`, which writes above a progress bar. click.echo would write to the terminal itself, through the bar.
    """

    def emit(self, record: logging.LogRecord) -> None:
        print(record.getMessage(), file=sys.stderr, flush=True)


# Loggers that a command shows on stderr unless it is quiet: which Ray it uses, and how a start goes on.
_CONNECTING = "rayka.actors.ray_connection"
_STARTING = (
    "rayka.actors.ray_process",
    "rayka.actors.cluster_start",
    "rayka.actors.cluster_actors",
    "rayka.actors.node_logs",
)
_on_stderr = OnStderr()


def say_which_ray() -> None:
    """Prints one line on stderr when the command connects: which Ray, and why."""
    _say(_CONNECTING)


def say_progress() -> None:
    """Prints the steps of a start or stop on stderr: a Ray that starts, directories that are formatted, nodes that run,
    logs that are kept.
    """
    for each in _STARTING:
        _say(each)


def be_quiet() -> None:
    """Leaves out everything on stderr but errors."""
    for each in (_CONNECTING, *_STARTING):
        logging.getLogger(each).setLevel(logging.ERROR)


def _say(logger_name: str) -> None:
    logger = logging.getLogger(logger_name)
    logger.setLevel(logging.INFO)
    logger.addHandler(_on_stderr)


def ids(node_ids: Sequence[int]) -> str:
    """`1,2,3`."""
    return ",".join(str(node_id) for node_id in node_ids)


def counted(count: int, one: str, several: str = "") -> str:
    """`1 file`, `2,000 files`."""
    return f"{count:,} {one if count == 1 else several or f'{one}s'}"


def size(size_bytes: int) -> str:
    """`1.5 GB`: decimal units, as disks are sold."""
    value, units = float(size_bytes), ["B", "kB", "MB", "GB", "TB"]
    while value >= 1000 and len(units) > 1:
        value, units = value / 1000, units[1:]
    return f"{value:.0f} {units[0]}" if units[0] == "B" else f"{value:.1f} {units[0]}"


def _print_rich(
    title: str, columns: Sequence[str], rows: Sequence[Sequence[object]], styles: Sequence[Style]
) -> None:
    from rich import box
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(title=title, title_justify="left", title_style="bold", box=box.SIMPLE_HEAD, pad_edge=False)
    for index, column in enumerate(columns):
        is_number = bool(rows) and all(isinstance(row[index], int) for row in rows)
        table.add_column(column, justify="right" if is_number else "left", overflow="fold")
    for index, row in enumerate(rows):
        table.add_row(*(Text(_text(cell)) for cell in row), style=styles[index] if styles else None)
    Console().print(table)


def _print_plain(columns: Sequence[str], rows: Sequence[Sequence[object]]) -> None:
    lines = [list(columns), *([_text(cell) for cell in row] for row in rows)]
    widths = [max(len(line[index]) for line in lines) for index in range(len(columns))]
    for line in lines:
        cells = (cell.ljust(width) for cell, width in zip(line, widths, strict=True))
        click.echo("  ".join(cells).rstrip())


def _text(cell: object) -> str:
    return f"{cell:,}" if isinstance(cell, Count) and sys.stdout.isatty() else str(cell)


# ---- Moments ----


def parse_moment(text: str) -> datetime | int:
    """Parses a moment since 1970, `2026-01-31T12:00` or `@MS` (milliseconds since 1970). Raises ValueError."""
    if re.fullmatch(r"@[0-9]{1,15}", text):
        return int(text[1:])
    given_timestamp_ms(text, "moment")
    return datetime.fromisoformat(text.strip())


def local_time(timestamp_ms: int) -> str:
    """`2026-01-31 12:00:00`, or `N ms` for a timestamp beyond the calendar, which a record may have."""
    try:
        return f"{datetime.fromtimestamp(timestamp_ms / 1000).astimezone():%Y-%m-%d %H:%M:%S}"
    except (ValueError, OverflowError, OSError):
        return f"{timestamp_ms} ms"
