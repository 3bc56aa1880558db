"""Nodes of a real cluster restarted one after another, under a producer that must not notice."""

import json
from collections.abc import Callable

import pytest

import rayka
from rayka.cli.main import run
from rayka.cluster import Cluster
from rayka.errors import UnavailableError
from tests.ray.sender import Sender
from tests.ray.support import pid_of, wait_until

pytestmark = pytest.mark.ray
NODES = [1, 2, 3001]


def test_a_rolling_restart_gives_every_node_a_new_process_and_loses_nothing(
    start: Callable[..., Cluster], capsys: pytest.CaptureFixture[str]
) -> None:
    cluster = start(brokers=2)
    with rayka.Admin(cluster=cluster) as admin:
        admin.create_topic("kept", partitions=3, replication_factor=2)
    pids = [pid_of(cluster, each) for each in NODES]
    sender = Sender(cluster, "kept", pause_s=0.01)
    sender.start()
    sender.await_acknowledged(50)

    names = ["--cluster", cluster.name]
    assert run(["restart", *names, "--rolling", "--dry-run", "--json"]) == 0
    plan = json.loads(capsys.readouterr().out)
    assert [(each["node_id"], each["is_only_voter"]) for each in plan["steps"]] == [
        (1, False),
        (2, False),
        (3001, True),
    ]
    assert run(["restart", *names, "3001"]) == 2
    refused = capsys.readouterr().err
    assert f"restarts {cluster.name}/controller-3001" in refused
    assert "away meanwhile: changes of topics" in refused
    assert run(["restart", *names, "--rolling", "--yes"]) == 0
    assert f"{cluster.name}/controller-3001 is back (3 of 3)" in capsys.readouterr().out

    assert all(pid_of(cluster, each) != pid for each, pid in zip(NODES, pids, strict=True))
    sender.await_acknowledged(50)
    sender.stop()
    assert not sender.failed
    got = [int(record.value or b"") for record in rayka.read("kept", cluster=cluster)]
    assert sorted(got) == list(range(len(sender.acknowledged)))

    left = rf"after 0 s it does not run; left as they are: {cluster.name}/broker-2;"
    with pytest.raises(UnavailableError, match=left):
        cluster.restart(2, 1, timeout_s=0)
    wait_until(lambda: cluster.describe().is_running)  # by the supervisor
