"""The async consumer on the real nodes in this process: it waits in the loop, and what it gives is the sync one's."""

import asyncio
import inspect
import threading
import time
from collections.abc import Coroutine, Iterator
from itertools import count
from typing import Any, TypeVar

import pytest

import rayka
import rayka.testing
from rayka import TopicPartition
from rayka.aio import Consumer, Producer
from rayka.errors import ClosedError, ConfigError, OffsetOutOfRange, UnknownTopicOrPartition
from rayka.testing import InProcessCluster

WAIT_S = 60
BATCHES = 20
ResultT = TypeVar("ResultT")
_numbers = count()


@pytest.fixture(scope="module")
def cluster() -> Iterator[InProcessCluster]:
    with rayka.testing.cluster() as running:
        yield running


def run(work: Coroutine[Any, Any, ResultT]) -> ResultT:
    async def bounded() -> ResultT:
        async with asyncio.timeout(WAIT_S):
            return await work

    return asyncio.run(bounded())


def new_topic(cluster: InProcessCluster, *values: bytes, partitions: int = 1) -> str:
    name = f"orders-{next(_numbers)}"
    with rayka.Admin(cluster) as admin, rayka.Producer(cluster) as producer:
        admin.create_topic(name, partitions=partitions)
        for value in values:
            producer.send(name, value, partition=0)
    return name


def test_records_are_polled_and_iterated(cluster: InProcessCluster):
    async def work() -> list[bytes]:
        async with Consumer(topic, cluster=cluster, auto_offset_reset="earliest") as consumer:
            found = [each.value for each in await consumer.poll(max_records=3)]
            assert len(found) == 3
            async for record in consumer:
                found.append(record.value)
                if len(found) == 7:
                    break
            async for record in consumer:  # goes on where the other was left
                found.append(record.value)
                if len(found) == 10:
                    return found
        return found

    topic = new_topic(cluster, *(b"%d" % number for number in range(10)))
    assert run(work()) == [b"%d" % number for number in range(10)]


def test_arrow_batches_are_polled(cluster: InProcessCluster):
    async def work() -> Any:
        async with Consumer(topic, cluster=cluster, auto_offset_reset="earliest") as consumer:
            batch = await consumer.poll_arrow(timeout_ms=5_000)
            assert await consumer.poll_arrow(timeout_ms=0) is None
            return batch

    topic = new_topic(cluster, b"a", b"b")
    assert run(work()).column("value").to_pylist() == [b"a", b"b"]


def test_other_tasks_go_on_while_it_waits(cluster: InProcessCluster):
    async def work() -> bytes:
        async with (
            Consumer(topic, cluster=cluster, auto_offset_reset="earliest") as consumer,
            Producer(cluster) as producer,
        ):
            polling = asyncio.ensure_future(consumer.poll(timeout_ms=WAIT_S * 1_000))
            await producer.send_and_wait(topic, b"x")
            (record,) = await polling
            return bytes(record.value)

    topic = new_topic(cluster)
    assert run(work()) == b"x"


def test_positions_are_those_of_the_sync_consumer(cluster: InProcessCluster):
    async def work() -> None:
        async with Consumer(cluster=cluster) as consumer:
            await consumer.assign([tp])
            assert await consumer.assignment() == (tp,)
            assert (await consumer.beginning_offsets([tp]), await consumer.end_offsets([tp])) == (
                {tp: 0},
                {tp: 5},
            )
            await consumer.seek_to_beginning()
            assert len(await consumer.poll(max_records=2)) == 2
            assert await consumer.position(tp) == 2
            await consumer.seek(tp, 4)
            assert [each.offset for each in await consumer.poll()] == [4]
            with pytest.raises(ValueError, match="is not assigned"):
                await consumer.seek(TopicPartition("other", 0), 0)

    tp = TopicPartition(new_topic(cluster, *(b"%d" % number for number in range(5))), 0)
    run(work())


