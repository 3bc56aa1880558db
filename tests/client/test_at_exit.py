"""The end of the interpreter, for producers that were not closed."""

import subprocess
import sys
import time

import pytest

from rayka import Producer
from rayka.errors import ErrorCode
from tests.client.support import ScriptedCluster

_SCRIPT = """
import atexit, os, sys, threading
from tests.client.support import ScriptedCluster
import rayka
cluster = ScriptedCluster({"orders": 1, "flights": 1})
atexit.register(lambda: print(cluster.values("orders", 0)))
producer = rayka.Producer(cluster, linger_ms=60_000, delivery_timeout_ms=120_000)
"""
_CUT_OFF = """
producer.send("orders", b"x")
producer.send("flights", b"x")
producer.send("flights", b"y")
cluster.is_down = True
"""


def run(script: str, *options: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *options, "-c", script], capture_output=True, text=True, timeout=240, check=False
    )


def outcome(script: str, *options: str) -> tuple[int, str, str]:
    done = run(_SCRIPT + script, *options)
    return done.returncode, done.stdout, done.stderr


def test_what_was_sent_is_delivered_though_nothing_was_closed():
    assert outcome("producer.send('orders', b'x')") == (0, "[b'x']\n", "")


def test_what_a_dropped_producer_has_left_is_delivered():
    assert outcome("producer.send('orders', b'x')\ndel producer", "-W", "ignore") == (0, "[b'x']\n", "")


def test_executors_still_work_while_records_are_flushed():
    script = """
import asyncio
async def call(node_id, request, timeout_ms, call=cluster.call):  # as looking up a node does
    await asyncio.get_running_loop().run_in_executor(None, id, None)
    return await call(node_id, request, timeout_ms)
cluster.call = call
producer.send('orders', b'x')
"""
    assert outcome(script) == (0, "[b'x']\n", "")


def test_a_thread_that_outlives_the_main_thread_can_begin_to_use_clients():
    script = """
import asyncio, time
async def call(node_id, request, timeout_ms, call=cluster.call):  # as looking up a node does
    await asyncio.get_running_loop().run_in_executor(None, time.sleep, 0)
    return await call(node_id, request, timeout_ms)
cluster.call = call
def work():
    threading.main_thread().join()
    with rayka.Producer(cluster, linger_ms=0) as another:
        print(another.send('orders', b'x').exception())
threading.Thread(target=work).start()
"""
    assert outcome(script) == (0, "None\n[b'x']\n", "")


def test_what_another_thread_sends_after_the_main_thread_is_delivered():
    script = """
def work():
    threading.main_thread().join()
    producer.send('orders', b'late')
threading.Thread(target=work).start()
producer.send('orders', b'x')
"""
    assert outcome(script) == (0, "[b'x', b'late']\n", "")


def test_what_was_not_delivered_is_told_once_with_an_exit_status():
    status, _, told = outcome(_CUT_OFF)
    assert status == 120
    (line,) = told.splitlines()
    assert "rayka: 3 records sent to cluster 'scripted' were not acknowledged" in line
    assert "1 for topic 'orders', 2 for topic 'flights' (NetworkException: node 1 is down)" in line


def test_a_cluster_that_never_answers_holds_up_the_end_for_the_bound_only():
    began_s = time.monotonic()
    status, _, told = outcome("producer.send('orders', b'x')\ncluster.hold()")
    assert time.monotonic() - began_s < 40  # of 120 s until the delivery would fail; the bound is 5 s
    assert (status, told.count("\n")) == (120, 1)
    assert "1 record sent to cluster 'scripted' was not acknowledged" in told
    assert "(no answer yet)" in told


