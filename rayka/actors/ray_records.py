"""What Ray itself has on record of a process: the only place that reads the tables of its head.

Ray's raylet watches the sockets of its workers. When the kernel closes them, because the process was killed or ended
itself, the exit is on record some 12 ms later (measured), long before a caller hears of it (1 to 2 s).
"""

from typing import Any

import ray
import ray._private.state as ray_state
from ray.core.generated import common_pb2

_ALIVE = ray_state.gcs_pb2.ActorTableData.ALIVE
# Of these exits the raylet has seen the end. A worker that is told to end says goodbye while it still runs.
_SEEN = (common_pb2.SYSTEM_ERROR, common_pb2.NODE_OUT_OF_MEMORY)


def has_process(handle: Any) -> bool:
    """Whether Ray counts the actor as alive: not while it restarts it, nor while its Ray node is gone."""
    found = _accessor().get_actor_info(handle._actor_id)
    return found is not None and ray_state.gcs_pb2.ActorTableData.FromString(found).state == _ALIVE


def has_left(worker_id: str) -> bool:
    """Whether Ray counts this worker, by its id in hexadecimal, among the living no more, for whatever reason."""
    record = _record(worker_id)
    return record is None or not record.is_alive


def has_exited(worker_id: str, ray_node_id: str) -> bool:
    """Whether Ray has recorded the end of this worker's process while its raylet lives: the evidence of death (design
    §4). The end of a raylet, or of the connection to it, is none: its processes may live on.
    """
    record = _record(worker_id)
    if record is None or record.is_alive or record.exit_type not in _SEEN:
        return False
    return any(node["NodeID"] == ray_node_id and node["Alive"] for node in ray.nodes())


def _record(worker_id: str) -> "ray_state.gcs_pb2.WorkerTableData | None":
    found = _accessor().get_worker_info(ray.WorkerID(bytes.fromhex(worker_id)))
    return None if found is None else ray_state.gcs_pb2.WorkerTableData.FromString(found)


def _accessor() -> "ray_state.GlobalStateAccessor":
    return ray_state.state._connect_and_get_accessor()
