"""Committed offsets: commits of a hundred groups at once, and a million offsets that a coordinator loads."""

import asyncio
import threading
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import rayka
from rayka.client import io_thread
from rayka.client.bootstrap import ClusterHandle
from rayka.errors import ApiError
from rayka.ports import Network
from rayka.protocol.groups import (
    CommittedOffset,
    FindCoordinatorRequest,
    OffsetCommitRequest,
    OffsetFetchRequest,
)

_TIMEOUT_MS, _TIMEOUT_S = 30_000, 120.0
# Ray keeps a call to an actor that restarts for up to two seconds after the actor runs again, and fails it then; one
# that is sent meanwhile is answered at once.
_FIND_TIMEOUT_MS = 100
_IN_FLIGHT = 8


class RaykaGroups:
    """Groups without members that are there; `with` ends them."""

    def __init__(self, cluster: ClusterHandle, topic: str, count: int) -> None:
        self._partition = rayka.TopicPartition(topic, 0)
        self._consumers: list[rayka.Consumer[Any]] = []
        for number in range(count):
            options: dict[str, Any] = {"group_id": f"commits-{number}", "enable_auto_commit": False}
            consumer: rayka.Consumer[Any] = rayka.Consumer(cluster=cluster, **options)
            self._consumers.append(consumer)
            consumer.assign([self._partition])
            consumer.pause(self._partition)
            consumer.commit({self._partition: 0})

    def __enter__(self) -> "RaykaGroups":
        return self

    def __exit__(self, *_: object) -> None:
        for each in self._consumers:
            each.close()

    def rate(self, commits: int) -> float:
        """Commits/s: each group commits as soon as its last commit is done."""
        done, left, lock = threading.Event(), commits, threading.Lock()

        def next_of(consumer: "rayka.Consumer[Any]") -> Callable[..., None]:
            def on_commit(offsets: object, error: Exception | None) -> None:
                nonlocal left
                assert error is None, error
                with lock:
                    left -= 1
                    number = left
                if number > 0:
                    consumer.commit_async({self._partition: number}, on_commit)
                elif number == 0:
                    done.set()

            return on_commit

        def begin() -> None:
            """On the IO thread, as what follows is: a consumer is not for two threads at once."""
            for consumer in self._consumers:
                consumer.commit_async({self._partition: 1}, next_of(consumer))

        started = time.perf_counter()
        io_thread.call_soon(begin)
        assert done.wait(_TIMEOUT_S)
        return commits / (time.perf_counter() - started)


class ConfluentGroups:
    """The same with confluent-kafka, whose callbacks come in `poll`."""

    def __init__(self, address: str, topic: str, count: int) -> None:
        from confluent_kafka import Consumer, TopicPartition

        self._place: Callable[[int], Any] = lambda offset: TopicPartition(topic, 0, offset)
        self._waiting: set[int] = set()
        self._consumers: list[Any] = []
        for number in range(count):
            group = {"group.id": f"commits-{number}", "enable.auto.commit": False}
            on_commit = partial(self._on_commit, number)
            consumer = Consumer({"bootstrap.servers": address, "on_commit": on_commit, **group})
            self._consumers.append(consumer)
            consumer.assign([TopicPartition(topic, 0)])
            consumer.commit(offsets=[self._place(0)], asynchronous=False)
            consumer.pause([TopicPartition(topic, 0)])

    def __enter__(self) -> "ConfluentGroups":
        return self

    def __exit__(self, *_: object) -> None:
        for each in self._consumers:
            each.close()

    def rate(self, commits: int) -> float:
        done, started = -len(self._consumers), time.perf_counter()
        while done < commits:
            for number, consumer in enumerate(self._consumers):
                consumer.poll(0)
                if number not in self._waiting:
                    done += 1
                    self._waiting.add(number)
                    consumer.commit(offsets=[self._place(max(0, done))], asynchronous=True)
        return commits / (time.perf_counter() - started)

    def _on_commit(self, number: int, error: Any, _: Any) -> None:
        assert error is None, error
        self._waiting.discard(number)


# ---- A million of them -----------------------------------------------------------------------------------------------


def rayka_fill(cluster: ClusterHandle, *, groups: int, partitions: int) -> None:
    """Commits an offset of so many partitions in each of so many groups."""
    io_thread.run(partial(_for_all, cluster, groups, lambda name: _commit_of(name, partitions)), _TIMEOUT_S)


def rayka_loaded_s(cluster: ClusterHandle, *, groups: int) -> float:
    """Seconds until the coordinators of all groups have answered what is committed of one partition."""
    started = time.perf_counter()
    one = (rayka.TopicPartition("loaded", 0),)
    io_thread.run(partial(_for_all, cluster, groups, lambda name: OffsetFetchRequest(name, one)), _TIMEOUT_S)
    return time.perf_counter() - started


def _commit_of(group_id: str, partitions: int) -> OffsetCommitRequest:
    return OffsetCommitRequest(
        group_id, tuple(CommittedOffset("loaded", number, 1) for number in range(partitions))
    )


async def _for_all(cluster: ClusterHandle, groups: int, request: Callable[[str], Any]) -> None:
    network, names = cluster.network(), iter([f"loaded-{number}" for number in range(groups)])

    async def work() -> None:
        for name in names:
            await _ask(network, name, request(name))

    await asyncio.gather(*(work() for _ in range(_IN_FLIGHT)))


async def _ask(network: Network, group_id: str, request: Any) -> None:
    """Asks until the coordinator answers."""
    async with asyncio.timeout(_TIMEOUT_S):
        while True:
            try:
                broker_id = min(await network.node_ids())
                find = FindCoordinatorRequest((group_id,))
                found = await network.call(broker_id, find, _FIND_TIMEOUT_MS)
                await network.call(found.coordinators[0].node_id, request, _TIMEOUT_MS)
                return
            except ApiError:
                await asyncio.sleep(0.01)


def kafka_fill(address: str, topic: str, *, groups: int, partitions: int) -> None:
    """The same of Kafka, whose broker knows the topic."""
    from confluent_kafka import TopicPartition

    offsets = [TopicPartition(topic, number, 1) for number in range(partitions)]
    for number in range(groups):
        consumer = _kafka_consumer(address, f"loaded-{number}")
        consumer.commit(offsets=offsets, asynchronous=False)
        consumer.close()


def kafka_loaded_s(address: str, topic: str, *, groups: int) -> float:
    from confluent_kafka import KafkaException, TopicPartition

    started = time.perf_counter()
    for number in range(groups):
        consumer = _kafka_consumer(address, f"loaded-{number}")
        while True:
            try:
                consumer.committed([TopicPartition(topic, 0)], 2)
                break
            except KafkaException:
                time.sleep(0.01)
        consumer.close()
    return time.perf_counter() - started


def _kafka_consumer(address: str, group_id: str) -> Any:
    from confluent_kafka import Consumer

    return Consumer({"bootstrap.servers": address, "group.id": group_id, "enable.auto.commit": False})
