"""How the spec of a running cluster may change: nodes may come; they go one by one and by name; settings change by a
restart of each node in turn. What a disk or an actor is known by cannot change without a stop. Pure.
"""

from collections.abc import Collection, Container, Iterable, Mapping
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


def refusal(running: ClusterSpec, wanted: ClusterSpec, gone: Container[int] = ()) -> str:
    """The first difference that cannot be made while the cluster runs, and what to do; empty when there is none.

    Which Ray to use is not part of the cluster, and neither is how its nodes are written: by counts or one by one.
    Those that are `gone` may be missing from what is wanted.
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
    """The commands; empty where there are none."""
    first = next(iter(surplus))
    if is_combined(running.roles[first]):
        return ""
    if running.roles[first] == (Role.CONTROLLER,):
        names = " ".join(str(each) for each in surplus if running.roles[each] == (Role.CONTROLLER,))
        return f"end it for good with `rayka quorum remove {names}`"
    return f"end it for good with `rayka broker drain {first}`, then `rayka broker remove {first}`"


def added_nodes(running: ClusterSpec, wanted: ClusterSpec) -> tuple[int, ...]:
    """The nodes that a spec which is not refused has more, ascending."""
    return tuple(each for each in wanted.roles if each not in running.roles)


def with_broker(spec: ClusterSpec, broker_id: int) -> ClusterSpec:
    """The same cluster, which has that broker in any case."""
    return with_nodes(spec, {broker_id: (role_of(broker_id),)})


def without_broker(spec: ClusterSpec, broker_id: int) -> ClusterSpec:
    """The same cluster without that broker. Raises ConfigError where it could not be one, and for a controller."""
    if Role.CONTROLLER in spec.roles[broker_id]:
        raise ConfigError(f"node {broker_id} is a controller: expected one that is none")
    return without_nodes(spec, (broker_id,))


def with_nodes(spec: ClusterSpec, roles: Mapping[int, Collection[Role]]) -> ClusterSpec:
    """The same cluster, which has these nodes in any case; those that it has stay as they are."""
    return _with_roles(spec, {**roles, **spec.roles}, f"with {_named(roles)}")


def without_nodes(spec: ClusterSpec, node_ids: Collection[int]) -> ClusterSpec:
    """The same cluster without these nodes. Raises ConfigError where it could not be one."""
    rest = {each: roles for each, roles in spec.roles.items() if each not in node_ids}
    return _with_roles(spec, rest, f"without {_named(node_ids)}")


def united(specs: Collection[ClusterSpec]) -> ClusterSpec | None:
    """One spec with the nodes of all of these, which differ in nothing else: with brokers that came later, and with
    those that have gone. None of none.
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


# What differs between the settings of two specs of one cluster, and which nodes a difference concerns. Pure.
#
# A node has the settings of the spec that its actor was made from, until it is made anew. So the nodes that a changed
# spec leaves to be restarted are found by looking at them, and a change that broke off goes on where it was.


_RESOURCES = "resources."
_OF_SCALING = ("brokers", "coordinators", "scaling")  # the supervisor goes by them


@dataclass(frozen=True, slots=True)
class SettingChange:
    """One key of the spec, and its values as text."""

    key: str
    before: str
    after: str

    def __str__(self) -> str:
        return f"{self.key} {self.before}, not {self.after}"


def changed_settings(running: ClusterSpec, wanted: ClusterSpec) -> tuple[SettingChange, ...]:
    """Every setting that differs and that nodes can get while the cluster runs, in the order of the spec."""
    before, after = _settings(running), _settings(wanted)
    return tuple(SettingChange(key, before[key], after[key]) for key in before if before[key] != after[key])


