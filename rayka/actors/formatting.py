"""Which directories of a cluster are to be made before its actors, and in which order.

A cluster is formatted when none of its directories exists anywhere; when some are missing it is refused, for a node
on an empty disk is not the node it was (design §4). What a start that broke off has begun is finished, in two phases:

1. Brokers are formatted, and every controller gets the 0-0 checkpoint, which names all voters.
2. Then each controller gets its `meta.properties`, without which no node starts.

A start that broke off in phase 1 left nothing that anyone has used: all controllers are formatted anew. One that broke
off in phase 2 left a whole controller, whose checkpoint and cluster id say how the others, which have the same
checkpoint, become what they were to be. A controller with neither file has lost its disk: it may have voted, and comes
back only as somebody else, an observer. Kafka: `StorageTool`, `Formatter` (A48, A55).
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from random import Random, SystemRandom

from rayka.actors.format_jobs import (
    ControllerFormat,
    FoundDirectory,
    format_brokers,
    format_controllers,
    look_around,
    prepare_controllers,
)
from rayka.actors.names import (
    cluster_directories,
    controller_directory,
    formatted_directories,
    node_directories,
    nodes_with,
    wanted_node_ids,
)
from rayka.actors.on_ray_node import live_ray_nodes, run_on
from rayka.actors.placement import Placement, place
from rayka.config import ClusterSpec
from rayka.errors import ConfigError, StorageError
from rayka.ids import ReplicaKey, Role, node_name, random_uuid, role_of
from rayka.log.meta_properties import wrong_cluster
from rayka.raft.voters import VoterSet

Found = Mapping[str, FoundDirectory]
_NOTHING = FoundDirectory(is_formatted=False)


@dataclass(frozen=True, slots=True)
class FormatPlan:
    """What is to be made: brokers, then the checkpoints of phase 1 if there are `voters`, then controllers."""

    brokers: tuple[int, ...]
    voters: VoterSet | None
    controllers: Mapping[int, ControllerFormat]


def place_formatted(
    spec: ClusterSpec,
    node_ids: Collection[int],
    replace: Collection[int],
    new: Collection[int],
    homes: Mapping[int, str],
) -> dict[int, Placement]:
    """These nodes in their places, with formatted directories; those in `replace` start empty, and so do those brokers
    in `new` that have none yet: the cluster never had them.

    `homes` are the Ray nodes of nodes that run. Nodes that are not among these run, or are waited for: they may be
    without their disks. Raises what `plan_formatting`, `place` and, where no node runs, `refuse_undeclared` raise.
    """
    awaited = [each for each in wanted_node_ids(spec) if each not in node_ids]
    directories = [each for id in wanted_node_ids(spec) for each in formatted_directories(spec, id)]
    resources = live_ray_nodes()
    parents = cluster_directories(spec)
    seen = {ray_node: run_on(ray_node, look_around, directories, parents) for ray_node in resources}
    found = _merged(seen)
    if not homes:
        refuse_undeclared(spec, found)
    empty = [
        each
        for each in new
        if not any(found.get(path, _NOTHING).is_formatted for path in formatted_directories(spec, each))
    ]
    plan = plan_formatting(spec, found, (*replace, *empty), SystemRandom(), awaited)
    begun = {
        ray_node: [path for path, each in there.items() if each.is_begun] for ray_node, there in seen.items()
    }
    placements = place(spec, begun, resources, node_ids, homes)
    _execute(plan, placements)
    return placements


def _merged(seen: Mapping[str, Found]) -> Found:
    """The directories wherever they are; a formatted one counts before one of the same path that is not."""
    found: dict[str, FoundDirectory] = {}
    for there in seen.values():
        for path, each in there.items():
            if path not in found or (each.is_formatted and not found[path].is_formatted):
                found[path] = each
    return found


def _execute(plan: FormatPlan, placements: Mapping[int, Placement]) -> None:
    """One job for each Ray node and step; a step begins when the one before it has ended everywhere."""
    for ray_node_id, node_ids in _by_ray_node(plan.brokers, placements).items():
        run_on(ray_node_id, format_brokers, [placements[each] for each in node_ids])
    on_ray_nodes = _by_ray_node(plan.controllers, placements)
    if plan.voters is not None:
        for ray_node_id, node_ids in on_ray_nodes.items():
            run_on(ray_node_id, prepare_controllers, [placements[each] for each in node_ids], plan.voters)
    for ray_node_id, node_ids in on_ray_nodes.items():
        run_on(
            ray_node_id, format_controllers, [(placements[each], plan.controllers[each]) for each in node_ids]
        )


def _by_ray_node(node_ids: Collection[int], placements: Mapping[int, Placement]) -> dict[str, list[int]]:
    found: dict[str, list[int]] = {}
    for each in node_ids:
        found.setdefault(placements[each].ray_node_id, []).append(each)
    return found


def plan_formatting(
    spec: ClusterSpec,
    found: Found,
    replace: Collection[int],
    random: Random,
    awaited: Collection[int] = (),
) -> FormatPlan:
    """What is to be made, given what there is of the cluster's directories; nodes in `replace` start empty, and those
    that are `awaited` may be missing.

    Raises StorageError naming the directories that are missing or do not belong together, ConfigError for a `replace`
    that cannot be done.
    """
    _check_replace(spec, replace)
    whole = [each for each in _controllers(spec) if _of(spec, found, each).is_formatted]
    if not whole and not any(each.cluster_id for each in found.values()):
        return _plan_new(spec, found, random)
    if set(_controllers(spec)) & set(replace) and not set(whole) - set(replace):
        raise ConfigError(
            f"replace: nobody else has the metadata of cluster {spec.name!r}; restore the directory of a controller "
            "from a backup, or delete the other directories to start from nothing"
        )
    plan = _plan_rest(spec, found, whole, replace, random)
    _refuse_missing(spec, found, _to_be_there(spec, plan, awaited))
    _refuse_formatted(spec, found, replace)
    return plan


def _plan_new(spec: ClusterSpec, found: Found, random: Random) -> FormatPlan:
    for each in _controllers(spec):
        if _of(spec, found, each).has_log:
            raise StorageError(
                f"{_directory(spec, each)} has a metadata log but no meta.properties; restore that file from a backup, "
                "or remove the directory if its data is not wanted"
            )
    cluster_id = str(random_uuid(random))
    voters = VoterSet(tuple(ReplicaKey(each, random_uuid(random)) for each in _controllers(spec)))
    formats = {
        each.node_id: ControllerFormat(cluster_id, each.directory_id, voters) for each in voters.voters
    }
    return FormatPlan(nodes_with(spec, Role.BROKER), voters, formats)


def _plan_rest(
    spec: ClusterSpec, found: Found, whole: Collection[int], replace: Collection[int], random: Random
) -> FormatPlan:
    """The nodes to replace, and what phase 2 of the first formatting has not come to."""
    cluster_id = _common_cluster_id(spec, found, whole) if whole else ""
    formats = {}
    for each in _controllers(spec):
        if each in replace:
            formats[each] = ControllerFormat(cluster_id, random_uuid(random), None)
        elif each not in whole:
            key = _prepared(spec, found, each, whole)
            if key is not None:
                formats[each] = ControllerFormat(cluster_id, key.directory_id, _of(spec, found, each).voters)
    brokers = tuple(each for each in nodes_with(spec, Role.BROKER) if each in replace)
    return FormatPlan(brokers, None, formats)


def _to_be_there(spec: ClusterSpec, plan: FormatPlan, awaited: Collection[int]) -> list[str]:
    """The directories that are neither made nor awaited."""
    brokers = [each for each in nodes_with(spec, Role.BROKER) if each not in (*plan.brokers, *awaited)]
    controllers = [each for each in _controllers(spec) if each not in (*plan.controllers, *awaited)]
    return [
        *(path for each in brokers for path in node_directories(spec, each)),
        *(_directory(spec, each) for each in controllers),
    ]


def _prepared(spec: ClusterSpec, found: Found, node_id: int, whole: Collection[int]) -> ReplicaKey | None:
    """Who the node was to be, if phase 2 did not come to it and it never ran."""
    own = _of(spec, found, node_id)
    if own.has_log or own.voters is None:
        return None
    if not any(_of(spec, found, each).voters == own.voters for each in whole):
        return None
    return next((key for key in own.voters.voters if key.node_id == node_id), None)


def _common_cluster_id(spec: ClusterSpec, found: Found, whole: Collection[int]) -> str:
    """Whose the controllers are. Raises StorageError that names two clusters."""
    first, *others = [each for each in whole if _of(spec, found, each).cluster_id] or whole
    cluster_id = _of(spec, found, first).cluster_id
    for each in others:
        other = _of(spec, found, each).cluster_id
        if other != cluster_id:
            raise wrong_cluster(_directory(spec, each), cluster_id, other)
    return cluster_id


# ---- Refusals ------------------------------------------------------------------------------------------------------


def _check_replace(spec: ClusterSpec, replace: Collection[int]) -> None:
    wanted = wanted_node_ids(spec)
    for node_id in replace:
        if node_id not in wanted:
            raise ConfigError(f"replace: no node {node_id} in cluster {spec.name!r}; it has {list(wanted)}")


def refuse_undeclared(spec: ClusterSpec, found: Found) -> None:
    """Raises StorageError for the disk of a broker that the spec lacks, as an older file may: what only that one holds
    would be gone.
    """
    for path, each in found.items():
        if each.cluster_id and role_of(each.node_id) is Role.BROKER and each.node_id not in spec.roles:
            raise StorageError(
                f"{path} is the disk of {node_name(each.node_id)}, which the spec does not have: add it (`brokers` or "
                "`nodes`), and take it out later with `rayka broker drain` and `rayka broker remove`; or remove the "
                "directory if nothing in it is wanted"
            )


def _refuse_missing(spec: ClusterSpec, found: Found, directories: Collection[str]) -> None:
    missing = [each for each in directories if not found.get(each, _NOTHING).is_formatted]
    if missing:
        raise StorageError(
            f"cluster {spec.name!r} has data, but these directories are missing: {', '.join(missing)}; mount or "
            "restore them, or let a node, lost or new, start empty with replace=[id] (`rayka start --replace ID`): a "
            "broker without records, a controller without a vote"
        )


def _refuse_formatted(spec: ClusterSpec, found: Found, replace: Collection[int]) -> None:
    for node_id in replace:
        for each in formatted_directories(spec, node_id):
            if found.get(each, _NOTHING).is_formatted:
                raise StorageError(
                    f"replace: {each} of {node_name(node_id)} is there; start without replacing it, or remove it first "
                    "if its data is not wanted"
                )


# ---- Places --------------------------------------------------------------------------------------------------------


def _controllers(spec: ClusterSpec) -> tuple[int, ...]:
    return nodes_with(spec, Role.CONTROLLER)


def _directory(spec: ClusterSpec, controller_id: int) -> str:
    return controller_directory(spec, controller_id)


def _of(spec: ClusterSpec, found: Found, controller_id: int) -> FoundDirectory:
    return found.get(_directory(spec, controller_id), _NOTHING)
