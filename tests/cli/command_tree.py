"""All commands of the command line, by their path: `rayka topic create`."""

from collections.abc import Iterator

import click

from rayka.cli import main


def all_commands() -> dict[str, click.Command]:
    return dict(_below(main.rayka, click.Context(main.rayka, info_name="rayka")))


def _below(group: click.Group, context: click.Context) -> Iterator[tuple[str, click.Command]]:
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        assert command is not None
        below = click.Context(command, info_name=name, parent=context)
        yield below.command_path, command
        if isinstance(command, click.Group):
            yield from _below(command, below)
