"""Shared parts of commands: groups that load commands lazily, options, and the client made from them."""

import difflib
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import reduce, wraps
from typing import IO, TYPE_CHECKING, Any, TypeVar

import click

from rayka.cli.output import be_quiet, print_json

if TYPE_CHECKING:
    from rayka.client.admin.admin import Admin
    from rayka.cluster import Cluster

_DRY_RUN = "rayka.dry_run"
FunctionT = TypeVar("FunctionT", bound=Callable[..., Any])


def all_of(*options: Callable[[FunctionT], FunctionT]) -> Callable[[FunctionT], FunctionT]:
    """Joins options into one decorator; `--help` shows them in this order."""
    return lambda function: reduce(lambda decorated, option: option(decorated), reversed(options), function)


quiet_option = click.option(
    "--quiet",
    "-q",
    is_flag=True,
    is_eager=True,
    expose_value=False,
    callback=lambda context, _, value: be_quiet() if value else None,
    help="Say nothing on stderr but errors.",
)
# Which cluster, on which Ray.
cluster_options = all_of(
    click.option("--cluster", "name", default="rayka", show_default=True, help="The cluster's name."),
    click.option("--address", default="auto", show_default=True, metavar="HOST:PORT", help="The Ray to use."),
    quiet_option,
)
json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON, for programs.")
# Settings to change.
config_options = all_of(
    click.option(
        "--config",
        "-c",
        "configs",
        multiple=True,
        metavar="KEY=VALUE",
        help="Kafka's name; may be given often.",
    ),
    click.option(
        "--delete-config",
        "deleted",
        multiple=True,
        metavar="KEY",
        help="Back to the default; may be given often.",
    ),
)
# Settings of the client that a command uses, as a dict. Records are bytes to a command.
client_config_option = click.option(
    "--config",
    "-X",
    "configs",
    multiple=True,
    callback=lambda context, _, given: _client_config(given),
    metavar="KEY=VALUE",
    help="A setting of the client, Kafka's name; may be given often.",
)
# How long to stay until replicas have caught up.
wait_options = all_of(
    click.option(
        "--wait/--no-wait",
        "is_waiting",
        default=True,
        show_default=True,
        help="Stay until the new replicas are in sync.",
    ),
    click.option(
        "--timeout",
        "timeout_s",
        type=click.FloatRange(min=0),
        metavar="SECONDS",
        help="Wait no longer than this.",
    ),
)
# Of a command that destroys something.
yes_option = click.option("--yes", "-y", "is_sure", is_flag=True, help="Do not ask.")
force_option = click.option(
    "--force",
    is_flag=True,
    help="Restart nodes even where a partition then has fewer replicas in sync than min.insync.replicas.",
)
# Of a command that makes a plan; see `is_dry_run`.
dry_run_option = click.option(
    "--dry-run",
    is_flag=True,
    expose_value=False,
    callback=lambda context, _, value: context.meta.update({_DRY_RUN: value}),
    help="Print what would be done, and change nothing.",
)


class _Data(click.types.StringParamType):
    """Text that becomes bytes of a record or of the output: as the shell passed it on, UTF-8 or not."""


DATA = _Data()


class CommandGroup(click.Group):
    """A `click.Group`, as are its subgroups. Names the nearest command for an unknown one, with any version of click.

    Refuses arguments that are no UTF-8, except paths and `DATA`: no name has such bytes, and Ray cannot hold them.
    """

    group_class = type

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        name = args[0]
        if not ctx.resilient_parsing and not name.startswith("-") and self.get_command(ctx, name) is None:
            names = self.list_commands(ctx)
            near = difflib.get_close_matches(name, names, n=1)
            hint = f"Did you mean {near[0]!r}?" if near else f"There are: {', '.join(names)}."
            ctx.fail(f"No such command {name!r}. {hint}")
        found, command, rest = super().resolve_command(ctx, args)
        if command is not None and not isinstance(command, click.Group):
            _refuse_no_utf8(click.Context(command, info_name=found, parent=ctx), rest)
        return found, command, rest


def _refuse_no_utf8(context: click.Context, arguments: list[str]) -> None:
    """Raises click.BadParameter, which names the first argument of the command that is no UTF-8."""
    if all(map(_is_utf8, arguments)):
        return
    given, _, _ = context.command.make_parser(context).parse_args(list(arguments))
    for parameter in context.command.params:
        found = given.get(parameter.name or "")
        values = found if isinstance(found, (list, tuple)) else [found]
        wrong = [each for each in values if isinstance(each, str) and not _is_utf8(each)]
        if wrong and not isinstance(parameter.type, (click.Path, _Data)):
            raise click.BadParameter(
                f"expected text in UTF-8, found {os.fsencode(wrong[0])!r}", ctx=context, param=parameter
            )


def _is_utf8(text: str) -> bool:
    """Whether the text is UTF-8: undecodable bytes of the command line became lone surrogates in the text."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


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

    def report(self, value: Any, said: str | Callable[[], object]) -> None:
        """Prints the result of a command: values for a program; for people a sentence, or the output of a function."""
        if self.as_json:
            print_json(value)
        elif callable(said):
            said()
        else:
            click.echo(said)


def target_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """`--cluster`, `--address` and `--json`, as one `Target`."""

    @cluster_options
    @json_option
    @wraps(function)
    def command(*, name: str, address: str, as_json: bool, **given: Any) -> Any:
        return function(target=Target(name, address, as_json), **given)

    return command


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
    """The changes of `--config` and `--delete-config`, in the form of `Admin.alter_configs`."""
    changes: dict[str, str | None] = dict(keys_and_values(configs))
    for key in deleted:
        if key in changes:
            raise click.UsageError(f"{key} is given to both --config and --delete-config; keep one")
        changes[key] = None
    if not changes:
        raise click.UsageError("nothing to change: give --config KEY=VALUE or --delete-config KEY")
    return changes


def _client_config(given: tuple[str, ...]) -> dict[str, str]:
    values = {key.replace(".", "_"): value for key, value in keys_and_values(given).items()}
    for key in values:
        if key.endswith("serializer") or key == "auto_offset_reset":
            raise click.BadParameter(
                f"{key} is no setting of a command: data pass unchanged, and --from says where reading begins",
                param_hint="--config",
            )
    return values


def keys_and_values(given: tuple[str, ...]) -> dict[str, str]:
    """Parses several `--config KEY=VALUE`. Raises click.BadParameter for a key that is given twice."""
    values: dict[str, str] = {}
    names: set[str] = set()
    for key, value in map(key_and_value, given):
        name = key.replace(".", "_")
        if name in names:
            raise click.BadParameter(f"{key} is given twice; keep one", param_hint="--config")
        names.add(name)
        values[key] = value
    return values


def key_and_value(text: str, metavar: str = "KEY=VALUE", option: str = "--config") -> tuple[str, str]:
    """The two sides of KEY=VALUE."""
    key, separator, value = text.partition("=")
    if not separator or not key:
        raise click.BadParameter(f"expected {metavar}, found {text!r}", param_hint=option)
    return key, value
