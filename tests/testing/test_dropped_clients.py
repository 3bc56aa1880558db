"""Clients that are dropped without `close`: nothing refers to one then but its user, so each ends at once, and a member
leaves its group (E6). Python's collection of cycles is off.
"""

import asyncio
import gc
import weakref
from collections.abc import Callable, Iterator
from contextlib import suppress
from itertools import count, islice
from typing import Any

import pytest

import rayka
import rayka.testing
from rayka import Admin, Consumer, Producer, TopicPartition, aio
from rayka.errors import RaykaError
from rayka.testing import InProcessCluster
from tests.client.group.consumer_support import QUICK
from tests.testing.waiting import WAIT_S, wait_until

_groups = (f"group-{number}" for number in count())


@pytest.fixture(scope="module")
def cluster() -> Iterator[InProcessCluster]:
    with rayka.testing.cluster(config=QUICK) as running:
        with Admin(cluster=running) as admin:
            admin.create_topic("orders", partitions=2)
        with Producer(cluster=running) as producer:
            for number in range(10):
                producer.send("orders", b"%d" % number, partition=number % 2)
        yield running


@pytest.fixture(autouse=True)
def _without_collections() -> Iterator[None]:
    gc.collect()
    gc.disable()
    yield
    gc.enable()


# ---- Members of a group ----------------------------------------------------------------------------------------------


def raise_it(*_: Any) -> None:
    raise LookupError("the application's own")


def poll(consumer: Consumer) -> None:
    while not consumer.poll(100):
        pass


def poll_arrow(consumer: Consumer) -> None:
    while consumer.poll_arrow(100) is None:
        pass


def iterate(consumer: Consumer) -> None:
    assert len(list(islice(consumer, 3))) == 3


def call_back(consumer: Consumer) -> None:
    consumer.subscribe("orders", on_assign=print, on_revoke=print, on_lost=print)
    poll(consumer)


def raise_in_callback(consumer: Consumer) -> None:
    consumer.subscribe("orders", on_assign=raise_it)
    with pytest.raises(LookupError):
        poll(consumer)


def commit(consumer: Consumer) -> None:
    poll(consumer)
    consumer.commit()
    consumer.commit_async()
    consumer.commit_async(callback=print)


def be_refused(consumer: Consumer) -> None:
    poll(consumer)
    for call in (
        lambda: consumer.commit({TopicPartition("nowhere", 0): 1}),
        lambda: consumer.committed([TopicPartition("orders", -1)]),
        lambda: consumer.end_offsets([TopicPartition("nowhere", 0)]),
        lambda: consumer.seek(TopicPartition("orders", 9), 0),
        lambda: consumer.subscribe("nowhere"),
        lambda: consumer.assign([TopicPartition("orders", 0)]),
    ):
        with suppress(RaykaError, ValueError, RuntimeError):
            call()


def ask(consumer: Consumer) -> None:
    poll(consumer)
    partitions = consumer.assignment()
    consumer.lag()
    consumer.committed(partitions)
    consumer.pause(*partitions)
    consumer.resume(*partitions)
    consumer.seek_to_beginning()
    poll(consumer)


USES = (poll, poll_arrow, iterate, call_back, raise_in_callback, commit, be_refused, ask)


def member_count(cluster: InProcessCluster, group_id: str) -> int:
    with Admin(cluster=cluster) as admin:
        return len(admin.describe_group(group_id).members)


@pytest.mark.parametrize("use", USES, ids=lambda each: each.__name__)
def test_a_member_that_is_dropped_leaves_at_once(
    cluster: InProcessCluster, use: Callable[[Consumer], None]
) -> None:  # E6
    group_id = next(_groups)
    consumer: Consumer = Consumer("orders", cluster=cluster, group_id=group_id, auto_offset_reset="earliest")
    use(consumer)
    assert member_count(cluster, group_id) == 1
    dropped = weakref.ref(consumer)
    with pytest.warns(ResourceWarning, match="was not closed"):
        del consumer
    assert dropped() is None
    wait_until(lambda: member_count(cluster, group_id) == 0)


