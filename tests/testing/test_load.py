"""What brokers say of their load, on three real brokers in this process."""

import json
from collections.abc import Iterator

import pytest

import rayka
import rayka.testing
from rayka import Admin, Producer
from rayka.cli.load_tables import print_broker_loads, print_partition_loads
from rayka.client.admin.admin_load_results import ClusterLoad
from rayka.errors import UnknownTopicOrPartition
from rayka.testing import InProcessCluster
from tests.testing.waiting import wait_until

RECORDS, VALUE = 200, b"x" * 500
CONFIG = {
    "broker.heartbeat.interval.ms": 20,
    "broker.load.report.interval.ms": 40,
    "broker.session.timeout.ms": 2_000,
}
COLUMNS_MAX = 80


@pytest.fixture(scope="module")
def cluster() -> Iterator[InProcessCluster]:
    with rayka.testing.cluster(brokers=3, name="loaded", config=CONFIG) as running:
        yield running


@pytest.fixture(scope="module")
def admin(cluster: InProcessCluster) -> Iterator[Admin]:
    with Admin(cluster, retry_backoff_ms=5) as opened:
        yield opened


def all_known(load: ClusterLoad) -> bool:
    return all(each.is_known for each in load.brokers)


def test_what_clients_send_and_read_is_measured(cluster: InProcessCluster, admin: Admin) -> None:
    admin.create_topic("orders", assignments=[[1, 2]])
    with Producer(cluster, linger_ms=1) as producer:
        for _ in range(RECORDS):
            producer.send("orders", VALUE)

        def is_measured() -> bool:
            """Whether a window shows both ways; each look is traffic, for a window passes in half a second."""
            producer.send("orders", VALUE).result(60)
            assert len(list(rayka.read("orders", cluster=cluster))) >= RECORDS
            first, second, third = admin.describe_load().brokers
            rates = (first.bytes_in, first.records_in, first.bytes_out, first.records_out)
            reports = (first, second, third)
            return (
                all(each.free_bytes > 0 and each.processor_share > 0 for each in reports)
                and min(*rates, second.replication_bytes_in, first.replication_bytes_out) > 0
                and min(first.size_bytes, second.size_bytes) > RECORDS * len(VALUE)
            )

        wait_until(is_measured)
    first, second, third = admin.describe_load().brokers
    assert (first.leader_count, first.partition_count, second.leader_count) == (1, 1, 0)
    assert (second.bytes_in, third.size_bytes, third.partition_count) == (0, 0, 0)


def test_the_busiest_partitions_are_named_by_topic(admin: Admin) -> None:
    def sizes() -> dict[tuple[int, bool], int]:
        named = admin.describe_load(["orders"]).partitions
        return {(each.broker_id, each.is_leader): each.size_bytes for each in named}

    wait_until(lambda: sizes().keys() == {(1, True), (2, False)} and len(set(sizes().values())) == 1)
    assert max(sizes().values()) > RECORDS * len(VALUE)
    with pytest.raises(UnknownTopicOrPartition, match="nothing"):
        admin.describe_load(["nothing"])


def test_load_is_shown_within_80_columns(admin: Admin, capsys: pytest.CaptureFixture[str]) -> None:
    wait_until(lambda: all_known(admin.describe_load()))
    load = admin.describe_load()
    print_broker_loads(load.brokers)
    print_partition_loads(load.partitions)
    lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines)) <= COLUMNS_MAX
    assert [lines[0].split()[0], lines[4].split()[0]] == ["broker", "partition"]
    assert json.loads(json.dumps(load.to_dict()))["brokers"][0]["node_id"] == 1


def test_a_controller_knows_the_load_after_its_start_by_the_next_reports(
    cluster: InProcessCluster, admin: Admin
) -> None:
    cluster.restart(3001)  # its successor knows nothing yet
    wait_until(lambda: all_known(admin.describe_load()))


def test_a_broker_that_was_stopped_is_shown_as_fenced_and_with_what_it_holds(
    cluster: InProcessCluster, admin: Admin, capsys: pytest.CaptureFixture[str]
) -> None:
    wait_until(lambda: all_known(admin.describe_load()))
    cluster.kill(3)
    wait_until(lambda: admin.describe_load().brokers[2].is_fenced)
    print_broker_loads(admin.describe_load().brokers)
    of_third = capsys.readouterr().out.splitlines()[3].split()
    assert of_third[:5] == ["3", "fenced", "-", "-", "-"]
    assert of_third[-1] == "-"
