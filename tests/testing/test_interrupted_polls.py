"""Whatever leaves a poll or a loop by an exception has taken nothing: every record is given, and none is committed that
was not (G16, E10)."""

import asyncio
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from itertools import count, islice
from pathlib import Path
from typing import Any

import msgspec
import pytest

import rayka
import rayka.aio
import rayka.testing
from rayka import Admin, Consumer, Producer, Record, TopicPartition
from rayka.errors import ClosedError
from rayka.testing import InProcessCluster
from tests.testing.signal_points import calling_at, raising_at

CONFIG = {"offsets.topic.num.partitions": 1, "group.initial.rebalance.delay.ms": 0}
EARLIEST: dict[str, Any] = {"auto_offset_reset": "earliest"}
COUNT = 60
PACKAGE = str(Path(rayka.__file__).parent)
_numbers = count()


@pytest.fixture(scope="module")
def cluster() -> Iterator[InProcessCluster]:
    with rayka.testing.cluster(config=CONFIG) as running:
        yield running


def new_topic(cluster: InProcessCluster, records: int, *, per_batch: int = 1, partitions: int = 1) -> str:
    """With batches of so many records, whose values are their offsets."""
    name = f"interrupted-{next(_numbers)}"
    with Admin(cluster=cluster) as admin, Producer(cluster=cluster, linger_ms=60_000) as producer:
        admin.create_topic(name, partitions=partitions)
        for begin in range(0, records, per_batch):
            for partition in range(partitions):
                for offset in range(begin, begin + per_batch):
                    producer.send(name, b"%d" % offset, key=b"k", partition=partition)
            producer.flush()
    return name


class Twice:
    """Makes two records of each: one to be given, and one that only tells that it was made."""

    def on_consume(self, records: list[Record[Any]]) -> list[Record[Any]]:
        made = [(each, msgspec.structs.replace(each, value=b"twice")) for each in records]
        return [each for pair in made for each in pair]


# ---- At every point --------------------------------------------------------------------------------------------------


def poll(consumer: Consumer[Any]) -> list[Any]:
    return [each.offset for each in consumer.poll(5_000, max_records=3) if each.value != b"twice"]


def poll_arrow(consumer: Consumer[Any]) -> list[Any]:
    polled = consumer.poll_arrow(5_000, max_records=3)
    return [] if polled is None else polled["offset"].to_pylist()


def begun_loop(consumer: Consumer[Any]) -> list[Any]:
    record = next(iter(consumer))
    return [] if record.value == b"twice" else [record.offset]


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # at the end of a generator
@pytest.mark.parametrize("way", [poll, poll_arrow, begun_loop])
@pytest.mark.parametrize("interceptors", [[], [Twice()]])
@pytest.mark.parametrize("group_id", [None, "readers"])
def test_an_interruption_at_any_point_of_a_poll_or_a_loop_loses_and_repeats_no_record(
    cluster: InProcessCluster,
    way: Callable[[Consumer[Any]], list[Any]],
    interceptors: list[object],
    group_id: str | None,
) -> None:
    topic = new_topic(cluster, COUNT, per_batch=2)
    given: list[int] = []
    point = 0
    options: dict[str, Any] = {**EARLIEST, "interceptors": interceptors, "group_id": group_id}
    with Consumer(cluster=cluster, **options) as consumer:
        consumer.assign([TopicPartition(topic, 0)])
        while len(given) < COUNT:
            taken, has_come = raising_at(point, lambda: way(consumer), within=PACKAGE)
            given += taken or []
            point = point + 1 if has_come else 0
    assert given == list(range(COUNT))


async def async_poll(consumer: "rayka.aio.Consumer[Any]", given: list[int]) -> None:
    given += [each.offset for each in await consumer.poll(5_000, max_records=3) if each.value != b"twice"]


async def async_poll_arrow(consumer: "rayka.aio.Consumer[Any]", given: list[int]) -> None:
    polled = await consumer.poll_arrow(5_000, max_records=3)
    given += [] if polled is None else polled["offset"].to_pylist()


async def async_loop(consumer: "rayka.aio.Consumer[Any]", given: list[int]) -> None:
    async for record in consumer:
        given += [] if record.value == b"twice" else [record.offset]
        return


