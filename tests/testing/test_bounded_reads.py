"""Bounded reads: every kind of moment as a bound and wherever else a moment is taken, records that cannot be
deserialized, and how many records there are."""

import asyncio
import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import date, datetime, timedelta
from itertools import count
from typing import Any

import pandas as pd
import pytest

import rayka
import rayka.aio
import rayka.testing
from rayka import Admin, Consumer, Producer, TopicPartition
from rayka.client.consumer.reader import Reader
from rayka.errors import ConfigError, SerializationError
from rayka.options import Transport
from rayka.ports import Network
from rayka.protocol.fetch import FetchResponse
from rayka.testing import InProcessCluster
from tests.testing.waiting import wait_until

CONFIG = {
    "offsets.topic.num.partitions": 1,
    "group.initial.rebalance.delay.ms": 0,
    "log.cleaner.backoff.ms": 20,
}
DAY = date(2024, 3, 9)
_numbers = count()


@pytest.fixture(scope="module")
def cluster() -> Iterator[InProcessCluster]:
    with rayka.testing.cluster(config=CONFIG) as running:
        yield running


@pytest.fixture
def topic(cluster: InProcessCluster) -> str:
    """With a record of each of ten hours from the midnight that begins the day."""
    name = f"bounded-{next(_numbers)}"
    midnight = datetime(DAY.year, DAY.month, DAY.day).astimezone()
    with Admin(cluster=cluster) as admin, Producer(cluster=cluster) as producer:
        admin.create_topic(name, partitions=1, configs={"retention.ms": -1})
        for hour in range(10):
            moment = midnight + timedelta(hours=hour)
            producer.send(name, b"%d" % hour, timestamp_ms=int(moment.timestamp() * 1000))
    return name


FIVE = datetime.fromisoformat("2024-03-09T05:00")
FIRST, LAST = (datetime.fromisoformat(each) for each in ("0001-01-01", "9999-12-31T23:59:59.999999"))
MOMENTS = {
    "datetime": FIVE,
    "datetime with zone": FIVE.astimezone(),
    "pandas": pd.Timestamp(2024, 3, 9, 5),
    "text": "2024-03-09T05:00",
    "ms": int(FIVE.timestamp() * 1000),
}


@pytest.mark.parametrize("kind", MOMENTS)
def test_every_method_that_takes_a_moment_takes_it_of_every_kind(cluster, topic, kind):  # G12
    tp, moment = TopicPartition(topic, 0), MOMENTS[kind]
    assert [each.value for each in rayka.read(topic, cluster=cluster, start=moment)] == [
        b"5",
        b"6",
        b"7",
        b"8",
        b"9",
    ]
    assert len(rayka.read(topic, cluster=cluster, end=moment)) == 5
    with Consumer(cluster=cluster, group_id=topic) as consumer:
        consumer.assign([tp])
        assert consumer.offsets_for_times({tp: moment})[tp].offset == 5
        consumer.seek_to_timestamp(moment)
        assert consumer.position(tp) == 5
        consumer.commit()
    with Admin(cluster=cluster) as admin:
        (reset,) = admin.reset_group_offsets(topic, timestamp=moment, dry_run=True)
    assert reset.offset == 5

    async def async_offsets() -> tuple[int, int]:
        async with rayka.aio.Consumer(cluster=cluster) as consumer:
            await consumer.assign([tp])
            await consumer.seek_to_timestamp(moment)
            found = (await consumer.offsets_for_times({tp: moment}))[tp]
            return await consumer.position(tp), found.offset

    assert asyncio.run(async_offsets()) == (5, 5)


def test_days_and_the_ends_of_the_calendar_bound_a_read(cluster, topic):
    for start in (DAY, "2024-03-09", pd.Timestamp(DAY)):
        assert len(rayka.read(topic, cluster=cluster, start=start, end="2024-03-10")) == 10
    assert len(rayka.read(topic, cluster=cluster, end=LAST)) == 10
    assert len(rayka.read(topic, cluster=cluster, start=date.max)) == 0


@pytest.mark.parametrize(
    "moment", [pd.NaT, datetime.fromisoformat("1960-01-01"), FIRST, "yesterday", 1.5, None, -1, 2**63]
)
def test_what_is_no_moment_is_said_by_every_method(cluster, topic, moment):
    tp = TopicPartition(topic, 0)
    with pytest.raises(ConfigError, match=r"read: start: expected 'earliest', .* since 1970 .*, found"):
        rayka.read(topic, cluster=cluster, start=moment)
    with Consumer(cluster=cluster) as consumer, Admin(cluster=cluster) as admin:
        consumer.assign([tp])
        with pytest.raises((TypeError, ValueError), match="timestamp: expected"):
            consumer.seek_to_timestamp(moment)
        with pytest.raises((TypeError, ValueError), match=f"{tp}: expected"):
            consumer.offsets_for_times({tp: moment})
        if moment is not None:
            with pytest.raises((TypeError, ValueError), match="timestamp: expected"):
                admin.reset_group_offsets(topic, timestamp=moment)


# ---- Records that cannot be deserialized -----------------------------------------------------------------------------


@pytest.fixture
def poisoned(cluster: InProcessCluster) -> str:
    """At the beginning and the end of batches, side by side, and alone in one."""
    name = f"poisoned-{next(_numbers)}"
    batches = [[b"{", b"1", b"2"], [b"{"], [b"4", b"{", b"{", b"7"], [b"8", b"{"]]
    with Admin(cluster=cluster) as admin, Producer(cluster=cluster, linger_ms=60_000) as producer:
        admin.create_topic(name, partitions=1)
        for batch in batches:
            for value in batch:
                producer.send(name, value)
            producer.flush()
    return name


