"""A leader that is gone, as producers meet it, against a scripted cluster; and which partitions wait for another."""

import time

import pytest

from rayka import Producer
from rayka.client.producer.partition_leaders import LeaderWatch
from rayka.errors import DeliveryTimeout, ErrorCode, NetworkException
from rayka.ids import NO_NODE
from rayka.protocol.membership import MetadataPartition, MetadataTopic
from rayka.protocol.produce import CurrentLeader
from tests.client.support import BROKER, OTHER, ScriptedCluster

WAIT_S = 60
PATIENT = {
    "retry_backoff_ms": 60_000,
    "retry_backoff_max_ms": 60_000,
    "linger_ms": 0,
}  # a pause would be noticed


@pytest.mark.parametrize(
    "failure", [ErrorCode.NOT_LEADER_OR_FOLLOWER, NetworkException("lost")], ids=["refused", "lost"]
)
def test_a_new_leader_that_is_known_gets_the_records_without_a_pause(
    failure: ErrorCode | Exception,
) -> None:  # G18
    cluster = ScriptedCluster({"orders": 1})
    with Producer(cluster, **PATIENT) as producer:
        producer.send("orders", b"0").result(WAIT_S)
        cluster.move_leaders(OTHER)  # the producer does not know it
        cluster.answers.append(failure)
        assert producer.send("orders", b"1").result(WAIT_S).offset == 1
    assert cluster.asked == [BROKER, BROKER, OTHER]


def test_a_leader_that_a_refusal_names_gets_the_records_without_a_question_for_metadata() -> None:  # G18
    cluster = ScriptedCluster({"orders": 2})
    with Producer(cluster, **PATIENT) as producer:
        producer.send("orders", b"0", partition=1).result(WAIT_S)
        calls = cluster.metadata_calls
        cluster.move_leaders(OTHER)
        cluster.named = CurrentLeader(OTHER, cluster.leader_epoch)
        cluster.answers.append(ErrorCode.NOT_LEADER_OR_FOLLOWER)
        assert producer.send("orders", b"1", partition=1).result(WAIT_S).offset == 1
        assert producer.send("orders", b"2", partition=1).result(WAIT_S).offset == 2
    assert cluster.asked == [BROKER, BROKER, OTHER, OTHER]
    assert cluster.metadata_calls == calls


@pytest.mark.parametrize(
    "named", [CurrentLeader(OTHER, 1), CurrentLeader(BROKER, 2), CurrentLeader(BROKER, 3)], ids=str
)
def test_a_leader_that_does_not_know_yet_that_it_leads_is_tried_again_soon_without_a_question(
    named: CurrentLeader,
) -> None:  # G18
    cluster = ScriptedCluster({"orders": 1})
    cluster.leader_epoch = 2
    with Producer(cluster, **PATIENT) as producer:
        producer.send("orders", b"0").result(WAIT_S)
        calls = cluster.metadata_calls
        cluster.named = named
        cluster.answers += [ErrorCode.NOT_LEADER_OR_FOLLOWER] * 2
        assert producer.send("orders", b"1").result(WAIT_S).offset == 1
    assert (cluster.asked, cluster.metadata_calls) == ([BROKER] * 4, calls)


def test_a_leader_that_never_learns_that_it_leads_is_a_reason_to_ask() -> None:  # G18
    cluster = ScriptedCluster({"orders": 1})
    cluster.leader_epoch = 2
    with Producer(cluster, **PATIENT) as producer:
        producer.send("orders", b"0").result(WAIT_S)
        cluster.move_leaders(OTHER)
        cluster.named = CurrentLeader(BROKER, 1)
        cluster.answers += [ErrorCode.NOT_LEADER_OR_FOLLOWER] * 5
        assert producer.send("orders", b"1").result(WAIT_S).offset == 1
    assert cluster.asked == [*[BROKER] * 6, OTHER]


