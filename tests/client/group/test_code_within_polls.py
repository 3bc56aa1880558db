"""The application's code that runs within a poll of a group: it closes the consumer, or does not return (E4, E6).

Each test walks over all such code, of the sync and of the async consumer.
"""

import asyncio
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

import pytest

import rayka
import rayka.testing
from rayka import Consumer, Record, aio
from rayka.client import io_thread
from rayka.errors import ClosedError
from rayka.protocol.groups import JoinGroupRequest, LeaveGroupRequest, LeavingMember, SyncGroupRequest
from rayka.testing import InProcessCluster
from tests.client.group.consumer_support import QUICK, Told, new_topic, poll_until, send
from tests.testing.waiting import WAIT_S, wait_until

CALLBACKS = ("on_assign", "on_revoke", "on_lost")
HOOKS = (*CALLBACKS, "deserializer", "on_consume")
_OF_GROUPS = (JoinGroupRequest, SyncGroupRequest, LeaveGroupRequest)


@pytest.fixture(scope="module")
def cluster() -> Iterator[InProcessCluster]:
    with rayka.testing.cluster(config=QUICK) as running:
        yield running


@pytest.fixture
def topic(cluster: InProcessCluster) -> str:
    return new_topic(cluster)


class Recorded:
    """The cluster to one consumer; `sent` are the requests by which it joins and leaves, by name."""

    def __init__(self, cluster: InProcessCluster) -> None:
        self.name = cluster.name
        self.sent: list[str] = []
        self._network = cluster.network()
        self.node_ids = self._network.node_ids

    def network(self, transport: str = "auto") -> "Recorded":
        return self

    def call(self, node_id: int, request: Any, timeout_ms: int) -> Any:
        if isinstance(request, _OF_GROUPS):
            self.sent.append(type(request).__name__)
        return self._network.call(node_id, request, timeout_ms)


class Hook:
    """What runs in one of the places where a poll runs code of the application, once."""

    def __init__(self, name: str, act: Callable[[], object]) -> None:
        self.name = name
        self.has_begun = False
        self.assigned = threading.Event()
        self._act = act

    def __call__(self, name: str) -> object:
        """Awaitable where the act is."""
        if name == "on_assign":
            self.assigned.set()
        if name != self.name or self.has_begun:
            return None
        self.has_begun = True
        return self._act()

    def options(self) -> dict[str, Any]:
        def deserialize(data: bytes) -> bytes:
            self("deserializer")
            return data

        return {
            "value_deserializer": deserialize,
            "interceptors": [self],
            "auto_offset_reset": "earliest",
            "heartbeat_interval_ms": 50,
            "partition_assignment_strategy": "range",
        }

    def callbacks(self) -> dict[str, Any]:
        return {name: lambda _, name=name: self(name) for name in CALLBACKS}

    def on_consume(self, records: list[Record]) -> list[Record]:
        self("on_consume")
        return records


def provoke(cluster: InProcessCluster, topic: str, hook: Hook, other: Told) -> None:
    """Has the poll of the group's only member run the hook, by and by: `other` joins, where it takes another one."""
    assert hook.assigned.wait(WAIT_S)
    if hook.name == "on_revoke":
        other.subscribe(topic)
        other.poll(0)
    elif hook.name == "on_lost":
        with rayka.Admin(cluster=cluster) as admin:
            (member,) = admin.describe_group(topic).members
        leave = LeaveGroupRequest(topic, (LeavingMember(member.member_id),))
        io_thread.run(partial(_call, cluster, leave), WAIT_S)
    else:
        send(cluster, topic)


async def _call(cluster: InProcessCluster, request: Any) -> Any:
    return await cluster.network().call(1, request, 60_000)


def poll(consumer: Consumer, is_over: threading.Event | None = None) -> None:
    while is_over is None or not is_over.is_set():
        consumer.poll(20)


async def poll_async(consumer: Any) -> None:
    while True:
        await consumer.poll(20)


