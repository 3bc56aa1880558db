"""Progress of a long command: live bars and ticks on a terminal, one plain line a step in a pipe."""

import time
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext

from rich.console import Console
from rich.progress import (
    BarColumn,
    Progress,
    SpinnerColumn,
    TaskID,
    TaskProgressColumn,
    TextColumn,
    TimeElapsedColumn,
)


class ProgressStep:
    """One step of a command, under way."""

    def __init__(self, progress: Progress, task: TaskID) -> None:
        # The result in words, set by the command and shown in the step's line.
        self.detail = ""
        self.seconds = 0.0
        self._progress = progress
        self._task = task
        self._started = time.perf_counter()

    def advance(self, count: int) -> None:
        """Adds to the completed items."""
        self._progress.advance(self._task, count)

    def expect(self, total: int) -> None:
        """Sets the number of items, which turns the spinner into a bar."""
        self._progress.update(self._task, total=total)

    def end(self) -> None:
        self.seconds = time.perf_counter() - self._started

    def rate(self, count: int, size_bytes: int | None = None) -> str:
        """The rate since the step began: `336,776 records, 410,219/s, 130 MB/s`; without bytes if they are unknown."""
        self.end()
        records = f"{count:,} records, {count / self.seconds:,.0f}/s"
        return records if size_bytes is None else f"{records}, {size_bytes / 1e6 / self.seconds:,.0f} MB/s"


class Narrator:
    """Shows the steps of one command on a console."""

    def __init__(self, console: Console) -> None:
        self.console = console

    @contextmanager
    def step(self, doing: str) -> Iterator[ProgressStep]:
        """Shows the step during its work, and afterwards a line with its detail and its seconds."""
        progress = self._progress()
        # Not in a pipe: older versions of rich end even a disabled progress with an empty line.
        with progress if self.console.is_terminal else nullcontext():
            step = ProgressStep(progress, progress.add_task(doing, total=None))
            try:
                yield step
            except BaseException:
                self._line("[red]✗[/]", "failed:", doing)
                raise
        step.end()
        self._line(
            "[green]✓[/]", "", f"{doing}: {step.detail}" if step.detail else doing, f"({step.seconds:.1f} s)"
        )

    def say(self, text: str = "") -> None:
        """Prints one line."""
        self.console.print(text, markup=False, highlight=False, soft_wrap=True)

    def _progress(self) -> Progress:
        text = TextColumn("{task.description}")
        columns = (SpinnerColumn(), text, BarColumn(), TaskProgressColumn(), TimeElapsedColumn())
        return Progress(*columns, console=self.console, transient=True)

    def _line(self, mark: str, word: str, *texts: str) -> None:
        if self.console.is_terminal:
            self.console.print(mark, end=" ")
            self.say(" ".join(texts))
        else:
            self.say(" ".join(text for text in (word, *texts) if text))
