"""Which node lives on which Ray node, and what its directories look like before its actor is made.

A node belongs where its directories are. Formatting is a step before actors exist and only when no directory of the
cluster exists on any Ray node; when some are missing it is refused, for a node on an empty disk is not the node it
was (design §4).
"""

import os
import shutil
import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from random import Random, SystemRandom

import ray

from rayka.actors.names import node_directories, wanted_node_ids
from rayka.actors.network import RayNetwork
from rayka.actors.on_ray_node import live_ray_nodes, run_on
from rayka.client import io_thread
from rayka.config import ClusterSpec, RoleResources
from rayka.errors import ConfigError, StorageError, UnavailableError
from rayka.ids import Role, node_name, random_uuid, role_of
from rayka.log.disk import LocalDisk
from rayka.log.log_directory import LogDirectory
from rayka.log.meta_properties import META_PROPERTIES_FILE
from rayka.node.format import format_first_voters
from rayka.node.settings import NodeSettings
from rayka.ports import Disk

_FORMAT_TIMEOUT_S = 60.0


@dataclass(frozen=True, slots=True)
class Placement:
    """One node: whose, which, and where."""

    spec: ClusterSpec
    node_id: int
    ray_node_id: str

    @property
    def directories(self) -> tuple[str, ...]:
        """The node's data directories."""
        return node_directories(self.spec, self.node_id)

    def settings(self, disk: Disk, crash: Callable[[BaseException], None]) -> NodeSettings:
        """What the node is told, in the process that it runs in."""
        return NodeSettings(
            node_id=self.node_id,
            cluster_name=self.spec.name,
            data_dirs=self.directories,
            config=self.spec.config,
            disk=disk,
            network=RayNetwork(self.spec.name),
            random=Random(SystemRandom().getrandbits(64)),
            wall_clock_ms=wall_clock_ms,
            crash=crash,
            host=ray.util.get_node_ip_address(),
            pid=os.getpid(),
        )


def wall_clock_ms() -> int:
    """Milliseconds since 1970, for timestamps."""
    return time.time_ns() // 1_000_000


def place(spec: ClusterSpec, replace: Collection[int]) -> dict[int, Placement]:
    """Every node of the spec in its place, with formatted directories; nodes in `replace` start empty.

    Raises StorageError naming the directories that are missing, ConfigError for a `replace` that cannot be done.
    """
    _check_replace(spec, replace)
    found = _find_directories(spec)
    wanted = wanted_node_ids(spec)
    is_new = not any(found.values())
    if not is_new:
        _refuse_missing(spec, found, replace)
    placements = {id: Placement(spec, id, _home(spec, id, found)) for id in wanted}
    # A controller first: a start that breaks off after it can be finished with `replace`.
    for node_id in sorted(wanted, reverse=True):
        if is_new or node_id in replace:
            run_on(placements[node_id].ray_node_id, format_node, placements[node_id])
    return placements


def formatted_directories(directories: Collection[str]) -> list[str]:
    """Those that belong to a node already. Runs beside the disk."""
    return [each for each in directories if os.path.exists(os.path.join(each, META_PROPERTIES_FILE))]


def format_node(placement: Placement) -> None:
    """Makes the directories the node's. Runs beside the disk. Raises StorageError when one is somebody's already."""
    io_thread.run(_format(placement), _FORMAT_TIMEOUT_S)


async def _format(placement: Placement) -> None:
    disk = LocalDisk()
    settings = placement.settings(disk, crash=_never)
    try:
        if role_of(placement.node_id) is Role.CONTROLLER:
            await format_first_voters([settings])
            return
        for path in placement.directories:
            directory_id = random_uuid(settings.random)
            await LogDirectory.format(disk, path, node_id=placement.node_id, directory_id=directory_id)
    finally:
        disk.close()


def _never(error: BaseException) -> None:
    raise AssertionError("formatting runs no node that could crash") from error


def remove_directories(directories: Collection[str]) -> None:
    """Removes node directories with all that is in them, and the cluster's once it is empty. Runs beside the disk."""
    for each in directories:
        try:
            shutil.rmtree(each)
            os.rmdir(os.path.dirname(each))
        except FileNotFoundError:
            continue
        except OSError as error:
            if os.path.isdir(each):
                raise StorageError(f"cannot remove {each}: {error.strerror}") from error


def _check_replace(spec: ClusterSpec, replace: Collection[int]) -> None:
    wanted = wanted_node_ids(spec)
    for node_id in replace:
        if node_id not in wanted:
            raise ConfigError(f"replace: no node {node_id} in cluster {spec.name!r}; it has {list(wanted)}")
        if role_of(node_id) is Role.CONTROLLER:
            raise ConfigError(
                f"replace: {node_name(node_id)} is the only controller, its directory holds all metadata; "
                "restore the directory from a backup, or delete the other directories to start from nothing"
            )


def _find_directories(spec: ClusterSpec) -> dict[str, list[str]]:
    """The cluster's directories by the Ray node that sees them, own Ray node first."""
    all_directories = [each for id in wanted_node_ids(spec) for each in node_directories(spec, id)]
    return {node: run_on(node, formatted_directories, all_directories) for node in live_ray_nodes()}


def _home(spec: ClusterSpec, node_id: int, found: Mapping[str, Collection[str]]) -> str:
    """The Ray node that has most of the node's directories; of several, the first that has the resources, too."""
    directories = node_directories(spec, node_id)
    role = role_of(node_id)
    asked: RoleResources = getattr(spec.resources, role)
    needs = {"CPU": asked.num_cpus, "memory": asked.memory or 0, **asked.resources}

    def fitness(ray_node: tuple[str, Mapping[str, float]]) -> tuple[int, bool]:
        ray_node_id, has = ray_node
        seen = sum(each in found[ray_node_id] for each in directories)
        return seen, all(has.get(name, 0) >= amount for name, amount in needs.items())

    best = max(live_ray_nodes().items(), key=fitness)
    if not fitness(best)[1]:
        raise UnavailableError(
            f"no Ray node has what the spec asks for a {role}: {needs}; see `resources` in the spec"
        )
    return best[0]


def _refuse_missing(
    spec: ClusterSpec, found: Mapping[str, Collection[str]], replace: Collection[int]
) -> None:
    seen = [directory for directories in found.values() for directory in directories]
    nodes = [id for id in wanted_node_ids(spec) if id not in replace]
    missing = [each for id in nodes for each in node_directories(spec, id) if each not in seen]
    if missing:
        raise StorageError(
            f"cluster {spec.name!r} has data, but these directories are missing: {', '.join(missing)}; mount or "
            "restore them, or bring a broker back empty with replace=[id] (`rayka start --replace ID`)"
        )
