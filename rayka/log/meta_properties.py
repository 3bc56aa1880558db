"""`meta.properties`: the node and the cluster that a data directory belongs to (F4).

Written when the directory is formatted, once more when the node first registers, and never again. Kafka:
`MetaProperties`, `MetaPropertiesEnsemble`.
"""

import posixpath
from typing import NamedTuple
from uuid import UUID

from rayka.errors import DirectoryTaken, StorageError
from rayka.ids import Role, node_name, role_of
from rayka.ports import Disk

META_PROPERTIES_FILE = "meta.properties"


class MetaProperties(NamedTuple):
    """The owner of a directory. `cluster_id` is empty until the node has registered for the first time."""

    node_id: int
    directory_id: UUID
    cluster_id: str = ""


def encode_meta_properties(properties: MetaProperties) -> bytes:
    """The content of `meta.properties`."""
    values = {
        "cluster.id": properties.cluster_id,
        "directory.id": str(properties.directory_id),
        "node.id": str(properties.node_id),
        "version": "1",
    }
    return "".join(f"{key}={value}\n" for key, value in values.items() if value).encode()


def decode_meta_properties(data: bytes) -> MetaProperties | None:
    """The owner of the directory; None when the file is damaged."""
    lines = (line.partition("=") for line in data.decode(errors="replace").splitlines())
    values = {key: value for key, _, value in lines}
    try:
        node_id, directory_id = int(values["node.id"]), UUID(values["directory.id"])
    except (KeyError, ValueError):
        return None
    return MetaProperties(node_id, directory_id, values.get("cluster.id", ""))


def read_meta_properties(disk: Disk, path: str, node_id: int, cluster_id: str) -> MetaProperties:
    """The owner of the directory. Raises StorageError unless it is this node, and this cluster if that is known.

    The message names the directory, the owner expected and found, and what to do.
    """
    owner = node_name(node_id)
    if not disk.exists(path):
        raise StorageError(
            f"data directory {path} of {owner} is missing; mount its disk, or {_replacing(node_id, path)}"
        )
    properties_path = posixpath.join(path, META_PROPERTIES_FILE)
    if not disk.exists(properties_path):
        raise StorageError(
            f"data directory {path} of {owner} is not formatted: expected {META_PROPERTIES_FILE} in it;"
            f" give its true path, or {_replacing(node_id, path)}"
        )
    properties = decode_meta_properties(disk.read_at(properties_path, 0, disk.size(properties_path)))
    if properties is None:
        raise StorageError(f"{properties_path} is damaged; restore it, or {_replacing(node_id, path)}")
    if properties.node_id != node_id:
        raise DirectoryTaken(
            f"data directory {path} belongs to {node_name(properties.node_id)}, expected {owner};"
            " give each node its own directory"
        )
    if cluster_id and properties.cluster_id not in ("", cluster_id):
        raise wrong_cluster(path, cluster_id, properties.cluster_id)
    return properties


def _replacing(node_id: int, path: str) -> str:
    """How a directory that is lost for good is replaced; a controller has only one."""
    what = str(node_id) if role_of(node_id) is Role.CONTROLLER else f"{node_id}:{path}"
    return f"bring it back empty with `rayka start --replace {what}`"


def wrong_cluster(path: str, expected: str, found: str) -> StorageError:
    """The error that names both clusters."""
    return DirectoryTaken(
        f"data directory {path} belongs to cluster {found}, expected cluster {expected};"
        " give the path of this cluster's data, or another name to the cluster"
    )