def test_a_bounded_read_ends_at_a_record_that_cannot_be_deserialized(cluster, poisoned):
    with pytest.raises(SerializationError, match=f"{poisoned}-0, offset 0"):
        list(iter(rayka.read(poisoned, cluster=cluster, value_deserializer="json")))


def test_a_bounded_read_passes_over_what_cannot_be_deserialized(cluster, poisoned, caplog):
    reading = rayka.read(poisoned, cluster=cluster, value_deserializer="json", on_poison="skip")
    assert [each.value for each in reading] == [1, 2, 4, 7, 8]
    assert [each.value for each in reading] == [1, 2, 4, 7, 8]  # anew
    assert caplog.text.count("passes over a record") == 10


def test_a_bounded_read_tells_which_records_it_passes_over(cluster, poisoned):
    told: list[tuple[Any, TopicPartition, int]] = []

    def note(record: object, error: SerializationError) -> None:
        told.append((record, error.topic_partition, error.offset))

    reading = rayka.read(poisoned, cluster=cluster, value_deserializer=json.loads, on_poison=note)
    assert [each.offset for each in reading] == [1, 2, 4, 7, 8]
    assert told == [(None, TopicPartition(poisoned, 0), offset) for offset in (0, 3, 5, 6, 9)]


def test_on_poison_of_a_bounded_read_is_one_of_three(cluster, topic):
    with pytest.raises(ConfigError, match="on_poison: expected 'stop', 'skip' or a callable, found 'ignore'"):
        rayka.read(topic, cluster=cluster, on_poison="ignore")


# ---- How many records there are --------------------------------------------------------------------------------------


def test_the_length_of_a_read_of_a_compacted_topic_is_that_of_its_records(cluster):  # F20
    name = f"compacted-{next(_numbers)}"
    configs = {"cleanup.policy": "compact", "segment.bytes": 4096, "min.cleanable.dirty.ratio": 0.0}
    with Admin(cluster=cluster) as admin, Producer(cluster=cluster) as producer:
        admin.create_topic(name, partitions=1, configs=configs)
        for number in range(60):
            producer.send(name, b"x" * 300, key=b"%d" % (number % 5)).result(30)
    wait_until(lambda: len(rayka.read(name, cluster=cluster)) < 60)

    def is_exact() -> bool:
        """Once no compaction comes in between. A length that counts gaps is never that of the records."""
        reading = rayka.read(name, cluster=cluster, start={TopicPartition(name, 0): 3})
        return len(reading) == sum(1 for _ in reading) == len(list(reading)) < 57

    wait_until(is_exact)


class CountingHandle:
    """A cluster's handle that counts the records' bytes that were fetched."""

    def __init__(self, cluster: InProcessCluster) -> None:
        self._cluster = cluster
        self.name = cluster.name
        self.fetched_bytes = 0

    def network(self, transport: Transport = "auto") -> Network:
        port, handle = self._cluster.network(transport), self

        class Counting:
            async def node_ids(self) -> Sequence[int]:
                return await port.node_ids()

            async def call(self, node_id: int, request: Any, timeout_ms: int) -> Any:
                response = await port.call(node_id, request, timeout_ms)
                if isinstance(response, FetchResponse):
                    handle.fetched_bytes += sum(each.size_bytes for each in response.partitions)
                return response

        return Counting()  # type: ignore[return-value]


def test_a_list_of_a_compacted_topic_reads_the_topic_once(cluster):  # F20
    name = f"compacted-{next(_numbers)}"
    with Admin(cluster=cluster) as admin, Producer(cluster=cluster) as producer:
        admin.create_topic(name, partitions=2, configs={"cleanup.policy": "compact"})
        for number in range(50):
            producer.send(name, b"%d" % number, key=b"%d" % number, partition=number % 2)
    handle = CountingHandle(cluster)

    def is_read_by(use: Callable[[Reader], object]) -> int:
        before, reading = handle.fetched_bytes, rayka.read(name, cluster=handle)
        assert use(reading) in (50, {b"%d" % number for number in range(50)})
        return handle.fetched_bytes - before

    def values(records: Iterable[rayka.Record]) -> set[bytes]:
        return {each.value for each in records}

    once = is_read_by(len)
    assert once > 0
    assert is_read_by(lambda reading: values(list(reading))) == once
    assert is_read_by(lambda reading: values(tuple(reading))) == once
    assert is_read_by(lambda reading: len(reading) and values(list(reading))) == 2 * once

    def one_after_another(reading: Reader) -> object:
        left, records = iter(reading), iter(reading)
        del left
        return len(reading) and values(records) == values(reading) and values(reading)

    assert is_read_by(one_after_another) == 3 * once


def test_whether_a_read_is_empty_is_known_without_reading():
    with rayka.testing.cluster() as cluster:
        with Admin(cluster=cluster) as admin:
            admin.create_topic("table", partitions=1, configs={"cleanup.policy": "compact"})
        empty = rayka.read("table", cluster=cluster)
        with Producer(cluster=cluster) as producer:
            producer.send("table", b"v", key=b"k").result(30)
        reading = rayka.read("table", cluster=cluster)
        cluster.kill(1)
        assert reading
        assert not empty
