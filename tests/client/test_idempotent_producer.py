"""Idempotence as the producer does it, against a scripted cluster; the cases of Kafka's SenderTest that apply."""

from typing import Any

import pytest

from rayka import Producer
from rayka.client import io_thread
from rayka.errors import (
    BrokerNotAvailable,
    ConfigError,
    DeliveryTimeout,
    ErrorCode,
    InvalidProducerEpoch,
    InvalidRequest,
    NetworkException,
)
from rayka.protocol.batch_format import NO_SEQUENCE, RecordBatch
from tests.client.support import BROKER, QUICK, ScriptedCluster

WAIT_S = 60


def sent(cluster: ScriptedCluster, partition: int = 0) -> list[tuple[int, int, int]]:
    """Producer id, epoch and base sequence of every batch that was sent to the partition, taken or not."""
    batches = [
        RecordBatch(part.records)
        for request in cluster.requests
        for part in request.partitions
        if part.partition == partition
    ]
    return [(each.producer_id, each.producer_epoch, each.base_sequence) for each in batches]


def one_by_one(producer: Producer, *values: bytes) -> None:
    for value in values:
        producer.send("orders", value, partition=0).result(WAIT_S)


# ---- Configuration ----


@pytest.mark.parametrize(
    ("options", "is_idempotent"),
    [
        ({}, True),
        ({"acks": "all", "enable_idempotence": True}, True),
        ({"enable_idempotence": False}, False),
        ({"acks": 1}, False),
        ({"acks": 0}, False),
        ({"max_in_flight_requests_per_connection": 6}, False),
    ],
)
def test_idempotence_is_the_default_where_the_other_options_allow_it(
    options: Any, is_idempotent: bool
) -> None:  # C7
    cluster = ScriptedCluster()
    with Producer(cluster, **QUICK, **options) as producer:
        one_by_one(producer, b"x")
    assert (sent(cluster) != [NO_SEQUENCE]) == is_idempotent
    assert cluster.producer_ids == is_idempotent


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"acks": 1}, "needs acks='all'"),
        ({"max.in.flight.requests.per.connection": 6}, "max_in_flight_requests_per_connection=5 or less"),
    ],
)
def test_options_that_forbid_idempotence_are_refused_where_it_is_asked_for(
    options: Any, says: str
) -> None:  # C7
    with pytest.raises(ConfigError, match=f"enable.idempotence.*{says}"):
        Producer(ScriptedCluster(), config={"enable.idempotence": True, **options})


# ---- Producer ids ----


def test_a_producer_asks_for_its_id_when_it_first_sends() -> None:  # C12
    cluster = ScriptedCluster()
    with Producer(cluster, **QUICK) as first, Producer(cluster, **QUICK) as second:
        assert cluster.producer_ids == 0
        one_by_one(first, b"a", b"b")
        second.send("orders", b"c", partition=1).result(WAIT_S)
    assert sent(cluster) == [(0, 0, 0), (0, 0, 1)]
    assert sent(cluster, 1) == [(1, 0, 0)]


@pytest.mark.parametrize("error", [NetworkException("lost"), BrokerNotAvailable("starting")], ids=repr)
def test_an_id_that_is_not_given_is_asked_for_again(error: Exception) -> None:  # C12
    cluster = ScriptedCluster()
    cluster.id_answers.extend([error] * 3)
    with Producer(cluster, **QUICK) as producer:
        one_by_one(producer, b"a")
    assert sent(cluster) == [(0, 0, 0)]


def test_an_id_is_asked_of_another_broker_when_one_has_none_to_give() -> None:  # C12
    cluster = ScriptedCluster()
    cluster.cut_off.append(BROKER)
    with Producer(cluster, **QUICK) as producer:
        one_by_one(producer, b"a")
    assert (sent(cluster), cluster.asked) == ([(0, 0, 0)], [BROKER])


def test_a_cluster_without_producer_ids_fails_what_is_sent_and_says_why() -> None:  # C12
    cluster = ScriptedCluster()
    cluster.id_answers.append(InvalidRequest("broker-1 does not serve 'init_producer_id'"))
    with Producer(cluster, **QUICK) as producer:
        with pytest.raises(InvalidRequest, match="does not serve"):
            one_by_one(producer, b"a")
        one_by_one(producer, b"b")
    assert cluster.values("orders", 0) == [b"b"]


def test_delivery_ends_after_its_time_also_without_an_id() -> None:  # C12
    cluster = ScriptedCluster()
    cluster.id_answers.extend([BrokerNotAvailable("no controller")] * 10_000)
    with Producer(cluster, **QUICK, delivery_timeout_ms=1_000) as producer:
        with pytest.raises(DeliveryTimeout, match="the last error: no controller"):
            one_by_one(producer, b"a")


# ---- Sequences ----


def test_each_partition_counts_its_own_records() -> None:  # C11
    cluster = ScriptedCluster()
    with Producer(cluster, **QUICK) as producer:
        producer.send_batch("orders", [b"a"] * 3).result(WAIT_S)
        for partition in (0, 1, 0):
            producer.send("orders", b"x", partition=partition).result(WAIT_S)
    logs = [sent(cluster, partition) for partition in range(3)]
    counts = [len(cluster.values("orders", partition)) for partition in range(3)]
    assert [[sequence for _, _, sequence in log][:1] for log in logs if log] == [[0]] * sum(map(bool, logs))
    assert sum(counts) == 6


