"""`rayka metadata`: the metadata in a snapshot or a log directory as a tree, of a node that runs or is stopped."""

import os
import posixpath
import sys
from collections.abc import Iterator
from contextlib import closing
from typing import Any

import click
import msgspec

from rayka.cli.file_dumps import plain_fields, whole_batches
from rayka.cli.output import print_json
from rayka.cli.shared_options import CommandGroup
from rayka.errors import ApiError, RaykaError, StorageError
from rayka.ids import METADATA_TOPIC
from rayka.log.local_disk import LocalDisk
from rayka.log.segment_file import LOG_SUFFIX
from rayka.metadata.delta import MetadataDelta
from rayka.metadata.image import BrokerImage, ConfigResource, MetadataImage, TopicImage
from rayka.metadata.metadata_records import decode_record
from rayka.protocol.batch_decode import decode
from rayka.protocol.batch_format import RecordBatch
from rayka.protocol.configs import ResourceType
from rayka.raft.control_records import LeaderChangeRecord, VotersRecord, decode_control_batch
from rayka.raft.snapshot import SNAPSHOT_SUFFIX, decode_snapshot, parse_snapshot_name, snapshot_name
from rayka.raft.voters import VoterSet

_PATH = click.argument("path", metavar="PATH", type=click.Path(exists=True))
_NODE = click.argument("node", metavar="[NODE]", default="/")
_HELP = """ls [NODE]     what is below
cat [NODE]    its values, as JSON
tree [NODE]   everything below
cd [NODE]     go there
pwd           where this is
exit          the end (as is Ctrl-D)"""


@click.group(cls=CommandGroup)
def metadata() -> None:
    """Look into the metadata of a cluster, without it.

    PATH is a snapshot (*.checkpoint), the directory of the metadata log, or a controller's data directory. The tree:
    topics/NAME/PARTITION, brokers/ID, configs/topic/NAME, features/NAME, quorum.
    """


@metadata.command()
@_PATH
@_NODE
def ls(path: str, node: str) -> None:
    """List the children of NODE."""
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
        from rayka.cli.metadata_shell import load_tree

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
        from rayka.cli.metadata_shell import children, node_at

        for name in children(node_at(self._tree, self._at(node))):
            click.echo(name)

    def cat(self, node: str) -> None:
        from rayka.cli.metadata_shell import node_at, plain

        print_json(plain(node_at(self._tree, self._at(node))))

    def tree(self, node: str) -> None:
        from rayka.cli.metadata_shell import lines, node_at

        for line in lines(node_at(self._tree, self._at(node))):
            click.echo(line)

    def cd(self, node: str) -> None:
        from rayka.cli.metadata_shell import node_at

        directory = self._at(node or "/")
        node_at(self._tree, directory)
        self._directory = directory

    def _at(self, node: str) -> str:
        return posixpath.normpath(posixpath.join(self._directory, node))


# The metadata in a snapshot or in a log directory, as a tree: read, never written or locked.
#
#     topics/<name>/id, topics/<name>/<partition>    brokers/<id>    configs/topic/<name>, configs/broker/<id or "all">
#     features/<name>    quorum/leader, quorum/epoch, quorum/voters, quorum/offset
#
# A log directory gives its newest snapshot and the whole log after it; which of the last records are committed only a
# running quorum knows. Kafka: `MetadataShell`.


class Leaf(msgspec.Struct, frozen=True):
    """A node that has a value and no children."""

    value: Any


Tree = dict[str, "Tree | Leaf"]


class _Loader:
    """Takes in a snapshot, then batches of the log."""

    def __init__(self) -> None:
        self.delta = MetadataDelta(MetadataImage())
        self.next_offset = 0
        self.leader: LeaderChangeRecord | None = None
        self.epoch = -1
        self.voters: VoterSet | None = None

    def load_snapshot(self, path: str, content: memoryview) -> None:
        snapshot_id = parse_snapshot_name(posixpath.basename(path))
        assert snapshot_id is not None, path
        snapshot = decode_snapshot(content, path)
        for value in snapshot.values():
            self.delta.replay(decode_record(value))
        self.next_offset, self.epoch, self.voters = snapshot_id.offset, snapshot_id.epoch, snapshot.voters

    def take(self, batch: RecordBatch) -> None:
        if batch.next_offset <= self.next_offset:
            return
        if batch.is_control:
            self._take_control(batch)
        else:
            for value in decode(batch).values_list():
                self.delta.replay(decode_record(value or b""))
        self.next_offset, self.epoch = batch.next_offset, max(self.epoch, batch.leader_epoch)

    def _take_control(self, batch: RecordBatch) -> None:
        for record in decode_control_batch(batch):
            if isinstance(record, LeaderChangeRecord):
                self.leader = record
            elif isinstance(record, VotersRecord):
                self.voters = record.voters

    def tree(self) -> Tree:
        image = self.delta.apply(self.next_offset)
        voters = [each.node_id for each in self.voters.voters] if self.voters else []
        return {
            "topics": {name: _topic(topic) for name, topic in sorted(image.topics.items())},
            "brokers": {str(number): _broker(image.brokers[number]) for number in sorted(image.brokers)},
            "configs": {
                "topic": _configs(image, ResourceType.TOPIC),
                "broker": _configs(image, ResourceType.BROKER),
            },
            "features": {name: Leaf(level) for name, level in image.features.items()},
            "quorum": {
                "leader": Leaf(self.leader.leader_id if self.leader else None),
                "epoch": Leaf(self.epoch),
                "voters": Leaf(voters),
                "offset": Leaf(self.next_offset),
            },
        }


