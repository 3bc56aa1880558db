"""The placement of nodes on Ray nodes.

A node belongs where its directories are. New nodes of one role are spread, so that the end of one machine is not the
end of a quorum.
"""

import os
import socket
import time
from collections import Counter
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, replace
from random import Random, SystemRandom

import ray

from rayka.actors.names import actor_name, formatted_directories, node_directories, supervisor_name
from rayka.actors.node_logs import own_log_path
from rayka.actors.ray_network import RayNetwork
from rayka.config.cluster_config import ClusterSpec, CountRange, RoleResources
from rayka.errors import UnavailableError
from rayka.ids import Role, is_combined, role_of
from rayka.node.settings import NodeSettings, controller_settings
from rayka.ports import Disk

# Ray's label for the zone of a machine.
ZONE_LABEL = "ray.io/availability-zone"


@dataclass(frozen=True, slots=True)
class NodePlacement:
    """One node of a cluster, and the Ray node that it runs on."""

    spec: ClusterSpec
    node_id: int
    ray_node_id: str

    @property
    def roles(self) -> tuple[Role, ...]:
        """The roles of the node."""
        return self.spec.roles[self.node_id]

    @property
    def directories(self) -> tuple[str, ...]:
        """The node's data directories."""
        return node_directories(self.spec, self.node_id)

    def settings(self, disk: Disk, crash: Callable[[BaseException], None]) -> NodeSettings:
        """Returns the settings of the node, made in the process that it runs in."""
        return NodeSettings(
            node_id=self.node_id,
            cluster_name=self.spec.name,
            data_dirs=self.directories,
            config=self.spec.config,
            disk=disk,
            network=RayNetwork(self.spec.name, transport=self.spec.transport),
            random=Random(SystemRandom().getrandbits(64)),
            wall_clock_ms=wall_clock_ms,
            processor_seconds=time.process_time,
            crash=crash,
            host=ray.util.get_node_ip_address(),
            pid=os.getpid(),
            rack=own_rack(),
            log_path=own_log_path(),
            roles=tuple(each for each in self.roles if each is not Role.CONTROLLER),
        )

    def controller_settings(self, disk: Disk, crash: Callable[[BaseException], None]) -> NodeSettings:
        """Returns the settings of the node's controller, which shares the node with a broker or coordinator, or has it
        alone.
        """
        settings = self.settings(disk, crash)
        return controller_settings(settings) if is_combined(self.roles) else settings


def wall_clock_ms() -> int:
    """Milliseconds since 1970, for timestamps."""
    return time.time_ns() // 1_000_000


def own_rack() -> str:
    """Returns the rack of this machine, by which replicas are spread and readers find a near one: the zone in the Ray
    node's labels, else the machine's own name.
    """
    zone = ray.get_runtime_context().get_node_labels().get(ZONE_LABEL) if ray.is_initialized() else None
    return str(zone or socket.gethostname())


@dataclass(frozen=True, slots=True)
class Site:
    """A Ray node as a place for nodes, with the directories found on it."""

    resources: Mapping[str, float]
    # Directories of the cluster.
    own: Collection[str] = ()
    # Paths of the cluster's directories that are taken by disks of others.
    foreign: Collection[str] = ()
    # The part of `resources` that is free; None: not known.
    free: Mapping[str, float] | None = None

    def has_free(self, spec: ClusterSpec, node_id: int) -> bool:
        """Whether Ray could make the node's actor there at once."""
        return is_able(spec, node_id, self.resources if self.free is None else self.free)

    def with_node(self, spec: ClusterSpec, node_id: int) -> "Site":
        """Returns the site with the node's resources taken."""
        asked, free = needs(spec, node_id), self.resources if self.free is None else self.free
        return replace(self, free={name: amount - asked.get(name, 0) for name, amount in free.items()})


def needs(spec: ClusterSpec, node_id: int) -> dict[str, float]:
    """Returns the resources that the spec asks for a node."""
    asked: RoleResources = getattr(spec.resources, role_of(node_id))
    return {"CPU": asked.num_cpus, "memory": asked.memory or 0, **asked.resources}


def log_places(cluster_name: str, placements: Collection[NodePlacement]) -> dict[str, str]:
    """Returns for each actor the directory beside which its log is kept. The supervisor has no directory: it gets the
    first node's.
    """
    places = {actor_name(cluster_name, each.node_id): each.directories[0] for each in placements}
    first = next(iter(places.values()), None)
    return places if first is None else {**places, supervisor_name(cluster_name): first}


