"""Which Ray nodes start their workers with this process's Python, so that it need not be named to Ray for an actor.

An actor whose interpreter is named gets a process of its own, and Ray starts another one first to read the name. An
actor without a name gets a process that Ray has in stock. A raylet keeps its Python as long as it lives, so an actor
that is pinned to one by its id is restarted with the same. A Python that is not known to be this process's is named.
"""

import os
import sys
from collections.abc import Collection

import ray

from rayka.actors import local_rays

_matching = set[str]()  # Ray nodes


def remember_match(ray_node_id: str) -> None:
    """A worker there, as Ray starts them by itself, has run with this process's Python."""
    _matching.add(ray_node_id)


def environment(ray_node_ids: Collection[str]) -> dict[str, str]:
    """The `runtime_env` of an actor that may be on any of these Ray nodes."""
    context = ray.get_runtime_context()
    own = context.get_node_id()
    if own in ray_node_ids and own not in _matching and _runs_here(own):
        _matching.add(own)
    # What is set for the whole process may bring a Python of its own: `uv run`, or packages for the job.
    is_named = bool(context.runtime_env) or not _matching.issuperset(ray_node_ids)
    return {"py_executable": sys.executable} if is_named else {}


def _runs_here(own_ray_node_id: str) -> bool:
    """Whether the raylet of this process's Ray node starts workers with it; False where that raylet is not seen."""
    sockets = [each["RayletSocketName"] for each in ray.nodes() if each["NodeID"] == own_ray_node_id]
    workers = "--python_worker_command="
    return any(
        os.path.dirname(each.removeprefix(workers)) == os.path.dirname(sys.executable)
        for arguments in local_rays.raylets()
        if any(f"--raylet_socket_name={socket}" in arguments for socket in sockets)
        for each in arguments
        if each.startswith(workers)
    )
