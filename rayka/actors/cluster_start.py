"""The start of a cluster: nodes of a spec that have no actor get places, formatted directories, and actors.

A start is level-triggered: it compares the spec with the actors there are. Nodes to be replaced are ended first if they
have a process but no disk any more, on a machine that lives.

All Ray nodes that have the resources in the spec are searched, at the same time. A Ray node that does not answer is
skipped, and named if something is missing. Disks that are not the cluster's are refused, and named too. A cluster is
made anew only if no Ray node has anything of it, whatever resources the Ray node has.
"""

import logging
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from random import SystemRandom
from typing import TYPE_CHECKING

from rayka.actors import node_handles, scaling_rooms, supervisor_handle
from rayka.actors.cluster_actors import (
    ANSWER_TIMEOUT_S,
    add_nodes,
    ask_ray,
    bring_up,
    kept_record,
    processes_of,
    replace_supervisor,
    stop_nodes,
    wait_for,
)
from rayka.actors.cluster_description import ask_metadata, describe_nodes
from rayka.actors.disk_search import (
    FoundByRayNode,
    learn,
    look_for_disks,
    search_notes,
    sites_of,
    split_by_identity,
    with_found_brokers,
)
from rayka.actors.formatting import (
    FormatPlan,
    Replacement,
    format_brokers,
    format_controllers,
    plan_formatting,
    prepare_controllers,
    refuse_undeclared,
    replaced_directories,
)
from rayka.actors.found_directories import NOTHING, FoundDirectory
from rayka.actors.names import (
    actor_name,
    await_gone,
    cluster_directories,
    formatted_directories,
    running_node_ids,
)
from rayka.actors.node_placement import NodePlacement, able_ray_nodes, place
from rayka.actors.quorum_changes import look_at_quorum
from rayka.actors.ray_network import RayNetwork
from rayka.actors.ray_nodes import open_ray_nodes, run_on
from rayka.actors.ray_records import draining_ray_nodes, free_resources, has_process
from rayka.actors.scaling_planner import with_scaled_among
from rayka.actors.spec_changes import added_nodes, changed_settings, refusal, united, with_nodes
from rayka.actors.supervisor_handle import ClusterRecord, Identities
from rayka.config.cluster_config import ClusterSpec
from rayka.errors import ClusterExists, ConfigError, RaykaError, StorageError
from rayka.ids import Role, node_name
from rayka.protocol.membership import NodeState

if TYPE_CHECKING:
    from rayka.actors.shell import NodeProcess
    from rayka.cluster import Cluster


_logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class StartPlan:
    """The places of nodes, and what to format for them."""

    placements: Mapping[int, NodePlacement]
    formats: FormatPlan
    # The ids of the cluster's disks after formatting.
    identities: Identities


def plan_start(
    spec: ClusterSpec,
    node_ids: Collection[int],
    *,
    replace: Collection[Replacement] = (),
    new: Collection[int] = (),
    homes: Mapping[int, str],
    known: Identities,
) -> StartPlan:
    """Plans the places of these nodes. Nodes in `replace` start empty, and so do the brokers in `new` that have no
    directory yet: the cluster never had them.

    `homes` are the Ray nodes of running nodes, `known` the disks on record. Nodes of the spec that are not in
    `node_ids` run, or are awaited, so their disks may be missing. Raises the errors of `plan_formatting`, of `place`
    and, if no node runs, of `refuse_undeclared`; StorageError if another disk is at a path.
    """
    ray_nodes = open_ray_nodes()
    able, parents = able_ray_nodes(spec, spec.roles, ray_nodes), cluster_directories(spec)
    answers = look_for_disks(spec, spec.roles, able, parents)
    if not any(answers.results.values()):
        # The spec may have asked for other resources once: a cluster that is there must not be made a second time.
        others = [each for each in ray_nodes if each not in able]
        answers.results.update(look_for_disks(spec, spec.roles, others, parents).results)
    answers.failures.update(dict.fromkeys(draining_ray_nodes(), "Ray drains it, so no node is made there"))
    seen = answers.results
    identities = learn(spec, seen, known, homes)
    kept, refused = split_by_identity(spec, seen, identities)
    with _naming(refused, answers.failures):
        found = _merged(kept)
        if not homes:
            refuse_undeclared(spec, found)
        awaited = [each for each in spec.roles if each not in node_ids]
        empty = [
            each
            for each in new
            if not any(found.get(path, NOTHING).is_formatted for path in formatted_directories(spec, each))
        ]
        formats = plan_formatting(spec, found, (*replace, *empty), SystemRandom(), awaited)
        placements = place(spec, sites_of(ray_nodes, seen, kept, free_resources()), node_ids, homes)
        _refuse_taken(spec, formats, placements, seen, refused)
    return StartPlan(placements, formats, _identities_after(spec, formats, placements, seen, identities))