def test_a_cancelled_poll_has_taken_nothing_and_ends_at_once(cluster: InProcessCluster):
    async def work() -> list[bytes]:
        async with (
            Consumer(topic, cluster=cluster, auto_offset_reset="earliest") as consumer,
            Producer(cluster) as producer,
        ):
            found = []
            for number in range(20):
                polling = asyncio.ensure_future(consumer.poll(timeout_ms=WAIT_S * 10_000))
                sending = asyncio.ensure_future(producer.send_and_wait(topic, b"%d" % number))
                if number % 2:
                    await sending
                await asyncio.sleep(0)
                if polling.cancel():
                    with pytest.raises(asyncio.CancelledError):
                        await polling
                else:
                    found += [each.value for each in await polling]
                await sending
            while len(found) < 20:
                found += [each.value for each in await consumer.poll()]
            return found

    topic = new_topic(cluster)
    assert run(work()) == [b"%d" % number for number in range(20)]


def test_a_pause_of_another_task_meets_no_records_that_are_just_taken(cluster: InProcessCluster):
    def deserialize(data: bytes) -> bytes:
        time.sleep(0)  # the other thread has its turn in the middle of a batch
        return data

    async def pause_and_resume(consumer: Consumer) -> None:
        while True:
            await consumer.pause(tp)
            await consumer.resume(tp)

    async def work() -> list[int]:
        offsets: list[int] = []
        options = {"auto_offset_reset": "earliest", "value_deserializer": deserialize}
        async with Consumer(cluster=cluster, **options) as consumer:
            await consumer.assign([tp])
            pausing = asyncio.ensure_future(pause_and_resume(consumer))
            while len(offsets) < BATCHES * 100:
                offsets += [each.offset for each in await consumer.poll()]
            pausing.cancel()
        return offsets

    topic = new_topic(cluster)
    tp = TopicPartition(topic, 0)
    with rayka.Producer(cluster) as producer:
        for _ in range(BATCHES):
            producer.send_batch(topic, [b"x"] * 100).result(WAIT_S)
    assert run(work()) == list(range(BATCHES * 100))


def test_errors_are_those_of_the_sync_consumer(cluster: InProcessCluster):
    async def work() -> None:
        with pytest.raises(UnknownTopicOrPartition, match="no-such-topic"):
            async with Consumer("no-such-topic", cluster=cluster):
                pass
        async with Consumer(cluster=cluster, auto_offset_reset="none") as consumer:
            await consumer.assign([TopicPartition(topic, 0)])
            await consumer.seek(TopicPartition(topic, 0), 99)
            with pytest.raises(OffsetOutOfRange):
                await consumer.poll(timeout_ms=WAIT_S * 1_000)
            with pytest.raises(TypeError, match="timeout_ms: expected a number"):
                await consumer.poll(timeout_ms="1")  # type: ignore[arg-type]
            with pytest.raises(ValueError, match="max_records"):
                await consumer.poll(max_records=0)

    topic = new_topic(cluster, b"x")
    run(work())
    with pytest.raises(ConfigError, match="nearest known key"):
        Consumer(topic, cluster=cluster, auto_ofset_reset="latest")  # type: ignore[call-arg]


def test_a_close_ends_the_loop_of_another_task(cluster: InProcessCluster):
    async def work() -> None:
        async def read() -> None:
            async for _ in consumer:
                began.set()

        began = asyncio.Event()
        consumer = Consumer(topic, cluster=cluster, auto_offset_reset="earliest")
        reading = asyncio.ensure_future(read())
        await began.wait()
        await consumer.close()
        await consumer.close()
        await reading
        with pytest.raises(ClosedError):
            await consumer.poll()

    topic = new_topic(cluster, b"x")
    run(work())


def test_no_thread_stays_when_it_is_closed(cluster: InProcessCluster):
    async def work() -> list[threading.Thread]:
        async with Consumer(topic, cluster=cluster) as consumer:
            await consumer.poll(timeout_ms=0)
            return [each for each in threading.enumerate() if each.name == "rayka-aio-consumer"]

    topic = new_topic(cluster)
    (thread,) = run(work())
    thread.join(WAIT_S)
    assert not thread.is_alive()


