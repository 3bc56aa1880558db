"""The actors of a whole cluster, made, asked and stopped from a command's thread.

Waits are on the IO thread. Steps that must happen in any case, after Ctrl-C too, happen in the caller's thread.
"""

import asyncio
import logging
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from rayka.actors import node_handles, supervisor_handle
from rayka.actors.cluster_description import UNREACHABLE, describe_nodes
from rayka.actors.names import running_node_ids
from rayka.actors.node_logs import keep_logs
from rayka.actors.node_placement import NodePlacement, log_places
from rayka.actors.ray_network import RayNetwork
from rayka.actors.ray_nodes import run_on
from rayka.actors.supervisor_handle import ClusterRecord
from rayka.client import io_thread
from rayka.client.io_thread import Work
from rayka.errors import RaykaError, UnavailableError
from rayka.protocol.membership import NodeState

if TYPE_CHECKING:
    from rayka.actors.shell import NodeProcess

ResultT = TypeVar("ResultT")
logger = logging.getLogger(__name__)
ANSWER_TIMEOUT_S = 15.0
# The recovery of a large log takes its time.
START_TIMEOUT_S = 300.0
MAKE_TIMEOUT_S = 90.0
_SLACK_S = 30.0
_POLL_S = 0.05


def wait_for(work: Work[ResultT], timeout_s: float, *, slack_s: float = _SLACK_S) -> ResultT:
    """Returns the result of work that has this timeout itself. The wait is longer by `slack_s`, because the work's own
    error says more.

    Raises UnavailableError when the work does not end, as a question that Ray never answers.
    """
    return io_thread.wait_for(work, timeout_s * 1000, caller="Ray", slack_s=slack_s)


def ask_ray(question: Callable[..., ResultT], *arguments: Any) -> ResultT:
    """Calls a function that asks Ray and waits for the answer. Raises UnavailableError when Ray does not answer."""

    async def answer() -> ResultT:
        return await asyncio.to_thread(question, *arguments)

    return wait_for(answer, ANSWER_TIMEOUT_S)


def bring_up(record: ClusterRecord, placements: Collection[NodePlacement]) -> None:
    """Makes the actors, the supervisor last, and waits until all nodes of the cluster run. If one does not run, ends
    the actors that it made.
    """
    name = record.spec.name
    handles: dict[int, Any] = {}

    async def await_all(supervisor: Any) -> None:
        await node_handles.await_made(name, handles, MAKE_TIMEOUT_S)
        await supervisor_handle.await_made(supervisor, MAKE_TIMEOUT_S)
        network = RayNetwork(name)
        await _await_running(network, await network.node_ids())

    had_supervisor = supervisor_handle.find(name) is not None
    try:
        for placement in placements:
            handles[placement.node_id] = node_handles.create(placement)
        supervisor = supervisor_handle.create(record)
        if placements or not had_supervisor:
            wait_for(partial(await_all, supervisor), START_TIMEOUT_S)
    except BaseException:
        if not had_supervisor:
            supervisor_handle.end(name)
        _end(handles)
        if handles:
            # A failure to keep logs must not replace the error of the start.
            with suppress(RaykaError):
                ask_ray(keep_logs, log_places(name, placements))
        raise


def kept_record(cluster_name: str) -> ClusterRecord | None:
    """Returns the spec in force and the cluster's disks; None if there is no supervisor, because a start or stop was
    interrupted. Raises UnavailableError when the supervisor does not answer in time.
    """
    return wait_for(partial(supervisor_handle.kept_record, cluster_name, ANSWER_TIMEOUT_S), ANSWER_TIMEOUT_S)


def replace_supervisor(record: ClusterRecord) -> None:
    """Replaces the supervisor by one with this record."""
    wait_for(partial(supervisor_handle.replace_supervisor, record, MAKE_TIMEOUT_S), MAKE_TIMEOUT_S)


def process_of(handle: Any) -> "NodeProcess | None":
    """Returns the actor's process and placement; None if the actor does not answer in time."""
    return wait_for(partial(node_handles.process_of, handle, ANSWER_TIMEOUT_S), ANSWER_TIMEOUT_S)


def processes_of(
    cluster_name: str, *, besides: Collection[int] = ()
) -> "tuple[dict[int, Any], dict[int, NodeProcess]]":
    """Returns the actors of the cluster's nodes but `besides`, and the processes of those that answer."""

    def find_others() -> dict[int, Any]:
        others = [each for each in running_node_ids(cluster_name) if each not in besides]
        return node_handles.find_all(cluster_name, others)

    handles = ask_ray(find_others)
    return handles, wait_for(partial(node_handles.processes, handles, ANSWER_TIMEOUT_S), ANSWER_TIMEOUT_S)


def stop_nodes(cluster_name: str, handles: Mapping[int, Any], processes: "Mapping[int, NodeProcess]") -> None:
    """Stops these nodes under control and ends their actors. Waits until their known processes have gone, and their
    locks with them.
    """
    wait_for(partial(node_handles.stop, cluster_name, handles), node_handles.STOP_TIMEOUT_S)
    for process in (processes[each] for each in handles if each in processes):
        run_on(process.ray_node_id, node_handles.await_exit, process.pid)


def add_nodes(record: ClusterRecord, placements: Collection[NodePlacement], added: Collection[int]) -> None:
    """Makes the actors that the running cluster lacks, waits until `added` run, and replaces the supervisor by one with
    this record. If a node does not run, ends the actors that it made.

    The other nodes may be away: a cluster that lost a broker may well get another one.
    """
    name = record.spec.name
    handles: dict[int, Any] = {}

    async def await_added() -> None:
        await node_handles.await_made(name, handles, MAKE_TIMEOUT_S)
        await _await_running(RayNetwork(name), sorted({*handles, *added}))

    try:
        for placement in placements:
            handles[placement.node_id] = node_handles.create(placement)
        wait_for(await_added, START_TIMEOUT_S)
    except BaseException:
        _end(handles)
        raise
    replace_supervisor(record)


def _end(handles: Mapping[int, Any]) -> None:
    for handle in handles.values():
        node_handles.end(handle)


async def _await_running(network: RayNetwork, node_ids: Collection[int]) -> None:
    """Waits until these nodes run. Raises UnavailableError for a node that failed, or does not run in time."""
    loop = asyncio.get_running_loop()
    deadline = loop.time() + START_TIMEOUT_S
    # By node, the state that was logged last: the recovery of a large log takes minutes.
    known: dict[int, str] = {}
    while True:
        nodes = await describe_nodes(network, node_ids)
        failed = [f"{node.actor_name}: {node.detail}" for node in nodes if node.state == NodeState.FAILED]
        if failed:
            raise UnavailableError(f"cluster {network.cluster_name!r} did not start: {'; '.join(failed)}")
        for each in nodes:
            if each.state not in (known.get(each.node_id), UNREACHABLE):
                known[each.node_id] = each.state
                running = sum(state == NodeState.RUNNING for state in known.values())
                logger.info("%s: %s (%d of %d run)", each.actor_name, each.state, running, len(nodes))
        if all(node.state == NodeState.RUNNING for node in nodes):
            return
        if loop.time() > deadline:
            states = "; ".join(f"{node.actor_name} is {node.state} {node.detail}".strip() for node in nodes)
            raise UnavailableError(
                f"cluster {network.cluster_name!r} was not up in {START_TIMEOUT_S:g} s: {states}"
            )
        await asyncio.sleep(_POLL_S)
