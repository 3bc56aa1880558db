"""Ray's records of actors, processes and Ray nodes. The only module that reads the tables of Ray's head.

A raylet watches the sockets of its workers. When the kernel closes them, because the process was killed or ended
itself, the exit is on record some 12 ms later (measured), long before a caller gets an error (1 to 2 s).

Ray's public interface shows these records only through its dashboard, which need not run. In a version of Ray with
other tables no exit is known: a broker that died is fenced when its session ends.
"""

import os
from collections.abc import Collection, Hashable, Mapping
from typing import Any, NamedTuple, cast

import ray

from rayka.actors.ray_internals import part

_STATE = part("ray._private.state", "state")
_ACTOR = part("ray.core.generated.gcs_pb2", "ActorTableData")
_WORKER = part("ray.core.generated.gcs_pb2", "WorkerTableData")
_NODES_TIMEOUT_S = 2.0
# States of an actor.
_WAITING = ("PENDING_CREATION", "RESTARTING")
# A busy machine takes some 10 s for a process.
OVERDUE_S = 30.0
# Kinds of exits of which the raylet has seen the end. A worker that is told to end says goodbye while it still runs.
_SEEN = tuple(part("ray.core.generated.common_pb2", each) for each in ("SYSTEM_ERROR", "NODE_OUT_OF_MEMORY"))


class LastProcess(NamedTuple):
    """One process of an actor, present or past."""

    worker_id: str
    ray_node_id: str


class PendingActor(NamedTuple):
    """An actor that Ray has not made yet."""

    actor_id: str
    # The Ray node that the actor is pinned to; empty if there is none.
    ray_node_id: str
    # Whether Ray has begun to make the actor, or makes again what ran on that Ray node.
    is_placed: bool


class LastPlace(NamedTuple):
    """The place where an actor lives, or lived last."""

    host: str
    # The wall clock when Ray noticed that the machine or process had gone for good; 0: it lives, or that is not known.
    gone_since_ms: int
    # Oldest first.
    processes: tuple[LastProcess, ...]


class PendingTimes:
    """How long node actors have waited for a process.

    Ray makes an actor only on the Ray node that it is pinned to, and waits for ever if something else has the
    resources. An actor's time begins anew when Ray nodes come or go, because Ray may make the actor then.
    """

    def __init__(self) -> None:
        # By node, the actor with the open Ray nodes, and since when both are the same.
        self._since: dict[int, tuple[Hashable, float]] = {}

    def overdue(
        self, pending: Mapping[int, PendingActor], ray_node_ids: Collection[str], now_s: float
    ) -> dict[int, float]:
        """Returns the actors that have waited for too long, with the seconds."""
        before, self._since = self._since, {}
        for node_id, actor in pending.items():
            situation = (actor.actor_id, tuple(sorted(ray_node_ids)))
            known, since_s = before.get(node_id, (None, now_s))
            self._since[node_id] = (situation, since_s if known == situation else now_s)
        waits = {node_id: now_s - since_s for node_id, (_, since_s) in self._since.items()}
        return {node_id: wait_s for node_id, wait_s in waits.items() if wait_s >= OVERDUE_S}


def has_process(handle: Any) -> bool:
    """Whether Ray counts the actor as alive: not while Ray restarts it, nor while its Ray node is gone.

    True if that cannot be known, so that the actor is not taken for lost.
    """
    accessor = _accessor()
    if accessor is None or _ACTOR is None:
        return True
    found = accessor.get_actor_info(handle._actor_id)
    return found is not None and bool(_ACTOR.FromString(found).state == _ACTOR.ALIVE)


def pending_actors(namespace: str) -> dict[str, PendingActor]:
    """Returns the actors of a Ray namespace, by name, that wait for their first or next process. Empty in a version of
    Ray with other tables.
    """
    found = _actors(namespace, *_WAITING)
    nodes = ray.nodes() if found else []
    pending = {}
    for each in found:
        ray_node_id = _pinned_to(each, nodes)
        is_placed = bool(each.address.worker_id) or (each.num_restarts > 0 and ray_node_id != "")
        pending[each.name] = PendingActor(each.actor_id.hex(), ray_node_id, is_placed)
    return pending


def free_resources() -> dict[str, dict[str, float]]:
    """Returns the free resources of each Ray node; empty in a version of Ray that does not tell."""
    ask = part("ray._private.state", "available_resources_per_node")
    return {} if ask is None else cast("dict[str, dict[str, float]]", ask())


def draining_ray_nodes() -> dict[str, int]:
    """Returns the live Ray nodes that Ray has announced to go, as for a preempted machine, and when: a wall clock in
    ms, 0 if Ray names none. Empty in a version of Ray that does not tell.
    """
    ask = getattr(_STATE, "get_draining_nodes", None)
    found: dict[str, int] = {} if ask is None else ask()
    if not found:
        return {}
    alive = [node["NodeID"] for node in ray.nodes() if node["Alive"]]
    return {each: int(found[each]) for each in sorted(found) if each in alive}


def has_left(worker_id: str) -> bool:
    """Whether Ray no longer counts this worker, by its id in hexadecimal, among the living, for whatever reason."""
    if _accessor() is None or _WORKER is None:
        return False
    record = _record(worker_id)
    return record is None or not record.is_alive


