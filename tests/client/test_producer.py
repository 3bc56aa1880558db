"""The producer as people use it, against a scripted cluster: acknowledgements, order, retries, limits,
interruptions.
"""

import asyncio
import gc
import os
import signal
import threading
import time
import weakref
from collections.abc import Callable
from dataclasses import dataclass
from itertools import count
from typing import Any

import pyarrow as pa
import pytest

from rayka import Producer, RecordMetadata
from rayka.client import io_thread
from rayka.client.producer.delivery_future import DeliveryFuture
from rayka.errors import (
    BufferExhausted,
    ClosedError,
    ConfigError,
    DeliveryTimeout,
    ErrorCode,
    NetworkException,
    RaykaError,
    RecordTooLarge,
    SerializationError,
    UnavailableError,
    UnknownTopicOrPartition,
)
from rayka.protocol.batch_decode import decode
from rayka.protocol.murmur2 import partition_for_key
from tests.client.support import QUICK, Answer, ScriptedCluster

WAIT_S = 60


# ---- Acknowledgements ----


def test_a_future_ends_as_the_place_of_its_record():
    cluster = ScriptedCluster()
    with Producer(cluster, **QUICK) as producer:
        futures = [producer.send("orders", value=b"%d" % n, partition=1, timestamp_ms=5) for n in range(3)]
        assert [each.result(WAIT_S) for each in futures] == [
            RecordMetadata("orders", 1, n, 5) for n in range(3)
        ]
        assert all(each.done() and each.exception() is None for each in futures)
    assert cluster.values("orders", 1) == [b"0", b"1", b"2"]


def test_arguments_may_be_given_by_position_in_the_order_of_kafka_python():
    cluster = ScriptedCluster()
    with Producer(cluster, **QUICK) as producer:
        sent = producer.send("orders", b"v", b"k", [("a", b"1")], 1, 5)
        assert sent.result(WAIT_S) == RecordMetadata("orders", 1, 0, 5)
    assert cluster.values("orders", 1) == [b"v"]


def test_without_acks_an_offset_is_unknown():  # acks=0
    with Producer(ScriptedCluster(), acks=0, **QUICK) as producer:
        assert producer.send("orders", b"x").result(WAIT_S).offset == -1
        assert producer.send_batch("orders", [b"x", b"y"]).result(WAIT_S)[0].base_offset == -1


def test_a_record_without_timestamp_gets_the_time_of_its_send():
    with Producer(ScriptedCluster(), **QUICK) as producer:
        before_ms = io_thread.wall_clock_ms()
        timestamp_ms = producer.send("orders", b"x").result(WAIT_S).timestamp_ms
        assert before_ms <= timestamp_ms <= io_thread.wall_clock_ms()


def test_key_headers_and_timestamp_arrive():
    cluster = ScriptedCluster()
    with Producer(cluster, **QUICK) as producer:
        sent = producer.send(
            "orders", b"v", key=b"k", headers=[("a", b"1"), ("a", None)], partition=0, timestamp_ms=7
        )
        producer.send("orders", b"w", headers={"b": b"2"}, partition=0)
        sent.result(WAIT_S)
    rows = [
        (batch.keys_list(), batch.headers_list(), batch.timestamps_ms.tolist()[0])
        for batch in map(decode, cluster.logs["orders", 0])
    ]
    keys = [key for each, _, _ in rows for key in each]
    headers = [pairs for _, each, _ in rows for pairs in each]
    assert keys == [b"k", None]
    assert headers == [[("a", b"1"), ("a", None)], [("b", b"2")]]
    assert rows[0][2] == 7


def test_keys_arrive_with_their_values_whether_or_not_a_batch_of_their_partition_is_open():
    cluster = ScriptedCluster({"orders": 2})
    with Producer(cluster, **QUICK) as producer:
        sent = [(b"k%d" % (number % 5), b"%d" % number) for number in range(40)]
        futures = [producer.send("orders", value, key=key) for key, value in sent]
        producer.flush(WAIT_S)
        for future, (key, _) in zip(futures, sent, strict=True):
            assert future.result(WAIT_S).partition == partition_for_key(key, 2)
    batches = [decode(each) for log in cluster.logs.values() for each in log]
    arrived = [pair for each in batches for pair in zip(each.keys_list(), each.values_list(), strict=True)]
    assert sorted(arrived) == sorted(sent)


def test_a_key_goes_where_kafka_would_put_it():
    with Producer(ScriptedCluster({"orders": 7}), **QUICK) as producer:
        keys = [b"UA", b"AA", b"", b"a longer key"]
        sent = [producer.send("orders", b"v", key=key) for key in keys]
        assert [each.result(WAIT_S).partition for each in sent] == [partition_for_key(key, 7) for key in keys]


