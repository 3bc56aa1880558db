"""What formatting does on the machine that has the disk: look at directories, make them a node's, remove them.

Every function runs beside the disk, through `on_ray_node.run_on`, and raises StorageError.
"""

import os
import posixpath
import shutil
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from uuid import UUID

from rayka.actors.placement import Placement
from rayka.client import io_thread
from rayka.errors import StorageError
from rayka.ids import NO_NODE, random_uuid
from rayka.log.disk import LocalDisk
from rayka.log.log_directory import LogDirectory
from rayka.log.meta_properties import META_PROPERTIES_FILE, decode_meta_properties
from rayka.node.format import (
    bootstrap_checkpoint_path,
    format_controller,
    metadata_directory,
    prepare_controller,
)
from rayka.ports import Disk
from rayka.raft.snapshot import BOOTSTRAP_SNAPSHOT_ID, decode_snapshot, snapshot_name
from rayka.raft.voters import VoterSet

_TIMEOUT_S = 60.0


@dataclass(frozen=True, slots=True)
class FoundDirectory:
    """What a data directory has in it: whose it is (node -1 where `meta.properties` does not say), the voters of its
    0-0 checkpoint, and whether a quorum used it.
    """

    is_formatted: bool
    cluster_id: str = ""
    voters: VoterSet | None = None
    has_log: bool = False
    node_id: int = NO_NODE

    @property
    def is_begun(self) -> bool:
        """Whether the node belongs on this disk."""
        return self.is_formatted or self.voters is not None


@dataclass(frozen=True, slots=True)
class ControllerFormat:
    """What a controller's directory is made with; without voters it is an observer's."""

    cluster_id: str
    directory_id: UUID
    voters: VoterSet | None


def look_at(directories: Collection[str]) -> dict[str, FoundDirectory]:
    """What there is of these directories."""
    disk = LocalDisk()
    try:
        return {path: _look_at(disk, path) for path in directories if disk.exists(path)}
    finally:
        disk.close()


def look_around(directories: Collection[str], parents: Collection[str]) -> dict[str, FoundDirectory]:
    """What there is of these directories, and what is formatted of others directly below the parents."""
    disk = LocalDisk()
    try:
        beside = [
            posixpath.join(each, name) for each in parents if disk.exists(each) for name in disk.list(each)
        ]
        others = [each for each in beside if disk.exists(posixpath.join(each, META_PROPERTIES_FILE))]
    finally:
        disk.close()
    return look_at(dict.fromkeys((*directories, *others)))


def _look_at(disk: Disk, path: str) -> FoundDirectory:
    """Its node may be running, so nothing is changed."""
    properties_path = posixpath.join(path, META_PROPERTIES_FILE)
    is_formatted = disk.exists(properties_path)
    properties = decode_meta_properties(_content(disk, properties_path)) if is_formatted else None
    inside = metadata_directory(path)
    names = disk.list(inside) if disk.exists(inside) else ()
    checkpoint = snapshot_name(BOOTSTRAP_SNAPSHOT_ID)  # beside it may be what is left of writing it
    return FoundDirectory(
        is_formatted,
        properties.cluster_id if properties else "",
        _voters(disk, posixpath.join(inside, checkpoint)) if checkpoint in names else None,
        has_log=any(not name.startswith(checkpoint) for name in names),
        node_id=properties.node_id if properties else NO_NODE,
    )


def _voters(disk: Disk, path: str) -> VoterSet | None:
    return decode_snapshot(_content(disk, path), path).voters


def _content(disk: Disk, path: str) -> bytes:
    return disk.read_at(path, 0, disk.size(path))


def format_brokers(placements: Sequence[Placement]) -> None:
    """Makes the directories of brokers theirs; one that is formatted stays as it is."""
    io_thread.run(_format_brokers(placements), _TIMEOUT_S)


def prepare_controllers(placements: Sequence[Placement], voters: VoterSet) -> None:
    """Gives the directories of controllers the checkpoint that names all voters, and nothing else."""
    io_thread.run(_prepare_controllers(placements, voters), _TIMEOUT_S)


def format_controllers(formats: Sequence[tuple[Placement, ControllerFormat]]) -> None:
    """Makes the directories of controllers theirs. Refused where one is formatted already."""
    io_thread.run(_format_controllers(formats), _TIMEOUT_S)


def remove_directories(directories: Collection[str]) -> None:
    """Removes node directories with all that is in them, and the cluster's once it is empty."""
    for each in directories:
        try:
            shutil.rmtree(each)
            os.rmdir(os.path.dirname(each))
        except FileNotFoundError:
            continue
        except OSError as error:
            if os.path.isdir(each):
                raise StorageError(f"cannot remove {each}: {error.strerror}") from error


async def _format_brokers(placements: Sequence[Placement]) -> None:
    disk = LocalDisk()
    try:
        for placement in placements:
            random = placement.settings(disk, _never).random
            for path in placement.directories:
                if not disk.exists(posixpath.join(path, META_PROPERTIES_FILE)):
                    await LogDirectory.format(
                        disk, path, node_id=placement.node_id, directory_id=random_uuid(random)
                    )
    finally:
        disk.close()


async def _prepare_controllers(placements: Sequence[Placement], voters: VoterSet) -> None:
    disk = LocalDisk()
    try:
        for placement in placements:
            await prepare_controller(placement.controller_settings(disk, _never), voters)
    finally:
        disk.close()


async def _format_controllers(formats: Sequence[tuple[Placement, ControllerFormat]]) -> None:
    disk = LocalDisk()
    try:
        for placement, given in formats:
            settings = placement.controller_settings(disk, _never)
            leftover = bootstrap_checkpoint_path(settings.data_dirs[0])
            if given.voters is None and disk.exists(leftover):  # of a formatting that broke off
                disk.unlink(leftover)
            await format_controller(
                settings,
                cluster_id=given.cluster_id,
                directory_id=given.directory_id,
                voters=given.voters,
            )
    finally:
        disk.close()


def _never(error: BaseException) -> None:
    raise AssertionError("formatting runs no node that could crash") from error
