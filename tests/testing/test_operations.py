"""What operators do, on three or four real brokers in this process: replicas moved and elected, records deleted,
brokers drained, configurations changed.
"""

import json
from _thread import interrupt_main
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from itertools import count
from threading import Timer
from typing import Any

import pytest

import rayka
import rayka.testing
from rayka import Admin, Producer, TopicPartition
from rayka.cli.catch_up import move, wait_until_moved
from rayka.cli.main import run
from rayka.cli.partition_commands import cancel_all, print_plan
from rayka.cli.shared_options import Target
from rayka.client import io_thread
from rayka.client.admin.admin_results import TopicDescription
from rayka.errors import (
    ApiError,
    BrokerIdNotRegistered,
    ConfigError,
    ElectionNotNeeded,
    InvalidArgument,
    InvalidPartitions,
    InvalidReplicaAssignment,
    InvalidReplicationFactor,
    InvalidRequest,
    NoDiskRoom,
    NoReassignmentInProgress,
    OffsetOutOfRange,
    RequestTimedOut,
    TopicAlreadyExists,
    UnknownTopicOrPartition,
)
from rayka.protocol.membership import StatusRequest, StatusResponse
from rayka.testing import InProcessCluster
from rayka.testing.memory_disk import MemoryDisk
from tests.testing.waiting import WAIT_S, wait_until

BROKERS = (1, 2, 3, 4)
CONFIG = {
    "broker.session.timeout.ms": 3_000,  # a busy machine stands still for a second
    "broker.heartbeat.interval.ms": 100,
    "replica.fetch.backoff.ms": 20,
    "auto.leader.rebalance.enable": False,  # else it may elect what a test is about to elect
}
_numbers = count()


@pytest.fixture(scope="module")
def cluster() -> Iterator[InProcessCluster]:
    with rayka.testing.cluster(brokers=4, name="flights", config=CONFIG) as running:
        yield running


@pytest.fixture
def admin(cluster: InProcessCluster) -> Iterator[Admin]:
    with Admin(cluster, retry_backoff_ms=5) as opened:
        yield opened


