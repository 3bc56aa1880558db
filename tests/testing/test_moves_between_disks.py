"""Replicas moved between data directories through the clients, in the cluster of one process (KIP-113)."""

from pathlib import Path

import pytest

import rayka
import rayka.testing
from rayka import TopicPartition
from rayka.errors import BrokerIdNotRegistered, LogDirNotFound, ReplicaNotAvailable
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
