"""Scripts of users on a real Ray: how they end, and the error in their forked children."""

import os
import signal
import subprocess
import sys
from itertools import count
from pathlib import Path

import pytest

import rayka
from rayka import Admin, Cluster

pytestmark = pytest.mark.ray
_numbers = count()


def outcome(
    cluster: Cluster, script: str, *arguments: str, directory: "os.PathLike[str] | None" = None
) -> tuple[int, str, str]:
    """Exit status, standard output and standard error of a script that has the Ray of the cluster as its own."""
    done = subprocess.run(
        [sys.executable, "-c", script, *arguments],
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
        env={**os.environ, "RAY_ADDRESS": cluster.ray_address},
        cwd=directory,
    )
    return done.returncode, done.stdout, done.stderr


def new_topic(cluster: Cluster) -> str:
    name = f"scripts-{next(_numbers)}"
    with Admin(cluster) as admin:
        admin.create_topic(name, partitions=3)
    return name


def test_a_script_whose_last_line_sends_loses_nothing(cluster: Cluster):
    topic = new_topic(cluster)
    script = f"import rayka\np = rayka.Producer({cluster.name!r})\np.send({topic!r}, b'x')"
    assert outcome(cluster, script) == (0, "", "")
    assert [each.value for each in rayka.read(topic, cluster=cluster)] == [b"x"]


def test_a_script_tells_what_it_could_not_deliver(cluster: Cluster):
    topic = new_topic(cluster)
    script = f"""
import rayka
p = rayka.Producer({cluster.name!r}, linger_ms=60_000)
p.send({topic!r}, b'x')
rayka.Admin({cluster.name!r}).delete_topic({topic!r})
"""
    status, printed, told = outcome(cluster, script)
    assert (status, printed, told.count("\n")) == (120, "", 1)
    assert f"1 for topic {topic!r}" in told


def test_a_forked_child_of_a_script_is_told_to_be_spawned(cluster: Cluster):
    script = f"""
import os, signal
import rayka
cluster = rayka.Cluster.connect({cluster.name!r})
child = os.fork()
if child == 0:
    signal.alarm(60)  # ends a child that hangs
    for call in (
        cluster.describe,
        lambda: rayka.Cluster.connect({cluster.name!r}),
        lambda: rayka.Producer({cluster.name!r}),
        lambda: rayka.Producer(cluster),
    ):
        try:
            call()
        except rayka.errors.UnavailableError as error:
            assert 'get_context("spawn")' in str(error), error
    os._exit(0)
print(os.waitpid(child, 0)[1], len(cluster.describe().nodes) > 1)
"""
    assert outcome(cluster, script) == (0, "0 True\n", "")


# Each signal that can be handled, those of faults too: native code of Ray replaces their handlers behind Python's back.
HANDLES_SIGNALS = """
import signal, sys
import rayka

seen = []
signals = signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP}
if "Thread" in sys.argv[1]:  # native handlers cannot be replaced again there
    signals -= {signal.SIGSEGV, signal.SIGILL, signal.SIGFPE, signal.SIGABRT, signal.SIGBUS, signal.SIGTRAP}
for each in signals:
    signal.signal(each, lambda number, _: seen.append(number))
client = eval(sys.argv[1])
for each in signals:
    signal.raise_signal(each)
print(len(signals), signals <= set(seen))
client.close()
"""


@pytest.mark.parametrize(
    "client",
    [
        "rayka.Admin({name!r})",
        "rayka.Admin(rayka.Cluster.start(name={name!r}, data_dir={directory!r}))",
        "(rayka.Admin({name!r}), __import__('ray').shutdown(), rayka.Admin({name!r}))[-1]",
        "__import__('concurrent.futures').futures.ThreadPoolExecutor().submit(rayka.Admin, {name!r}).result()",
    ],
    ids=["first client", "start", "second connection", "in a thread"],
)
def test_a_programs_own_signal_handlers_stay_when_it_connects(cluster: Cluster, client: str):
    directory = os.path.dirname(os.path.dirname(cluster.describe().nodes[0].data_dirs[0]))
    made = client.format(name=cluster.name, directory=directory)
    status, printed, told = outcome(cluster, HANDLES_SIGNALS, made)
    assert (status, printed.split()[1:]) == (0, ["True"]), told
    assert int(printed.split()[0]) > 30


def test_a_program_without_a_handler_ends_in_order_at_sigterm(cluster: Cluster):
    topic = new_topic(cluster)
    script = f"""
import os, signal, time, rayka
p = rayka.Producer({cluster.name!r}, linger_ms=60_000)
p.send({topic!r}, b'x')
os.kill(os.getpid(), signal.SIGTERM)
time.sleep(60)
"""
    assert outcome(cluster, script)[0] == signal.SIGTERM
    assert [each.value for each in rayka.read(topic, cluster=cluster)] == [b"x"]


def test_a_script_connects_whatever_is_on_its_command_line(cluster: Cluster):
    script = f"import sys, rayka; print(len(sys.argv), rayka.Cluster.connect({cluster.name!r}).name)"
    assert outcome(cluster, script, os.fsdecode(b"caf\xe9")) == (0, f"2 {cluster.name}\n", "")


def test_a_directory_that_ray_cannot_take_is_named(cluster: Cluster, tmp_path: Path):
    directory = tmp_path / os.fsdecode(b"caf\xe9")
    directory.mkdir()
    script = f"""
import rayka
try:
    rayka.Cluster.connect({cluster.name!r})
except rayka.errors.UnavailableError as error:
    print(error)
"""
    status, printed, told = outcome(cluster, script, directory=directory)
    assert (status, "in a directory whose path is no UTF-8" in printed, told) == (0, True, "")


def test_after_ray_shutdown_a_result_that_is_waited_for_in_vain_names_the_cause(cluster: Cluster):
    topic = new_topic(cluster)
    script = f"""
import ray, rayka
p = rayka.Producer({cluster.name!r})
p.send({topic!r}, b'x').result(60)
ray.shutdown()
try:
    p.send({topic!r}, b'y').result(timeout=5)
except TimeoutError as error:
    print(error)
rayka.Cluster.connect({cluster.name!r})
p.close()
"""
    status, printed, told = outcome(cluster, script)
    assert status == 0, told
    assert "the last error: this process is no longer connected to Ray" in printed
    assert [each.value for each in rayka.read(topic, cluster=cluster)] == [b"x", b"y"]
