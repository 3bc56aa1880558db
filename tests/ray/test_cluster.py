"""Clusters on a real Ray: started, found, described, stopped, started again; and what is refused."""

import json
import shutil
import socket
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
import ray

import rayka
from rayka.actors import node_handles, supervisor_handle
from rayka.actors.cluster_start import execute, plan_start, without_disk
from rayka.actors.node_logs import kept_logs
from rayka.actors.node_placement import wall_clock_ms
from rayka.actors.shell import CRASHES_MAX, record_crash
from rayka.actors.supervisor_handle import Identities
from rayka.client import io_thread
from rayka.cluster import Cluster
from rayka.config.cluster_config import ClusterSpec
from rayka.errors import ClusterExists, ClusterNotFound, ConfigError, StorageError, UnavailableError
from rayka.ids import Role
from rayka.protocol.membership import NodeState, StatusRequest
from tests.ray.conftest import Said
from tests.ray.support import broker_pid, end_supervisor, kill, pid_of, running
from tests.testing.waiting import wait_until

pytestmark = pytest.mark.ray
Start = Callable[..., Cluster]


def values(cluster: Cluster, topic: str) -> list[bytes | None]:
    """Every value of a topic, in no particular order of partitions."""
    return sorted(record.value for record in rayka.read(topic, cluster=cluster))


def data_dir(cluster: Cluster) -> str:
    """What its spec says."""
    return str(Path(cluster.describe().nodes[0].data_dirs[0]).parents[1])


def test_stop_and_start_on_the_same_directory_keeps_topics_and_records(start: Start, tmp_path: Path) -> None:
    sent = [f"{number:04}".encode() for number in range(1000)]
    cluster = start(name="kept", data_dir=str(tmp_path))
    with rayka.Admin(cluster=cluster) as admin:
        admin.create_topic("numbers", partitions=3, configs={"segment.bytes": "16384"})
    with rayka.Producer(cluster=cluster) as producer:
        for value in sent:
            producer.send("numbers", value)
    assert values(cluster, "numbers") == sent
    cluster_id = running(cluster).cluster_id
    cluster.stop()
    kept = {
        each.name.partition("-20")[0]: each.read_text() for each in (tmp_path / "kept" / "logs").iterdir()
    }
    assert kept.keys() == {"broker-1", "controller-3001", "supervisor"}
    assert " INFO kept/broker-1 rayka." in kept["broker-1"]

    again = start(name="kept", data_dir=str(tmp_path))
    assert running(again).cluster_id == cluster_id
    assert values(again, "numbers") == sent
    with rayka.Producer(cluster="kept") as producer:  # by name
        assert producer.send("numbers", b"one more").result(timeout=30).topic == "numbers"
    assert len(values(again, "numbers")) == len(sent) + 1


def test_describe_names_every_node_with_its_actor_process_and_directories(
    cluster: Cluster, ray_address: str
) -> None:
    description = running(cluster)
    broker, controller = description.nodes
    assert (description.name, description.namespace) == ("shared", "rayka")
    assert (description.ray_address, description.controller_id) == (ray_address, 3001)
    assert (broker.node_id, broker.roles, broker.actor_name) == (1, (Role.BROKER,), "shared/broker-1")
    assert (controller.node_id, controller.actor_name) == (3001, "shared/controller-3001")
    assert broker.state == controller.state == NodeState.RUNNING
    assert broker.data_dirs[0].endswith("shared/broker-1")
    assert None not in (broker.pid, controller.pid)
    assert broker.pid != controller.pid


def test_a_cluster_that_does_not_run_is_not_found_by_name(ray_address: str) -> None:
    with pytest.raises(ClusterNotFound) as raised:
        Cluster.connect("nowhere")
    for said in ("'nowhere'", "'rayka'", ray_address, "rayka start"):
        assert said in str(raised.value)
    with pytest.raises(ClusterNotFound):
        rayka.Producer(cluster="nowhere")


def test_a_running_cluster_started_again_as_it_is_stays_as_it_is(cluster: Cluster) -> None:
    before = broker_pid(cluster)
    assert broker_pid(Cluster.start(name=cluster.name, data_dir=data_dir(cluster))) == before


