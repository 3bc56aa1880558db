"""The way from a Spark Python worker to a cluster: one Ray connection, which stays, as workers are reused.

A connection made here follows when another Ray is asked for (a session that reads from two); one that the process had
before, such as the driver's, is left alone.
"""

import ray

from rayka.actors import ray_connection
from rayka.client.bootstrap import ClusterHandle, resolve

_ours = False


def find_cluster(name: str, ray_address: str) -> ClusterHandle:
    """The cluster of that name on the Ray at an address; empty: the one that runs on this machine.

    Raises ClusterNotFound, or UnavailableError when there is no Ray.
    """
    global _ours  # noqa: PLW0603 - a process has one connection to Ray
    if _ours and ray_address and ray_address != ray_connection.current_address():
        ray.shutdown()
    was_connected = ray.is_initialized()
    ray_connection.connect(ray_address or ray_connection.AUTO)
    _ours = _ours or not was_connected
    return resolve(name)
