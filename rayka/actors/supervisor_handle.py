"""The supervisor's actor, made, asked and ended, and the record that it keeps of its cluster.

The class of the actor is in `supervisor`. Clients and commands hold records too, so this module imports no code of
nodes or disks.
"""

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
from rayka.actors.scaling_planner import ScalingStatus
from rayka.config.cluster_config import ClusterSpec
from rayka.errors import UnavailableError


@dataclass(frozen=True, slots=True)
class Identities:
    """The ids of the cluster and its disks."""

    # Empty while no id is known.
    cluster_id: str = ""
    # The directory ids of each node, as it was formatted last.
    directory_ids: Mapping[int, frozenset[UUID]] = field(default_factory=dict)

    def with_nodes(self, directory_ids: Mapping[int, Collection[UUID]], cluster_id: str = "") -> "Identities":
        """Returns the identities with the ids of nodes that were formatted since."""
        formatted = {each: frozenset(ids) for each, ids in directory_ids.items()}
        return Identities(self.cluster_id or cluster_id, {**self.directory_ids, **formatted})

    def without(self, node_id: int) -> "Identities":
        """Returns the identities without a node that has gone for good."""
        return replace(self, directory_ids={k: v for k, v in self.directory_ids.items() if k != node_id})


@dataclass(frozen=True, slots=True)
class ClusterRecord:
    """The record of a cluster that its supervisor keeps."""

    # The spec in force.
    spec: ClusterSpec
    # The ids of the cluster's disks.
    identities: Identities


_STOP_TIMEOUT_S = 15.0
_POLL_S = 0.02
# In bytes: Ray ignores the soft affinity of an actor that asks for nothing.
_MEMORY = 1


def create(record: ClusterRecord) -> Any:
    """Makes the cluster's supervisor; leaves one that is there as it is. Returns at once: construction goes on.

    The supervisor is pinned nowhere, so that Ray starts it again on another machine when its own has gone. It stays on
    the caller's machine as long as that is there: Ray would keep a machine that came by the load for the supervisor's
    sake. It asks for no CPU, so that it runs where there is no room, and can make room for the nodes. It asks for a
    byte, because Ray would choose any machine otherwise.
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
    """Returns the handle of a cluster's supervisor; None if there is none."""
    return named(supervisor_name(cluster_name))


async def kept_record(cluster_name: str, timeout_s: float) -> ClusterRecord | None:
    """Returns the record of the running cluster's supervisor; None if there is no supervisor.

    Raises UnavailableError when the supervisor does not answer in time.
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
    """Returns the supervisor's answer as soon as it runs. Ray makes it again elsewhere when its machine is lost, or
    cannot run rayka.
    """
    while True:
        with suppress(ray.exceptions.ActorUnavailableError):
            return await method.remote()
        await asyncio.sleep(_POLL_S)


class SupervisorReport(NamedTuple):
    """The state of a cluster as its supervisor reports it."""

    # By node, why the supervisor could not bring it back.
    problems: Mapping[int, str]
    # How many brokers there are and should be; None where they do not come and go.
    scaling: ScalingStatus | None
    # The same of coordinators.
    coordinator_scaling: ScalingStatus | None
    # The nodes whose machines Ray drains, and when these go: a wall clock in ms, or 0.
    draining: Mapping[int, int]


async def report(cluster_name: str, timeout_s: float) -> SupervisorReport:
    """Asks the supervisor of the running cluster for its report; empty if there is no supervisor."""
    handle = await asyncio.to_thread(find, cluster_name)
    # The names that the actor's methods have in every version.
    methods = ("troubles", "scaling", "coordinator_scaling", "draining")
    told = await asyncio.gather(*(_answer_or_none(handle, each, timeout_s) for each in methods))
    return SupervisorReport(told[0] or {}, told[1], told[2], told[3] or {})


async def _answer_or_none(handle: Any | None, method: str, timeout_s: float) -> Any:
    """Calls a method of the supervisor; None if it does not answer in time, or cannot. A supervisor of an older version
    may lack the method, and `status` describes that cluster too.
    """
    if handle is None:
        return None
    try:
        async with asyncio.timeout(timeout_s):
            return await getattr(handle, method).remote()
    except (TimeoutError, AttributeError, ray.exceptions.RayError):
        return None


async def replace_supervisor(record: ClusterRecord, timeout_s: float) -> None:
    """Replaces the supervisor by one with this record."""
    await stop(record.spec.name)
    await await_made(await asyncio.to_thread(create, record), timeout_s)


async def stop(cluster_name: str) -> None:
    """Ends the supervisor, if there is one, after the step that it is at. No node is made from then on."""
    handle = await asyncio.to_thread(find, cluster_name)
    if handle is None:
        return
    try:
        async with asyncio.timeout(_STOP_TIMEOUT_S):
            await handle.stop.remote()
    except (TimeoutError, ray.exceptions.RayError):
        # The supervisor's process is being restarted, or its Ray node is gone.
        pass
    await asyncio.to_thread(node_handles.end, handle)
    await asyncio.to_thread(await_gone, supervisor_name(cluster_name))


def end(cluster_name: str) -> None:
    """Ends the supervisor, if there is one, at once: its nodes are about to be ended too."""
    handle = find(cluster_name)
    if handle is not None:
        node_handles.end(handle)
