"""The formatting of a cluster's directories before its actors are made: which directories, and in which order.

A cluster is formatted if none of its directories exists anywhere. A start is refused if a node has none of its
directories: a node on an empty disk is not the node it was (decision 042). A broker with one of several directories
starts, and names those that are offline; a single directory that is lost for good can be replaced.

Formatting has two phases:
1. Brokers and coordinators are formatted, and every controller gets the 0-0 checkpoint, which names all voters.
2. Each controller gets its `meta.properties`, without which no node starts.

The next start finishes one that broke off. After a break in phase 1 no directory has been used: all controllers are
formatted anew. After a break in phase 2 there is a whole controller. Its checkpoint and cluster id say how the other
controllers, which have the same checkpoint, are finished. A controller with neither file has lost its disk: it may have
voted, and comes back only under another identity, as an observer. Kafka: `StorageTool`, `Formatter` (A48, A55).

`format_brokers`, `prepare_controllers`, `format_controllers` and `remove_directories` run beside the disk, through
`ray_nodes.run_on`, and raise StorageError.
"""

import dataclasses
import os
import posixpath
import shutil
from collections.abc import Collection, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
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

_TIMEOUT_S = 60.0


@dataclass(frozen=True, slots=True)
class ControllerFormat:
    """The contents of a controller's new directory."""

    cluster_id: str
    directory_id: UUID
    # None: the controller is an observer.
    voters: VoterSet | None


def format_brokers(formats: Sequence[tuple[NodePlacement, Mapping[str, UUID]]]) -> None:
    """Formats directories of brokers, by path with these ids. Leaves a directory that is formatted as it is."""

    async def write() -> None:
        with closing(LocalDisk()) as disk:
            for placement, directory_ids in formats:
                for path, directory_id in directory_ids.items():
                    if not disk.exists(posixpath.join(path, META_PROPERTIES_FILE)):
                        await LogDirectory.format(
                            disk, path, node_id=placement.node_id, directory_id=directory_id
                        )

    io_thread.run(write, _TIMEOUT_S)


def prepare_controllers(placements: Sequence[NodePlacement], voters: VoterSet) -> None:
    """Gives the directories of controllers the checkpoint that names all voters, and nothing else."""

    async def write() -> None:
        with closing(LocalDisk()) as disk:
            for placement in placements:
                await prepare_controller(placement.controller_settings(disk, _never), voters)

    io_thread.run(write, _TIMEOUT_S)


def format_controllers(formats: Sequence[tuple[NodePlacement, ControllerFormat]]) -> None:
    """Formats the directories of controllers. Refuses one that is formatted already."""

    async def write() -> None:
        with closing(LocalDisk()) as disk:
            for placement, wanted in formats:
                settings = placement.controller_settings(disk, _never)
                leftover = bootstrap_checkpoint_path(settings.data_dirs[0])
                if wanted.voters is None and disk.exists(leftover):
                    # An earlier formatting broke off.
                    disk.unlink(leftover)
                await format_controller(
                    settings,
                    cluster_id=wanted.cluster_id,
                    directory_id=wanted.directory_id,
                    voters=wanted.voters,
                )

    io_thread.run(write, _TIMEOUT_S)