async def others_ended() -> None:
    """An exception in another step of the loop leaves the task that reads behind."""
    others = asyncio.all_tasks() - {asyncio.current_task()}
    for each in others:
        each.cancel()
    await asyncio.gather(*others, return_exceptions=True)


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize("way", [async_poll, async_poll_arrow, async_loop])
@pytest.mark.parametrize("interceptors", [[], [Twice()]])
def test_an_interruption_at_any_point_of_an_async_read_loses_and_repeats_no_record(
    cluster: InProcessCluster, way: Callable[..., Any], interceptors: list[object]
) -> None:
    """In the thread of the event loop, which is where signals come."""
    topic, given, point = new_topic(cluster, COUNT, per_batch=2), list[int](), 0
    with asyncio.Runner() as runner:
        options: dict[str, Any] = {**EARLIEST, "interceptors": interceptors}
        consumer: rayka.aio.Consumer[Any] = rayka.aio.Consumer(topic, cluster=cluster, **options)
        runner.run(consumer.position(TopicPartition(topic, 0)))
        while len(given) < COUNT:
            _, has_come = raising_at(point, lambda: runner.run(way(consumer, given)), within=PACKAGE)
            runner.run(others_ended())
            point = point + 1 if has_come else 0
        runner.run(consumer.close())
    assert given == list(range(COUNT))


# ---- In code of the application --------------------------------------------------------------------------------------


class Raising:
    """Code of the application, which raises this at one of its calls."""

    def __init__(self, kind: type[BaseException], at: int) -> None:
        self._kind, self._left = kind, at

    def __call__(self, given: Any) -> Any:
        self._left -= 1
        if self._left == -1:
            raise self._kind
        return given

    on_consume = __call__


PLACES: dict[str, Callable[[Raising], dict[str, Any]]] = {
    "key": lambda raising: {"key_deserializer": raising},
    "value": lambda raising: {"value_deserializer": raising},
    "on_consume": lambda raising: {"interceptors": [raising]},
}


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("kind", [KeyboardInterrupt, SystemExit, asyncio.CancelledError, GeneratorExit])
@pytest.mark.parametrize("way", [poll, begun_loop])
def test_what_is_raised_in_any_call_of_the_applications_code_loses_no_record(
    cluster: InProcessCluster,
    place: str,
    kind: type[BaseException],
    way: Callable[[Consumer[Any]], list[Any]],
) -> None:
    topic = new_topic(cluster, 8, per_batch=2, partitions=2)
    partitions = [TopicPartition(topic, 0), TopicPartition(topic, 1)]
    for at in range(16):
        given: list[int] = []
        with Consumer(cluster=cluster, **EARLIEST, **PLACES[place](Raising(kind, at))) as consumer:
            consumer.assign(partitions)
            while len(given) < 16:
                with suppress(kind):
                    given += way(consumer)
            assert [consumer.position(tp) for tp in partitions] == [8, 8]
        assert sorted(given) == sorted([*range(8)] * 2)


def test_none_is_committed_that_was_not_given(cluster: InProcessCluster) -> None:  # E10
    topic, given = new_topic(cluster, 12, per_batch=2), list[int]()
    tp = TopicPartition(topic, 0)

    class Committing:
        """Commits within a poll, as a signal handler may, which interrupts it."""

        def __call__(self, data: bytes) -> bytes:
            consumer.commit()
            committed = consumer.committed([tp])[tp]
            assert committed is not None
            assert committed.offset == consumer.position(tp) == len(given)
            if data in (b"5", b"8") and data not in raised:
                raised.append(data)
                raise KeyboardInterrupt
            return data

    raised: list[bytes] = []
    options: dict[str, Any] = {**EARLIEST, "group_id": topic, "enable_auto_commit": False}
    with Consumer(cluster=cluster, value_deserializer=Committing(), **options) as consumer:
        consumer.assign([tp])
        while len(given) < 12:
            with suppress(KeyboardInterrupt):
                given += [each.offset for each in consumer.poll(5_000, max_records=3)]
    assert given == list(range(12))