def cpus_of_nodes(spec: ClusterSpec) -> float:
    """Returns the CPUs that the spec asks for all nodes that it may have."""
    counts = {Role.BROKER: spec.brokers, Role.COORDINATOR: spec.coordinators}
    growth = {role: count.max - count.min for role, count in counts.items() if isinstance(count, CountRange)}
    asked: dict[Role, float] = {role: getattr(spec.resources, role).num_cpus for role in Role}
    return sum(asked[role_of(each)] for each in spec.roles) + sum(
        asked[role] * growth[role] for role in growth
    )


def is_able(spec: ClusterSpec, node_id: int, resources: Mapping[str, float]) -> bool:
    """Whether a Ray node with these resources can have the node."""
    return all(resources.get(name, 0) >= amount for name, amount in needs(spec, node_id).items())


def able_ray_nodes(
    spec: ClusterSpec, node_ids: Collection[int], ray_nodes: Mapping[str, Mapping[str, float]]
) -> list[str]:
    """Returns the Ray nodes that have the resources for at least one of these nodes."""
    return [each for each, has in ray_nodes.items() if any(is_able(spec, id, has) for id in node_ids)]


def shortage(spec: ClusterSpec, node_id: int, free: Mapping[str, float]) -> str:
    """Names the resources that a Ray node with these free ones lacks for the node; empty if it lacks none."""
    lacking = {name: asked for name, asked in needs(spec, node_id).items() if free.get(name, 0) < asked}
    return ", ".join(
        f"{name} {free.get(name, 0):g} free of {asked:g} asked" for name, asked in lacking.items()
    )


def place(
    spec: ClusterSpec,
    sites: Mapping[str, Site],
    node_ids: Collection[int],
    homes: Mapping[int, str],
    *,
    only_on_disks: bool = False,
) -> dict[int, NodePlacement]:
    """Places each of these nodes on the Ray node that has its directories, a new one where the fewest of its role are.

    `homes` are the Ray nodes of nodes that run. With `only_on_disks`, leaves out a node if no Ray node has a directory
    of the node and the resources. Else raises UnavailableError if no Ray node has the resources.
    """
    settled, sites = dict(homes), dict(sites)
    placements: dict[int, NodePlacement] = {}
    for node_id in node_ids:
        candidates = sites
        if only_on_disks:
            directories = set(formatted_directories(spec, node_id))
            candidates = {
                ray_node_id: each
                for ray_node_id, each in sites.items()
                if not directories.isdisjoint(each.own) and is_able(spec, node_id, each.resources)
            }
            if not candidates:
                continue
        others = (id for id in settled if not set(spec.roles[node_id]).isdisjoint(spec.roles.get(id, ())))
        beside = Counter(settled[each] for each in others)
        settled[node_id] = home = _home(spec, node_id, candidates, beside)
        sites[home] = sites[home].with_node(spec, node_id)
        placements[node_id] = NodePlacement(spec, node_id, home)
    return placements


def _home(spec: ClusterSpec, node_id: int, sites: Mapping[str, Site], beside: Mapping[str, int]) -> str:
    """Chooses a Ray node for the node, by these criteria in their order: has most of the node's directories, has the
    resources, has nothing else at the node's paths, has the resources free, has the fewest nodes of this role, comes
    first. If no Ray node has them free, Ray makes the actor as soon as the chosen one has.
    """
    directories = formatted_directories(spec, node_id)

    def fitness(ray_node_id: str) -> tuple[int, bool, bool, bool, int]:
        site = sites[ray_node_id]
        has_path = not any(each in site.foreign for each in directories)
        own_count = sum(each in site.own for each in directories)
        has_free = site.has_free(spec, node_id)
        is_able_to = is_able(spec, node_id, site.resources)
        return own_count, is_able_to, has_path, has_free, -beside.get(ray_node_id, 0)

    best = max(sites, key=fitness, default=None)
    if best is None or not is_able(spec, node_id, sites[best].resources):
        raise UnavailableError(
            f"no Ray node has what the spec asks for a {role_of(node_id)}: {needs(spec, node_id)}; see `resources` in "
            "the spec"
        )
    return best
