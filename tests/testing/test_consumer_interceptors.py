"""A consumer's interceptors see records before the application and offsets after their commit; they harm only
themselves."""

import asyncio
from collections.abc import Iterator
from itertools import count, islice
from typing import Any

import msgspec
import pytest

import rayka
import rayka.aio
import rayka.testing
from rayka import Consumer, Producer, TopicPartition
from rayka.errors import ConfigError, UnknownTopicOrPartition
from rayka.testing import InProcessCluster
from tests.testing.waiting import wait_until

CONFIG = {"offsets.topic.num.partitions": 1, "group.initial.rebalance.delay.ms": 0}
_numbers = count()


@pytest.fixture(scope="module")
def cluster() -> Iterator[InProcessCluster]:
    with rayka.testing.cluster(config=CONFIG) as running:
        yield running


@pytest.fixture
def topic(cluster: InProcessCluster) -> str:
    """With ten records, b"0" to b"9", in its one partition."""
    name = f"orders-{next(_numbers)}"
    with rayka.Admin(cluster=cluster) as admin, Producer(cluster=cluster) as producer:
        admin.create_topic(name, partitions=1)
        for number in range(10):
            producer.send(name, b"%d" % number)
    return name


class Odd:
    """Leaves the odd numbers, ten times as large."""

    def __init__(self) -> None:
        self.seen: list[bytes] = []

    def on_consume(self, records: list[Any]) -> list[Any]:
        self.seen += [each.value for each in records]
        return [
            msgspec.structs.replace(each, value=each.value + b"0") for each in records if int(each.value) % 2
        ]


class Commits:
    """Keeps what is committed."""

    def __init__(self) -> None:
        self.committed: list[dict[TopicPartition, int]] = []

    def on_commit(self, offsets: Any) -> None:
        self.committed.append({tp: each.offset for tp, each in offsets.items()})


class Broken:
    """Raises from both hooks, from the second one this."""

    def __init__(self, kind: type[BaseException]) -> None:
        self._kind = kind

    def on_consume(self, records: list[Any]) -> list[Any]:
        raise LookupError("while consuming")

    def on_commit(self, offsets: Any) -> None:
        raise self._kind("after the commit")


class Forgetful:
    """Returns nothing."""

    def on_consume(self, records: list[Any]) -> None: ...


ODD_VALUES = [b"10", b"30", b"50", b"70", b"90"]


def earliest(cluster: InProcessCluster, topic: str, *interceptors: object, **options: Any) -> Consumer:
    options = {"auto_offset_reset": "earliest", **options}
    return Consumer(topic, cluster=cluster, interceptors=list(interceptors), **options)


def test_poll_gives_what_the_interceptors_make_of_the_records(cluster, topic):
    odd = Odd()
    with earliest(cluster, topic, odd) as consumer:
        values = [each.value for each in consumer.poll(10_000)]
        assert consumer.position(TopicPartition(topic, 0)) == 10  # moved by what is stored
    assert values == ODD_VALUES
    assert odd.seen == [b"%d" % number for number in range(10)]


def test_a_poll_goes_on_behind_records_of_which_none_is_left(cluster, topic):
    with earliest(cluster, topic, Odd()) as consumer:
        assert [each.value for each in consumer.poll(10_000, max_records=1)] == [b"10"]
        assert consumer.position(TopicPartition(topic, 0)) == 2
        consumer.seek(TopicPartition(topic, 0), 8)
        consumer.poll(10_000)
        assert consumer.poll(0) == []


def test_a_loop_shows_them_one_record_at_a_time(cluster, topic):
    odd = Odd()
    with earliest(cluster, topic, odd) as consumer:
        assert [each.value for each in islice(consumer, 2)] == [b"10", b"30"]
        assert odd.seen == [b"0", b"1", b"2", b"3"]
        assert consumer.position(TopicPartition(topic, 0)) == 4
        assert [each.value for each in islice(consumer, 3)] == ODD_VALUES[2:]


def test_a_bounded_read_is_intercepted_and_arrow_is_not(cluster, topic):
    reading = rayka.read(topic, cluster=cluster, start="earliest", end="latest", interceptors=[Odd()])
    assert [each.value for each in reading] == ODD_VALUES
    assert sum(batch.num_rows for batch in reading.arrow_batches()) == 10


