"""The changes of a running cluster's spec: which are allowed, what differs, and how they are brought into force.

Nodes may come. Nodes go one by one and by name. Settings change by a restart of each node in turn. Properties by which
a disk or an actor is known cannot change without a stop.

A node has the settings of the spec that its actor was made from, until the actor is made anew. So the nodes that a
changed spec leaves to be restarted are found by looking at them.

A changed spec comes into force when the cluster has the nodes that the spec adds:
1. `min.insync.replicas` is set for all brokers, because the metadata keeps it.
2. The supervisor gets the spec, and makes actors by it from then on.
3. Controllers that have no vote get one, one after another.
4. Nodes that were made from other settings restart, one after another.

Each step is found by what is there, so another start continues one that broke off. A node that ends between the steps
comes back with its former settings if Ray restarts its process, and with those in force if the supervisor makes it.
"""

from collections.abc import Collection, Container, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from rayka.actors.cluster_actors import START_TIMEOUT_S, replace_supervisor
from rayka.actors.names import nodes_with
from rayka.actors.node_placement import NodePlacement, needs, shortage
from rayka.actors.quorum_changes import change_votes, controllers_without_vote, look_at_quorum
from rayka.actors.ray_records import free_resources
from rayka.actors.rolling_restart import OnRestarted, RestartStep, RollingRestart, refuse_below_min_isr
from rayka.actors.supervisor_handle import ClusterRecord
from rayka.client.admin.admin import Admin
from rayka.config.broker_config import BROKER_KEYS, CONTROLLER_KEYS, BrokerConfig
from rayka.config.cluster_config import ClusterSpec
from rayka.config.config_model import dotted
from rayka.errors import ConfigError, UnavailableError
from rayka.ids import Role, is_combined, node_name, role_of
from rayka.protocol.configs import MIN_ISR

if TYPE_CHECKING:
    from rayka.actors.shell import NodeProcess
    from rayka.cluster import Cluster


_RESOURCES = "resources."
# Keys that only the supervisor reads.
_OF_SCALING = ("brokers", "coordinators", "scaling")


def refusal(running: ClusterSpec, wanted: ClusterSpec, gone: Container[int] = ()) -> str:
    """Returns the first difference that cannot be made while the cluster runs, and what to do; empty if there is none.

    Which Ray to use is not part of the cluster, and neither is the way in which nodes are written: by counts or one by
    one. Nodes that are `gone` may be missing from `wanted`.
    """
    stop = f"stop it first with `rayka stop --cluster {running.name}`"
    if running.data_dirs != wanted.data_dirs:
        found_paths, expected_paths = (", ".join(each.data_dirs) for each in (running, wanted))
        return f"data_dir {found_paths}, not {expected_paths}; {stop}, or choose another name"
    kept = [each for each in running.roles if each in wanted.roles]
    changed = [each for each in kept if running.roles[each] != wanted.roles[each]]
    if changed:
        found_roles, expected_roles = (", ".join(each.roles[changed[0]]) for each in (running, wanted))
        return f"node {changed[0]} as {found_roles}, not as {expected_roles}; {stop}"
    surplus = [each for each in running.roles if each not in wanted.roles and each not in gone]
    if surplus:
        end = (
            _how_to_end(running, surplus)
            or f"{stop}: a node that is broker and controller goes with a stop only"
        )
        return (
            f"{role_of(surplus[0])} {surplus[0]}, which the spec does not have; keep it in the spec, or {end}"
        )
    return ""


def _how_to_end(running: ClusterSpec, surplus: Collection[int]) -> str:
    """Returns the commands that end these nodes; empty if there are none."""
    first = next(iter(surplus))
    if is_combined(running.roles[first]):
        return ""
    if running.roles[first] == (Role.CONTROLLER,):
        names = " ".join(str(each) for each in surplus if running.roles[each] == (Role.CONTROLLER,))
        return f"end it for good with `rayka quorum remove {names}`"
    return f"end it for good with `rayka broker drain {first}`, then `rayka broker remove {first}`"


def added_nodes(running: ClusterSpec, wanted: ClusterSpec) -> tuple[int, ...]:
    """Returns the nodes that a spec which is not refused adds, ascending."""
    return tuple(each for each in wanted.roles if each not in running.roles)


def with_broker(spec: ClusterSpec, broker_id: int) -> ClusterSpec:
    """Returns the spec with that broker, added if need be."""
    return with_nodes(spec, {broker_id: (role_of(broker_id),)})


