"""Options that several commands share, and the client that they lead to."""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import wraps
from typing import IO, TYPE_CHECKING, Any, TypeVar

import click

from rayka.cli.output import print_json

if TYPE_CHECKING:
    from rayka.client.admin.admin import Admin
    from rayka.cluster import Cluster

_DRY_RUN = "rayka.dry_run"
FunctionT = TypeVar("FunctionT", bound=Callable[..., Any])


def cluster_options(function: FunctionT) -> FunctionT:
    """`--cluster` and `--address`: which cluster, on which Ray."""
    function = click.option(
        "--address", default="auto", show_default=True, metavar="HOST:PORT", help="The Ray to use."
    )(function)
    return click.option("--cluster", "name", default="rayka", show_default=True, help="The cluster's name.")(
        function
    )


def json_option(function: FunctionT) -> FunctionT:
    """`--json`: for programs."""
    return click.option("--json", "as_json", is_flag=True, help="Print JSON, for programs.")(function)


@dataclass(frozen=True, slots=True)
class Target:
    """The running cluster that a command is about, and how the command answers."""

    name: str
    address: str
    as_json: bool = False

    def cluster(self) -> "Cluster":
        """The cluster's handle."""
        from rayka.cluster import Cluster

        return Cluster.connect(self.name, address=self.address)

    @contextmanager
    def admin(self, **options: Any) -> "Iterator[Admin]":
        """A client of the cluster; `options` are those of an `Admin`."""
        from rayka.client.admin.admin import Admin

        with Admin(cluster=self.cluster(), **options) as admin:
            yield admin

    def report(self, value: Any, sentence: str) -> None:
        """What came of the command: values for a program, or a sentence for people."""
        if self.as_json:
            print_json(value)
        else:
            click.echo(sentence)


def target_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """`--cluster`, `--address` and `--json`, as one `Target`."""

    @cluster_options
    @json_option
    @wraps(function)
    def command(*, name: str, address: str, as_json: bool, **given: Any) -> Any:
        return function(target=Target(name, address, as_json), **given)

    return command


def config_options(function: FunctionT) -> FunctionT:
    """`--config` and `--delete-config`: settings to change."""
    function = click.option(
        "--delete-config",
        "deleted",
        multiple=True,
        metavar="KEY",
        help="Back to the default; may be given often.",
    )(function)
    return click.option(
        "--config",
        "-c",
        "configs",
        multiple=True,
        metavar="KEY=VALUE",
        help="Kafka's name; may be given often.",
    )(function)


def wait_options(function: FunctionT) -> FunctionT:
    """`--wait/--no-wait` and `--timeout`: how long to stay until replicas have caught up."""
    function = click.option(
        "--timeout",
        "timeout_s",
        type=click.FloatRange(min=0),
        metavar="SECONDS",
        help="Wait no longer than this.",
    )(function)
    return click.option(
        "--wait/--no-wait",
        "is_waiting",
        default=True,
        show_default=True,
        help="Stay until the new replicas are in sync.",
    )(function)


def yes_option(function: FunctionT) -> FunctionT:
    """`--yes`: of a command that destroys something."""
    return click.option("--yes", "-y", "is_sure", is_flag=True, help="Do not ask.")(function)


def dry_run_option(function: FunctionT) -> FunctionT:
    """`--dry-run`: of a command that makes a plan; see `is_dry_run`."""
    return click.option(
        "--dry-run",
        is_flag=True,
        expose_value=False,
        callback=lambda context, _, value: context.meta.update({_DRY_RUN: value}),
        help="Print what would be done, and change nothing.",
    )(function)


def is_dry_run() -> bool:
    """Whether the command that runs was given `--dry-run`."""
    return bool(click.get_current_context().meta.get(_DRY_RUN))


class Unconfirmed(click.ClickException):
    """The command was not confirmed, so nothing was done: exit code 2, as for wrong usage."""

    exit_code = 2

    def show(self, file: "IO[Any] | None" = None) -> None:
        click.echo(f"error: {self.format_message()}", err=True, file=file)


def confirm(consequence: str, is_sure: bool) -> None:
    """Asks at a terminal whether that may happen, unless the user is sure; where there is none, refuses.

    Raises Unconfirmed.
    """
    if is_sure:
        return
    if sys.stdin is None or not sys.stdin.isatty():
        raise Unconfirmed(f"{consequence}; there is no terminal to ask at: give --yes if that is meant")
    if not click.confirm(f"{consequence}. Go on?", err=True):
        raise Unconfirmed("nothing was changed")


def changes_of(configs: tuple[str, ...], deleted: tuple[str, ...]) -> dict[str, str | None]:
    """What `--config` and `--delete-config` ask for, as `Admin.alter_configs` takes it."""
    changes: dict[str, str | None] = dict(key_and_value(each) for each in configs)
    for key in deleted:
        if key in changes:
            raise click.UsageError(f"{key} is given to both --config and --delete-config; keep one")
        changes[key] = None
    if not changes:
        raise click.UsageError("nothing to change: give --config KEY=VALUE or --delete-config KEY")
    return changes


def key_and_value(text: str) -> tuple[str, str]:
    """The two sides of KEY=VALUE."""
    key, separator, value = text.partition("=")
    if not separator or not key:
        raise click.BadParameter(f"expected KEY=VALUE, found {text!r}", param_hint="--config")
    return key, value
