"""Most controllers are gone: what clients are told, and that what needs no controller goes on."""

from collections.abc import Iterator

import pytest

import rayka
import rayka.testing
from rayka import Admin, Producer
from rayka.errors import RaykaError, UnavailableError
from rayka.testing import InProcessCluster
from tests.testing.waiting import wait_until

CONTROLLERS, WAIT_S = (3001, 3002, 3003), 60


@pytest.fixture(scope="module")
def cluster() -> Iterator[InProcessCluster]:
    """Its topic `orders` can be written: a producer id was given out before the controllers went.

    The controller that is left leads, and answers, until it has waited for the others' fetches for too long (A12).
    """
    with rayka.testing.cluster(brokers=3, controllers=3) as running:
        with Admin(running) as admin:
            admin.create_topic("orders", replication_factor=3, configs={"min.insync.replicas": 2})
        with Producer(running) as producer:
            producer.send("orders", b"0").result(WAIT_S)
        for each in CONTROLLERS[:2]:
            running.kill(each)
        wait_until(lambda: all(node.leader_id != node.node_id for node in running.describe().nodes))
        yield running
        for each in CONTROLLERS[:2]:
            running.restart(each)


def test_what_needs_a_controller_says_that_a_majority_must_run(cluster: InProcessCluster) -> None:
    with Admin(cluster, default_api_timeout_ms=500) as admin:
        for ask in (lambda: admin.create_topic("new"), admin.list_topics, admin.describe_cluster):
            with pytest.raises(UnavailableError, match=r"; a majority .* must run") as raised:
                ask()
            assert "is it running?" not in str(raised.value)


def test_the_error_for_an_unknown_topic_says_that_a_majority_must_run(cluster: InProcessCluster) -> None:
    with Producer(cluster, max_block_ms=500) as producer:
        with pytest.raises(RaykaError, match=r"a majority of its controllers must run") as raised:
            producer.send("new", b"0")
        assert "is it running?" not in str(raised.value)


def test_topics_that_are_there_are_written_and_read(cluster: InProcessCluster) -> None:
    with Producer(cluster, enable_idempotence=False) as producer:
        assert producer.send("orders", b"1").result(WAIT_S).offset == 1
    assert [each.value for each in rayka.read("orders", cluster=cluster)] == [b"0", b"1"]
