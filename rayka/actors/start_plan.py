"""Where the nodes of a start go, on which disks, and what is formatted for them first.

All Ray nodes that have what the spec asks for are looked at, at the same time; one that does not answer is skipped, and
named where something is missing. Disks that are not the cluster's are refused, and named, too. A cluster is made anew
only when no Ray node has anything of it, whatever resources it has.
"""

import logging
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from random import SystemRandom

from rayka.actors.cluster_record import Identities
from rayka.actors.format_jobs import format_brokers, format_controllers, prepare_controllers
from rayka.actors.formatting import FormatPlan, Replacement, plan_formatting, refuse_undeclared
from rayka.actors.found_directories import NOTHING, Found, FoundDirectory, look_around
from rayka.actors.identities import Seen, learn, sift
from rayka.actors.names import cluster_directories, formatted_directories
from rayka.actors.node_placement import Placement, Site, able_ray_nodes, place
from rayka.actors.on_ray_node import Answers, open_ray_nodes, run_on, run_on_all
from rayka.actors.ray_records import draining_ray_nodes, free_resources
from rayka.config.cluster_config import ClusterSpec
from rayka.errors import RaykaError, StorageError
from rayka.ids import node_name

_LOOK_TIMEOUT_S = 60.0
_logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class StartPlan:
    """The nodes in their places, what is to be formatted, and which disks are the cluster's once it is."""

    placements: Mapping[int, Placement]
    formats: FormatPlan
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
    """These nodes in their places; those in `replace` start empty, and so do those brokers in `new` that have no
    directory yet: the cluster never had them.

    `homes` are the Ray nodes of nodes that run, `known` the disks that are on record. Nodes of the spec that are not in
    `node_ids` run, or are waited for, so their disks may be missing. Raises what `plan_formatting`, `place` and, where
    no node runs, `refuse_undeclared` raise; StorageError where a path is taken by a disk that is not the cluster's.
    """
    ray_nodes = open_ray_nodes()
    answers = _look(spec, ray_nodes)
    answers.failures.update(dict.fromkeys(draining_ray_nodes(), "Ray drains it, so no node is made there"))
    seen = answers.results
    identities = learn(spec, seen, known, homes)
    kept, refused = sift(spec, seen, identities)
    with _naming(refused, answers.failures):
        found = _merged(kept)
        if not homes:
            refuse_undeclared(spec, found)
        awaited = [each for each in spec.roles if each not in node_ids]
        empty = [each for each in new if not _is_formatted(spec, each, found)]
        formats = plan_formatting(spec, found, (*replace, *empty), SystemRandom(), awaited)
        placements = place(spec, _sites(ray_nodes, seen, kept), node_ids, homes)
        _refuse_taken(spec, formats, placements, seen, refused)
    return StartPlan(placements, formats, _identities_after(spec, formats, placements, seen, identities))


def execute(plan: StartPlan) -> None:
    """One job for each Ray node and step; a step begins when the one before it has ended everywhere."""
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
        given = [(placements[each], formats.controllers[each]) for each in node_ids]
        run_on(ray_node_id, format_controllers, given)


def _by_ray_node(node_ids: Collection[int], placements: Mapping[int, Placement]) -> dict[str, list[int]]:
    found: dict[str, list[int]] = {}
    for each in node_ids:
        found.setdefault(placements[each].ray_node_id, []).append(each)
    return found


# ---- Looking -------------------------------------------------------------------------------------------------------


def _look(
    spec: ClusterSpec, ray_nodes: Mapping[str, Mapping[str, float]]
) -> Answers[dict[str, FoundDirectory]]:
    node_ids = spec.roles
    directories = [path for each in node_ids for path in formatted_directories(spec, each)]
    parents = cluster_directories(spec)
    able = able_ray_nodes(spec, node_ids, ray_nodes)
    answers = run_on_all(able, _LOOK_TIMEOUT_S, look_around, directories, parents)
    if not any(answers.results.values()):
        # The spec may have asked for other resources once: a cluster that is there must not be made a second time.
        others = [each for each in ray_nodes if each not in able]
        there = run_on_all(others, _LOOK_TIMEOUT_S, look_around, directories, parents)
        answers.results.update(there.results)
    return answers


def _merged(seen: Seen) -> dict[str, FoundDirectory]:
    """The directories wherever they are; a formatted one counts before one of the same path that is not."""
    found: dict[str, FoundDirectory] = {}
    for there in seen.values():
        for path, each in there.items():
            if path not in found or (each.is_formatted and not found[path].is_formatted):
                found[path] = each
    return found


def _is_formatted(spec: ClusterSpec, node_id: int, found: Found) -> bool:
    return any(found.get(path, NOTHING).is_formatted for path in formatted_directories(spec, node_id))


def _sites(ray_nodes: Mapping[str, Mapping[str, float]], seen: Seen, kept: Seen) -> dict[str, Site]:
    free = free_resources()
    return {
        ray_node_id: Site(
            ray_nodes[ray_node_id],
            free=free.get(ray_node_id),
            own=[path for path, each in kept[ray_node_id].items() if each.is_begun],
            foreign=[path for path in found if path not in kept[ray_node_id]],
        )
        for ray_node_id, found in seen.items()
    }


# ---- Refusals and records ------------------------------------------------------------------------------------------


@contextmanager
def _naming(refused: Collection[str], skipped: Mapping[str, str]) -> Iterator[None]:
    """An error of the block says which disks were refused and which Ray nodes were not looked at, and why; without an
    error they are logged.
    """
    notes = [f"refused: {each}" for each in refused]
    notes += [f"Ray node {ray_node_id} was skipped: {reason}" for ray_node_id, reason in skipped.items()]
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
    placements: Mapping[int, Placement],
    seen: Seen,
    refused: Collection[str],
) -> None:
    """Raises StorageError where what is there would be formatted over, and where a cluster would be made beside
    disks that are refused.
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
    placements: Mapping[int, Placement],
    seen: Seen,
    before: Identities,
) -> Identities:
    """With the nodes that are formatted; a directory that an interrupted start has formatted keeps its id."""
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