def load_tree(path: str) -> Tree:
    """Loads the metadata of a snapshot file, the directory of the metadata log, or a controller's data directory.

    Raises StorageError naming the problem of the path or of its content.
    """
    loader = _Loader()
    try:
        with closing(LocalDisk()) as disk:
            if os.path.isdir(path):
                _load_directory(loader, disk, _metadata_directory(disk, path))
            elif parse_snapshot_name(posixpath.basename(path)) is not None:
                loader.load_snapshot(path, disk.map(path))
            else:
                raise StorageError(f"{path} is neither a snapshot nor a directory of the metadata log")
            return loader.tree()
    except ApiError as error:
        raise StorageError(f"{path}: {error}") from error


def _metadata_directory(disk: LocalDisk, path: str) -> str:
    inside = posixpath.join(path, f"{METADATA_TOPIC}-0")
    directory = inside if os.path.isdir(inside) else path
    if not any(name.endswith((LOG_SUFFIX, SNAPSHOT_SUFFIX)) for name in disk.list(directory)):
        raise StorageError(f"{path} holds no metadata log; name a controller's data directory, or a snapshot")
    return directory


def _load_directory(loader: _Loader, disk: LocalDisk, directory: str) -> None:
    names = disk.list(directory)
    ids = [found for name in names if (found := parse_snapshot_name(name)) is not None]
    if ids:
        newest = max(ids, key=lambda each: (each.offset, each.epoch))
        path = posixpath.join(directory, snapshot_name(newest))
        loader.load_snapshot(path, disk.map(path))
    for name in names:
        if name.endswith(LOG_SUFFIX):
            for batch in whole_batches(disk.map(posixpath.join(directory, name))):
                loader.take(batch)


def _configs(image: MetadataImage, kind: ResourceType) -> Tree:
    names = sorted(each.name for each in image.configs if each.type is kind)
    return {name or "all": Leaf(dict(image.configs[ConfigResource(kind, name)])) for name in names}


def _topic(topic: TopicImage) -> Tree:
    partitions: Tree = {
        str(number): Leaf(plain_fields(partition)) for number, partition in enumerate(topic.partitions)
    }
    return {"id": Leaf(str(topic.topic_id)), **partitions}


def _broker(broker: BrokerImage) -> Leaf:
    state = {
        "is_fenced": broker.is_fenced,
        "is_in_controlled_shutdown": broker.is_in_controlled_shutdown,
        "offline_directories": msgspec.to_builtins(broker.offline_directories),
    }
    return Leaf(plain_fields(broker.registration) | state)


# ---- Walking ---------------------------------------------------------------------------------------------------------


def node_at(tree: Tree, path: str) -> Tree | Leaf:
    """The node at a path from the root. Raises StorageError for a missing node, naming the existing children."""
    node: Tree | Leaf = tree
    for name in (part for part in posixpath.normpath(f"/{path}").split("/") if part):
        if isinstance(node, Leaf) or name not in node:
            there = "nothing" if isinstance(node, Leaf) or not node else ", ".join(list(node)[:10])
            raise StorageError(f"{path}: there is no {name!r}, but {there}")
        node = node[name]
    return node


def plain(node: Tree | Leaf) -> Any:
    """The node with all below it, for JSON."""
    return node.value if isinstance(node, Leaf) else {name: plain(each) for name, each in node.items()}


def children(node: Tree | Leaf) -> list[str]:
    """The names of the children; a name ends with a slash if the child has children."""
    if isinstance(node, Leaf):
        return []
    return [name if isinstance(each, Leaf) else f"{name}/" for name, each in node.items()]


def lines(node: Tree | Leaf, depth: int = 0) -> Iterator[str]:
    """The node as an indented tree, each leaf with its value on one line."""
    if isinstance(node, Leaf):
        yield f"{'  ' * depth}{compact(node.value)}"
        return
    for name, each in node.items():
        if isinstance(each, Leaf):
            yield f"{'  ' * depth}{name}: {compact(each.value)}"
        else:
            yield f"{'  ' * depth}{name}/"
            yield from lines(each, depth + 1)


def compact(value: Any) -> str:
    """One line of JSON."""
    return msgspec.json.encode(value).decode()
