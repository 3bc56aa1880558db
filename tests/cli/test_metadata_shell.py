"""`rayka metadata`: the tree in a snapshot, in a log, and in both together."""

import io
import json
import sys
from pathlib import Path

import pytest

from rayka.cli.main import run
from tests.cli.log_support import write_metadata

SNAPSHOT = "00000000000000000006-0000000001.checkpoint"
TREE = """\
topics/
  orders/
    id: "00000000-0000-0000-0000-000000000064"
    0: {"replicas":[1],"directories":["00000000-0000-0000-0000-00000000000a"],"isr":[1],"leader_id":-1,\
"leader_epoch":1,"partition_epoch":1,"adding_replicas":[],"removing_replicas":[],"leader_recovery_state":0,\
"eligible_leader_replicas":[],"last_known_elr":[]}
brokers/
  1: {"version":0,"broker_id":1,"broker_epoch":1,"incarnation_id":"00000000-0000-0000-0000-0000000003e9",\
"host":"localhost","directories":[["00000000-0000-0000-0000-00000000000a","/data/broker-1/0"]],"rack":"",\
"min_metadata_version":1,"max_metadata_version":1,"is_fenced":false,"is_in_controlled_shutdown":false,\
"roles":["broker"],"offline_directories":[]}
configs/
  topic/
    orders: {"retention.ms":"5"}
  broker/
    all: {"min.insync.replicas":"2"}
features/
  metadata.version: 1
quorum/
  leader: 3001
  epoch: 2
  voters: [3001]
  offset: 10
"""


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    return write_metadata(tmp_path)


@pytest.fixture
def printed(capsys: pytest.CaptureFixture[str]) -> "Printed":
    return Printed(capsys)


class Printed:
    """What a command prints."""

    def __init__(self, capsys: pytest.CaptureFixture[str]) -> None:
        self._capsys = capsys

    def of(self, *arguments: object, code: int = 0) -> str:
        assert run(["metadata", *map(str, arguments)]) == code
        captured = self._capsys.readouterr()
        return captured.err if code else captured.out


def test_the_tree_of_a_directory_is_the_snapshot_and_the_log_after_it(
    directory: Path, printed: Printed
) -> None:
    assert printed.of("tree", directory) == TREE
    assert printed.of("tree", directory.parent) == TREE  # the controller's data directory


def test_a_log_alone_and_a_snapshot_alone_say_what_they_know(directory: Path, printed: Printed) -> None:
    snapshot = directory / SNAPSHOT
    assert json.loads(printed.of("cat", snapshot, "quorum")) == {
        "leader": None,
        "epoch": 1,
        "voters": [3001],
        "offset": 6,
    }
    assert json.loads(printed.of("cat", snapshot, "topics/orders/0"))["leader_id"] == 1
    snapshot.unlink()
    assert printed.of("tree", directory) == TREE.replace("voters: [3001]", "voters: []")


def test_what_a_running_node_has_not_finished_writing_is_left_out(directory: Path, printed: Printed) -> None:
    (log,) = directory.glob("*.log")
    log.write_bytes(log.read_bytes()[:-10])
    assert json.loads(printed.of("cat", directory, "quorum/offset")) == 7


@pytest.mark.parametrize("command", ["log", "log dump", "metadata", "metadata ls", "metadata shell"])
def test_every_command_has_help(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run([*command.split(), "--help"]) == 0
    assert f"Usage: rayka {command} " in capsys.readouterr().out


@pytest.mark.parametrize(
    ("node", "names"),
    [
        ("/", ["topics/", "brokers/", "configs/", "features/", "quorum/"]),
        ("topics", ["orders/"]),
        ("/topics/orders/", ["id", "0"]),
        ("topics/orders/0", []),
        ("configs", ["topic/", "broker/"]),
        ("configs/topic", ["orders"]),
        ("configs/broker", ["all"]),
    ],
)
def test_ls_lists_what_is_below(node: str, names: list[str], directory: Path, printed: Printed) -> None:
    assert printed.of("ls", directory, node).split() == names


def test_a_node_that_is_not_there_is_named_with_what_is(directory: Path, printed: Printed) -> None:
    assert "there is no 'payments', but orders" in printed.of("cat", directory, "topics/payments", code=1)
    assert "there is no 'x', but nothing" in printed.of(
        "ls", directory, "features/metadata.version/x", code=1
    )


def test_a_damaged_snapshot_is_named(directory: Path, printed: Printed) -> None:
    snapshot = directory / SNAPSHOT
    snapshot.write_bytes(snapshot.read_bytes()[:-8])
    assert f"{snapshot} is damaged" in printed.of("ls", directory, code=1)


def test_what_holds_no_metadata_is_refused(tmp_path: Path, printed: Printed) -> None:
    (tmp_path / "note.txt").touch()
    assert "holds no metadata log" in printed.of("ls", tmp_path, code=1)
    assert "neither a snapshot nor a directory" in printed.of("ls", tmp_path / "note.txt", code=1)


def test_the_shell_walks(directory: Path, printed: Printed, monkeypatch: pytest.MonkeyPatch) -> None:
    commands = [
        "ls",
        "cd topics/orders",
        "pwd",
        "ls",
        "cat id",
        "cd ../nowhere",
        "tree ../../features",
        "help",
        "exit",
    ]
    monkeypatch.setattr(sys, "stdin", io.StringIO("\n".join([*commands, "ls"])))
    lines = printed.of("shell", directory).splitlines()
    assert lines[:9] == [
        "topics/",
        "brokers/",
        "configs/",
        "features/",
        "quorum/",
        "/topics/orders",
        "id",
        "0",
        '"00000000-0000-0000-0000-000000000064"',
    ]
    assert lines[9] == "metadata.version: 1"
    assert lines[10].startswith("ls [NODE]")
    assert lines[-1].startswith("exit")


def test_the_shell_ends_with_its_input(
    directory: Path, printed: Printed, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "stdin", io.StringIO("\ncd topics\npwd"))
    assert printed.of("shell", directory) == "/topics\n"
