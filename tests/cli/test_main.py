"""The command line without a cluster: help, wrong usage, errors in one line, output for people and for programs."""

import dataclasses
import json
import logging
import os
import re
import signal
import subprocess
import sys
import types
import uuid
from pathlib import Path

import click
import pytest

from rayka.actors.cluster_description import ClusterDescription, NodeDescription
from rayka.cli import doctor, main
from rayka.cli.cluster_commands import print_description
from rayka.cli.main import run
from rayka.cli.output import Count, print_table, say_progress, say_which_ray, size
from rayka.client.metadata import no_such_topic
from rayka.config.cluster_config import ClusterSpec
from rayka.ids import Role
from tests.cli.command_tree import all_commands
from tests.tidy import ROOT

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


@pytest.mark.parametrize("module", ["rayka.cli.demo_places", "rayka.worker_pool.pool"])
def test_uv_run_makes_no_environments_for_workers_whichever_module_imports_ray(module: str) -> None:
    script = (
        f"import {module}, ray\nfrom ray._private import ray_constants\n"
        "print(ray_constants.RAY_ENABLE_UV_RUN_RUNTIME_ENV)"
    )
    environment = {
        name: value for name, value in os.environ.items() if name != "RAY_ENABLE_UV_RUN_RUNTIME_ENV"
    }
    command = [sys.executable, "-c", script]
    done = subprocess.run(command, capture_output=True, text=True, check=True, env=environment)
    assert done.stdout == "False\n"


def test_help_names_no_rules_of_this_house() -> None:
    found = all_commands()
    assert len(found) > 35
    for path, command in found.items():
        text = command.get_help(click.Context(command, info_name=path))
        assert not re.search(r"\b[A-H]\d{1,2}\b|[Dd]ecision \d", text), path


