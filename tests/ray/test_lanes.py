"""Direct lanes between real processes: used for hot calls, cut at random, and done without."""

import asyncio
import logging
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

import pytest
import ray

import rayka
from rayka.actors import exit_watch, supervisor_handle
from rayka.actors.exit_watch import ExitWatch
from rayka.actors.names import actor_name
from rayka.client import io_thread
from rayka.cluster import Cluster
from rayka.options import Transport
from rayka.spark.source import RangePartition, RaykaReader
from rayka.spark.source_options import ReadOptions
from rayka.transport.lane import Lane
from rayka.transport.stream import End
from tests.ray.lane_sockets import (
    calls_by_ray,
    connected_to,
    cut_at_node,
    cut_here,
    ends,
    offered,
    served_names,
)
from tests.ray.sender import Sender
from tests.ray.support import kill, pid_of, running, wait_until

pytestmark = [pytest.mark.lane, pytest.mark.ray]
BROKERS = (1, 2, 3)
CONFIG = {"default.replication.factor": 3, "min.insync.replicas": 2}
ONLY_DIRECT = pytest.mark.parametrize("lanes", ["auto"], indirect=True)
ROUNDS, LARGE, WAIT_S = 3, b"x" * 900_000, 60.0


@dataclass(frozen=True)
class Lanes:
    """A cluster of three brokers, and its transport."""

    cluster: Cluster
    transport: Transport


@pytest.fixture(scope="module", params=["auto", "ray"])
def lanes(
    ray_address: str, tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest
) -> Iterator[Lanes]:
    directory = str(tmp_path_factory.mktemp("lanes"))
    name = f"lanes-{request.param}"
    with Cluster.start(
        name=name, brokers=3, data_dir=directory, config=CONFIG, transport=request.param
    ) as cluster:
        yield Lanes(cluster, request.param)


@contextmanager
def cut_at_random(lanes: Lanes, seed: int) -> Iterator[list[int]]:
    """Meanwhile clients' lanes are cut in this process, and those of clients and followers at the brokers.

    Gives how many of the latter, in a list.
    """
    is_over, at_nodes = threading.Event(), [0]
    with ThreadPoolExecutor(2) as pool:
        here = pool.submit(cut_here, lanes.cluster, BROKERS, is_over, seed)

        def cut_there() -> None:
            number = seed
            while not is_over.is_set():
                number += 1
                at_nodes[0] += cut_at_node(lanes.cluster, BROKERS[number % len(BROKERS)], number)

        there = pool.submit(cut_there)
        try:
            yield at_nodes
        finally:
            is_over.set()
            count = here.result(30)
            there.result(60)
    assert (count > 0) == (at_nodes[0] > 0) == (lanes.transport == "auto")


def goes_by_lanes(cluster: Cluster, node_ids: list[int], send: Callable[[], object]) -> bool:
    """Whether what is sent now is carried by lanes; one that is just being opened carries nothing yet."""

    def produced_by_ray() -> list[int]:
        return [calls_by_ray(cluster, each).get("produce", 0) for each in node_ids]

    before = produced_by_ray()
    send()
    return produced_by_ray() == before


def topic_of(cluster: Cluster, name: str, partitions: int = 1) -> str:
    with rayka.Admin(cluster) as admin:
        admin.create_topic(name, partitions=partitions)
    return name


def leader_of(cluster: Cluster, topic: str) -> int:
    return leaders_of(cluster, topic)[0]


def leaders_of(cluster: Cluster, topic: str) -> list[int]:
    """Each once; a broker that was killed when the topic was created may lead none of its partitions."""
    with rayka.Admin(cluster) as admin:
        return list(dict.fromkeys(each.leader_id for each in admin.describe_topic(topic).partitions))


# ---- With lanes and without ----------------------------------------------------------------------------------------


def test_lanes_that_are_cut_at_both_ends_while_records_are_sent_and_read_leave_each_once_and_in_order(
    lanes: Lanes,
) -> None:
    topic = topic_of(lanes.cluster, "cut", partitions=3)
    sender = Sender(lanes.cluster, topic, pause_s=0.001)
    read: dict[int, list[int]] = {}
    with cut_at_random(lanes, 1):
        sender.start()
        with rayka.Consumer(
            topic, cluster=lanes.cluster, auto_offset_reset="earliest", local_reads=False
        ) as consumer:
            for _ in range(ROUNDS):
                sender.await_acknowledged(500)
                for record in consumer.poll(timeout_ms=500, max_records=100_000):
                    read.setdefault(record.partition, []).append(record.offset)
            sender.stop()
            while sum(map(len, read.values())) < len(sender.acknowledged):
                for record in consumer.poll(timeout_ms=500, max_records=100_000):
                    read.setdefault(record.partition, []).append(record.offset)
    records = sender.check()
    assert len(records) == len(sender.acknowledged)
    assert all(offsets == list(range(len(offsets))) for offsets in read.values())


