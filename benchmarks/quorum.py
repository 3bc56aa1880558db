"""The metadata quorum: what a commit costs, and how long no controller decides when the active controller ends.

A commit is one topic of one partition, created and deleted in turn by one caller that waits for each, and then a while.
The limits are made of what this machine needs for one call of an actor and for one fsync after the same pause, measured
in turn with the values.
"""

import asyncio
import os
import signal
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import count
from pathlib import Path

import ray

import rayka
from benchmarks import image
from benchmarks.harness import Bar, Row, compare
from benchmarks.limits import NoopActor, seconds
from benchmarks.stage import local_ray, pid_of, running_cluster
from rayka.actors import node_handles
from rayka.client import io_thread
from rayka.errors import ApiError, ErrorCode
from rayka.ids import Role, role_of
from rayka.ports import Network
from rayka.protocol.topics import CreateTopicsRequest, DeleteTopicsRequest, NewTopic

BAR = Bar(1.0, at_most=True)
FAILOVER_MAX_S = 4.0
CREATE_MAX_S = 1.0
PARTITIONS = 1_000
_CALL_TIMEOUT_MS = 10_000
_WAIT_S = 60
_IDLE_S = 0.02  # until the replicas also know that it is committed
_numbers = count()


def run(*, quick: bool = False) -> Iterator[Row]:
    rounds = 2 if quick else 5
    with local_ray() as directory:
        machine = Machine(directory)
        with running_cluster(directory) as cluster:
            yield commits(cluster, machine, rounds, voters=1)
            yield _thousand_partitions(cluster, rounds)
        with running_cluster(directory, controllers=3) as cluster:
            yield commits(cluster, machine, rounds, voters=3)
            yield _failover(cluster, rounds)
            yield _handover(cluster, machine, rounds)
        machine.close()
        yield from image.rows(directory, rounds)


class Machine:
    """What one call and one fsync take here, now, when there is a pause before each as there is before a commit."""

    def __init__(self, directory: Path) -> None:
        self._file = (directory / "fsync").open("wb", buffering=0)
        self._actor = NoopActor()

    def seconds(self, round_trips: float, fsyncs: float, *, count: int = 20) -> float:
        """So many of each, one after the other."""
        calls, syncs = [], []
        for _ in range(count):
            time.sleep(_IDLE_S)
            calls.append(self._actor.round_trip_p50(100, count=1))
            time.sleep(_IDLE_S)
            self._file.write(bytes(4096))
            syncs.append(seconds(lambda: os.fsync(self._file.fileno())))
        return round_trips * statistics.median(calls) + fsyncs * statistics.median(syncs)

    def close(self) -> None:
        self._file.close()
        self._actor.close()


# ---- Commits -------------------------------------------------------------------------------------------------------


def commits(cluster: rayka.Cluster, machine: Machine, rounds: int, *, voters: int) -> Row:
    """What a commit takes at the median, beside the actor calls and syncs that it cannot do without."""
    round_trips, fsyncs = {1: (1.0, 1.5), 3: (3.0, 2.5)}[voters]
    network = cluster.network()
    with rayka.Admin(cluster=cluster) as admin:
        leader_id = admin.describe_quorum().leader_id
    measured = compare(
        lambda: io_thread.run(partial(_commit_p50, network, leader_id, 30), _WAIT_S),
        lambda: machine.seconds(round_trips, fsyncs),
        rounds=rounds,
    )
    return measured.row(
        "commit of a change, idle, p50",
        f"{voters} voter{'s' if voters > 1 else ''}",
        "s",
        f"{round_trips:g} actor round trip{'s' if voters > 1 else ''} + {fsyncs:g} fsyncs",
        bar=BAR,
    )


async def _commit_p50(network: Network, leader_id: int, pairs: int) -> float:
    taken = []
    for _ in range(pairs):
        name = f"commit-{next(_numbers)}"
        for request in (CreateTopicsRequest((NewTopic(name),)), DeleteTopicsRequest((name,))):
            began = time.perf_counter()
            response = await network.call(leader_id, request, _CALL_TIMEOUT_MS)
            taken.append(time.perf_counter() - began)
            await asyncio.sleep(_IDLE_S)
            assert response.topics[0].error_code is ErrorCode.NONE, response
    return statistics.median(taken)