@pytest.mark.parametrize(
    ("end", "status"),
    [("", 120), ("sys.exit(0)", 120), ("sys.exit(3)", 120), ("1 / 0", 1)],
)
def test_lost_records_make_a_status_of_120_unless_an_exception_ended_the_script(end: str, status: int):
    refused = """
from rayka.errors import ErrorCode
cluster.answers.append(ErrorCode.MESSAGE_TOO_LARGE)
producer.send('orders', b'x')
"""
    done = run(_SCRIPT + refused + end)
    assert done.returncode == status
    (told,) = (line for line in done.stderr.splitlines() if line.startswith("rayka: "))
    assert "1 record sent to cluster 'scripted' was not acknowledged" in told
    assert "(RecordTooLarge: " in told
    assert end or done.stderr.count("\n") == 1


def test_lost_records_make_the_status_also_where_standard_error_was_closed():
    assert outcome(_CUT_OFF + "sys.stderr.close()") == (120, "[]\n", "")


def test_an_atexit_callback_may_close_with_more_patience():
    script = """
atexit.register(lambda: (cluster.release(), producer.close(20)))
producer.send('orders', b'x')
cluster.hold()
"""
    assert outcome(script) == (0, "[b'x']\n", "")


def test_files_and_callbacks_of_others_end_as_ever():
    script = """
import tempfile
directory = tempfile.TemporaryDirectory()
atexit.register(lambda: print("theirs", flush=True))
sys.stdout.write("no newline, no flush ")
producer.send('orders', b'x')
from rayka.errors import ErrorCode
cluster.answers.append(ErrorCode.MESSAGE_TOO_LARGE)
"""
    status, printed, _ = outcome(script, "-W", "ignore")
    assert (status, printed) == (120, "no newline, no flush theirs\n[]\n")


def test_a_forked_child_flushes_nothing_of_its_parents():
    script = """
producer.send('orders', b'x')
sys.stdout.flush()
if os.fork() == 0:
    sys.exit(0)
print("child ended with", os.wait()[1], flush=True)
"""
    status, printed, told = outcome(script, "-W", "ignore")
    assert (status, told) == (0, "")
    assert printed.splitlines() == ["[]", "child ended with 0", "[b'x']"]


def test_a_forked_child_is_refused_a_record_for_a_batch_that_its_parent_has_open():
    script = """
producer.send('orders', b'x')
producer.send('orders', b'y')  # into the same batch
sys.stdout.flush()
if os.fork() == 0:
    try:
        producer.send('orders', b'never')
    except rayka.errors.UnavailableError as error:
        print("refused", flush=True)
    os._exit(0)
os.wait()
"""
    _, printed, _ = outcome(script, "-W", "ignore")
    assert printed.splitlines() == ["refused", "[b'x', b'y']"]


_PARENT = """
import multiprocessing
from tests.client.test_at_exit import send_and_end
child = multiprocessing.get_context({method!r}).Process(target=send_and_end, args=({is_refused},))
child.start()
child.join()
print("child ended with", child.exitcode)
"""


def send_and_end(is_refused: bool) -> None:
    """What the child does."""
    cluster = ScriptedCluster({"orders": 1})
    producer = _kept.setdefault("producer", Producer(cluster, linger_ms=60_000))
    if is_refused:
        cluster.answers.append(ErrorCode.MESSAGE_TOO_LARGE)
    producer.send("orders", b"x", on_delivery=lambda error, _: print(error or "sent", flush=True))


_kept: dict[str, Producer] = {}


@pytest.mark.parametrize("method", ["spawn", "fork", "forkserver"])
def test_a_child_of_multiprocessing_flushes_what_it_sent(method: str):
    done = run(_PARENT.format(method=method, is_refused=False))
    assert (done.stdout, done.stderr) == ("sent\nchild ended with 0\n", "")


@pytest.mark.parametrize(("method", "status"), [("spawn", 120), ("fork", 0)])
def test_a_child_of_multiprocessing_tells_what_was_not_delivered(method: str, status: int):
    done = run(_PARENT.format(method=method, is_refused=True))
    assert done.stdout.endswith(f"child ended with {status}\n")
    assert done.stderr.count("was not acknowledged") == done.stderr.count("\n") == 1
