"""`rayka metadata`: the metadata in a snapshot or a log directory as a tree, of a node that runs or is stopped."""

import posixpath
import sys
from typing import TYPE_CHECKING

import click

from rayka.cli.output import print_json
from rayka.cli.shared_options import Group
from rayka.errors import RaykaError

if TYPE_CHECKING:
    from rayka.cli.metadata_tree import Tree

_PATH = click.argument("path", metavar="PATH", type=click.Path(exists=True))
_NODE = click.argument("node", metavar="[NODE]", default="/")
_HELP = """ls [NODE]     what is below
cat [NODE]    its values, as JSON
tree [NODE]   everything below
cd [NODE]     go there
pwd           where this is
exit          the end (as is Ctrl-D)"""


@click.group(cls=Group)
def metadata() -> None:
    """Look into the metadata of a cluster, without it.

    PATH is a snapshot (*.checkpoint), the directory of the metadata log, or a controller's data directory. The tree:
    topics/NAME/PARTITION, brokers/ID, configs/topic/NAME, features/NAME, quorum.
    """


@metadata.command()
@_PATH
@_NODE
def ls(path: str, node: str) -> None:
    """List what is below NODE."""
    _Shell(path).ls(node)


@metadata.command()
@_PATH
@_NODE
def cat(path: str, node: str) -> None:
    """Print the values of NODE and of all below it, as JSON."""
    _Shell(path).cat(node)


@metadata.command()
@_PATH
@_NODE
def tree(path: str, node: str) -> None:
    """Print everything below NODE as a tree."""
    _Shell(path).tree(node)


@metadata.command()
@_PATH
def shell(path: str) -> None:
    """Walk through the tree: ls, cat, tree, cd, pwd, exit."""
    _Shell(path).run()


class _Shell:
    """Reads commands from the standard input; the metadata stay as they were at the beginning."""

    def __init__(self, path: str) -> None:
        from rayka.cli.metadata_tree import load_tree

        self._tree: Tree = load_tree(path)
        self._directory = "/"

    def run(self) -> None:
        commands = {"ls": self.ls, "cat": self.cat, "tree": self.tree, "cd": self.cd}
        while (line := self._read()) is not None:
            name, _, node = line.strip().partition(" ")
            if name in ("exit", "quit"):
                return
            try:
                if name in commands:
                    commands[name](node.strip())
                elif name:  # anything else asks for help
                    click.echo(self._directory if name == "pwd" else _HELP)
            except RaykaError as error:
                click.echo(f"error: {error}", err=True)

    def _read(self) -> str | None:
        if sys.stdin.isatty():
            click.echo(f"{self._directory}> ", nl=False)
        line = sys.stdin.readline()
        return line or None

    def ls(self, node: str) -> None:
        from rayka.cli.metadata_tree import children, node_at

        for name in children(node_at(self._tree, self._at(node))):
            click.echo(name)

    def cat(self, node: str) -> None:
        from rayka.cli.metadata_tree import node_at, plain

        print_json(plain(node_at(self._tree, self._at(node))))

    def tree(self, node: str) -> None:
        from rayka.cli.metadata_tree import lines, node_at

        for line in lines(node_at(self._tree, self._at(node))):
            click.echo(line)

    def cd(self, node: str) -> None:
        from rayka.cli.metadata_tree import node_at

        directory = self._at(node or "/")
        node_at(self._tree, directory)
        self._directory = directory

    def _at(self, node: str) -> str:
        return posixpath.normpath(posixpath.join(self._directory, node))
