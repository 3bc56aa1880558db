"""Which directories of a cluster are to be made before its actors, and in which order.

A cluster is formatted when none of its directories exists anywhere. A start is refused when a node has none of its
directories, for a node on an empty disk is not the node it was (design §4). A broker that has one of several
directories starts, and names those that are offline; a single directory that is lost for good can be replaced. A start
that broke off is finished, in two phases:

1. Brokers and coordinators are formatted, and every controller gets the 0-0 checkpoint, which names all voters.
2. Then each controller gets its `meta.properties`, without which no node starts.

A start that broke off in phase 1 left nothing that anyone has used: all controllers are formatted anew. One that broke
off in phase 2 left a whole controller, whose checkpoint and cluster id say how the others, which have the same
checkpoint, become what they were to be. A controller with neither file has lost its disk: it may have voted, and comes
back only under another identity, as an observer. Kafka: `StorageTool`, `Formatter` (A48, A55).
"""

import dataclasses
import os
import posixpath
import shutil
from collections.abc import Collection, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from random import Random
from uuid import UUID

from rayka.actors.found_directories import NOTHING, Found, FoundDirectory
from rayka.actors.names import (
    controller_directory,
    formatted_directories,
    node_directories,
    nodes_with,
    partition_nodes,
)
from rayka.actors.node_logs import remove_kept_logs
from rayka.actors.node_placement import NodePlacement
from rayka.client import io_thread
from rayka.config.cluster_config import ClusterSpec
from rayka.errors import ConfigError, StorageError
from rayka.ids import ReplicaKey, Role, node_name, random_uuid, role_of
from rayka.log.local_disk import LocalDisk
from rayka.log.log_directory import LogDirectory
from rayka.log.meta_properties import META_PROPERTIES_FILE, wrong_cluster
from rayka.node.quorum_directory import (
    bootstrap_checkpoint_path,
    format_controller,
    prepare_controller,
)
from rayka.raft.voters import VoterSet

# What formatting does on the machine that has the disk: makes directories a node's, and removes them.
#
# Every function runs beside the disk, through `on_ray_node.run_on`, and raises StorageError.


_TIMEOUT_S = 60.0


@dataclass(frozen=True, slots=True)
class ControllerFormat:
    """What a controller's directory is made with; without voters it is an observer's."""

    cluster_id: str
    directory_id: UUID
    voters: VoterSet | None


def format_brokers(formats: Sequence[tuple[NodePlacement, Mapping[str, UUID]]]) -> None:
    """Makes directories of brokers theirs, by path with these ids; one that is formatted stays as it is."""
    io_thread.run(partial(_format_brokers, formats), _TIMEOUT_S)


def prepare_controllers(placements: Sequence[NodePlacement], voters: VoterSet) -> None:
    """Gives the directories of controllers the checkpoint that names all voters, and nothing else."""
    io_thread.run(partial(_prepare_controllers, placements, voters), _TIMEOUT_S)


def format_controllers(formats: Sequence[tuple[NodePlacement, ControllerFormat]]) -> None:
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


async def _format_brokers(formats: Sequence[tuple[NodePlacement, Mapping[str, UUID]]]) -> None:
    with closing(LocalDisk()) as disk:
        for placement, directory_ids in formats:
            for path, directory_id in directory_ids.items():
                if not disk.exists(posixpath.join(path, META_PROPERTIES_FILE)):
                    await LogDirectory.format(
                        disk, path, node_id=placement.node_id, directory_id=directory_id
                    )


async def _prepare_controllers(placements: Sequence[NodePlacement], voters: VoterSet) -> None:
    with closing(LocalDisk()) as disk:
        for placement in placements:
            await prepare_controller(placement.controller_settings(disk, _never), voters)


async def _format_controllers(formats: Sequence[tuple[NodePlacement, ControllerFormat]]) -> None:
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


# A node, or one directory of a broker: `2:PATH`.
Replacement = int | str


@dataclass(frozen=True, slots=True)
class FormatPlan:
    """What is to be made: directories of brokers, by path with the id of each, then the checkpoints of phase 1 if there
    are `voters`, then controllers.
    """

    brokers: Mapping[int, Mapping[str, UUID]]
    voters: VoterSet | None
    controllers: Mapping[int, ControllerFormat]

    def directory_ids(self, spec: ClusterSpec) -> dict[str, UUID]:
        """The id that each directory gets."""
        made = {path: id for ids in self.brokers.values() for path, id in ids.items()}
        return made | {
            controller_directory(spec, each): given.directory_id for each, given in self.controllers.items()
        }


