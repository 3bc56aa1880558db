"""How long replicas take to move, in virtual time: what leaves a broker goes at the rate of one (decision 078)."""

from collections.abc import Iterator
from random import Random

import pytest

from rayka.client.admin.admin_configs import resource_of
from rayka.client.admin.async_admin import AsyncAdmin
from rayka.config.client_config import AdminConfig
from rayka.ids import TopicPartition
from rayka.metadata.image import TopicImage
from rayka.ports import Network
from rayka.protocol.active_controller import ActiveController
from rayka.protocol.batch_encode import encode_batch
from rayka.protocol.configs import DRAIN_DEADLINE, AlterConfigOp, ConfigChange
from rayka.protocol.produce import ACKS_ALL, ProducePartition, ProduceRequest
from rayka.protocol.topics import CreateTopicsRequest, NewTopic
from rayka.sim.checks.data_history import Send
from rayka.sim.run_options import CLIENT_ID
from tests.testing.virtual import VirtualCluster, virtual_cluster

MOVED, PARTITIONS, BATCHES, BATCH_BYTES = "moved", 12, 10, 5_000
RATE_BYTES = 100_000
RATE_MS = 1_000 * PARTITIONS * BATCHES * BATCH_BYTES // RATE_BYTES  # of one replica of each partition
SLACK_MS = 1_000
TIMEOUT_MS = 5_000
CONFIG = {
    "reassignment_replication_throttled_rate": RATE_BYTES,
    "replica_fetch_response_max_bytes": 2 * BATCH_BYTES,
    "broker_session_timeout_ms": 2_000,
    "broker_heartbeat_interval_ms": 200,
    "balancer_enable": False,
}


class _Handle:
    """For an admin, which asks several brokers at a time for their metadata."""

    name = "virtual"

    def __init__(self, cluster: VirtualCluster) -> None:
        self._cluster = cluster

    def network(self, transport: str = "auto") -> Network:
        return self._cluster.port()


class Moves:
    """Four brokers. Of each partition three hold a replica: what moves is one replica of each."""

    def __init__(self, cluster: VirtualCluster, replicas: list[tuple[int, ...]]) -> None:
        self.cluster = cluster
        config = AdminConfig.parse({"default_api_timeout_ms": TIMEOUT_MS}, what="admin")
        self.admin = AsyncAdmin(_Handle(cluster), config, Random(1))  # type: ignore[arg-type]
        self._controller = ActiveController(cluster.network())
        topic = NewTopic(MOVED, configs={"min.insync.replicas": "2"}, assignments=tuple(replicas))
        cluster.run(self._controller.call(CreateTopicsRequest((topic,)), TIMEOUT_MS))
        cluster.go_on(500)
        for number in range(BATCHES * PARTITIONS):
            self._fill(number, number % PARTITIONS)

    def _fill(self, number: int, partition: int) -> None:
        value = b"%d" % number + bytes(BATCH_BYTES)
        self.cluster.sim.data_history.begin(
            Send(CLIENT_ID, number, MOVED, partition, value, ACKS_ALL, False, 0)
        )
        records = encode_batch([value], timestamps_ms=1_700_000_000_000)
        part = ProducePartition(self._topic.topic_id, partition, records)
        leader_id = self._topic.partitions[partition].leader_id
        request = ProduceRequest(ACKS_ALL, TIMEOUT_MS, (part,))
        self.cluster.run(self.cluster.network().call(leader_id, request, TIMEOUT_MS))

    @property
    def _topic(self) -> TopicImage:
        return self.cluster.sim.ledger.newest_image.topics[MOVED]

    def taken_ms(self) -> int:
        """Until nothing is reassigned any more."""
        assert any(each.is_reassigned for each in self._topic.partitions)
        begin_ms = self.cluster.now_ms
        self.cluster.until(lambda: not any(each.is_reassigned for each in self._topic.partitions))
        return self.cluster.now_ms - begin_ms

    def reassign(self, replicas: tuple[int, ...]) -> None:
        wanted = {TopicPartition(MOVED, each): replicas for each in range(PARTITIONS)}
        self.cluster.run(self.admin.partitions.alter_reassignments(wanted))

    def mark(self, broker_id: int) -> None:
        """As the supervisor does when Ray drains its machine."""
        change = ConfigChange(DRAIN_DEADLINE, AlterConfigOp.SET, "0")
        self.cluster.run(self.admin.configs.alter(resource_of(None, broker_id), (change,)))


@pytest.fixture
def cluster() -> Iterator[VirtualCluster]:
    with virtual_cluster(brokers=4, **CONFIG) as made:
        yield made


def on_broker_4() -> list[tuple[int, ...]]:
    """What it holds goes to each of the three others, as evenly as can be; each leads some."""
    return [((1, 2, 4), (2, 4, 3), (4, 3, 1), (1, 4, 2))[number % 4] for number in range(PARTITIONS)]


def test_a_drain_takes_as_long_as_the_rate_of_one_broker_needs(cluster: VirtualCluster) -> None:
    moves = Moves(cluster, on_broker_4())
    plan = cluster.run(moves.admin.drain_broker(4))
    assert len({each for replicas in plan.values() for each in replicas}) == 3
    assert RATE_MS - SLACK_MS <= moves.taken_ms() <= RATE_MS + SLACK_MS


def test_a_broker_that_comes_is_filled_at_its_rate(cluster: VirtualCluster) -> None:
    """Three brokers give, so each of them gives a third."""
    moves = Moves(cluster, [(1, 2, 3)] * PARTITIONS)
    wanted = ((4, 2, 3), (1, 4, 3), (1, 2, 4))
    moved = {TopicPartition(MOVED, each): wanted[each % 3] for each in range(PARTITIONS)}
    cluster.run(moves.admin.partitions.alter_reassignments(moved))
    assert RATE_MS - SLACK_MS <= moves.taken_ms() <= RATE_MS + SLACK_MS


def test_a_machine_that_goes_is_emptied_at_the_rate_of_each_that_takes_over(
    cluster: VirtualCluster,
) -> None:  # 073
    moves = Moves(cluster, on_broker_4())
    moves.mark(4)
    cluster.run(moves.admin.drain_broker(4))
    assert moves.taken_ms() <= RATE_MS // 2 + SLACK_MS


def test_what_a_dead_broker_held_is_made_anew_at_the_rate_of_each_that_takes_over(
    cluster: VirtualCluster,
) -> None:
    moves = Moves(cluster, on_broker_4())
    cluster.sim.cluster.kill(4)
    cluster.until(lambda: not cluster.sim.ledger.newest_image.brokers[4].is_active)
    cluster.run(moves.admin.drain_broker(4))
    assert moves.taken_ms() <= RATE_MS // 2 + SLACK_MS
