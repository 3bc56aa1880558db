"""A cluster on a real Ray that gets another broker while it runs, and gives it up again."""

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import rayka
from rayka.actors import node_handles
from rayka.cli.main import run
from rayka.cluster import Cluster
from rayka.errors import (
    BrokerIdNotRegistered,
    ClusterExists,
    ConfigError,
    InvalidRequest,
    StorageError,
)
from rayka.ids import TopicPartition
from tests.ray.support import pid_of, wait_until

pytestmark = pytest.mark.ray
WORDS = TopicPartition("words", 0)
VALUES = [b"%03d" % number for number in range(100)]


def running(cluster: Cluster) -> list[int]:
    """The nodes, if all of them run."""
    description = cluster.describe()
    return [each.node_id for each in description.nodes] if description.is_running else []


def values(cluster: Cluster) -> list[bytes | None]:
    return [record.value for record in rayka.read("words", cluster=cluster)]


def move(cluster: Cluster, broker_id: int) -> None:
    """Moves the only replica to that broker."""
    with rayka.Admin(cluster=cluster) as admin:
        admin.alter_partition_reassignments({WORDS: [broker_id]})
        wait_until(lambda: admin.describe_topic("words").partitions[0].replicas == (broker_id,))


def refuse_another_disk(spec: Path, cluster_directory: Path) -> None:
    """Fails where a start makes broker 2 in a directory that is another broker's."""
    foreign = cluster_directory / "broker-2"
    foreign.mkdir()
    shutil.copy(cluster_directory / "broker-1" / "meta.properties", foreign)
    with pytest.raises(
        StorageError, match=f"{foreign} is to be made for broker-2, but another disk is there"
    ):
        Cluster.start(str(spec))
    shutil.rmtree(foreign)


def test_a_broker_comes_while_the_cluster_runs_takes_a_partition_and_goes_again(
    start: Callable[..., Cluster],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))  # no Ray is remembered there
    declared: dict[str, Any] = {"name": "grown", "data_dir": str(tmp_path / "data")}
    cluster = start(**declared)
    with rayka.Admin(cluster=cluster) as admin:
        admin.create_topic("words", partitions=1)
    with rayka.Producer(cluster=cluster) as producer:
        for value in VALUES:
            producer.send("words", value)
    pids = [pid_of(cluster, each) for each in (1, 3001)]

    larger = tmp_path / "cluster.yaml"
    larger.write_text("".join(f"{key}: {value}\n" for key, value in declared.items()) + "brokers: 2\n")
    refuse_another_disk(larger, tmp_path / "data" / "grown")
    assert running(cluster) == [1, 3001]

    assert run(["start", str(larger)]) == 0
    assert "Added broker 2 to the running cluster" in capsys.readouterr().out
    assert running(cluster) == [1, 2, 3001]
    assert [pid_of(cluster, each) for each in (1, 3001)] == pids
    assert Cluster.start(str(larger)).added_brokers == ()

    move(cluster, 2)
    node_handles.end(node_handles.find("grown", 2))  # Ray does not make it again: the supervisor does
    wait_until(lambda: running(cluster) == [1, 2, 3001])
    assert values(cluster) == VALUES

    with pytest.raises(
        ClusterExists, match=r"broker 2, which the spec does not have; .* `rayka broker remove 2`"
    ):
        Cluster.start(**declared)
    with pytest.raises(
        InvalidRequest, match=r"broker 2: expected no replica, found 1; .* `rayka broker drain 2` first"
    ):
        cluster.remove_broker(2)
    with pytest.raises(BrokerIdNotRegistered, match="no broker 7; the cluster has 1, 2"):
        cluster.remove_broker(7)

    cluster.stop()
    with pytest.raises(StorageError, match="is the disk of broker-2, which the spec does not have"):
        Cluster.start(**declared)
    again = Cluster.start(str(larger))
    assert running(again) == [1, 2, 3001]
    assert values(again) == VALUES

    assert run(["broker", "drain", "2", "--cluster", "grown", "--dry-run"]) == 0
    assert "would reassign 1 partition; nothing was changed" in capsys.readouterr().out
    assert run(["broker", "drain", "2", "--cluster", "grown"]) == 0
    assert "`rayka broker remove 2`" in capsys.readouterr().out
    assert run(["broker", "remove", "2", "--yes", "--cluster", "grown"]) == 0
    assert running(again) == [1, 3001]
    assert values(again) == VALUES
    assert sorted(path.name for path in (tmp_path / "data" / "grown").iterdir()) == [
        "broker-1",
        "controller-3001",
        "logs",
    ]
    assert running(Cluster.start(**declared)) == [1, 3001]
    with pytest.raises(ConfigError, match="without broker 1: nodes: expected at least one broker"):
        again.remove_broker(1)
