"""This process's connection to Ray: made once, logged once, and what clients raise when their Ray has ended."""

import asyncio
import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import msgspec
import psutil
import pytest

from rayka.actors import ray_internals, ray_process
from rayka.actors.cluster_actors import wait_for
from rayka.cluster import Cluster
from rayka.errors import UnavailableError
from tests import tidy
from tests.forks import kill_all, processes_of
from tests.ray.support import RAYKA, is_alive, wait_until

pytestmark = pytest.mark.ray
Run = Callable[..., subprocess.CompletedProcess[str]]
RAYS_LIMIT_S = 60  # after which Ray ends a process that has lost it

FIRST_CLIENTS = """
import logging, threading, ray, rayka
logging.basicConfig(level=logging.INFO, format="%(name)s: %(message)s")
logging.getLogger("ray").setLevel(logging.ERROR)
clients = []

def make(kind):
    clients.append(kind(cluster="shared"))

threads = [threading.Thread(target=make, args=(kind,)) for kind in (rayka.Admin, rayka.Producer) * 2]
for each in threads:
    each.start()
for each in threads:
    each.join()
print(len(clients), ray.get_runtime_context().get_job_id() != "")
for each in clients:
    each.close()
"""


def test_threads_that_make_their_first_clients_together_make_one_connection_and_say_which(
    cluster: Cluster, ray_address: str, run: Run
) -> None:
    done = run(sys.executable, "-c", FIRST_CLIENTS, RAY_ADDRESS=ray_address)
    assert (done.returncode, done.stdout) == (0, "4 True\n"), done.stderr
    told = [line for line in done.stderr.splitlines() if line.startswith("rayka")]
    assert told == [f"rayka.actors.ray_connection: using the Ray at {ray_address} (RAY_ADDRESS)"]


JOINS_WHAT_IS_FOUND = """
import os, rayka
from rayka.actors import ray_internals

recorded = ray_internals.address_file()
recorded.parent.mkdir(parents=True, exist_ok=True)
recorded.write_text(os.environ["STARTED_LAST"])
rayka.Admin(cluster="shared").close()
"""


def test_a_program_that_joins_a_ray_that_it_did_not_name_shows_which(
    cluster: Cluster, ray_address: str, run: Run
) -> None:
    done = run(sys.executable, "-c", JOINS_WHAT_IS_FOUND, STARTED_LAST=ray_address)
    shown = f"using the Ray at {ray_address} (the one that `ray start` started last)\n"
    assert (done.returncode, done.stderr) == (0, shown)


BESIDE_RAY_INIT = """
import os, threading, ray, rayka
begun = threading.Barrier(2)

def connect():
    begun.wait()
    ray.init(address=os.environ["RAY_ADDRESS"], log_to_driver=False, logging_level="ERROR", ignore_reinit_error=True)

users = threading.Thread(target=connect)
users.start()
begun.wait()
with rayka.Admin(cluster="shared") as admin:
    print(type(admin.list_topics()).__name__)
"""


def test_a_client_made_while_another_thread_calls_ray_init_uses_the_one_connection(
    cluster: Cluster, ray_address: str, run: Run
) -> None:
    done = run(sys.executable, "-c", BESIDE_RAY_INIT, RAY_ADDRESS=ray_address)
    assert (done.returncode, done.stdout) == (0, "list\n"), done.stderr


# ---- A Ray that ends ----


CLIENTS = """
import sys, ray, rayka
from rayka.errors import UnavailableError
how, address, directory = sys.argv[1:]
if how == "ray.init":
    ray.init(address=address, log_to_driver=False, logging_level="ERROR")
    cluster = rayka.Cluster.connect("ending")
else:
    cluster = rayka.Cluster.start(name="ending", data_dir=directory, ray={"address": address})
    with rayka.Admin(cluster=cluster) as admin:
        admin.create_topic("words", partitions=1)
admin, producer = rayka.Admin(cluster=cluster), rayka.Producer(cluster=cluster)
consumer = rayka.Consumer("words", cluster=cluster)
producer.send("words", b"one").result(60)
print("reading", flush=True)
"""
READING = f"""
{CLIENTS}
for wait in (
    lambda: [record for record in consumer],
    lambda: producer.send("words", b"two").result(60),
    admin.list_topics,
    cluster.describe,
):
    try:
        print("no error:", wait(), flush=True)
    except UnavailableError as error:
        print(error, flush=True)
sys.stdout.flush()
"""
LOOPING = f"""
{CLIENTS}
try:
    for record in consumer:
        pass
except UnavailableError as error:
    print(error, flush=True)
sys.stdin.read()
"""


