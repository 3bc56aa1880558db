"""The supervisor's actor made and ended; the class itself is in `supervisor`."""

import asyncio
import sys
from collections.abc import Collection, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple
from uuid import UUID

import ray
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from rayka.actors import node_handles
from rayka.actors.names import NAMESPACE, await_gone, named, supervisor_name
from rayka.actors.ray_nodes import own_ray_node_id
from rayka.actors.scaling.planner import ScalingStatus
from rayka.config.cluster_config import ClusterSpec
from rayka.errors import UnavailableError

# What the supervisor has on record of its cluster. Clients and commands hold it too, so the module imports no code of
# nodes or disks.


@dataclass(frozen=True, slots=True)
class Identities:
    """The cluster's id, empty while none is known, and the directory ids of each node, as it was formatted last."""

    cluster_id: str = ""
    directory_ids: Mapping[int, frozenset[UUID]] = field(default_factory=dict)

    def with_nodes(self, directory_ids: Mapping[int, Collection[UUID]], cluster_id: str = "") -> "Identities":
        """The same, but for nodes that were formatted since."""
        formatted = {each: frozenset(ids) for each, ids in directory_ids.items()}
        return Identities(self.cluster_id or cluster_id, {**self.directory_ids, **formatted})

    def without(self, node_id: int) -> "Identities":
        """The same without a node that has gone for good."""
        return replace(self, directory_ids={k: v for k, v in self.directory_ids.items() if k != node_id})


@dataclass(frozen=True, slots=True)
class ClusterRecord:
    """What the supervisor knows of its cluster: the spec that is in force, and which disks are its own."""

    spec: ClusterSpec
    identities: Identities


_STOP_TIMEOUT_S = 15.0
_POLL_S = 0.02
_MEMORY = 1  # bytes: of an actor that asks for nothing Ray ignores a soft affinity


def create(record: ClusterRecord) -> Any:
    """The cluster's supervisor; one that is there is left as it is. Returns at once: construction goes on.

    It is pinned nowhere, so that Ray starts it again on another machine when its own has gone. As long as the caller's
    is there it runs there: for it Ray would keep a machine that came by the load. It asks for no CPU: if there is no
    room for it, room is to be made for the nodes. It asks for a byte, or Ray would choose any machine.
    """
    from rayka.actors.supervisor import Supervisor

    return (
        ray.remote(Supervisor)
        .options(
            name=supervisor_name(record.spec.name),
            namespace=NAMESPACE,
            lifetime="detached",
            get_if_exists=True,
            max_restarts=-1,
            max_task_retries=0,
            num_cpus=0,
            memory=_MEMORY,
            scheduling_strategy=NodeAffinitySchedulingStrategy(own_ray_node_id(), soft=True),
            # It may be restarted on a Ray node that joined later, whose workers run another Python.
            runtime_env={"py_executable": sys.executable},
        )
        .remote(record)
    )


async def await_made(handle: Any, timeout_s: float) -> None:
    """Waits until the supervisor lives. Raises UnavailableError when Ray could not make it, or not in time."""
    try:
        async with asyncio.timeout(timeout_s):
            await _answer(handle.pid)
    except (TimeoutError, ray.exceptions.RayError) as error:
        raise UnavailableError(
            f"Ray did not make the supervisor within {timeout_s:g} s: {error!r}"
        ) from error


def find(cluster_name: str) -> Any | None:
    """The handle of a cluster's supervisor; None when there is none."""
    return named(supervisor_name(cluster_name))


async def kept_record(cluster_name: str, timeout_s: float) -> ClusterRecord | None:
    """What the supervisor of the running cluster knows of it; None where there is no supervisor.

    Raises UnavailableError when it does not say so in time.
    """
    handle = await asyncio.to_thread(find, cluster_name)
    if handle is None:
        return None
    try:
        async with asyncio.timeout(timeout_s):
            record: ClusterRecord = await _answer(handle.record)
            return record
    except (TimeoutError, ray.exceptions.RayError) as error:
        raise UnavailableError(
            f"{supervisor_name(cluster_name)} did not say within {timeout_s:g} s what it keeps: {error!r}; Ray may be "
            "restarting it: try again"
        ) from error


async def _answer(method: Any) -> Any:
    """What the supervisor answers, as soon as it runs: Ray makes it again elsewhere when its machine is lost, or cannot
    run rayka.
    """
    while True:
        with suppress(ray.exceptions.ActorUnavailableError):
            return await method.remote()
        await asyncio.sleep(_POLL_S)


class SupervisorReport(NamedTuple):
    """What a supervisor says of its cluster, as far as it says so.

    `problems`: why it could not bring nodes back, by node. `scaling`: how many brokers there should be and are, None
    where they do not come and go; `coordinator_scaling`: the same of coordinators. `draining`: the nodes whose machines
    Ray drains, and when these go, a wall clock in ms or 0.
    """

    problems: Mapping[int, str]
    scaling: ScalingStatus | None
    coordinator_scaling: ScalingStatus | None
    draining: Mapping[int, int]


async def report(cluster_name: str, timeout_s: float) -> SupervisorReport:
    """What the supervisor of the running cluster says in that time; empty where there is none."""
    handle = await asyncio.to_thread(find, cluster_name)
    # The names that the actor's methods have in every version.
    methods = ("troubles", "scaling", "coordinator_scaling", "draining")
    told = await asyncio.gather(*(_told(handle, each, timeout_s) for each in methods))
    return SupervisorReport(told[0] or {}, told[1], told[2], told[3] or {})


async def _told(handle: Any | None, method: str, timeout_s: float) -> Any:
    """What the supervisor says; None where it does not answer in time, or cannot: one that was made by an older version
    may have no such method, and `status` is to describe that cluster too.
    """
    if handle is None:
        return None
    try:
        async with asyncio.timeout(timeout_s):
            return await getattr(handle, method).remote()
    except (TimeoutError, AttributeError, ray.exceptions.RayError):
        return None


async def replace_supervisor(record: ClusterRecord, timeout_s: float) -> None:
    """Puts a supervisor that keeps this in the place of the one there is."""
    await stop(record.spec.name)
    await await_made(await asyncio.to_thread(create, record), timeout_s)


async def stop(cluster_name: str) -> None:
    """Ends the supervisor, if there is one, when it has finished what it is at: from then on no node is made."""
    handle = await asyncio.to_thread(find, cluster_name)
    if handle is None:
        return
    try:
        async with asyncio.timeout(_STOP_TIMEOUT_S):
            await handle.stop.remote()
    except (TimeoutError, ray.exceptions.RayError):
        pass  # its process is being restarted, or its Ray node is gone
    await asyncio.to_thread(node_handles.end, handle)
    await asyncio.to_thread(await_gone, supervisor_name(cluster_name))


def end(cluster_name: str) -> None:
    """Ends the supervisor, if there is one, at once: for one whose nodes are about to be ended, too."""
    handle = find(cluster_name)
    if handle is not None:
        node_handles.end(handle)
