"""`rayka quorum`: its verbs, and what is printed of a quorum."""

import json
import uuid
from collections.abc import Iterator
from dataclasses import replace

import pytest

import rayka.testing
from rayka.actors.cluster_description import ClusterDescription, NodeDescription
from rayka.cli import quorum_commands as quorum
from rayka.cli.cluster_commands import print_description
from rayka.cli.doctor import FindingVerdict, quorum_finding
from rayka.cli.main import run
from rayka.cli.shared_options import Target
from rayka.client.admin.admin_results import QuorumInfo, ReplicaState
from rayka.ids import Role
from rayka.testing import InProcessCluster


def replica(node_id: int, lag: int, ago_ms: int) -> ReplicaState:
    return ReplicaState(node_id, uuid.UUID(int=node_id), 100 - lag, lag, ago_ms, ago_ms)


INFO = QuorumInfo(3002, 7, 98, (replica(3001, 2, 120), replica(3002, 0, 0)), (replica(1, -1, -1),))


@pytest.mark.parametrize(
    "command", ["quorum status", "quorum voters add", "quorum voters remove", "quorum remove"]
)
def test_every_verb_has_help_names_a_cluster_and_a_ray_and_prints_json(
    command: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run([*command.split(), "--help"]) == 0
    text = capsys.readouterr().out
    assert "--cluster" in text
    assert "--address" in text
    assert "--json" in text


def test_the_directory_must_be_an_id(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["quorum", "voters", "remove", "3001", "--directory-id", "x"]) == 2
    assert "is not a valid UUID" in capsys.readouterr().err


def test_the_summary_names_the_leader_and_the_largest_lag(
    capsys: pytest.CaptureFixture[str],
) -> None:
    quorum.print_summary(INFO)
    lines = [line.split(maxsplit=1) for line in capsys.readouterr().out.splitlines()]
    assert lines[0] == ["leader", "3002"]
    assert lines[1][1].endswith("7")
    assert lines[3][1].endswith("2 records, caught up 0.1 s ago")
    assert lines[4:] == [["voters", "3001, 3002"], ["observers", "1"]]


def test_the_replicas_are_listed_with_their_status(capsys: pytest.CaptureFixture[str]) -> None:
    quorum.print_replication(INFO)
    _, first, leader, observer = capsys.readouterr().out.splitlines()
    assert first.split()[:4] == ["3001", "voter", "98", "2"]
    assert leader.split()[:6] == ["3002", "leader", "100", "0", "now", "now"]
    assert observer.split()[:6] == ["1", "observer", "101", "-1", "never", "never"]


def described(leader_id: int, *nodes: NodeDescription) -> ClusterDescription:
    return ClusterDescription(
        name="x",
        cluster_id="id",
        ray_address="here",
        namespace="rayka",
        controller_id=leader_id,
        leader_epoch=7,
        topic_count=0,
        partition_count=0,
        nodes=nodes,
    )


def controller(node_id: int, role: str, lag: int, state: str = "running") -> NodeDescription:
    roles, name = (Role.CONTROLLER,), f"x/controller-{node_id}"
    return NodeDescription(
        node_id=node_id, roles=roles, actor_name=name, state=state, quorum_role=role, lag=lag
    )


def test_status_shows_the_leader_and_each_controllers_role_and_lag(
    capsys: pytest.CaptureFixture[str],
) -> None:
    print_description(
        described(
            3001, controller(3001, "leader", 0), controller(3002, "voter", 4), controller(3003, "voter", -1)
        )
    )
    text = capsys.readouterr().out
    assert "active controller 3001, epoch 7" in text
    for said in ("leader", "voter, 4 behind", "voter, not heard of"):
        assert said in text
    assert "drains" not in text


@pytest.mark.parametrize(
    ("until_ms", "said"), [(0, "drains\n"), (1_700_000_000_000, "drains until 2023-11-1")]
)
def test_status_names_a_node_on_a_machine_that_ray_drains(
    until_ms: int, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    node = replace(controller(3001, "leader", 0), drained_until_ms=until_ms)
    print_description(described(3001, node))
    assert f"x/controller-3001 is on a machine that Ray {said}" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("leader_id", "state", "verdict", "said"),
    [
        (3001, "running", FindingVerdict.GOOD, "epoch 7: 3001 leader, 3002 voter, 4 behind"),
        (3001, "unreachable", FindingVerdict.NOTE, "x/controller-3002 is unreachable"),
        (-1, "unreachable", FindingVerdict.BAD, "no active controller"),
    ],
)
def test_the_doctor_judges_the_quorum(leader_id: int, state: str, verdict: FindingVerdict, said: str) -> None:
    found = quorum_finding(
        described(leader_id, controller(3001, "leader", 0), controller(3002, "voter", 4, state))
    )
    assert found.verdict is verdict
    assert said in found.found


def test_a_cluster_without_an_active_controller_does_not_run() -> None:
    assert described(3001, controller(3001, "leader", 0)).is_running
    assert not described(-1, controller(3001, "", -1)).is_running


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> Iterator[InProcessCluster]:
    with rayka.testing.cluster(controllers=3) as made:
        monkeypatch.setattr(Target, "cluster", lambda self: made)
        yield made


def test_votes_are_given_and_taken_for_a_program(
    cluster: InProcessCluster, capsys: pytest.CaptureFixture[str]
) -> None:
    with rayka.Admin(cluster=cluster) as admin:
        info = admin.describe_quorum()
        one = str(next(each.node_id for each in info.voters if each.node_id != info.leader_id))
        for verb, done in (("remove", "removed"), ("add", "added")):
            assert run(["quorum", "voters", verb, one, "--json", *(["--yes"] * (verb == "remove"))]) == 0
            assert json.loads(capsys.readouterr().out) == {done: int(one)}
        assert len(admin.describe_quorum().voters) == 3
