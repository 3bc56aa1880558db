"""What a start makes: the nodes of a spec that have no actor, formatted first where they are new. Level-triggered: the
spec is compared with the actors there are. Nodes to replace that have a process but no disk any more, in a machine that
lives, are ended first.
"""

from collections.abc import Collection, Iterable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

from rayka.actors import launch, supervise
from rayka.actors.bring_up import (
    ANSWER_TIMEOUT_S,
    add_nodes,
    ask_ray,
    bring_up,
    keep,
    kept_record,
    processes_of,
    stop_nodes,
    wait_for,
)
from rayka.actors.cluster_description import ask_metadata, describe_nodes
from rayka.actors.cluster_record import ClusterRecord, Identities
from rayka.actors.formatting import Replacement, replaced_directories
from rayka.actors.names import actor_name, await_gone, running_node_ids
from rayka.actors.quorum_votes import look_at_quorum
from rayka.actors.ray_network import RayNetwork
from rayka.actors.ray_records import has_process
from rayka.actors.scaling import rooms
from rayka.actors.scaling.found_brokers import with_found_brokers
from rayka.actors.scaling.grown_spec import as_it_is
from rayka.actors.spec_changes import added_nodes, refusal, united, with_nodes
from rayka.actors.spec_settings import changed_settings
from rayka.actors.start_plan import execute, plan_start
from rayka.config.cluster_config import ClusterSpec
from rayka.errors import ClusterExists, ConfigError
from rayka.ids import Role
from rayka.protocol.membership import NodeState

if TYPE_CHECKING:
    from rayka.actors.shell import NodeProcess
    from rayka.cluster import Cluster


