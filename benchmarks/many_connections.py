"""Hundreds of direct connections to one broker: what idle ones cost it, and how even its share is for active ones.

The connections are bare lanes of a few processes without Ray, which get their tickets from this one.
`python -m benchmarks.many_connections` is one of these processes: it opens a lane for each offer, and produces when it
is told to.
"""

import asyncio
import base64
import json
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any
from uuid import UUID, uuid4

import psutil
import ray

import rayka
from benchmarks.bare_sockets import end_process, start_process
from benchmarks.harness import Row
from benchmarks.single_records import topic_of
from benchmarks.stage import cpu_seconds, pid_of
from rayka.actors import node_handles
from rayka.client import io_thread
from rayka.errors import ErrorCode
from rayka.protocol.batch_encode import encode_batch
from rayka.protocol.caller import Caller
from rayka.protocol.produce import ACKS_LEADER, ProducePartition, ProduceRequest
from rayka.protocol.wire import decode
from rayka.transport.greeting import LaneOffer
from rayka.transport.lane import Lane, open_lane
from rayka.transport.receive_memory import ReceiveMemory

CONNECTIONS, PROCESSES, PARTITIONS = 500, 5, 6
IDLE_BYTES_MAX, IDLE_PERCENT_MAX, UNEVEN_MAX = 30e6, 1.0, 2.0
_SETTLE_S = 1.0
_CALL_TIMEOUT_MS = 30_000


def rows(cluster: rayka.Cluster, *, seconds_long: float) -> Iterator[Row]:
    """Needs a cluster of one broker, number 1."""
    pid = pid_of(cluster)
    memory_before, cpu_before = _resident(pid), _percent(pid, seconds_long)
    with _connected(cluster) as processes:
        time.sleep(_SETTLE_S)
        memory, cpu = _resident(pid), _percent(pid, seconds_long)
        settings = f"{CONNECTIONS} connections"
        yield Row.allowed(
            "memory of idle connections",
            max(0.0, memory - memory_before),
            "B",
            IDLE_BYTES_MAX,
            settings=settings,
            note=f"RSS of the broker {memory_before / 1e6:.0f} MB without, {memory / 1e6:.0f} MB with them",
        )
        yield Row.allowed(
            "CPU of idle connections",
            max(0.0, cpu - cpu_before),
            "% of a core",
            IDLE_PERCENT_MAX,
            settings=settings,
            note=f"the broker {cpu_before:.2f} % of a core without, {cpu:.2f} % with them",
        )
        yield _active(cluster, processes, seconds_long)


def _active(cluster: rayka.Cluster, processes: Sequence["subprocess.Popen[str]"], seconds_long: float) -> Row:
    """Each connection has one record of 1 KB in flight, over and over."""
    with rayka.Admin(cluster=cluster) as admin:
        admin.create_topic("many-connections", partitions=PARTITIONS)
    known = io_thread.run(partial(topic_of, cluster.network(), "many-connections"), 60)
    order = {"topic_id": str(known.topic_id), "seconds": seconds_long}
    for each in processes:
        _tell(each, order)
    counts = [count for each in processes for count in _told(each)]
    settings = (
        f"{CONNECTIONS} producers with one record of 1 KB in flight each, acks=1, {PARTITIONS} partitions"
    )
    value = max(counts) / max(1, min(counts))
    total = f"{sum(counts) / seconds_long:,.0f}/s in all"
    note = f"{min(counts)} to {max(counts)} records each in {seconds_long:g} s, {total}"
    what = "active producers, the most by the fewest records"
    return Row.allowed(what, value, "x", UNEVEN_MAX, settings=settings, note=note)


def _resident(pid: int) -> float:
    return float(psutil.Process(pid).memory_info().rss)


def _percent(pid: int, seconds_long: float) -> float:
    return 100 * cpu_seconds(lambda: time.sleep(seconds_long), {"broker": pid})["broker"] / seconds_long


@contextmanager
def _connected(cluster: rayka.Cluster) -> Iterator[list["subprocess.Popen[str]"]]:
    """Processes that hold all connections between them."""
    processes: list[subprocess.Popen[str]] = []
    try:
        for _ in range(PROCESSES):
            process = start_process(__name__)
            processes.append(process)
            handle = node_handles.find(cluster.name, 1)
            offers = ray.get([handle.open_lane.remote() for _ in range(CONNECTIONS // PROCESSES)])
            _tell(process, {"offers": [base64.b64encode(each).decode() for each in offers]})
            assert _told(process) == len(offers)
        yield processes
    finally:
        for process in processes:
            end_process(process)


def _tell(process: "subprocess.Popen[str]", order: dict[str, Any]) -> None:
    assert process.stdin is not None
    process.stdin.write(json.dumps(order) + "\n")
    process.stdin.flush()


def _told(process: "subprocess.Popen[str]") -> Any:
    assert process.stdout is not None
    return json.loads(process.stdout.readline())


# ---- One of the processes ------------------------------------------------------------------------------------------


async def _hold() -> None:
    loop, lanes = asyncio.get_running_loop(), list[Lane]()
    print("ready", flush=True)
    while line := await loop.run_in_executor(None, sys.stdin.readline):
        order = json.loads(line)
        if "offers" in order:
            offers = [decode(LaneOffer, base64.b64decode(each)) for each in order["offers"]]
            memory = ReceiveMemory()
            lanes = [await open_lane(1, each, memory) for each in offers]
            print(len(lanes), flush=True)
        else:
            topic_id, deadline = UUID(order["topic_id"]), loop.time() + order["seconds"]
            counts = await asyncio.gather(
                *(_produce(lane, topic_id, number, deadline) for number, lane in enumerate(lanes))
            )
            print(json.dumps(counts), flush=True)


async def _produce(lane: Lane, topic_id: UUID, number: int, deadline: float) -> int:
    loop, caller, count = asyncio.get_running_loop(), Caller(uuid4()), 0
    batch = encode_batch([bytes(1000)], timestamps_ms=0)
    part = ProducePartition(topic_id, number % PARTITIONS, batch)
    request = ProduceRequest(ACKS_LEADER, _CALL_TIMEOUT_MS, (part,))
    while loop.time() < deadline:
        response = await caller.call(1, request, _CALL_TIMEOUT_MS, lane.send)
        assert response.partitions[0].error_code is ErrorCode.NONE, response
        count += 1
    return count


if __name__ == "__main__":
    asyncio.run(_hold())
