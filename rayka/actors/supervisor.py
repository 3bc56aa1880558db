"""The supervisor of one cluster, an actor that keeps the node actors as the spec says.

Ray restarts a process that ended, on the same Ray node. When the Ray node itself is gone, the actors pinned to it are
gone for good: to Ray, a machine that comes back is another Ray node. The supervisor finds the disk, by its
`meta.properties`, on whatever Ray node has it, and makes the actor there. It also watches for the exits of processes.

The supervisor is level-triggered: each look compares the spec with the actors there are and the directories that are
found. It remembers only what it has logged and since when an actor waits, so it may be ended and started again at any
moment. Invariants:
- There is never a second actor of a node: it has one name, and its directories have locks.
- A node never starts on an empty disk in place of a lost one. Only a `replace` by a person does that.
- A cluster's supervisor is the last actor to start and the first to stop.

An actor that Ray cannot make, because something else has the resources, is ended when another Ray node has its disk and
room. The spec that the supervisor was made with is the cluster's as long as it runs. The spec of a node's actor is
older if brokers came or went since.
"""

import asyncio
import logging
import os
import sys
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from functools import partial

import ray

from rayka.actors import node_handles, scaling_rooms
from rayka.actors.cluster_looks import (
    ClusterLooks,
    ControllerAsk,
    leftover_registrations,
    remove_leftover_marks,
)
from rayka.actors.disk_search import look_for_disks, place_found, search_notes, split_by_identity
from rayka.actors.drainer import DrainedCluster, Drainer
from rayka.actors.exit_watch import ExitWatch
from rayka.actors.names import (
    NAMESPACE,
    actor_name,
    running_node_ids,
    supervisor_name,
)
from rayka.actors.node_handles import is_starting
from rayka.actors.node_logs import begin_log
from rayka.actors.node_placement import (
    NodePlacement,
    able_ray_nodes,
    needs,
    shortage,
    wall_clock_ms,
)
from rayka.actors.ray_network import RayNetwork
from rayka.actors.ray_nodes import open_ray_nodes
from rayka.actors.ray_records import (
    PendingActor,
    PendingTimes,
    draining_ray_nodes,
    free_resources,
    has_process,
    pending_actors,
)
from rayka.actors.scaled_cluster import ScaledCluster
from rayka.actors.scaler import Scaler
from rayka.actors.scaling_planner import Forget, ScalingStatus, with_scaled_among
from rayka.actors.supervisor_handle import ClusterRecord, Identities
from rayka.config.cluster_config import ClusterSpec
from rayka.errors import RaykaError
from rayka.ids import Role, node_name
from rayka.node.controller_link import EventReports, Tell
from rayka.node.tasks import Repeats

_LOOK_S = 1.0
# The pause between searches while the same Ray nodes live; a new Ray node is searched at once.
_SEARCH_AGAIN_S = 10.0
_ANSWER_TIMEOUT_S = 2.0
_logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class _Search:
    """The result of a search for disks: the places of nodes, and the problems found."""

    placements: Mapping[int, NodePlacement]
    # How many Ray nodes were asked.
    asked_count: int
    # Disks that were refused, Ray nodes that were skipped, and why.
    notes: Collection[str]