def test_one_that_is_dropped_open_warns_and_leaves_no_thread(cluster: InProcessCluster):
    async def drop(consumers: list[Consumer], thread: threading.Thread) -> None:
        consumers.clear()
        await asyncio.to_thread(thread.join, WAIT_S)

    async def work() -> None:
        consumers = [Consumer(topic, cluster=cluster)]
        await consumers[0].poll(timeout_ms=0)
        (thread,) = [each for each in threading.enumerate() if each.name == "rayka-aio-consumer"]
        with pytest.warns(ResourceWarning, match=r"<aio\.Consumer cluster=testing .* was not closed"):
            await drop(consumers, thread)
        assert not thread.is_alive()

    topic = new_topic(cluster)
    run(work())


def test_members_of_a_group_share_a_topic_and_are_called_back_in_the_loop(cluster: InProcessCluster):
    received: list[list[TopicPartition]] = []

    async def work() -> None:
        async with Consumer(cluster=cluster, group_id="readers", auto_offset_reset="earliest") as consumer:

            async def on_assign(partitions: list[TopicPartition]) -> None:
                received.append(partitions)
                await consumer.seek(TopicPartition(topic, 0), 1)  # another call, within the poll

            await consumer.subscribe([topic], on_assign=on_assign)
            assert await consumer.subscription() == (topic,)
            found: list[Any] = []
            while not found:
                found = await consumer.poll()
            assert [each.value for each in found] == [b"b"]
            assert (await consumer.group_metadata()).group_id == "readers"

    topic = new_topic(cluster, b"a", b"b", partitions=2)
    run(work())
    assert [sorted(each) for each in received] == [[TopicPartition(topic, 0), TopicPartition(topic, 1)]]


def test_a_callback_may_close_its_consumer(cluster: InProcessCluster):
    received: list[str] = []

    async def work() -> None:
        consumer = Consumer(cluster=cluster, group_id="closers", auto_offset_reset="earliest")

        async def on_assign(partitions: list[TopicPartition]) -> None:
            received.append("assigned")
            await consumer.close()
            received.append("closed")

        await consumer.subscribe([topic], on_assign=on_assign)
        with pytest.raises(ClosedError):
            await consumer.poll(timeout_ms=WAIT_S * 1_000)

    topic = new_topic(cluster, b"a")
    run(work())
    assert received == ["assigned", "closed"]


def test_positions_are_committed_and_the_next_consumer_goes_on_there(cluster: InProcessCluster):
    received: list[Any] = []
    over = asyncio.Event()

    async def told(offsets: Any, error: Any) -> None:
        received.append((offsets[tp].offset, error, threading.get_ident()))
        over.set()

    async def work() -> None:
        options: Any = {"cluster": cluster, "group_id": "committing", "enable_auto_commit": False}
        async with Consumer(**options) as consumer:
            await consumer.assign([tp])
            await consumer.seek_to_beginning()
            assert len(await consumer.poll(max_records=2)) == 2
            await consumer.commit()
            assert len(await consumer.poll(max_records=1)) == 1
            await consumer.commit_async(callback=told)
            await over.wait()
            assert (await consumer.lag())[tp] == 2
        async with Consumer(**options) as consumer:
            await consumer.assign([tp])
            found = (await consumer.committed([tp]))[tp]
            assert found is not None
            assert found.offset == 3
            assert [each.offset for each in await consumer.poll()] == [3, 4]

    tp = TopicPartition(new_topic(cluster, *(b"%d" % number for number in range(5))), 0)
    run(work())
    assert received == [(3, None, threading.get_ident())]


def test_a_callback_that_raises_is_raised_by_poll(cluster: InProcessCluster):
    async def broken(_: list[TopicPartition]) -> None:
        raise LookupError("my own")

    async def work() -> None:
        async with Consumer(cluster=cluster, group_id="broken") as consumer:
            await consumer.subscribe([topic], on_assign=broken)
            with pytest.raises(LookupError, match="my own"):
                await anext(aiter(consumer))

    topic = new_topic(cluster)
    run(work())


def test_it_has_all_methods_of_the_sync_one_with_their_arguments():
    for name, method in inspect.getmembers(rayka.Consumer, inspect.isfunction):
        if not name.startswith("_"):
            assert inspect.iscoroutinefunction(getattr(Consumer, name)), name
            assert inspect.signature(getattr(Consumer, name)) == inspect.signature(method), name
