"""The command line without a cluster: help, wrong usage, errors in one line, output for people and for programs."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from rayka.cli.main import run
from rayka.cli.output import print_table, size

RAYKA = [sys.executable, "-c", "from rayka.cli.main import main; main()"]


@pytest.fixture
def home(tmp_path: Path) -> dict[str, str]:
    """An environment in which no Ray is known."""
    return {**os.environ, "HOME": str(tmp_path), "RAY_AUTH_MODE": "disabled", "RAY_ADDRESS": "127.0.0.1:1"}


def test_help_imports_neither_ray_nor_rich_nor_pyarrow() -> None:
    script = (
        "import sys\nfrom rayka.cli.main import run\nassert run(['--help']) == 0\n"
        "print([name for name in ('ray', 'rich', 'pyarrow', 'numpy', 'pydantic') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "[]"
    assert all(
        name in done.stdout for name in ("demo", "start", "stop", "status", "topic", "quorum", "doctor")
    )


def test_what_a_client_imports_for_its_first_call_is_no_code_of_nodes() -> None:
    """Ray imports the classes of the actors in every process that looks one up."""
    script = (
        "import sys, rayka.client.admin, rayka.cluster, rayka.actors.broker, rayka.actors.controller\n"
        "heavy = ('rayka.node', 'rayka.log', 'rayka.raft', 'rayka.controller', 'rayka.partition', 'pyarrow', 'rich')\n"
        "print([name for name in sys.modules if name.startswith(heavy)])"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "['rayka.node', 'rayka.node.settings']"


@pytest.mark.parametrize(
    "command", ["start", "stop", "status", "topic", "doctor", "topic create", "topic list"]
)
def test_every_command_has_help(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run([*command.split(), "--help"]) == 0
    assert "Usage: rayka" in capsys.readouterr().out


@pytest.mark.parametrize(
    "command", ["stop", "status", "topic list", "topic describe x", "topic create x", "doctor"]
)
def test_every_command_names_a_cluster_and_a_ray(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run([*command.split(), "--help"]) == 0
    text = capsys.readouterr().out
    assert "--cluster" in text
    assert "--address" in text


def test_wrong_usage_exits_with_2(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["nonsense"]) == 2
    assert "No such command 'nonsense'" in capsys.readouterr().err


def test_an_error_is_one_line_on_stderr_and_exit_code_1(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    spec = tmp_path / "cluster.yaml"
    spec.write_text("name: x\ncontrolers: 1\n")
    assert run(["start", str(spec)]) == 1
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.count("\n") == 1
    assert captured.err.startswith(f"error: {spec}: unknown key 'controlers'")
    assert "controllers" in captured.err


def test_a_missing_spec_is_an_error_that_names_the_file(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["start", "nowhere.yaml"]) == 1
    assert "nowhere.yaml" in capsys.readouterr().err


def test_ctrl_c_ends_with_130_and_no_traceback(home: dict[str, str]) -> None:
    script = (
        "import os, signal, sys, click\nfrom rayka.cli import main\n"
        "@main.rayka.command()\ndef wait(): os.kill(os.getpid(), signal.SIGINT); signal.pause()\n"
        "main._SUBCOMMANDS['wait'] = main._Subcommand('__main__', 'wait', '')\n"
        "sys.exit(main.run(['wait']))"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, env=home, check=False
    )
    assert done.returncode == 128 + signal.SIGINT
    assert done.stderr.strip() == "interrupted"


def test_a_pipe_gets_whole_cells_without_decoration(capsys: pytest.CaptureFixture[str]) -> None:
    print_table("Title", ("name", "count"), [("a" * 200, 1234567), ("b", 2)])
    header, first, second = capsys.readouterr().out.splitlines()
    assert header.split() == ["name", "count"]
    assert first.split() == ["a" * 200, "1234567"]
    assert second.split() == ["b", "2"]


@pytest.mark.parametrize(
    ("size_bytes", "text"), [(0, "0 B"), (999, "999 B"), (1500, "1.5 kB"), (2 * 10**9, "2.0 GB")]
)
def test_sizes_are_in_decimal_units(size_bytes: int, text: str) -> None:
    assert size(size_bytes) == text


def test_doctor_answers_as_json(home: dict[str, str]) -> None:
    done = subprocess.run([*RAYKA, "doctor", "--json"], capture_output=True, text=True, env=home, check=False)
    findings = {each["what"]: each for each in json.loads(done.stdout)}
    assert {"Python", "packages", "Java", "data disk", "memory", "Ray"} <= findings.keys()
    assert findings["Python"]["verdict"] == "ok"
    assert done.returncode == (1 if any(each["verdict"] == "bad" for each in findings.values()) else 0)
