"""A forked child of a process that used rayka: refused at once, with the advice to spawn it, never left to hang."""

import subprocess
import sys

_WITHIN_S = 120  # a child that hangs would hang for ever

_PARENT = """
import os, signal, sys
import rayka
import rayka.testing
from tests.client.support import ScriptedCluster

def in_child(work):
    sys.stdout.flush()
    child = os.fork()
    if child == 0:
        signal.alarm(60)  # ends a child that hangs; one on a busy machine takes long to import Ray
        work()
        sys.stdout.flush()
        os._exit(0)
    print("child ended with", os.waitpid(child, 0)[1])

def said(call):
    try:
        return call()
    except rayka.errors.UnavailableError as error:
        return str(error)
"""


def printed(script: str) -> list[str]:
    """The lines that the script prints, and ends well."""
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", _PARENT + script],
        capture_output=True,
        text=True,
        timeout=_WITHIN_S,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, ""), done.stderr
    return done.stdout.splitlines()


def test_clients_of_the_parent_are_refused_in_a_forked_child_and_go_on_in_the_parent():
    lines = printed("""
cluster = ScriptedCluster({"orders": 1})
producer = rayka.Producer(cluster, linger_ms=60_000)
future = producer.send("orders", b"x")
producer.send("orders", b"y")  # the quick way is open
for _ in range(20):
    producer.send("orders", b"z", key=b"k")  # and that of keys
consumer, admin = rayka.Consumer(cluster=cluster), rayka.Admin(cluster)
def work():
    for call in (
        lambda: producer.send("orders", b"never"),
        lambda: producer.send("orders", b"never", key=b"k"),
        lambda: producer.send_batch("orders", [b"never"]),
        lambda: future.result(),
        lambda: producer.flush(),
        lambda: consumer.beginning_offsets([rayka.TopicPartition("orders", 0)]),
        lambda: admin.list_topics(),
    ):
        error = said(call)
        assert 'get_context("spawn")' in error and "rayka's IO thread" in error, error
    producer.close()  # nothing of it is here to be closed
    consumer.close()
in_child(work)
producer.close()
consumer.close()
print(cluster.values("orders", 0) == [b"x", b"y", *[b"z"] * 20])
""")
    assert lines == ["child ended with 0", "True"]


def test_new_clients_are_refused_in_a_forked_child_at_once():
    lines = printed("""
from rayka.client import io_thread
cluster = ScriptedCluster({"orders": 1})
io_thread.loop()
rayka.Cluster  # imports Ray, once
def work():
    for call in (
        lambda: rayka.Producer(cluster),
        lambda: rayka.Consumer("orders", cluster=cluster),
        lambda: rayka.Admin(cluster),
        lambda: rayka.read("orders", cluster=cluster),
        lambda: rayka.Producer("by name"),
        lambda: rayka.Cluster.connect("by name"),
        lambda: rayka.Cluster.start(name="another"),
        lambda: rayka.testing.cluster(),
    ):
        error = said(call)
        assert 'get_context("spawn")' in error, error
in_child(work)
""")
    assert lines == ["child ended with 0"]


def test_a_forked_child_leaves_the_parents_cluster_alone():
    lines = printed("""
with rayka.testing.cluster() as cluster:
    with rayka.Admin(cluster) as admin:
        admin.create_topic("orders")
    def work():
        cluster.__exit__(None, None, None)
    in_child(work)
    with rayka.Producer(cluster) as producer:
        print(producer.send("orders", b"x").result(60).offset)
""")
    assert lines == ["child ended with 0", "0"]


def test_a_child_of_a_process_that_used_nothing_is_free():
    lines = printed("""
def work():
    with rayka.Producer(ScriptedCluster(), linger_ms=0) as producer:
        print(producer.send("orders", b"x").result(60).offset)
in_child(work)
""")
    assert lines == ["0", "child ended with 0"]


def test_a_spawned_child_is_free():
    lines = printed("""
import multiprocessing
from rayka.client import io_thread
from tests.client.test_forks import send_in_child
io_thread.loop()
child = multiprocessing.get_context("spawn").Process(target=send_in_child)
child.start()
child.join()
print("child ended with", child.exitcode)
""")
    assert lines == ["0", "child ended with 0"]


def send_in_child() -> None:
    """What a spawned child does."""
    from rayka import Producer
    from tests.client.support import ScriptedCluster

    with Producer(ScriptedCluster(), linger_ms=0) as producer:
        print(producer.send("orders", b"x").result(60).offset, flush=True)


def test_a_connection_to_ray_is_known_to_be_the_parents():
    lines = printed("""
import types
class Ray(types.ModuleType):
    def is_initialized(self): return True
sys.modules["ray"] = Ray("ray")
in_child(lambda: print(said(lambda: rayka.Admin(ScriptedCluster()))))
rayka.Admin(ScriptedCluster())
""")
    assert "had a connection to Ray, which no fork takes along" in lines[0]
    assert lines[1] == "child ended with 0"
