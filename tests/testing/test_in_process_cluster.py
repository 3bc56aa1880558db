"""The in-process cluster as users of it see it: clients connect, nodes are killed and come back, nothing is left."""

import asyncio
import os
import threading
from functools import partial
from pathlib import Path

import pytest

import rayka
import rayka.testing
from rayka.client import io_thread
from rayka.errors import ConfigError, NetworkException, StorageError
from rayka.ids import Role
from rayka.node.broker_node import BrokerNode
from rayka.protocol.groups import FindCoordinatorRequest
from rayka.protocol.membership import NodeState, StatusRequest
from rayka.testing import InProcessCluster

BROKER, COORDINATOR, CONTROLLER = 1, 1001, 3001


def status(cluster: InProcessCluster, node_id: int) -> NodeState:
    return io_thread.run(partial(cluster.network().call, node_id, StatusRequest(), 5_000), 10).state


def produced_and_read(cluster: InProcessCluster, topic: str, values: list[bytes]) -> list[bytes]:
    with rayka.Producer(cluster=cluster) as producer:
        for value in values:
            producer.send(topic, value=value, partition=0)
    return [record.value for record in rayka.read(topic, cluster=cluster)]


def test_a_coordinator_leads_internal_topics_and_brokers_those_of_users() -> None:
    with rayka.testing.cluster(brokers=2, coordinators=1) as cluster:
        found = io_thread.run(
            partial(cluster.network().call, BROKER, FindCoordinatorRequest(("g",)), 5_000), 10
        )
        assert [each.node_id for each in found.coordinators] == [COORDINATOR]
        with rayka.Admin(cluster=cluster) as admin:
            admin.create_topic("orders", partitions=4)
            assert {each.leader_id for each in admin.describe_topic("orders").partitions} == {1, 2}
            brokers = {each.node_id: each.roles for each in admin.describe_cluster().brokers}
        assert brokers == {1: (Role.BROKER,), 2: (Role.BROKER,), COORDINATOR: (Role.COORDINATOR,)}
        cluster.kill(COORDINATOR)
        assert produced_and_read(cluster, "orders", [b"a"]) == [b"a"]
        cluster.restart(COORDINATOR)


def test_clients_connect_and_every_node_says_that_it_runs() -> None:
    with rayka.testing.cluster(brokers=2) as cluster:
        described = cluster.describe()
        assert [(each.node_id, each.state) for each in described.nodes] == [
            (1, NodeState.RUNNING),
            (2, NodeState.RUNNING),
            (CONTROLLER, NodeState.RUNNING),
        ]
        assert len({each.cluster_id for each in described.nodes}) == 1
        with rayka.Admin(cluster=cluster) as admin:
            admin.create_topic("orders", partitions=4)
        assert produced_and_read(cluster, "orders", [b"a", b"b"]) == [b"a", b"b"]


def test_a_killed_node_is_unreachable_until_it_is_restarted() -> None:
    with rayka.testing.cluster() as cluster:
        cluster.kill(BROKER)
        with pytest.raises(NetworkException, match="broker-1 cannot be reached"):
            status(cluster, BROKER)
        assert [each.node_id for each in cluster.describe().nodes] == [CONTROLLER]
        cluster.restart(BROKER)
        assert status(cluster, BROKER) is NodeState.RUNNING


def test_calls_that_wait_for_a_killed_node_fail() -> None:
    with rayka.testing.cluster() as cluster:

        async def ask_and_kill() -> None:
            network = cluster.network()
            asked = [asyncio.create_task(network.call(BROKER, StatusRequest(), 5_000)) for _ in range(2)]
            await asyncio.sleep(0)
            await cluster.nodes.kill(BROKER)
            for each in asked:
                with pytest.raises(NetworkException):
                    await each

        io_thread.run(ask_and_kill, 10)
        assert repr(cluster) == "<InProcessCluster testing ['controller-3001']>"


def test_data_that_is_there_is_kept_and_served_again(tmp_path: Path) -> None:
    for round_number in range(2):
        with rayka.testing.cluster(data_dir=str(tmp_path)) as cluster:
            if round_number == 0:
                with rayka.Admin(cluster=cluster) as admin:
                    admin.create_topic("orders", partitions=1)
            read = produced_and_read(cluster, "orders", [b"%d" % round_number])
    assert read == [b"0", b"1"]


def test_two_clusters_cannot_share_a_directory(tmp_path: Path) -> None:
    with rayka.testing.cluster(data_dir=str(tmp_path)):
        with pytest.raises(StorageError, match="in use"):
            rayka.testing.cluster(data_dir=str(tmp_path))


def test_calls_fail_on_request_before_or_after_they_are_executed() -> None:
    with rayka.testing.cluster() as cluster:
        cluster.fail_calls("status", times=2)
        for _ in range(2):
            with pytest.raises(NetworkException, match="the call was lost"):
                status(cluster, BROKER)
        cluster.fail_calls("status", is_executed=True, node_id=CONTROLLER)
        assert status(cluster, BROKER) is NodeState.RUNNING
        with pytest.raises(NetworkException, match="the answer was lost"):
            status(cluster, CONTROLLER)


def test_an_unknown_configuration_key_is_refused_before_anything_starts() -> None:
    with pytest.raises(ConfigError, match="the nearest known key is 'message\\.max"):
        rayka.testing.cluster(config={"message.max.byte": 1})


def test_a_node_that_is_not_there_is_named() -> None:
    with rayka.testing.cluster() as cluster:
        with pytest.raises(ValueError, match=r"expected a running node of .*, found 7"):
            cluster.kill(7)
        with pytest.raises(ValueError, match=r"expected one of \[3001, 1\], found 7"):
            cluster.restart(7)


def test_a_node_that_crashed_by_a_bug_fails_the_test_that_used_it() -> None:
    cluster = rayka.testing.cluster()
    io_thread.run(partial(crash, cluster), 10)
    assert [each.node_id for each in cluster.describe().nodes] == [CONTROLLER]
    with pytest.raises(RuntimeError, match="broker-1 crashed: ZeroDivisionError"):
        cluster.stop()


async def crash(cluster: InProcessCluster) -> None:
    node = cluster.nodes.running[BROKER].node
    assert isinstance(node, BrokerNode)
    node.settings.crash(ZeroDivisionError("a bug"))


def test_nothing_is_left_behind() -> None:
    with rayka.testing.cluster():  # starts the IO thread, which stays
        pass
    threads, files = threading.active_count(), len(os.listdir("/proc/self/fd"))
    with rayka.testing.cluster() as cluster:
        (directory,) = cluster.data_dirs(BROKER)
        assert os.path.isdir(directory)
        cluster.kill(BROKER)
        cluster.restart(BROKER)
    assert not os.path.exists(directory)
    assert (threading.active_count(), len(os.listdir("/proc/self/fd"))) == (threads, files)


def test_the_disk_of_a_running_broker_or_of_a_controller_is_not_replaced() -> None:
    with rayka.testing.cluster() as cluster:
        for node_id, name in ((BROKER, "broker-1"), (CONTROLLER, "controller-3001")):
            with pytest.raises(ValueError, match=f"a broker or coordinator that does not run, found {name}"):
                cluster.replace_disk(node_id)
