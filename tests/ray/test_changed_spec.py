"""A real cluster that gets other settings and more controllers while it runs, and fewer again, under a producer that
must not notice; callers that die in between are followed by others that finish what they began.
"""

import json
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import yaml

import rayka
from rayka.actors import supervisor_handle
from rayka.actors.supervisor_handle import ClusterRecord
from rayka.client import io_thread
from rayka.cluster import Cluster
from rayka.config.cluster_config import ClusterSpec
from rayka.errors import ClusterExists, ConfigError
from tests.ray.conftest import Said
from tests.ray.sender import Sender
from tests.ray.support import pid_of

pytestmark = pytest.mark.ray
NAME, BROKERS, VOTERS = "changed", (1, 2), [3001, 3002, 3003]
THERE = ("--cluster", NAME)


class CallerDied(Exception):
    """Ends a start as the end of its process would."""


def record_in_force() -> ClusterRecord:
    record = io_thread.run(partial(supervisor_handle.kept_record, NAME, 60), 60)
    assert record is not None
    return record


def forget(record: ClusterRecord) -> None:
    """The supervisor knows no more than that, as when a start died before it told it more."""
    io_thread.run(partial(supervisor_handle.replace_supervisor, record, 90), 90)


def voters(admin: rayka.Admin) -> list[int]:
    return [each.node_id for each in admin.describe_quorum().voters]


def pids(cluster: Cluster, *node_ids: int) -> list[int]:
    return [pid_of(cluster, each) for each in node_ids]


def write(path: Path, **fields: Any) -> str:
    path.write_text(yaml.safe_dump({"name": NAME, "brokers": len(BROKERS), **fields}))
    return str(path)


@pytest.fixture
def spec_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("HOME", str(tmp_path))  # no Ray is remembered there
    return tmp_path / "cluster.yaml"


def test_settings_and_controllers_change_under_a_producer_and_no_request_fails(
    start: Callable[..., Cluster], command: Callable[..., Said], spec_path: Path, tmp_path: Path
) -> None:
    place = {"data_dir": str(tmp_path / "data")}
    cluster = start(**{"name": NAME, "brokers": len(BROKERS), **place})
    admin = rayka.Admin(cluster=cluster)
    admin.create_topic("kept", partitions=2, replication_factor=2)
    sender = Sender(cluster, "kept", pause_s=0.02)
    sender.start()
    sender.await_acknowledged(20)

    wanted = write(spec_path, controllers=3, resources={"broker": {"num_cpus": 0.06}}, **place)
    _come(cluster, admin, command, wanted)
    sender.await_acknowledged(20)
    _go(cluster, admin, command, wanted, tmp_path / "data" / NAME)
    sender.await_acknowledged(20)
    _guard_writes(cluster, admin, command, spec_path, place)
    sender.await_acknowledged(20)
    sender.stop()
    assert len(sender.check()) == len(sender.acknowledged)
    admin.close()


def _come(cluster: Cluster, admin: rayka.Admin, command: Callable[..., Said], wanted: str) -> None:
    """Two controllers come and get their votes, then the brokers restart; the first caller dies after one of them."""
    before, former = pids(cluster, *BROKERS, 3001), record_in_force()
    plan = json.loads(command("start", wanted, "--dry-run", "--json").out)
    assert [each["key"] for each in plan["settings"]] == ["resources.broker"]
    assert plan["new_voters"] == [3002, 3003]
    assert [each["node_id"] for each in plan["restarts"]] == [1, 2]
    assert (voters(admin), pids(cluster, *BROKERS, 3001)) == ([3001], before)

    def die(_: object) -> None:
        raise CallerDied

    with pytest.raises(CallerDied):
        Cluster.start(wanted, on_restarted=die)
    assert voters(admin) == VOTERS
    assert record_in_force().spec.resources.broker.num_cpus == 0.06, (
        "from then on the supervisor makes nodes by it"
    )
    first, second, controller = pids(cluster, *BROKERS, 3001)
    assert (first != before[0], second, controller) == (True, *before[1:])

    forget(former)
    done = command("start", wanted)
    assert done.code == 0, done.err
    assert (record_in_force().spec.roles, record_in_force().spec.resources.broker.num_cpus) == (
        ClusterSpec.load(wanted).roles,
        0.06,
    )
    assert f"{NAME}/broker-2 is back" in done.out
    assert f"{NAME}/broker-1 is back" not in done.out
    assert pids(cluster, 1, 3001) == [first, controller]
    assert pid_of(cluster, 2) != second
    again = Cluster.start(wanted)
    assert not again.change, "nothing is left to do"


def _go(
    cluster: Cluster, admin: rayka.Admin, command: Callable[..., Said], wanted: str, directory: Path
) -> None:
    """The active controller goes with another one; the first caller died when it had taken one vote."""
    declared = yaml.safe_load(Path(wanted).read_text())
    with pytest.raises(
        ClusterExists, match=r"controller 3002, which the spec does not have; .* remove 3002 3003`"
    ):
        Cluster.start(ClusterSpec.of({**declared, "controllers": 1}))
    leader_id = admin.describe_quorum().leader_id
    other_id = next(each for each in VOTERS if each != leader_id)
    with pytest.raises(ConfigError, match="an odd number of controllers"):
        cluster.remove_controllers(other_id)
    with pytest.raises(
        ConfigError, match="controller-3009 of cluster 'changed' is not there: expected a node"
    ):
        cluster.remove_controllers(3009)
    with pytest.raises(ConfigError, match="broker-1 of cluster 'changed' is broker: expected a node"):
        cluster.remove_controllers(1)
    admin.remove_raft_voter(other_id)
    remove = ("quorum", "remove", str(leader_id), str(other_id), "--yes", *THERE)
    done = command(*remove)
    assert done.code == 0, done.err
    (left,) = voters(admin)
    assert left not in (leader_id, other_id)
    assert [each.node_id for each in cluster.describe().nodes] == [*BROKERS, left]
    assert sorted(each.name for each in directory.iterdir()) == ["broker-1", "broker-2", f"controller-{left}"]
    assert list(record_in_force().spec.roles) == [*BROKERS, left]
    assert admin.create_topic("later", replication_factor=2).partitions[0].leader_id in BROKERS
    assert command(*remove).code == 0, "what is done is done"


def _guard_writes(
    cluster: Cluster,
    admin: rayka.Admin,
    command: Callable[..., Said],
    spec_path: Path,
    place: dict[str, Any],
) -> None:
    """`min.insync.replicas` takes no restart; with as many as there are replicas, none is made without --force."""
    (left,) = voters(admin)
    before = pids(cluster, *BROKERS, left)
    nodes = [*({"id": each, "roles": ["broker"]} for each in BROKERS), {"id": left, "roles": ["controller"]}]
    fields = {"nodes": nodes, "resources": {"broker": {"num_cpus": 0.06}}, **place}
    path = spec_path.with_name("guarded.yaml")
    path.write_text(yaml.safe_dump({"name": NAME, **fields, "config": {"min.insync.replicas": 2}}))
    done = command("start", str(path))
    assert done.code == 0, done.err
    assert "no node restarts for them" in done.out
    assert admin.describe_configs(broker="all")["min.insync.replicas"].value == "2"
    refused = command("restart", "2", "--yes", *THERE)
    assert refused.code == 1
    assert f"while {NAME}/broker-2 restarts, 3 partitions, such as kept-0, have fewer" in refused.err
    assert pids(cluster, *BROKERS, left) == before