class Starting:
    """One start of a cluster that may run already, whole or in part; `spec` has the brokers that came by the load."""

    def __init__(self, cluster: "Cluster", spec: ClusterSpec, replace: Collection[Replacement]) -> None:
        """Asks Ray and the nodes there are. Raises ClusterExists for a spec that the running cluster cannot get."""
        self._cluster = cluster
        self._replace = replace
        self._replaced = replaced_directories(spec, replace)
        self.handles, self.processes = processes_of(cluster.name)
        self.record = kept_record(cluster.name) if self.handles else None
        known = (*self.handles, *(self.record.spec.roles if self.record else ()))
        self.spec = as_it_is(spec, known) if known else with_found_brokers(spec)
        self._refuse_other_spec()

    def __repr__(self) -> str:
        return f"<Starting {self._cluster!r}>"

    @property
    def is_running(self) -> bool:
        """Whether there was a node of the cluster before this start."""
        return bool(self.handles)

    @property
    def added(self) -> tuple[int, ...]:
        """The nodes that the running cluster does not have yet."""
        return added_nodes(self.record.spec, self.spec) if self.record else ()

    def execute(self) -> None:
        """Makes what is missing, and waits until it runs. Raises what `Cluster.start` raises."""
        record, added, name = self.record, self.added, self._cluster.name
        lost = self._lost()
        running = [each for each in running_node_ids(name) if each not in lost]
        if not running and not lost:  # a supervisor whose nodes have all gone would go on with its own spec
            wait_for(partial(supervise.stop, name), ANSWER_TIMEOUT_S)
        missing = [each for each in self.spec.roles if each not in running]
        new = [each for each in missing if each in added]
        is_partial = bool(running and (self._replace or added))  # the others are left to the supervisor
        chosen = [each for each in missing if each in (*self._replaced, *new)] if is_partial else missing
        if record and not (chosen or self._replace or added):
            return bring_up(record, ())
        # Else a leftover room would keep the resources that its own node needs.
        ask_ray(rooms.drop_leftover, self.spec)
        plan = plan_start(
            self.spec,
            chosen,
            replace=self._replace,
            new=new,
            homes=self._homes(running),
            known=record.identities if record else Identities(),
        )
        if record and self._replace:  # before a disk has an identity that the supervisor would refuse
            keep(ClusterRecord(record.spec, plan.identities))
        _end(name, {each: self.handles[each] for each in lost}, self.processes)
        execute(plan)
        whole, placements = (
            ClusterRecord(self._spec_of_all(), plan.identities),
            list(plan.placements.values()),
        )
        return add_nodes(whole, placements, added) if added else bring_up(whole, placements)

    def _spec_of_all(self) -> ClusterSpec:
        """With the nodes that come and the settings in force: other settings take effect when all nodes run."""
        running = self.record.spec if self.record else self.spec
        if not changed_settings(running, self.spec):
            return self.spec
        return with_nodes(running, {each: self.spec.roles[each] for each in self.added})

    def _lost(self) -> list[int]:
        """Those to be replaced that have a process but no disk. Ends those without a process."""
        silent = [each for each in self.handles if each in self._replaced and each not in self.processes]
        self._end_lost({each: self.handles[each] for each in silent})
        replaced = {each: paths for each, paths in self._replaced.items() if each in self.processes}
        if not replaced:
            return []
        lost = wait_for(partial(without_disk, self._cluster.network(), replaced), ANSWER_TIMEOUT_S)
        self._refuse_running(each for each in replaced if each not in lost)
        return lost

    def _homes(self, running: Collection[int]) -> dict[int, str]:
        """On which Ray nodes these are, empty where that is not known."""
        known = self.processes
        return {each: known[each].ray_node_id if each in known else "" for each in running}

    # ---- Refusals --------------------------------------------------------------------------------------------------

    def _refuse_other_spec(self) -> None:
        running = self.record.spec if self.record else made_from(self.processes)
        if running is None:
            return
        difference = refusal(running, self.spec, () if self.record else self._gone(running))
        if difference:
            cluster = self._cluster
            raise ClusterExists(
                f"cluster {cluster.name!r} runs on the Ray at {cluster.ray_address} with {difference}"
            )

    def _gone(self, running: ClusterSpec) -> list[int]:
        """Nodes that are not there, of a spec which no supervisor confirms: taken out since, but for voters."""
        gone = [each for each in running.roles if each not in self.handles]
        if not any(Role.CONTROLLER in running.roles[each] for each in gone):
            return gone
        info = look_at_quorum(self._cluster)
        voters = [each.node_id for each in info.voters] if info else gone
        return [each for each in gone if Role.CONTROLLER not in running.roles[each] or each not in voters]

    def _refuse_running(self, node_ids: Iterable[int]) -> None:
        replaced = [actor_name(self._cluster.name, each) for each in node_ids]
        if replaced:
            raise ConfigError(
                f"replace: {', '.join(replaced)} runs; only a node whose machine or disk is lost can be brought back "
                "empty while the cluster runs: one that is unreachable or failed, or whose directories that are to "
                f"be replaced are offline; stop the cluster first with `rayka stop --cluster {self._cluster.name}`"
            )

    def _end_lost(self, handles: Mapping[int, Any]) -> None:
        """Ends actors that wait for a Ray node with the label of theirs, which is lost. Raises ConfigError for one that
        has a process and only does not answer.
        """
        for node_id, handle in handles.items():
            if has_process(handle):
                raise ConfigError(
                    f"replace: {actor_name(self._cluster.name, node_id)} has a process, though it does not answer, or "
                    "Ray has not noticed yet that its machine is gone; try again in half a minute"
                )
            launch.end(handle)


async def without_disk(network: RayNetwork, replaced: Mapping[int, Collection[str]]) -> list[int]:
    """Nodes of a running cluster that serve nothing from their directories in `replaced`: FAILED ones, and brokers
    where all of these directories are offline.
    """
    nodes = await describe_nodes(network, await network.node_ids())
    metadata = await ask_metadata(network, nodes)
    offline = {
        each.node_id
        for each in (metadata.brokers if metadata else ())
        if each.directories
        and not {own.directory_id for own in each.directories}.difference(each.offline_directories)
    }
    failed = {each.node_id for each in nodes if each.state == NodeState.FAILED}
    without = {
        each.node_id
        for each in nodes
        if each.node_id in replaced and set(replaced[each.node_id]) <= set(each.offline_data_dirs)
    }
    return [each for each in replaced if each in failed or each in offline or each in without]


def _end(cluster_name: str, handles: Mapping[int, Any], processes: "Mapping[int, NodeProcess]") -> None:
    """Ends these nodes for good; returns when their locks are free, and their names."""
    stop_nodes(cluster_name, handles, processes)
    for node_id in handles:
        await_gone(actor_name(cluster_name, node_id))


def made_from(processes: "Mapping[int, NodeProcess]") -> ClusterSpec | None:
    """What these were made from, all together."""
    return united([each.placement.spec for each in processes.values()])