def test_interceptors_are_called_for_each_commit_that_went_well(cluster, topic):
    commits, tp = Commits(), TopicPartition(topic, 0)
    with earliest(cluster, topic, commits, group_id=topic, enable_auto_commit=False) as consumer:
        consumer.poll(10_000, max_records=3)
        consumer.commit()
        assert commits.committed == [{tp: 3}]
        with pytest.raises(UnknownTopicOrPartition):
            consumer.commit({TopicPartition(topic, 7): 1})
        consumer.commit_async({tp: 5})
        wait_until(lambda: len(commits.committed) == 2)
    assert commits.committed == [{tp: 3}, {tp: 5}]


def test_interceptors_are_called_for_automatic_commits(cluster, topic):
    commits = Commits()
    with earliest(cluster, topic, commits, group_id=topic) as consumer:
        consumer.poll(10_000)
    assert commits.committed == [{TopicPartition(topic, 0): 10}]  # at the end


@pytest.mark.parametrize("kind", [LookupError, SystemExit, KeyboardInterrupt, asyncio.CancelledError])
def test_one_that_raises_is_logged_and_harms_nothing_else(cluster, topic, caplog, kind):
    commits, told, tp = Commits(), [], TopicPartition(topic, 0)
    with earliest(cluster, topic, Broken(kind), Forgetful(), commits, group_id=topic) as consumer:
        assert len(consumer.poll(10_000)) == 10
        consumer.commit({tp: 4})
        consumer.commit_async({tp: 7}, lambda offsets, error: told.append(error))
        wait_until(lambda: told == [None])
        assert consumer.committed([tp])[tp].offset == 7
    assert commits.committed == [{tp: 4}, {tp: 7}, {tp: 10}]  # the last one at the end
    with earliest(cluster, topic, group_id=topic) as successor:
        assert successor.committed([tp])[tp].offset == 10
    for said in ("while consuming", "after the commit", "to return a list of records, found NoneType"):
        assert said in caplog.text


@pytest.mark.parametrize("kind", [SystemExit, KeyboardInterrupt])
def test_what_ends_the_application_reaches_it_from_poll_and_from_a_loop(cluster, topic, kind):
    class Leaving:
        def on_consume(self, records: list[Any]) -> list[Any]:
            raise kind

    with earliest(cluster, topic, Leaving()) as consumer:
        with pytest.raises(kind):
            consumer.poll(10_000)
        consumer.seek(TopicPartition(topic, 0), 0)
        with pytest.raises(kind):
            next(iter(consumer))


@pytest.mark.parametrize("given", [[object()], "tracing", 7])
def test_what_has_no_hook_is_a_config_error(cluster, topic, given):
    with pytest.raises(ConfigError, match="interceptors: expected"):
        Consumer(topic, cluster=cluster, interceptors=given)


class Later:
    """Hooks of an event loop."""

    def __init__(self) -> None:
        self.committed: list[int] = []

    def on_consume(self, records: list[Any]) -> list[Any]:
        asyncio.get_running_loop()
        return [each for each in records if each.value == b"9"]

    async def on_commit(self, offsets: Any) -> None:
        await asyncio.sleep(0)
        self.committed += [each.offset for each in offsets.values()]


def test_an_async_consumer_calls_them_in_its_loop(cluster, topic):
    async def work() -> None:
        options: dict[str, Any] = {"group_id": topic, "auto_offset_reset": "earliest"}
        consumer = rayka.aio.Consumer(topic, cluster=cluster, interceptors=[later], **options)
        async with consumer:
            polled = await consumer.poll(10_000, max_records=4)  # goes on until one is left
            assert [each.value for each in polled] == [b"9"]
            await consumer.commit()
            await consumer.seek(TopicPartition(topic, 0), 0)
            async for record in consumer:
                assert record.value == b"9"
                break
        assert later.committed == [10, 10]  # by `commit`, and at the end

    later = Later()
    asyncio.run(work())


def test_an_on_consume_that_is_async_is_a_config_error():
    class Waiting:
        async def on_consume(self, records: list[Any]) -> list[Any]:
            return records

    with pytest.raises(ConfigError, match="expected an on_consume that is not async"):
        rayka.aio.Consumer("orders", interceptors=[Waiting()])