@pytest.mark.parametrize(
    "found",
    [
        lambda cluster: Cluster.start(name=cluster.name, data_dir=data_dir(cluster)),
        lambda cluster: Cluster.connect(cluster.name),
        lambda cluster: Cluster(cluster.name, cluster.ray_address),
    ],
    ids=["start", "connect", "handle"],
)
def test_the_end_of_a_block_stops_no_cluster_that_ran_before(
    cluster: Cluster, found: Callable[[Cluster], Cluster]
) -> None:
    before = broker_pid(cluster)
    with found(cluster), found(cluster) as again:
        assert broker_pid(again) == before
    assert broker_pid(cluster) == before


def test_a_second_cluster_of_one_name_is_refused(cluster: Cluster) -> None:
    with pytest.raises(ClusterExists, match="data_dir"):
        Cluster.start(name="shared", data_dir="/elsewhere")


def test_other_settings_are_refused_where_the_restart_they_need_would_stop_writes(cluster: Cluster) -> None:
    before = broker_pid(cluster)
    with rayka.Admin(cluster) as admin:
        admin.create_topic("one-replica", partitions=1, replication_factor=1, if_not_exists=True)
    with pytest.raises(
        UnavailableError, match=r"min\.insync\.replicas and refuse writes; nothing was restarted"
    ):
        Cluster.start(name="shared", data_dir=data_dir(cluster), config={"num.partitions": 7})
    assert broker_pid(Cluster.start(name=cluster.name, data_dir=data_dir(cluster))) == before


def test_a_cluster_runs_beside_another_and_is_gone_when_it_is_stopped_with_its_data_if_told_so(
    cluster: Cluster, start: Start, tmp_path: Path
) -> None:
    """Also the data of a node that has no actor any more."""
    with start(data_dir=str(tmp_path)) as other:
        description = running(other)
        assert description.cluster_id != running(cluster).cluster_id
        end_supervisor(other)
        node_handles.end(node_handles.find(other.name, 1))
        logs = Path(kept_logs(description.nodes[0].data_dirs[0]))
        logs.mkdir()
        for name in ("broker-1", "controller-3001", "supervisor"):
            (logs / f"{name}-2026-01-31T12-00-00.log").touch()
        other.stop(delete_data=True)
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(ClusterNotFound):
        other.stop()


def test_a_broker_starts_without_a_disk_that_is_gone_and_gets_that_one_back_empty(
    start: Start, tmp_path: Path
) -> None:
    dirs = [str(tmp_path / each) for each in ("one", "two")]
    cluster = start(name="disks", data_dir=dirs)
    with rayka.Admin(cluster) as admin:
        admin.create_topic("t", partitions=2)
        homes = {p.partition: each.path for each in admin.log_dirs()[0].directories for p in each.replicas}
    for partition in homes:
        with rayka.Producer(cluster) as producer:
            producer.send("t", b"a", partition=partition).result(timeout=60)
    cluster.stop()
    lost, sound = f"{dirs[1]}/disks/broker-1", f"{dirs[0]}/disks/broker-1"
    shutil.rmtree(lost)
    cluster = start(name="disks", data_dir=dirs)
    [broker] = [each for each in cluster.describe().nodes if each.node_id == 1]
    assert (broker.state, broker.offline_data_dirs) == ("degraded", (lost,))
    assert f"bring it back empty with `rayka start --replace 1:{lost}`" in broker.detail
    cluster = start(name="disks", data_dir=dirs, replace=[f"1:{lost}"])
    [broker] = [each for each in cluster.describe().nodes if each.node_id == 1]
    assert (broker.state, broker.offline_data_dirs) == ("running", ())
    kept = [partition for partition, home in homes.items() if home == sound]
    with rayka.Producer(cluster) as producer:
        again = [producer.send("t", b"b", partition=each).result(timeout=60).offset for each in kept]
    assert again == [1]  # behind the record of before