def test_a_callback_is_given_the_metadata_or_the_error():
    cluster, received = ScriptedCluster(), []
    with Producer(cluster, **QUICK) as producer:
        producer.send("orders", b"x", partition=0, on_delivery=lambda *told: received.append(told)).result(
            WAIT_S
        )
        cluster.answers.append(ErrorCode.MESSAGE_TOO_LARGE)
        producer.send("orders", b"x", partition=0, on_delivery=lambda *told: received.append(told)).exception(
            WAIT_S
        )
        producer.flush(WAIT_S)
    (error, metadata), (second_error, second_metadata) = received
    assert (error, metadata.offset) == (None, 0)
    assert isinstance(second_error, RecordTooLarge)
    assert second_metadata is None


def test_a_done_callback_is_called_also_when_it_comes_late():
    received: list[DeliveryFuture] = []
    with Producer(ScriptedCluster(), **QUICK) as producer:
        future = producer.send("orders", b"x")
        future.add_done_callback(received.append)
        future.result(WAIT_S)
        producer.flush(WAIT_S)
        future.add_done_callback(received.append)
    assert received == [future, future]


def test_a_callback_that_raises_is_logged_and_raised_by_the_next_flush(caplog: pytest.LogCaptureFixture):
    def broken(error: Exception | None, metadata: RecordMetadata | None) -> None:
        raise LookupError("my own")

    with Producer(ScriptedCluster(), **QUICK) as producer:
        producer.send("orders", b"x", on_delivery=broken)
        with pytest.raises(LookupError, match="my own"):
            producer.flush(WAIT_S)
        producer.send("orders", b"y").result(WAIT_S)  # the producer lives on
        producer.flush(WAIT_S)
    assert "a delivery callback for orders-" in caplog.text


@pytest.mark.parametrize("kind", [SystemExit, KeyboardInterrupt, asyncio.CancelledError, GeneratorExit])
def test_a_callback_harms_nothing_but_itself(kind: type[BaseException]):
    def broken(*_: object) -> None:
        raise kind("my own")

    expected = RuntimeError if kind is asyncio.CancelledError else kind
    cluster = ScriptedCluster()
    with Producer(cluster, linger_ms=60_000) as producer:
        sent = [producer.send("orders", b"x", partition=each, on_delivery=broken) for each in range(3)]
        with pytest.raises(expected):
            producer.flush(WAIT_S)
        assert [each.result(0).offset for each in sent] == [0, 0, 0]
        producer.send("orders", b"y", partition=0).add_done_callback(broken)
        with pytest.raises(expected):
            producer.flush(WAIT_S)
        producer.send("orders", b"z", partition=0, on_delivery=broken)
        with pytest.raises(expected):
            producer.close(WAIT_S)
    assert cluster.values("orders", 0) == [b"x", b"y", b"z"]
    with Producer(cluster, **QUICK) as another:
        assert another.send("orders", b"x").result(WAIT_S)


def test_a_callback_that_raises_for_a_batch_of_send_batch_is_contained():
    def broken(_: object) -> None:
        raise SystemExit(3)

    with Producer(ScriptedCluster(), linger_ms=60_000) as producer:
        sent = producer.send_batch("orders", [b"x"])
        sent.add_done_callback(broken)
        with pytest.raises(SystemExit):
            producer.flush(WAIT_S)
        assert sent.result(0)


def test_waiting_in_a_callback_is_refused_because_it_would_never_end():
    received: list[str] = []
    cluster = ScriptedCluster()
    with Producer(cluster, **QUICK) as producer:

        def wait_for_another(error: Exception | None, metadata: RecordMetadata | None) -> None:
            cluster.hold()
            try:
                producer.send("orders", b"again").result(WAIT_S)
            except RuntimeError as refusal:
                received.append(str(refusal))
            cluster.release()

        producer.send("orders", b"x", on_delivery=wait_for_another).result(WAIT_S)
        producer.flush(WAIT_S)
    assert "IO thread" in received[0]


def test_a_future_can_be_awaited():
    async def send(producer: Producer) -> tuple[int, int]:
        metadata = await producer.send("orders", b"x", partition=2)
        (run,) = await producer.send_batch("orders", [b"y", b"z"])
        return metadata.offset, run.record_count

    with Producer(ScriptedCluster(), **QUICK) as producer:
        assert asyncio.run(send(producer)) == (0, 2)


def test_a_result_that_takes_longer_is_a_timeout_and_stays_under_way():
    cluster = ScriptedCluster()
    with Producer(cluster, **QUICK) as producer:
        producer.send("orders", b"known").result(WAIT_S)
        cluster.hold()
        future = producer.send("orders", b"x")
        with pytest.raises(TimeoutError, match="1 records not acknowledged"):
            future.result(0.01)
        with pytest.raises(TimeoutError):
            producer.flush(0.01)
        cluster.release()
        assert future.result(WAIT_S).offset >= 0


# ---- Batching ----


