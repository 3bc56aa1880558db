"""Direct lanes between real processes: used for hot calls, cut at random, and done without."""

import asyncio
import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Event

import pytest
import ray

import rayka
from rayka import Admin, Producer
from rayka.actors import launch
from rayka.client import io_thread
from rayka.cluster import Cluster
from rayka.protocol.wire import decode
from rayka.transport.greeting import LaneOffer
from rayka.transport.lane import Lane
from rayka.transport.lanes import Node, lanes_of_this_loop
from tests.ray.support import kill, pid_of, running, wait_until

pytestmark = pytest.mark.lane
CUTS, ROUND = 8, 1_000


def lane_to(cluster: Cluster, node_id: int) -> Lane | None:
    """The open lane of this process's clients to a node."""

    async def find() -> Lane | None:
        lane = lanes_of_this_loop()._lanes.get(Node(cluster.name, node_id))
        return lane if lane is not None and lane.is_open else None

    return io_thread.run(find(), 10)


@contextmanager
def cut_at_random(cluster: Cluster, seed: int) -> Iterator[list[Lane]]:
    """Meanwhile the lanes of this process's clients are cut, a random one every few milliseconds; gives those cut."""
    cut: list[Lane] = []
    is_over = Event()

    async def cut_lanes() -> None:
        chance = random.Random(seed)
        while not is_over.is_set():
            await asyncio.sleep(chance.uniform(0.0, 0.05))
            lanes = [
                each
                for node, each in lanes_of_this_loop()._lanes.items()
                if node.cluster_name == cluster.name
            ]
            for lane in chance.sample(lanes, min(1, len(lanes))):
                if lane.is_open:
                    lane.close()
                    cut.append(lane)

    task = asyncio.run_coroutine_threadsafe(cut_lanes(), io_thread.loop())
    try:
        yield cut
    finally:
        is_over.set()
        task.result(30)


def test_clients_use_a_lane_and_find_the_next_process_by_ray_when_it_ends(cluster: Cluster) -> None:
    with Admin(cluster) as admin:
        admin.create_topic("hot")
    with Producer(cluster) as producer:
        acknowledged = 0

        def has_lane_after_sending(but: Lane | None = None) -> bool:
            nonlocal acknowledged
            assert producer.send("hot", b"%d" % acknowledged).result(60).offset == acknowledged
            acknowledged += 1
            return lane_to(cluster, 1) not in (None, but)

        wait_until(has_lane_after_sending)
        first = lane_to(cluster, 1)
        kill(pid_of(cluster, 1))
        wait_until(lambda: has_lane_after_sending(but=first))
    running(cluster)
    values = [each.value for each in rayka.read("hot", cluster=cluster)]
    assert values == [b"%d" % number for number in range(acknowledged)]


@pytest.mark.parametrize("seed", [1, 2])
def test_lanes_that_are_cut_while_records_are_sent_and_read_leave_each_record_once_and_in_order(
    cluster: Cluster, seed: int
) -> None:
    topic = f"cut-{seed}"
    with Admin(cluster) as admin:
        admin.create_topic(topic)
    with cut_at_random(cluster, seed) as cut:
        with Producer(cluster, linger_ms=0, batch_size=2_000) as producer:
            sent = 0
            while len(cut) < CUTS:
                futures = [producer.send(topic, b"%d" % number) for number in range(sent, sent + ROUND)]
                assert [each.result(60).offset for each in futures] == list(range(sent, sent + ROUND))
                sent += ROUND
        cut.clear()
        read: list[int] = []
        while len(cut) < CUTS:
            records = rayka.read(topic, cluster=cluster, local_reads=False)
            read = [int(each.value or b"") for each in records]
            assert read == list(range(sent))


def test_with_the_transport_ray_nothing_listens_and_everything_works(
    start: Callable[..., Cluster], tmp_path: Path
) -> None:
    cluster = start(data_dir=str(tmp_path), transport="ray")
    offer = ray.get(launch.find(cluster.name, 1).open_lane.remote())
    assert decode(LaneOffer, offer).ticket == b""
    with Admin(cluster) as admin:
        admin.create_topic("cold")
    with Producer(cluster) as producer:
        assert producer.send("cold", b"x").result(60).offset == 0
    assert lane_to(cluster, 1) is None
