"""Scripts of users on a real Ray: how they end, and the error in their forked children."""

import os
import subprocess
import sys
from itertools import count

import pytest

import rayka
from rayka import Admin, Cluster

pytestmark = pytest.mark.ray
_numbers = count()


def outcome(cluster: Cluster, script: str) -> tuple[int, str, str]:
    """Exit status, standard output and standard error of a script that has the Ray of the cluster as its own."""
    done = subprocess.run(
        [sys.executable, "-c", script],
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
        env={**os.environ, "RAY_ADDRESS": cluster.ray_address},
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