def test_a_missing_directory_is_named_and_a_replaced_broker_comes_back_empty(
    start: Start, tmp_path: Path
) -> None:
    cluster = start(name="replaced", data_dir=str(tmp_path))
    cluster.stop()
    directory = tmp_path / "replaced" / "broker-1"
    shutil.rmtree(directory)
    with pytest.raises(StorageError, match=str(directory)):
        start(name="replaced", data_dir=str(tmp_path))
    with pytest.raises(ConfigError, match="no other controller has the metadata"):
        start(name="replaced", data_dir=str(tmp_path), replace=[3001])
    running(start(name="replaced", data_dir=str(tmp_path), replace=[1]))


def test_a_broker_all_of_whose_directories_are_offline_is_replaced_while_the_cluster_runs(
    start: Start, tmp_path: Path
) -> None:
    cluster = start(name="offline", data_dir=str(tmp_path), brokers=2)
    with rayka.Admin(cluster=cluster) as admin:
        with pytest.raises(ConfigError, match="broker-2 runs; only a node whose machine or disk is lost"):
            start(name="offline", data_dir=str(tmp_path), brokers=2, replace=[2])
        shutil.rmtree(tmp_path / "offline" / "broker-2")
        admin.create_topic("words", assignments=[[2]])
        asked = {each: ["another"] for each in (1, 2)}
        wait_until(lambda: io_thread.run(partial(without_disk, cluster.network(), asked), 10) == [2])
        pid = pid_of(cluster, 1)
        start(name="offline", data_dir=str(tmp_path), brokers=2, replace=[2])
        assert pid_of(cluster, 1) == pid
        running(cluster)
        admin.delete_topic("words")


def test_a_directory_of_another_node_fails_the_start_with_the_reason_and_leaves_nothing(
    start: Start, tmp_path: Path
) -> None:
    spec = ClusterSpec(name="first", data_dir=str(tmp_path))
    execute(plan_start(spec, spec.roles, homes={}, known=Identities()))
    broker, controller = (tmp_path / "first" / node for node in ("broker-1", "controller-3001"))
    broker.joinpath("meta.properties").write_bytes(controller.joinpath("meta.properties").read_bytes())
    with pytest.raises(StorageError, match=f"refused: {broker} on Ray node .* belongs to controller-3001"):
        start(name="first", data_dir=str(tmp_path))
    with pytest.raises(ClusterNotFound):
        Cluster.connect("first")


def test_a_node_that_crashed_three_times_in_a_minute_stays_up_as_failed_and_says_so(
    start: Start, tmp_path: Path
) -> None:
    cluster = start(data_dir=str(tmp_path))
    for _ in range(CRASHES_MAX):
        record_crash(cluster.describe().nodes[0].data_dirs[0], wall_clock_ms())
    kill(broker_pid(cluster))
    network = cluster.network()

    async def until_failed() -> str:
        while True:
            try:
                status = await network.call(1, StatusRequest(), 5_000)
            except rayka.errors.ApiError:
                continue  # Ray is restarting it
            if status.state is NodeState.FAILED:
                return status.detail

    assert "crashed 3 times" in io_thread.run(until_failed, 60)
    assert not cluster.describe().is_running


def test_a_node_without_an_actor_is_made_again_on_its_disk_also_by_a_supervisor_that_was_killed(
    start: Start, tmp_path: Path
) -> None:
    cluster = start(data_dir=str(tmp_path))
    with rayka.Admin(cluster=cluster) as admin:
        admin.create_topic("words", partitions=1)
    with rayka.Producer(cluster=cluster) as producer:
        producer.send("words", b"one")
    before = ray.get(supervisor_handle.find(cluster.name).pid.remote())
    kill(before)
    node_handles.end(node_handles.find(cluster.name, 1))
    running(cluster)
    assert values(cluster, "words") == [b"one"]
    assert ray.get(supervisor_handle.find(cluster.name).pid.remote()) != before
    cluster.stop()
    assert supervisor_handle.find(cluster.name) is None


