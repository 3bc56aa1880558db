"""Small jobs on the machine of a Ray node, beside the actors: looking at directories, formatting, removing, waiting
for ends.

On the caller's own Ray node they run in the caller: a task there would cost the start of a process and see the same
files.
"""

import sys
from collections.abc import Callable
from typing import ParamSpec, TypeVar

import ray
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from rayka.errors import RaykaError, UnavailableError

JOB_TIMEOUT_S = 60.0
HOST_LABEL = (
    "rayka.io/host"  # `ray start --labels rayka.io/host=NAME`: which machine, and so which disk, this is
)
P = ParamSpec("P")
ResultT = TypeVar("ResultT")


def own_ray_node_id() -> str:
    """The Ray node that this process belongs to."""
    node_id: str = ray.get_runtime_context().get_node_id()
    return node_id


def live_ray_nodes() -> dict[str, dict[str, float]]:
    """The resources of all live Ray nodes by node id; this process's own first, then by id."""
    own = own_ray_node_id()
    alive = {node["NodeID"]: node["Resources"] for node in ray.nodes() if node["Alive"]}
    return {node_id: alive[node_id] for node_id in sorted(alive, key=lambda each: (each != own, each))}


def host_label(ray_node_id: str) -> str | None:
    """The name that the Ray node's label gives its machine, if no other live Ray node has the same one."""
    labels = {node["NodeID"]: node["Labels"].get(HOST_LABEL) for node in ray.nodes() if node["Alive"]}
    own = labels.get(ray_node_id)
    return own if own is not None and list(labels.values()).count(own) == 1 else None


def run_on(ray_node_id: str, job: Callable[P, ResultT], *args: P.args, **kwargs: P.kwargs) -> ResultT:
    """The job's result. Raises what the job raises of RaykaError, and UnavailableError when the Ray node does not run
    it.
    """
    if ray_node_id == own_ray_node_id():
        return job(*args, **kwargs)
    remote = ray.remote(job).options(
        num_cpus=0,
        max_retries=0,
        scheduling_strategy=NodeAffinitySchedulingStrategy(ray_node_id, soft=False),
        runtime_env={"py_executable": sys.executable},
    )
    try:
        result: ResultT = ray.get(remote.remote(*args, **kwargs), timeout=JOB_TIMEOUT_S)
    except ray.exceptions.RayTaskError as error:
        cause = error.cause
        raise (cause if isinstance(cause, RaykaError) else error) from None
    except ray.exceptions.RayError as error:
        raise UnavailableError(f"Ray node {ray_node_id} did not run {job.__name__}: {error}") from error
    return result
