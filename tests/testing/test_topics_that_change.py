"""What readers make of topics that are deleted, created again, or get more partitions meanwhile (G16, G18)."""

import logging
from collections.abc import Iterator
from contextlib import suppress
from itertools import count, islice

import pytest

import rayka
import rayka.testing
from rayka import Admin, Consumer, Producer, TopicPartition
from rayka.errors import InconsistentTopicId, OffsetOutOfRange, UnknownTopicOrPartition
from rayka.protocol.topics import CreateTopicsRequest, DeleteTopicsRequest, NewTopic
from rayka.testing import InProcessCluster
from tests.testing.virtual import (
    CONTROLLER,
    REPLICAS,
    TOPIC,
    VirtualConsumer,
    VirtualProducer,
    virtual_cluster,
)
from tests.testing.waiting import wait_until

SOON = {"metadata_max_age_ms": 20, "auto_offset_reset": "earliest"}
_numbers = count()


@pytest.fixture(scope="module")
def cluster() -> Iterator[InProcessCluster]:
    with rayka.testing.cluster() as running:
        yield running


@pytest.fixture
def admin(cluster: InProcessCluster) -> Iterator[Admin]:
    with Admin(cluster) as made:
        yield made


@pytest.fixture
def topic(admin: Admin) -> str:
    name = f"orders-{next(_numbers)}"
    admin.create_topic(name, partitions=2)
    return name


def send(cluster: InProcessCluster, topic: str, values: list[bytes], partition: int = 0) -> None:
    with Producer(cluster=cluster) as producer:
        for value in values:
            producer.send(topic, value, partition=partition)


def create_again(admin: Admin, topic: str, partitions: int = 2) -> None:
    admin.delete_topic(topic)
    admin.create_topic(topic, partitions=partitions)


def poll_values(consumer: Consumer, value_count: int) -> list[object]:
    """Between the deletion and the second creation of its topic a consumer may raise UnknownTopicOrPartition."""
    values: list[object] = []
    while len(values) < value_count:
        with suppress(UnknownTopicOrPartition):
            polled = consumer.poll(timeout_ms=10_000)
            assert polled, f"{len(values)} of {value_count} records"
            values += [record.value for record in polled]
    return values


# ---- Created again: bounded reads ----


def test_a_bounded_read_of_a_topic_that_was_created_again_is_an_error_and_not_the_new_topic(
    cluster, admin, topic
):
    send(cluster, topic, [b"old"] * 5)
    reader = rayka.read(topic, cluster=cluster)
    assert len(list(reader)) == 5
    create_again(admin, topic)
    send(cluster, topic, [b"new"] * 5)
    for _ in range(2):
        with pytest.raises(InconsistentTopicId, match=f"topic '{topic}' .* was deleted and created again"):
            next(iter(reader))
    assert {record.value for record in rayka.read(topic, cluster=cluster)} == {b"new"}


def test_a_bounded_read_whose_topic_is_created_again_meanwhile_gives_no_record_of_the_new_one(
    cluster, admin, topic
):
    for partition in range(2):
        for _ in range(20):
            send(cluster, topic, [b"x" * 1_000] * 5, partition)
    options = {"max_partition_fetch_bytes": 5_000, "local_reads": False}
    records = iter(rayka.read(topic, cluster=cluster, **options))
    values = [record.value for record in islice(records, 3)]
    create_again(admin, topic)
    for partition in range(2):
        send(cluster, topic, [b"new"] * 100, partition)
    with pytest.raises(InconsistentTopicId) as caught:
        values += [record.value for record in records]
    assert 3 <= len(values) < 200
    assert set(values) == {b"x" * 1_000}
    assert not caught.value.retriable


def test_a_bounded_read_of_a_deleted_topic_says_that_there_is_none(cluster, admin, topic):
    send(cluster, topic, [b"old"])
    reader = rayka.read(topic, cluster=cluster)
    admin.delete_topic(topic)
    with pytest.raises(UnknownTopicOrPartition, match="has no topic"):
        list(reader)


# ---- Created again: consumers ----