def plan_formatting(
    spec: ClusterSpec,
    found: Found,
    replace: Collection[Replacement],
    random: Random,
    awaited: Collection[int] = (),
) -> FormatPlan:
    """What is to be made, given what there is of the cluster's directories; nodes in `replace`, or single directories
    of brokers (`2:PATH`), start empty, and those that are `awaited` may be missing.

    Raises StorageError naming the directories that are missing or do not belong together, ConfigError for a `replace`
    that cannot be done.
    """
    parts = replaced_directories(spec, replace)
    # The command line gives ids as text.
    whole_nodes = [int(each) for each in replace if str(each).isdecimal()]
    return _planned(spec, found, whole_nodes, parts, random, awaited)


def replaced_directories(spec: ClusterSpec, replace: Collection[Replacement]) -> dict[int, tuple[str, ...]]:
    """The directories that are made anew, by node. PATH is that of the node's directory, or of a `data_dir` of the
    spec. Raises ConfigError.
    """
    replaced: dict[int, tuple[str, ...]] = {}
    for each in replace:
        node, _, path = str(each).partition(":")
        if not node.isdecimal() or (not path and ":" in str(each)):
            raise ConfigError(f"replace: expected the id of a node, or ID:PATH, found {each!r}")
        node_id = int(node)
        _check_replace(spec, [node_id])
        if not path:
            replaced[node_id] = formatted_directories(spec, node_id)
            continue
        paths = dict(zip(spec.data_dirs, node_directories(spec, node_id), strict=False))
        known = paths.get(path.rstrip("/"), path.rstrip("/"))
        if known not in paths.values() or len(paths) == 1:
            raise ConfigError(
                f"replace: {path} is none of several directories of {node_name(node_id)}: {', '.join(paths.values())}"
            )
        replaced[node_id] = tuple(dict.fromkeys((*replaced.get(node_id, ()), known)))
    return replaced


def _planned(
    spec: ClusterSpec,
    found: Found,
    replace: Collection[int],
    parts: Mapping[int, Collection[str]],
    random: Random,
    awaited: Collection[int],
) -> FormatPlan:
    whole = [each for each in _controllers(spec) if _of(spec, found, each).is_formatted]
    if not whole and not any(each.cluster_id for each in found.values()):
        return _plan_new(spec, found, random)
    if set(_controllers(spec)) & set(replace) and not set(whole) - set(replace):
        raise ConfigError(
            f"replace: no other controller has the metadata of cluster {spec.name!r}; restore the directory of a "
            "controller from a backup, or delete the other directories to start from nothing"
        )
    plan = _plan_rest(spec, found, whole, replace, random)
    alone = {each: paths for each, paths in parts.items() if each not in replace}
    _refuse_missing(spec, found, _to_be_there(spec, found, plan, awaited, alone))
    _refuse_formatted(found, parts)
    for node_id, paths in alone.items():
        plan = dataclasses.replace(
            plan, brokers={**plan.brokers, node_id: {path: random_uuid(random) for path in paths}}
        )
    return plan


def _plan_new(spec: ClusterSpec, found: Found, random: Random) -> FormatPlan:
    for each in _controllers(spec):
        if _of(spec, found, each).has_log:
            raise StorageError(
                f"{controller_directory(spec, each)} has a metadata log but no meta.properties; restore that file "
                "from a backup, or remove the directory if its data is not wanted"
            )
    cluster_id = str(random_uuid(random))
    voters = VoterSet(tuple(ReplicaKey(each, random_uuid(random)) for each in _controllers(spec)))
    formats = {
        each.node_id: ControllerFormat(cluster_id, each.directory_id, voters) for each in voters.voters
    }
    return FormatPlan(_broker_ids(spec, partition_nodes(spec), random), voters, formats)


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
    brokers = [each for each in partition_nodes(spec) if each in replace]
    return FormatPlan(_broker_ids(spec, brokers, random), None, formats)