@pytest.mark.parametrize("raises", [False, True])
def test_a_member_whose_deserializer_is_its_users_leaves_at_once_too(
    cluster: InProcessCluster, raises: bool
) -> None:  # E6
    group_id = next(_groups)
    options: dict[str, Any] = {"value_deserializer": raise_it if raises else bytes, "interceptors": [Noted()]}
    options |= {"group_id": group_id, "auto_offset_reset": "earliest"}
    consumer: Consumer = Consumer("orders", cluster=cluster, **options)
    with suppress(RaykaError):
        poll(consumer)
    with pytest.warns(ResourceWarning, match="was not closed"):
        del consumer
    wait_until(lambda: member_count(cluster, group_id) == 0)


class Noted:
    def on_consume(self, records: list[rayka.Record]) -> list[rayka.Record]:
        return records


def test_an_async_member_that_is_dropped_leaves_at_once(cluster: InProcessCluster) -> None:  # E6
    group_id = next(_groups)

    async def use(consumer: Any) -> None:
        await consumer.subscribe("orders", on_assign=print)
        while not await consumer.poll(100):
            pass
        await consumer.commit()

    async def main() -> None:
        consumers: list[Any] = [
            aio.Consumer(cluster=cluster, group_id=group_id, auto_offset_reset="earliest")
        ]
        await use(consumers[0])
        with pytest.warns(ResourceWarning, match="was not closed"):
            consumers.clear()
        await asyncio.to_thread(wait_until, lambda: member_count(cluster, group_id) == 0)

    asyncio.run(main())


def test_an_async_member_warns_where_it_is_dropped_and_leaves_when_the_call_of_its_thread_is_over(
    cluster: InProcessCluster,
) -> None:  # E6
    group_id = next(_groups)

    async def main() -> None:
        has_begun, may_end = asyncio.Event(), asyncio.Event()

        async def on_assign(_: Any) -> None:
            has_begun.set()
            await may_end.wait()

        consumers: list[Any] = [aio.Consumer(cluster=cluster, group_id=group_id)]
        await consumers[0].subscribe("orders", on_assign=on_assign)
        task = asyncio.create_task(consumers[0].poll(100_000))
        await has_begun.wait()
        task.cancel()
        await asyncio.wait([task])
        del task
        with pytest.warns(ResourceWarning, match="was not closed"):
            consumers.clear()
        may_end.set()
        await asyncio.to_thread(wait_until, lambda: member_count(cluster, group_id) == 0)

    asyncio.run(main())


# ---- Other clients ---------------------------------------------------------------------------------------------------


def read_alone(cluster: InProcessCluster) -> Any:
    consumer: Consumer = Consumer("orders", cluster=cluster, auto_offset_reset="earliest")
    poll(consumer)
    return consumer


def produce(cluster: InProcessCluster) -> Any:
    producer = Producer(cluster=cluster)
    producer.send("orders", b"x").result(WAIT_S)
    producer.flush()
    return producer


def administrate(cluster: InProcessCluster) -> Any:
    admin = Admin(cluster=cluster)
    admin.list_topics()
    with suppress(RaykaError):
        admin.describe_topics(["nowhere"])
    return admin


def read_bounded(cluster: InProcessCluster) -> Any:
    reader = rayka.read("orders", cluster=cluster)
    assert len(list(reader)) > 0
    return reader


@pytest.mark.filterwarnings("ignore::ResourceWarning")
@pytest.mark.parametrize("use", [read_alone, produce, administrate, read_bounded])
def test_a_client_that_is_dropped_is_gone_at_once(
    cluster: InProcessCluster, use: Callable[[InProcessCluster], Any]
) -> None:
    dropped = weakref.ref(use(cluster))
    assert dropped() is None
