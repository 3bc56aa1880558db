"""Three controllers on a real Ray: killed, stopped, wiped; the metadata stays whole and goes on."""

import json
import shutil
import time
from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path
from typing import Any

import pytest
import ray

import rayka
from rayka.actors import node_handles
from rayka.actors.cluster_description import UNREACHABLE, NodeDescription
from rayka.client.admin.admin_results import QuorumInfo
from rayka.cluster import Cluster
from rayka.errors import DuplicateVoter, VoterNotFound
from rayka.ids import node_name
from rayka.protocol.membership import NodeState
from tests.ray.conftest import Said
from tests.ray.support import end_supervisor, kill, running, wait_until

pytestmark = pytest.mark.ray
CONTROLLERS = (3001, 3002, 3003)
_WAIT_S = 150
_numbers = count()


class Quorum:
    """A cluster of three controllers, and every topic that was created in it."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self.admin = rayka.Admin(cluster=cluster)
        self.topics: list[str] = []

    def create_topic(self) -> None:
        self.topics.append(f"topic-{next(_numbers)}")
        assert self.admin.create_topic(self.topics[-1]).partitions[0].leader_id == 1

    def check_topics(self) -> None:
        """Everything that was acknowledged is there."""
        assert set(self.topics) <= set(self.admin.list_topics())

    def node(self, node_id: int) -> NodeDescription:
        return next(each for each in self.cluster.describe().nodes if each.node_id == node_id)

    def kill(self, *node_ids: int) -> None:
        pids = {each.node_id: each.pid for each in self.cluster.describe().nodes}
        for each in node_ids:
            assert pids[each] > 0
            kill(pids[each])

    def await_quorum(self, holds: Callable[[QuorumInfo], bool]) -> QuorumInfo:
        """The quorum, as soon as the condition holds for it."""
        deadline = time.monotonic() + _WAIT_S
        while not holds(info := self.admin.describe_quorum()):
            assert time.monotonic() < deadline, info
            time.sleep(0.05)
        return info

    def await_all_caught_up(self) -> QuorumInfo:
        """Until every voter follows again, and stands where the leader was a moment ago."""
        end_offset = self.admin.describe_quorum().high_watermark
        return self.await_quorum(lambda info: all(each.log_end_offset >= end_offset for each in info.voters))

    @property
    def leader_id(self) -> int:
        return self.admin.describe_quorum().leader_id

    @property
    def standby_ids(self) -> list[int]:
        leader_id = self.leader_id
        return [each for each in CONTROLLERS if each != leader_id]


@pytest.fixture(scope="module")
def fields(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What declares the cluster of these tests."""
    return {"name": "quorum", "controllers": 3, "data_dir": str(tmp_path_factory.mktemp("quorum"))}


@pytest.fixture(scope="module")
def shared(ray_address: str, fields: dict[str, Any]) -> Iterator[Quorum]:
    """For tests that leave all three running and voting."""
    with Cluster.start(**fields) as cluster:
        yield Quorum(cluster)


@pytest.fixture
def quorum(shared: Quorum) -> Quorum:
    shared.await_all_caught_up()
    shared.create_topic()
    return shared


def test_three_controllers_agree_on_one_leader_and_follow_it(quorum: Quorum) -> None:
    info = quorum.await_all_caught_up()
    assert [each.node_id for each in info.voters] == list(CONTROLLERS)
    assert len({each.directory_id for each in info.voters}) == 3
    description = running(quorum.cluster)
    assert description.leader_epoch >= info.leader_epoch
    roles = {each.node_id: each.quorum_role for each in description.nodes}
    assert roles == {
        1: "",
        **{each: "leader" if each == description.controller_id else "voter" for each in CONTROLLERS},
    }


def test_the_end_of_a_standby_is_not_felt_and_it_catches_up(quorum: Quorum) -> None:
    before = quorum.await_all_caught_up()
    killed = quorum.standby_ids[0]
    quorum.kill(killed)
    quorum.create_topic()
    after = quorum.await_all_caught_up()
    assert (after.leader_id, after.leader_epoch) == (before.leader_id, before.leader_epoch)
    quorum.create_topic()
    quorum.check_topics()


def test_after_the_end_of_the_active_controller_one_is_active_again_with_all_there_was(
    quorum: Quorum,
) -> None:
    """Another one, unless Ray has restarted the process before any other was elected."""
    before = quorum.await_all_caught_up()
    quorum.kill(before.leader_id)
    quorum.create_topic()
    quorum.await_quorum(lambda info: info.leader_epoch > before.leader_epoch)
    quorum.check_topics()
    quorum.await_all_caught_up()
    quorum.create_topic()
    quorum.check_topics()


def test_without_a_majority_nothing_is_acknowledged_until_it_is_back(quorum: Quorum) -> None:
    quorum.kill(*quorum.standby_ids)
    quorum.create_topic()  # waits for one of them to be back
    quorum.check_topics()
    quorum.await_all_caught_up()
    quorum.create_topic()
    quorum.check_topics()


