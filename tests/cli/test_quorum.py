"""`rayka quorum` without a cluster: its verbs, and what is printed of a quorum."""

import uuid

import pytest

from rayka.cli import quorum
from rayka.cli.main import run
from rayka.client.admin_results import QuorumInfo, ReplicaState


def replica(node_id: int, lag: int, ago_ms: int) -> ReplicaState:
    return ReplicaState(node_id, uuid.UUID(int=node_id), 100 - lag, lag, ago_ms, ago_ms)


INFO = QuorumInfo(3002, 7, 98, (replica(3001, 2, 120), replica(3002, 0, 0)), (replica(1, -1, -1),))


@pytest.mark.parametrize("command", ["quorum status", "quorum voters add", "quorum voters remove"])
def test_every_verb_has_help_and_names_a_cluster_and_a_ray(
    command: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run([*command.split(), "--help"]) == 0
    text = capsys.readouterr().out
    assert "--cluster" in text
    assert "--address" in text


def test_the_directory_must_be_an_id(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["quorum", "voters", "remove", "3001", "--directory-id", "x"]) == 2
    assert "is not a valid UUID" in capsys.readouterr().err


def test_the_summary_says_who_leads_and_how_far_the_furthest_behind_is(
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
