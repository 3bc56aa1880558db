"""The supervisor of one cluster, an actor: keeps the node actors as the spec says.

Ray restarts a process that ended, on the same Ray node. When the Ray node itself is gone, so are the actors pinned to
it, for good: a machine that comes back is another Ray node to Ray. The supervisor then finds the disk, by its
`meta.properties`, on whatever Ray node has it, and makes the actor there. It also watches for the exits of processes.

Level-triggered, with nothing of its own to remember: each look compares the spec with the actors there are and the
directories that are found, so it may be ended and started again at any moment. Invariants: never a second actor of a
node (one name, and the locks of its directories); never a node on an empty disk in place of a lost one, which only a
`replace` by a person makes. A cluster's supervisor is the last actor to start and the first to stop. The spec it was
made with is the cluster's as long as it runs: that of a node's actor is older where brokers came or went since.
"""

import asyncio
import logging
import os
import sys
from collections.abc import Collection, Mapping

from rayka.actors import launch
from rayka.actors.cluster_record import ClusterRecord
from rayka.actors.exit_watch import ExitWatch
from rayka.actors.found_directories import FoundDirectory, look_at
from rayka.actors.identities import Seen, sift
from rayka.actors.names import (
    formatted_directories,
    nodes_with,
    running_node_ids,
    supervisor_name,
    wanted_node_ids,
)
from rayka.actors.node_logs import begin_log
from rayka.actors.on_ray_node import Answers, live_ray_nodes, run_on_all
from rayka.actors.placement import Placement, Site, able_ray_nodes, is_able, needs, place
from rayka.config import ClusterSpec
from rayka.ids import Role, node_name

_LOOK_S = 1.0
_SEARCH_AGAIN_S = 10.0  # while the same Ray nodes live; at once when another one comes
_ANSWER_TIMEOUT_S = 2.0
# A Ray node that is slow has a quarter of it, when others have answered: a skipped one may have the only free place.
_LOOK_TIMEOUT_S = 60.0
_logger = logging.getLogger(__name__)


class Supervisor:
    """The actor; `ray.remote` is applied in `rayka.actors.launch`."""

    async def __init__(self, record: ClusterRecord) -> None:  # type: ignore[misc]
        begin_log(supervisor_name(record.spec.name))
        self._record = record
        self._spec = spec = record.spec
        self._acting = asyncio.Lock()
        self._is_stopping = False
        watch = ExitWatch(spec, nodes_with(spec, Role.BROKER))
        loop = asyncio.get_running_loop()
        self._tasks = [loop.create_task(self._keep()), loop.create_task(watch.run())]
        for task in self._tasks:
            task.add_done_callback(self._on_done)

    def __repr__(self) -> str:
        return f"<Supervisor {self._spec.name}>"

    def pid(self) -> int:
        """The process that it is now."""
        return os.getpid()

    def record(self) -> ClusterRecord:
        """What it keeps the nodes as, on which disks; a cluster that changes gets another supervisor."""
        return self._record

    async def stop(self) -> None:
        """Returns when nothing is made any more. The actor is to be ended then."""
        self._is_stopping = True
        async with self._acting:  # what is being made has been made
            for task in self._tasks:
                task.cancel()

    async def _keep(self) -> None:
        loop = asyncio.get_running_loop()
        searched: tuple[Collection[int], Collection[str]] = ((), ())
        again_s = 0.0
        while not self._is_stopping:
            async with self._acting:
                missing = await asyncio.to_thread(_missing, self._spec)
                ray_nodes = await asyncio.to_thread(live_ray_nodes) if missing else {}
                situation = (missing, list(ray_nodes))
                if missing and (situation != searched or loop.time() >= again_s):
                    again_s = loop.time() + _SEARCH_AGAIN_S
                    await self._bring_back(missing, ray_nodes)
                searched = situation
            await asyncio.sleep(_LOOK_S)

    async def _bring_back(
        self, missing: Collection[int], ray_nodes: Mapping[str, Mapping[str, float]]
    ) -> None:
        name = self._spec.name
        there = [each for each in wanted_node_ids(self._spec) if each not in missing]
        handles = {each: await asyncio.to_thread(launch.find, name, each) for each in there}
        processes = await launch.processes(handles, _ANSWER_TIMEOUT_S)
        homes = {node_id: process.ray_node_id for node_id, process in processes.items()}
        able = able_ray_nodes(self._spec, missing, ray_nodes)
        answers = await asyncio.to_thread(_find_disks, self._spec, missing, list(able))
        found, refused = sift(self._spec, answers.results, self._record.identities)
        self._say(refused, answers.failures)
        placements = place_found(self._spec, missing, found, ray_nodes, homes)
        for node_id in missing:
            if node_id in placements:
                ray_node_id = placements[node_id].ray_node_id
                _logger.info("%s has no actor; made on Ray node %s", node_name(node_id), ray_node_id)
                await asyncio.to_thread(launch.create, placements[node_id])
            else:
                _logger.warning(
                    "%s has no actor, and none of %d Ray nodes with %s has its disk",
                    node_name(node_id),
                    len(able),
                    needs(self._spec, node_id),
                )

    def _say(self, refused: Collection[str], skipped: Mapping[str, str]) -> None:
        for each in refused:
            _logger.warning("%r: refused: %s", self, each)
        for ray_node_id, reason in skipped.items():
            _logger.warning("%r: Ray node %s was skipped: %s", self, ray_node_id, reason)

    def _on_done(self, task: asyncio.Task[None]) -> None:
        """Ray starts another process after one that ended itself, and lets tasks die in silence."""
        error = None if task.cancelled() else task.exception()
        if error is not None:
            _logger.critical("%s ends: an exception that no code expected", self, exc_info=error)
            sys.stderr.flush()
            os._exit(1)


def place_found(
    spec: ClusterSpec,
    missing: Collection[int],
    found: Seen,
    ray_nodes: Mapping[str, Mapping[str, float]],
    homes: Mapping[int, str],
) -> dict[int, Placement]:
    """Those of the missing nodes whose disk was found where there are the resources that they ask for.

    `found` is what was found on each Ray node of the cluster's disks, `homes` where the other nodes live.
    """
    sites = {
        ray_node_id: Site(ray_nodes[ray_node_id], [path for path, each in there.items() if each.is_formatted])
        for ray_node_id, there in found.items()
    }
    placements: dict[int, Placement] = {}
    for node_id in missing:
        able = {k: each for k, each in sites.items() if _can_have(spec, node_id, each)}
        if able:
            settled = {**homes, **{id: each.ray_node_id for id, each in placements.items()}}
            placements |= place(spec, able, [node_id], settled)
    return placements


def _can_have(spec: ClusterSpec, node_id: int, site: Site) -> bool:
    has_disk = not set(formatted_directories(spec, node_id)).isdisjoint(site.own)
    return has_disk and is_able(spec, node_id, site.resources)


def _missing(spec: ClusterSpec) -> tuple[int, ...]:
    running = running_node_ids(spec.name)
    return tuple(each for each in wanted_node_ids(spec) if each not in running)


def _find_disks(
    spec: ClusterSpec, node_ids: Collection[int], ray_nodes: Collection[str]
) -> Answers[dict[str, FoundDirectory]]:
    directories = [path for each in node_ids for path in formatted_directories(spec, each)]
    return run_on_all(ray_nodes, _LOOK_TIMEOUT_S, look_at, directories)
