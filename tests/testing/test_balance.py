"""A balance on real brokers in this process: a broker that has come empty gets its share while clients go on."""

from collections import Counter
from collections.abc import Iterator
from threading import Event, Thread

import pytest

import rayka
import rayka.testing
from rayka import Admin, Producer, TopicPartition
from rayka.cli.broker_commands import follow, print_balance
from rayka.client.admin.admin_load_results import EventInfo
from rayka.errors import InvalidRequest
from rayka.testing import InProcessCluster
from tests.testing.waiting import wait_until

CONFIG = {
    "broker.heartbeat.interval.ms": 20,
    "broker.load.report.interval.ms": 40,
    "replica.fetch.backoff.ms": 20,
    "balancer.enable": False,
}
PARTITIONS, RECORDS, VALUE = 12, 40, b"x" * 2_000
OLD = (1, 2, 3)


@pytest.fixture(scope="module")
def cluster() -> Iterator[InProcessCluster]:
    with rayka.testing.cluster(brokers=4, name="uneven", config=CONFIG) as running:
        yield running


@pytest.fixture(scope="module")
def admin(cluster: InProcessCluster) -> Iterator[Admin]:
    """With a topic whose replicas are on three of the four brokers, two of each partition."""
    with Admin(cluster, retry_backoff_ms=5) as opened:
        striped = [[OLD[(number + place) % 3] for place in range(2)] for number in range(PARTITIONS)]
        opened.create_topic("orders", assignments=striped)
        with Producer(cluster, linger_ms=1) as producer:
            for number in range(PARTITIONS * RECORDS):
                producer.send("orders", VALUE, partition=number % PARTITIONS)
        yield opened


def held(admin: Admin) -> Counter[int]:
    topic = admin.describe_topic("orders")
    return Counter(each for partition in topic.partitions for each in partition.replicas)


def told(admin: Admin) -> list[EventInfo]:
    """What was decided of balances."""
    return [each for each in admin.events() if each.kind.startswith("balance-")]


def is_reported(admin: Admin) -> bool:
    """Whether the brokers have told the controller how much they hold now."""
    sizes = {
        disks.broker_id: sum(each.size_bytes for each in disks.directories) for disks in admin.log_dirs()
    }
    return sizes == {each.node_id: each.size_bytes for each in admin.describe_load().brokers}


def test_a_dry_run_shows_shares_before_and_after_and_changes_nothing(
    admin: Admin, capsys: pytest.CaptureFixture[str]
) -> None:
    wait_until(lambda: is_reported(admin))
    plan = admin.balance(dry_run=True)
    assert (plan.begun_count, plan.is_whole) == (0, True)
    assert [each.replica_count for each in plan.before] == [8, 8, 8, 0]
    assert [each.replica_count for each in plan.after] == [6, 6, 6, 6]
    assert held(admin) == Counter(dict.fromkeys(OLD, 8))
    print_balance(plan, False)
    lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines)) <= 80
    assert "nothing was changed" in lines[-1]
    print_balance(plan, True)
    assert '"dry_run": true' in capsys.readouterr().out


def test_a_balance_beside_a_reassignment_is_refused_by_its_name(
    cluster: InProcessCluster, admin: Admin
) -> None:
    admin.create_topic("moving", assignments=[[1]])
    cluster.kill(4)
    admin.alter_partition_reassignments({TopicPartition("moving", 0): [4]})
    with pytest.raises(InvalidRequest, match="reassignment of moving-0 is under way"):
        admin.balance()
    admin.alter_partition_reassignments({TopicPartition("moving", 0): None})
    admin.delete_topic("moving")
    cluster.restart(4)


def test_arguments_that_cannot_be_are_refused(admin: Admin) -> None:
    for moves in (0, 101):
        with pytest.raises(ValueError, match="1 to 100"):
            admin.balance(moves=moves)


def test_an_empty_broker_gets_its_share_while_clients_go_on(cluster: InProcessCluster, admin: Admin) -> None:
    sent, is_over = [0], Event()

    def produce() -> None:
        with Producer(cluster, linger_ms=1) as producer:
            while not is_over.is_set():
                producer.send("orders", b"small", partition=sent[0] % PARTITIONS).result(60)
                sent[0] += 1

    thread = Thread(target=produce)
    thread.start()
    try:
        plan = admin.balance(moves=3)
        status = follow(admin, len(plan.moves))
    finally:
        is_over.set()
        thread.join()
    assert any(4 in move.new_replicas for move in plan.moves)
    assert status.moved_count == len(plan.moves) > 0
    assert [each.kind for each in told(admin)] == ["balance-begun", "balance-ended"]
    wait_until(lambda: is_reported(admin))
    plan = (
        admin.balance()
    )  # reports of different moments were off by what was sent in between, if the machine is slow
    follow(admin, len(plan.moves))
    assert held(admin) == Counter(dict.fromkeys((1, 2, 3, 4), 6))
    wait_until(lambda: is_reported(admin))
    assert admin.balance(dry_run=True).moves == ()
    described = admin.describe_topic("orders").partitions
    assert all(len(each.isr) == len(each.replicas) == 2 for each in described)
    assert len(list(rayka.read("orders", cluster=cluster))) == PARTITIONS * RECORDS + sent[0]


def test_an_empty_broker_is_filled_by_itself() -> None:
    config = {**CONFIG, "balancer.enable": True, "balancer.settle.ms": 0}
    with rayka.testing.cluster(brokers=2, name="joined", config=config) as joined, Admin(joined) as admin:
        admin.create_topic("orders", assignments=[[1]] * 4)
        wait_until(lambda: held(admin) == Counter({1: 2, 2: 2}))
        wait_until(lambda: [each.kind for each in told(admin)] == ["balance-begun", "balance-ended"])
        assert {each.subjects for each in told(admin)} == {("broker-2",)}