def execute(plan: StartPlan) -> None:
    """Formats the directories, with one job for each Ray node and step. A step begins when the one before has ended
    everywhere.
    """
    placements, formats = plan.placements, plan.formats
    new = (*formats.brokers, *formats.controllers)
    if new:
        _logger.info("formatting the directories of %s", ", ".join(node_name(each) for each in sorted(new)))
    for ray_node_id, node_ids in _by_ray_node(formats.brokers, placements).items():
        run_on(ray_node_id, format_brokers, [(placements[each], formats.brokers[each]) for each in node_ids])
    on_ray_nodes = _by_ray_node(formats.controllers, placements)
    if formats.voters is not None:
        for ray_node_id, node_ids in on_ray_nodes.items():
            run_on(ray_node_id, prepare_controllers, [placements[each] for each in node_ids], formats.voters)
    for ray_node_id, node_ids in on_ray_nodes.items():
        wanted = [(placements[each], formats.controllers[each]) for each in node_ids]
        run_on(ray_node_id, format_controllers, wanted)


def _by_ray_node(node_ids: Collection[int], placements: Mapping[int, NodePlacement]) -> dict[str, list[int]]:
    found: dict[str, list[int]] = {}
    for each in node_ids:
        found.setdefault(placements[each].ray_node_id, []).append(each)
    return found


def _merged(seen: FoundByRayNode) -> dict[str, FoundDirectory]:
    """Joins the directories of all Ray nodes. Of one path, a formatted directory counts before others."""
    found: dict[str, FoundDirectory] = {}
    for there in seen.values():
        for path, each in there.items():
            if path not in found or (each.is_formatted and not found[path].is_formatted):
                found[path] = each
    return found


# ---- Refusals and records ------------------------------------------------------------------------------------------


@contextmanager
def _naming(refused: Collection[str], skipped: Mapping[str, str]) -> Iterator[None]:
    """Adds the refused disks and the skipped Ray nodes, with the reasons, to an error of the block. Logs them if there
    is no error.
    """
    notes = search_notes(refused, skipped)
    try:
        yield
    except RaykaError as error:
        if not notes:
            raise
        raise type(error)("; ".join((str(error), *notes))) from error
    for each in notes:
        _logger.warning("%s", each)


def _refuse_taken(
    spec: ClusterSpec,
    formats: FormatPlan,
    placements: Mapping[int, NodePlacement],
    seen: FoundByRayNode,
    refused: Collection[str],
) -> None:
    """Raises StorageError if an existing disk would be formatted over, or a cluster be made beside disks that are
    refused.
    """
    if formats.voters is not None:
        if refused:
            raise StorageError(
                f"no disk that is there can be used for cluster {spec.name!r}; remove them if none is wanted"
            )
        return
    made = formats.directory_ids(spec)
    for node_id, placement in placements.items():
        there = seen[placement.ray_node_id]
        paths = [each for each in formatted_directories(spec, node_id) if each in made]
        taken = [each for each in paths if there.get(each, NOTHING).is_formatted]
        if taken:
            raise StorageError(
                f"{', '.join(taken)} is to be made for {node_name(node_id)}, but another disk is there; unmount or "
                "remove it first"
            )


def _identities_after(
    spec: ClusterSpec,
    formats: FormatPlan,
    placements: Mapping[int, NodePlacement],
    seen: FoundByRayNode,
    before: Identities,
) -> Identities:
    """Returns the identities with the nodes that are formatted. A directory that an interrupted start has formatted
    keeps its id.
    """
    made = formats.directory_ids(spec)
    ids = {}
    for node_id in dict.fromkeys((*formats.brokers, *formats.controllers)):
        there = seen[placements[node_id].ray_node_id]
        paths = formatted_directories(spec, node_id)
        found = {path: there.get(path, NOTHING) for path in paths}
        known = {path: each.directory_id for path, each in found.items() if each.is_formatted}
        ids[node_id] = list({**{path: made[path] for path in paths if path in made}, **known}.values())
        # A directory that is offline may come back.
        if len(ids[node_id]) < len(paths):
            ids[node_id] += before.directory_ids.get(node_id, ())
    cluster_id = next((each.cluster_id for each in formats.controllers.values()), "")
    return before.with_nodes(ids, cluster_id)


