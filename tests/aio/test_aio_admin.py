"""The async admin on the real nodes in this process: every method of the sync one, awaited."""

import asyncio
import inspect
import re
from collections.abc import Iterator

import pytest

import rayka
import rayka.aio
import rayka.testing
from rayka.errors import ClosedError, TopicAlreadyExists, UnknownTopicOrPartition
from rayka.ids import TopicPartition
from rayka.testing import InProcessCluster

NOT_AWAITED = ("close",)  # its own


@pytest.fixture(scope="module")
def cluster() -> Iterator[InProcessCluster]:
    with rayka.testing.cluster(brokers=2) as running:
        yield running


def test_a_topic_lives_from_its_creation_to_its_deletion(cluster: InProcessCluster):
    async def work() -> None:
        async with rayka.aio.Admin(cluster) as admin, rayka.aio.Producer(cluster) as producer:
            created = await admin.create_topic("flights", partitions=2, configs={"segment.bytes": 1_000_000})
            assert len(created.partitions) == 2
            with pytest.raises(TopicAlreadyExists):
                await admin.create_topic("flights")
            assert await admin.describe_topic("flights") == (await admin.describe_topics(["flights"]))[0]
            await producer.send_and_wait("flights", b"x", partition=1)
            deleted = await admin.delete_records({TopicPartition("flights", 1): -1})
            assert deleted == {TopicPartition("flights", 1): 1}
            assert (await admin.describe_configs(topic="flights"))["segment.bytes"].value == "1000000"
            await admin.delete_topic("flights")
            assert await admin.list_topics() == []
            with pytest.raises(UnknownTopicOrPartition):
                await admin.describe_topic("flights")

    asyncio.run(work())


def test_a_broker_is_drained_as_planned(cluster: InProcessCluster):
    async def work() -> None:
        async with rayka.aio.Admin(cluster) as admin:
            await admin.create_topic("moving", assignments=[[1]])
            expected = {TopicPartition("moving", 0): (2,)}
            planned = await admin.drain_broker(1, dry_run=True)
            assert planned.items() >= expected.items()
            assert await admin.drain_broker(1) == planned

    asyncio.run(work())


def test_calls_are_under_way_together(cluster: InProcessCluster):
    async def work() -> list[rayka.aio.Admin]:
        async with rayka.aio.Admin(cluster) as admin:
            await asyncio.gather(*(admin.create_topic(f"together-{n}") for n in range(10)))
            found = await admin.list_topics()
            return [each for each in found if each.startswith("together-")]

    assert len(asyncio.run(work())) == 10


def test_an_argument_of_a_wrong_type_is_named(cluster: InProcessCluster):
    async def work() -> None:
        async with rayka.aio.Admin(cluster) as admin:
            with pytest.raises(TypeError, match="name: expected str, found int"):
                await admin.create_topic(7)  # type: ignore[arg-type]

    asyncio.run(work())


def test_a_closed_admin_says_so(cluster: InProcessCluster):
    async def work() -> None:
        admin = rayka.aio.Admin(cluster)
        await admin.list_topics()
        await admin.close()
        await admin.close()
        with pytest.raises(ClosedError, match=r"<aio\.Admin closed>"):
            await admin.list_topics()

    asyncio.run(work())


def test_it_has_all_methods_of_the_sync_one_with_their_arguments_and_help():
    for name, method in inspect.getmembers(rayka.Admin, inspect.isfunction):
        if not name.startswith("_") and name not in NOT_AWAITED:
            awaited = getattr(rayka.aio.Admin, name)
            assert inspect.iscoroutinefunction(awaited), name
            assert inspect.signature(awaited) == inspect.signature(method), name
            assert awaited.__doc__ == method.__doc__, name


def test_each_method_of_the_sync_one_ends_in_one_call():
    """Anything that it did with a result would be done with a coroutine here."""
    for name, method in inspect.getmembers(rayka.Admin, inspect.isfunction):
        if name.startswith("_") or name in NOT_AWAITED:
            continue
        body = inspect.getsource(method).rpartition('"""')[2]
        assert body.count("self._run(") == 1, name
        assert re.search(r"\n        return self\._run\(([^\n]*|\n {12}[^\n]*\n {8})\)\n$", body), name