class Supervisor:
    """The actor. `ray.remote` is applied in `rayka.actors.supervisor_handle`."""

    async def __init__(self, record: ClusterRecord) -> None:  # type: ignore[misc]
        begin_log(supervisor_name(record.spec.name))
        self._record = record
        self._spec = spec = record.spec
        # Held while nodes are made or ended.
        self._acting = asyncio.Lock()
        self._is_stopping = False
        self._repeats = Repeats(_logger)
        self._pending_times = PendingTimes()
        # Why nodes have no process, of those that it could not help.
        self._problems: dict[int, str] = {}
        self._move_again_s = 0.0
        self._scaler = _scaler(record, self._acting)
        self._drainer = Drainer(DrainedCluster(spec), self._acting)
        self._events = EventReports(ControllerAsk(RayNetwork(spec.name)), wall_clock_ms)
        self._events.tell("supervisor-began", (), f"process {os.getpid()} keeps the nodes {list(spec.roles)}")
        watch = ExitWatch(spec, self._events.tell)
        loop = asyncio.get_running_loop()
        works = [self._keep(), self._drainer.run(), watch.run(lambda: list(self._spec.roles))]
        works += [self._events.run()]
        works += [self._scaler.run()] if self._scaler is not None else []
        works += [_end_leftovers(spec, self._events.tell)]
        self._tasks = [loop.create_task(each) for each in works]
        for task in self._tasks:
            task.add_done_callback(self._on_done)

    def __repr__(self) -> str:
        return f"<Supervisor {self._spec.name}>"

    def pid(self) -> int:
        """Returns the supervisor's present process."""
        return os.getpid()

    async def record(self) -> ClusterRecord:
        """Returns the spec that the nodes are kept to, and the ids of their disks. A cluster that changes gets another
        supervisor, unless nodes come and go by the load.
        """
        spec = self._kept_spec
        if self._scaler is not None and not self._scaler.has_looked:
            spec = with_scaled_among(spec, await asyncio.to_thread(running_node_ids, spec.name))
        return ClusterRecord(spec, self._identities)

    def scaling(self) -> ScalingStatus | None:
        """Returns how many brokers there should be and are; None if they do not come and go, and before the
        first look.
        """
        return None if self._scaler is None else self._scaler.status(Role.BROKER)

    def coordinator_scaling(self) -> ScalingStatus | None:
        """Returns how many coordinators there should be and are, as `scaling`."""
        return None if self._scaler is None else self._scaler.status(Role.COORDINATOR)

    def draining(self) -> dict[int, int]:
        """Returns the nodes whose machines Ray drains, and when these go: a wall clock in ms, 0 if Ray does not say."""
        return dict(self._drainer.draining)

    def troubles(self) -> dict[int, str]:
        """Returns why nodes have no process, of those that the supervisor cannot help."""
        return dict(self._problems)

    async def stop(self) -> None:
        """Returns when no node is made any more. The caller ends the actor afterwards."""
        self._is_stopping = True
        # Waits for the nodes that are being made.
        async with self._acting:
            for task in self._tasks:
                task.cancel()

    @property
    def _kept_spec(self) -> ClusterSpec:
        return self._record.spec if self._scaler is None else self._scaler.spec

    @property
    def _identities(self) -> Identities:
        known = self._record.identities
        return known if self._scaler is None else self._scaler.identities(known)

    async def _keep(self) -> None:
        loop = asyncio.get_running_loop()
        searched: tuple[Collection[int], Collection[str]] = ((), ())
        again_s = 0.0
        while not self._is_stopping:
            async with self._acting:
                self._spec = self._kept_spec
                running = await asyncio.to_thread(running_node_ids, self._spec.name)
                missing = tuple(
                    each
                    for each in self._spec.roles
                    if each not in running and (self._scaler is None or self._scaler.knows_disks_of(each))
                )
                pending = await asyncio.to_thread(_pending, self._spec)
                without_process = {*missing, *pending}
                ray_nodes = await asyncio.to_thread(open_ray_nodes) if without_process else {}
                if not without_process:
                    self._repeats = Repeats(_logger)
                self._problems = {k: problem for k, problem in self._problems.items() if k in without_process}
                situation = (missing, list(ray_nodes))
                if missing and (situation != searched or loop.time() >= again_s):
                    again_s = loop.time() + _SEARCH_AGAIN_S
                    await self._bring_back(missing, ray_nodes)
                searched = situation
                await self._free_stuck(pending, ray_nodes)
            await asyncio.sleep(_LOOK_S)

    async def _bring_back(
        self, missing: Collection[int], ray_nodes: Mapping[str, Mapping[str, float]]
    ) -> None:
        before = await asyncio.to_thread(node_handles.last_homes, self._spec.name, missing)
        found = await self._search(missing, ray_nodes)
        for node_id in missing:
            if node_id in found.placements:
                ray_node_id = found.placements[node_id].ray_node_id
                reason = _reason(before.get(node_id), ray_nodes)
                _logger.info("%s is made on Ray node %s: %s", node_name(node_id), ray_node_id, reason)
                self._events.tell("node-made", (node_id,), f"it is made on Ray node {ray_node_id}: {reason}")
                self._problems.pop(node_id, None)
                await asyncio.to_thread(node_handles.create, found.placements[node_id])
            else:
                lacking = (
                    f"none of {found.asked_count} Ray nodes with {needs(self._spec, node_id)} has its disk"
                )
                message = f"{node_name(node_id)} has no actor, and {lacking}"
                self._repeats.failed(message, message)
                problem = "; ".join((lacking, *found.notes))
                if node_id not in self._problems:
                    self._events.tell("node-missing", (node_id,), f"it has no process: {problem}")
                self._problems[node_id] = problem

    async def _free_stuck(
        self, pending: Mapping[int, PendingActor], ray_nodes: Mapping[str, Mapping[str, float]]
    ) -> None:
        """Ends actors that Ray cannot make where they are pinned, if it can elsewhere. The next look finds them
        missing.

        Does nothing while a command starts the cluster: the command waits for the actors that it has made.
        """
        now_s = asyncio.get_running_loop().time()
        waits = self._pending_times.overdue(pending, list(ray_nodes), now_s)
        free = await asyncio.to_thread(free_resources) if waits else {}
        stuck: list[int] = []
        for node_id, wait_s in waits.items():
            ray_node_id = pending[node_id].ray_node_id
            lacking = shortage(self._spec, node_id, free.get(ray_node_id, {}))
            if ray_node_id and free and lacking:
                stuck.append(node_id)
                where = f"Ray node {ray_node_id}, which has {lacking}"
                self._repeats.failed(
                    (node_id, ray_node_id),
                    f"Ray has not made {node_name(node_id)} for {wait_s:.0f} s: it is pinned to {where}",
                )
                self._problems[node_id] = f"Ray waits for {where}"
        can_move = [
            each for each in stuck if any(not shortage(self._spec, each, has) for has in free.values())
        ]
        if not can_move or now_s < self._move_again_s:
            return
        if await asyncio.to_thread(is_starting, self._spec.name):
            return
        self._move_again_s = now_s + _SEARCH_AGAIN_S
        found = await self._search(can_move, ray_nodes)
        for node_id, placement in found.placements.items():
            if not shortage(self._spec, node_id, free.get(placement.ray_node_id, {})):
                await asyncio.to_thread(self._end_pending, node_id, pending[node_id].ray_node_id)

    def _end_pending(self, node_id: int, ray_node_id: str) -> None:
        handle = node_handles.find(self._spec.name, node_id)
        if handle is not None and not has_process(handle):
            _logger.warning(
                "%s was pinned to Ray node %s, where Ray cannot make it; it is placed again",
                node_name(node_id),
                ray_node_id,
            )
            node_handles.end(handle)

    async def _search(
        self, node_ids: Collection[int], ray_nodes: Mapping[str, Mapping[str, float]]
    ) -> "_Search":
        """Looks for the disks of nodes without a process on all Ray nodes that can have one of them."""
        there = [each for each in self._spec.roles if each not in node_ids]
        handles = await asyncio.to_thread(node_handles.find_all, self._spec.name, there)
        processes = await node_handles.processes(handles, _ANSWER_TIMEOUT_S)
        homes = {node_id: process.ray_node_id for node_id, process in processes.items()}
        able = able_ray_nodes(self._spec, node_ids, ray_nodes)
        answers = await asyncio.to_thread(look_for_disks, self._spec, node_ids, able)
        kept, refused = split_by_identity(self._spec, answers.results, self._identities)
        notes = search_notes(refused, answers.failures)
        drained = await asyncio.to_thread(draining_ray_nodes)
        notes += [f"Ray node {each} takes no node: Ray drains it" for each in drained]
        for each in notes:
            self._repeats.failed(each, f"{self!r}: {each}")
        free = await asyncio.to_thread(free_resources)
        placements = place_found(self._spec, node_ids, kept, ray_nodes, homes, free=free)
        return _Search(placements, len(able), notes)

    def _on_done(self, task: asyncio.Task[None]) -> None:
        """Ends the process after an unexpected exception: Ray starts another one, but lets tasks die in silence."""
        error = None if task.cancelled() else task.exception()
        if error is not None:
            _logger.critical("%s ends: an exception that no code expected", self, exc_info=error)
            sys.stderr.flush()
            os._exit(1)