def test_a_retry_has_the_sequence_and_the_bytes_of_the_first_try() -> None:  # C11
    cluster = ScriptedCluster()
    with Producer(cluster, **QUICK) as producer:
        one_by_one(producer, b"a")
        cluster.answers.extend([NetworkException("lost"), ErrorCode.NOT_ENOUGH_REPLICAS])
        one_by_one(producer, b"b")
    assert sent(cluster) == [(0, 0, 0), (0, 0, 1), (0, 0, 1), (0, 0, 1)]
    tries = [request.partitions[0].records.tobytes() for request in cluster.requests[1:]]
    assert len(set(tries)) == 1


def test_a_duplicate_is_a_success_whose_offset_is_not_known() -> None:  # C11
    cluster = ScriptedCluster()
    with Producer(cluster, **QUICK) as producer:
        cluster.answers.append(ErrorCode.DUPLICATE_SEQUENCE_NUMBER)
        assert producer.send("orders", b"a", partition=0).result(WAIT_S).offset == -1
        one_by_one(producer, b"b")
    assert sent(cluster) == [(0, 0, 0), (0, 0, 1)]


@pytest.mark.parametrize("code", [ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, ErrorCode.UNKNOWN_PRODUCER_ID])
def test_a_log_that_has_lost_something_gets_the_batch_in_a_new_epoch(code: ErrorCode) -> None:  # C11
    cluster = ScriptedCluster()
    with Producer(cluster, **QUICK) as producer:
        one_by_one(producer, b"a", b"b")
        cluster.answers.append(code)
        one_by_one(producer, b"c", b"d")
    assert sent(cluster) == [(0, 0, 0), (0, 0, 1), (0, 0, 2), (0, 1, 0), (0, 1, 1)]
    assert cluster.values("orders", 0) == [b"a", b"b", b"c", b"d"]


def test_after_a_batch_that_was_refused_for_good_the_next_begins_an_epoch() -> None:  # C11
    cluster = ScriptedCluster()
    with Producer(cluster, **QUICK) as producer:
        one_by_one(producer, b"a")
        cluster.answers.append(ErrorCode.MESSAGE_TOO_LARGE)
        assert producer.send("orders", b"b", partition=0).exception(WAIT_S) is not None
        one_by_one(producer, b"c")
    assert sent(cluster) == [(0, 0, 0), (0, 0, 1), (0, 1, 0)]


def test_an_epoch_that_the_log_refuses_is_an_error_and_the_next_one_is_tried() -> None:  # C4, C11
    cluster = ScriptedCluster()
    with Producer(cluster, **QUICK) as producer:
        cluster.answers.append(ErrorCode.INVALID_PRODUCER_EPOCH)
        with pytest.raises(InvalidProducerEpoch, match="broker-1 of cluster 'scripted', orders-0"):
            one_by_one(producer, b"a")
        one_by_one(producer, b"b")
    assert sent(cluster) == [(0, 0, 0), (0, 1, 0)]


def test_a_topic_made_anew_begins_with_sequence_zero() -> None:  # C11
    cluster = ScriptedCluster()
    with Producer(cluster, **QUICK) as producer:
        one_by_one(producer, b"a", b"b")
        topics, cluster.topics = cluster.topics, {}
        assert producer.send("orders", b"c", partition=0).exception(WAIT_S) is not None
        cluster.topics = topics
        one_by_one(producer, b"d")
    assert sent(cluster)[-1] == (0, 0, 0)


# ---- In flight ----


def full_batches_in_flight(cluster: ScriptedCluster, options: dict[str, Any]) -> int:
    """How many requests wait at the broker when a partition has ten full batches to send."""
    with Producer(cluster, **QUICK, batch_size=1_000, **options) as producer:
        one_by_one(producer, b"first")
        cluster.requests.clear()
        cluster.hold()
        for _ in range(10):
            producer.send("orders", bytes(700), partition=0)
        cluster.wait_until_held()
        io_thread.wait_for_call(producer._core.sender.call_when_sent, WAIT_S)
        count = len(cluster.requests)
        cluster.release()
    return count


@pytest.mark.parametrize(
    ("options", "count"),
    [
        ({}, 5),
        ({"max_in_flight_requests_per_connection": 2}, 2),
        ({"max_in_flight_requests_per_connection": 1}, 1),
        ({"enable_idempotence": False}, 1),
    ],
    ids=repr,
)
def test_full_batches_of_one_partition_are_in_flight_together(
    options: dict[str, Any], count: int
) -> None:  # C7, C11
    cluster = ScriptedCluster()
    assert full_batches_in_flight(cluster, options) == count
    assert [len(request.partitions) for request in cluster.requests] == [1] * len(cluster.requests)  # C1
    assert len(cluster.values("orders", 0)) == 11


def test_what_breaks_behind_a_lost_request_is_repeated_in_order() -> None:  # C11
    cluster = ScriptedCluster()
    with Producer(cluster, **QUICK, batch_size=1_000) as producer:
        one_by_one(producer, b"first")
        cluster.hold()
        futures = [producer.send("orders", b"%d" % n + bytes(700), partition=0) for n in range(4)]
        cluster.wait_until_held()
        out_of_order = ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
        cluster.answers.extend([ErrorCode.NOT_ENOUGH_REPLICAS, out_of_order, out_of_order])
        io_thread.wait_for_call(producer._core.sender.call_when_sent, WAIT_S)
        cluster.release()
        assert [each.result(WAIT_S).offset for each in futures] == [1, 2, 3, 4]
    assert {epoch for _, epoch, _ in sent(cluster)} == {0}
    assert [each and each[:1] for each in cluster.values("orders", 0)] == [b"f", b"0", b"1", b"2", b"3"]