def _thousand_partitions(cluster: rayka.Cluster, rounds: int) -> Row:
    with rayka.Admin(cluster=cluster, retry_backoff_ms=10) as admin:

        def create() -> None:
            name = f"large-{next(_numbers)}"
            partitions = admin.create_topic(name, partitions=PARTITIONS).partitions
            assert len(partitions) == PARTITIONS
            assert all(each.leader_id >= 0 for each in partitions)

        create()
        value = statistics.median(seconds(create) for _ in range(rounds))
    return Row(
        what="create a topic of 1,000 partitions",
        settings="Admin.create_topic, 1 broker",
        value=value,
        unit="s",
        limit=CREATE_MAX_S,
        limit_what="what is allowed",
        share=value / CREATE_MAX_S,
        bar=BAR,
        note="until every partition has a leader and the broker knows them all",
    )


# ---- The end of the active controller ------------------------------------------------------------------------------


def _failover(cluster: rayka.Cluster, rounds: int) -> Row:
    def killing(node_id: int) -> Callable[[], object]:
        pid = pid_of(cluster, node_id=node_id)
        return lambda: os.kill(pid, signal.SIGKILL)

    taken = [_seconds_without_controller(cluster, killing, lambda _: None) for _ in range(rounds)]
    value = statistics.median(taken)
    return Row(
        what="kill -9 of the active controller",
        settings="3 voters, default timeouts",
        value=value,
        unit="s",
        limit=FAILOVER_MAX_S,
        limit_what="what Kafka's defaults allow: 2 s without a fetch, then an election",
        share=value / FAILOVER_MAX_S,
        bar=BAR,
        note=f"until a new one has created a topic; all runs: {', '.join(f'{each:.2f}' for each in taken)} s",
    )


def _handover(cluster: rayka.Cluster, machine: Machine, rounds: int) -> Row:
    def stopping(node_id: int) -> Callable[[], object]:
        return node_handles.find(cluster.name, node_id).stop.remote

    def bring_back(node_id: int) -> None:
        ray.kill(node_handles.find(cluster.name, node_id), no_restart=False)

    measured = compare(
        lambda: _seconds_without_controller(cluster, stopping, bring_back),
        lambda: machine.seconds(10, 6),
        rounds=rounds,
    )
    return measured.row(
        "controlled stop of the active controller",
        "3 voters",
        "s",
        "10 actor round trips + 6 fsyncs",
        bar=BAR,
        note="until a new one has created a topic, which is two commits after the vote",
    )


def _seconds_without_controller(
    cluster: rayka.Cluster,
    ending: Callable[[int], Callable[[], object]],
    bring_back: Callable[[int], None],
) -> float:
    """From the end of the active controller until another one has created a topic; then waits for the first."""
    with rayka.Admin(cluster=cluster) as admin:
        leader_id = _await_all_caught_up(admin)
        network = cluster.network()
        node_ids = io_thread.run(network.node_ids, _WAIT_S)
        others = [each for each in node_ids if role_of(each) is Role.CONTROLLER and each != leader_id]
        io_thread.run(partial(_warm_up, network, others), _WAIT_S)
        end = ending(leader_id)
        began = time.perf_counter()
        end()
        io_thread.run(partial(_until_accepted, network, others), _WAIT_S)
        taken_s = time.perf_counter() - began
        bring_back(leader_id)
        _await_all_caught_up(admin)
    return taken_s


async def _warm_up(network: Network, node_ids: Sequence[int]) -> None:
    """Finds the actors, so that the measurement does not."""
    for each in node_ids:
        try:
            await network.call(each, DeleteTopicsRequest(()), _CALL_TIMEOUT_MS)
        except ApiError:
            continue  # it does not lead


async def _until_accepted(network: Network, node_ids: Sequence[int]) -> None:
    """Asks one after the other until one has created the topic."""
    request = CreateTopicsRequest((NewTopic(f"failover-{next(_numbers)}"),))
    while True:
        for each in node_ids:
            try:
                response = await network.call(each, request, _CALL_TIMEOUT_MS)
            except ApiError:
                await asyncio.sleep(0.001)  # leaves the processor to the voters that elect
                continue
            assert response.topics[0].error_code is ErrorCode.NONE, response
            return


def _await_all_caught_up(admin: rayka.Admin) -> int:
    """The leader, once every voter follows it again."""
    end_offset = admin.describe_quorum().high_watermark
    deadline = time.monotonic() + _WAIT_S
    while True:
        info = admin.describe_quorum()
        if all(each.log_end_offset >= end_offset and each.lag <= 1 for each in info.voters):
            return info.leader_id
        if time.monotonic() > deadline:
            raise TimeoutError(f"not all voters are back: {info}")
        time.sleep(0.1)