def without_broker(spec: ClusterSpec, broker_id: int) -> ClusterSpec:
    """Returns the spec without that broker. Raises ConfigError if the rest could not be a cluster, and for a
    controller.
    """
    if Role.CONTROLLER in spec.roles[broker_id]:
        raise ConfigError(f"node {broker_id} is a controller: expected one that is none")
    return without_nodes(spec, (broker_id,))


def with_nodes(spec: ClusterSpec, roles: Mapping[int, Collection[Role]]) -> ClusterSpec:
    """Returns the spec with these nodes, added if need be. Nodes that it has stay as they are."""
    return _with_roles(spec, {**roles, **spec.roles}, f"with {_named(roles)}")


def without_nodes(spec: ClusterSpec, node_ids: Collection[int]) -> ClusterSpec:
    """Returns the spec without these nodes. Raises ConfigError if the rest could not be a cluster."""
    rest = {each: roles for each, roles in spec.roles.items() if each not in node_ids}
    return _with_roles(spec, rest, f"without {_named(node_ids)}")


def united(specs: Collection[ClusterSpec]) -> ClusterSpec | None:
    """Returns one spec with the nodes of all these, which differ in nothing else: some have brokers that came later, or
    that have gone. None if there are none.
    """
    if not specs:
        return None
    roles = {each: found for spec in specs for each, found in spec.roles.items()}
    return _with_roles(next(iter(specs)), roles, "the running nodes")


def _with_roles(spec: ClusterSpec, roles: Mapping[int, Collection[Role]], what: str) -> ClusterSpec:
    counted = {"nodes", "controllers", "brokers", "coordinators", "scaling"}
    values = spec.model_dump(exclude_unset=True, exclude=counted)
    nodes = [{"id": each, "roles": list(found)} for each, found in roles.items()]
    whole = ClusterSpec.of({**values, "nodes": nodes}, what=what)
    kept = {each: getattr(spec, each) for each in ("brokers", "coordinators", "scaling")}
    return whole.model_copy(update=kept)


def _named(node_ids: Collection[int]) -> str:
    return ", ".join(f"{role_of(each)} {each}" for each in node_ids)


@dataclass(frozen=True, slots=True)
class SettingChange:
    """One key of the spec, and its values as text."""

    key: str
    before: str
    after: str

    def __str__(self) -> str:
        return f"{self.key} {self.before}, not {self.after}"


def changed_settings(running: ClusterSpec, wanted: ClusterSpec) -> tuple[SettingChange, ...]:
    """Returns every setting that differs and that nodes can get while the cluster runs, in the order of the spec."""
    before, after = _settings(running), _settings(wanted)
    return tuple(SettingChange(key, before[key], after[key]) for key in before if before[key] != after[key])


def outdated_settings(made_from: ClusterSpec, wanted: ClusterSpec, node_id: int) -> tuple[SettingChange, ...]:
    """Returns the changed settings that this node gets when it is made anew; none if it is up to date.

    Leaves out `min.insync.replicas`, because a cluster keeps it in its metadata.
    """
    return tuple(
        each
        for each in changed_settings(made_from, wanted)
        if each.key != MIN_ISR and _concerns(each.key, node_id, wanted)
    )


def _concerns(key: str, node_id: int, spec: ClusterSpec) -> bool:
    if key in _OF_SCALING:
        return False
    if key.startswith(_RESOURCES):
        return key == f"{_RESOURCES}{role_of(node_id)}"
    roles = spec.roles.get(node_id, (role_of(node_id),))
    is_controller_alone = tuple(roles) == (Role.CONTROLLER,)
    return not is_controller_alone if key in _BROKERS else key not in _CONTROLLERS or Role.CONTROLLER in roles


def _settings(spec: ClusterSpec) -> Mapping[str, str]:
    """Returns the settings by key, as text. A spec that a process of another version holds may lack keys of this one,
    and have others.
    """
    resources = {f"{_RESOURCES}{role}": _as_text(getattr(spec.resources, role).model_dump()) for role in Role}
    transport = {
        "transport": spec.transport,
        "transport_ports": _as_text(spec.transport_ports and list(spec.transport_ports)),
    }
    scaling = (
        *(spec.ranges.get(role) for role in (Role.BROKER, Role.COORDINATOR)),
        spec.scaling and spec.scaling.model_dump(mode="json"),
    )
    config = {**BrokerConfig().model_dump(mode="json"), **spec.config.model_dump(mode="json")}
    return {
        **dict(zip(_OF_SCALING, map(_as_text, scaling), strict=True)),
        **resources,
        **transport,
        **{dotted(key): _as_text(config[key]) for key in BrokerConfig.model_fields},
    }


def _as_text(value: object) -> str:
    return "none" if value is None else str(value)


