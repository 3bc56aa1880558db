"""Readers that are not closed: whatever thread collects them, and when, nothing of them is left."""

import asyncio
import subprocess
import sys
from collections.abc import Iterator

import pytest

import rayka
import rayka.testing
from rayka import Consumer, Producer
from rayka.client import io_thread
from rayka.testing import InProcessCluster
from tests.testing.waiting import wait_until

_LEFT_OPEN = """
import rayka, rayka.testing
with rayka.testing.cluster() as cluster:
    with rayka.Admin(cluster) as admin:
        admin.create_topic("orders", partitions=1)
    with rayka.Producer(cluster) as producer:
        producer.send("orders", b"x")
        producer.send("orders", b"y")
    records = iter(rayka.read("orders", cluster=cluster))
    print(next(records).value)
"""
_IN_A_CHILD = """
    import os
    child = os.fork()
    if child == 0:
        del records
        os._exit(0)
    print(os.waitpid(child, 0)[1])
    records.close()
"""
_IN_GENERATORS = """
    def consumed():
        with rayka.Consumer("orders", cluster=cluster, auto_offset_reset="earliest") as consumer:
            yield from consumer
    def producing():
        with rayka.Producer(cluster) as producer:
            while True:
                producer.send("orders", (yield))
    consumed, producing = consumed(), producing()
    print(next(consumed).value, next(producing))
"""


@pytest.fixture(scope="module")
def cluster() -> Iterator[InProcessCluster]:
    with rayka.testing.cluster() as running:
        with rayka.Admin(cluster=running) as admin:
            admin.create_topic("orders", partitions=1)
        with Producer(cluster=running) as producer:
            producer.send("orders", b"x")
            producer.send("orders", b"y")
        yield running


def is_any_fetched() -> bool:
    """Whether a fetcher has a task on the loop."""

    async def names() -> list[str]:
        return [str(each.get_coro()) for each in asyncio.all_tasks()]

    return any("FetchLoop._run" in each for each in io_thread.run(names, 10))


@pytest.mark.parametrize(
    ("script", "printed"), [("", ""), (_IN_A_CHILD, "0\n"), (_IN_GENERATORS, "b'x' None\n")]
)
def test_a_client_in_a_generator_that_is_left_in_the_middle_ends_without_a_word_with_its_process(
    script, printed
):
    command = [sys.executable, "-W", "ignore", "-c", _LEFT_OPEN + script]
    done = subprocess.run(command, capture_output=True, text=True, timeout=240, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, f"b'x'\n{printed}", "")


def test_a_bounded_read_that_the_io_thread_collects_stops_fetching(cluster):
    left = [iter(rayka.read("orders", cluster=cluster))]
    assert next(left[0]).value == b"x"
    assert is_any_fetched()
    io_thread.call_soon(left.clear)
    wait_until(lambda: not is_any_fetched())


def test_a_consumer_cannot_be_closed_on_the_io_thread_and_is_open_after_the_attempt(cluster):
    refused: list[BaseException] = []
    with Consumer("orders", cluster=cluster, auto_offset_reset="earliest") as consumer:

        def close() -> None:
            with pytest.raises(RuntimeError, match="IO thread") as caught:
                consumer.close()
            refused.append(caught.value)

        io_thread.call_soon(close)
        wait_until(lambda: bool(refused))
        assert len(consumer.poll(10_000)) == 2
    assert not is_any_fetched()


@pytest.mark.filterwarnings("error")
def test_a_consumer_that_is_dropped_stops_fetching_where_warnings_are_errors(cluster, monkeypatch):
    raised: list[object] = []
    monkeypatch.setattr(sys, "unraisablehook", lambda told: raised.append(told.exc_value))
    consumer = Consumer("orders", cluster=cluster, auto_offset_reset="earliest")
    assert len(consumer.poll(10_000)) == 2
    del consumer
    wait_until(lambda: not is_any_fetched())
    assert [type(each) for each in raised] == [ResourceWarning]
