"""A record that cannot be deserialized names its place; what stands before it is given first, and it can be skipped."""

import asyncio
import json
import pickle
from collections.abc import Callable, Iterable, Iterator
from itertools import count
from typing import Any

import pytest
from pydantic import BaseModel

import rayka
import rayka.aio
import rayka.testing
from rayka import Consumer, Producer, Record, TopicPartition
from rayka.errors import SerializationError
from rayka.testing import InProcessCluster

WAIT_S = 60
_numbers = count()


class User(BaseModel):
    name: str
    age: int


@pytest.fixture(scope="module")
def cluster() -> Iterator[InProcessCluster]:
    with rayka.testing.cluster() as running:
        yield running


def filled(cluster: InProcessCluster, *values: bytes | None, key: bytes | None = None) -> TopicPartition:
    """A topic whose values came in one batch."""
    name = f"users-{next(_numbers)}"
    with rayka.Admin(cluster) as admin, Producer(cluster, linger_ms=60_000) as producer:
        admin.create_topic(name, partitions=1)
        for value in values:
            producer.send(name, value, key=key)
    return TopicPartition(name, 0)


def consumer_of(cluster: InProcessCluster, tp: TopicPartition, **options: Any) -> Consumer:
    return Consumer(tp.topic, cluster=cluster, auto_offset_reset="earliest", **options)


def values(records: Iterable[Record]) -> Iterator[Any]:
    return (each.value for each in records)


POISONED = (b"0", b"1", b"not json", b"3", b"}", b"5")


def test_records_before_and_behind_poison_are_given_and_the_error_says_where(cluster: InProcessCluster):
    tp, found, places = filled(cluster, *POISONED), [], []
    with consumer_of(cluster, tp, value_deserializer="json") as consumer:
        while len(found) < 4:
            try:
                found += [each.value for each in consumer.poll()]
            except SerializationError as error:
                places.append((error.topic_partition, error.offset, consumer.position(tp)))
                consumer.seek(tp, consumer.position(tp) + 1)
    assert found == [0, 1, 3, 5]
    assert places == [(tp, 2, 2), (tp, 4, 4)]


def test_poison_is_raised_again_until_it_is_skipped(cluster: InProcessCluster):
    tp = filled(cluster, b"no", b"1")
    with consumer_of(cluster, tp, value_deserializer="json") as consumer:
        message = rf"{tp}, offset 0: value_deserializer: DecodeError: .*; seek to 1 to go on behind it"
        for _ in range(3):
            with pytest.raises(SerializationError, match=message):
                consumer.poll(timeout_ms=WAIT_S * 1_000)
        consumer.seek(tp, 1)
        assert [each.value for each in consumer.poll()] == [1]


def test_a_loop_ends_at_poison_and_the_next_goes_on_behind_it(cluster: InProcessCluster):
    tp, found = filled(cluster, *POISONED), []
    with consumer_of(cluster, tp, value_deserializer="json") as consumer:
        for offset in (2, 4):
            with pytest.raises(SerializationError) as raised:
                found.extend(values(consumer))
            assert raised.value.offset == offset
            consumer.seek(tp, offset + 1)
        found.append(next(iter(consumer)).value)
    assert found == [0, 1, 3, 5]


def test_arrow_has_what_cannot_be_deserialized(cluster: InProcessCluster):
    tp = filled(cluster, *POISONED)
    with consumer_of(cluster, tp, value_deserializer="json") as consumer:
        assert len(consumer.poll()) == 2
        batch = consumer.poll_arrow()
        assert batch is not None
        assert batch.column("value").to_pylist() == list(POISONED[2:])


def test_an_async_consumer_skips_poison(cluster: InProcessCluster):
    async def work() -> list[int]:
        found: list[int] = []
        options: Any = {"auto_offset_reset": "earliest", "value_deserializer": "json"}
        async with rayka.aio.Consumer(tp.topic, cluster=cluster, **options) as consumer:
            while len(found) < 4:
                try:
                    async for record in consumer:
                        found.append(record.value)
                        if len(found) == 4:
                            break
                except SerializationError as error:
                    await consumer.seek(tp, (error.offset or 0) + 1)
        return found

    tp = filled(cluster, *POISONED)
    assert asyncio.run(work()) == [0, 1, 3, 5]


