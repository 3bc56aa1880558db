"""A changed spec brought into force while the cluster runs, once it has the nodes that the spec has more.

1. `min.insync.replicas` is set for all brokers, for the metadata keeps it.
2. The supervisor gets the spec: what it makes from then on is made by it.
3. Controllers that have no vote get one, one after another.
4. Nodes that were made from other settings restart, one after another.

Each step is found by what is there, so another start goes on where one broke off. In between a node that ends comes
back with the settings that it had, if Ray restarts its process, or with those in force, if the supervisor makes it.
"""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from rayka.actors.bring_up import START_TIMEOUT_S, keep
from rayka.actors.cluster_record import ClusterRecord
from rayka.actors.names import nodes_with
from rayka.actors.node_placement import Placement, needs, shortage
from rayka.actors.quorum_votes import change_votes, look_at_quorum
from rayka.actors.ray_records import free_resources
from rayka.actors.restart_plan import RestartStep, refuse_below_min_isr
from rayka.actors.restarting import OnRestarted, Restarting
from rayka.actors.spec_changes import added_nodes
from rayka.actors.spec_settings import SettingChange, changed_settings, outdated_settings
from rayka.actors.voter_steps import unvoted
from rayka.client.admin.admin import Admin
from rayka.config.cluster_config import ClusterSpec
from rayka.errors import UnavailableError
from rayka.ids import Role, node_name
from rayka.protocol.configs import MIN_ISR

if TYPE_CHECKING:
    from rayka.actors.shell import NodeProcess
    from rayka.cluster import Cluster


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


class SpecApplying:
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
        self._restarting = Restarting(cluster, START_TIMEOUT_S, spec)

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
        without `force`, or Ray has no room for what the spec asks; later as `Restarting.execute` and `change_voters`.
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
        keep(ClusterRecord(self._spec, record.identities))

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
        return unvoted(info, controllers, added)

    def _refuse_shortage(self, node_ids: Iterable[int]) -> None:
        made = {each: self._processes[each].placement for each in node_ids if each in self._processes}
        lacking = lacking_resources(self._spec, made, free_resources())
        if lacking:
            raise UnavailableError(f"{lacking}; nothing was restarted; ask for less in the spec's resources")


def lacking_resources(
    spec: ClusterSpec, made: Mapping[int, Placement], free: Mapping[str, Mapping[str, float]]
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