def test_a_consumer_of_a_cluster_that_was_stopped_says_so_and_reads_on_when_it_is_started_again(
    start: Start, tmp_path: Path
) -> None:
    cluster = start(name="resumed", data_dir=str(tmp_path))
    with rayka.Admin(cluster=cluster) as admin:
        admin.create_topic("words", partitions=1)
    send(cluster, "words", b"one")
    options = {"auto_offset_reset": "earliest", "default_api_timeout_ms": 3_000}
    with rayka.Consumer("words", cluster=cluster, **options) as consumer:
        loop = iter(consumer)
        assert next(loop).value == b"one"
        cluster.stop()
        with pytest.raises(UnavailableError, match="no node of cluster 'resumed' has answered for 3000 ms"):
            next(loop)
        send(start(name="resumed", data_dir=str(tmp_path)), "words", b"two")
        read: list[rayka.Record] = []
        wait_until(lambda: bool(read.extend(poll_again(consumer)) or read))
        assert [record.value for record in read] == [b"two"]


def send(cluster: Cluster, topic: str, value: bytes) -> None:
    with rayka.Producer(cluster=cluster) as producer:
        producer.send(topic, value)


def poll_again(consumer: rayka.Consumer) -> list[rayka.Record]:
    """It may not have asked the cluster that is back yet."""
    try:
        return consumer.poll(timeout_ms=1_000)
    except UnavailableError:
        return []


def test_topics_are_created_described_and_deleted_by_the_command_line(
    cluster: Cluster, command: Callable[..., Said]
) -> None:
    there = ("--cluster", cluster.name)
    assert command("topic", "create", "by-command", "-p", "3", "-c", "flush=batch", *there).code == 0
    described = json.loads(command("topic", "describe", "by-command", "--json", *there).out)
    assert len(described["partitions"]) == 3
    assert described["configs"] == {"flush": "batch"}
    assert "by-command" in command("topic", "list", *there).out
    assert command("topic", "delete", "by-command", "--yes", *there).code == 0
    assert "by-command" not in command("topic", "list", *there).out


def test_the_command_line_shows_a_topics_contents_and_the_settings_in_force(
    cluster: Cluster, command: Callable[..., Said]
) -> None:
    with rayka.Admin(cluster=cluster) as admin:
        admin.create_topic("shown", partitions=1, configs={"flush": "batch"})
    send(cluster, "shown", b"one")
    there = ("topic", "describe", "shown", "--cluster", cluster.name)
    assert [each for each in command(*there).out.splitlines() if "0-1  " in each and "  1  " in each]
    settings = {each["name"]: each for each in json.loads(command(*there, "--configs", "--json").out)}
    assert settings["flush"]["value"] == "batch"
    assert settings["flush"]["source"].startswith("dynamic_topic")
    assert settings["retention.ms"]["source"] == "default"
    assert {"retention.ms", "default"} <= set(command(*there, "--configs").out.split())


def test_a_member_that_never_committed_is_shown_with_its_machine_and_how_far_it_is_behind(
    cluster: Cluster, command: Callable[..., Said]
) -> None:
    with rayka.Admin(cluster=cluster) as admin:
        admin.create_topic("unread", partitions=2)
    with rayka.Producer(cluster=cluster) as producer:
        for _ in range(3):
            producer.send("unread", b"one", partition=1)
    options = {"group_id": "idle", "enable_auto_commit": False, "auto_offset_reset": "latest"}
    with rayka.Consumer("unread", cluster=cluster, **options) as consumer:
        wait_until(lambda: consumer.poll(timeout_ms=50) is not None and len(consumer.assignment()) == 2)
        there = ("group", "describe", "idle", "--cluster", cluster.name)
        described = json.loads(command(*there, "--json").out)
        shown = command(*there).out
    assert described["offsets"] == []
    assert described["uncommitted"] == [
        {"topic": "unread", "partition": 0, "end_offset": 0, "lag": 0},
        {"topic": "unread", "partition": 1, "end_offset": 3, "lag": 3},
    ]
    (member,) = described["members"]
    assert member["client_host"] == socket.gethostname()
    assert socket.gethostname() in shown
    assert ["unread", "1", "-", "3", "3"] in [line.split()[:5] for line in shown.splitlines()]