def test_poison_in_the_key_counts_where_it_comes_first(cluster: InProcessCluster):
    name = filled(cluster).topic
    rows = [(b"1", b"1"), (b"2", b"}"), (b"}", b"3"), (b"4", b"4")]
    with Producer(cluster, linger_ms=60_000) as producer:
        for key, value in rows:
            producer.send(name, value, key=key, partition=0)
    options = {"key_deserializer": "json", "value_deserializer": "json"}
    with consumer_of(cluster, TopicPartition(name, 0), **options) as consumer:
        assert [each.value for each in consumer.poll()] == [1]
        with pytest.raises(SerializationError, match="offset 1: value_deserializer"):
            consumer.poll()
        consumer.seek(TopicPartition(name, 0), 2)
        with pytest.raises(SerializationError, match="offset 2: key_deserializer"):
            consumer.poll(timeout_ms=WAIT_S * 1_000)


def test_a_bounded_read_names_the_place_too(cluster: InProcessCluster):
    tp, found = filled(cluster, b"0", b"no"), []
    with pytest.raises(SerializationError, match=f"{tp}, offset 1"):
        found.extend(values(rayka.read(tp.topic, cluster=cluster, value_deserializer="json")))
    assert found == [0]


def test_an_error_behind_records_waits_until_they_are_given(cluster: InProcessCluster):
    """They were polled together with it, and their positions had moved."""
    tp = filled(cluster, b"0", b"1")
    with Producer(cluster) as producer:
        producer.send(tp.topic, b"no").result(WAIT_S)
    with consumer_of(cluster, tp, value_deserializer="json", fetch_max_wait_ms=1) as consumer:
        found: list[int] = []
        while len(found) < 2:
            found += [each.value for each in consumer.poll(max_records=100)]
        with pytest.raises(SerializationError):
            consumer.poll(timeout_ms=WAIT_S * 1_000)
    assert found == [0, 1]


# ---- Serializers that are told where ----


class Placed:
    def serialize(self, topic: str, headers: Any, data: Any) -> bytes:
        return json.dumps([topic, [key for key, _ in headers], data]).encode()

    def deserialize(self, topic: str, headers: Any, data: bytes) -> Any:
        return (topic, [key for key, _ in headers], json.loads(data))


def test_an_object_is_told_the_topic_and_the_headers(cluster: InProcessCluster):
    tp, placed = filled(cluster), Placed()
    with Producer(cluster, value_serializer=placed, key_serializer=placed) as producer:
        producer.send(tp.topic, 1, key="k", headers={"h": b"1"})
        producer.send(tp.topic, None)
        producer.send_batch(tp.topic, [Record(tp.topic, 0, 0, 1, None, 2, [("g", b"1")])])
        producer.send_batch(tp.topic, [3])
    with consumer_of(cluster, tp, value_deserializer=placed) as consumer:
        found: list[Record] = []
        while len(found) < 4:
            found += consumer.poll()
    name = tp.topic
    assert [each.value for each in found] == [
        (name, ["h"], [name, ["h"], 1]),
        None,
        (name, ["g"], [name, ["g"], 2]),
        (name, [], [name, [], 3]),
    ]
    assert found[0].key == json.dumps([name, ["h"], "k"]).encode()


def test_models_are_written_and_read(cluster: InProcessCluster):
    tp, users = filled(cluster), [User(name="Ada", age=36), User(name="Alan", age=41)]
    with Producer(cluster, value_serializer=User) as producer:
        for user in users:
            producer.send(tp.topic, user)
        with pytest.raises(SerializationError, match="expected User, found dict"):
            producer.send(tp.topic, {"name": "Eve"})
    with Consumer[User](
        tp.topic, cluster=cluster, auto_offset_reset="earliest", value_deserializer=User
    ) as consumer:
        found: list[Record[User]] = []
        while len(found) < 2:
            found += consumer.poll()
    assert [each.value for each in found] == users


# ---- What stays in its process ----


@pytest.mark.parametrize(
    "make",
    [
        Producer,
        rayka.Admin,
        lambda cluster: Consumer(cluster=cluster),
        rayka.aio.Producer,
        rayka.aio.Admin,
        lambda cluster: rayka.aio.Consumer(cluster=cluster),
    ],
)
def test_a_client_says_that_it_cannot_be_pickled_and_what_to_do(
    cluster: InProcessCluster, make: Callable[..., Any]
):
    client = make(cluster)
    with pytest.raises(TypeError, match=r"cannot be pickled, .* in the Ray task or actor itself"):
        pickle.dumps(client)
    closing = client.close()
    if closing is not None:
        asyncio.run(closing)
