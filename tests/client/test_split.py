"""Batches that the log refuses as too large go again in smaller parts; one record that is too large fails alone."""

import asyncio
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import count
from typing import Any

import pytest

import rayka
import rayka.testing
from rayka import Admin, Producer
from rayka.client.producer.delivery_future import DeliveryFuture
from rayka.errors import NetworkException, RecordTooLarge
from rayka.protocol.produce import ProduceRequest
from rayka.testing import InProcessCluster
from tests.client.support import QUICK, ScriptedCluster

WAIT_S = 60
GATHERING = {"linger_ms": 60_000}
_numbers = count()


def limited(bytes_max: int) -> ScriptedCluster:
    """A log with one partition that takes no larger batches, though its topic says nothing of it."""
    cluster = ScriptedCluster({"orders": 1})
    cluster.batch_bytes_max = bytes_max
    return cluster


@pytest.fixture(scope="module")
def cluster() -> Iterator[InProcessCluster]:
    with rayka.testing.cluster(config={"log.retention.ms": -1}) as running:
        yield running


def lowered(cluster: InProcessCluster, topic: str, bytes_max: int) -> None:
    """The log takes less from now on; a producer that knows the topic learns of it later."""
    with Admin(cluster) as admin:
        admin.alter_configs({"max.message.bytes": bytes_max}, topic=topic)


def new_topic(cluster: InProcessCluster) -> str:
    name = f"orders-{next(_numbers)}"
    with Admin(cluster) as admin:
        admin.create_topic(name, partitions=1)
    return name


def test_each_record_of_a_split_batch_learns_its_own_place():
    cluster = limited(1_000)
    with Producer(cluster, **GATHERING) as producer:
        sent = [producer.send("orders", b"%0100d" % number) for number in range(100)]
        producer.flush(WAIT_S)
        assert [each.result(0).offset for each in sent] == list(range(100))
    assert cluster.values("orders", 0) == [b"%0100d" % number for number in range(100)]
    assert max(each.size_bytes for each in cluster.logs["orders", 0]) <= 1_000


@pytest.mark.parametrize("compression_type", ["none", "zstd"])
def test_keys_headers_and_timestamps_stay_with_their_records(
    cluster: InProcessCluster, compression_type: str
):
    topic = new_topic(cluster)
    with Producer(cluster, compression_type=compression_type, **GATHERING) as producer:
        producer.send(topic, b"first")
        for n in range(50):
            producer.send(topic, b"%050d" % n, key=b"k%d" % n, headers={"h": b"%d" % n}, timestamp_ms=n + 1)
        lowered(cluster, topic, 1_200)
        producer.flush(WAIT_S)
    found = [
        (each.key, each.value, each.headers, each.timestamp_ms) for each in rayka.read(topic, cluster=cluster)
    ]
    assert found[1:] == [(b"k%d" % n, b"%050d" % n, [("h", b"%d" % n)], n + 1) for n in range(50)]


def test_batches_in_flight_behind_a_split_one_stay_in_order_and_come_once(cluster: InProcessCluster):
    """Each of them is out of sequence first, and too large itself then."""
    topic = new_topic(cluster)
    with Producer(cluster, batch_size=8_000, retry_backoff_ms=1, **GATHERING) as producer:
        sent = [producer.send(topic, b"first")]
        producer.flush(WAIT_S)
        lowered(cluster, topic, 1_500)
        sent += [producer.send(topic, b"%0100d" % number) for number in range(1_000)]
        producer.flush(WAIT_S)
        assert [each.result(0).offset for each in sent] == list(range(1_001))
    values = [each.value for each in rayka.read(topic, cluster=cluster)]
    assert values == [b"first", *(b"%0100d" % number for number in range(1_000))]


def test_one_record_too_large_fails_alone(cluster: InProcessCluster):
    topic = new_topic(cluster)
    received: dict[int, Exception | None] = {}

    def send(producer: Producer, number: int) -> DeliveryFuture:
        value = bytes(5_000) if number in (0, 17, 39) else b"%d" % number
        return producer.send(topic, value, on_delivery=lambda error, _: received.__setitem__(number, error))

    with Producer(cluster, retry_backoff_ms=1, **GATHERING) as producer:
        producer.send(topic, b"first")
        producer.flush(WAIT_S)
        lowered(cluster, topic, 1_500)
        sent = [send(producer, number) for number in range(40)]
        producer.flush(WAIT_S)
        failed = [number for number, each in enumerate(sent) if each.exception(0) is not None]
        assert failed == [0, 17, 39]
        assert all(isinstance(received[each], RecordTooLarge) for each in failed)
        assert [number for number, error in received.items() if error is None] == [
            number for number in range(40) if number not in failed
        ]
        producer.send(topic, b"last")
    values = [each.value for each in rayka.read(topic, cluster=cluster)]
    assert values == [b"first", *(b"%d" % each for each in range(40) if each not in failed), b"last"]
    offsets = [each.result(0).offset for number, each in enumerate(sent) if number not in failed]
    assert offsets == list(range(1, 38))


