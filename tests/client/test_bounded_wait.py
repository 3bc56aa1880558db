"""Synchronous calls end within their documented bound, also where nothing that they wait for ever ends."""

import asyncio
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from threading import Event
from typing import Any

import pytest

import rayka
from rayka.client.bounded_wait import wait_for
from rayka.errors import UnavailableError
from rayka.ids import TopicPartition

_TP = TopicPartition("words", 0)
_SHORT = {"default_api_timeout_ms": 100, "request_timeout_ms": 50}


class DeafNetwork:
    """Keeps every caller waiting beyond its timeout, as a call of Ray that never answers."""

    async def call(self, node_id: int, request: Any, timeout_ms: int) -> Any:
        await asyncio.Event().wait()

    async def node_ids(self) -> Sequence[int]:
        await asyncio.Event().wait()
        return []


class DeafCluster:
    name = "deaf"

    def network(self, transport: str = "auto") -> DeafNetwork:
        return DeafNetwork()


def as_admin(act: Callable[[rayka.Admin], object]) -> Callable[[], object]:
    return lambda: act(rayka.Admin(cluster=DeafCluster(), **_SHORT))


def as_consumer(act: Callable[[rayka.Consumer], object]) -> Callable[[], object]:
    def make_and_act() -> None:
        with rayka.Consumer(cluster=DeafCluster(), **_SHORT) as consumer:
            act(consumer)

    return make_and_act


def as_producer(act: Callable[[rayka.Producer], object]) -> Callable[[], object]:
    def make_and_act() -> None:
        with rayka.Producer(cluster=DeafCluster(), max_block_ms=100) as producer:
            act(producer)

    return make_and_act


CALLS = {
    "create_topic": as_admin(lambda admin: admin.create_topic("words")),
    "delete_topic": as_admin(lambda admin: admin.delete_topic("words")),
    "list_topics": as_admin(lambda admin: admin.list_topics()),
    "describe_topics": as_admin(lambda admin: admin.describe_topics()),
    "create_partitions": as_admin(lambda admin: admin.create_partitions("words", 2)),
    "delete_records": as_admin(lambda admin: admin.delete_records({_TP: 1})),
    "describe_configs": as_admin(lambda admin: admin.describe_configs(topic="words")),
    "alter_configs": as_admin(lambda admin: admin.alter_configs({"flush.ms": 1}, topic="words")),
    "reassign": as_admin(lambda admin: admin.alter_partition_reassignments({_TP: [1]})),
    "reassignments": as_admin(lambda admin: admin.list_partition_reassignments()),
    "elect_leaders": as_admin(lambda admin: admin.elect_leaders()),
    "describe_cluster": as_admin(lambda admin: admin.describe_cluster()),
    "log_dirs": as_admin(lambda admin: admin.log_dirs()),
    "alter_replica_log_dirs": as_admin(lambda admin: admin.alter_replica_log_dirs(1, {_TP: "/two"})),
    "balance": as_admin(lambda admin: admin.balance(dry_run=True)),
    "describe_load": as_admin(lambda admin: admin.describe_load()),
    "describe_balance": as_admin(lambda admin: admin.describe_balance()),
    "cancel_balance": as_admin(lambda admin: admin.cancel_balance()),
    "events": as_admin(lambda admin: admin.events()),
    "unregister_broker": as_admin(lambda admin: admin.unregister_broker(1)),
    "describe_quorum": as_admin(lambda admin: admin.describe_quorum()),
    "add_raft_voter": as_admin(lambda admin: admin.add_raft_voter(3001)),
    "remove_raft_voter": as_admin(lambda admin: admin.remove_raft_voter(3001)),
    "subscribe": lambda: rayka.Consumer("words", cluster=DeafCluster(), **_SHORT),
    "assign": as_consumer(lambda consumer: consumer.assign([_TP])),
    "beginning_offsets": as_consumer(lambda consumer: consumer.beginning_offsets([_TP])),
    "end_offsets": as_consumer(lambda consumer: consumer.end_offsets([_TP])),
    "read": lambda: rayka.read("words", cluster=DeafCluster(), **_SHORT),
    "send": as_producer(lambda producer: producer.send("words", b"one")),
    "send_batch": as_producer(lambda producer: producer.send_batch("words", [b"one"])),
}


@pytest.fixture(scope="module")
def outcomes() -> dict[str, tuple[BaseException | None, float]]:
    """What became of each call, and how long it took; all at once, as all of them wait."""

    def act(name: str) -> tuple[BaseException | None, float]:
        began_s = time.monotonic()
        try:
            CALLS[name]()
        except Exception as error:
            return error, time.monotonic() - began_s
        return None, time.monotonic() - began_s

    with ThreadPoolExecutor(len(CALLS)) as threads:
        return dict(zip(CALLS, threads.map(act, CALLS, timeout=60), strict=True))


@pytest.mark.parametrize("name", CALLS)
def test_a_call_whose_answer_never_comes_raises_unavailable_error_in_time(
    outcomes: dict[str, tuple[BaseException | None, float]], name: str
) -> None:
    error, took_s = outcomes[name]
    assert isinstance(error, UnavailableError), repr(error)
    assert "'deaf'" in str(error) or "cluster=deaf" in str(error), error
    assert took_s < 30  # of no end; one second on a quiet machine


def test_a_wait_ends_at_its_bound_and_its_slack_though_the_answer_comes_later() -> None:
    was_cancelled = Event()

    async def answer() -> int:
        try:
            await asyncio.sleep(8)
        except asyncio.CancelledError:
            was_cancelled.set()
            raise
        return 1

    with pytest.raises(UnavailableError, match=r"^a test: answer did not end within 200 ms"):
        wait_for(answer, 200, caller="a test", slack_s=0.01)
    assert was_cancelled.wait(60)


def test_a_process_that_was_stopped_takes_no_wait_for_too_long_when_it_goes_on():
    script = """
import asyncio
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from rayka.client.bounded_wait import wait_for
nap = partial(asyncio.sleep, 0.5)
with ThreadPoolExecutor(20) as pool:
    waits = [pool.submit(lambda: wait_for(nap, 500, caller="test")) for _ in range(20)]
    print("waiting", flush=True)
print([str(each.exception()) for each in waits if each.exception()])
"""
    waiting = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True)
    with waiting:
        assert waiting.stdout is not None
        assert waiting.stdout.readline() == "waiting\n"
        waiting.send_signal(signal.SIGSTOP)
        with pytest.raises(subprocess.TimeoutExpired):
            waiting.wait(2)  # longer than the bound, and its slack
        waiting.send_signal(signal.SIGCONT)
        assert waiting.stdout.read() == "[]\n"