@pytest.mark.parametrize("named", [CurrentLeader(NO_NODE, 1), CurrentLeader()], ids=["none", "unknown"])
def test_a_refusal_that_names_no_later_leader_is_a_reason_to_ask(named: CurrentLeader) -> None:  # G18
    cluster = ScriptedCluster({"orders": 1})
    with Producer(cluster, **PATIENT) as producer:
        producer.send("orders", b"0").result(WAIT_S)
        calls = cluster.metadata_calls
        cluster.named = named
        cluster.leader_epoch += 1
        cluster.answers.append(ErrorCode.NOT_LEADER_OR_FOLLOWER)
        assert producer.send("orders", b"1").result(WAIT_S).offset == 1
    assert cluster.asked == [BROKER] * 3
    assert cluster.metadata_calls > calls


def test_a_leader_is_asked_for_again_and_again_while_there_is_none() -> None:  # G18
    cluster = ScriptedCluster({"orders": 1})
    with Producer(cluster, linger_ms=0, retry_backoff_ms=1, retry_backoff_max_ms=60_000) as producer:
        producer.send("orders", b"0").result(WAIT_S)
        cluster.move_leaders(NO_NODE)
        cluster.answers.append(ErrorCode.NOT_LEADER_OR_FOLLOWER)
        future = producer.send("orders", b"1")
        calls = cluster.metadata_calls
        while cluster.metadata_calls < calls + 20:  # by then a pause that only grows lasts for minutes
            with pytest.raises(TimeoutError):
                future.result(0.001)
        cluster.move_leaders(OTHER)
        assert future.result(WAIT_S).offset == 1


def test_a_new_leader_that_a_broker_does_not_know_yet_is_asked_for_again_long_before_a_retry() -> None:  # G18
    cluster = ScriptedCluster({"orders": 1})
    with Producer(cluster, **PATIENT) as producer:
        producer.send("orders", b"0").result(WAIT_S)
        calls = cluster.metadata_calls
        cluster.answers.append(ErrorCode.NOT_LEADER_OR_FOLLOWER)
        future = producer.send("orders", b"1")
        end_s = time.monotonic() + WAIT_S / 2
        while cluster.metadata_calls < calls + 3:
            assert time.monotonic() < end_s, "it waits for its pause"
            with pytest.raises(TimeoutError):
                future.result(0.001)
        cluster.move_leaders(OTHER)
        assert future.result(WAIT_S).offset == 1


def test_the_leaders_of_many_partitions_are_asked_for_less_often() -> None:  # G18
    cluster = ScriptedCluster({"orders": 4_000})
    with Producer(cluster, linger_ms=0, retry_backoff_ms=1, delivery_timeout_ms=60_000) as producer:
        producer.send("orders", b"0", partition=0).result(WAIT_S)
        cluster.move_leaders(NO_NODE)
        cluster.answers += [ErrorCode.NOT_LEADER_OR_FOLLOWER] * 10_000  # until it may ask
        future = producer.send("orders", b"1", partition=0)
        calls, began_s = cluster.metadata_calls, time.monotonic()
        while cluster.metadata_calls < calls + 5:
            with pytest.raises(TimeoutError):
                future.result(0.01)
        assert (
            time.monotonic() - began_s > 3 * 0.2
        )  # between each two of them; the first may have begun before
        cluster.answers.clear()
        cluster.move_leaders(OTHER)
        assert future.result(WAIT_S).offset == 1


def test_a_leader_that_has_answered_after_all_is_asked_for_no_more() -> None:
    cluster = ScriptedCluster({"orders": 1})
    with Producer(cluster, linger_ms=0, retry_backoff_ms=1, retry_backoff_max_ms=1) as producer:
        cluster.answers.append(ErrorCode.NOT_LEADER_OR_FOLLOWER)
        producer.send("orders", b"0").result(WAIT_S)
        end_s, calls = time.monotonic() + WAIT_S, -1
        while calls != cluster.metadata_calls:
            assert time.monotonic() < end_s, "metadata are asked for without end"
            calls = cluster.metadata_calls
            for _ in range(100):
                producer.send("orders", b"1").result(WAIT_S)