def remove_directories(directories: Collection[str]) -> None:
    """Removes node directories with their contents and the logs kept beside them, and the cluster's directory if it is
    empty then.
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


def _never(error: BaseException) -> None:
    raise AssertionError("formatting runs no node that could crash") from error


# A node, or one directory of a broker: `2:PATH`.
Replacement = int | str


@dataclass(frozen=True, slots=True)
class FormatPlan:
    """The directories to be made."""

    # By node, the paths of the directories to be made, with their ids.
    brokers: Mapping[int, Mapping[str, UUID]]
    # The voters in the checkpoints of phase 1; None: no checkpoint is made.
    voters: VoterSet | None
    controllers: Mapping[int, ControllerFormat]

    def directory_ids(self, spec: ClusterSpec) -> dict[str, UUID]:
        """Returns the id of each directory to be made."""
        made = {path: id for ids in self.brokers.values() for path, id in ids.items()}
        return made | {
            controller_directory(spec, node_id): each.directory_id
            for node_id, each in self.controllers.items()
        }


def plan_formatting(
    spec: ClusterSpec,
    found: Found,
    replace: Collection[Replacement],
    random: Random,
    awaited: Collection[int] = (),
) -> FormatPlan:
    """Plans what to format, by what there is of the cluster's directories. Nodes in `replace`, or single directories of
    brokers (`2:PATH`), start empty. Nodes in `awaited` may be missing.

    Raises StorageError naming the directories that are missing or do not belong together, ConfigError for a `replace`
    that cannot be done.
    """
    parts = replaced_directories(spec, replace)
    # The command line gives ids as text.
    whole_nodes = [int(each) for each in replace if str(each).isdecimal()]
    whole = [each for each in _controllers(spec) if _of(spec, found, each).is_formatted]
    if not whole and not any(each.cluster_id for each in found.values()):
        return _plan_new(spec, found, random)
    if set(_controllers(spec)) & set(whole_nodes) and not set(whole) - set(whole_nodes):
        raise ConfigError(
            f"replace: no other controller has the metadata of cluster {spec.name!r}; restore the directory of a "
            "controller from a backup, or delete the other directories to start from nothing"
        )
    plan = _plan_rest(spec, found, whole, whole_nodes, random)
    alone = {each: paths for each, paths in parts.items() if each not in whole_nodes}
    _refuse_missing(spec, found, _required_directories(spec, found, plan, awaited, alone))
    for node_id, paths in parts.items():
        for each in paths:
            if found.get(each, NOTHING).is_formatted:
                raise StorageError(
                    f"replace: {each} of {node_name(node_id)} is there; start without replacing it, or remove it first "
                    "if its data is not wanted"
                )
    alone_ids = {each: {path: random_uuid(random) for path in paths} for each, paths in alone.items()}
    return dataclasses.replace(plan, brokers={**plan.brokers, **alone_ids})


def replaced_directories(spec: ClusterSpec, replace: Collection[Replacement]) -> dict[int, tuple[str, ...]]:
    """Returns the directories to be made anew, by node. PATH is that of the node's directory, or of a `data_dir` of the
    spec. Raises ConfigError.
    """
    replaced: dict[int, tuple[str, ...]] = {}
    for each in replace:
        node, _, path = str(each).partition(":")
        if not node.isdecimal() or (not path and ":" in str(each)):
            raise ConfigError(f"replace: expected the id of a node, or ID:PATH, found {each!r}")
        node_id = int(node)
        if node_id not in spec.roles:
            raise ConfigError(
                f"replace: no node {node_id} in cluster {spec.name!r}; it has {list(spec.roles)}"
            )
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
    """Plans the nodes to replace, and the rest of phase 2 of the first formatting."""
    cluster_id = _common_cluster_id(spec, found, whole) if whole else ""
    formats = {}
    for each in _controllers(spec):
        if each in replace:
            formats[each] = ControllerFormat(cluster_id, random_uuid(random), None)
        elif each not in whole:
            key = _prepared_replica(spec, found, each, whole)
            if key is not None:
                formats[each] = ControllerFormat(cluster_id, key.directory_id, _of(spec, found, each).voters)
    brokers = [each for each in partition_nodes(spec) if each in replace]
    return FormatPlan(_broker_ids(spec, brokers, random), None, formats)


def _broker_ids(spec: ClusterSpec, node_ids: Collection[int], random: Random) -> dict[int, dict[str, UUID]]:
    """Returns new ids for the directories of these brokers."""
    return {each: {path: random_uuid(random) for path in node_directories(spec, each)} for each in node_ids}


def _required_directories(
    spec: ClusterSpec,
    found: Found,
    plan: FormatPlan,
    awaited: Collection[int],
    alone: Mapping[int, Collection[str]],
) -> list[str]:
    """Returns the directories that must exist, because they are neither made nor awaited: those of controllers, and
    those of brokers without a sound directory. `alone` are single directories that are replaced while their nodes keep
    others.
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


def _prepared_replica(
    spec: ClusterSpec, found: Found, node_id: int, whole: Collection[int]
) -> ReplicaKey | None:
    """Returns the replica that phase 1 prepared the node for, if phase 2 did not reach the node and it never ran."""
    own = _of(spec, found, node_id)
    if own.has_log or own.voters is None:
        return None
    if not any(_of(spec, found, each).voters == own.voters for each in whole):
        return None
    return next((key for key in own.voters.voters if key.node_id == node_id), None)


def _common_cluster_id(spec: ClusterSpec, found: Found, whole: Collection[int]) -> str:
    """Returns the cluster id of the controllers. Raises StorageError that names two clusters."""
    first, *others = [each for each in whole if _of(spec, found, each).cluster_id] or whole
    cluster_id = _of(spec, found, first).cluster_id
    for each in others:
        other = _of(spec, found, each).cluster_id
        if other != cluster_id:
            raise wrong_cluster(controller_directory(spec, each), cluster_id, other)
    return cluster_id


# ---- Refusals ------------------------------------------------------------------------------------------------------


def refuse_undeclared(spec: ClusterSpec, found: Found) -> None:
    """Raises StorageError for the disk of a broker or coordinator that the spec lacks, as an older file may: records on
    that disk alone would be gone.
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
    """Advises on nodes that have none of their directories: they may be new in the spec, or their disks lost
    for good.
    """
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


# ---- Places --------------------------------------------------------------------------------------------------------


def _controllers(spec: ClusterSpec) -> tuple[int, ...]:
    return nodes_with(spec, Role.CONTROLLER)


def _of(spec: ClusterSpec, found: Found, controller_id: int) -> FoundDirectory:
    return found.get(controller_directory(spec, controller_id), NOTHING)