START = """
import msgspec
from rayka.actors import ray_process
print(msgspec.json.encode(ray_process.start()).decode())
"""


@pytest.fixture
def own_ray(run: Run) -> Iterator[ray_process.RayProcess]:
    """A Ray as `rayka start` leaves it running, that no other test uses."""
    started = start_ray(run)
    yield started
    end_at_once(started)


def start_ray(run: Run, **variables: str) -> ray_process.RayProcess:
    done = run(sys.executable, "-c", START, **variables)
    assert done.returncode == 0, done.stderr
    return msgspec.json.decode(done.stdout, type=ray_process.RayProcess)


def end_at_once(started: ray_process.RayProcess) -> None:
    """Ends all processes of a Ray at once, as a machine does that is switched off: none answers a client that has
    noticed the end of another one. All stand still first, and before any of them the head ends.
    """
    if started.is_alive():
        family = [psutil.Process(started.pid), *processes_of(started.pid)]
        family.sort(key=lambda each: "gcs_server" not in each.name())
        for each in family:
            each.suspend()
        family[0].kill()
        wait_until(lambda: not is_alive(family[0].pid))
        kill_all(family[1:])
    started.stop()


@contextmanager
def reading(
    how: str, address: str, directory: Path, environment: dict[str, str], script: str = READING
) -> Iterator[subprocess.Popen[str]]:
    """A process that reads from a cluster on that Ray, for ever."""
    command = (sys.executable, "-c", script, how, address, str(directory))
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with subprocess.Popen(command, env=environment, text=True, **pipes) as reader:
        try:
            assert reader.stdout is not None
            assert reader.stdout.readline() == "reading\n"
            yield reader
        finally:
            reader.kill()


def test_clients_of_a_ray_that_ended_raise_one_clear_error_before_ray_ends_their_process(
    own_ray: ray_process.RayProcess, environment: dict[str, str], tmp_path: Path
) -> None:
    """Ray ends a process four minutes after its own end, instead of one: a busy machine needs a minute for four."""
    variables = {**environment, "RAY_gcs_rpc_server_reconnect_timeout_s": "240"}
    where = (own_ray.address, tmp_path, variables)
    with reading("rayka", *where) as of_rayka, reading("ray.init", *where) as of_user:
        end_at_once(own_ray)
        for reader in (of_rayka, of_user):
            told = reader.communicate(timeout=240)[0].splitlines()
            assert [each[: each.find(own_ray.address)] for each in told] == ["the Ray at "] * 4
            assert ["has ended" in each for each in told] == [True] * 4
            assert reader.returncode == 0


@pytest.mark.apart  # it waits for a minute and a half
def test_a_loop_raises_within_rays_minute_and_a_process_that_rayka_connected_lives_on(
    own_ray: ray_process.RayProcess, environment: dict[str, str], tmp_path: Path
) -> None:
    where = (own_ray.address, tmp_path, environment, LOOPING)
    with reading("rayka", *where) as of_rayka, reading("ray.init", *where) as of_user:
        end_at_once(own_ray)
        ended_s = time.monotonic()
        for reader in (of_rayka, of_user):
            assert reader.stdout is not None
            assert f"the Ray at {own_ray.address} has ended" in reader.stdout.readline()
        assert time.monotonic() - ended_s < RAYS_LIMIT_S
        assert of_user.wait(240) != 0  # ended by Ray
        with pytest.raises(subprocess.TimeoutExpired):
            of_rayka.wait(20)
        assert time.monotonic() - ended_s > RAYS_LIMIT_S + 15
        of_rayka.communicate(timeout=60)
        assert of_rayka.returncode == 0


GOING_ON = """
import sys, time
import rayka
from rayka.errors import RaykaError

cluster = rayka.Cluster.connect("cli")
admin, producer = rayka.Admin(cluster=cluster), rayka.Producer(cluster=cluster)
consumer = rayka.Consumer("words", cluster=cluster, group_id="g", auto_offset_reset="earliest")
producer.send("words", b"one").result(60)
values = []

def read():
    values.extend(each.value for each in consumer.poll(timeout_ms=500))
    return len(set(values)) == 1 + is_back

def again(step, deadline=time.monotonic() + 200):
    while time.monotonic() < deadline:
        try:
            if step():
                return True
        except RaykaError as error:
            time.sleep(0.2)
    return False

is_back = False
print(again(read), flush=True)
sys.stdin.readline()
is_back = True
for step in (
    lambda: producer.send("words", b"two").result(60),
    admin.list_topics,
    lambda: cluster.describe().is_running,
    read,
):
    print(again(step), flush=True)
"""


