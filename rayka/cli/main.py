"""The `rayka` command: the table of its subcommands, their errors and exit codes.

Exit code 0 only on success; 1 with one line of advice on stderr; 2 for wrong usage; 130 after Ctrl-C. With `--json` an
error, also of wrong usage, is a JSON object on stderr instead. `--help` must not import Ray, so subcommands and their
own imports are loaded only when they run.
"""

import errno
import importlib
import json
import os
import sys
from contextlib import suppress
from io import TextIOWrapper
from typing import NoReturn

import click

from rayka.cli.output import say_which_ray
from rayka.cli.shared_options import CommandGroup
from rayka.errors import ApiError, RaykaError, UnavailableError, error_for

INTERRUPTED = 130
_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
# Commands that make or end actors or a Ray.
_OWNERS = frozenset(("demo", "start", "stop", "restart", "remove"))


# By name: the module whose attribute of that name it is, and what the list of commands says.
_SUBCOMMANDS = {
    "demo": ("rayka.cli.demo", "See it all at work on 336,776 real flights."),
    "init": ("rayka.cli.cluster_commands", "Write a cluster.yaml to start from."),
    "start": ("rayka.cli.cluster_commands", "Start the cluster that a spec declares."),
    "stop": ("rayka.cli.cluster_commands", "Stop a cluster; its data stays."),
    "restart": ("rayka.cli.restart_command", "Restart nodes one after another while the cluster serves."),
    "status": ("rayka.cli.cluster_commands", "Show a cluster's nodes."),
    "logs": ("rayka.cli.events_command", "Print what a node logged, and follow it."),
    "topic": ("rayka.cli.topic_commands", "Create, list, describe, alter and delete topics."),
    "produce": ("rayka.cli.produce_command", "Send lines of standard input, or JSON, to a topic."),
    "consume": ("rayka.cli.consume_command", "Print records of a topic, as a format says or as JSON."),
    "bench": ("rayka.cli.bench_commands", "Measure what the cluster does for one client."),
    "partition": ("rayka.cli.partition_commands", "Give partitions other replicas or another leader."),
    "balance": ("rayka.cli.broker_commands", "Move replicas so that every broker has its share."),
    "events": ("rayka.cli.events_command", "Show what happened to the cluster, and why."),
    "broker": ("rayka.cli.broker_commands", "List, describe, configure, drain and remove brokers."),
    "group": ("rayka.cli.group_commands", "Show groups of consumers, reset their offsets, delete them."),
    "quorum": ("rayka.cli.quorum_commands", "Show the controllers' quorum, and change its voters."),
    "log": ("rayka.cli.log_commands", "Look into the files of logs, of a node that runs or not."),
    "metadata": ("rayka.cli.metadata_shell", "Look into the metadata in a snapshot or a controller's log."),
    "sim": ("rayka.sim.command", "Run a cluster on virtual time, under faults drawn from a seed."),
    "doctor": ("rayka.cli.doctor", "Check this machine: Java, versions, disk, memory, Ray."),
}


class _LazyGroup(CommandGroup):
    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(_SUBCOMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in _SUBCOMMANDS:
            return None
        command: click.Command = getattr(importlib.import_module(_SUBCOMMANDS[cmd_name][0]), cmd_name)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, said) for name, (_, said) in _SUBCOMMANDS.items()])


@click.group(cls=_LazyGroup, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="rayka", message="rayka %(version)s")
def rayka() -> None:
    """Durable, partitioned topics on Ray, with the semantics of Apache Kafka."""


def main() -> None:
    """The entry point: runs the command, reports its errors, exits."""
    say_which_ray()
    if isinstance(sys.stdout, TextIOWrapper):
        # A path that is no UTF-8 is printed as it was given.
        sys.stdout.reconfigure(errors="surrogateescape")
    code = run(sys.argv[1:])
    if "ray" in sys.modules:
        if _OWNERS.isdisjoint(sys.argv):
            _leave(code)
        # Without it the exit waits half a second for output that no command prints.
        sys.modules["ray"].shutdown()
    sys.exit(code)


def _leave(code: int) -> NoReturn:
    """Ends the process without Ray's shutdown, which takes a third of a second or more.

    The shutdown is for processes that own objects in Ray. A command that only asked questions owns none, and Ray
    notices the closed connection.
    """
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError):
            stream.flush()
    os._exit(code)


def run(arguments: list[str]) -> int:
    """Runs a command line; returns its exit code."""
    as_json = "--json" in arguments
    try:
        outcome = rayka.main(args=arguments, prog_name="rayka", standalone_mode=False)
        sys.stdout.flush()
    except click.ClickException as error:
        if as_json:
            _tell(type(error).__name__, error.format_message(), as_json=True)
        else:
            error.show()
        return error.exit_code
    except (KeyboardInterrupt, click.Abort):
        if as_json:
            _tell("Interrupted", "interrupted", as_json=True)
        else:
            click.echo("interrupted", err=True)
        return INTERRUPTED
    except RaykaError as error:
        code = int(error.code) if isinstance(error, ApiError) else None
        _tell(_public_name(error), " ".join(str(error).split()), as_json=as_json, code=code)
        return 1
    except OSError as error:
        _end_output(error, as_json)
        return 1
    return outcome if isinstance(outcome, int) else 0


def _end_output(error: OSError, as_json: bool) -> None:
    """Ends a command whose standard output failed: a closed pipe (`rayka topic list | head -1`), which is no error, or
    a full disk. Drops the rest of the buffer, because Python would fail again when it flushes at exit.

    Raises the error if it is not about standard output.
    """
    is_pipe = isinstance(error, BrokenPipeError)
    if not is_pipe and (error.errno not in _FULL or error.filename is not None):
        raise error
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    message = f"the output cannot be written: {error.strerror}; make room, and run the command again"
    if not is_pipe:
        _tell("OSError", message, as_json=as_json)


def _tell(kind: str, message: str, *, as_json: bool, code: int | None = None) -> None:
    """`code` is Kafka's error number, where the cluster said no."""
    error = {"type": kind, "message": message, "code": code}
    click.echo(json.dumps({"error": error}, indent=2) if as_json else f"error: {message}", err=True)


def _public_name(error: RaykaError) -> str:
    """The error's class in `rayka.errors`; for an error of the cluster, the class of its number."""
    if isinstance(error, ApiError) and not isinstance(error, UnavailableError):  # RayEnded is both
        return type(error_for(error.code, "")).__name__
    return next(each.__name__ for each in type(error).__mro__ if each.__module__ == RaykaError.__module__)