def test_an_active_controller_that_is_stopped_hands_over_and_comes_back_as_a_standby(quorum: Quorum) -> None:
    before = quorum.await_all_caught_up()
    handle = node_handles.find("quorum", before.leader_id)
    ray.get(handle.stop.remote())
    try:
        quorum.create_topic()
        after = quorum.admin.describe_quorum()
        assert after.leader_id != before.leader_id
        assert after.leader_epoch == before.leader_epoch + 1
    finally:
        ray.kill(handle, no_restart=False)
    quorum.await_all_caught_up()
    quorum.check_topics()


def test_the_active_controller_gives_up_its_own_vote_and_gets_it_back(quorum: Quorum) -> None:  # A57
    leader_id = quorum.leader_id
    quorum.admin.remove_raft_voter(leader_id)
    info = quorum.await_quorum(lambda info: info.leader_id != leader_id)
    assert leader_id not in [each.node_id for each in info.voters]
    with pytest.raises(VoterNotFound, match=f"controller-{leader_id} does not vote"):
        quorum.admin.remove_raft_voter(leader_id)
    quorum.create_topic()
    quorum.await_quorum(
        lambda info: any(
            each.node_id == leader_id and each.last_caught_up_ago_ms >= 0 for each in info.observers
        )
    )
    quorum.admin.add_raft_voter(leader_id)
    assert [each.node_id for each in quorum.admin.describe_quorum().voters] == list(CONTROLLERS)
    with pytest.raises(DuplicateVoter):
        quorum.admin.add_raft_voter(leader_id)
    quorum.check_topics()


def test_commands_work_with_one_controller_gone_and_a_start_brings_it_back(
    quorum: Quorum, fields: dict[str, Any], command: Callable[..., Said]
) -> None:
    there = ("--cluster", quorum.cluster.name)
    gone = quorum.leader_id
    end_supervisor(quorum.cluster)  # which would bring it back at once
    node_handles.end(node_handles.find(quorum.cluster.name, gone))
    assert command("topic", "create", "words", *there).code == 0
    done = command("status", "--json", *there)
    assert done.code == 1, "not all of it runs"
    states = {each["node_id"]: each["state"] for each in json.loads(done.out)["nodes"]}
    assert states == {
        1: NodeState.RUNNING,
        **dict.fromkeys(CONTROLLERS, NodeState.RUNNING),
        gone: UNREACHABLE,
    }
    info = json.loads(command("quorum", "status", "--json", *there).out)
    assert info["leader_id"] in set(CONTROLLERS) - {gone}
    assert "leader" in command("quorum", "status", "--replication", *there).out

    Cluster.start(**fields)
    assert quorum.node(gone).state == NodeState.RUNNING
    quorum.await_all_caught_up()
    quorum.check_topics()
    assert "words" in quorum.admin.list_topics()


def test_a_controller_that_lost_its_disk_is_replaced_while_the_others_run_and_gets_its_vote_by_the_commands_named(
    quorum: Quorum,
    fields: dict[str, Any],
    command: Callable[..., Said],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))  # no Ray is remembered there
    spec = tmp_path / "quorum.yaml"
    spec.write_text("".join(f"{key}: {value}\n" for key, value in fields.items()))
    start = ("start", str(spec), "--replace", "3002", "--yes")
    former = {each.node_id: each.directory_id for each in quorum.admin.describe_quorum().voters}
    refused = command(*start)
    assert (refused.code, "quorum/controller-3002 runs; only a node whose" in refused.err) == (1, True)

    earlier_count = len(told_of(quorum, 3002))  # in other tests of this cluster
    quorum.kill(3002)
    shutil.rmtree(Path(fields["data_dir"], "quorum", "controller-3002"))
    wait_until(lambda: quorum.node(3002).state == NodeState.FAILED)
    assert "`rayka start --replace 3002`" in quorum.node(3002).detail
    wait_until(lambda: "node-failed" in told_of(quorum, 3002)[earlier_count:])
    done = command(*start)
    assert done.code == 0, done.err
    assert running(quorum.cluster)
    quorum.check_topics()
    quorum.create_topic()
    info = quorum.await_quorum(lambda info: 3002 in [each.node_id for each in info.observers])
    assert former[3002] in [each.directory_id for each in info.voters], "its former self still counts"

    named = [line.split()[1:] for line in done.out.splitlines() if "rayka quorum voters" in line]
    (remove, add) = named
    too_soon = command(*add)
    assert (too_soon.code, "rayka quorum voters remove 3002" in too_soon.err) == (1, True)
    assert command(*remove, "--yes").out == "controller 3002 votes no more\n"
    added = command(*add)
    assert added.out == "controller 3002 votes\n", added.err
    now = {each.node_id: each.directory_id for each in quorum.admin.describe_quorum().voters}
    assert now[3002] != former[3002]
    assert {**now, 3002: former[3002]} == former
    told = told_of(quorum, 3002)[earlier_count:]
    assert [each for each in told if each.startswith("voter")] == ["voter-removed", "voter-added"]
    assert told.index("process-ended") < told.index("voter-removed")

    quorum.kill(quorum.leader_id)  # the new vote counts
    quorum.create_topic()
    quorum.check_topics()


def told_of(quorum: Quorum, node_id: int) -> list[str]:
    """The kinds of the events about a node."""
    return [each.kind for each in quorum.admin.events() if node_name(node_id) in each.subjects]