_CONTROLLERS = frozenset(map(dotted, CONTROLLER_KEYS))
_BROKERS = frozenset(map(dotted, BROKER_KEYS))


@dataclass(frozen=True, slots=True)
class SpecChange:
    """The changes that a start makes to a running cluster."""

    settings: tuple[SettingChange, ...] = ()
    # The nodes that come.
    added: tuple[int, ...] = ()
    # The controllers that get a vote.
    new_voters: tuple[int, ...] = ()
    # The nodes that restart for the settings, in their order.
    restarts: tuple[RestartStep, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.settings or self.added or self.new_voters or self.restarts)


class SpecUpdate:
    """One spec, and the cluster that is to get it."""

    def __init__(
        self,
        cluster: "Cluster",
        record: ClusterRecord | None,
        processes: "Mapping[int, NodeProcess]",
        spec: ClusterSpec,
    ) -> None:
        """`record` is the supervisor's; `processes` are those of the nodes that answer."""
        self._cluster = cluster
        self._record = record
        self._processes = processes
        self._spec = spec
        self._restarting = RollingRestart(cluster, START_TIMEOUT_S, spec)

    def plan(self, added: Collection[int] = ()) -> SpecChange:
        """Returns the changes that are left to make, and the nodes that were `added` before. Raises the errors of
        `Cluster.plan_restart` if nodes have to restart.
        """
        running = self._record.spec if self._record else self._spec
        # By node that has to restart, the settings that change for it.
        outdated = {
            node_id: changes
            for node_id, process in self._processes.items()
            if (changes := outdated_settings(process.placement.spec, self._spec, node_id))
        }
        differences = [
            *changed_settings(running, self._spec),
            *(each for found in outdated.values() for each in found),
        ]
        settings = {each.key: each for each in reversed(differences)}
        comes = (*added, *added_nodes(running, self._spec))
        return SpecChange(
            tuple(settings[key] for key in sorted(settings)),
            comes,
            self._new_voters(comes),
            self._restarting.plan(outdated) if outdated else (),
        )

    def execute(self, change: SpecChange, *, force: bool, on_restarted: OnRestarted) -> None:
        """Makes the changes. Raises UnavailableError before the first if a partition would fall below
        `min.insync.replicas` without `force`, or if Ray has no room for the resources in the spec. Later raises the
        errors of `change_voters` and `RollingRestart.execute`.
        """
        if not force:
            refuse_below_min_isr(change.restarts)
        node_ids = [each.node_id for each in change.restarts]
        made = {each: self._processes[each].placement for each in node_ids if each in self._processes}
        lacking = lacking_resources(self._spec, made, free_resources())
        if lacking:
            raise UnavailableError(f"{lacking}; nothing was restarted; ask for less in the spec's resources")
        if self._record is not None and changed_settings(self._record.spec, self._spec):
            if any(each.key == MIN_ISR for each in change.settings):
                with Admin(cluster=self._cluster) as admin:
                    admin.alter_configs({MIN_ISR: self._spec.config.min_insync_replicas}, broker="all")
            replace_supervisor(ClusterRecord(self._spec, self._record.identities))
        if change.new_voters:
            change_votes(self._cluster, change.new_voters, ())
        self._restarting.execute(change.restarts, on_restarted)

    def _new_voters(self, added: Collection[int]) -> tuple[int, ...]:
        """Returns the controllers without a vote that are new, or follow because an earlier start broke off."""
        controllers = nodes_with(self._spec, Role.CONTROLLER)
        info = look_at_quorum(self._cluster)
        if info is None:
            return tuple(each for each in controllers if each in added)
        return controllers_without_vote(info, controllers, added)


def lacking_resources(
    spec: ClusterSpec, made: Mapping[int, NodePlacement], free: Mapping[str, Mapping[str, float]]
) -> str:
    """Names the first of these nodes that would find too little if all were made anew from the spec, one after another
    on their Ray nodes; and what it lacks. Empty if each has room. `free` are the resources that Ray nodes have free
    now.
    """
    rooms = {ray_node_id: dict(room) for ray_node_id, room in free.items()}
    for node_id, placement in made.items():
        room = rooms.get(placement.ray_node_id)
        before, after = needs(placement.spec, node_id), needs(spec, node_id)
        if room is None or before == after:
            continue
        for name, amount in before.items():
            # Rounded as finely as Ray counts.
            room[name] = round(room.get(name, 0) + amount, 4)
        lacking = shortage(spec, node_id, room)
        if lacking:
            return f"{node_name(node_id)} has no room on Ray node {placement.ray_node_id}: {lacking}"
        for name, amount in after.items():
            room[name] = round(room.get(name, 0) - amount, 4)
    return ""