SIGNALLED = """
import asyncio, signal, sys, threading
import rayka, rayka.aio, rayka.testing

COUNT, given, over = 3000, [], threading.Event()
signal.signal(signal.SIGINT, signal.SIG_IGN)


def on_signal(number, frame):
    while frame is not None:  # only where the signal lands within the library, not in this program
        if frame.f_globals.get("__name__", "").startswith(("rayka.client.consumer", "rayka.aio")):
            raise KeyboardInterrupt
        frame = frame.f_back


def press():
    while not over.wait(0.003):
        signal.pthread_kill(threading.main_thread().ident, signal.SIGINT)


def read(way, consumer):
    if way == "poll":
        given.extend(each.offset for each in consumer.poll(200))
    elif way == "poll_arrow":
        polled = consumer.poll_arrow(200)
        given.extend(() if polled is None else polled["offset"].to_pylist())
    else:
        for record in consumer:
            given.append(record.offset)
            if record.offset == COUNT - 1:
                break


with rayka.testing.cluster() as cluster:
    with rayka.Admin(cluster=cluster) as admin:
        admin.create_topic("t", partitions=1)
    value = b'{"a": [' + b",".join(b"%d" % n for n in range(100)) + b"]}"
    with rayka.Producer(cluster=cluster, linger_ms=0, batch_size=8_000) as producer:
        for _ in range(COUNT):
            producer.send("t", value=value)
    options = {"group_id": "g", "auto_offset_reset": "earliest", "value_deserializer": "json"}
    consumer = rayka.Consumer("t", cluster=cluster, auto_commit_interval_ms=1, **options)
    consumer.poll(10_000, max_records=1)
    given.append(0)
    signal.signal(signal.SIGINT, on_signal)
    thread = threading.Thread(target=press)
    thread.start()
    count = 0
    while given[-1] != COUNT - 1 or count == 0:  # it waits at the end for a signal, if none has come before
        try:
            read(sys.argv[1], consumer)
        except KeyboardInterrupt:
            count += 1
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    over.set()
    thread.join()
    consumer.close()
    with rayka.Consumer(cluster=cluster, group_id="g") as other:
        tp = rayka.TopicPartition("t", 0)
        print(given == list(range(COUNT)), other.committed([tp])[tp].offset == COUNT)
"""


@pytest.mark.parametrize("way", ["poll", "poll_arrow", "loop"])
def test_real_signals_lose_and_repeat_no_record(way: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", SIGNALLED, way], capture_output=True, text=True, timeout=240, check=False
    )
    assert done.stdout.split() == ["True"] * 2, done.stderr


# ---- What is made of a record ----------------------------------------------------------------------------------------


class Threefold:
    def on_consume(self, records: list[Record[Any]]) -> list[Record[Any]]:
        return [
            msgspec.structs.replace(each, value=each.value + mark)
            for each in records
            for mark in (b"a", b"b", b"c")
        ]


MADE = [b"%d%c" % (offset, mark) for offset in range(4) for mark in b"abc"]


@pytest.mark.parametrize("group_id", [None, "threefold"])
@pytest.mark.parametrize("max_records", [1, 2, 5])
def test_an_interceptor_that_gives_more_than_it_got_keeps_the_rest_for_the_next_step(
    cluster: InProcessCluster, group_id: str | None, max_records: int
) -> None:
    options: dict[str, Any] = {**EARLIEST, "interceptors": [Threefold()], "max_poll_records": max_records}
    topic = new_topic(cluster, 4, per_batch=2)
    if group_id is not None:
        options["group_id"] = f"{group_id}-{topic}"
    with Consumer(topic, cluster=cluster, **options, enable_auto_commit=False) as consumer:
        values = [each.value for each in islice(consumer, 5)]  # the loop is left in the middle of a record
        assert consumer.position(TopicPartition(topic, 0)) == 1
        polled = consumer.poll(5_000, max_records=2)
        assert 1 <= len(polled) <= 2
        values += [each.value for each in polled]
        values += [each.value for each in islice(consumer, 12 - len(values))]
    assert values == MADE


def test_an_interceptor_of_an_async_loop_keeps_the_rest_for_the_next_step(cluster: InProcessCluster) -> None:
    async def work() -> list[bytes]:
        options: dict[str, Any] = {**EARLIEST, "group_id": topic, "max_poll_records": 2}
        values: list[bytes] = []
        async with rayka.aio.Consumer(
            topic, cluster=cluster, interceptors=[Threefold()], **options
        ) as consumer:
            while len(values) < 12:
                async for record in consumer:
                    values.append(record.value)
                    if len(values) % 2 == 0:
                        break
        return values

    topic = new_topic(cluster, 4, per_batch=2)
    assert asyncio.run(work()) == MADE