def test_records_sent_while_a_request_is_under_way_go_together():
    cluster = ScriptedCluster({"orders": 1})
    with Producer(cluster, **QUICK) as producer:
        cluster.hold()
        producer.send("orders", b"first")
        cluster.wait_until_held()
        for number in range(1_000):
            producer.send("orders", b"%d" % number)
        cluster.release()
        producer.flush(WAIT_S)
    assert len(cluster.requests) == 2
    assert cluster.values("orders", 0) == [b"first", *(b"%d" % number for number in range(1_000))]


def test_what_is_ready_for_one_broker_goes_in_one_request():
    cluster = ScriptedCluster()
    with Producer(cluster, **QUICK | {"linger_ms": 60_000}) as producer:
        for partition in range(3):
            producer.send("orders", b"x", partition=partition)
        producer.flush(WAIT_S)
    assert [[each.partition for each in request.partitions] for request in cluster.requests] == [[0, 1, 2]]


def test_a_full_batch_goes_while_others_linger():
    cluster = ScriptedCluster({"orders": 2})
    with Producer(cluster, linger_ms=60_000, batch_size=1_000) as producer:
        producer.send("orders", b"first")
        cluster.hold()
        while producer.send("orders", bytes(100)).batch.partition == 0:
            assert cluster.requests == []
        cluster.wait_until_held()
        assert [part.partition for request in cluster.requests for part in request.partitions] == [0]
        cluster.release()