def _scaler(record: ClusterRecord, acting: asyncio.Lock) -> Scaler | None:
    """Makes the scaler if nodes come and go by the spec. It looks as often as brokers report."""
    if not record.spec.ranges:
        return None
    look_s = max(_LOOK_S, record.spec.config.broker_load_report_interval_ms / 1000)
    return Scaler(record.spec, ScaledCluster(record.spec, ClusterLooks(record.spec)), look_s, acting)


async def _end_leftovers(spec: ClusterSpec, tell: Tell) -> None:
    """Ends remains of scaling by an earlier spec that no planner looks after now: rooms of nodes that were to come,
    registrations of nodes that have gone, and marks of nodes that were to go.

    Once is enough, as soon as Ray and a controller answer: the next spec has another supervisor.
    """
    looks = ClusterLooks(spec)
    for end in (
        partial(_drop_leftover_rooms, spec, tell),
        partial(_forget_leftovers, looks, spec, tell),
        partial(_remove_leftover_marks, looks, spec, tell),
    ):
        while True:
            try:
                await end()
                break
            except (RaykaError, TimeoutError, ray.exceptions.RayError) as error:
                _logger.info("not known yet what an earlier specification left behind: %r", error)
            await asyncio.sleep(_SEARCH_AGAIN_S)


