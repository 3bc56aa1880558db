"""Topics made, listed, described and deleted, on the real nodes in this process."""

from collections.abc import Callable, Iterator
from itertools import count
from typing import Any

import pytest

import rayka.testing
from rayka import Admin, Producer, TopicPartition
from rayka.errors import (
    ClosedError,
    ConfigError,
    InvalidPartitions,
    InvalidReplicationFactor,
    InvalidTopic,
    TopicAlreadyExists,
    UnavailableError,
    UnknownTopicOrPartition,
)
from rayka.testing import InProcessCluster

BROKER, CONTROLLER = 1, 3001
_numbers = count()


@pytest.fixture(scope="module")
def cluster() -> Iterator[InProcessCluster]:
    with rayka.testing.cluster(name="flights") as running:
        yield running


@pytest.fixture
def admin(cluster: InProcessCluster) -> Iterator[Admin]:
    with Admin(cluster, retry_backoff_ms=5) as opened:
        yield opened


@pytest.fixture
def name() -> str:
    return f"topic-{next(_numbers)}"


def test_a_topic_that_was_created_can_be_used_at_once(cluster: InProcessCluster, admin: Admin, name: str):
    created = admin.create_topic(name, partitions=3, replication_factor=1, configs={"segment.bytes": 1 << 20})
    assert repr(created) == f"<TopicDescription {name} partitions=3 configs={{'segment.bytes': '1048576'}}>"
    with Producer(cluster, linger_ms=0) as producer:
        assert producer.send(name, b"x", partition=2).result(60).offset == 0


def test_counts_default_to_the_clusters(admin: Admin, name: str):
    created = admin.create_topic(name)
    assert [each.partition for each in created.partitions] == [0]


def test_a_topic_is_listed_and_described_until_it_is_deleted(admin: Admin, name: str):
    created = admin.create_topic(name, partitions=2)
    assert name in admin.list_topics()
    described = admin.describe_topic(name)
    assert described == created
    assert [(each.leader_id, each.replicas, each.isr) for each in described.partitions] == [
        (1, (1,), (1,))
    ] * 2
    assert described.to_dict()["partitions"][1]["leader_id"] == 1
    admin.delete_topic(name)
    assert name not in admin.list_topics()
    with pytest.raises(UnknownTopicOrPartition, match=f"has no topic '{name}'"):
        admin.describe_topic(name)


def test_config_keys_may_be_dotted_or_snake_case_and_are_checked(admin: Admin, name: str):
    created = admin.create_topic(name, configs={"max_message_bytes": 5_000, "segment.ms": "60000"})
    assert created.configs == {"max.message.bytes": "5000", "segment.ms": "60000"}
    with pytest.raises(ConfigError, match=r"the nearest known key is 'segment\.bytes'"):
        admin.create_topic(f"{name}-2", configs={"segment.byte": 5})
    with pytest.raises(ConfigError, match=r"segment\.bytes: "):
        admin.create_topic(f"{name}-2", configs={"segment.bytes": "many"})
    assert f"{name}-2" not in admin.list_topics()


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        ({"partitions": 0}, InvalidPartitions),
        ({"partitions": -1}, InvalidPartitions),
        ({"partitions": 2**70}, InvalidPartitions),
        ({"replication_factor": -1}, InvalidReplicationFactor),
        ({"replication_factor": 2**70}, InvalidReplicationFactor),
        ({"replication_factor": 5}, InvalidReplicationFactor),
        ({"name": "a/b"}, InvalidTopic),
        ({"name": ""}, InvalidTopic),
        ({"partitions": "3"}, TypeError),
        ({"replication_factor": 1.0}, TypeError),
        ({"name": None}, TypeError),
    ],
    ids=str,
)
def test_what_cannot_be_is_refused_with_the_clusters_name_or_the_arguments(
    admin: Admin, name: str, arguments: dict[str, Any], error: type[Exception]
):
    with pytest.raises(error, match=r"cluster 'flights'|: expected (int|str|1 or more)"):
        admin.create_topic(**{"name": name, **arguments})