def member_count(cluster: InProcessCluster, group_id: str) -> int:
    with rayka.Admin(cluster=cluster) as admin:
        return len(admin.describe_group(group_id).members)


# ---- It closes the consumer ------------------------------------------------------------------------------------------


def check_has_left(cluster: InProcessCluster, recorded: Recorded, topic: str, other: Told) -> None:
    io_thread.wait_for_turn(WAIT_S)
    if "LeaveGroupRequest" in recorded.sent:  # its place was not lost before
        assert recorded.sent[-1] == "LeaveGroupRequest"
    other.consumer.close()
    wait_until(lambda: member_count(cluster, topic) == 0)


@pytest.mark.parametrize("name", HOOKS)
def test_a_consumer_that_is_closed_within_its_poll_leaves_and_sends_nothing_more(
    cluster: InProcessCluster, topic: str, name: str
) -> None:
    recorded, other = Recorded(cluster), Told(cluster, topic)
    made: list[Consumer] = []
    hook = Hook(name, lambda: [each.close() for each in made])
    made.append(Consumer(cluster=recorded, group_id=topic, **hook.options()))  # type: ignore[arg-type]
    made[0].subscribe(topic, **hook.callbacks())
    with ThreadPoolExecutor(1) as pool:
        polling = pool.submit(poll, made[0])
        provoke(cluster, topic, hook, other)
        with pytest.raises(ClosedError):
            polling.result(WAIT_S)
    check_has_left(cluster, recorded, topic, other)


@pytest.mark.parametrize("name", CALLBACKS)
def test_an_async_consumer_that_is_closed_in_a_callback_leaves_and_sends_nothing_more(
    cluster: InProcessCluster, topic: str, name: str
) -> None:
    recorded, other = Recorded(cluster), Told(cluster, topic)

    async def main() -> None:
        made: list[Any] = []
        hook = Hook(name, lambda: next(iter(made)).close())
        made.append(aio.Consumer(cluster=recorded, group_id=topic, **hook.options()))  # type: ignore[arg-type]
        await made[0].subscribe(topic, **hook.callbacks())
        polling = asyncio.create_task(poll_async(made[0]))
        await asyncio.to_thread(provoke, cluster, topic, hook, other)
        with pytest.raises(ClosedError):
            await polling

    asyncio.run(main())
    check_has_left(cluster, recorded, topic, other)


@pytest.mark.parametrize("name", CALLBACKS)
def test_an_async_consumer_that_another_task_closes_while_a_callback_runs_leaves_and_sends_nothing_more(
    cluster: InProcessCluster, topic: str, name: str
) -> None:
    recorded, other = Recorded(cluster), Told(cluster, topic)

    async def main() -> None:
        begun, closed = asyncio.Event(), asyncio.Event()

        async def last() -> None:
            begun.set()
            await closed.wait()

        hook = Hook(name, last)
        consumer: Any = aio.Consumer(cluster=recorded, group_id=topic, **hook.options())  # type: ignore[arg-type]
        await consumer.subscribe(topic, **hook.callbacks())
        polling = asyncio.create_task(poll_async(consumer))
        await asyncio.to_thread(provoke, cluster, topic, hook, other)
        await begun.wait()
        await consumer.close()
        closed.set()
        with pytest.raises((ClosedError, RuntimeError)):  # the callback may have been cut off
            await polling

    asyncio.run(main())
    check_has_left(cluster, recorded, topic, other)