@pytest.mark.usefixtures("hectic_threads")
def test_several_threads_lose_nothing_and_each_keeps_its_order():
    cluster = ScriptedCluster({"orders": 2})
    with Producer(cluster, **QUICK, batch_size=20_000) as producer:

        def send(name: int) -> None:
            for number in range(5_000):
                producer.send("orders", b"%d:%d" % (name, number))

        threads = [threading.Thread(target=send, args=(name,)) for name in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        producer.flush(WAIT_S)
    logs = [cluster.values("orders", partition) for partition in range(2)]
    assert sorted(value for log in logs for value in log if value) == sorted(
        b"%d:%d" % (name, number) for name in range(4) for number in range(5_000)
    )
    for log in logs:
        for name in range(4):
            numbers = [
                int(value.split(b":")[1]) for value in log if value and value.startswith(b"%d:" % name)
            ]
            assert numbers == sorted(numbers)


@pytest.mark.usefixtures("hectic_threads")
def test_offsets_are_right_for_every_record_of_several_threads():
    cluster = ScriptedCluster({"orders": 1})
    futures: dict[bytes, DeliveryFuture] = {}
    with Producer(cluster, **QUICK, batch_size=5_000) as producer:

        def send(name: int) -> None:
            for number in range(2_000):
                value = b"%d:%d" % (name, number)
                futures[value] = producer.send("orders", value)

        threads = [threading.Thread(target=send, args=(name,)) for name in range(3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        producer.flush(WAIT_S)
        log = cluster.values("orders", 0)
        assert all(log[future.result(0).offset] == value for value, future in futures.items())


# ---- Errors and retries ----


@pytest.mark.parametrize(
    "answer",
    [ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.REQUEST_TIMED_OUT, NetworkException("lost")],
    ids=repr,
)
def test_an_error_that_passes_is_retried_in_order(answer: Any):  # G18
    cluster = ScriptedCluster({"orders": 1})
    with Producer(cluster, **QUICK) as producer:
        cluster.answers.extend([answer] * 3)
        futures = [producer.send("orders", b"%d" % n) for n in range(5)]
        assert [each.result(WAIT_S).offset for each in futures] == list(range(5))
    assert cluster.values("orders", 0) == [b"%d" % n for n in range(5)]


def test_stale_metadata_is_refreshed_before_the_retry():  # G18
    cluster = ScriptedCluster()
    with Producer(cluster, **QUICK) as producer:
        producer.send("orders", b"x").result(WAIT_S)
        calls = cluster.metadata_calls
        cluster.answers.append(ErrorCode.NOT_LEADER_OR_FOLLOWER)
        producer.send("orders", b"x").result(WAIT_S)
        assert cluster.metadata_calls > calls


def test_without_idempotence_a_lost_answer_may_put_a_record_into_the_log_twice():
    cluster = ScriptedCluster({"orders": 1})
    cluster.executes_lost_requests = True
    with Producer(cluster, **QUICK, enable_idempotence=False) as producer:
        cluster.answers.append(NetworkException("the answer was lost"))
        assert producer.send("orders", b"x").result(WAIT_S).offset == 1
    assert cluster.values("orders", 0) == [b"x", b"x"]


def test_an_error_that_does_not_pass_ends_the_future_and_nothing_else():
    cluster = ScriptedCluster({"orders": 1})
    with Producer(cluster, **QUICK) as producer:
        cluster.answers.append(ErrorCode.INVALID_TIMESTAMP)
        refused = producer.send("orders", b"x")
        with pytest.raises(RaykaError, match="broker-1 of cluster 'scripted', orders-0: as told") as caught:
            refused.result(WAIT_S)
        assert not caught.value.retriable
        assert producer.send("orders", b"y").result(WAIT_S).offset == 0


def test_delivery_ends_after_its_time_with_the_last_error():
    cluster = ScriptedCluster()
    with Producer(cluster, **QUICK, delivery_timeout_ms=1_000) as producer:
        producer.send("orders", b"known").result(WAIT_S)
        cluster.answers.extend([NetworkException("no way")] * 10_000)
        with pytest.raises(
            DeliveryTimeout, match=r"may or may not be in the log \(.* tries; the last error: no way\)"
        ):
            producer.send("orders", b"x").result(WAIT_S)


def test_a_partition_without_leader_is_waited_for():
    cluster = ScriptedCluster()
    with Producer(cluster, **QUICK) as producer:
        cluster.leader_id = -1
        future = producer.send("orders", b"x")
        assert not future.done()
        cluster.leader_id = 1
        assert future.result(WAIT_S).offset == 0


def test_a_topic_deleted_under_way_fails_its_records_at_once():
    cluster = ScriptedCluster({"orders": 1, "other": 1})
    with Producer(cluster, **QUICK) as producer:
        producer.send("orders", b"x").result(WAIT_S)
        del cluster.topics["orders"]
        error = producer.send("orders", b"x").exception(WAIT_S)
        assert isinstance(error, UnknownTopicOrPartition)
        assert not error.retriable
        with pytest.raises(UnknownTopicOrPartition):
            producer.send("orders", b"x").result(WAIT_S)
        assert producer.send("other", b"x").result(WAIT_S).offset == 0


def test_a_partition_that_is_gone_fails_its_records():
    cluster = ScriptedCluster({"orders": 3})
    with Producer(cluster, **QUICK) as producer:
        producer.send("orders", b"x", partition=2).result(WAIT_S)
        cluster.topics["orders"] = 2
        cluster.answers.append(ErrorCode.NOT_LEADER_OR_FOLLOWER)
        error = producer.send("orders", b"x", partition=2).exception(WAIT_S)
        assert isinstance(error, UnknownTopicOrPartition)
        assert {producer.send("orders", b"x").result(WAIT_S).partition for _ in range(4)} == {0, 1}


def key_of(partition: int) -> bytes:
    """A key of that one of three partitions."""
    return next(key for key in (b"%d" % n for n in count()) if partition_for_key(key, 3) == partition)


def shrunk(cluster: ScriptedCluster) -> None:
    """`orders` is made anew with one partition, and the next two requests are refused, as partitions are gone."""
    cluster.topics["orders"] = 1
    cluster.metadata_offset += 1
    cluster.answers += [ErrorCode.UNKNOWN_TOPIC_OR_PARTITION] * 2


SENDS_TO_ANY: dict[str, Any] = {
    "send": lambda producer: [producer.send("orders", b"%d" % number) for number in range(6)],
    "with headers": lambda producer: [producer.send("orders", b"x", headers={"h": b"1"}) for _ in range(6)],
    "send_batch": lambda producer: [producer.send_batch("orders", [b"x"] * 3) for _ in range(6)],
}


@pytest.mark.parametrize("send", SENDS_TO_ANY.values(), ids=SENDS_TO_ANY)
@pytest.mark.parametrize("options", [{}, {"enable_idempotence": False}], ids=str)
def test_records_of_which_the_producer_chose_the_partition_get_another_when_theirs_is_gone(
    send: Any, options: Any
):
    """In flight, refused once, or waiting: the topic was made anew with fewer partitions."""
    cluster = ScriptedCluster({"orders": 3})
    with Producer(cluster, **{**QUICK, "batch_size": 300}, **options) as producer:
        for number in range(3):
            producer.send("orders", b"x", partition=number).result(WAIT_S)
        cluster.hold()
        sent = send(producer)
        cluster.wait_until_held()
        shrunk(cluster)
        cluster.release()
        for each in sent:
            each.result(WAIT_S)
    new_count = sum(len(cluster.values("orders", partition)) for partition in range(3)) - 3
    assert new_count == (18 if "BatchFuture" in type(sent[0]).__name__ else 6)


def test_records_that_belong_to_a_partition_that_is_gone_go_to_no_other():
    cluster = ScriptedCluster({"orders": 3})
    with Producer(cluster, **QUICK) as producer:
        producer.send("orders", b"x", partition=2).result(WAIT_S)
        shrunk(cluster)
        future = producer.send("orders", b"x", partition=2)
        assert isinstance(future.exception(WAIT_S), UnknownTopicOrPartition)


def test_a_record_whose_key_has_another_partition_now_goes_there():
    cluster = ScriptedCluster({"orders": 3})
    with Producer(cluster, **QUICK) as producer:
        producer.send("orders", b"x", key=key_of(2)).result(WAIT_S)
        shrunk(cluster)
        assert producer.send("orders", b"x", key=key_of(2)).result(WAIT_S).partition == 0


def test_a_topic_made_again_takes_records():
    cluster = ScriptedCluster({"orders": 3})
    with Producer(cluster, **QUICK) as producer:
        producer.send("orders", b"x", partition=2).result(WAIT_S)
        del cluster.topics["orders"]
        producer.send("orders", b"x", partition=2).exception(WAIT_S)
        cluster.topics["orders"] = 1
        assert producer.send("orders", b"x").result(WAIT_S).partition == 0
        with pytest.raises(UnknownTopicOrPartition, match="it has 1"):
            producer.send("orders", b"x", partition=2)


def grown(cluster: ScriptedCluster, partition_count: int) -> None:
    """Partitions are added to `orders`, and the brokers know it."""
    cluster.topics["orders"] = partition_count
    cluster.metadata_offset += 1


def test_a_partition_that_was_just_added_takes_records():
    cluster = ScriptedCluster({"orders": 1})
    with Producer(cluster, **QUICK) as producer:
        producer.send("orders", b"old").result(WAIT_S)
        cluster.topics_at_broker = {"orders": 1}  # only the controller knows yet
        grown(cluster, 4)
        assert producer.send("orders", b"new", partition=3).result(WAIT_S).partition == 3
        grown(cluster, 6)
        columns = pa.record_batch({"value": [b"a", b"b"], "partition": pa.array([5, 0], pa.int32())})
        sent = producer.send_batch("orders", columns).result(WAIT_S)
        assert sorted(each.partition for each in sent) == [0, 5]


def test_a_running_producer_uses_partitions_that_are_added():
    cluster = ScriptedCluster({"orders": 1})
    key = next(key for key in map(b"%d".__mod__, range(100)) if partition_for_key(key, 4) == 3)
    deadline_s = time.monotonic() + WAIT_S
    with Producer(cluster, **QUICK, metadata_max_age_ms=1) as producer:
        producer.send("orders", b"old", key=key).result(WAIT_S)
        grown(cluster, 4)
        used: set[int] = set()
        while used != {0, 1, 2, 3} and time.monotonic() < deadline_s:
            used.add(producer.send("orders", b"sticky").result(WAIT_S).partition)
        assert used == {0, 1, 2, 3}
        assert producer.send("orders", b"new", key=key).result(WAIT_S).partition == 3


def test_records_that_wait_keep_their_partition_when_others_are_added():
    cluster = ScriptedCluster({"orders": 1})
    with Producer(cluster, linger_ms=60_000) as producer:
        waiting = [producer.send("orders", b"%d" % n, key=b"key") for n in range(5)]
        grown(cluster, 8)
        assert producer.send("orders", b"new", partition=7).batch.partition == 7
        producer.flush(WAIT_S)
        assert [each.result(0).partition for each in waiting] == [0] * 5
    assert cluster.values("orders", 0) == [b"%d" % n for n in range(5)]


def test_a_partition_that_the_controller_cannot_confirm_is_refused_within_max_block_ms():
    cluster = ScriptedCluster({"orders": 1})
    with Producer(cluster, **QUICK, max_block_ms=1_000) as producer:
        producer.send("orders", b"x").result(WAIT_S)
        cluster.is_down = True
        with pytest.raises(UnavailableError, match="'scripted'"):
            producer.send("orders", b"x", partition=1)


# ---- Bad input ----


def test_an_unknown_topic_is_said_at_once_with_the_nearest():
    with Producer(ScriptedCluster(), **QUICK) as producer:
        with pytest.raises(UnknownTopicOrPartition, match="nearest name is 'orders'"):
            producer.send("order", b"x")


def test_a_topic_that_the_broker_does_not_know_yet_is_waited_for():
    cluster = ScriptedCluster()
    cluster.topics_at_broker = {}
    with Producer(cluster, **QUICK) as producer:
        assert producer.send("orders", b"x").result(WAIT_S).offset == 0


def test_when_no_node_answers_the_error_names_the_cluster_and_the_nodes_asked():
    cluster = ScriptedCluster()
    cluster.is_down = True
    with Producer(cluster, **QUICK, max_block_ms=1_000) as producer:
        with pytest.raises(
            UnavailableError, match=r"'scripted' .* asked broker-1, broker-2, controller-3001; .*is down"
        ):
            producer.send("orders", b"x")


def test_a_partition_out_of_range_is_refused():
    with Producer(ScriptedCluster(), **QUICK) as producer:
        for partition in (3, -1):
            with pytest.raises(UnknownTopicOrPartition, match=f"partition {partition} .* it has 3"):
                producer.send("orders", b"x", partition=partition)


def test_a_record_larger_than_a_request_is_refused():
    with Producer(ScriptedCluster(), **QUICK, max_request_size=1_000) as producer:
        producer.send("orders", bytes(700)).result(WAIT_S)
        with pytest.raises(RecordTooLarge, match="max_request_size=1000"):
            producer.send("orders", bytes(800))


def test_a_record_larger_than_a_batch_goes_alone():
    cluster = ScriptedCluster({"orders": 1})
    with Producer(cluster, **QUICK, batch_size=1_000) as producer:
        futures = [producer.send("orders", bytes(size)) for size in (10, 5_000, 10)]
        assert [each.result(WAIT_S).offset for each in futures] == [0, 1, 2]
    assert [len(value or b"") for value in cluster.values("orders", 0)] == [10, 5_000, 10]


@dataclass(frozen=True)
class Wrong:
    """An argument of the wrong type, and what the error says."""

    arguments: dict[str, Any]
    message: str


@pytest.mark.parametrize(
    "wrong",
    [
        Wrong(
            {"value": "text"}, "value: expected bytes or None, found str; encode it, or give value_serializer"
        ),
        Wrong({"value": 5}, "value: expected bytes or None, found int"),
        Wrong({"key": "k"}, "key: expected bytes or None, found str; encode it, or give key_serializer"),
        Wrong({"partition": "1"}, "partition: expected int, found str"),
        Wrong({"partition": True}, "partition: expected int, found bool"),
        Wrong({"timestamp_ms": 1.5}, "timestamp_ms: expected int, found float"),
        Wrong({"headers": [("a", "b")]}, "headers: expected bytes or None for 'a', found str"),
        Wrong({"headers": [(b"a", b"b")]}, r"headers: expected \(str, bytes or None\) pairs"),
        Wrong({"headers": 5}, "headers: expected"),
        Wrong({"topic": ["orders"]}, "topic: expected str, found list"),
        Wrong({"topic": None}, "topic: expected str, found NoneType"),
        Wrong({"on_delivery": 5}, "on_delivery: expected a callable, found int"),
    ],
    ids=str,
)
def test_a_wrong_type_is_named(wrong: Wrong):
    with Producer(ScriptedCluster(), **QUICK) as producer, pytest.raises(TypeError, match=wrong.message):
        producer.send(**{"topic": "orders", "value": b"x", **wrong.arguments})


def test_a_topic_that_is_no_text_is_refused():
    with (
        Producer(ScriptedCluster(), **QUICK) as producer,
        pytest.raises(ValueError, match="topic: expected text that UTF-8 can hold"),
    ):
        producer.send("\udcff", b"x")


def test_a_header_that_is_no_text_is_refused():
    with (
        Producer(ScriptedCluster(), **QUICK) as producer,
        pytest.raises(SerializationError, match="headers: "),
    ):
        producer.send("orders", b"x", headers=[("\ud800", b"")])


def test_no_value_is_a_tombstone_and_reaches_no_serializer():
    def never(value: Any) -> bytes:
        raise AssertionError(value)

    cluster = ScriptedCluster({"orders": 1})
    with Producer(cluster, **QUICK, value_serializer=never, key_serializer=never) as producer:
        producer.send("orders", None).result(WAIT_S)
        producer.send("orders", key=None, value=None).result(WAIT_S)
    assert cluster.values("orders", 0) == [None, None]


def test_a_value_that_was_left_out_is_said_unless_there_is_a_key():
    cluster = ScriptedCluster({"orders": 1})
    with Producer(cluster, **QUICK) as producer:
        with pytest.warns(UserWarning, match="a null record is sent; if you mean that") as caught:
            producer.send("orders").result(WAIT_S)
        producer.send("orders", key=b"a tombstone").result(WAIT_S)
    assert [warning.filename for warning in caught] == [__file__]
    assert cluster.values("orders", 0) == [None, None]


def test_a_timestamp_that_looks_like_seconds_is_said():
    cluster = ScriptedCluster({"orders": 1})
    with Producer(cluster, **QUICK) as producer:
        with pytest.warns(UserWarning, match="if it is a time in seconds, multiply it by 1000") as caught:
            sent = producer.send("orders", b"v", timestamp_ms=1_795_824_000)
        assert sent.result(WAIT_S).timestamp_ms == 1_795_824_000
        for timestamp_ms in (0, 10**9 - 1, 10**10, 1_795_824_000_000):
            producer.send("orders", b"v", timestamp_ms=timestamp_ms).result(WAIT_S)
    assert [warning.filename for warning in caught] == [__file__]


def test_values_and_keys_are_serialized():
    cluster = ScriptedCluster({"orders": 1})
    with Producer(cluster, **QUICK, value_serializer="json", key_serializer="string") as producer:
        producer.send("orders", {"a": 1}, key="ä").result(WAIT_S)
        with pytest.raises(SerializationError, match=r"value_serializer: .*complex"):
            producer.send("orders", 1j)
        with pytest.raises(SerializationError, match=r"key_serializer: .*expected str, found bytes"):
            producer.send("orders", 1, key=b"k")
    (batch,) = map(decode, cluster.logs["orders", 0])
    assert (batch.values_list(), batch.keys_list()) == ([b'{"a":1}'], ["ä".encode()])


def test_a_serializer_that_gives_no_bytes_is_named():
    with Producer(ScriptedCluster(), **QUICK, value_serializer=str) as producer:
        with pytest.raises(
            SerializationError, match=r"value_serializer: expected it to return bytes or None, found str"
        ):
            producer.send("orders", 5)


def test_options_may_be_dotted_and_an_unknown_one_is_named():
    with Producer(ScriptedCluster(), config={"linger.ms": 0, "acks": "1"}, batch_size=1_000) as producer:
        producer.send("orders", b"x").result(WAIT_S)
    with pytest.raises(ConfigError, match=r"nearest known key is 'linger_ms'"):
        Producer(ScriptedCluster(), liger_ms=5)
    with pytest.raises(ConfigError, match=r"value_serializer: expected one of"):
        Producer(ScriptedCluster(), value_serializer="jason")


def test_a_full_buffer_waits_then_says_so():
    cluster = ScriptedCluster({"orders": 1})
    with Producer(cluster, **QUICK, buffer_memory=1 << 16, max_block_ms=1_000) as producer:
        cluster.hold()
        accepted = [producer.send("orders", bytes(20_000)) for _ in range(3)]
        with pytest.raises(BufferExhausted, match="buffer_memory=65536 stayed full for max_block_ms=1000"):
            producer.send("orders", bytes(20_000))
        cluster.release()
        assert [each.result(WAIT_S).offset for each in accepted] == [0, 1, 2]


def test_more_than_the_buffer_holds_is_sent_as_it_drains():
    cluster = ScriptedCluster({"orders": 2})
    with Producer(cluster, **QUICK, buffer_memory=1 << 16, batch_size=1 << 14) as producer:
        for number in range(3_000):
            producer.send("orders", b"%d" % number * 20)
        producer.flush(WAIT_S)
    assert sum(len(cluster.values("orders", partition)) for partition in range(2)) == 3_000


@pytest.mark.parametrize("answers", [[], [ErrorCode.INVALID_RECORD]])
def test_a_send_that_waits_for_memory_goes_on_when_a_batch_is_over(answers: list[Answer]):
    cluster = ScriptedCluster({"orders": 1})
    cluster.answers.extend(answers)
    options = {"linger_ms": 60_000, "batch_size": 1 << 16, "buffer_memory": 1 << 16}
    began_s = time.monotonic()
    with Producer(cluster, **options, max_block_ms=2 * WAIT_S * 1_000) as producer:
        first, *_, last = [producer.send("orders", bytes(20_000)) for _ in range(4)]
        assert time.monotonic() - began_s < WAIT_S
        assert first.done()
        assert not last.done()  # it lingers


def test_a_record_that_never_fits_the_buffer_is_refused_at_once():
    with (
        Producer(ScriptedCluster(), **QUICK, buffer_memory=1 << 16) as producer,
        pytest.raises(RecordTooLarge, match="buffer_memory=65536 leave"),
    ):
        producer.send("orders", bytes(100_000))


# ---- The end ----


def test_a_close_that_a_callback_tries_is_refused_and_closes_nothing():
    received: list[str] = []
    cluster = ScriptedCluster()
    with Producer(cluster, **QUICK) as producer:

        def close(error: Exception | None, metadata: RecordMetadata | None) -> None:
            try:
                producer.close()
            except RuntimeError as refusal:
                received.append(str(refusal))

        producer.send("orders", b"x", on_delivery=close)
        producer.flush(WAIT_S)
        producer.send("orders", b"y").result(WAIT_S)
    assert "IO thread" in received[0]


def test_a_closed_producer_sends_no_more():
    producer = Producer(ScriptedCluster(), linger_ms=60_000)
    future = producer.send("orders", b"x")
    producer.close(WAIT_S)
    producer.close(WAIT_S)
    assert future.result(0).offset == 0
    for call in (
        lambda: producer.send("orders", b"x"),
        producer.flush,
        lambda: producer.send_batch("orders", [b"x"]),
    ):
        with pytest.raises(ClosedError, match="make a new Producer"):
            call()


def test_what_close_cannot_deliver_in_time_fails():
    cluster = ScriptedCluster()
    producer = Producer(cluster, **QUICK)
    producer.send("orders", b"known").result(WAIT_S)
    cluster.hold()
    sent, waiting = producer.send("orders", b"x", partition=0), producer.send("orders", b"y", partition=0)
    with pytest.raises(TimeoutError):
        producer.close(0.01)
    for future in (sent, waiting):
        assert isinstance(future.exception(WAIT_S), ClosedError)
    cluster.release()


def test_a_producer_that_was_not_closed_warns_and_still_delivers():
    cluster = ScriptedCluster({"orders": 1})
    owned = [Producer(cluster, **QUICK)]
    future = owned[0].send("orders", b"x")
    with pytest.warns(ResourceWarning, match="unclosed <Producer cluster=scripted>"):
        owned.clear()
    assert future.result(WAIT_S).offset == 0


@pytest.mark.parametrize("send", [Producer.send, Producer.send_batch])
def test_a_send_that_waits_for_metadata_while_its_producer_is_closed_takes_no_record(send):
    cluster = ScriptedCluster()
    producer = Producer(cluster, **QUICK)
    asked, may_answer = threading.Event(), asyncio.Event()

    async def call(node_id: int, request: Any, timeout_ms: int, call: Any = cluster.call) -> Any:
        asked.set()
        await may_answer.wait()
        return await call(node_id, request, timeout_ms)

    cluster.call = call
    raised: list[ClosedError] = []

    def send_and_catch() -> None:
        with pytest.raises(ClosedError) as caught:
            send(producer, "orders", [b"late"] if send is Producer.send_batch else b"late")
        raised.append(caught.value)

    thread = threading.Thread(target=send_and_catch)
    thread.start()
    assert asked.wait(WAIT_S)
    producer.close()
    io_thread.call_soon(may_answer.set)
    thread.join(WAIT_S)
    assert raised


def test_a_producer_that_is_dropped_is_collected_when_its_records_are_sent():
    cluster = ScriptedCluster({"orders": 1})
    producer: Producer | None = Producer(cluster, linger_ms=60_000)
    assert producer is not None
    future = producer.send("orders", b"x")
    dropped = [weakref.ref(producer), weakref.ref(producer._core.sender)]
    with pytest.warns(ResourceWarning, match="unclosed"):
        del producer
    assert future.result(WAIT_S).offset == 0  # long before its linger is over
    deadline_s = time.monotonic() + WAIT_S
    while any(each() for each in dropped) and time.monotonic() < deadline_s:
        io_thread.wait_for_turn(WAIT_S)
        gc.collect()
    assert [each() for each in dropped] == [None, None]


# ---- Ctrl-C ----


def interrupted(call: Callable[[], object]) -> float:
    """Seconds from the signal until the call was left by KeyboardInterrupt."""
    at: list[float] = []

    def press() -> None:
        at.append(time.monotonic())
        os.kill(os.getpid(), signal.SIGINT)

    timer = threading.Timer(0.05, press)
    timer.start()
    try:
        with pytest.raises(KeyboardInterrupt):
            call()
        return time.monotonic() - at[0]
    finally:
        timer.join()


@pytest.mark.parametrize("waits_in", ["result", "flush", "send"])
def test_ctrl_c_ends_a_wait_at_once_and_the_producer_goes_on(waits_in: str):
    cluster = ScriptedCluster({"orders": 1})
    with Producer(cluster, **QUICK, buffer_memory=1 << 16) as producer:
        producer.send("orders", b"known").result(WAIT_S)
        cluster.hold()
        future = producer.send("orders", bytes(60_000))
        waits = {
            "result": lambda: future.result(WAIT_S),
            "flush": lambda: producer.flush(WAIT_S),
            "send": lambda: producer.send("orders", bytes(60_000)),
        }
        assert interrupted(waits[waits_in]) < WAIT_S / 2
        cluster.release()
        assert future.result(WAIT_S).offset == 1
        assert producer.send("orders", b"after").result(WAIT_S).offset == 2


def test_ctrl_c_ends_the_wait_for_metadata():
    cluster = ScriptedCluster()
    cluster.is_down = True
    with Producer(cluster) as producer:
        assert interrupted(lambda: producer.send("orders", b"x")) < 30  # of the 60 s that it would wait
        cluster.is_down = False
        assert producer.send("orders", b"x").result(WAIT_S).offset == 0


def test_ctrl_c_in_a_send_loop_loses_nothing_that_was_accepted():
    cluster = ScriptedCluster({"orders": 2})
    futures: list[DeliveryFuture] = []

    def send_for_ever() -> None:
        while True:
            futures.append(producer.send("orders", b"%d" % len(futures)))

    with Producer(cluster, **QUICK) as producer:
        assert interrupted(send_for_ever) < WAIT_S / 2
        producer.flush(WAIT_S)
        logs = [cluster.values("orders", partition) for partition in range(2)]
        placed = [(each.result(WAIT_S).partition, each.result(0).offset) for each in futures]
    assert all(logs[partition][offset] == b"%d" % n for n, (partition, offset) in enumerate(placed))
