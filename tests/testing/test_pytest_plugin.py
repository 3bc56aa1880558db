"""What users of pytest get: a fixture, and groups that do not wait."""

import subprocess
import sys
from pathlib import Path

import pytest

import rayka
import rayka.testing
from rayka.errors import InvalidSessionTimeout
from rayka.testing import InProcessCluster
from tests.testing.waiting import WAIT_S

_CONFTEST = 'pytest_plugins = ["rayka.testing.pytest_plugin"]\n'
_TESTS = """
import rayka

def test_one(rayka_cluster):
    with rayka.Admin(cluster=rayka_cluster) as admin:
        assert admin.list_topics() == []
        admin.create_topic("orders", partitions=1)
    with rayka.Producer(cluster=rayka_cluster) as producer:
        producer.send("orders", b"x").result(timeout=60)

def test_another_has_a_cluster_of_its_own(rayka_cluster):
    with rayka.Admin(cluster=rayka_cluster) as admin:
        assert admin.list_topics() == []
"""


def test_a_conftest_that_names_the_plugin_gives_each_test_a_cluster_of_its_own(tmp_path: Path) -> None:
    (tmp_path / "conftest.py").write_text(_CONFTEST)
    (tmp_path / "test_orders.py").write_text(_TESTS)
    command = [sys.executable, "-m", "pytest", "-q", "-W", "error", "-p", "no:cacheprovider", str(tmp_path)]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=240, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "2 passed" in done.stdout


def join(cluster: InProcessCluster) -> None:
    with rayka.Admin(cluster=cluster) as admin:
        admin.create_topic("orders", partitions=1, if_not_exists=True)
    options = {"group_id": "g", "session_timeout_ms": 500, "heartbeat_interval_ms": 100}
    with rayka.Consumer("orders", cluster=cluster, **options) as consumer:
        consumer.subscribe("orders", on_assign=lambda partitions: assigned.append(len(partitions)))
        assigned: list[int] = []
        while not assigned:
            consumer.poll(timeout_ms=WAIT_S * 1_000 / 100)


def test_a_member_may_have_a_short_session_and_the_configuration_says_otherwise_where_it_is_named() -> None:
    with rayka.testing.cluster() as cluster:
        join(cluster)
    with rayka.testing.cluster(config={"group.min.session.timeout.ms": 6_000}) as cluster:
        with pytest.raises(InvalidSessionTimeout):
            join(cluster)