@pytest.mark.parametrize("is_assigned", [False, True])
@pytest.mark.parametrize("in_group", [False, True])
def test_a_consumer_reads_a_topic_that_was_created_again_from_its_first_record_and_says_so_once(
    cluster, admin, topic, is_assigned, in_group, caplog
):
    options = {"group_id": f"readers-of-{topic}"} if in_group else {}
    send(cluster, topic, [b"old"] * 5)
    partitions = [TopicPartition(topic, 0), TopicPartition(topic, 1)]
    options |= {"cluster": cluster, "auto_offset_reset": "earliest"}
    with Consumer(*[] if is_assigned else [topic], **options) as consumer:
        if is_assigned:
            consumer.assign(partitions)
        assert poll_values(consumer, 5) == [b"old"] * 5
        with caplog.at_level(logging.WARNING, "rayka.client.consumer.fetch_state"):
            create_again(admin, topic)
            send(cluster, topic, [b"new"] * 7)
            send(cluster, topic, [b"new"] * 2, partition=1)
            assert poll_values(consumer, 9) == [b"new"] * 9
        assert consumer.assignment() == tuple(partitions)
        assert [consumer.position(tp) for tp in partitions] == [7, 2]
    told = [each.getMessage() for each in caplog.records if each.name == "rayka.client.consumer.fetch_state"]
    assert len(told) == 1
    assert f"topic '{topic}'" in told[0]
    assert "was deleted and created again" in told[0]


def test_what_was_fetched_of_the_former_topic_comes_before_the_new_one(cluster, admin, topic):
    send(cluster, topic, [b"old"] * 5)
    with Consumer(topic, cluster=cluster, **SOON) as consumer:
        values = [record.value for record in consumer.poll(10_000, max_records=1)]
        create_again(admin, topic)
        send(cluster, topic, [b"new"] * 5)
        values += poll_values(consumer, 9)
    assert values == [b"old"] * 5 + [b"new"] * 5


def test_a_position_after_a_topic_was_created_again_is_one_of_the_new_topic(cluster, admin, topic):
    tp = TopicPartition(topic, 0)
    send(cluster, topic, [b"old"] * 5)
    with Consumer(topic, cluster=cluster, **SOON) as consumer:
        poll_values(consumer, 5)
        assert consumer.position(tp) == 5
        create_again(admin, topic)
        send(cluster, topic, [b"new"] * 2)
        wait_until(lambda: consumer.position(tp) == 0)
        assert consumer.end_offsets([tp]) == {tp: 2}


def test_a_consumer_at_the_end_goes_to_the_end_of_a_topic_that_was_created_again(cluster, admin, topic):
    send(cluster, topic, [b"old"] * 5)
    with Consumer(topic, cluster=cluster, metadata_max_age_ms=20) as consumer:
        assert consumer.poll(0) == []
        assert consumer.position(TopicPartition(topic, 0)) == 5
        create_again(admin, topic)
        wait_until(lambda: consumer.position(TopicPartition(topic, 0)) == 0)
        send(cluster, topic, [b"new"])
        assert poll_values(consumer, 1) == [b"new"]


def test_a_seek_to_the_beginning_holds_for_the_topic_that_is_read_then(cluster, admin, topic):
    send(cluster, topic, [b"old"])
    with Consumer(topic, cluster=cluster) as consumer:
        create_again(admin, topic)
        send(cluster, topic, [b"new"])
        consumer.seek_to_beginning()
        assert poll_values(consumer, 1) == [b"new"]


def test_without_a_reset_policy_a_topic_that_was_created_again_is_an_error_until_a_seek(
    cluster, admin, topic
):
    tp = TopicPartition(topic, 0)
    send(cluster, topic, [b"old"] * 5)
    with Consumer(cluster=cluster, auto_offset_reset="none") as consumer:
        consumer.assign([tp])
        consumer.seek(tp, 3)
        assert poll_values(consumer, 2) == [b"old"] * 2
        create_again(admin, topic)
        send(cluster, topic, [b"new"] * 5)
        with pytest.raises(InconsistentTopicId, match="seek in the new one"):
            poll_values(consumer, 1)
        with pytest.raises(OffsetOutOfRange, match="seek first"):
            consumer.poll(10_000)
        consumer.seek(tp, 4)
        assert poll_values(consumer, 1) == [b"new"]


