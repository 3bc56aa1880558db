"""What a producer says of what it has done."""

import pytest

from rayka import Producer
from rayka.errors import ErrorCode
from tests.client.support import QUICK, ScriptedCluster

WAIT_S = 60


def test_a_new_producer_has_done_nothing():
    with Producer(ScriptedCluster()) as producer:
        metrics = producer.metrics()
    assert (
        metrics.records_total
        == metrics.requests_total
        == metrics.records_waiting
        == metrics.buffer_bytes
        == 0
    )
    assert metrics.request_latency_ms_p50 is metrics.request_latency_ms_p99 is None


def test_records_batches_bytes_and_requests_are_counted():
    cluster = ScriptedCluster({"orders": 2})
    with Producer(cluster, **QUICK) as producer:
        for partition in range(2):
            for _ in range(5):
                producer.send("orders", bytes(100), partition=partition)
        producer.send_batch("orders", [bytes(100)] * 10)
        producer.flush(WAIT_S)
        metrics = producer.metrics()
    logged = [batch for log in cluster.logs.values() for batch in log]
    assert metrics.records_total == 20
    assert metrics.batches_total == len(logged)
    assert metrics.bytes_total == sum(each.size_bytes for each in logged)
    assert metrics.requests_total == len(cluster.requests)
    assert (metrics.errors_total, metrics.retries_total, metrics.splits_total) == (0, 0, 0)
    assert metrics.request_latency_ms_p50 is not None
    assert metrics.request_latency_ms_p99 is not None
    assert 0 <= metrics.request_latency_ms_p50 <= metrics.request_latency_ms_p99


def test_what_waits_is_told_apart_from_what_was_sent():
    cluster = ScriptedCluster()
    with Producer(cluster, **QUICK) as producer:
        cluster.hold()
        producer.send("orders", bytes(100), partition=0)
        cluster.wait_until_held()
        metrics = producer.metrics()
        assert (metrics.records_total, metrics.records_waiting, metrics.batches_waiting) == (0, 1, 1)
        assert metrics.buffer_bytes > 100
        cluster.release()


def test_retries_splits_and_errors_are_counted():
    cluster = ScriptedCluster({"orders": 1})
    cluster.batch_bytes_max = 1_000
    with Producer(cluster, linger_ms=60_000, retry_backoff_ms=1) as producer:
        cluster.answers.append(ErrorCode.NOT_ENOUGH_REPLICAS)
        for number in range(20):
            producer.send("orders", bytes(3_000 if number == 7 else 100))
        producer.flush(WAIT_S)
        metrics = producer.metrics()
    assert (metrics.records_total, metrics.errors_total, metrics.retries_total) == (19, 1, 1)
    assert metrics.splits_total > 1


def test_a_snapshot_does_not_change():
    with Producer(ScriptedCluster(), **QUICK) as producer:
        before = producer.metrics()
        producer.send("orders", b"x").result(WAIT_S)
        assert before.records_total == 0
        with pytest.raises(AttributeError):
            before.records_total = 7  # type: ignore[misc]