def test_what_a_client_imports_for_its_first_call_is_no_code_of_nodes() -> None:
    """Ray imports the classes of the actors in every process that looks one up."""
    script = (
        "import sys, rayka.client.admin.admin, rayka.cluster\n"
        "import rayka.actors.node_actor, rayka.actors.node_actor\n"
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


def test_every_command_that_connects_can_be_quiet() -> None:
    connecting = {
        path for path, each in all_commands().items() if any("--address" in one.opts for one in each.params)
    }
    quiet = {
        path for path, each in all_commands().items() if any("--quiet" in one.opts for one in each.params)
    }
    assert len(connecting) > 30
    assert quiet == connecting | {"rayka demo"}


@pytest.mark.parametrize(
    ("options", "level"), [([], logging.INFO), (["-q"], logging.ERROR), (["--quiet"], logging.ERROR)]
)
def test_a_quiet_command_says_nothing_but_errors(options: list[str], level: int) -> None:
    loggers = [
        logging.getLogger(each) for each in ("rayka.actors.ray_connection", "rayka.actors.cluster_actors")
    ]
    before = [each.level for each in loggers]
    try:
        say_which_ray()
        say_progress()
        assert run(["status", *options, "--address", "127.0.0.1:1"]) == 1
        assert [each.level for each in loggers] == [level] * 2
    finally:
        for each, was in zip(loggers, before, strict=True):
            each.setLevel(was)
            each.handlers.clear()


@pytest.mark.parametrize(
    ("command", "says"),
    [
        ("zzz", "No such command 'zzz'. There are: demo, init, start"),
        ("topik", "No such command 'topik'. Did you mean 'topic'?"),
        ("topic descibe x", "No such command 'descibe'. Did you mean 'describe'?"),
        ("quorum voters ad 1", "No such command 'ad'. Did you mean 'add'?"),
        ("topic create x -c retention.ms=1 -c retention_ms=2", "retention_ms is given twice; keep one"),
        ("topic alter x -c flush=none -c flush=batch", "flush is given twice; keep one"),
        ("broker config alter all -c balancer.enable=1 -c balancer.enable=0", "is given twice; keep one"),
        ("produce x -X linger.ms=1 -X linger_ms=2", "linger_ms is given twice; keep one"),
        ("topic delete-records x --yes --before 99999999999999999999", "expected an offset, or `end`, found"),
        ("group reset-offsets x --to-time 1960-01-01", "expected a time since 1970 as"),
        ("group reset-offsets x --to-time 0001-01-01", "expected a time since 1970 as"),
        ("group reset-offsets x --to-time @-5", "expected a time since 1970 as"),
        ("group reset-offsets x --to-time @99999999999999999999", "expected a time since 1970 as"),
        ("consume x --from 1960-01-01", "a time since 1970 as 2026-01-31T12:00"),
        ("consume x --from 0001-01-01", "a time since 1970 as 2026-01-31T12:00"),
        (
            "partition elect-leaders --topic x -p 99999999999999999999",
            "99999999999999999999 is not in the range",
        ),
        ("topic list --jsn", "--json"),  # in click's words, which differ by version
    ],
)
def test_wrong_usage_exits_with_2_and_names_the_nearest(
    command: str, says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(command.split()) == 2
    assert says in capsys.readouterr().err


@pytest.mark.parametrize(
    ("command", "code", "kind", "says"),
    [
        ("topik --json", 2, "UsageError", "Did you mean 'topic'?"),
        ("topic describe --json --nonsense", 2, "NoSuchOption", "--nonsense"),
        ("topic create --json", 2, "MissingParameter", "NAME"),
        ("start nowhere.yaml --json", 1, "ConfigError", "nowhere.yaml"),
    ],
)
def test_with_json_an_error_is_one_object_on_stderr(
    command: str, code: int, kind: str, says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(command.split()) == code
    said = capsys.readouterr()
    error = json.loads(said.err)["error"]
    assert (said.out, error["type"], error["code"]) == ("", kind, None)
    assert says in error["message"]


def test_with_json_the_error_without_a_ray_is_such_an_object_too(home: dict[str, str]) -> None:
    done = subprocess.run(
        [*RAYKA, "topic", "list", "--json"], env=home, capture_output=True, text=True, check=False
    )
    error = json.loads(done.stderr)["error"]
    assert (done.returncode, done.stdout, error["type"], error["code"]) == (1, "", "UnavailableError", None)
    assert "no Ray answers at 127.0.0.1:1" in error["message"]


def test_an_error_of_the_cluster_has_kafkas_number_and_the_public_name(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    @click.command()
    @click.option("--json", "as_json", is_flag=True)
    def fail(as_json: bool) -> None:
        raise no_such_topic("a", "rayka", [])

    monkeypatch.setitem(main._SUBCOMMANDS, "fail", (__name__, ""))
    monkeypatch.setitem(sys.modules, __name__, types.SimpleNamespace(fail=fail))
    assert run(["fail", "--json"]) == 1
    error = json.loads(capsys.readouterr().err)["error"]
    assert (error["type"], error["code"]) == ("UnknownTopicOrPartition", 3)


@pytest.mark.parametrize("command", [("--help",), ("sim", "--help")])
def test_a_full_disk_behind_the_output_is_an_error_in_one_line(command: tuple[str, ...]) -> None:
    with Path("/dev/full").open("w") as full:
        done = subprocess.run([*RAYKA, *command], stdout=full, stderr=subprocess.PIPE, text=True, check=False)
    assert done.returncode == 1
    assert done.stderr.splitlines() == [
        "error: the output cannot be written: No space left on device; make room, and run the command again"
    ]


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


def test_a_missing_spec_is_one_line_that_names_the_file_and_what_writes_one(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert run(["start", "nowhere.yaml"]) == 1
    said = capsys.readouterr().err
    assert (
        said
        == "error: nowhere.yaml: there is no such file; `rayka init nowhere.yaml` writes one to start from\n"
    )


def test_init_writes_the_shipped_spec_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "cluster.yaml"
    assert run(["init", str(path)]) == 0
    assert path.read_bytes() == (ROOT / "cluster.yaml").read_bytes()
    assert f"rayka start {path}" in capsys.readouterr().out
    path.write_text("name: mine\n")
    assert run(["init", str(path)]) == 1
    assert capsys.readouterr().err == f"error: {path} exists; --force overwrites it\n"
    assert path.read_text() == "name: mine\n"
    assert run(["init", str(path), "--force", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == {"path": str(path)}
    assert ClusterSpec.load(path).brokers == 3
    assert run(["init", str(tmp_path / "nowhere" / "x.yaml")]) == 1
    assert "cannot be written: No such file or directory" in capsys.readouterr().err


def test_init_writes_to_the_working_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert run(["init"]) == 0
    assert ClusterSpec.load("cluster.yaml").name == "rayka"


def test_a_start_tells_its_plan_and_starts_nothing(tmp_path: Path, home: dict[str, str]) -> None:
    spec = tmp_path / "cluster.yaml"
    spec.write_text(f"name: x\ndata_dir: {tmp_path}/data\n")
    command = [*RAYKA, "start", str(spec), "--dry-run", "--replace", "1"]
    environment = {**home, "RAY_ADDRESS": "local"}
    done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    lines = [line.split("  ") for line in done.stdout.splitlines()]
    assert lines[0] == ["no Ray runs: would start one"]
    assert [each.strip() for each in lines[2] if each] == [
        "x/broker-1",
        "start on an empty disk",
        f"{tmp_path}/data/x/broker-1",
    ]
    assert lines[-1] == ["nothing was changed"]
    assert not (tmp_path / "data").exists()


NODES = [
    NodeDescription(
        node_id=node_id,
        roles=(role,),
        actor_name=f"rayka/{role}-{node_id}",
        state=state,
        pid=1234567,
        host="ip-172-31-255-255.eu-central-1.compute.internal",
        data_dirs=(f"/very/long/path/of/somebody/who/likes/long/paths/data/rayka/{role}-{node_id}",),
        size_bytes=999_900_000_000,
        detail=detail,
        quorum_role=quorum,
        lag=lag,
    )
    for node_id, role, state, detail, quorum, lag in (
        (1, Role.BROKER, "running", "", "", -1),
        (2, Role.BROKER, "unreachable", "its process has ended", "", -1),
        (3001, Role.CONTROLLER, "running", "", "leader", 0),
        (3002, Role.CONTROLLER, "shutting-down", "", "voter", 12),
    )
]
DESCRIPTION = ClusterDescription(
    name="rayka",
    cluster_id=str(uuid.UUID(int=7)),
    ray_address="172.31.255.255:65535",
    namespace="rayka",
    controller_id=3001,
    leader_epoch=12345,
    topic_count=1000,
    partition_count=9000,
    nodes=tuple(NODES),
)


def test_a_node_without_a_process_has_no_pid(capsys: pytest.CaptureFixture[str]) -> None:
    starting = NodeDescription(
        node_id=1, roles=(Role.BROKER,), actor_name="rayka/broker-1", state="unreachable"
    )
    print_description(dataclasses.replace(DESCRIPTION, nodes=(starting,)))
    (line,) = [each for each in capsys.readouterr().out.splitlines() if each.startswith("rayka/broker-1 ")]
    assert line.split()[:3] == ["rayka/broker-1", "unreachable", "-"]
    assert json.loads(json.dumps(dataclasses.asdict(starting)))["pid"] is None


def test_a_node_that_is_gone_is_told_with_the_time_and_a_machine_that_ray_drains_with_its_deadline(
    capsys: pytest.CaptureFixture[str],
) -> None:
    then_ms = 1_700_000_000_000  # in the middle of November 2023, in every time zone
    drained = dataclasses.replace(NODES[0], drained_until_ms=then_ms)
    gone = dataclasses.replace(NODES[1], gone_since_ms=then_ms, drained_until_ms=0)
    print_description(dataclasses.replace(DESCRIPTION, nodes=(drained, gone)))
    said = re.sub(r"2023-11-1[45] \d\d:\d\d:\d\d\b", "THEN", capsys.readouterr().out).splitlines()
    assert "rayka/broker-1 is on a machine that Ray drains until THEN" in said
    assert "rayka/broker-2 is unreachable since THEN: its process has ended" in said
    assert "rayka/broker-2 is on a machine that Ray drains" in said


def test_a_full_directory_is_called_full_though_it_is_offline_to_the_controller(
    capsys: pytest.CaptureFixture[str],
) -> None:
    node = dataclasses.replace(
        NODES[0], data_dirs=("/a", "/b"), offline_data_dirs=("/a", "/b"), full_data_dirs=("/a",)
    )
    print_description(dataclasses.replace(DESCRIPTION, nodes=(node,)))
    assert "/a (not writable), /b (offline)" in capsys.readouterr().out


@pytest.mark.parametrize("is_terminal", [True, False])
def test_status_fits_80_columns_but_for_paths_and_identifiers_are_plain_numbers(
    is_terminal: bool, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setattr(sys.stdout, "isatty", lambda: is_terminal)
    print_description(DESCRIPTION)
    lines = re.sub(r"\x1b\[[\d;]*m", "", capsys.readouterr().out).splitlines()
    assert all(len(line) <= 80 for line in lines if "/very/long" not in line)
    for node in NODES:
        (row,) = (line.split() for line in lines if f"{node.actor_name} " in line and "1234567" in line)
        assert row[:2] == [node.actor_name, node.state]
        place = "was on" if node.state == "unreachable" else "on"
        assert f"{node.actor_name} {place} {node.host}: {node.data_dirs[0]}" in lines
    assert "rayka/broker-2 is unreachable: its process has ended" in lines
    assert "active controller 3001, epoch 12345" in lines


def test_only_counts_are_grouped_by_thousands(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    print_table("Title", ("broker", "records"), [(3001, Count(336776))])
    assert capsys.readouterr().out.splitlines()[-2].split() == ["3001", "336,776"]


def test_ctrl_c_ends_with_130_and_no_traceback(home: dict[str, str]) -> None:
    script = (
        "import os, signal, sys, click\nfrom rayka.cli import main\n"
        "@main.rayka.command()\ndef wait(): os.kill(os.getpid(), signal.SIGINT); signal.pause()\n"
        "main._SUBCOMMANDS['wait'] = ('__main__', '')\n"
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


def test_a_full_disk_of_ray_is_no_reason_to_fail(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ray needs the disk only for what its shared memory cannot hold."""
    monkeypatch.setattr(doctor.shutil, "disk_usage", lambda path: types.SimpleNamespace(total=100, free=5))
    finding = doctor._ray_disk()
    assert (finding.verdict, "95 % full" in finding.found) == (doctor.FindingVerdict.NOTE, True)
    assert finding.advice.startswith("free some space")
