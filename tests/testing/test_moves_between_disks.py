"""Replicas moved between data directories through the clients, in the cluster of one process (KIP-113)."""

from pathlib import Path

import pytest

import rayka
import rayka.testing
from rayka import TopicPartition
from rayka.errors import (
    BrokerIdNotRegistered,
    InvalidConfig,
    InvalidReplicaAssignment,
    InvalidReplicationFactor,
    LogDirNotFound,
    ReplicaNotAvailable,
)
from tests.testing.waiting import wait_until


def test_a_replica_is_moved_while_it_is_written_and_read(tmp_path: Path) -> None:
    dirs = [str(tmp_path / "one"), str(tmp_path / "two")]
    with rayka.testing.cluster(data_dir=dirs) as cluster, rayka.Admin(cluster=cluster) as admin:
        orders = TopicPartition("orders", 0)
        admin.create_topic("orders")
        with rayka.Producer(cluster=cluster) as producer:
            sent = [producer.send("orders", b"%d" % number) for number in range(500)]
            (disks,) = admin.log_dirs([1])
            (home,) = [each for each in disks.directories if each.replicas]
            (target,) = [each for each in disks.directories if not each.replicas]
            admin.alter_replica_log_dirs(1, {orders: target.path})
            sent += [producer.send("orders", b"%d" % number) for number in range(500, 1000)]
            assert [each.result(30).offset for each in sent] == list(range(1000))
            wait_until(lambda: _held(admin) == {target.path: ["orders"]})
            producer.send("orders", b"1000").result(30)
        values = [record.value for record in rayka.read("orders", cluster=cluster)]
        assert values == [b"%d" % number for number in range(1001)]
        with pytest.raises(LogDirNotFound, match="elsewhere"):
            admin.alter_replica_log_dirs(1, {orders: "/elsewhere"})
        with pytest.raises(BrokerIdNotRegistered):
            admin.alter_replica_log_dirs(9, {orders: home.path})
        cluster.restart(1)
        assert _held(admin) == {target.path: ["orders"]}
        assert len(list(rayka.read("orders", cluster=cluster))) == 1001


def test_a_broker_without_the_replica_moves_nothing(tmp_path: Path) -> None:
    dirs = [str(tmp_path / "one"), str(tmp_path / "two")]
    with (
        rayka.testing.cluster(2, data_dir=dirs) as cluster,
        rayka.Admin(cluster=cluster) as admin,
    ):
        admin.create_topic("orders", assignments=[[1]])
        path = admin.log_dirs([2])[0].directories[0].path
        with pytest.raises(ReplicaNotAvailable, match="orders-0"):
            admin.alter_replica_log_dirs(2, {TopicPartition("orders", 0): path})


def _held(admin: rayka.Admin) -> dict[str, list[str]]:
    """Topics by the directory that has replicas of them, future ones included."""
    (disks,) = admin.log_dirs([1])
    return {each.path: [log.topic for log in each.replicas] for each in disks.directories if each.replicas}


def test_a_cordoned_directory_takes_nothing_new_and_serves_what_it_has(tmp_path: Path) -> None:
    """KIP-1066."""
    dirs = [str(tmp_path / "one"), str(tmp_path / "two")]
    config = {"broker.heartbeat.interval.ms": 50}
    with (
        rayka.testing.cluster(data_dir=dirs, config=config) as cluster,
        rayka.Admin(cluster=cluster) as admin,
    ):
        admin.create_topic("orders")
        ((home, other),) = [sorted(_paths(admin), key=lambda each: each not in _held(admin))]
        admin.alter_configs({"cordoned.log.dirs": home}, broker=1)
        for name in ("a", "b", "c"):
            admin.create_topic(name)
        assert _held(admin) == {home: ["orders"], other: ["a", "b", "c"]}
        assert {each.path: each.is_cordoned for each in admin.log_dirs()[0].directories} == {
            home: True,
            other: False,
        }
        with pytest.raises(
            InvalidReplicaAssignment, match=r"is cordoned; take it out of cordoned\.log\.dirs"
        ):
            admin.alter_replica_log_dirs(1, {TopicPartition("a", 0): home})
        with pytest.raises(InvalidConfig, match="/elsewhere"):
            admin.alter_configs({"cordoned.log.dirs": "/elsewhere"}, broker=1)
        admin.alter_configs({"cordoned.log.dirs": "*"}, broker="all")
        admin.alter_configs({"cordoned.log.dirs": None}, broker=1)
        with pytest.raises(InvalidReplicationFactor, match="not cordoned"):
            admin.create_topic("d")
        with pytest.raises(InvalidReplicaAssignment, match="are cordoned"):
            admin.create_topic("d", assignments=[[1]])
        with rayka.Producer(cluster=cluster) as producer:
            producer.send("orders", b"served").result(30)
        admin.alter_configs({"cordoned.log.dirs": None}, broker="all")
        admin.create_topic("d")


def test_new_replicas_go_where_the_fewest_bytes_are(tmp_path: Path) -> None:
    dirs = [str(tmp_path / "one"), str(tmp_path / "two")]
    config = {"broker.heartbeat.interval.ms": 50}
    with (
        rayka.testing.cluster(data_dir=dirs, config=config) as cluster,
        rayka.Admin(cluster=cluster) as admin,
        rayka.Producer(cluster=cluster) as producer,
    ):
        admin.create_topic("large", partitions=1)
        (home,) = _held(admin)
        producer.send("large", b"a" * 500_000).result(30)
        admin.create_topic("small")
        producer.send("small", b"a").result(30)
        wait_until(lambda: _goes_elsewhere(admin, home))


def _goes_elsewhere(admin: rayka.Admin, home: str) -> bool:
    """Whether the sizes are known: then two more replicas go where the small one is."""
    names = [f"probe-{len(admin.list_topics())}-{number}" for number in range(2)]
    for name in names:
        admin.create_topic(name)
    is_known = not any(name in _held(admin)[home] for name in names)
    for name in names:
        admin.delete_topic(name)
    return is_known


def _paths(admin: rayka.Admin) -> list[str]:
    return [each.path for each in admin.log_dirs()[0].directories]
