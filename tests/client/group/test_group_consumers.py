"""Consumers of a group on the real nodes in this process (E3 to E9)."""

from collections.abc import Iterator

import pytest

import rayka.testing
from rayka import Consumer, TopicPartition
from rayka.errors import ConfigError, InvalidGroupId, UnknownTopicOrPartition
from rayka.testing import InProcessCluster
from tests.client.group.consumer_support import QUICK, Told, new_topic, poll_until, send


@pytest.fixture(scope="module")
def cluster() -> Iterator[InProcessCluster]:
    with rayka.testing.cluster(config=QUICK) as running:
        yield running


@pytest.fixture
def topic(cluster: InProcessCluster) -> str:
    return new_topic(cluster)


@pytest.mark.parametrize("assignor", ["range", "cooperative-sticky"])
def test_two_consumers_share_a_topic_and_one_takes_over_when_the_other_closes(
    cluster: InProcessCluster, topic: str, assignor: str
) -> None:  # E5 E6
    first, second = (
        Told(cluster, topic, topic=topic, partition_assignment_strategy=assignor) for _ in range(2)
    )
    send(cluster, topic)
    poll_until(lambda: len(first.owned) == len(second.owned) == 2, first, second)
    poll_until(lambda: {*first.values, *second.values} >= {b"%d-9" % n for n in range(4)}, first, second)
    assert sorted(first.owned + second.owned) == [0, 1, 2, 3]
    second.consumer.close()
    assert second.told[-1].startswith("revoked")
    poll_until(lambda: len(first.owned) == 4, first)
    send(cluster, topic, 1)
    first.records.clear()
    poll_until(lambda: {*first.values} >= {b"%d-0" % n for n in range(4)}, first)
    first.consumer.close()


def test_topics_given_to_the_constructor_are_subscribed_to(
    cluster: InProcessCluster, topic: str
) -> None:  # E3
    send(cluster, topic, 1)
    with Consumer(topic, cluster=cluster, group_id=topic, auto_offset_reset="earliest") as consumer:
        assert consumer.subscription() == (topic,)
        values = []
        while len(values) < 4:
            values += [each.value for each in consumer.poll(timeout_ms=5_000)]
        metadata = consumer.group_metadata()
        assert (metadata.group_id, metadata.generation_id) == (topic, 1)
        assert metadata.member_id.startswith("rayka-")
        consumer.unsubscribe()
        assert (consumer.subscription(), consumer.assignment()) == ((), ())
        assert consumer.poll(timeout_ms=1) == []


def test_a_loop_over_a_group_reads_all(cluster: InProcessCluster, topic: str) -> None:  # E5
    send(cluster, topic, 500)
    seen = set()
    with Consumer(
        topic, cluster=cluster, group_id=topic, auto_offset_reset="earliest", max_poll_records=100
    ) as consumer:
        for record in consumer:
            seen.add((record.partition, record.offset))
            if len(seen) == 2_000:
                break


def test_a_subscription_and_an_assignment_exclude_each_other(cluster: InProcessCluster, topic: str) -> None:
    with Consumer(topic, cluster=cluster, group_id=topic) as consumer:
        with pytest.raises(RuntimeError, match="unsubscribe first"):
            consumer.assign([TopicPartition(topic, 0)])
        consumer.unsubscribe()
        consumer.assign([TopicPartition(topic, 0)])
        with pytest.raises(RuntimeError, match="reads what `assign` named"):
            consumer.subscribe(topic)
        consumer.assign([])
        consumer.subscribe(topic)


def test_what_needs_a_group_says_so(cluster: InProcessCluster, topic: str) -> None:
    with Consumer(cluster=cluster) as consumer:
        with pytest.raises(ConfigError, match="give the consumer a group_id"):
            consumer.subscribe(topic, on_assign=print)
        with pytest.raises(InvalidGroupId, match="give it a group_id"):
            consumer.group_metadata()
        with pytest.raises(ValueError, match="at least one"):
            consumer.subscribe([])


def test_a_topic_that_does_not_exist_is_named(cluster: InProcessCluster, topic: str) -> None:
    with pytest.raises(UnknownTopicOrPartition, match="nearest name"):
        Consumer(topic + "x", cluster=cluster, group_id=topic)