async def _drop_leftover_rooms(spec: ClusterSpec, tell: Tell) -> None:
    dropped = await asyncio.to_thread(scaling_rooms.drop_leftover, spec)
    if dropped:
        tell("scale-out-stopped", dropped, "the specification lets none come by the load")


async def _forget_leftovers(looks: ClusterLooks, spec: ClusterSpec, tell: Tell) -> None:
    running = await asyncio.to_thread(running_node_ids, spec.name)
    for each in await leftover_registrations(looks.ask, spec, running):
        step = Forget(each, "it was to go by the load, and holds nothing")
        await ScaledCluster(spec, looks).take(step)
        tell("scale-in-ended", [each], step.reason)


async def _remove_leftover_marks(looks: ClusterLooks, spec: ClusterSpec, tell: Tell) -> None:
    marked = await remove_leftover_marks(looks.ask, spec.ranges)
    if marked:
        tell("scale-in-stopped", marked, "the specification lets none go by the load")


def _pending(spec: ClusterSpec) -> dict[int, PendingActor]:
    actors = pending_actors(NAMESPACE)
    names = {each: actor_name(spec.name, each) for each in spec.roles}
    return {each: actors[name] for each, name in names.items() if name in actors}


def _reason(before: str | None, ray_nodes: Collection[str]) -> str:
    """Explains why a node has no actor whose last process, as Ray remembers, was on the Ray node `before`."""
    if before is None:
        return "Ray remembers no process of it"
    if before in ray_nodes:
        return f"its actor, which was on Ray node {before}, was ended"
    return f"Ray node {before}, where it was, is gone, or Ray drains it"