def has_exited(worker_id: str, ray_node_id: str) -> bool:
    """Whether Ray has recorded the end of this worker's process while its raylet lives: the evidence of death (design
    §4).

    The end of a raylet, or of the connection to it, is no evidence: its processes may live on.
    """
    record = _record(worker_id)
    if record is None or record.is_alive or record.exit_type not in _SEEN:
        return False
    return any(node["NodeID"] == ray_node_id and node["Alive"] for node in ray.nodes())


def exit_detail(worker_id: str) -> str:
    """Returns the first sentence of Ray's record about the end of this worker's process; empty if Ray has none."""
    record = _record(worker_id)
    return "" if record is None else str(getattr(record, "exit_detail", "")).split(". ")[0].strip()


def lost_machines() -> dict[str, str]:
    """Returns the addresses of the Ray nodes that Ray counts as lost. Ray may count their workers as alive for ever."""
    return {each["NodeID"]: str(each["NodeManagerAddress"]) for each in ray.nodes() if not each["Alive"]}


def was_actor_of(namespace: str, worker_id: str) -> bool:
    """Whether this worker, which may have ended, is or was the process of an actor in that Ray namespace. False if that
    cannot be known.
    """
    wanted = bytes.fromhex(worker_id)
    return any(each.worker_id == wanted for actor in _actors(namespace) for each in _addresses(actor))


def last_places(namespace: str, names: Collection[str]) -> dict[str, LastPlace]:
    """Returns the places of the actors of these names, as Ray remembers them. Includes the processes of earlier actors
    of the same name. Empty in a version of Ray with other tables.
    """
    found: dict[str, list[Any]] = {}
    for each in _actors(namespace):
        if each.name in names:
            found.setdefault(each.name, []).append(each)
    nodes = {node["NodeID"]: node for node in ray.nodes()} if found else {}
    return {
        name: _last_place(sorted(found[name], key=lambda each: int(each.start_time)), nodes) for name in found
    }


def log_directories() -> dict[str, str]:
    """Returns the directory of the processes' logs on each Ray node that Ray remembers, on that node's machine."""
    sockets = {node["NodeID"]: node["RayletSocketName"] for node in ray.nodes()}
    return {
        each: os.path.join(os.path.dirname(os.path.dirname(sockets[each])), "logs")
        for each in sorted(sockets)
    }


def _actors(namespace: str, *states: str) -> list[Any]:
    """Returns the records of the actors of a Ray namespace, in any state or in these."""
    accessor = _accessor()
    if accessor is None or _ACTOR is None:
        return []
    records = [each for state in states or (None,) for each in accessor.get_actor_table(None, state)]
    return [each for each in map(_ACTOR.FromString, records) if each.ray_namespace == namespace]


def _addresses(actor: Any) -> tuple[Any, ...]:
    """Returns the addresses of the actor's processes, oldest first."""
    return (*getattr(actor, "previous_incarnations", ()), actor.address)


def _pinned_to(actor: Any, nodes: Collection[Mapping[str, Any]]) -> str:
    """Returns the Ray node that the actor is pinned to: by its label if it has one, else where Ray asked for a worker.
    Empty while no Ray node has the label.
    """
    wanted = dict(getattr(actor, "label_selector", {}))
    if not wanted:
        return str(actor.address.node_id.hex())
    having = (each for each in nodes if each["Alive"] and wanted.items() <= each["Labels"].items())
    return next((str(each["NodeID"]) for each in having), "")


def _last_place(actors: list[Any], nodes: Mapping[str, Mapping[str, Any]]) -> LastPlace:
    newest = actors[-1]
    ray_node_id = newest.node_id.hex()
    processes = dict[LastProcess, None]()
    for actor in actors:
        for each in _addresses(actor):
            if each.worker_id:
                processes[LastProcess(each.worker_id.hex(), each.node_id.hex())] = None
    node = nodes.get(ray_node_id, {})
    is_gone = newest.state == newest.DEAD or not node.get("Alive", True)
    since_ms = (_node_ends_ms().get(ray_node_id) or int(newest.end_time)) if is_gone else 0
    return LastPlace(node.get("NodeManagerAddress", ""), since_ms, tuple(processes))


def _node_ends_ms() -> dict[str, int]:
    """Returns when Ray noticed the end of each Ray node that has gone. Ray's own list of nodes leaves that out."""
    client = getattr(part("ray._private.worker", "global_worker"), "gcs_client", None)
    if client is None:
        return {}
    return {
        each.hex(): int(getattr(info, "end_time_ms", 0))
        for each, info in client.get_all_node_info(timeout=_NODES_TIMEOUT_S).items()
    }


def _record(worker_id: str) -> Any | None:
    accessor = _accessor()
    if accessor is None or _WORKER is None:
        return None
    found = accessor.get_worker_info(ray.WorkerID(bytes.fromhex(worker_id)))
    return None if found is None else _WORKER.FromString(found)


def _accessor() -> Any | None:
    connect = getattr(_STATE, "_connect_and_get_accessor", None)
    return None if connect is None else connect()
