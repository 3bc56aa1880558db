"""What an operator sees of nodes that run, of one that was restarted, and of a broker with a failed directory."""

import asyncio
import json
import os
import signal
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import ray

import rayka
from rayka.actors import supervisor_handle
from rayka.actors.names import NAMESPACE, supervisor_name
from rayka.actors.node_logs import find_logs, follow, last_lines
from rayka.actors.ray_nodes import own_ray_node_id
from rayka.cluster import Cluster
from rayka.protocol.membership import NodeState
from tests.ray.conftest import Said
from tests.ray.support import RAYKA, kill, pid_of, wait_until

pytestmark = pytest.mark.ray
Command = Callable[..., Said]


@pytest.fixture(scope="module")
def cluster(ray_address: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """Of one broker on two disks."""
    data_dirs = [str(tmp_path_factory.mktemp(each)) for each in "ab"]
    with Cluster.start(name="seen", data_dir=data_dirs) as cluster:
        yield cluster


class OlderSupervisor:
    """Of a version without `troubles`."""

    def pid(self) -> int:
        return 1


def test_a_supervisor_of_an_older_version_names_no_problems(ray_address: str) -> None:
    older = ray.remote(OlderSupervisor).options(
        name=supervisor_name("older"), namespace=NAMESPACE, lifetime="detached", num_cpus=0
    )
    handle = older.remote()
    try:
        assert ray.get(handle.pid.remote()) == 1
        assert asyncio.run(supervisor_handle.report("older", 30.0)).problems == {}
    finally:
        ray.kill(handle)


def test_each_process_and_each_line_of_its_log_name_the_node_and_the_log_outlives_a_restart(
    cluster: Cluster, command: Command
) -> None:
    name, first = f"{cluster.name}/broker-1", pid_of(cluster, 1)
    assert Path(f"/proc/{first}/cmdline").read_bytes().startswith(f"ray::{name}".encode())
    described = json.loads(command("status", "--json", "--cluster", cluster.name).out)["nodes"]
    assert f"process {first}" in Path(described[0]["log_path"]).read_text()

    def supervisor_log() -> str:
        return command("logs", "supervisor", "--cluster", cluster.name).out

    on_ray_node = f"on Ray node {own_ray_node_id()}"
    wait_until(lambda: f"broker-1 runs as process {first} {on_ray_node}" in supervisor_log())
    (log,) = find_logs(name)
    following = follow(name, log, last_lines([log], 0)[1])
    kill(first)
    told = next(line for line in following if "runs on Ray node" in line)
    second = pid_of(cluster, 1)
    assert f"INFO {name} rayka.actors.shell: broker-1 runs" in told
    assert f"process {second}" in told

    said = command("logs", "broker-1", "--cluster", cluster.name)
    assert said.code == 0
    assert said.out.index(f"process {first}") < said.out.index(f"process {second}")
    assert said.err.count("==>") == 2
    assert ":actor_name:" not in said.out
    exited = f"{cluster.name}/supervisor rayka.actors.exit_watch: process {first} of {name} has exited"
    wait_until(lambda: exited in supervisor_log())
    again = f"broker-1 runs again as process {second} {on_ray_node}; it was process {first} {on_ray_node}"
    wait_until(lambda: again in supervisor_log())


class Speaker:
    """Writes to its log, also at its end, without the end of a line."""

    def say(self, text: str) -> None:
        os.write(2, text.encode())

    def end(self, text: str) -> None:
        self.say(text)
        os._exit(1)


def test_a_follower_of_a_log_reads_all_that_each_process_has_written(ray_address: str) -> None:
    name = "speaking/broker-1"
    speaker = (
        ray.remote(Speaker).options(name=name, namespace=NAMESPACE, max_restarts=-1, num_cpus=0).remote()
    )

    def has_said(text: str) -> bool:
        try:
            return ray.get(speaker.say.remote(text)) is None
        except ray.exceptions.RayError:
            return False  # Ray makes the next process

    try:
        wait_until(lambda: has_said("begins\n"))
        (log,) = find_logs(name)
        following = follow(name, log, last_lines([log], 0)[1])
        for number in range(2):
            speaker.end.remote(f"last words {number}")
            wait_until(lambda: has_said("lives again\n"))
        has_said("that is all\n")
        told = [next(following)]
        while told[-1] != "that is all":
            told.append(next(following))
        assert told == ["last words 0", "lives again", "last words 1", "lives again", "that is all"]
    finally:
        ray.kill(speaker)


def test_a_command_follows_a_log_until_it_is_interrupted(
    cluster: Cluster, environment: dict[str, str]
) -> None:
    node = ("1", "--cluster", cluster.name, "--address", cluster.ray_address)
    with subprocess.Popen(
        [*RAYKA, "logs", *node, "-f", "-n", "1"], stdout=subprocess.PIPE, text=True, env=environment
    ) as following:
        assert following.stdout is not None
        try:
            assert following.stdout.readline()  # the last line there was: whatever comes now is new
            with rayka.Admin(cluster=cluster) as admin:
                admin.create_topic("followed")
            assert any("leads followed-0" in line for line in following.stdout)
            following.send_signal(signal.SIGINT)
            assert following.wait(60) == 128 + signal.SIGINT
        finally:
            following.kill()


def test_a_broker_with_a_failed_directory_is_degraded_and_the_exit_code_says_so(
    cluster: Cluster, command: Command, tmp_path: Path
) -> None:
    """The directory turns into a file, as a disk that is not mounted any more is not what it was."""
    asked = ("status", "--cluster", cluster.name)
    wait_until(lambda: command(*asked).code == 0)
    failing = Path(cluster.describe().nodes[0].data_dirs[1])
    failing.rename(tmp_path / "away")
    failing.touch()
    with rayka.Admin(cluster=cluster) as admin:
        admin.create_topic("spread", partitions=2)
    with rayka.Producer(cluster=cluster, delivery_timeout_ms=3_000, request_timeout_ms=1_000) as producer:
        for partition in range(2):
            producer.send("spread", b"1", partition=partition)
    wait_until(lambda: cluster.describe().nodes[0].state != NodeState.RUNNING)

    said = command(*asked)
    assert said.code == 1
    assert f"{failing} (offline)" in said.out
    (described, _) = json.loads(command(*asked, "--json").out)["nodes"]
    assert (described["state"], described["offline_data_dirs"]) == ("degraded", [str(failing)])


@pytest.mark.parametrize("node", ["nobody", "controller-1", "broker-", "-1", "\u0663"])
def test_logs_are_those_of_a_node(command: Command, node: str) -> None:
    said = command("logs", "--cluster", "none", "--", node)
    assert (said.code, said.out) == (1, "")
    assert "expected a node's id or name" in said.err


def test_logs_of_a_node_that_is_not_there_name_those_that_are(cluster: Cluster, command: Command) -> None:
    for node in ("9", "broker-9"):
        said = command("logs", node, "--cluster", cluster.name)
        assert (said.code, said.err) == (1, "error: no node 9; there are 1, 3001\n")


def test_a_node_without_a_log_is_named(command: Command) -> None:
    assert "error: none/broker-7 has no log" in command("logs", "7", "--cluster", "none").err
