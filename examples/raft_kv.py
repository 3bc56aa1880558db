"""A replicated key-value store on rayka's quorum, as Ray actors: python examples/raft_kv.py

`Store`, a state machine, says what a request writes and what a record changes; the library's `QuorumLog` replicates
the records, and `ReplicatedShard` runs the state machine on them. The rest starts actors.
"""

import asyncio
import os
import signal
import tempfile
import time
from functools import partial
from typing import Any, NamedTuple

import msgspec

from rayka.actors.names import NAMESPACE, actor_name
from rayka.actors.node_actor import NodeActor
from rayka.actors.node_placement import NodePlacement
from rayka.actors.ray_connection import connect_or_start
from rayka.config.cluster_config import ClusterSpec
from rayka.errors import NotController
from rayka.log.local_disk import LocalDisk
from rayka.node.quorum_directory import format_first_voters
from rayka.node.quorum_driver import QuorumDriver
from rayka.node.quorum_log import QuorumLog
from rayka.node.quorum_requests import QuorumRequests
from rayka.node.replicated_shard import ReplicatedShard
from rayka.node.tasks import Tasks
from rayka.protocol.apis import ServedBy
from rayka.shard.shard import NotHere, Result, Timer
from rayka.shard.shard_records import value_codec

# isort: split
import ray  # after rayka.actors, which sets what it reads


class Operation(NamedTuple):
    """What a client asks for, and the record that it becomes. Without `value` it deletes the key, if it writes."""

    key: str
    value: str | None = None
    is_read: bool = False


class Store:
    """The state machine: every replica makes the same of the same records."""

    def __init__(self) -> None:
        self.values: dict[str, str | None] = {}

    def handle(self, request: Operation, *, now_ms: int, next_offset: int) -> Result[Operation, str | None]:
        """A read writes a record, too: once that is committed, no successor can have known better (linearizable)."""
        return Result([request], self.values.get(request.key))

    def replay(self, record: Operation, offset: int) -> None:
        self.values |= {} if record.is_read else {record.key: record.value}

    def on_active(self, *, now_ms: int, next_offset: int) -> list[Timer]:
        return []  # nothing is done from time to time

    def not_here(self, why: NotHere) -> NotController:
        return NotController(why.reason, why.leader_id, why.leader_epoch)


class KvNode:
    """One replica: a log, the state machine on it, and answers to the other replicas."""

    serves = ServedBy.QUORUM

    def __init__(self, settings: Any) -> None:
        self.settings = settings
        self._tasks = Tasks(settings.crash)
        self._requests = asyncio.get_running_loop().create_future()

    async def start(self) -> None:
        codec = value_codec(msgspec.msgpack.encode, partial(msgspec.msgpack.decode, type=Operation))
        driver = await QuorumDriver.open(self.settings, self._tasks)
        self.shard = ReplicatedShard(self.settings.node_id, QuorumLog(driver, codec), Store)
        self._tasks.start("quorum", driver.run())
        self._tasks.start("shard", self.shard.run())
        self._requests.set_result(QuorumRequests(driver, self.settings.config))

    def kill(self) -> None:
        self._tasks.abandon()

    async def handle(self, request: Any) -> Any:
        return await (await self._requests).handle(request)


class Kv(NodeActor):
    """A replica as an actor. The base class starts the node, also when Ray restarts the actor, and takes its calls."""

    def make_node(self, settings: Any) -> KvNode:
        self._kv = KvNode(settings)
        return self._kv

    async def apply(self, operation: Operation) -> str | None:
        """What the key's value was. Raises NotController, on a replica that does not lead."""
        return await self._kv.shard.submit(operation)


def start(data_dir: str, *, replicas: int = 3) -> list[Any]:
    """Starts the replicas, on empty disks."""
    connect_or_start()
    spec = ClusterSpec(name="kv", controllers=replicas, data_dir=data_dir)
    places = [NodePlacement(spec, each, "here") for each in tuple(spec.roles)[spec.brokers :]]
    asyncio.run(format_first_voters([each.settings(LocalDisk(), print) for each in places]))
    make = partial(ray.remote(Kv).options, namespace=NAMESPACE, max_restarts=-1, max_concurrency=1000)
    return [make(name=actor_name("kv", each.node_id)).remote(each) for each in places]


class KvStore:
    """A client. What is not answered is asked again, so a write may happen twice."""

    def __init__(self, replicas: list[Any]) -> None:
        self._replicas = list(replicas)

    def get(self, key: str) -> str | None:
        return self._apply(Operation(key, is_read=True))

    def set(self, key: str, value: str) -> None:
        self._apply(Operation(key, value))

    def delete(self, key: str) -> None:
        self._apply(Operation(key))

    def _apply(self, operation: Operation, timeout_s: float = 30) -> Any:
        deadline = time.monotonic() + timeout_s
        while True:
            try:
                return ray.get(self._replicas[0].apply.remote(operation), timeout=timeout_s)
            except ray.exceptions.RayError:  # it does not lead, or its process has ended
                self._replicas.append(self._replicas.pop(0))
                if time.monotonic() > deadline:
                    raise

    def kill_leader(self) -> None:
        self.get("")  # the node that answers leads
        os.kill(ray.get(self._replicas[0].process.remote()).pid, signal.SIGKILL)


def main() -> None:
    with tempfile.TemporaryDirectory() as data_dir:
        store = KvStore(start(data_dir))
        for number in range(10):
            store.set(f"key-{number}", str(number * number))
        store.delete("key-3")
        print("wrote ten keys and deleted one; key-7 is", store.get("key-7"))
        store.kill_leader()
        began = time.monotonic()
        found = [store.get(f"key-{number}") for number in range(10)]
        print(f"the leader was killed; another one answered after {time.monotonic() - began:.1f} s: {found}")
        ray.shutdown()


if __name__ == "__main__":
    main()
