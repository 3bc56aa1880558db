"""Commands that destroy something ask at a terminal, refuse without one, and go on with --yes."""

import json
import os
import pty
import subprocess
import sys

import pytest

from rayka.cli.main import run
from rayka.cli.shared_options import Unconfirmed, confirm
from tests.cli.command_tree import all_commands

RAYKA = [sys.executable, "-c", "from rayka.cli.main import main; main()"]
NOWHERE = ("--address", "127.0.0.1:1")
DESTRUCTIVE = {
    "topic delete orders": "deletes topic orders of cluster rayka with all its records",
    "topic delete-records orders --before 7 -p 2": "records below offset 7 in partition 2 of topic orders",
    "topic delete-records orders --before end": "all committed records in all partitions of topic orders",
    "group delete readers": "forgets group readers of cluster rayka and where it has read up to",
    "broker remove 4": "ends broker 4 of cluster rayka for good",
    "quorum remove 3002 3003": "ends controller-3002, controller-3003 of cluster rayka for good",
    "quorum voters remove 3002": "takes the vote from controller 3002",
    "partition elect-leaders --topic orders --unclean": "partitions of topic orders",
    "partition elect-leaders --all --unclean": "partitions of all topics",
    "stop --delete-data": "stops cluster rayka and deletes all its topics",
    "start --replace 1 --replace 3001": "brings back broker-1, controller-3001 of cluster rayka on an empty disk",
}


def test_the_commands_that_ask_are_these_and_restart_which_asks_once_it_knows_its_plan() -> None:
    asking = [
        path.removeprefix("rayka ")
        for path, command in all_commands().items()
        if any("--yes" in each.opts for each in command.params)
    ]
    named = {path for path in asking for each in DESTRUCTIVE if f"{each} ".startswith(f"{path} ")}
    assert {*asking} == {*named, "restart"}


@pytest.mark.parametrize("command", DESTRUCTIVE)
def test_without_a_terminal_a_destructive_command_refuses_in_one_line_that_names_yes(
    command: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run([*command.split(), *NOWHERE]) == 2
    said = capsys.readouterr()
    assert (said.out, said.err.count("\n")) == ("", 1)
    assert said.err.startswith("error: this ")
    assert DESTRUCTIVE[command] in said.err
    assert "--yes" in said.err


@pytest.mark.parametrize("command", DESTRUCTIVE)
def test_with_yes_it_goes_on(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run([*command.split(), "-y", *NOWHERE]) == 1
    assert "127.0.0.1:1" in capsys.readouterr().err


@pytest.mark.parametrize("command", ["stop", "partition elect-leaders --all"])
def test_what_destroys_nothing_is_not_asked_about(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run([*command.split(), *NOWHERE]) == 1
    assert "--yes" not in capsys.readouterr().err


@pytest.mark.parametrize(
    ("answer", "code", "says"), [("n", 2, "nothing was changed"), ("y", 1, "no Ray answers at 127.0.0.1:1")]
)
def test_at_a_terminal_it_asks(answer: str, code: int, says: str) -> None:
    ours, theirs = pty.openpty()
    try:
        command = [*RAYKA, "topic", "delete", "orders", *NOWHERE]
        process = subprocess.Popen(command, stdin=theirs, stderr=subprocess.PIPE, text=True)
        os.write(ours, answer.encode() + b"\n")
        _, said = process.communicate(timeout=240)
    finally:
        os.close(ours)
        os.close(theirs)
    assert (process.returncode, says in said, "Go on? [y/N]" in said) == (code, True, True), said


@pytest.mark.parametrize("given", [[], ["1", "--rolling"]])
def test_a_restart_is_of_nodes_or_of_all(given: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["restart", *given, *NOWHERE]) == 2
    assert "expected ids of nodes, or --rolling for all of them, and not both" in capsys.readouterr().err


def test_an_error_of_a_refusal_is_json_with_json(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["topic", "delete", "orders", "--json", *NOWHERE]) == 2
    error = json.loads(capsys.readouterr().err)["error"]
    assert (error["type"], error["code"], "--yes" in error["message"]) == ("Unconfirmed", None, True)


def test_a_process_without_standard_input_cannot_be_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", None)
    with pytest.raises(Unconfirmed, match="--yes"):
        confirm("this ends the world", False)
