"""Snapshots of the metadata in a whole cluster: a node that was away too long catches up by one, and acts upon it."""

import os
import re
from collections.abc import Callable
from functools import partial
from pathlib import Path

import rayka
import rayka.testing
from rayka.client import io_thread
from rayka.ids import node_name
from rayka.protocol.membership import MetadataRequest, StatusRequest
from rayka.protocol.topics import CreateTopicsRequest, DeleteTopicsRequest, NewTopic
from rayka.testing import InProcessCluster

CONTROLLERS = (3001, 3002, 3003)
CONFIG = {
    "metadata.log.max.record.bytes.between.snapshots": 1000,
    "metadata.max.retention.bytes": 0,
    "broker.session.timeout.ms": 60_000,
}


def _snapshot_offset(cluster: InProcessCluster, node_id: int) -> int:
    """Where the newest snapshot of a controller ends; 0 when it has none."""
    directory = Path(cluster.data_dirs(node_id)[0]) / "__cluster_metadata-0"
    found = [re.fullmatch(r"(\d{20})-\d{10}\.checkpoint", name) for name in os.listdir(directory)]
    return max(int(match[1]) for match in found if match)


def _log_start(cluster: InProcessCluster, node_id: int) -> int:
    """Base offset of the first segment of a controller's log; -1 while one segment takes another's place."""
    directory = Path(cluster.data_dirs(node_id)[0]) / "__cluster_metadata-0"
    return min((int(name[:20]) for name in os.listdir(directory) if name.endswith(".log")), default=-1)


def _until(cluster: InProcessCluster, is_so: Callable[[], bool]) -> None:
    """Asks the active controller something again and again, so that no time is spent on sleeping."""
    for _ in range(20_000):
        if is_so():
            return
        io_thread.run(
            partial(cluster.network().call, cluster.await_active_controller(), StatusRequest(), 5_000), 10
        )
    raise AssertionError("it did not come to that")


def _topics(cluster: InProcessCluster, node_id: int) -> list[str]:
    response = io_thread.run(partial(cluster.network().call, node_id, MetadataRequest(None), 5_000), 10)
    return [each.name for each in response.topics]


def _create(cluster: InProcessCluster, *names: str) -> None:
    request = CreateTopicsRequest(tuple(NewTopic(name, 2, 1) for name in names))
    io_thread.run(partial(cluster.network().call, cluster.await_active_controller(), request, 10_000), 20)


def _delete(cluster: InProcessCluster, name: str) -> None:
    request = DeleteTopicsRequest((name,))
    io_thread.run(partial(cluster.network().call, cluster.await_active_controller(), request, 10_000), 20)


def _grow(cluster: InProcessCluster, controllers: tuple[int, ...]) -> None:
    """60 topics, until what these controllers have committed so far is in a snapshot, and no longer in their logs."""
    active = cluster.await_active_controller()
    status = io_thread.run(partial(cluster.network().call, active, StatusRequest(), 5_000), 10)
    for number in range(60):
        _create(cluster, f"new-{number}")
    _until(cluster, lambda: all(_log_start(cluster, each) > status.high_watermark for each in controllers))


def _has_logs(directory: Path, topic: str) -> bool:
    """Of partitions of that topic; those that were deleted have another name until their files are removed."""
    return any(
        name.startswith(f"{topic}-") and not name.endswith("-delete") for name in os.listdir(directory)
    )


def test_a_broker_that_was_away_drops_what_was_deleted_and_takes_what_is_new() -> None:  # A30, A49, H9
    with rayka.testing.cluster(brokers=2, controllers=3, config=CONFIG) as cluster:
        with rayka.Admin(cluster=cluster) as admin:
            admin.create_topic("orders", partitions=2)
            admin.create_topic("kept", partitions=2)
        with rayka.Producer(cluster=cluster) as producer:
            for topic in ("orders", "kept"):
                for partition in (0, 1):
                    producer.send(topic, value=b"v", partition=partition)
        away = Path(cluster.data_dirs(2)[0])
        assert _has_logs(away, "orders")
        for node_id in CONTROLLERS:
            cluster.partition(2, node_id)
        _delete(cluster, "orders")
        _grow(cluster, CONTROLLERS)
        assert _has_logs(away, "orders")
        cluster.heal()
        _until(cluster, lambda: "new-59" in _topics(cluster, 2))
        assert not _has_logs(away, "orders")
        assert _has_logs(away, "kept")
        assert len(_topics(cluster, 2)) == 61
        with rayka.Producer(cluster=cluster) as producer:
            for partition in (0, 1):
                producer.send("new-59", value=b"after", partition=partition)
        assert [each.value for each in rayka.read("new-59", cluster=cluster)] == [b"after", b"after"]


def test_a_controller_that_was_away_begins_anew_with_a_snapshot_and_can_take_over() -> None:  # A33, A49
    with rayka.testing.cluster(brokers=1, controllers=3, config=CONFIG) as cluster:
        away = next(each for each in CONTROLLERS if each != cluster.await_active_controller())
        others = tuple(each for each in CONTROLLERS if each != away)
        _create(cluster, "first")
        cluster.kill(away)
        _grow(cluster, others)
        cluster.restart(away)
        newest = min(_snapshot_offset(cluster, each) for each in others)
        _until(cluster, lambda: _snapshot_offset(cluster, away) >= newest)
        _until(cluster, lambda: _log_start(cluster, away) > 0)  # the file has its name a moment before
        cluster.kill(cluster.await_active_controller())
        _create(cluster, "last")
        active = cluster.await_active_controller()
        assert len(_topics(cluster, active)) == 62, node_name(active)
