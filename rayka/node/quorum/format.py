"""Making a controller's data directory: whose it is, and the first voters.

Formatting is refused where something is formatted already. `meta.properties` comes last, so a directory is either
formatted whole or can be formatted again. Kafka: `Formatter`, `StorageTool` (A48, design §4).
"""

import posixpath
from collections.abc import Sequence
from uuid import UUID

from rayka.errors import StorageError
from rayka.ids import METADATA_PARTITION, METADATA_TOPIC, ReplicaKey, random_uuid
from rayka.log.checkpoint_files import replace_durably
from rayka.log.log_directory import LogDirectory
from rayka.log.meta_properties import META_PROPERTIES_FILE
from rayka.node.settings import NodeSettings
from rayka.ports import Disk
from rayka.raft.snapshot import BOOTSTRAP_SNAPSHOT_ID, encode_snapshot, snapshot_name
from rayka.raft.voters import VoterSet


def metadata_directory(data_dir: str) -> str:
    """Where a controller keeps the metadata log, its checkpoints and `quorum-state`."""
    return posixpath.join(data_dir, f"{METADATA_TOPIC}-{METADATA_PARTITION}")


def bootstrap_checkpoint_path(data_dir: str) -> str:
    return posixpath.join(metadata_directory(data_dir), snapshot_name(BOOTSTRAP_SNAPSHOT_ID))


async def format_controller(
    settings: NodeSettings, *, cluster_id: str, directory_id: UUID, voters: VoterSet | None
) -> None:
    """Formats a controller's directory. With `voters`, the first ones of a new cluster, it is one of them; without, it
    is an observer that finds the quorum and can be added to its voters later (A56).

    Raises StorageError when the directory is formatted already, or the disk fails.
    """
    data_dir = settings.data_dirs[0]
    _check_not_formatted(settings)
    if voters is None:
        await _make_directory_durably(settings.disk, metadata_directory(data_dir))
    else:
        await prepare_controller(settings, voters)
    await LogDirectory.format(
        settings.disk,
        data_dir,
        node_id=settings.node_id,
        directory_id=directory_id,
        cluster_id=cluster_id,
    )


async def prepare_controller(settings: NodeSettings, voters: VoterSet) -> None:
    """Writes the first voters: what precedes the formatting of any of them, so that one which broke off can be
    finished. Raises StorageError as `format_controller`.
    """
    _check_not_formatted(settings)
    path = bootstrap_checkpoint_path(settings.data_dirs[0])
    await _make_directory_durably(settings.disk, posixpath.dirname(path))
    parts = encode_snapshot(BOOTSTRAP_SNAPSHOT_ID, voters, (), timestamp_ms=settings.wall_clock_ms())
    await replace_durably(settings.disk, {path: b"".join(map(bytes, parts))})


async def format_first_voters(settings: Sequence[NodeSettings]) -> str:
    """Formats the directories of all the first voters of a new cluster; the id that it gave the cluster.

    Raises StorageError as `format_controller`.
    """
    random = settings[0].random
    cluster_id = str(random_uuid(random))
    voters = {each.node_id: ReplicaKey(each.node_id, random_uuid(random)) for each in settings}
    voter_set = VoterSet(tuple(voters[node_id] for node_id in sorted(voters)))
    for each in settings:
        directory_id = voters[each.node_id].directory_id
        await format_controller(each, cluster_id=cluster_id, directory_id=directory_id, voters=voter_set)
    return cluster_id


def _check_not_formatted(settings: NodeSettings) -> None:
    data_dir = settings.data_dirs[0]
    if settings.disk.exists(posixpath.join(data_dir, META_PROPERTIES_FILE)):
        raise StorageError(f"{data_dir} is formatted already; remove it first if its data is not wanted")


async def _make_directory_durably(disk: Disk, path: str) -> None:
    created = [path]
    while not disk.exists(posixpath.dirname(created[-1])):
        created.append(posixpath.dirname(created[-1]))
    disk.make_directory(path)
    await disk.sync([], [posixpath.dirname(each) for each in created])
