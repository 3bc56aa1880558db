"""Making a controller's data directory: whose it is, and who the first voters are.

Formatting is refused where something is formatted already. `meta.properties` comes last, so a directory is either
formatted whole or can be formatted again. Kafka: `Formatter`, `StorageTool` (A48, design §4).
"""

import posixpath

from rayka.errors import StorageError
from rayka.ids import METADATA_TOPIC, ReplicaKey, random_uuid
from rayka.log.durable import replace_durably
from rayka.log.log_directory import LogDirectory
from rayka.log.meta_properties import META_PROPERTIES_FILE
from rayka.node.settings import NodeSettings
from rayka.ports import Disk
from rayka.raft.checkpoint import BOOTSTRAP_SNAPSHOT_ID, checkpoint_name, encode_bootstrap_checkpoint
from rayka.raft.quorum import METADATA_PARTITION
from rayka.raft.voters import VoterSet


def metadata_directory(data_dir: str) -> str:
    """Where a controller keeps the metadata log, its checkpoints and `quorum-state`."""
    return posixpath.join(data_dir, f"{METADATA_TOPIC}-{METADATA_PARTITION}")


def bootstrap_checkpoint_path(data_dir: str) -> str:
    return posixpath.join(metadata_directory(data_dir), checkpoint_name(BOOTSTRAP_SNAPSHOT_ID))


async def format_controller(settings: NodeSettings) -> str:
    """Formats the first controller's directory, as the only voter of a new cluster; the id that it gave the cluster.

    Raises StorageError when the directory is formatted already, or the disk fails.
    """
    data_dir = settings.data_dirs[0]
    if settings.disk.exists(posixpath.join(data_dir, META_PROPERTIES_FILE)):
        raise StorageError(f"{data_dir} is formatted already; remove it first if its data is not wanted")
    cluster_id, directory_id = random_uuid(settings.random), random_uuid(settings.random)
    await _write_checkpoint(settings, ReplicaKey(settings.node_id, directory_id))
    await LogDirectory.format(
        settings.disk,
        data_dir,
        node_id=settings.node_id,
        directory_id=directory_id,
        cluster_id=str(cluster_id),
    )
    return str(cluster_id)


async def _write_checkpoint(settings: NodeSettings, voter: ReplicaKey) -> None:
    path = bootstrap_checkpoint_path(settings.data_dirs[0])
    await _make_directory_durably(settings.disk, posixpath.dirname(path))
    content = encode_bootstrap_checkpoint(VoterSet((voter,)), timestamp_ms=settings.wall_clock_ms())
    await replace_durably(settings.disk, {path: content})


async def _make_directory_durably(disk: Disk, path: str) -> None:
    created = [path]
    while not disk.exists(posixpath.dirname(created[-1])):
        created.append(posixpath.dirname(created[-1]))
    disk.make_directory(path)
    await disk.sync([], [posixpath.dirname(each) for each in created])