def test_what_was_made_of_a_partition_is_not_given_while_it_is_paused_and_not_after_a_seek(
    cluster: InProcessCluster,
) -> None:
    topic = new_topic(cluster, 4, per_batch=4, partitions=2)
    first, second = TopicPartition(topic, 0), TopicPartition(topic, 1)
    with Consumer(cluster=cluster, interceptors=[Threefold()], **EARLIEST) as consumer:
        consumer.assign([first, second])
        (given,) = consumer.poll(5_000, max_records=1)
        mine, other = (first, second) if given.partition == 0 else (second, first)
        consumer.pause(mine)
        paused = [each for _ in range(12) for each in consumer.poll(5_000, max_records=1)]
        assert [(each.partition, each.value) for each in paused] == [(other.partition, each) for each in MADE]
        consumer.resume(mine)
        assert [each.value for each in consumer.poll(5_000, max_records=1)] == [b"0b"]
        consumer.seek(mine, 3)
        assert [each.value for each in consumer.poll(5_000, max_records=3)] == MADE[9:]


# ---- What closing commits --------------------------------------------------------------------------------------------


class Away(Exception):
    """What the application was to reach."""


def committed(cluster: InProcessCluster, topic: str) -> int:
    tp = TopicPartition(topic, 0)
    with Consumer(cluster=cluster, group_id=topic) as consumer:
        found = consumer.committed([tp])[tp]
    return 0 if found is None else found.offset


def fail_at_3(records: Any, done: list[int]) -> None:
    for record in records:
        if record.offset == 3:
            raise Away
        done.append(record.offset)


def left_by_an_error(consumer: Consumer[Any], records: Callable[[], Any], done: list[int]) -> None:
    with consumer:
        fail_at_3(records(), done)


def closed_in_finally(consumer: Consumer[Any], records: Callable[[], Any], done: list[int]) -> None:
    try:
        fail_at_3(records(), done)
    finally:
        consumer.close()


def unsubscribed_in_finally(consumer: Consumer[Any], records: Callable[[], Any], done: list[int]) -> None:
    try:
        fail_at_3(records(), done)
    finally:
        consumer.unsubscribe()
        consumer.close()


@pytest.mark.parametrize("end", [left_by_an_error, closed_in_finally, unsubscribed_in_finally])
@pytest.mark.parametrize(("way", "least"), [("poll", 0), ("loop", 3)])
@pytest.mark.parametrize("is_assigned", [False, True])
def test_a_consumer_that_an_error_closes_does_not_commit_what_was_given_last(
    cluster: InProcessCluster, end: Callable[..., None], way: str, least: int, is_assigned: bool
) -> None:  # E10
    if is_assigned and end is unsubscribed_in_finally:
        pytest.skip("there is no subscription")
    topic, done = new_topic(cluster, 10, per_batch=10), list[int]()
    consumer: Consumer[Any] = Consumer(cluster=cluster, group_id=topic, **EARLIEST)
    if is_assigned:
        consumer.assign([TopicPartition(topic, 0)])
    else:
        consumer.subscribe(topic)
    with pytest.raises(Away):
        end(consumer, lambda: consumer.poll(10_000) if way == "poll" else consumer, done)
    assert done == [0, 1, 2]
    assert committed(cluster, topic) == least


@pytest.mark.parametrize("way", ["poll", "loop"])
def test_a_consumer_that_is_closed_by_its_own_thread_commits_what_was_given(
    cluster: InProcessCluster, way: str
) -> None:  # E10
    topic = new_topic(cluster, 10, per_batch=10)
    with Consumer(topic, cluster=cluster, group_id=topic, **EARLIEST) as consumer:
        assert len(consumer.poll(10_000, max_records=4) if way == "poll" else list(islice(consumer, 4))) == 4
    assert committed(cluster, topic) == 4