def test_a_broker_that_is_killed_is_found_again_and_nothing_is_lost(lanes: Lanes) -> None:
    topic = topic_of(lanes.cluster, "killed")
    sender = Sender(lanes.cluster, topic, pause_s=0.002)
    killed = leader_of(lanes.cluster, topic)
    before = offered(lanes.cluster, killed)
    sender.start()
    try:
        sender.await_acknowledged(100)
        kill(pid_of(lanes.cluster, killed))
        sender.await_acknowledged(300)
    finally:
        sender.stop()
    running(lanes.cluster)
    sender.check()
    after = offered(lanes.cluster, killed)
    assert bool(after.local_name) == (lanes.transport == "auto")
    assert (after.local_name != before.local_name) == (lanes.transport == "auto")


@ONLY_DIRECT
def test_a_broker_that_is_killed_is_called_by_a_lane_again(lanes: Lanes) -> None:
    """Of a topic whose only replica it has: every record that is acknowledged afterwards came to the new process."""
    with rayka.Admin(lanes.cluster) as admin:
        admin.create_topic("alone", partitions=1, replication_factor=1, configs={"min.insync.replicas": 1})
    broker = leader_of(lanes.cluster, "alone")
    with rayka.Producer(lanes.cluster, linger_ms=0) as producer:

        def send() -> None:
            producer.send("alone", b"x").result(60)

        wait_until(lambda: goes_by_lanes(lanes.cluster, [broker], send))
        kill(pid_of(lanes.cluster, broker))
        send()
        running(lanes.cluster)
        wait_until(lambda: goes_by_lanes(lanes.cluster, [broker], send))
        assert connected_to(lanes.cluster, broker) > 0


