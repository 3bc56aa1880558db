"""Reports of a run: a table on the terminal, JSON for programs, Markdown for `README.md`."""

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from benchmarks.harness import Row, amount, share_text

README = Path(__file__).with_name("README.md")
_BEGIN, _END = "<!-- last run -->", "<!-- end of last run -->"


class Report:
    """The rows of a run, written again with each row that comes: a run that ends early keeps what it has measured.

    A benchmark that fails keeps its rows too, and the others go on.
    """

    def __init__(self, about: Mapping[str, Any], *, json_path: Path | None, readme: Path | None) -> None:
        self._about = about
        self._json_path = json_path
        self._readme = readme
        self.tables: dict[str, list[Row]] = {}
        self.failures: dict[str, Exception] = {}

    def __repr__(self) -> str:
        return f"<Report { {name: len(rows) for name, rows in self.tables.items()} } failed={list(self.failures)}>"

    @property
    def rows(self) -> list[Row]:
        return [row for table in self.tables.values() for row in table]

    def take(self, name: str, rows: Iterable[Row]) -> None:
        """Runs one benchmark."""
        self.tables[name] = []
        try:
            for row in rows:
                self.tables[name].append(row)
                self._write()
        except Exception as error:
            self.failures[name] = error

    def _write(self) -> None:
        if self._json_path is not None:
            write_json(self._json_path, self.rows, self._about)
        if self._readme is not None:
            write_readme(
                self._readme, {name: rows for name, rows in self.tables.items() if rows}, self._about
            )


def print_table(title: str, rows: Sequence[Row], console: Console) -> None:
    table = Table(title=title, title_justify="left", title_style="bold")
    for name in ("what", "settings"):
        table.add_column(name, overflow="fold")
    for name in _figures(rows):
        table.add_column(name, justify="right", no_wrap=True)
    for row in rows:
        table.add_row(*_cells(row, rows), style="red" if row.is_met is False else None)
    console.print(table)
    for note in _notes(rows):
        console.print(f"[dim]{note}[/dim]")


def write_json(path: Path, rows: Iterable[Row], about: Mapping[str, Any]) -> None:
    report = {"about": about, "rows": [row.as_json() for row in rows]}
    path.write_text(json.dumps(report, indent=2) + "\n")


def write_readme(path: Path, tables: Mapping[str, Sequence[Row]], about: Mapping[str, Any]) -> None:
    """Replaces the tables between the marks of a Markdown file; those that this run has not made stay as they were."""
    before, _, rest = path.read_text().partition(_BEGIN)
    old, _, after = rest.partition(_END)
    taken = [f"- {key}: {value}" for key, value in about.items()]
    sections = dict(re.findall(r"^### (\w+)\n\n(.*?)(?=\n+### |\Z)", old.strip(), re.MULTILINE | re.DOTALL))
    for name, rows in tables.items():
        lines = [*taken, "", *_markdown(rows), "", *(f"- {note}" for note in _notes(rows))]
        sections[name] = "\n".join(lines).rstrip()
    text = "\n\n".join(f"### {name}\n\n{section}" for name, section in sections.items())
    path.write_text(f"{before}{_BEGIN}\n{text}\n{_END}{after}")


def _markdown(rows: Sequence[Row]) -> list[str]:
    header = ["what", "settings", *_figures(rows)]
    marks = ["---", "---", *("---:" for _ in header[2:])]
    return [f"| {' | '.join(cells)} |" for cells in (header, marks, *(_cells(row, rows) for row in rows))]


def _figures(rows: Sequence[Row]) -> list[str]:
    """The columns of figures: those of a peer, and the bar of its ratio, only where a row has one."""
    of_peers = ["peer", "ratio", *(["its bar"] if _has_ratio_bar(rows) else [])] if _has_peer(rows) else []
    return ["value", "limit", "share", "bar", *of_peers]


def _has_peer(rows: Sequence[Row]) -> bool:
    return any(row.peer is not None for row in rows)


def _has_ratio_bar(rows: Sequence[Row]) -> bool:
    return any(row.ratio_bar is not None for row in rows)


def _cells(row: Row, rows: Sequence[Row]) -> list[str]:
    limit = "" if row.limit is None else amount(row.limit, row.unit)
    share = "" if row.share is None else share_text(row.share, is_duration=row.unit == "s")
    cells = [row.what, row.settings, amount(row.value, row.unit), limit, share, str(row.bar or "")]
    if _has_peer(rows):
        cells += ["" if row.peer is None else amount(row.peer, row.unit)]
        cells.append("" if row.ratio is None else f"{row.ratio:.2f}")
        if _has_ratio_bar(rows):
            cells.append(str(row.ratio_bar or ""))
    return cells


def _notes(rows: Sequence[Row]) -> list[str]:
    """What the limit was and what else there is to say, rows with the same words together."""
    words: dict[str, list[str]] = {}
    for row in rows:
        text = "; ".join(each for each in (row.limit_what and f"limit: {row.limit_what}", row.note) if each)
        if text and row.what not in words.setdefault(text, []):
            words[text].append(row.what)
    return [f"{', '.join(whats)}: {text}" for text, whats in words.items()]
