"""Which disks are the cluster's: by the ids in their `meta.properties`, not by where they are. Pure.

A path says nothing: where a node's directory is to be, a machine that comes back may have that of an older cluster of
the same name, or what the node had before it was replaced. Such a disk is refused, with the reason. The supervisor has
on record which ones are right, and a disk that replaces another is on record before it is formatted. Where a cluster is
started that has no supervisor, the disks themselves say it, as far as they agree.
"""

from collections.abc import Iterator, Mapping
from uuid import UUID

from rayka.actors.found_directories import Found, FoundDirectory
from rayka.actors.names import formatted_directories, nodes_with
from rayka.actors.supervisor_handle import Identities
from rayka.config.cluster_config import ClusterSpec
from rayka.errors import StorageError
from rayka.ids import NO_NODE, Role, node_name

Seen = Mapping[str, Found]  # by Ray node


def sift(
    spec: ClusterSpec, seen: Seen, known: Identities
) -> tuple[dict[str, dict[str, FoundDirectory]], list[str]]:
    """What was found without the disks that are not the cluster's; these, each with the Ray node and the reason."""
    owners = {path: each for each in spec.roles for path in formatted_directories(spec, each)}
    kept: dict[str, dict[str, FoundDirectory]] = {}
    refused = []
    for ray_node_id, found in seen.items():
        kept[ray_node_id] = {}
        for path, each in found.items():
            reason = _objection(each, owners.get(path, each.node_id), known)
            if not reason:
                kept[ray_node_id][path] = each
            elif path in owners:
                refused.append(f"{path} on Ray node {ray_node_id} {reason}")
    return kept, refused


def _objection(found: FoundDirectory, node_id: int, known: Identities) -> str:
    """Why the directory is not the node's; empty where it is, and where there is nothing yet."""
    if found.problem:
        return f"cannot be read: {found.problem}"
    if not found.is_formatted:
        return ""
    if found.node_id == NO_NODE:
        return "has a meta.properties that is damaged"
    if found.node_id != node_id:
        return f"belongs to {node_name(found.node_id)}, expected {node_name(node_id)}"
    if known.cluster_id and found.cluster_id not in ("", known.cluster_id):
        return f"belongs to cluster {found.cluster_id}, expected cluster {known.cluster_id}"
    expected = known.directory_ids.get(node_id)
    if expected and found.directory_id not in expected:
        ids = ", ".join(sorted(map(str, expected)))
        return f"is an older disk of {node_name(node_id)}: its directory id is {found.directory_id}, expected {ids}"
    return ""


def learn(spec: ClusterSpec, seen: Seen, known: Identities, homes: Mapping[int, str]) -> Identities:
    """What is known already; for every other node, what the disks say. For a node that runs those on its own Ray node
    count, which `homes` names.

    Raises StorageError that names two disks of which only one can be the cluster's.
    """
    cluster_id = known.cluster_id or _cluster_id(spec, seen)
    kept, _ = sift(spec, seen, Identities(cluster_id, known.directory_ids))
    learned = {}
    for node_id in spec.roles:
        if node_id not in known.directory_ids:
            home = homes.get(node_id)
            there = {home: kept[home]} if home in kept else kept
            ids = [_directory_id(there, path) for path in formatted_directories(spec, node_id)]
            if None not in ids:
                learned[node_id] = frozenset(each for each in ids if each is not None)
    return Identities(cluster_id, {**learned, **known.directory_ids})


def _cluster_id(spec: ClusterSpec, seen: Seen) -> str:
    """The id that the controllers' disks agree on, or most of them; empty where there are none."""
    controllers = nodes_with(spec, Role.CONTROLLER)
    claims: dict[str, dict[int, str]] = {}
    for node_id, path, ray_node_id, each in _formatted(spec, seen):
        if node_id in controllers and each.cluster_id:
            claims.setdefault(each.cluster_id, {})[node_id] = f"{path} on Ray node {ray_node_id}"
    whole = [each for each in claims if len(claims[each]) > len(controllers) // 2]
    chosen = list(claims) if len(claims) == 1 else whole
    if claims and len(chosen) != 1:
        raise StorageError(
            f"disks of {len(claims)} clusters are where cluster {spec.name!r} is to be: "
            + "; ".join(f"of cluster {id} {', '.join(places.values())}" for id, places in claims.items())
            + "; unmount or remove those that are not wanted"
        )
    return chosen[0] if chosen else ""


def _directory_id(seen: Seen, path: str) -> UUID | None:
    """The id that the directory has on every Ray node that has it; None where none has."""
    found = {ray_node: there[path] for ray_node, there in seen.items() if path in there}
    ids = {each.directory_id: ray_node for ray_node, each in found.items() if each.is_formatted}
    if len(ids) > 1:
        places = "; ".join(f"directory id {id} on Ray node {ray_node}" for id, ray_node in ids.items())
        raise StorageError(
            f"{path} is there with several identities: {places}; all but the newest are of a time before the node was "
            "replaced, and nothing tells which those are: unmount or remove them"
        )
    return next(iter(ids), None)


def _formatted(spec: ClusterSpec, seen: Seen) -> Iterator[tuple[int, str, str, FoundDirectory]]:
    """Node, path, Ray node and content of each directory that is formatted for the node that it is to be of."""
    for node_id in spec.roles:
        for path in formatted_directories(spec, node_id):
            for ray_node_id, found in seen.items():
                each = found.get(path)
                if each is not None and each.is_formatted and each.node_id == node_id:
                    yield node_id, path, ray_node_id, each