@pytest.mark.apart  # it waits until a Ray counts as ended
def test_clients_go_on_with_the_next_ray_after_rayka_stop_and_rayka_start(
    run: Run, environment: dict[str, str], tmp_path: Path
) -> None:
    spec = tmp_path / "cluster.yaml"
    spec.write_text(f"name: cli\ndata_dir: {tmp_path}/data\n")
    local = {"RAY_ADDRESS": "local"}

    def command(*arguments: str) -> None:
        done = run(*RAYKA, *arguments, **local)
        assert done.returncode == 0, done.stderr

    command("start", str(spec))
    try:
        command("topic", "create", "words", "--partitions", "1", "--cluster", "cli")
        variables = {**environment, **local}
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
        with subprocess.Popen((sys.executable, "-c", GOING_ON), env=variables, text=True, **pipes) as clients:
            assert clients.stdout is not None
            assert clients.stdout.readline() == "True\n"
            command("stop", "--cluster", "cli")
            command("start", str(spec))
            try:
                assert clients.communicate("on\n", timeout=400)[0].split() == ["True"] * 4
            finally:
                clients.kill()
    finally:
        command("stop", "--cluster", "cli")


def test_a_question_to_ray_that_is_never_answered_ends_as_unavailable_error() -> None:
    with pytest.raises(UnavailableError, match="Ray: sleep did not end within"):
        wait_for(partial(asyncio.sleep, 60), timeout_s=0.1, slack_s=0.1)


# ---- A Ray that asks for a token ----


def test_a_token_that_is_missing_or_wrong_is_refused_at_the_first_try_with_where_it_is_looked_for(
    run: Run, environment: dict[str, str], tmp_path: Path
) -> None:
    """Ray itself tries twenty times, with a line about each."""
    started = start_ray(run, RAY_AUTH_MODE="token")
    try:
        for others in ({"RAY_AUTH_MODE": "disabled"}, {}, {"RAY_AUTH_TOKEN": "a" * 64}):
            variables = {"RAY_AUTH_MODE": "token", "HOME": str(tmp_path), **others}
            done = run(*RAYKA, "topic", "list", "--address", started.address, **variables)
            assert (done.returncode, done.stdout) == (1, "")
            assert done.stderr.count("InvalidAuthToken") <= 1
            told = done.stderr.splitlines()[-1]
            assert f"the Ray at {started.address} asks for a token" in told
            assert (
                "RAY_AUTH_TOKEN, in the file that RAY_AUTH_TOKEN_PATH names, and in ~/.ray/auth_token" in told
            )
        assert run(*RAYKA, "topic", "list", "--address", started.address, RAY_AUTH_MODE="token").stderr.count(
            "no cluster 'rayka'"
        )
    finally:
        end_at_once(started)


START_LOCAL = """
import sys, rayka
with rayka.Cluster.start(name="own", data_dir=sys.argv[1]) as cluster:
    print(cluster.ray_address)
"""


def test_a_ray_of_another_user_that_asks_for_a_token_is_in_nobodys_way(
    run: Run, environment: dict[str, str], tmp_path: Path
) -> None:
    others = start_ray(run, RAY_AUTH_MODE="token")
    spec = tmp_path / "cluster.yaml"
    spec.write_text(f"name: mine\ndata_dir: {tmp_path}/data\n")
    mine = {"RAY_AUTH_MODE": "disabled", "HOME": str(tmp_path)}
    try:
        told = run(*RAYKA, "topic", "list", **mine).stderr
        assert f"the Ray at {others.address} asks for a token" in told
        assert "RAY_ADDRESS=local" in told
        (found,) = (
            each
            for each in json.loads(run(*RAYKA, "doctor", "--json", **mine).stdout)
            if each["what"] == "Ray"
        )
        assert found["verdict"] == "note"
        assert "asks for a token" in found["found"]
        assert "RAY_ADDRESS=local" in found["advice"]
        started = run(*RAYKA, "start", str(spec), "--json", **mine)
        try:
            assert started.returncode == 0, started.stderr
            address = json.loads(started.stdout)["ray_address"]
            assert address != others.address
            local = run(sys.executable, "-c", START_LOCAL, str(tmp_path / "own"), RAY_ADDRESS="local", **mine)
            assert local.returncode == 0, local.stderr
            assert local.stdout.strip() not in (address, others.address)
        finally:
            assert "ended the Ray" in run(*RAYKA, "stop", "--cluster", "mine", **mine).stdout
    finally:
        end_at_once(others)