def outdated_settings(made_from: ClusterSpec, wanted: ClusterSpec, node_id: int) -> tuple[SettingChange, ...]:
    """Those of them that this node gets when it is made anew; none where it has what is wanted.

    `min.insync.replicas` is not among them: a cluster keeps it in its metadata.
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
    """By key, as text. A spec that a process of another version holds may lack keys of this one, and have others."""
    resources = {f"{_RESOURCES}{role}": _as_text(getattr(spec.resources, role).model_dump()) for role in Role}
    transport = {
        "transport": spec.transport,
        "transport_ports": _as_text(spec.transport_ports and list(spec.transport_ports)),
    }
    scaling = (
        *(spec.ranges.get(role) for role in (Role.BROKER, Role.COORDINATOR)),
        spec.scaling and spec.scaling.model_dump(mode="json"),
    )
    given = {**BrokerConfig().model_dump(mode="json"), **spec.config.model_dump(mode="json")}
    return {
        **dict(zip(_OF_SCALING, map(_as_text, scaling), strict=True)),
        **resources,
        **transport,
        **{dotted(key): _as_text(given[key]) for key in BrokerConfig.model_fields},
    }


def _as_text(value: object) -> str:
    return "none" if value is None else str(value)


_CONTROLLERS = frozenset(map(dotted, CONTROLLER_KEYS))
_BROKERS = frozenset(map(dotted, BROKER_KEYS))


# A changed spec brought into force while the cluster runs, once it has the nodes that the spec has more.
#
# 1. `min.insync.replicas` is set for all brokers, for the metadata keeps it.
# 2. The supervisor gets the spec: what it makes from then on is made by it.
# 3. Controllers that have no vote get one, one after another.
# 4. Nodes that were made from other settings restart, one after another.
#
# Each step is found by what is there, so another start goes on where one broke off. In between a node that ends comes
# back with the settings that it had, if Ray restarts its process, or with those in force, if the supervisor makes it.


@dataclass(frozen=True, slots=True)
class SpecChange:
    """What a start makes of a running cluster: the settings that change, the nodes that come, those of its controllers
    that get a vote, and the nodes that restart for the settings, in their order.
    """

    settings: tuple[SettingChange, ...] = ()
    added: tuple[int, ...] = ()
    new_voters: tuple[int, ...] = ()
    restarts: tuple[RestartStep, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.settings or self.added or self.new_voters or self.restarts)


class SpecUpdate:
    """One spec, and the cluster that is to have it."""

    def __init__(
        self,
        cluster: "Cluster",
        record: ClusterRecord | None,
        processes: "Mapping[int, NodeProcess]",
        spec: ClusterSpec,
    ) -> None:
        """`record` is what the supervisor keeps; `processes` are those of the nodes that answer."""
        self._cluster = cluster
        self._record = record
        self._processes = processes
        self._spec = spec
        self._restarting = RollingRestart(cluster, START_TIMEOUT_S, spec)

    def plan(self, added: Collection[int] = ()) -> SpecChange:
        """What is left to do, and the nodes that were `added` before. Raises what `Cluster.plan_restart` raises where
        nodes have to restart.
        """
        running = self._record.spec if self._record else self._spec
        outdated = self._outdated()
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
        """Raises UnavailableError before anything is changed where a partition would fall below `min.insync.replicas`
        without `force`, or Ray has no room for the resources that the spec asks for; later as `RollingRestart.execute`.
        """
        if not force:
            refuse_below_min_isr(change.restarts)
        self._refuse_shortage(each.node_id for each in change.restarts)
        if self._record is not None:
            self._put_in_force(self._record, change.settings)
        if change.new_voters:
            change_votes(self._cluster, change.new_voters, ())
        self._restarting.execute(change.restarts, on_restarted)

    def _put_in_force(self, record: ClusterRecord, settings: Collection[SettingChange]) -> None:
        if not changed_settings(record.spec, self._spec):
            return
        if any(each.key == MIN_ISR for each in settings):
            with Admin(cluster=self._cluster) as admin:
                admin.alter_configs({MIN_ISR: self._spec.config.min_insync_replicas}, broker="all")
        replace_supervisor(ClusterRecord(self._spec, record.identities))

    def _outdated(self) -> dict[int, tuple[SettingChange, ...]]:
        """What changes for each node that has to restart."""
        found = {
            each: outdated_settings(process.placement.spec, self._spec, each)
            for each, process in self._processes.items()
        }
        return {each: settings for each, settings in found.items() if settings}

    def _new_voters(self, added: Collection[int]) -> tuple[int, ...]:
        """The controllers that have no vote and are new, or follow: an earlier start broke off."""
        controllers = nodes_with(self._spec, Role.CONTROLLER)
        info = look_at_quorum(self._cluster)
        if info is None:
            return tuple(each for each in controllers if each in added)
        return controllers_without_vote(info, controllers, added)

    def _refuse_shortage(self, node_ids: Iterable[int]) -> None:
        made = {each: self._processes[each].placement for each in node_ids if each in self._processes}
        lacking = lacking_resources(self._spec, made, free_resources())
        if lacking:
            raise UnavailableError(f"{lacking}; nothing was restarted; ask for less in the spec's resources")


def lacking_resources(
    spec: ClusterSpec, made: Mapping[int, NodePlacement], free: Mapping[str, Mapping[str, float]]
) -> str:
    """Which of these nodes, made anew from the spec one after another where they are, would find too little, and of
    what; empty where each has room. `free` is what Ray nodes have free now.
    """
    rooms = {ray_node_id: dict(room) for ray_node_id, room in free.items()}
    for node_id, placement in made.items():
        room = rooms.get(placement.ray_node_id)
        before, after = needs(placement.spec, node_id), needs(spec, node_id)
        if room is None or before == after:
            continue
        for name, amount in before.items():
            room[name] = round(room.get(name, 0) + amount, 4)  # as fine as Ray counts
        lacking = shortage(spec, node_id, room)
        if lacking:
            return f"{node_name(node_id)} has no room on Ray node {placement.ray_node_id}: {lacking}"
        for name, amount in after.items():
            room[name] = round(room.get(name, 0) - amount, 4)
    return ""
