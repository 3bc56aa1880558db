"""Synchronous calls end within their documented bound, also where nothing that they wait for ever ends."""

import asyncio
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from threading import Event
from typing import Any, NamedTuple

import pytest

import rayka
from rayka.client.io_thread import wait_for
from rayka.client.producer import producer as producer_module
from rayka.errors import UnavailableError
from rayka.ids import TopicPartition
from rayka.protocol.membership import MetadataRequest
from rayka.protocol.produce import InitProducerIdRequest
from tests.client.support import ScriptedCluster

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


class TalkativeCluster(ScriptedCluster):
    """Says which topics there are, and gives ids to producers; answers nothing else."""

    name = "deaf"

    async def call(self, node_id: int, request: Any, timeout_ms: int) -> Any:
        if not isinstance(request, (MetadataRequest, InitProducerIdRequest)):
            await asyncio.Event().wait()
        return await super().call(node_id, request, timeout_ms)


ADMIN: dict[str, Callable[[rayka.Admin], object]] = {
    "create_topic": lambda admin: admin.create_topic("words"),
    "delete_topic": lambda admin: admin.delete_topic("words"),
    "list_topics": lambda admin: admin.list_topics(),
    "describe_topic": lambda admin: admin.describe_topic("words"),
    "describe_topics": lambda admin: admin.describe_topics(),
    "create_partitions": lambda admin: admin.create_partitions("words", 2),
    "delete_records": lambda admin: admin.delete_records({_TP: 1}),
    "describe_configs": lambda admin: admin.describe_configs(topic="words"),
    "alter_configs": lambda admin: admin.alter_configs({"flush.ms": 1}, topic="words"),
    "alter_partition_reassignments": lambda admin: admin.alter_partition_reassignments({_TP: [1]}),
    "list_partition_reassignments": lambda admin: admin.list_partition_reassignments(),
    "elect_leaders": lambda admin: admin.elect_leaders(),
    "describe_cluster": lambda admin: admin.describe_cluster(),
    "log_dirs": lambda admin: admin.log_dirs(),
    "alter_replica_log_dirs": lambda admin: admin.alter_replica_log_dirs(1, {_TP: "/two"}),
    "balance": lambda admin: admin.balance(dry_run=True),
    "describe_load": lambda admin: admin.describe_load(),
    "describe_balance": lambda admin: admin.describe_balance(),
    "cancel_balance": lambda admin: admin.cancel_balance(),
    "describe_drains": lambda admin: admin.describe_drains(),
    "cancel_drain": lambda admin: admin.cancel_drain(1),
    "events": lambda admin: admin.events(),
    "drain_broker": lambda admin: admin.drain_broker(1),
    "unregister_broker": lambda admin: admin.unregister_broker(1),
    "describe_quorum": lambda admin: admin.describe_quorum(),
    "add_raft_voter": lambda admin: admin.add_raft_voter(3001),
    "remove_raft_voter": lambda admin: admin.remove_raft_voter(3001),
    "list_groups": lambda admin: admin.list_groups(),
    "describe_group": lambda admin: admin.describe_group("readers"),
    "delete_group": lambda admin: admin.delete_group("readers"),
    "group_offsets": lambda admin: admin.group_offsets("readers"),
    "reset_group_offsets": lambda admin: admin.reset_group_offsets("readers", to="earliest"),
}
CONSUMER: dict[str, Callable[[rayka.Consumer], object]] = {
    "subscribe": lambda consumer: consumer.subscribe("words"),
    "assign": lambda consumer: consumer.assign([_TP]),
    "beginning_offsets": lambda consumer: consumer.beginning_offsets([_TP]),
    "end_offsets": lambda consumer: consumer.end_offsets([_TP]),
    "offsets_for_times": lambda consumer: consumer.offsets_for_times({_TP: 1}),
    "committed": lambda consumer: consumer.committed([_TP]),
}
ASSIGNED: dict[str, Callable[[rayka.Consumer], object]] = {
    "poll": lambda consumer: consumer.poll(60_000),
    "poll_arrow": lambda consumer: consumer.poll_arrow(60_000),
    "position": lambda consumer: consumer.position(_TP),
    "lag": lambda consumer: consumer.lag(_TP),
    "commit": lambda consumer: consumer.commit({_TP: 1}),
}
PRODUCER: dict[str, Callable[[rayka.Producer], object]] = {
    "send": lambda producer: producer.send("words", b"one"),
    "send_batch": lambda producer: producer.send_batch("words", [b"one"]),
}
# They ask no node, or do not wait for its answer.
AT_ONCE = {
    rayka.Admin: {"close"},
    rayka.Consumer: {
        *("assignment", "subscription", "paused", "group_metadata"),
        *("pause", "resume", "commit_async"),
        *("seek", "seek_to_beginning", "seek_to_end", "seek_to_timestamp"),
    },
    rayka.Producer: {"metrics"},
}


def as_admin(act: Callable[[rayka.Admin], object]) -> Callable[[], object]:
    return lambda: act(rayka.Admin(cluster=DeafCluster(), **_SHORT))


def as_consumer(act: Callable[[rayka.Consumer], object]) -> Callable[[], object]:
    def make_and_act() -> None:
        with rayka.Consumer(cluster=DeafCluster(), group_id="readers", **_SHORT) as consumer:
            act(consumer)

    return make_and_act