@pytest.fixture
def commands(cluster: InProcessCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    """Commands of this process are for the cluster."""
    monkeypatch.setattr(Target, "cluster", lambda self: cluster)


@pytest.fixture
def name() -> str:
    return f"topic-{next(_numbers)}"


def send(cluster: InProcessCluster, topic: str, records: int = 10, partition: int = 0) -> None:
    with Producer(cluster, linger_ms=1, retry_backoff_ms=5) as producer:
        for number in range(records):
            producer.send(topic, b"%d" % number, partition=partition)


def values(cluster: InProcessCluster, topic: str) -> list[int]:
    return [int(each.value or b"") for each in rayka.read(topic, cluster=cluster)]


# ---- Topics ----


def test_replicas_can_be_placed_by_hand(admin: Admin, name: str) -> None:  # B47
    created = admin.create_topic(name, assignments=[[3, 1], [2, 4]])
    assert [(each.replicas, each.leader_id) for each in created.partitions] == [((3, 1), 3), ((2, 4), 2)]
    grown = admin.create_partitions(name, 3, assignments=[[4, 3]])
    assert grown.partitions[2].replicas == (4, 3)


@pytest.mark.parametrize(
    ("arguments", "error", "says"),
    [
        ({"replication_factor": 5}, InvalidReplicationFactor, "5 is above the number of brokers"),
        ({"assignments": [[1, 9]]}, InvalidReplicaAssignment, "9"),
        ({"assignments": [[1, 1]]}, InvalidReplicaAssignment, "each once"),
        ({"assignments": [[1]], "partitions": 1}, InvalidReplicaAssignment, "either assignments or counts"),
        ({"assignments": "1,2"}, TypeError, "such as"),
    ],
)
def test_placements_that_cannot_be_are_refused(
    admin: Admin, name: str, arguments: Any, error: type[Exception], says: str
) -> None:
    with pytest.raises(error, match=says):
        admin.create_topic(name, **arguments)
    assert name not in admin.list_topics()


def test_partitions_are_added_and_used_at_once(cluster: InProcessCluster, admin: Admin, name: str) -> None:
    admin.create_topic(name, replication_factor=2)
    assert len(admin.create_partitions(name, 3).partitions) == 3
    send(cluster, name, partition=2)
    with pytest.raises(InvalidPartitions, match=f"^cluster 'flights': topic '{name}' has 3 partitions"):
        admin.create_partitions(name, 3)
    with pytest.raises(UnknownTopicOrPartition, match="the nearest name"):
        admin.create_partitions(f"{name}x", 3)


def test_partitions_whose_creation_got_no_answer_are_recognised(
    cluster: InProcessCluster, admin: Admin, name: str
) -> None:
    admin.create_topic(name)
    cluster.fail_calls("create_partitions", is_executed=True)
    assert len(admin.create_partitions(name, 4).partitions) == 4


def test_a_description_has_the_lag_of_each_replica(
    cluster: InProcessCluster, admin: Admin, name: str
) -> None:
    admin.create_topic(name, assignments=[[1, 2]], configs={"min.insync.replicas": 1})
    send(cluster, name)
    (partition,) = admin.describe_topic(name).partitions
    assert partition.lags == (0, 0)
    assert [log.log_end_offset for log in partition.logs if log] == [10, 10]
    assert partition.leader_log is partition.logs[0]
    assert not partition.is_under_replicated
    cluster.kill(2)
    send(cluster, name, 7)
    (partition,) = admin.describe_topic(name).partitions
    assert (partition.lags, partition.is_under_replicated) == ((0, None), True)  # unknown, and not 0
    assert partition.logs[1] is None
    cluster.restart(2)
    wait_until_in_sync(admin, name)


@pytest.mark.parametrize("is_full", [True, False], ids=["full", "failed"])
def test_a_description_and_the_status_of_the_node_tell_a_full_disk_from_a_failed_one(is_full: bool) -> None:
    disk = MemoryDisk()
    disks = {1: disk, 2: MemoryDisk(), 3001: MemoryDisk()}
    dirs = ("/a", "/b")  # a broker whose only disk fails ends
    with (
        rayka.testing.cluster(brokers=2, data_dir=dirs, disks=disks, config=CONFIG) as cluster,
        Admin(cluster) as admin,
    ):
        admin.create_topic("orders", assignments=[[1, 2]], configs={"min.insync.replicas": 1})
        send(cluster, "orders", 1)
        (home,) = [each.path for each in admin.log_dirs([1])[0].directories if each.replicas]
        if is_full:
            disk.fill_up()
        else:
            disk.fail("write", home, times=1 << 30)
        send(cluster, "orders", 1)
        (described,) = admin.describe_topics(["orders"])
        (partition,) = described.partitions
        assert (partition.full_replicas, partition.offline_replicas) == (
            ((1,), ()) if is_full else ((), (1,))
        )
        status = status_of(cluster, 1)
        assert ((home in status.full_data_dirs), (home in status.offline_data_dirs)) == (is_full, not is_full)


def status_of(cluster: InProcessCluster, node_id: int) -> StatusResponse:
    async def answered() -> StatusResponse:
        return await cluster.network().call(node_id, StatusRequest(), 10_000)

    return io_thread.run(answered, WAIT_S)


def wait_until_in_sync(admin: Admin, name: str) -> None:
    wait_until(lambda: not any(each.is_under_replicated for each in admin.describe_topic(name).partitions))


# ---- Replicas and leaders ----


def test_a_partition_moves_with_its_records(
    cluster: InProcessCluster, admin: Admin, name: str
) -> None:  # B45
    admin.create_topic(name, assignments=[[1, 2, 3]])
    send(cluster, name, 100)
    move(admin, {TopicPartition(name, 0): (4, 3, 2)}, is_waiting=True, timeout_s=WAIT_S)
    (partition,) = admin.describe_topic(name).partitions
    assert (partition.replicas, set(partition.isr)) == ((4, 3, 2), {4, 3, 2})
    assert partition.leader_id in (4, 3, 2)
    send(cluster, name, 5)
    assert values(cluster, name) == [*range(100), *range(5)]
    wait_until(lambda: not admin.log_dirs([1], topics=[name])[0].directories[0].replicas)  # deleted there


def test_of_a_topic_that_there_is_not_nothing_is_cancelled(admin: Admin, name: str) -> None:
    with pytest.raises(UnknownTopicOrPartition, match=f"no topic '{name}'"):
        cancel_all(admin, name)
    admin.create_topic(name, partitions=1)
    assert cancel_all(admin, name) == []


def test_a_reassignment_under_way_is_listed_and_cancelled(
    cluster: InProcessCluster, admin: Admin, name: str, capsys: pytest.CaptureFixture[str]
) -> None:  # B45
    admin.create_topic(name, assignments=[[1, 2]])
    cluster.kill(4)
    tp = TopicPartition(name, 0)
    try:
        move(admin, {tp: (1, 4)}, is_waiting=False, timeout_s=None)
        (ongoing,) = admin.list_partition_reassignments([tp])
        assert (ongoing.adding_replicas, ongoing.removing_replicas, ongoing.target) == ((4,), (2,), (1, 4))
        with pytest.raises(RequestTimedOut, match=r"goes on in the cluster; .*rayka partition cancel"):
            wait_until_moved(admin, {tp: (1, 4)}, timeout_s=0)
        assert "0 of 1 partition moved, 0 records to go, and those of 1 replica" in capsys.readouterr().err
        Timer(1.0, interrupt_main).start()
        with pytest.raises(KeyboardInterrupt):
            wait_until_moved(admin, {tp: (1, 4)}, timeout_s=WAIT_S)
        assert "goes on in the cluster" in capsys.readouterr().err
        assert cancel_all(admin, name) == [tp]
    finally:
        cluster.restart(4)
    assert admin.describe_topic(name).partitions[0].replicas == (1, 2)
    with pytest.raises(NoReassignmentInProgress, match=f"{name}-0"):
        admin.alter_partition_reassignments({tp: None})


def test_a_cancellation_that_got_no_answer_is_recognised(
    cluster: InProcessCluster, admin: Admin, name: str
) -> None:
    admin.create_topic(name, assignments=[[1, 2]])
    cluster.kill(4)
    try:
        admin.alter_partition_reassignments({TopicPartition(name, 0): (1, 4)})
        cluster.fail_calls("alter_partition_reassignments", is_executed=True)
        admin.alter_partition_reassignments({TopicPartition(name, 0): None})
    finally:
        cluster.restart(4)
    assert admin.list_partition_reassignments() == []


def test_each_partition_is_reassigned_or_refused_on_its_own(admin: Admin, name: str) -> None:
    admin.create_topic(name, assignments=[[1, 2], [1, 2]])
    good, bad = TopicPartition(name, 0), TopicPartition(name, 1)
    with pytest.raises(InvalidReplicaAssignment, match="1 of 2 partitions were refused"):
        admin.alter_partition_reassignments({good: (3, 2), bad: (1, 9)})
    wait_until_moved(admin, {good: (3, 2)}, timeout_s=WAIT_S)
    with pytest.raises(UnknownTopicOrPartition, match="nowhere-0"):
        admin.alter_partition_reassignments({TopicPartition("nowhere", 0): (1,)})


def test_a_reassignment_that_another_client_changed_has_not_ended_well(admin: Admin, name: str) -> None:
    admin.create_topic(name, assignments=[[1, 2]])
    with pytest.raises(NoReassignmentInProgress, match="cancelled or changed by somebody else"):
        wait_until_moved(admin, {TopicPartition(name, 0): (3, 4)}, timeout_s=5)


def test_the_preferred_replica_is_elected(cluster: InProcessCluster, admin: Admin, name: str) -> None:  # B46
    admin.create_topic(name, assignments=[[2, 3]])
    tp = TopicPartition(name, 0)
    cluster.kill(2)
    wait_until(lambda: admin.describe_topic(name).partitions[0].leader_id == 3)
    cluster.restart(2)
    wait_until_in_sync(admin, name)
    (outcome,) = admin.elect_leaders([tp])
    assert (outcome.topic_partition, outcome.error) == (tp, None)
    assert admin.describe_topic(name).partitions[0].leader_id == 2
    (again,) = admin.elect_leaders([tp])
    assert isinstance(again.error, ElectionNotNeeded)
    assert again.is_needless
    assert again.to_dict()["error"] == "ELECTION_NOT_NEEDED"


def test_a_plan_is_told_beside_what_is_and_nothing_moves(
    admin: Admin, name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    admin.create_topic(name, assignments=[[1, 2], [2, 3]])
    plan = {TopicPartition(name, 1): (4, 3)}
    print_plan(plan, admin.describe_topics([name]), False)
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert lines[1] == [f"{name}-1", "2,3", "4,3"]
    assert " ".join(lines[-1]) == "would reassign 1 partition; nothing was changed"
    print_plan(plan, admin.describe_topics([name]), True)
    (move,) = json.loads(capsys.readouterr().out)["moves"]
    assert move == {"topic": name, "partition": 1, "replicas": [2, 3], "new_replicas": [4, 3]}
    with pytest.raises(UnknownTopicOrPartition, match=f"no partition {name}-2"):
        print_plan({TopicPartition(name, 2): (1,)}, admin.describe_topics([name]), False)
    assert [each.replicas for each in admin.describe_topic(name).partitions] == [(1, 2), (2, 3)]


# ---- Brokers ----


def test_a_broker_is_drained(cluster: InProcessCluster, admin: Admin, name: str) -> None:
    admin.create_topic(name, partitions=4, replication_factor=3)
    send(cluster, name, 50, partition=1)
    before = {each.partition: each.replicas for each in admin.describe_topic(name).partitions}
    planned = admin.drain_broker(3, dry_run=True)
    assert admin.list_partition_reassignments() == []
    plan = admin.drain_broker(3)
    assert plan == planned
    wait_until_moved(admin, plan, timeout_s=WAIT_S)
    after = {each.partition: each.replicas for each in admin.describe_topic(name).partitions}
    for partition, replicas in before.items():
        assert len(set(after[partition])) == 3
        assert [each for each in replicas if each != 3] == [
            each for each in after[partition] if each in replicas
        ]
    (drained,) = (each for each in admin.describe_cluster().brokers if each.node_id == 3)
    assert (drained.replica_count, drained.leader_count) == (0, 0)
    assert plan
    assert admin.drain_broker(3) == {}
    assert admin.describe_configs(broker=3)["cordoned.log.dirs"].value == "*"
    with pytest.raises(
        InvalidReplicationFactor, match="2 active brokers remain"
    ):  # a drained one takes nothing
        admin.drain_broker(4)
    assert admin.describe_configs(broker=4)["cordoned.log.dirs"].value == ""
    admin.alter_configs({"cordoned.log.dirs": None}, broker=3)
    assert values(cluster, name) == list(range(50))


def test_a_broker_on_a_machine_that_drains_leads_nothing_and_takes_nothing_until_it_stays(
    cluster: InProcessCluster, admin: Admin, name: str
) -> None:
    def leaders() -> list[int]:
        return [each.leader_id for each in admin.describe_topic(name).partitions]

    admin.create_topic(name, assignments=[[3, 1, 2], [4, 1, 2]])
    send(cluster, name, 20)
    admin.alter_configs({"machine.drain.deadline.ms": 0}, broker=3)
    assert leaders() == [1, 4]
    send(cluster, name, 20)
    wait_until(lambda: admin.describe_topic(name).partitions[0].replicas == (4, 1, 2))
    with pytest.raises(InvalidReplicationFactor, match="2 active brokers remain"):
        admin.drain_broker(4, dry_run=True)
    admin.alter_configs({"machine.drain.deadline.ms": None}, broker=3)
    move(admin, {TopicPartition(name, 0): (3, 1, 2)}, is_waiting=True, timeout_s=WAIT_S)
    admin.elect_leaders()
    assert leaders() == [3, 4]
    assert values(cluster, name) == [*range(20), *range(20)]


def test_a_broker_that_is_gone_for_good_is_forgotten() -> None:
    with rayka.testing.cluster(brokers=2, name="flights", config=CONFIG) as cluster, Admin(cluster) as admin:
        admin.create_topic("orders", assignments=[[2]])
        with pytest.raises(InvalidRequest, match="broker 2 runs"):
            admin.unregister_broker(2)
        wait_until_moved(admin, admin.drain_broker(2), timeout_s=WAIT_S)
        cluster.kill(2)
        wait_until(lambda: admin.describe_cluster().brokers[1].is_fenced)
        cluster.fail_calls("unregister_broker", is_executed=True)
        admin.unregister_broker(2)
        assert [each.node_id for each in admin.describe_cluster().brokers] == [1]
        with pytest.raises(BrokerIdNotRegistered, match="cluster 'flights' has no broker 2; it has 1"):
            admin.unregister_broker(2)


def test_a_broker_that_the_others_cannot_stand_in_for_is_not_drained(admin: Admin, name: str) -> None:
    admin.create_topic(name, replication_factor=4)
    with pytest.raises(
        InvalidReplicationFactor, match=rf"3 active brokers remain .*{name} \(replication factor 4\)"
    ):
        admin.drain_broker(1)
    assert admin.list_partition_reassignments() == []
    admin.delete_topic(name)
    with pytest.raises(BrokerIdNotRegistered, match="no broker 9; the cluster has 1, 2, 3, 4"):
        admin.drain_broker(9)


def test_a_broker_is_not_drained_to_disks_without_room_for_what_it_holds() -> None:
    disk, config = MemoryDisk(), {**CONFIG, "broker.load.report.interval.ms": 40}
    with rayka.testing.cluster(brokers=2, disks={2: disk}, config=config) as cluster, Admin(cluster) as admin:
        admin.create_topic("orders", assignments=[[1]])
        with Producer(cluster, acks="all") as producer:
            producer.send("orders", b"x" * 500_000).result(WAIT_S)
        disk.fill_up(after_bytes=400_000)
        wait_until(
            lambda: (
                all(each.is_known and each.free_bytes < 1 << 60 for each in admin.describe_load().brokers)
                and admin.describe_load().brokers[0].size_bytes >= 500_000
            )
        )
        with pytest.raises(NoDiskRoom, match=r"1 of its replicas \(orders-0\) with 0.5 MB find no room"):
            admin.drain_broker(1)
        assert admin.describe_configs(broker=1)["cordoned.log.dirs"].value == ""


def test_the_cluster_counts_replicas_and_leaders(admin: Admin, name: str) -> None:
    def counts() -> dict[int, tuple[int, int]]:
        brokers = admin.describe_cluster().brokers
        return {each.node_id: (each.replica_count, each.leader_count) for each in brokers}

    before = counts()
    admin.create_topic(name, assignments=[[1, 2], [1, 3]])
    grown = {
        node_id: (a - before[node_id][0], b - before[node_id][1]) for node_id, (a, b) in counts().items()
    }
    assert grown == {1: (2, 2), 2: (1, 0), 3: (1, 0), 4: (0, 0)}


def test_the_directories_of_a_broker_are_described_and_those_of_a_dead_one_not(
    cluster: InProcessCluster, admin: Admin, name: str
) -> None:
    admin.create_topic(name, assignments=[[1, 2]])
    send(cluster, name)
    cluster.kill(4)
    try:
        one, dead = admin.log_dirs([1, 4], topics=[name])
    finally:
        cluster.restart(4)
    (log,) = one.directories[0].replicas
    assert (log.topic, log.log_end_offset, log.is_leader) == (name, 10, True)
    assert one.directories[0].size_bytes == log.size_bytes > 0
    assert one.to_dict()["directories"][0]["directory_id"] == str(one.directories[0].directory_id)
    assert (dead.directories, dead.error) == ((), "broker-4 cannot be reached: it is not running")
    with pytest.raises(BrokerIdNotRegistered, match="cluster 'flights' has no broker 9; it has 1, 2, 3, 4"):
        admin.log_dirs([9])


# ---- Records ----


def test_records_are_deleted_on_all_replicas(
    cluster: InProcessCluster, admin: Admin, name: str
) -> None:  # G11
    admin.create_topic(name, assignments=[[1, 2], [2, 3]])
    for partition in (0, 1):
        send(cluster, name, 10, partition)
    first, second = TopicPartition(name, 0), TopicPartition(name, 1)
    assert admin.delete_records({first: 4, second: -1}) == {first: 4, second: 10}
    assert values(cluster, name) == list(range(4, 10))
    starts = {
        each.log_start_offset
        for broker in admin.log_dirs([1, 2], topics=[name])
        for directory in broker.directories
        for each in directory.replicas
        if each.partition == 0
    }
    assert starts == {4}
    with pytest.raises(OffsetOutOfRange, match=f"{name}-0"):
        admin.delete_records({first: 11})


def test_deleting_records_finds_the_next_leader(cluster: InProcessCluster, admin: Admin, name: str) -> None:
    admin.create_topic(name, assignments=[[4, 1]])
    send(cluster, name)
    cluster.kill(4)
    try:
        assert admin.delete_records({TopicPartition(name, 0): 3}) == {TopicPartition(name, 0): 3}
    finally:
        cluster.restart(4)


@pytest.mark.parametrize(
    ("partition", "says"),
    [(TopicPartition("nowhere", 0), "has no topic 'nowhere'"), (None, "partitions 0 to 0")],
)
def test_records_of_what_does_not_exist_cannot_be_deleted(
    admin: Admin, name: str, partition: TopicPartition | None, says: str
) -> None:
    admin.create_topic(name)
    with pytest.raises(UnknownTopicOrPartition, match=says):
        admin.delete_records({partition or TopicPartition(name, 1): 0})


# ---- Configuration ----


def test_a_topics_configuration_is_changed_key_by_key(admin: Admin, name: str) -> None:
    admin.create_topic(name, configs={"segment.bytes": 1 << 20, "flush.ms": 5})
    admin.alter_configs({"segment_bytes": None, "max.message.bytes": 5_000}, topic=name)
    assert admin.describe_topic(name).configs == {"flush.ms": "5", "max.message.bytes": "5000"}
    configs = admin.describe_configs(topic=name)
    assert configs["max.message.bytes"].value == "5000"
    assert configs["max.message.bytes"].to_dict()["source"] == "dynamic_topic"
    assert configs["segment.bytes"].is_default
    assert not configs["flush.ms"].is_default


def test_brokers_configurations_are_changed_while_they_run(admin: Admin) -> None:
    admin.alter_configs({"log.flush.interval.ms": 7}, broker="all")
    admin.alter_configs({"log.flush.interval.ms": 8}, broker=2)
    assert [admin.describe_configs(broker=each)["log.flush.interval.ms"].value for each in (1, 2)] == [
        "7",
        "8",
    ]
    admin.alter_configs({"log.flush.interval.ms": None}, broker=2)
    admin.alter_configs({"log.flush.interval.ms": None}, broker="all")
    assert admin.describe_configs(broker=2)["log.flush.interval.ms"].is_default


@pytest.mark.parametrize(
    ("configs", "resource", "error", "says"),
    [
        ({"segment.byte": 5}, {"topic": "x"}, ConfigError, r"nearest known key is 'segment\.bytes'"),
        ({"segment.byte": None}, {"topic": "x"}, ConfigError, r"nearest known key is 'segment\.bytes'"),
        ({"segment.bytes": "many"}, {"topic": "x"}, ConfigError, "segment.bytes"),
        ({"flush_ms": 5, "flush.ms": None}, {"topic": "x"}, ConfigError, "both set and deleted"),
        ({}, {"topic": "x"}, ConfigError, "at least one key"),
        ({"flush.ms": 5}, {"topic": "nowhere"}, UnknownTopicOrPartition, "has no topic 'nowhere'"),
        ({"log.flush.interval.ms": 5}, {"broker": 9}, BrokerIdNotRegistered, "broker 9"),
        ({"num.partitions": 5}, {"broker": 1}, ApiError, "num.partitions"),
        ({"flush.ms": 5}, {}, TypeError, "either topic= or broker="),
        ({"flush.ms": 5}, {"broker": "one"}, InvalidArgument, "its id, or 'all'"),
        ({"flush.ms": 5}, {"topic": 5}, TypeError, "expected str"),
    ],
    ids=str,
)
def test_changes_that_cannot_be_are_refused(
    admin: Admin, configs: Any, resource: Any, error: type[Exception], says: str
) -> None:
    with pytest.raises(error, match=says):
        admin.alter_configs(configs, **resource)


@pytest.mark.parametrize(
    ("call", "says"),
    [
        (lambda admin: admin.delete_records([1]), "dict of TopicPartition to offset"),
        (lambda admin: admin.delete_records({"orders": 1}), "TopicPartition"),
        (lambda admin: admin.delete_records({TopicPartition("orders", 0): "1"}), "expected int"),
        (lambda admin: admin.alter_partition_reassignments({TopicPartition("orders", 0): "1,2"}), "such as"),
        (lambda admin: admin.alter_partition_reassignments([]), "dict of TopicPartition"),
        (lambda admin: admin.elect_leaders(["orders"]), "TopicPartition"),
        (lambda admin: admin.describe_topics("orders"), "list of topics"),
        (lambda admin: admin.create_partitions("orders", "3"), "expected int"),
    ],
)
def test_arguments_of_a_wrong_type_are_named(admin: Admin, call: Any, says: str) -> None:
    with pytest.raises(TypeError, match=says):
        call(admin)


# ---- A topic that may exist ----


def test_a_topic_that_exists_is_returned_as_it_is_and_where_it_differs_is_told(
    cluster: InProcessCluster, admin: Admin, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    created = admin.create_topic(name, partitions=3, configs={"flush.ms": 5}, if_not_exists=True)
    assert len(created.partitions) == 3
    for asked in (
        {},
        {"partitions": 3},
        {"partitions": 3, "replication_factor": 1, "configs": {"flush.ms": 5}},
    ):
        assert admin.create_topic(name, if_not_exists=True, **asked) == created
    assert caplog.messages == []
    other = {"partitions": 6, "replication_factor": 2, "configs": {"flush.ms": 7, "segment.bytes": 4096}}
    assert admin.create_topic(name, if_not_exists=True, **other) == created
    assert caplog.messages == [
        f"topic {name!r} of cluster 'flights' exists with 3 instead of 6 partitions, "
        "replication factor 1 instead of 2, flush.ms=5 instead of 7, segment.bytes=(the default) instead of 4096"
    ]
    with pytest.raises(TopicAlreadyExists):
        admin.create_topic(name, partitions=3, configs={"flush.ms": 5})


def test_of_several_that_create_a_topic_if_it_does_not_exist_all_get_the_same(
    cluster: InProcessCluster, name: str
) -> None:
    def create(_: int) -> TopicDescription:
        with Admin(cluster, retry_backoff_ms=5) as own:
            return own.create_topic(name, partitions=2, if_not_exists=True)

    with ThreadPoolExecutor(8) as threads:
        assert len({each.topic_id for each in threads.map(create, range(8))}) == 1


def test_a_topic_that_is_deleted_while_it_is_asked_whether_it_exists_is_created(
    cluster: InProcessCluster, admin: Admin, name: str
) -> None:
    """A topic is deleted and created again and again; another caller's `if_not_exists` never fails because of that."""

    def come_and_go() -> None:
        for _ in range(20):
            with suppress(TopicAlreadyExists, UnknownTopicOrPartition):
                admin.create_topic(name)
            with suppress(UnknownTopicOrPartition):
                admin.delete_topic(name)

    with ThreadPoolExecutor(1) as thread, Admin(cluster, retry_backoff_ms=5) as other:
        coming = thread.submit(come_and_go)
        while not coming.done():
            assert other.create_topic(name, if_not_exists=True).name == name
        coming.result()


@pytest.mark.parametrize(
    "ask",
    [
        lambda admin: admin.delete_topic("nosuch"),
        lambda admin: admin.describe_topic("nosuch"),
        lambda admin: admin.create_partitions("nosuch", 3),
        lambda admin: admin.describe_configs(topic="nosuch"),
        lambda admin: admin.delete_records({TopicPartition("nosuch", 0): 1}),
    ],
)
def test_the_error_for_an_unknown_topic_that_is_to_be_managed_does_not_advise_to_create_it(
    cluster: InProcessCluster, admin: Admin, ask: Callable[[Admin], object]
) -> None:
    with pytest.raises(UnknownTopicOrPartition, match="has no topic 'nosuch'") as raised:
        ask(admin)
    assert "create" not in str(raised.value)
    with (
        Producer(cluster) as producer,
        pytest.raises(UnknownTopicOrPartition, match="rayka topic create nosuch"),
    ):
        producer.send("nosuch", b"x").result(timeout=30)


@pytest.mark.usefixtures("commands")
def test_a_dry_run_of_a_reassignment_prints_the_plan_and_moves_nothing(
    admin: Admin, name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    admin.create_topic(name, assignments=[[1, 2]])
    command = ["partition", "reassign", "--topic", name, "--replicas", "0:3,4", "--dry-run", "--json"]
    assert run(command) == 0
    (planned,) = json.loads(capsys.readouterr().out)["moves"]
    assert planned == {"topic": name, "partition": 0, "replicas": [1, 2], "new_replicas": [3, 4]}
    assert run(["partition", "reassignments", "--topic", name, "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == []
    assert [each.replicas for each in admin.describe_topic(name).partitions] == [(1, 2)]


@pytest.mark.usefixtures("commands")
def test_of_a_named_topic_that_is_whole_no_partition_is_listed(
    admin: Admin, name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    admin.create_topic(name)
    assert run(["topic", "describe", name, "--under-replicated", "--json"]) == 0
    described = json.loads(capsys.readouterr().out)
    assert (described["name"], described["partitions"]) == (name, [])


@pytest.mark.usefixtures("commands")
def test_settings_and_partitions_that_the_command_line_changes_are_changed(
    admin: Admin, name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    admin.create_topic(name, partitions=2)
    given = ["-c", "retention.ms=5000", "-c", "max.message.bytes=6000"]
    assert run(["topic", "alter", name, *given]) == 0
    assert admin.describe_topic(name).configs == {"retention.ms": "5000", "max.message.bytes": "6000"}
    assert (
        run(["topic", "alter", name, "--delete-config", "retention.ms", "-c", "flush=batch", "--json"]) == 0
    )
    assert admin.describe_topic(name).configs == {"max.message.bytes": "6000", "flush": "batch"}
    assert run(["topic", "add-partitions", name, "4"]) == 0
    assert len(admin.describe_topic(name).partitions) == 4
    assert run(["topic", "add-partitions", name, "1"]) == 1
    assert len(admin.describe_topic(name).partitions) == 4
    assert f"topic {name} has 4 partitions" in capsys.readouterr().out