def test_a_topic_cannot_be_made_twice(admin: Admin, name: str):
    admin.create_topic(name)
    with pytest.raises(TopicAlreadyExists, match=f"cluster 'flights': topic '{name}' exists already"):
        admin.create_topic(name)


def test_an_unknown_topic_cannot_be_deleted(admin: Admin, name: str):
    admin.create_topic(name)
    with pytest.raises(UnknownTopicOrPartition, match="the nearest name is"):
        admin.delete_topic(f"{name}x")


def test_the_cluster_describes_itself(cluster: InProcessCluster, admin: Admin):
    summary = admin.describe_cluster()
    assert repr(summary) == "<ClusterSummary flights controller=3001 brokers=[1]>"
    assert summary.brokers[0].data_dirs == cluster.data_dirs(BROKER)
    assert summary.to_dict()["brokers"][0]["node_id"] == BROKER


def test_what_is_no_name_is_not_a_cluster_that_is_not_found():
    with pytest.raises(TypeError, match="name: expected str, found int"):
        rayka.Cluster.connect(5)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("ask", "says"),
    [
        (
            lambda admin: admin.create_topic("\udcff"),
            r"name: expected text that UTF-8 can hold, found '\\udcff'",
        ),
        (lambda admin: admin.describe_group("g\udcff"), "group_id: expected text that UTF-8 can hold"),
        (lambda admin: admin.elect_leaders([TopicPartition("t\udcff", 0)]), "topic: expected text"),
        (
            lambda admin: admin.elect_leaders([TopicPartition("t", 2**63)]),
            "partition: expected a number below 2",
        ),
        (
            lambda admin: admin.delete_records({TopicPartition("t", 0): 2**64}),
            "offset of t-0: expected a number",
        ),
        (lambda admin: admin.reset_group_offsets("g", timestamp=2**63), "timestamp: expected a number"),
    ],
)
def test_what_no_request_can_carry_is_refused_by_name(
    admin: Admin, ask: Callable[[Admin], object], says: str
) -> None:
    with pytest.raises(ValueError, match=says):
        ask(admin)


def test_a_lost_call_is_made_again(cluster: InProcessCluster, admin: Admin, name: str):
    admin.create_topic(name)
    cluster.fail_calls("metadata", times=3)
    assert name in admin.list_topics()


def test_a_topic_whose_creation_got_no_answer_is_the_one_that_was_asked_for(
    cluster: InProcessCluster, admin: Admin, name: str
):
    for number, configs in enumerate(({}, {"segment.bytes": 1 << 20})):
        cluster.fail_calls("create_topics", is_executed=True)
        created = admin.create_topic(f"{name}-{number}", partitions=2, configs=configs)
        assert (created, len(created.partitions)) == (admin.describe_topic(f"{name}-{number}"), 2)


@pytest.mark.parametrize("arguments", [{"partitions": 3}, {"configs": {"segment.bytes": 1 << 20}}], ids=str)
def test_a_topic_that_was_there_before_is_not_taken_for_one_whose_creation_got_no_answer(
    cluster: InProcessCluster, admin: Admin, name: str, arguments: dict[str, Any]
):
    admin.create_topic(name)
    cluster.fail_calls("create_topics", is_executed=True)
    with pytest.raises(TopicAlreadyExists):
        admin.create_topic(name, **arguments)


def test_a_controller_that_is_away_is_waited_for_and_then_named(cluster: InProcessCluster, name: str):
    with Admin(cluster, retry_backoff_ms=5, default_api_timeout_ms=50) as admin:
        cluster.kill(CONTROLLER)
        try:
            with pytest.raises(UnavailableError, match="cluster 'flights' is not available"):
                admin.create_topic(name)
        finally:
            cluster.restart(CONTROLLER)
    with Admin(cluster) as admin:
        assert admin.create_topic(name).name == name


def test_a_closed_admin_answers_no_more(cluster: InProcessCluster):
    admin = Admin(cluster)
    admin.close()
    with pytest.raises(ClosedError, match="<Admin cluster=flights closed>"):
        admin.list_topics()


def test_an_unknown_option_is_named(cluster: InProcessCluster):
    with pytest.raises(ConfigError, match="nearest known key is 'request_timeout_ms'"):
        Admin(cluster, request_timeout=5)