def as_assigned(act: Callable[[rayka.Consumer], object]) -> Callable[[], object]:
    def make_and_act() -> None:
        cluster = TalkativeCluster({"words": 1})
        with rayka.Consumer(cluster=cluster, group_id="readers", **_SHORT) as consumer:
            consumer.assign([_TP])
            act(consumer)

    return make_and_act


def as_producer(act: Callable[[rayka.Producer], object]) -> Callable[[], object]:
    def make_and_act() -> None:
        with rayka.Producer(cluster=DeafCluster(), max_block_ms=100) as producer:
            act(producer)

    return make_and_act


CALLS = {
    **{f"Admin.{name}": as_admin(act) for name, act in ADMIN.items()},
    **{f"Consumer.{name}": as_consumer(act) for name, act in CONSUMER.items()},
    **{f"Consumer.{name}": as_assigned(act) for name, act in ASSIGNED.items()},
    **{f"Producer.{name}": as_producer(act) for name, act in PRODUCER.items()},
    "read": lambda: rayka.read("words", cluster=DeafCluster(), **_SHORT),
}


def unsubscribe() -> None:
    with member() as consumer:
        consumer.unsubscribe()


def close_consumer() -> None:
    member().close()


def member() -> rayka.Consumer:
    """One of a group whose coordinator is never found."""
    cluster = TalkativeCluster({"words": 1})
    return rayka.Consumer("words", cluster=cluster, group_id="readers", **_SHORT)


def flush() -> None:
    producer = sending()
    with pytest.raises(TimeoutError, match="1 records not acknowledged"):
        producer.flush()
    with pytest.raises(TimeoutError):
        producer.close()


def close_producer() -> None:
    with pytest.raises(TimeoutError, match="1 records not acknowledged"):
        sending().close()


def sending() -> rayka.Producer:
    """A producer with a record in a request that never ends."""
    options: dict[str, Any] = {"delivery_timeout_ms": 100, "request_timeout_ms": 50, "linger_ms": 0}
    producer = rayka.Producer(cluster=TalkativeCluster({"words": 1}), **options)
    producer.send("words", b"one", partition=0)
    return producer


ENDS = {
    "Consumer.unsubscribe": unsubscribe,
    "Consumer.close": close_consumer,
    "Producer.flush": flush,
    "Producer.close": close_producer,
}


class Outcome(NamedTuple):
    error: BaseException | None
    took_s: float


@pytest.fixture(scope="module")
def outcomes() -> dict[str, Outcome]:
    """What became of each call, and how long it took; all at once, as all of them wait."""
    calls: dict[str, Callable[[], object]] = {**CALLS, **ENDS}

    def act(name: str) -> Outcome:
        began_s = time.monotonic()
        try:
            calls[name]()
        except Exception as error:
            return Outcome(error, time.monotonic() - began_s)
        return Outcome(None, time.monotonic() - began_s)

    with pytest.MonkeyPatch.context() as patched, ThreadPoolExecutor(len(calls)) as threads:
        patched.setattr(producer_module, "CLOSE_SLACK_S", 1.0)  # of ten
        return dict(zip(calls, threads.map(act, calls, timeout=60), strict=True))


@pytest.mark.parametrize("name", CALLS)
def test_a_call_whose_answer_never_comes_raises_unavailable_error_in_time(
    outcomes: dict[str, Outcome], name: str
) -> None:
    error, took_s = outcomes[name]
    assert isinstance(error, UnavailableError), repr(error)
    assert "'deaf'" in str(error) or "cluster=deaf" in str(error), error
    assert took_s < 30  # of no end; one second on a quiet machine


@pytest.mark.parametrize("name", ENDS)
def test_what_ends_something_ends_in_time_without_an_answer(outcomes: dict[str, Outcome], name: str) -> None:
    error, took_s = outcomes[name]
    assert error is None
    assert took_s < 30


@pytest.mark.parametrize("kind", AT_ONCE)
def test_each_method_is_among_the_calls_or_does_not_wait(kind: type) -> None:
    waiting = {name.partition(".")[2] for name in {**CALLS, **ENDS} if name.startswith(f"{kind.__name__}.")}
    assert waiting.isdisjoint(AT_ONCE[kind])
    assert waiting | AT_ONCE[kind] == {name for name in dir(kind) if not name.startswith("_")}


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
import os
import signal
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from rayka.client.io_thread import wait_for
from rayka.client.producer import producer as producer_module
nap = partial(asyncio.sleep, 0.5)
with ThreadPoolExecutor(20) as pool:
    waits = [pool.submit(lambda: wait_for(nap, 500, caller="test")) for _ in range(20)]
    os.kill(os.getpid(), signal.SIGSTOP)
print([str(each.exception()) for each in waits if each.exception()])
"""
    waiting = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True)
    with waiting:
        assert waiting.stdout is not None
        os.waitpid(waiting.pid, os.WUNTRACED)
        with pytest.raises(subprocess.TimeoutExpired):
            waiting.wait(2)  # longer than the bound, and its slack
        waiting.send_signal(signal.SIGCONT)
        assert waiting.stdout.read() == "[]\n"