# ---- What Ray prints ----

KILLING = """
import os, signal, sys, ray, rayka
ray.init(address=sys.argv[1], logging_level="ERROR")

def broker_pid():
    return next(each.pid for each in cluster.describe().nodes if each.node_id == 1)

@ray.remote(num_cpus=0)
class Users:
    def pid(self):
        return os.getpid()

with rayka.Cluster.start(name="killed", data_dir=sys.argv[2]) as cluster:
    killed = broker_pid()
    os.kill(killed, signal.SIGKILL)
    while broker_pid() in (killed, 0, -1):
        pass
    users = Users.remote()
    pid = ray.get(users.pid.remote())
    print("killed", killed, pid, flush=True)
    os.kill(pid, signal.SIGKILL)
    sys.stdin.read()
"""


def test_the_death_of_a_broker_is_not_printed_among_what_ray_prints_of_the_users_own_workers(
    rays: object, ray_address: str, environment: dict[str, str], tmp_path: Path
) -> None:
    command = (sys.executable, "-c", KILLING, ray_address, str(tmp_path))
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
    with subprocess.Popen(command, env=environment, text=True, **pipes) as script:
        try:
            assert script.stdin is not None
            assert script.stdout is not None
            printed = ""
            while "A worker died" not in printed or "killed" not in printed:
                line = script.stdout.readline()
                assert line, printed
                printed += line
            (told,) = (each.split()[1:] for each in printed.splitlines() if each.startswith("killed"))
            script.stdin.close()
            printed += script.stdout.read()
            assert [f"PID: {each} " in printed for each in told] == [False, True], printed
        finally:
            script.kill()


# ---- What Ray keeps to itself ----


def test_private_parts_of_ray_are_imported_only_where_fallbacks_are() -> None:
    found = [
        f"{each.name}: {text}"
        for each in tidy.python_files("rayka/")
        for text in each.text.splitlines()
        if text.lstrip().startswith(("import ray._", "from ray._", "from ray.core"))
        or "ray._private." in text
        if "part(" not in text and "_TOKENS = " not in text and "sys.modules" not in text
    ]
    assert found == []


def test_a_part_of_ray_that_a_version_lacks_is_none() -> None:
    assert ray_internals.part("ray._private.worker", "no_such_name") is None
    assert ray_internals.part("ray._private.no_such_module", "name") is None
    assert ray_internals.part("ray._private.worker", "print_to_stdstream") is not None


class Messages:
    """A subscriber to Ray's messages, and the event of its connection's end; keeps how often each is asked."""

    def __init__(self, *answers: object) -> None:
        self.left = list(answers)
        self.waits = 0

    def poll(self) -> object:
        return self.left.pop(0)

    def wait(self, timeout_s: float) -> None:
        assert timeout_s > 0
        self.waits += 1


@pytest.mark.parametrize(
    ("answer", "waits"), [((None, None), 1), (None, 1), ((b"key", {"error_message": "a node died"}), 0)]
)
def test_a_head_that_is_gone_is_not_asked_for_messages_without_a_pause(answer: object, waits: int) -> None:
    messages = Messages(answer)
    assert ray_internals.PacedSubscriber(messages, messages).poll() == answer
    assert (messages.left, messages.waits) == ([], waits)


def test_a_connection_that_rayka_uses_asks_for_messages_at_that_pace(cluster: Cluster) -> None:
    worker = ray_internals.part("ray._private.worker", "global_worker")
    assert worker is not None
    assert isinstance(worker.gcs_error_subscriber, ray_internals.PacedSubscriber)


FAILS = """
import subprocess, sys
sleeper = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
print(sleeper.pid)
sys.exit(1)
"""


def test_a_ray_that_does_not_start_leaves_no_process_and_no_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    directory = tmp_path / "ray"
    directory.mkdir()
    monkeypatch.setattr(ray_process, "make_temp_dir", lambda: str(directory))
    monkeypatch.setattr(ray_process, "_RAY", (sys.executable, "-c", FAILS))
    with pytest.raises(UnavailableError, match=r"ended with code 1: \d+") as caught:
        ray_process.start()
    assert not directory.exists()
    assert not is_alive(int(str(caught.value).rpartition(" ")[2]))
