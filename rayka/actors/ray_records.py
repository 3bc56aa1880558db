"""What Ray itself has on record of a process: the only place that reads the tables of its head.

Ray's raylet watches the sockets of its workers. When the kernel closes them, because the process was killed or ended
itself, the exit is on record some 12 ms later (measured), long before a caller hears of it (1 to 2 s).

Ray's public interface shows that through its dashboard only, which need not run. In a version of Ray whose tables are
others, no exit is known: a broker that died is fenced when its session ends.
"""

from typing import Any

import ray

from rayka.actors.ray_internals import part

_STATE = part("ray._private.state", "state")
_ACTOR = part("ray.core.generated.gcs_pb2", "ActorTableData")
_WORKER = part("ray.core.generated.gcs_pb2", "WorkerTableData")
# Of these exits the raylet has seen the end. A worker that is told to end says goodbye while it still runs.
_SEEN = tuple(part("ray.core.generated.common_pb2", each) for each in ("SYSTEM_ERROR", "NODE_OUT_OF_MEMORY"))


def has_process(handle: Any) -> bool:
    """Whether Ray counts the actor as alive: not while it restarts it, nor while its Ray node is gone.

    Where that cannot be known it counts as alive, so that it is not taken for lost.
    """
    accessor = _accessor()
    if accessor is None or _ACTOR is None:
        return True
    found = accessor.get_actor_info(handle._actor_id)
    return found is not None and bool(_ACTOR.FromString(found).state == _ACTOR.ALIVE)


def has_left(worker_id: str) -> bool:
    """Whether Ray counts this worker, by its id in hexadecimal, among the living no more, for whatever reason."""
    if _accessor() is None or _WORKER is None:
        return False
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


def was_actor_of(namespace: str, worker_id: str) -> bool:
    """Whether this worker, which may have ended, is or was the process of an actor in that Ray namespace; False where
    that cannot be known.
    """
    accessor, wanted = _accessor(), bytes.fromhex(worker_id)
    if accessor is None or _ACTOR is None:
        return False
    for each in map(_ACTOR.FromString, accessor.get_actor_table(None, None)):
        earlier = [before.worker_id for before in getattr(each, "previous_incarnations", ())]
        if each.ray_namespace == namespace and wanted in (each.address.worker_id, *earlier):
            return True
    return False


def _record(worker_id: str) -> Any | None:
    accessor = _accessor()
    if accessor is None or _WORKER is None:
        return None
    found = accessor.get_worker_info(ray.WorkerID(bytes.fromhex(worker_id)))
    return None if found is None else _WORKER.FromString(found)


def _accessor() -> Any | None:
    connect = getattr(_STATE, "_connect_and_get_accessor", None)
    return None if connect is None else connect()
