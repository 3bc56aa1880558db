"""What one replicated record costs in this process: calls of Python functions, and processor time.

A client, three brokers and a controller share one process, whose code is the same as under Ray; Ray's own work and the
sockets are missing. One record of 1 KB is in flight at a time, acks=all. An idle cluster works too (heartbeats, fetches
that wait, checkpoints): what it does in the same time is measured beside and taken off.
"""

import cProfile
import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import NamedTuple

import rayka
from benchmarks.harness import Row
from rayka import testing
from rayka.client import io_thread

CALLS_MAX = 1_200
_TOPIC = "record_calls"
_TIMEOUT_S = 60.0
_SETTINGS = "3 replicas in one process, acks=all, 1 in flight"


class Cost(NamedTuple):
    """Work of this process: calls of Python functions, counted on the nodes' thread and the caller's."""

    calls: float
    processor_s: float


def run(*, quick: bool = False) -> list[Row]:
    rounds, records = (1, 100) if quick else (9, 400)
    with testing.cluster(brokers=3) as cluster:
        with rayka.Admin(cluster=cluster) as admin:
            admin.create_topic(_TOPIC, partitions=1, replication_factor=3, configs={"min.insync.replicas": 2})
        with rayka.Producer(cluster=cluster, acks="all", linger_ms=0) as producer:
            send(producer, records)
            costs = [cost_of_one(producer, records) for _ in range(rounds)]
    calls, processor_s = (statistics.median(each) for each in zip(*costs, strict=True))
    return [
        Row.allowed("Python calls for one record", calls, "", CALLS_MAX, settings=_SETTINGS),
        Row(what="processor time for one record", value=processor_s * 1000, unit="ms", settings=_SETTINGS),
    ]


def send(producer: rayka.Producer, records: int) -> None:
    """Sends records one after another, each when the one before is acknowledged."""
    for _ in range(records):
        producer.send(_TOPIC, value=bytes(1000)).result()


def cost_of_one(producer: rayka.Producer, records: int) -> Cost:
    """The cost of one record beyond what the idle cluster costs in that time."""
    calls = _of_one(records, lambda work: float(_calls_of(work)), lambda: send(producer, records))
    processor_s = _of_one(records, _processor_s_of, lambda: send(producer, records))
    return Cost(calls, processor_s)


def _of_one(records: int, cost_of: Callable[[Callable[[], None]], float], work: Callable[[], None]) -> float:
    began = time.perf_counter()
    cost = cost_of(work)
    taken_s = time.perf_counter() - began
    idle_s = min(1.0, taken_s)
    idle_cost = cost_of(lambda: time.sleep(idle_s))
    return (cost - idle_cost * taken_s / idle_s) / records


def _processor_s_of(work: Callable[[], None]) -> float:
    began = time.process_time()
    work()
    return time.process_time() - began


def _calls_of(work: Callable[[], None]) -> int:
    nodes, caller = cProfile.Profile(builtins=False), cProfile.Profile(builtins=False)
    with _counting_on_io_thread(nodes):
        caller.enable()
        work()
        caller.disable()
    return sum(entry.callcount for profile in (nodes, caller) for entry in profile.getstats())


@contextmanager
def _counting_on_io_thread(profile: cProfile.Profile) -> Iterator[None]:
    async def begin() -> None:
        profile.enable()

    async def end() -> None:
        profile.disable()

    io_thread.run(begin, _TIMEOUT_S)
    try:
        yield
    finally:
        io_thread.run(end, _TIMEOUT_S)