def test_a_consumer_that_another_thread_closes_commits_what_was_processed_only(
    cluster: InProcessCluster,
) -> None:  # E10
    topic, has_some, may_end = new_topic(cluster, 10, per_batch=10), threading.Event(), threading.Event()

    def work() -> None:
        consumer.poll(10_000, max_records=4)
        consumer.poll(10_000, max_records=4)
        has_some.set()
        may_end.wait()

    with Consumer(topic, cluster=cluster, group_id=topic, **EARLIEST) as consumer:
        thread = threading.Thread(target=work)
        thread.start()
        has_some.wait()
        consumer.close()
        may_end.set()
        thread.join()
    assert committed(cluster, topic) == 4


@pytest.mark.parametrize("how", ["own", "other task", "error", "ended task", "failed task", "unsubscribed"])
def test_an_async_consumer_commits_what_was_processed_only(
    cluster: InProcessCluster, how: str
) -> None:  # E10
    async def work() -> None:
        async def read() -> None:
            assert len(await consumer.poll(10_000, max_records=4)) == 4
            if how == "other task":
                has_some.set()
                await asyncio.Event().wait()
            if how == "failed task":
                raise Away

        has_some = asyncio.Event()
        async with rayka.aio.Consumer(topic, cluster=cluster, group_id=topic, **EARLIEST) as consumer:
            if how in ("own", "error"):
                await read()
            elif how == "unsubscribed":
                try:
                    await read()
                    raise Away
                finally:
                    await consumer.unsubscribe()
            else:
                task = asyncio.create_task(read())
                if how == "other task":
                    await has_some.wait()
                else:
                    await asyncio.gather(task, return_exceptions=True)
                await consumer.close()
                task.cancel()
            if how == "error":
                raise Away

    topic = new_topic(cluster, 10, per_batch=10)
    with suppress(Away):
        asyncio.run(work())
    assert committed(cluster, topic) == (4 if how in ("own", "ended task") else 0)


# ---- Calls in signal handlers ----------------------------------------------------------------------------------------


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize("group_id", [None, "closed"])
def test_a_close_at_any_point_of_a_poll_ends_it_with_closed_error(
    cluster: InProcessCluster, group_id: str | None
) -> None:
    """As in a signal handler, which runs in the thread that polls, between any two steps of it."""
    topic, ends = new_topic(cluster, 6, per_batch=2), list[str]()
    for point in range(0, 10_000, 7):
        options: dict[str, Any] = {**EARLIEST, "group_id": None if group_id is None else f"{topic}-{point}"}
        consumer: Consumer[Any] = Consumer(cluster=cluster, **options)
        consumer.assign([TopicPartition(topic, 0)])
        try:
            polled = calling_at(point, consumer.close, partial(consumer.poll, 5_000), within=PACKAGE)
        except ClosedError as error:
            ends.append(str(error))
        else:
            consumer.close()
            if polled and not ends:
                continue
            break
        with pytest.raises(ClosedError):
            consumer.poll(0)
    assert len(ends) > 5


def test_what_moves_a_position_is_refused_within_a_poll(cluster: InProcessCluster) -> None:
    topic = new_topic(cluster, 2)
    tp = TopicPartition(topic, 0)
    refused: list[str] = []

    def deserialize(data: bytes) -> bytes:
        calls: list[Callable[[], object]] = [
            consumer.poll,
            lambda: next(iter(consumer)),
            lambda: consumer.seek(tp, 0),
            consumer.seek_to_end,
            lambda: consumer.pause(tp),
            lambda: consumer.assign([]),
        ]
        for call in calls:
            with suppress(RuntimeError):
                call()
                refused.append(f"{call} was not")
        return data

    with Consumer(cluster=cluster, value_deserializer=deserialize, **EARLIEST) as consumer:
        consumer.assign([tp])
        while consumer.position(tp) < 2:
            consumer.poll(5_000)
    assert refused == []


def test_a_close_in_code_that_a_poll_runs_ends_the_poll(cluster: InProcessCluster) -> None:
    def deserialize(data: bytes) -> bytes:
        consumer.close()
        return data

    topic = new_topic(cluster, 3)
    consumer: Consumer[Any] = Consumer(
        topic, cluster=cluster, group_id=topic, value_deserializer=deserialize, **EARLIEST
    )
    with pytest.raises(ClosedError):
        consumer.poll(10_000)
    assert committed(cluster, topic) == 0
    with Admin(cluster=cluster) as admin:
        assert not admin.describe_group(topic).members