def _broker_ids(spec: ClusterSpec, node_ids: Collection[int], random: Random) -> dict[int, dict[str, UUID]]:
    """New ids for the directories of these brokers."""
    return {each: {path: random_uuid(random) for path in node_directories(spec, each)} for each in node_ids}


def _to_be_there(
    spec: ClusterSpec,
    found: Found,
    plan: FormatPlan,
    awaited: Collection[int],
    alone: Mapping[int, Collection[str]],
) -> list[str]:
    """The directories that must exist, because they are neither made nor awaited: those of controllers, and those of
    brokers without a sound directory. `alone`: single directories that are replaced while their nodes keep others.
    """
    brokers = [
        each
        for each in partition_nodes(spec)
        if each not in plan.brokers
        and (each not in awaited or each in alone)
        and not any(found.get(path, NOTHING).is_formatted for path in node_directories(spec, each))
    ]
    controllers = [each for each in _controllers(spec) if each not in (*plan.controllers, *awaited)]
    return [
        *(path for each in brokers for path in node_directories(spec, each)),
        *(controller_directory(spec, each) for each in controllers),
    ]


def _prepared(spec: ClusterSpec, found: Found, node_id: int, whole: Collection[int]) -> ReplicaKey | None:
    """Which replica the node was to be, if phase 2 did not come to it and it never ran."""
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
            raise wrong_cluster(controller_directory(spec, each), cluster_id, other)
    return cluster_id


# ---- Refusals ------------------------------------------------------------------------------------------------------


def _check_replace(spec: ClusterSpec, replace: Collection[int]) -> None:
    wanted = spec.roles
    for node_id in replace:
        if node_id not in wanted:
            raise ConfigError(f"replace: no node {node_id} in cluster {spec.name!r}; it has {list(wanted)}")


def refuse_undeclared(spec: ClusterSpec, found: Found) -> None:
    """Raises StorageError for the disk of a broker or coordinator that the spec lacks, as an older file may: what only
    that one holds would be gone.
    """
    for path, each in found.items():
        if (
            each.cluster_id
            and role_of(each.node_id) is not Role.CONTROLLER
            and each.node_id not in spec.roles
        ):
            raise StorageError(
                f"{path} is the disk of {node_name(each.node_id)}, which the spec does not have: add it (`brokers`, "
                "`coordinators` or `nodes`), and take it out later with `rayka broker drain` and `rayka broker "
                "remove`; or remove the directory if nothing in it is wanted"
            )


def _refuse_missing(spec: ClusterSpec, found: Found, directories: Collection[str]) -> None:
    missing = [each for each in directories if not found.get(each, NOTHING).is_formatted]
    if missing:
        raise StorageError(
            f"cluster {spec.name!r} has data, but these directories are missing: {', '.join(missing)}; mount or "
            f"restore them{_advice(spec, found, missing)}"
        )


def _advice(spec: ClusterSpec, found: Found, missing: Collection[str]) -> str:
    """What to do where a node has none of its directories: it may be new in the spec, or its disk is lost for good."""
    without = [
        each
        for each in spec.roles
        if not any(found.get(path, NOTHING).is_formatted for path in formatted_directories(spec, each))
        and not set(missing).isdisjoint(formatted_directories(spec, each))
    ]
    if not without:
        return ""
    names, options = ", ".join(map(node_name, without)), " ".join(f"--replace {each}" for each in without)
    return (
        f". If the spec has more nodes than before, or a disk is lost for good, let {names} start empty: `rayka start "
        f"{options}`, replace={without} in Python; a broker comes without records, a controller without a vote"
    )


def _refuse_formatted(found: Found, replaced: Mapping[int, Collection[str]]) -> None:
    for node_id, paths in replaced.items():
        for each in paths:
            if found.get(each, NOTHING).is_formatted:
                raise StorageError(
                    f"replace: {each} of {node_name(node_id)} is there; start without replacing it, or remove it first "
                    "if its data is not wanted"
                )


# ---- Places --------------------------------------------------------------------------------------------------------


def _controllers(spec: ClusterSpec) -> tuple[int, ...]:
    return nodes_with(spec, Role.CONTROLLER)


def _of(spec: ClusterSpec, found: Found, controller_id: int) -> FoundDirectory:
    return found.get(controller_directory(spec, controller_id), NOTHING)
