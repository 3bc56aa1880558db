"""Whole processes: a cluster by the command line, both authentication modes, Ctrl-C, no Ray at all."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

import rayka
from rayka.cluster import Cluster
from tests.ray.support import RAYKA, is_alive

pytestmark = pytest.mark.ray
Run = Callable[..., subprocess.CompletedProcess[str]]

ROUND_TRIP = """
import sys, rayka
with rayka.Cluster.start(name="smoke", data_dir=sys.argv[1]) as cluster:
    with rayka.Admin(cluster=cluster) as admin:
        admin.create_topic("words", partitions=2)
    with rayka.Producer(cluster="smoke") as producer:
        for word in (b"one", b"two", b"three"):
            producer.send("words", word)
    print(sorted(record.value for record in rayka.read("words", cluster="smoke")))
"""


def test_a_script_without_a_ray_starts_a_local_one_and_leaves_nothing_running(
    run: Run, tmp_path: Path
) -> None:
    done = run(sys.executable, "-c", ROUND_TRIP, str(tmp_path), RAY_AUTH_MODE="disabled", RAY_ADDRESS="local")
    assert (done.returncode, done.stdout) == (0, "[b'one', b'three', b'two']\n"), done.stderr


JOIN = "import ray; ray.init(logging_level='ERROR'); print(ray.get_runtime_context().gcs_address)"
JOIN_AUTO = JOIN.replace("init(", "init('auto', ")
RAY = (sys.executable, "-m", "ray.scripts.scripts")


def test_the_command_line_starts_uses_and_stops_a_cluster_that_ray_finds_under_token_authentication(
    run: Run, environment: dict[str, str], tmp_path: Path
) -> None:
    told = [""]

    def command(*arguments: str) -> str:
        done = run(*RAYKA, *arguments, RAY_AUTH_MODE="token", RAY_ADDRESS="local")
        assert done.returncode == 0, done.stderr
        told[0] = done.stderr
        return done.stdout

    spec = tmp_path / "cluster.yaml"
    spec.write_text(f"name: cli\ndata_dir: {tmp_path}\n")
    started = json.loads(command("start", str(spec), "--json"))
    address = started["ray_address"]
    assert started["name"] == "cli"
    ray_pid = json.loads(Path(environment["HOME"], ".rayka", "ray.json").read_text())["pid"]
    assert "cli/broker-1" in command("status", "--cluster", "cli")
    for user in (JOIN_AUTO, JOIN, JOIN_AUTO.replace("auto", address)):
        joined = run(sys.executable, "-c", user, RAY_AUTH_MODE="token")
        assert joined.stdout == f"{address}\n", joined.stderr
    assert "Autoscaler status" in run(*RAY, "status", RAY_AUTH_MODE="token").stdout
    command("topic", "create", "words", "--cluster", "cli")
    assert command("topic", "list", "--cluster", "cli").split()[0] == "words"
    assert told == [f"using the Ray at {address} (the one that `rayka start` left running)\n"]
    assert "ended the Ray" in command("stop", "--cluster", "cli", "--delete-data", "--yes")
    assert not is_alive(ray_pid)
    assert not Path(environment["RAY_TMPDIR"], "ray", "ray_current_cluster").exists()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["cluster.yaml"]


def test_rayka_start_joins_the_ray_that_ray_start_began_and_says_so_and_stop_leaves_it_running(
    run: Run, environment: dict[str, str], tmp_path: Path
) -> None:
    options = ("--port=0", "--num-cpus=4", "--include-dashboard=false", "--disable-usage-stats")
    command = (*RAY, "start", "--head", "--block", *options)
    spec = tmp_path / "cluster.yaml"
    spec.write_text(f"name: second\ndata_dir: {tmp_path}\n")
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True) as ray:
        try:
            assert ray.stdout is not None
            assert any("block" in line for line in ray.stdout)  # it has written where it is, and stays
            address = Path(environment["RAY_TMPDIR"], "ray", "ray_current_cluster").read_text().strip()
            started = run(*RAYKA, "start", str(spec), "--json")
            assert started.returncode == 0, started.stderr
            assert started.stderr == f"using the Ray at {address} (the one that `ray start` started last)\n"
            assert json.loads(started.stdout)["ray_address"] == address
            stopped = run(*RAYKA, "stop", "--cluster", "second", "--json")
            assert json.loads(stopped.stdout)["has_ended_ray"] is False, stopped.stderr
            assert ray.poll() is None
        finally:
            ray.terminate()


def test_starts_at_the_same_time_end_at_one_cluster_on_one_ray(
    run: Run, environment: dict[str, str], tmp_path: Path
) -> None:
    spec = tmp_path / "cluster.yaml"
    spec.write_text(f"name: twice\ndata_dir: {tmp_path}\n")
    Path(environment["HOME"], ".ray").mkdir()
    Path(environment["HOME"], ".ray", "auth_token").write_text("a" * 64)
    del environment["RAY_AUTH_MODE"]  # with a token at hand Ray would say at each command that it is used
    starts = [
        subprocess.Popen(
            (*RAYKA, "start", str(spec), "--json"),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env={**environment, "RAY_ADDRESS": "local"},
        )
        for _ in range(2)
    ]
    told = [start.communicate(timeout=240) for start in starts]
    one, other = (json.loads(stdout) for stdout, _ in told)
    which = f"using the Ray at {one['ray_address']} (the one that `rayka start` left running)\n"
    assert [(start.returncode, stderr.decode()) for start, (_, stderr) in zip(starts, told, strict=True)] == [
        (0, which)
    ] * 2
    for same in ("cluster_id", "ray_address"):
        assert one[same] == other[same]
    assert [node["pid"] for node in one["nodes"]] == [node["pid"] for node in other["nodes"]]
    stopped = run(*RAYKA, "stop", "--cluster", "twice", "--json", RAY_ADDRESS="local")
    outcome = {"stopped": "twice", "is_data_deleted": False, "has_ended_ray": True}
    assert json.loads(stopped.stdout) == outcome, stopped.stderr


def test_files_of_a_ray_whose_end_was_interrupted_are_removed_later(
    run: Run, environment: dict[str, str], tmp_path: Path
) -> None:
    left = tmp_path / "rayka-left"
    left.mkdir()
    memory = Path(environment["HOME"], ".rayka", "ray.json")
    memory.parent.mkdir()
    ended = subprocess.Popen(["true"])
    ended.wait()
    memory.write_text(
        json.dumps({"pid": ended.pid, "started": 1, "address": "127.0.0.1:9", "temp_dir": str(left)})
    )
    done = run(*RAYKA, "stop", RAY_ADDRESS="local")
    assert (done.returncode, left.exists(), memory.exists()) == (1, False, False), done.stderr


@pytest.mark.parametrize("command", ["status", "stop", "topic create words"])
def test_without_a_ray_a_command_says_how_to_start_one(run: Run, command: str) -> None:
    done = run(*RAYKA, *command.split(), RAY_ADDRESS="local")
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (1, "", 1)
    assert done.stderr.startswith("error: no Ray runs on this machine; start one with `rayka start`")


def test_an_address_where_no_ray_answers_is_an_error_at_once(run: Run) -> None:
    began = time.monotonic()
    done = run(*RAYKA, "status", "--address", "127.0.0.1:9")
    assert (done.returncode, "no Ray answers at 127.0.0.1:9" in done.stderr) == (1, True)
    assert time.monotonic() - began < 60, "Ray itself tries for minutes"


def test_clients_never_start_a_ray(run: Run) -> None:
    script = (
        "import rayka, rayka.spark, ray\n"
        "for make in (rayka.Producer, rayka.Consumer, rayka.Admin, lambda cluster: rayka.spark.init()):\n"
        "    try: make(cluster='nowhere')\n"
        "    except rayka.errors.UnavailableError: print(ray.is_initialized())"
    )
    done = run(sys.executable, "-c", script, RAY_ADDRESS="local")
    assert done.stdout.split() == ["False"] * 4, done.stderr


WAITS = {
    "send": "[producer.send(topic, b'x' * 1000) for _ in iter(int, 1)]",
    "result": "producer.send(topic, b'x').result(timeout=60)",
    "poll": "consumer.poll(timeout_ms=60_000)",
    "iteration": "next(iter(consumer))",
}

WAITING = """
import sys, threading, rayka
cluster, topic, wait = sys.argv[1:]
producer = rayka.Producer(cluster=cluster, linger_ms=60_000)
consumer = rayka.Consumer(topic, cluster=cluster, auto_offset_reset="latest")
threading.Timer(0.5, lambda: print("waiting", flush=True)).start()
try:
    exec(wait)
except KeyboardInterrupt:
    print("interrupted", flush=True)
    raise
"""


@pytest.mark.parametrize("wait", WAITS)
def test_ctrl_c_interrupts_a_wait_and_the_process_ends_with_its_clients_open(
    cluster: Cluster, ray_address: str, environment: dict[str, str], wait: str
) -> None:
    topic = f"ctrl-c-{wait}"
    with rayka.Admin(cluster=cluster) as admin:
        admin.create_topic(topic, partitions=2)
    command = (sys.executable, "-c", WAITING, cluster.name, topic, WAITS[wait])
    variables = {**environment, "RAY_ADDRESS": ray_address}
    with subprocess.Popen(
        command, env=variables, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
    ) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == b"waiting\n"
            began = time.monotonic()
            os.kill(process.pid, signal.SIGINT)
            assert process.stdout.readline() == b"interrupted\n"
            assert time.monotonic() - began < 30  # of the 60 s that it would wait; 0.01 s on a quiet machine
            assert process.wait(60) != 0
        finally:
            process.kill()
