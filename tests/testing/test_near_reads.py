"""Consumers of replicated partitions: the nearest replica is read, leaders change, logs are truncated (G15, G16)."""

from collections.abc import Sequence
from contextlib import ExitStack
from typing import Any, TypeVar

import pytest

import rayka
import rayka.testing
from rayka.errors import LogTruncation
from rayka.ports import Request
from rayka.protocol.fetch import FetchRequest
from rayka.protocol.membership import MetadataPartition
from rayka.protocol.produce import ACKS_LEADER
from rayka.testing import InProcessCluster
from tests.testing.waiting import WAIT_S, wait_until

BROKERS, CONTROLLER = (1, 2, 3), 3001
TOPIC, PARTITION = "orders", rayka.TopicPartition("orders", 0)
RACKS = {1: "one", 2: "two", 3: "three"}
FAST = {
    "broker.session.timeout.ms": "3000",
    "broker.heartbeat.interval.ms": "100",
    "replica.lag.time.max.ms": "3000",
    "replica.fetch.backoff.ms": "100",
    "replica.fetch.wait.max.ms": "50",
}
CONSUMER = {
    "auto_offset_reset": "earliest",
    "fetch_max_wait_ms": 50,
    "retry_backoff_ms": 10,
    "local_reads": False,
}
ResponseT = TypeVar("ResponseT")


class Watched:
    """A cluster, and which brokers its clients ask for records."""

    def __init__(self, cluster: InProcessCluster) -> None:
        self.name = cluster.name
        self.asked: list[int] = []
        self._network = cluster.network()

    def network(self, transport: str = "auto") -> "Watched":
        return self

    async def node_ids(self) -> Sequence[int]:
        return await self._network.node_ids()

    async def call(self, node_id: int, request: Request[ResponseT], timeout_ms: int) -> ResponseT:
        if isinstance(request, FetchRequest):
            self.asked.append(node_id)
        return await self._network.call(node_id, request, timeout_ms)


def create(cluster: InProcessCluster, **configs: str) -> MetadataPartition:
    named = {key.replace("_", "."): value for key, value in configs.items()}
    with rayka.Admin(cluster=cluster) as admin:
        admin.create_topic(TOPIC, partitions=1, replication_factor=len(BROKERS), configs=named)
    cluster.await_isr(TOPIC, 0, BROKERS)
    return cluster.await_partition(TOPIC, 0, lambda state: state.leader_id != -1)


def send(cluster: InProcessCluster, *values: bytes, **options: Any) -> None:
    with rayka.Producer(cluster=cluster, linger_ms=0, **options) as producer:
        for each in values:
            producer.send(TOPIC, value=each).result(WAIT_S)


def read(consumer: rayka.Consumer, count: int) -> list[bytes | None]:
    found: list[bytes | None] = []

    def has_all() -> bool:
        found.extend(each.value for each in consumer.poll(100))
        return len(found) >= count

    wait_until(has_all)
    return found


def follower_of(partition: MetadataPartition) -> int:
    return next(each for each in partition.isr if each != partition.leader_id)


# ---- The nearest replica ----


def test_a_consumer_reads_from_the_replica_in_its_rack_and_from_the_leader_when_that_is_gone() -> None:  # G15
    with rayka.testing.cluster(brokers=3, config=FAST, racks=RACKS) as cluster:
        created = create(cluster)
        near_id = follower_of(created)
        send(cluster, b"a", b"b")
        watched = Watched(cluster)
        with rayka.Consumer(TOPIC, cluster=watched, client_rack=RACKS[near_id], **CONSUMER) as consumer:
            assert read(consumer, 2) == [b"a", b"b"]
            send(cluster, b"c")
            assert read(consumer, 1) == [b"c"]
            assert watched.asked[0] == created.leader_id
            assert set(watched.asked[1:]) == {near_id}
            cluster.kill(near_id)
            cluster.await_isr(TOPIC, 0, [each for each in BROKERS if each != near_id])
            send(cluster, b"d")
            assert read(consumer, 1) == [b"d"]


def test_a_reader_that_can_open_a_brokers_files_is_in_its_rack() -> None:  # G15
    with rayka.testing.cluster(brokers=3, config=FAST, racks=RACKS) as cluster:
        create(cluster)
        send(cluster, b"a")
        watched = Watched(cluster)
        with rayka.Consumer(TOPIC, cluster=watched, **{**CONSUMER, "local_reads": True}) as consumer:
            assert read(consumer, 1) == [b"a"]
            assert watched.asked[-1] == 1  # all are here: the first of them


# ---- Leaders change ----


def test_a_consumer_follows_the_leadership() -> None:  # G18
    with rayka.testing.cluster(brokers=3, config=FAST) as cluster:
        created = create(cluster)
        send(cluster, b"a")
        with rayka.Consumer(TOPIC, cluster=cluster, **CONSUMER) as consumer:
            assert read(consumer, 1) == [b"a"]
            cluster.kill(created.leader_id)
            cluster.await_partition(TOPIC, 0, lambda state: state.leader_id not in (-1, created.leader_id))
            send(cluster, b"b", b"c")
            assert read(consumer, 2) == [b"b", b"c"]


@pytest.mark.parametrize("reset", ["earliest", "none"])
def test_a_consumer_notices_that_what_it_has_read_was_lost(reset: str) -> None:  # G16
    with rayka.testing.cluster(brokers=3, config=FAST) as cluster, ExitStack() as stack:
        old_id = create(cluster, unclean_leader_election_enable="true", min_insync_replicas="1").leader_id
        send(cluster, b"kept")
        consumer = stack.enter_context(
            rayka.Consumer(cluster=cluster, **{**CONSUMER, "auto_offset_reset": reset})
        )
        consumer.assign([PARTITION])
        consumer.seek(PARTITION, 0)
        assert read(consumer, 1) == [b"kept"]
        followers = [each for each in BROKERS if each != old_id]
        for each in followers:
            cluster.kill(each)
        cluster.await_isr(TOPIC, 0, [old_id])
        send(cluster, b"lost", b"lost too", acks=ACKS_LEADER)
        assert read(consumer, 2) == [b"lost", b"lost too"]
        cluster.kill(old_id)
        for each in followers:
            cluster.restart(each)
        cluster.await_partition(TOPIC, 0, lambda state: state.leader_id in followers)
        send(cluster, b"new")
        if reset == "earliest":
            assert read(consumer, 1) == [b"new"]
        else:
            with pytest.raises(LogTruncation) as caught:
                read(consumer, 1)
            assert caught.value.divergent_offsets == {PARTITION: 1}


def test_members_of_a_group_get_the_partitions_of_their_racks() -> None:  # E9
    with rayka.testing.cluster(
        brokers=2, racks={1: "one", 2: "two"}, config={"group.initial.rebalance.delay.ms": 0}
    ) as cluster:
        with rayka.Admin(cluster=cluster) as admin:
            admin.create_topic(TOPIC, assignments=[[1], [2], [1], [2]])
        with ExitStack() as stack:
            consumers = [
                stack.enter_context(
                    rayka.Consumer(
                        TOPIC, cluster=cluster, group_id="g", client_rack=rack, heartbeat_interval_ms=50
                    )
                )
                for rack in ("one", "two")
            ]

            def have_theirs() -> bool:
                for each in consumers:
                    each.poll(20)
                owned = [sorted(tp.partition for tp in each.assignment()) for each in consumers]
                return owned == [[0, 2], [1, 3]]

            wait_until(have_theirs)
