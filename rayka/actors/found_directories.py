"""The contents of data directories on a machine, read beside the disk by a job that `ray_nodes` sends there.

Reading changes nothing, because the nodes may be running. The module imports little: the first job on a machine waits
for the imports of a new process.
"""

import posixpath
from collections.abc import Collection, Mapping
from contextlib import closing
from dataclasses import dataclass
from uuid import UUID

from rayka.errors import StorageError
from rayka.ids import METADATA_TOPIC, NO_NODE, ZERO_ID
from rayka.log.local_disk import LocalDisk
from rayka.log.meta_properties import META_PROPERTIES_FILE, decode_meta_properties
from rayka.ports import Disk
from rayka.raft.snapshot import BOOTSTRAP_SNAPSHOT_ID, decode_snapshot, snapshot_name
from rayka.raft.voters import VoterSet


@dataclass(frozen=True, slots=True)
class FoundDirectory:
    """The contents of a data directory, or the reason why it cannot be read."""

    is_formatted: bool
    cluster_id: str = ""
    # The voters of the 0-0 checkpoint; None: there is none.
    voters: VoterSet | None = None
    # Whether a quorum used the directory.
    has_log: bool = False
    # -1: `meta.properties` does not say.
    node_id: int = NO_NODE
    directory_id: UUID = ZERO_ID
    # Why the directory cannot be read.
    problem: str = ""

    @property
    def is_begun(self) -> bool:
        """Whether the node belongs on this disk."""
        return self.is_formatted or self.voters is not None


# By path, on one machine.
Found = Mapping[str, FoundDirectory]
NOTHING = FoundDirectory(is_formatted=False)


def look_at(directories: Collection[str]) -> dict[str, FoundDirectory]:
    """Reads these directories. Leaves out those that do not exist."""
    with closing(LocalDisk()) as disk:
        found = {path: _look_at(disk, path) for path in directories}
    return {path: each for path, each in found.items() if each is not None}


def look_around(directories: Collection[str], parents: Collection[str]) -> dict[str, FoundDirectory]:
    """Reads these directories, and other formatted ones directly below the parents."""
    with closing(LocalDisk()) as disk:
        others = [path for parent in parents for path in _formatted_below(disk, parent)]
    return look_at(dict.fromkeys((*directories, *others)))


def _formatted_below(disk: Disk, parent: str) -> list[str]:
    try:
        paths = [posixpath.join(parent, name) for name in disk.list(parent)] if disk.exists(parent) else []
        return [each for each in paths if disk.exists(posixpath.join(each, META_PROPERTIES_FILE))]
    except StorageError:
        # The directories that are asked for tell of the problem.
        return []


def _look_at(disk: Disk, path: str) -> FoundDirectory | None:
    """Reads a directory; None if it does not exist. A disk that fails hides no other one of its machine."""
    try:
        return _read(disk, path) if disk.exists(path) else None
    except StorageError as error:
        return FoundDirectory(is_formatted=False, problem=str(error))


def _read(disk: Disk, path: str) -> FoundDirectory:
    properties_path = posixpath.join(path, META_PROPERTIES_FILE)
    is_formatted = disk.exists(properties_path)
    properties = decode_meta_properties(_content(disk, properties_path)) if is_formatted else None
    inside = posixpath.join(path, f"{METADATA_TOPIC}-0")
    names = disk.list(inside) if disk.exists(inside) else ()
    # Remains of writing the checkpoint may be beside it.
    checkpoint = snapshot_name(BOOTSTRAP_SNAPSHOT_ID)
    checkpoint_path = posixpath.join(inside, checkpoint)
    has_checkpoint = checkpoint in names
    return FoundDirectory(
        is_formatted,
        properties.cluster_id if properties else "",
        decode_snapshot(_content(disk, checkpoint_path), checkpoint_path).voters if has_checkpoint else None,
        has_log=any(not name.startswith(checkpoint) for name in names),
        node_id=properties.node_id if properties else NO_NODE,
        directory_id=properties.directory_id if properties else ZERO_ID,
    )


def _content(disk: Disk, path: str) -> bytes:
    return disk.read_at(path, 0, disk.size(path))