def test_a_topic_that_was_only_deleted_is_an_error_and_read_again_when_it_is_there_again(
    cluster, admin, topic
):
    send(cluster, topic, [b"old"])
    with Consumer(topic, cluster=cluster, auto_offset_reset="earliest") as consumer:
        assert poll_values(consumer, 1) == [b"old"]
        admin.delete_topic(topic)
        with pytest.raises(UnknownTopicOrPartition, match="has no topic"):
            consumer.poll(10_000)
        admin.create_topic(topic, partitions=2)
        send(cluster, topic, [b"new"])
        assert poll_values(consumer, 1) == [b"new"]


def test_a_topic_created_again_with_fewer_partitions_is_read_with_those_that_it_has(cluster, admin, topic):
    with Consumer(topic, cluster=cluster, **SOON) as consumer:
        assert consumer.poll(timeout_ms=10) == []
        create_again(admin, topic, partitions=1)
        send(cluster, topic, [b"anew"])
        assert poll_values(consumer, 1) == [b"anew"]
        assert consumer.assignment() == (TopicPartition(topic, 0),)
        with pytest.raises(ValueError, match="not assigned"):
            consumer.seek(TopicPartition(topic, 1), 0)


# ---- More partitions ----


@pytest.mark.parametrize("reset", ["earliest", "latest"])
def test_partitions_that_are_added_are_read_from_their_beginning(cluster, admin, topic, reset):
    options = {"metadata_max_age_ms": 20, "auto_offset_reset": reset}
    with Consumer(topic, cluster=cluster, **options) as consumer:
        assert consumer.poll(timeout_ms=1) == []
        admin.create_partitions(topic, 4)
        for partition in (2, 3):
            send(cluster, topic, [b"%d" % partition] * 3, partition)
        assert sorted(poll_values(consumer, 6)) == [b"2"] * 3 + [b"3"] * 3
        assert consumer.assignment() == tuple(TopicPartition(topic, number) for number in range(4))


def test_partitions_that_are_added_are_seen_without_a_poll(cluster, admin, topic):
    with Consumer(topic, cluster=cluster, metadata_max_age_ms=20) as consumer:
        admin.create_partitions(topic, 3)
        wait_until(lambda: len(consumer.assignment()) == 3)


def test_what_was_assigned_is_all_that_is_read(cluster, admin, topic):
    tp = TopicPartition(topic, 0)
    with Consumer(topic, cluster=cluster, **SOON) as consumer:
        consumer.assign([tp])
        consumer.poll(timeout_ms=1)
        admin.create_partitions(topic, 3)
        send(cluster, topic, [b"not assigned"], partition=2)
        added = TopicPartition(topic, 2)
        assert consumer.end_offsets([added]) == {added: 1}  # the consumer's metadata have it
        send(cluster, topic, [b"assigned"])
        assert poll_values(consumer, 1) == [b"assigned"]
        assert consumer.assignment() == (tp,)


def test_a_partition_that_was_added_just_now_can_be_assigned_at_once(cluster, admin, topic):
    tp = TopicPartition(topic, 2)
    with Consumer(topic, cluster=cluster) as consumer:
        admin.create_partitions(topic, 3)
        consumer.assign([tp])
        assert consumer.assignment() == (tp,)


# ---- In virtual time ----


def test_a_topic_that_was_created_again_is_read_at_once_and_not_when_metadata_are_too_old():
    with virtual_cluster() as cluster:
        consumer = VirtualConsumer(cluster)
        cluster.go_on(5_000)
        network = cluster.network()
        cluster.run(network.call(CONTROLLER, DeleteTopicsRequest((TOPIC,)), 10_000))
        new = NewTopic(TOPIC, configs={"min.insync.replicas": "2"}, assignments=(REPLICAS,))
        cluster.run(network.call(CONTROLLER, CreateTopicsRequest((new,)), 10_000))
        created_ms = cluster.now_ms
        producer = VirtualProducer(cluster, pause_ms=100)
        cluster.until(lambda: bool(consumer.values))
        assert cluster.now_ms - created_ms <= 2_000
        producer.end()
        cluster.until(lambda: len(consumer.values) == producer.count)
        assert consumer.values == [b"%d" % number for number in range(producer.count)]
