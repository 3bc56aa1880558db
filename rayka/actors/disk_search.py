"""The search for a cluster's disks on Ray nodes, and the places of nodes on Ray nodes that have their disks.

A start and the supervisor look at directories on all Ray nodes that can have a node, at the same time. A disk belongs
to the cluster by the ids in its `meta.properties`, not by its path. At the path of a node's directory, a machine that
comes back may have the disk of an older cluster of the same name, or the disk that the node had before it was replaced.
Such a disk is refused, with the reason.

The supervisor has the right ids on record. A disk that replaces another one is on record before it is formatted. A
start without a supervisor learns the ids from the disks, as far as they agree.
"""

from collections import Counter
from collections.abc import Collection, Mapping
from types import MappingProxyType
from uuid import UUID

from rayka.actors.found_directories import NOTHING, Found, FoundDirectory, look_around
from rayka.actors.names import cluster_directories, formatted_directories, nodes_with
from rayka.actors.node_placement import NodePlacement, Site, able_ray_nodes, place
from rayka.actors.ray_nodes import JobAnswers, open_ray_nodes, run_on_all
from rayka.actors.scaling_planner import scaled_ids, with_scaled
from rayka.actors.supervisor_handle import Identities
from rayka.config.cluster_config import ClusterSpec
from rayka.errors import StorageError
from rayka.ids import NO_NODE, Role, node_name, role_of

# A Ray node that is slow has a quarter of it, when others have answered: a skipped one may have the only free place.
_LOOK_TIMEOUT_S = 60.0
# By Ray node.
FoundByRayNode = Mapping[str, Found]
Resources = Mapping[str, Mapping[str, float]]
_UNKNOWN: Resources = MappingProxyType({})


def look_for_disks(
    spec: ClusterSpec, node_ids: Collection[int], ray_node_ids: Collection[str], parents: Collection[str] = ()
) -> JobAnswers[dict[str, FoundDirectory]]:
    """Looks on these Ray nodes for the directories of these nodes, and for formatted ones directly below `parents`."""
    directories = [path for each in node_ids for path in formatted_directories(spec, each)]
    return run_on_all(ray_node_ids, _LOOK_TIMEOUT_S, look_around, directories, parents)


def search_notes(refused: Collection[str], skipped: Mapping[str, str]) -> list[str]:
    """Names the disks that were refused and the Ray nodes that were not looked at, with the reasons."""
    notes = [f"refused: {each}" for each in refused]
    return notes + [f"Ray node {each} was skipped: {reason}" for each, reason in skipped.items()]


def sites_of(
    ray_nodes: Resources, seen: FoundByRayNode, kept: FoundByRayNode, free: Resources
) -> dict[str, Site]:
    """The Ray nodes that were looked at, as places for nodes. `kept` is the cluster's part of `seen`, `free` the
    resources that are free, as far as that is known.
    """
    return {
        ray_node_id: Site(
            ray_nodes[ray_node_id],
            free=free.get(ray_node_id),
            own=[path for path, each in kept[ray_node_id].items() if each.is_begun],
            foreign=[path for path in found if path not in kept[ray_node_id]],
        )
        for ray_node_id, found in seen.items()
    }


def place_found(
    spec: ClusterSpec,
    missing: Collection[int],
    kept: FoundByRayNode,
    ray_nodes: Resources,
    homes: Mapping[int, str],
    *,
    free: Resources = _UNKNOWN,
) -> dict[int, NodePlacement]:
    """Places the missing nodes that have a formatted directory on a Ray node with the resources that they ask for.

    `homes` are the Ray nodes of the other nodes, `free` the resources that are free, as far as that is known.
    """
    formatted = {
        ray_node_id: {path: each for path, each in found.items() if each.is_formatted}
        for ray_node_id, found in kept.items()
    }
    return place(spec, sites_of(ray_nodes, formatted, formatted, free), missing, homes, only_on_disks=True)


def split_by_identity(
    spec: ClusterSpec, seen: FoundByRayNode, known: Identities
) -> tuple[dict[str, dict[str, FoundDirectory]], list[str]]:
    """Splits the findings into the cluster's disks and the refused ones, each of these with its Ray node and the
    reason.
    """
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
    """Says why the directory does not belong to the node; empty if it does, and if nothing is there yet."""
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


def learn(spec: ClusterSpec, seen: FoundByRayNode, known: Identities, homes: Mapping[int, str]) -> Identities:
    """Completes `known` by the ids that disks have. For a running node only the disks on its own Ray node count, which
    `homes` names.

    Raises StorageError that names two disks of which only one can be the cluster's.
    """
    cluster_id = known.cluster_id or _cluster_id(spec, seen)
    kept, _ = split_by_identity(spec, seen, Identities(cluster_id, known.directory_ids))
    learned = {}
    for node_id in spec.roles:
        if node_id not in known.directory_ids:
            home = homes.get(node_id)
            there = {home: kept[home]} if home in kept else kept
            ids = [_directory_id(there, path) for path in formatted_directories(spec, node_id)]
            if None not in ids:
                learned[node_id] = frozenset(each for each in ids if each is not None)
    return Identities(cluster_id, {**learned, **known.directory_ids})


def _cluster_id(spec: ClusterSpec, seen: FoundByRayNode) -> str:
    """The id on all controllers' disks, or on most of them; empty if there are none. Raises StorageError if no id has
    most.
    """
    controllers = nodes_with(spec, Role.CONTROLLER)
    claims: dict[str, dict[int, str]] = {}
    for node_id in controllers:
        for path in formatted_directories(spec, node_id):
            for ray_node_id, there in seen.items():
                each = there.get(path, NOTHING)
                if each.is_formatted and each.node_id == node_id and each.cluster_id:
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


def _directory_id(seen: FoundByRayNode, path: str) -> UUID | None:
    """The id that the directory has on every Ray node that has it; None if none has. Raises StorageError for several
    ids.
    """
    found = {ray_node: there[path] for ray_node, there in seen.items() if path in there}
    ids = {each.directory_id: ray_node for ray_node, each in found.items() if each.is_formatted}
    if len(ids) > 1:
        places = "; ".join(f"directory id {id} on Ray node {ray_node}" for id, ray_node in ids.items())
        raise StorageError(
            f"{path} is there with several identities: {places}; all but the newest are of a time before the node was "
            "replaced, and nothing tells which those are: unmount or remove them"
        )
    return next(iter(ids), None)


def with_found_brokers(spec: ClusterSpec) -> ClusterSpec:
    """Returns the spec with the brokers and coordinators beyond the declared ones that had come when the cluster was
    stopped: those whose disks are on Ray nodes. Returns the spec itself if none come and go.
    """
    if not spec.ranges:
        return spec
    able = able_ray_nodes(spec, spec.roles, open_ray_nodes())
    answers = look_for_disks(spec, (), able, cluster_directories(spec))
    found = [each for there in answers.results.values() for each in there.values()]
    return with_scaled(spec, scaled_ids(spec, _of_one_cluster(found)))


def _of_one_cluster(found: Collection[FoundDirectory]) -> list[int]:
    """Returns the registered nodes of the cluster to which most controllers belong."""
    controllers = [each for each in found if role_of(each.node_id) is Role.CONTROLLER and each.cluster_id]
    claims = Counter(each.cluster_id for each in controllers or found if each.cluster_id)
    if not claims:
        return []
    (cluster_id, _), *_ = claims.most_common(1)
    return [each.node_id for each in found if each.cluster_id == cluster_id]