@ONLY_DIRECT
def test_the_end_of_a_brokers_process_is_noticed_by_its_lane(
    lanes: Lanes, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Ray is not asked by time here."""
    monkeypatch.setattr(exit_watch, "_LOOK_S", 3600.0)
    broker, opened, open_lane = BROKERS[-1], asyncio.Event(), exit_watch._open_lane
    killed = pid_of(lanes.cluster, broker)

    async def opening(broker_id: int, handle: Any) -> Lane | None:
        lane = await open_lane(broker_id, handle)
        opened.set()
        return lane

    monkeypatch.setattr(exit_watch, "_open_lane", opening)

    async def noticed() -> None:
        record = await supervisor_handle.kept_record(lanes.cluster.name, WAIT_S)
        assert record is not None
        watching = asyncio.create_task(ExitWatch(record.spec, lambda *_: None).run(lambda: [broker]))
        async with asyncio.timeout(WAIT_S):
            await opened.wait()
            kill(killed)
            await logged(f"process {killed} of {actor_name(lanes.cluster.name, broker)} has exited")
        watching.cancel()

    async def logged(text: str) -> None:
        while text not in caplog.text:  # noqa: ASYNC110  # there is no event for what is logged
            await asyncio.sleep(0.05)

    with caplog.at_level(logging.INFO, logger=exit_watch.__name__):
        io_thread.run(noticed, 2 * WAIT_S)
    running(lanes.cluster)


def test_a_client_beside_one_with_the_other_transport_is_not_disturbed(lanes: Lanes) -> None:
    topic = topic_of(lanes.cluster, "both")
    leader = leader_of(lanes.cluster, topic)
    with (
        rayka.Producer(lanes.cluster) as auto,
        rayka.Producer(lanes.cluster, transport="ray") as by_ray,
    ):
        offset = 0

        def send(producer: rayka.Producer) -> None:
            nonlocal offset
            assert producer.send(topic, b"x").result(60).offset == offset
            offset += 1

        def is_direct() -> bool:
            return goes_by_lanes(lanes.cluster, [leader], lambda: send(auto))

        if lanes.transport == "auto":
            wait_until(is_direct)
        before = calls_by_ray(lanes.cluster, leader).get("produce", 0)
        for _ in range(20):
            send(by_ray)
            send(auto)
        carried = calls_by_ray(lanes.cluster, leader)["produce"] - before
        assert carried == (20 if lanes.transport == "auto" else 40)
    assert len(list(rayka.read(topic, cluster=lanes.cluster, transport="ray"))) == offset


def test_with_the_transport_ray_nothing_listens(lanes: Lanes) -> None:
    offer = offered(lanes.cluster, 1)
    assert (bool(offer.ticket), bool(offer.port)) == ((lanes.transport == "auto"),) * 2
    names = served_names(pid_of(lanes.cluster, 1))
    assert set(names) == ({offer.local_name} if lanes.transport == "auto" else set())


# ---- With lanes ----------------------------------------------------------------------------------------------------


@ONLY_DIRECT
def test_all_clients_of_a_process_share_one_connection_to_each_broker(lanes: Lanes) -> None:
    topic = topic_of(lanes.cluster, "shared", partitions=len(BROKERS))
    with ExitStack() as clients:
        producers = [clients.enter_context(rayka.Producer(lanes.cluster, linger_ms=0)) for _ in range(3)]
        consumers = [
            clients.enter_context(rayka.Consumer(topic, cluster=lanes.cluster, local_reads=False))
            for _ in range(3)
        ]

        def use_all() -> None:
            sent = [each.send(topic, b"x", partition=n) for each in producers for n in range(len(BROKERS))]
            for future in sent:
                future.result(60)
            for consumer in consumers:
                consumer.poll(timeout_ms=100)

        leaders = leaders_of(lanes.cluster, topic)
        wait_until(lambda: goes_by_lanes(lanes.cluster, leaders, use_all))
        # One that broke just before, as on a busy machine, may still be about to end.
        wait_until(lambda: [connected_to(lanes.cluster, each) for each in leaders] == [1] * len(leaders))


@ONLY_DIRECT
def test_a_frame_that_is_cut_in_the_middle_is_counted_and_its_records_arrive_once(lanes: Lanes) -> None:
    direct = lanes.cluster
    topic = topic_of(direct, "half")
    leader = leader_of(direct, topic)
    with rayka.Producer(direct, linger_ms=0) as producer, cut_at_random(lanes, 7):
        sent = 0

        def is_half_a_frame_counted() -> bool:
            nonlocal sent
            futures = [producer.send(topic, LARGE) for _ in range(20)]
            assert [each.result(60).offset for each in futures] == list(range(sent, sent + 20))
            sent += 20
            return ends(direct, leader).get(End.PARTIAL_FRAME, 0) > 0

        wait_until(is_half_a_frame_counted)
    assert sum(1 for _ in rayka.read(topic, cluster=direct)) == sent


def sends_by_ray(cluster: Cluster, topic: str) -> int:
    """Produces until there is a lane, and then twenty records: how many of these went by Ray."""
    leader = leader_of(cluster, topic)
    with rayka.Producer(cluster) as producer:
        wait_until(
            lambda: goes_by_lanes(cluster, [leader], lambda: producer.send(topic, b"first").result(60))
        )
        before = calls_by_ray(cluster, leader).get("produce", 0)
        for number in range(20):
            producer.send(topic, b"%d" % number).result(60)
        return calls_by_ray(cluster, leader).get("produce", 0) - before


@ONLY_DIRECT
def test_the_clients_of_a_ray_task_and_of_an_actor_use_lanes(lanes: Lanes) -> None:
    name = lanes.cluster.name
    topic = topic_of(lanes.cluster, "tasks")

    @ray.remote
    def task() -> int:
        return sends_by_ray(Cluster.connect(name), topic)

    @ray.remote
    class Actor:
        def send(self) -> int:
            return sends_by_ray(Cluster.connect(name), topic)

    actor: Any = Actor.remote()  # type: ignore[attr-defined]
    # One after the other: what the broker counts is not told apart by its callers.
    assert ray.get(task.remote(), timeout=240) == 0
    assert ray.get(actor.send.remote(), timeout=240) == 0


@ONLY_DIRECT
@pytest.mark.parametrize("transport", ["auto", "ray"])
def test_a_spark_task_reads_from_another_machines_broker_by_the_lane(
    lanes: Lanes, ray_address: str, transport: str
) -> None:
    direct = lanes.cluster
    topic = topic_of(direct, f"spark-{transport}")
    assert sends_by_ray(direct, topic) == 0
    leader = leader_of(direct, topic)
    options = ReadOptions.parse({"subscribe": topic, "cluster": direct.name, "transport": transport})
    reader = RaykaReader(options, ray_address, 1)
    before = calls_by_ray(direct, leader).get("fetch", 0)
    rows = sum(
        batch.num_rows
        for each in reader.partitions()
        for batch in reader.read(RangePartition(each.offsets, ()))  # type: ignore[attr-defined]
    )
    carried = calls_by_ray(direct, leader).get("fetch", 0) - before
    assert rows >= 20
    assert (carried > 0) == (transport == "ray")