@pytest.mark.parametrize("name", HOOKS)
def test_a_consumer_that_another_thread_closes_while_code_of_its_poll_runs_leaves_and_sends_nothing_more(
    cluster: InProcessCluster, topic: str, name: str
) -> None:
    recorded, other = Recorded(cluster), Told(cluster, topic)
    closed = threading.Event()
    hook = Hook(name, lambda: closed.wait(WAIT_S))
    consumer: Consumer = Consumer(cluster=recorded, group_id=topic, **hook.options())  # type: ignore[arg-type]
    consumer.subscribe(topic, **hook.callbacks())

    with ThreadPoolExecutor(1) as pool:
        polling = pool.submit(poll, consumer)
        provoke(cluster, topic, hook, other)
        wait_until(lambda: hook.has_begun)
        consumer.close()  # which waits five seconds for the poll to end
        closed.set()
        with pytest.raises(ClosedError):
            polling.result(WAIT_S)
    check_has_left(cluster, recorded, topic, other)


def test_a_poll_beside_a_close_of_another_thread_says_that_it_is_closed(
    cluster: InProcessCluster, topic: str
) -> None:
    closing, released = threading.Event(), threading.Event()

    def on_revoke(partitions: object) -> None:
        closing.set()
        released.wait(WAIT_S)

    made = Told(cluster, topic)
    made.consumer.subscribe(topic, on_revoke=on_revoke)
    poll_until(lambda: made.owned == [0, 1, 2, 3], made)
    with ThreadPoolExecutor(1) as pool:
        closed = pool.submit(made.consumer.close)
        assert closing.wait(WAIT_S)
        with pytest.raises(ClosedError):
            made.consumer.poll(0)
        released.set()
        closed.result(WAIT_S)


# ---- It does not return ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", HOOKS)
def test_a_member_whose_code_does_not_return_within_its_poll_gives_its_partitions_up_and_joins_again(
    cluster: InProcessCluster, topic: str, name: str
) -> None:  # E4 E6
    other, released, is_over = Told(cluster, topic), threading.Event(), threading.Event()
    hook = Hook(name, lambda: released.wait(WAIT_S))
    options = {"group_id": topic, "max_poll_interval_ms": 1_000, **hook.options()}
    consumer: Consumer = Consumer(cluster=cluster, **options)
    consumer.subscribe(topic, **hook.callbacks())
    with ThreadPoolExecutor(1) as pool:
        polling = pool.submit(poll, consumer, is_over)
        provoke(cluster, topic, hook, other)
        wait_until(lambda: hook.has_begun)
        if not other.consumer.subscription():
            other.subscribe(topic)
        poll_until(lambda: other.owned == [0, 1, 2, 3], other)  # while the first one hangs
        released.set()
        poll_until(lambda: len(other.owned) == 2 or polling.done(), other)
        is_over.set()
        polling.result(WAIT_S)
    for each in (consumer, other.consumer):
        each.close()


@pytest.mark.parametrize("name", ["deserializer", "on_consume"])
def test_an_async_member_whose_code_does_not_return_gives_its_partitions_up(
    cluster: InProcessCluster, topic: str, name: str
) -> None:  # E4 E6; a callback is cut off after the interval (`CallThread`)
    other, released = Told(cluster, topic), threading.Event()
    hook = Hook(name, lambda: released.wait(WAIT_S))
    options = {"group_id": topic, "max_poll_interval_ms": 1_000, **hook.options()}

    async def main() -> None:
        async with aio.Consumer(topic, cluster=cluster, **options) as consumer:  # type: ignore[var-annotated]
            while not hook.has_begun:
                await consumer.poll(20)

    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(asyncio.run, main())
        send(cluster, topic)
        wait_until(lambda: hook.has_begun)
        other.subscribe(topic)
        poll_until(lambda: other.owned == [0, 1, 2, 3], other)
        released.set()
        running.result(WAIT_S)
    other.consumer.close()


def test_a_poll_that_waits_for_longer_than_the_interval_keeps_its_place(
    cluster: InProcessCluster, topic: str
) -> None:  # E6
    made = Told(cluster, topic, topic=topic, max_poll_interval_ms=500)
    poll_until(lambda: made.owned == [0, 1, 2, 3], made)
    made.poll(1_500)
    assert made.told == ["assigned 0 1 2 3"]
    made.consumer.close()
