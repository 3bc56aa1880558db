"""Healing on real brokers in this process: what a broker held is made anew, and removed from it when it comes back."""

import json
from collections.abc import Iterator

import pytest

import rayka
import rayka.testing
from rayka import Admin, Producer
from rayka.cli.events_command import print_events
from rayka.testing import InProcessCluster
from tests.testing.waiting import wait_until

CONFIG = {
    "broker.heartbeat.interval.ms": 100,
    "broker.session.timeout.ms": 3_000,  # a busy machine stands still for a second: no other broker may be gone
    "broker.load.report.interval.ms": 100,
    "broker.unavailable.timeout.ms": 1_000,
    "replica.fetch.backoff.ms": 20,
    "log.segment.delete.delay.ms": 0,
}
PARTITIONS, RECORDS = 6, 60


@pytest.fixture(scope="module")
def cluster() -> Iterator[InProcessCluster]:
    with rayka.testing.cluster(brokers=4, name="healing", config=CONFIG) as running:
        yield running


def replicas(admin: Admin) -> list[tuple[int, ...]]:
    return [tuple(each.replicas) for each in admin.describe_topic("orders").partitions]


def is_whole(admin: Admin, without: int) -> bool:
    described = admin.describe_topic("orders").partitions
    return all(
        without not in each.replicas and len(each.isr) == len(each.replicas) == 3 for each in described
    )


def test_what_a_lost_broker_held_is_made_anew_and_goes_from_it_when_it_comes_back(
    cluster: InProcessCluster, capsys: pytest.CaptureFixture[str]
) -> None:
    with Admin(cluster, retry_backoff_ms=5) as admin, Producer(cluster, linger_ms=1) as producer:
        admin.create_topic("orders", assignments=[[1, 2, 3]] * PARTITIONS)
        for number in range(RECORDS):
            producer.send("orders", b"%d" % number, partition=number % PARTITIONS)
        producer.flush()
        cluster.kill(2)
        wait_until(lambda: is_whole(admin, without=2))
        assert replicas(admin) == [(1, 4, 3)] * PARTITIONS
        begun = next(each for each in admin.events() if each.kind == "heal-begun")
        assert any(each.kind == "broker-fenced" and each.subjects == ("broker-2",) for each in admin.events())
        assert (begun.kind, begun.subjects, begun.reason[:19]) == (
            "heal-begun",
            ("broker-2",),
            "broker 2 has been g",
        )
        assert begun not in admin.events(since=begun.number)
        print_events([begun], False)
        assert "  heal-begun        broker-2  broker 2 has been gone for 1 s; " in capsys.readouterr().out
        print_events([begun], True)
        assert json.loads(capsys.readouterr().out) == {**begun.to_dict(), "subjects": ["broker-2"]}
        cluster.restart(2)
        wait_until(lambda: not held_by(admin, 2))
        assert replicas(admin) == [(1, 4, 3)] * PARTITIONS
    assert len(list(rayka.read("orders", cluster=cluster))) == RECORDS


def held_by(admin: Admin, broker_id: int) -> bool:
    """Whether its directories hold logs; one that does not answer yet may."""
    (disks,) = (each for each in admin.log_dirs() if each.broker_id == broker_id)
    return any(each.replicas for each in disks.directories)