class ClusterStart:
    """One start of a cluster that may run already, whole or in part."""

    def __init__(self, cluster: "Cluster", spec: ClusterSpec, replace: Collection[Replacement]) -> None:
        """Asks Ray and the nodes there are. Raises ClusterExists for a spec that the running cluster cannot get."""
        self._cluster = cluster
        self._replace = replace
        self._replaced = replaced_directories(spec, replace)
        # The actors there are, and the processes of those that answer.
        self.handles, self.processes = processes_of(cluster.name)
        # The supervisor's record; None: there is no supervisor.
        self.record = kept_record(cluster.name) if self.handles else None
        known = (*self.handles, *(self.record.spec.roles if self.record else ()))
        # The spec with the brokers that came by the load.
        self.spec = with_scaled_among(spec, known) if known else with_found_brokers(spec)
        self._refuse_other_spec()

    @property
    def is_running(self) -> bool:
        """Whether there was a node of the cluster before this start."""
        return bool(self.handles)

    @property
    def added(self) -> tuple[int, ...]:
        """The nodes of the spec that the running cluster does not have yet."""
        return added_nodes(self.record.spec, self.spec) if self.record else ()

    def execute(self) -> None:
        """Makes the missing actors, and waits until their nodes run. Raises the errors of `Cluster.start`."""
        record, added, name = self.record, self.added, self._cluster.name
        lost = self._lost()
        running = [each for each in running_node_ids(name) if each not in lost]
        if not running and not lost:
            # A supervisor whose nodes have all gone would go on with its own spec.
            wait_for(partial(supervisor_handle.stop, name), ANSWER_TIMEOUT_S)
        missing = [each for each in self.spec.roles if each not in running]
        new = [each for each in missing if each in added]
        # The other missing nodes are left to the supervisor.
        is_partial = bool(running and (self._replace or added))
        chosen = [each for each in missing if each in (*self._replaced, *new)] if is_partial else missing
        if record and not (chosen or self._replace or added):
            return bring_up(record, ())
        known = self.processes
        homes = {each: known[each].ray_node_id if each in known else "" for each in running}
        # Else a leftover room would keep the resources that its own node needs.
        ask_ray(scaling_rooms.drop_leftover, self.spec)
        plan = plan_start(
            self.spec,
            chosen,
            replace=self._replace,
            new=new,
            homes=homes,
            known=record.identities if record else Identities(),
        )
        if record and self._replace:
            # Before a disk has an identity that the supervisor would refuse.
            replace_supervisor(ClusterRecord(record.spec, plan.identities))
        stop_nodes(name, {each: self.handles[each] for each in lost}, self.processes)
        for each in lost:
            await_gone(actor_name(name, each))
        execute(plan)
        whole = ClusterRecord(self._spec_of_all(), plan.identities)
        placements = list(plan.placements.values())
        return add_nodes(whole, placements, added) if added else bring_up(whole, placements)

    def _spec_of_all(self) -> ClusterSpec:
        """Returns the spec with the added nodes and the settings in force: changed settings take effect when all nodes
        run.
        """
        running = self.record.spec if self.record else self.spec
        if not changed_settings(running, self.spec):
            return self.spec
        return with_nodes(running, {each: self.spec.roles[each] for each in self.added})

    def _lost(self) -> list[int]:
        """Returns the nodes to be replaced that have a process but no disk. Ends actors to be replaced that have no
        process.

        Raises ConfigError for a node to be replaced that has a process and its disk, or does not answer.
        """
        silent = [each for each in self.handles if each in self._replaced and each not in self.processes]
        for each in silent:
            if has_process(self.handles[each]):
                raise ConfigError(
                    f"replace: {actor_name(self._cluster.name, each)} has a process, though it does not answer, or Ray "
                    "has not noticed yet that its machine is gone; try again in half a minute"
                )
            # The actor waits for a Ray node with the label of its own, which is lost.
            node_handles.end(self.handles[each])
        replaced = {each: paths for each, paths in self._replaced.items() if each in self.processes}
        if not replaced:
            return []
        lost = wait_for(partial(without_disk, self._cluster.network(), replaced), ANSWER_TIMEOUT_S)
        running = [actor_name(self._cluster.name, each) for each in replaced if each not in lost]
        if running:
            raise ConfigError(
                f"replace: {', '.join(running)} runs; only a node whose machine or disk is lost can be brought back "
                "empty while the cluster runs: one that is unreachable or failed, or whose directories that are to "
                f"be replaced are offline; stop the cluster first with `rayka stop --cluster {self._cluster.name}`"
            )
        return lost

    # ---- Refusals --------------------------------------------------------------------------------------------------

    def _refuse_other_spec(self) -> None:
        running = self.record.spec if self.record else united_spec(self.processes)
        if running is None:
            return
        difference = refusal(running, self.spec, () if self.record else self._gone(running))
        if difference:
            cluster = self._cluster
            raise ClusterExists(
                f"cluster {cluster.name!r} runs on the Ray at {cluster.ray_address} with {difference}"
            )

    def _gone(self, running: ClusterSpec) -> list[int]:
        """Returns the nodes without an actor, of a spec that no supervisor confirms, but for voters: these nodes were
        taken out since.
        """
        gone = [each for each in running.roles if each not in self.handles]
        if not any(Role.CONTROLLER in running.roles[each] for each in gone):
            return gone
        info = look_at_quorum(self._cluster)
        voters = [each.node_id for each in info.voters] if info else gone
        return [each for each in gone if Role.CONTROLLER not in running.roles[each] or each not in voters]


async def without_disk(network: RayNetwork, replaced: Mapping[int, Collection[str]]) -> list[int]:
    """Returns the nodes of a running cluster that serve nothing from their directories in `replaced`: FAILED ones, and
    brokers with all of these directories offline.
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


def united_spec(processes: "Mapping[int, NodeProcess]") -> ClusterSpec | None:
    """Returns one spec with the nodes of all specs that these processes were made from."""
    return united([each.placement.spec for each in processes.values()])