def test_the_runs_of_a_split_batch_cover_its_records(cluster: InProcessCluster):
    topic = new_topic(cluster)
    with Producer(cluster, retry_backoff_ms=1) as producer:
        producer.send(topic, b"first").result(WAIT_S)
        lowered(cluster, topic, 1_500)
        runs = producer.send_batch(topic, [b"%0100d" % number for number in range(100)]).result(WAIT_S)
    covered = [each.base_offset + index for each in runs for index in range(each.record_count)]
    assert covered == list(range(1, 101))


def test_records_beyond_what_one_batch_can_hold_go_in_several():
    cluster, large = ScriptedCluster({"orders": 1}), 100 << 20
    cluster.configs = {"max.message.bytes": str(large)}
    with Producer(cluster, batch_size=large, max_request_size=large, buffer_memory=large) as producer:
        runs = producer.send_batch("orders", [bytes(1 << 20)] * 70).result(WAIT_S)
    assert [each.record_count for each in runs] == [35, 35]


def test_the_limit_is_learnt_so_that_later_batches_fit():
    cluster = limited(2_000)
    cluster.configs = {}
    with Producer(cluster, **QUICK) as producer:
        producer.send("orders", b"x").result(WAIT_S)
        cluster.configs = {"max.message.bytes": "2000"}
        cluster.metadata_offset += 1
        producer.send_batch("orders", [bytes(100)] * 100).result(WAIT_S)
        refused_count = cluster.refused_count
        assert refused_count > 0
        producer.send_batch("orders", [bytes(100)] * 100).result(WAIT_S)
        assert cluster.refused_count == refused_count


class LosingCluster:
    """A cluster whose first produce is executed, and answered never; `then` runs before anything else is sent."""

    def __init__(self, cluster: InProcessCluster, then: Callable[[], object]) -> None:
        self.name = cluster.name
        self._network = cluster.network()
        self._then: Callable[[], object] | None = then

    def network(self, transport: str = "auto") -> "LosingCluster":
        return self

    async def node_ids(self) -> Sequence[int]:
        return await self._network.node_ids()

    async def call(self, node_id: int, request: Any, timeout_ms: int) -> Any:
        response = await self._network.call(node_id, request, timeout_ms)
        if isinstance(request, ProduceRequest) and (then := self._then) is not None:
            self._then = None
            await asyncio.to_thread(then)
            raise NetworkException("the answer was lost")
        return response


def test_a_batch_that_the_log_has_is_known_again_though_its_limit_was_lowered(
    cluster: InProcessCluster,
):  # C3
    topic = new_topic(cluster)
    losing = LosingCluster(cluster, partial(lowered, cluster, topic, 1_000))
    with Producer(losing, retry_backoff_ms=1, **GATHERING) as producer:
        sent = [producer.send(topic, b"%0100d" % number) for number in range(20)]
        producer.flush(WAIT_S)
        assert [each.result(0).offset for each in sent] == list(range(20))
    assert [each.value for each in rayka.read(topic, cluster=cluster)] == [b"%0100d" % n for n in range(20)]


def test_a_batch_whose_first_request_was_lost_is_cut_all_the_same():
    cluster = limited(1_000)
    cluster.answers += [NetworkException("lost")]
    with Producer(cluster, retry_backoff_ms=1, **GATHERING) as producer:
        sent = [producer.send("orders", b"%0100d" % number) for number in range(20)]
        producer.flush(WAIT_S)
        assert [each.result(0).offset for each in sent] == list(range(20))


@pytest.mark.parametrize("limit", ["max.message.bytes", "segment.bytes"])
def test_batches_are_made_for_the_smaller_of_the_topics_limits(limit: str):
    cluster = limited(2_000)
    cluster.configs = {limit: "2000"}
    with Producer(cluster, **GATHERING) as producer:
        producer.send_batch("orders", [bytes(100)] * 100)
        producer.flush(WAIT_S)
    assert cluster.refused_count == 0