def test_a_leader_that_never_answers_is_given_up_when_there_is_another() -> None:
    cluster = ScriptedCluster({"orders": 1})
    with Producer(cluster, **PATIENT, request_timeout_ms=60_000) as producer:
        producer.send("orders", b"0").result(WAIT_S)
        cluster.hung.append(BROKER)
        future = producer.send("orders", b"1")
        cluster.wait_until_held()
        cluster.move_leaders(OTHER)
        assert future.result(WAIT_S).offset == 1


def test_a_leader_that_takes_long_and_still_leads_is_waited_for() -> None:
    cluster = ScriptedCluster({"orders": 1})
    with Producer(cluster, linger_ms=0, retry_backoff_ms=1, retry_backoff_max_ms=1) as producer:
        producer.send("orders", b"0").result(WAIT_S)
        cluster.hold()
        future = producer.send("orders", b"1")
        cluster.wait_until_held()
        calls = cluster.metadata_calls
        while cluster.metadata_calls < calls + 5:  # it was looked whether it leads
            with pytest.raises(TimeoutError):
                future.result(0.01)
        cluster.release()
        assert future.result(WAIT_S).offset == 1
    assert len(cluster.requests) == 2


def test_too_few_replicas_are_waited_for_without_asking_for_metadata() -> None:  # G18
    cluster = ScriptedCluster({"orders": 1})
    with Producer(cluster, linger_ms=0, retry_backoff_ms=1) as producer:
        producer.send("orders", b"0").result(WAIT_S)
        calls = cluster.metadata_calls
        cluster.answers += [ErrorCode.NOT_ENOUGH_REPLICAS, ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND]
        assert producer.send("orders", b"1").result(WAIT_S).offset == 1
    assert cluster.metadata_calls == calls


def test_a_partition_that_never_gets_a_leader_ends_with_what_was_wrong() -> None:
    cluster = ScriptedCluster({"orders": 1})
    with Producer(cluster, linger_ms=0, retry_backoff_ms=1, delivery_timeout_ms=1_500) as producer:
        producer.send("orders", b"0").result(WAIT_S)
        cluster.move_leaders(NO_NODE)
        cluster.answers.append(ErrorCode.NOT_LEADER_OR_FOLLOWER)
        with pytest.raises(DeliveryTimeout, match="orders-0 has no leader"):
            producer.send("orders", b"1").result(WAIT_S)


def test_records_that_never_left_take_none_of_the_later_ones_with_them() -> None:
    cluster = ScriptedCluster({"orders": 1})
    cluster.move_leaders(NO_NODE)
    with Producer(cluster, linger_ms=0, retry_backoff_ms=1, delivery_timeout_ms=1_500) as producer:
        with pytest.raises(DeliveryTimeout, match="orders-0 has no leader"):
            producer.send("orders", b"0").result(WAIT_S)
        cluster.move_leaders(OTHER)
        assert producer.send("orders", b"1").result(WAIT_S).offset == 0


# ---- Which requests wait ----


def topic(*leaders: tuple[int, int]) -> MetadataTopic:
    partitions = tuple(
        MetadataPartition(number, leader_id, epoch, (), ())
        for number, (leader_id, epoch) in enumerate(leaders)
    )
    return MetadataTopic("orders", partitions=partitions)


def test_a_partition_waits_until_a_later_epoch_has_a_leader() -> None:
    watch = LeaderWatch()
    watch.on_failed("orders", topic((1, 4)).partitions[0])
    for not_new in (topic((1, 4)), topic((NO_NODE, 5)), topic((2, 3))):
        assert watch.on_metadata(not_new) == []
    assert watch.on_metadata(topic((1, 6))) == [0]  # the same node, but it has begun anew
    assert not watch.is_watched("orders")


def test_only_those_that_failed_wait() -> None:
    watch = LeaderWatch()
    for each in topic((1, 0), (1, 0), (1, 0)).partitions[:2]:
        watch.on_failed("orders", each)
    watch.on_settled("orders", 1)
    assert watch.on_metadata(topic((2, 1), (2, 1), (2, 1))) == [0]


def test_a_partition_that_is_gone_waits_no_more() -> None:
    watch = LeaderWatch()
    watch.on_failed("orders", topic((1, 0), (1, 0)).partitions[1])
    assert watch.on_metadata(topic((1, 0))) == [1]
