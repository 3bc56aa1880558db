"""Waits for the end of reassignments and shows their progress: a bar on a terminal, else plain lines.

The cluster carries a reassignment out whether the command waits or not, so Ctrl-C ends only the wait, and says so.
"""

import math
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, NamedTuple, TypeVar

import click

from rayka.cli.output import counted
from rayka.errors import NoReassignmentInProgress, RequestTimedOut

if TYPE_CHECKING:
    from rayka.client.admin.admin import Admin
    from rayka.client.admin.admin_partition_results import PartitionReassignment
    from rayka.client.admin.admin_partitions import Plan
    from rayka.ids import TopicPartition

_LOOK_EVERY_S = 0.5
# In a pipe, while the progress does not change.
_LINE_EVERY_S = 10.0
_NAMES_SHOWN = 3
_Show = Callable[[int, str], None]
SeenT = TypeVar("SeenT")


def move(admin: "Admin", plan: "Plan", *, is_waiting: bool, timeout_s: float | None) -> None:
    """Begins the reassignment and, if asked to, waits for its end.

    Raises the errors of `Admin.alter_partition_reassignments`, RequestTimedOut after `timeout_s`, and
    NoReassignmentInProgress when another caller cancelled or changed the reassignment.
    """
    admin.alter_partition_reassignments(plan)
    if is_waiting:
        wait_until_moved(admin, plan, timeout_s=timeout_s)


def wait_until_moved(admin: "Admin", plan: "Plan", *, timeout_s: float | None) -> None:
    """Returns when each partition has exactly the replicas of the plan. Raises like `move`."""

    def progress(found: "list[PartitionReassignment]") -> Progress:
        ongoing = {each.topic_partition: each for each in found}
        late = f"{_listed(ongoing)} did not catch up" if ongoing else ""
        return Progress(len(plan) - len(ongoing), _to_go(admin, ongoing), late)

    look = partial(admin.list_partition_reassignments, plan)
    follow(look, progress, len(plan), goes_on=_GOES_ON, timeout_s=timeout_s)
    _check_moved(admin, plan)


class Progress(NamedTuple):
    """The progress of moves of partitions."""

    moved_count: int
    # The remaining work, such as `12,345 records to go`.
    to_go: str
    # The beginning of the error at the timeout; empty: the moves have ended.
    late: str


def follow(
    look: Callable[[], SeenT],
    progress: Callable[[SeenT], Progress],
    count: int,
    *,
    goes_on: str,
    timeout_s: float | None,
) -> SeenT:
    """Shows the progress of `count` partitions until their moves end; returns the last `look`.

    Raises RequestTimedOut after `timeout_s`.
    """
    end_s = math.inf if timeout_s is None else time.monotonic() + timeout_s
    try:
        with _showing(count) as show:
            while True:
                seen = look()
                moved_count, to_go, late = progress(seen)
                show(moved_count, to_go)
                if not late:
                    return seen
                if time.monotonic() >= end_s:
                    raise RequestTimedOut(f"{late} within {timeout_s:g} s; {goes_on}")
                time.sleep(_LOOK_EVERY_S)
    except KeyboardInterrupt:
        click.echo(goes_on, err=True)
        raise


_GOES_ON = (
    "the reassignment goes on in the cluster; look with `rayka partition reassignments`, cancel with "
    "`rayka partition cancel`"
)


def _to_go(admin: "Admin", ongoing: "Mapping[TopicPartition, PartitionReassignment]") -> str:
    """The records that all new replicas lack: `12,345 records to go`."""
    topics = admin.describe_topics(dict.fromkeys(each.topic for each in ongoing)) if ongoing else []
    lags = [
        lag
        for topic in topics
        for partition in topic.partitions
        for replica, lag in zip(partition.replicas, partition.lags, strict=True)
        if replica in partition.adding_replicas and replica not in partition.isr
    ]
    count = sum(lag for lag in lags if lag is not None)
    silent = sum(lag is None for lag in lags)
    unknown = f", and those of {counted(silent, 'replica')} that nobody answers for" if silent else ""
    return f"{counted(count, 'record')} to go{unknown}"


def _check_moved(admin: "Admin", plan: "Plan") -> None:
    described = admin.describe_topics(dict.fromkeys(each.topic for each in plan))
    replicas = {
        (topic.name, partition.partition): partition.replicas
        for topic in described
        for partition in topic.partitions
    }
    other = [tp for tp, target in plan.items() if replicas[tp.topic, tp.partition] != target]
    if other:
        raise NoReassignmentInProgress(
            f"{_listed(other)}: the reassignment was cancelled or changed by somebody else; see `rayka topic describe`"
        )


def _listed(partitions: "Iterable[TopicPartition]") -> str:
    names = [str(each) for each in partitions]
    more = f" and {len(names) - _NAMES_SHOWN} more" if len(names) > _NAMES_SHOWN else ""
    return f"{', '.join(names[:_NAMES_SHOWN])}{more}"


# ---- The progress on stderr ----


@contextmanager
def _showing(count: int) -> Iterator[_Show]:
    """Yields a function that shows the moved partitions, of `count`, and the remaining work."""
    if sys.stderr.isatty():
        with _bar(count) as show:
            yield show
    else:
        yield _Lines(count)


@contextmanager
def _bar(count: int) -> Iterator[_Show]:
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (TextColumn("moving"), BarColumn(), MofNCompleteColumn(), TextColumn("{task.description}"))
    with Progress(*columns, TimeElapsedColumn(), console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task("", total=count)
        yield lambda done_count, to_go: progress.update(task, completed=done_count, description=to_go)


class _Lines:
    """Prints a line when another partition is done, and one every `_LINE_EVERY_S`."""

    def __init__(self, count: int) -> None:
        self._count = count
        self._last_done = -1
        self._last_line_s = 0.0

    def __call__(self, done_count: int, to_go: str) -> None:
        now_s = time.monotonic()
        if done_count == self._last_done and now_s - self._last_line_s < _LINE_EVERY_S:
            return
        self._last_done, self._last_line_s = done_count, now_s
        click.echo(f"{done_count} of {counted(self._count, 'partition')} moved, {to_go}", err=True)
