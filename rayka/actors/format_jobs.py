"""What formatting does on the machine that has the disk: makes directories a node's, and removes them.

Every function runs beside the disk, through `on_ray_node.run_on`, and raises StorageError.
"""

import os
import posixpath
import shutil
from collections.abc import Collection, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from uuid import UUID

from rayka.actors.node_logs import remove_kept_logs
from rayka.actors.node_placement import Placement
from rayka.client import io_thread
from rayka.errors import StorageError
from rayka.log.local_disk import LocalDisk
from rayka.log.log_directory import LogDirectory
from rayka.log.meta_properties import META_PROPERTIES_FILE
from rayka.node.quorum.format import (
    bootstrap_checkpoint_path,
    format_controller,
    prepare_controller,
)
from rayka.raft.voters import VoterSet

_TIMEOUT_S = 60.0


@dataclass(frozen=True, slots=True)
class ControllerFormat:
    """What a controller's directory is made with; without voters it is an observer's."""

    cluster_id: str
    directory_id: UUID
    voters: VoterSet | None


def format_brokers(formats: Sequence[tuple[Placement, Mapping[str, UUID]]]) -> None:
    """Makes directories of brokers theirs, by path with these ids; one that is formatted stays as it is."""
    io_thread.run(partial(_format_brokers, formats), _TIMEOUT_S)


def prepare_controllers(placements: Sequence[Placement], voters: VoterSet) -> None:
    """Gives the directories of controllers the checkpoint that names all voters, and nothing else."""
    io_thread.run(partial(_prepare_controllers, placements, voters), _TIMEOUT_S)


def format_controllers(formats: Sequence[tuple[Placement, ControllerFormat]]) -> None:
    """Makes the directories of controllers theirs. Refused where one is formatted already."""
    io_thread.run(partial(_format_controllers, formats), _TIMEOUT_S)


def remove_directories(directories: Collection[str]) -> None:
    """Removes node directories with all that is in them and the logs kept beside them, and the cluster's once it is
    empty.
    """
    for each in directories:
        remove_kept_logs(each)
        try:
            shutil.rmtree(each)
            os.rmdir(os.path.dirname(each))
        except FileNotFoundError:
            continue
        except OSError as error:
            if os.path.isdir(each):
                raise StorageError(f"cannot remove {each}: {error.strerror}") from error


async def _format_brokers(formats: Sequence[tuple[Placement, Mapping[str, UUID]]]) -> None:
    with closing(LocalDisk()) as disk:
        for placement, directory_ids in formats:
            for path, directory_id in directory_ids.items():
                if not disk.exists(posixpath.join(path, META_PROPERTIES_FILE)):
                    await LogDirectory.format(
                        disk, path, node_id=placement.node_id, directory_id=directory_id
                    )


async def _prepare_controllers(placements: Sequence[Placement], voters: VoterSet) -> None:
    with closing(LocalDisk()) as disk:
        for placement in placements:
            await prepare_controller(placement.controller_settings(disk, _never), voters)


async def _format_controllers(formats: Sequence[tuple[Placement, ControllerFormat]]) -> None:
    with closing(LocalDisk()) as disk:
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


def _never(error: BaseException) -> None:
    raise AssertionError("formatting runs no node that could crash") from error
