"""Async clients in Ray's async actors: several calls of one actor are under way in its event loop together."""

import asyncio
import pickle
from collections.abc import Iterator
from itertools import count
from typing import Any

import pytest
import ray

import rayka
import rayka.aio

pytestmark = pytest.mark.ray
WAIT_S = 150
_numbers = count()


def new_pipe(cluster_name: str) -> Any:
    """An async actor; its class is pickled by value, as the module of a test is not there for its worker."""

    @ray.remote(num_cpus=0)
    class Pipe:
        """Finds the cluster by its name, as a user's actor would."""

        def __init__(self, cluster_name: str) -> None:
            self._producer = rayka.aio.Producer(cluster_name)
            self._cluster_name = cluster_name

        async def send(self, topic: str, number: int) -> int:
            metadata = await self._producer.send_and_wait(topic, b"%d" % number, partition=0)
            return metadata.offset

        async def read(self, topic: str, wanted_count: int) -> list[int]:
            found: list[int] = []
            consumer: Any = rayka.aio.Consumer(
                topic, cluster=self._cluster_name, group_id="pipe", auto_offset_reset="earliest"
            )
            async with consumer:
                async for record in consumer:
                    found.append(int(record.value))
                    if len(found) == wanted_count:
                        await consumer.commit()
                        break
            return found

        async def close(self) -> None:
            await self._producer.close()

    pipe: Any = Pipe
    return pipe.remote(cluster_name)


@pytest.fixture
def topic(cluster) -> Iterator[str]:
    name = f"async-actors-{next(_numbers)}"
    with rayka.Admin(cluster) as admin:
        admin.create_topic(name)
        yield name
        admin.delete_topic(name)


def test_calls_of_an_async_actor_send_and_read_together(cluster, topic):
    pipe = new_pipe(cluster.name)
    try:
        reading = pipe.read.remote(topic, 50)  # waits in the actor's loop, and holds up no other call
        offsets = ray.get([pipe.send.remote(topic, number) for number in range(50)], timeout=WAIT_S)
        assert sorted(offsets) == list(range(50))
        assert sorted(ray.get(reading, timeout=WAIT_S)) == list(range(50))
        ray.get(pipe.close.remote(), timeout=WAIT_S)
    finally:
        ray.kill(pipe)


def test_an_async_client_of_this_process_finds_the_cluster_by_name(cluster, topic):
    async def work() -> int:
        async with rayka.aio.Producer(cluster.name) as producer:
            return (await producer.send_and_wait(topic, b"x")).offset

    assert asyncio.run(work()) == 0


def test_a_task_that_captures_a_client_says_what_to_do(cluster):
    with rayka.Producer(cluster) as producer:

        @ray.remote
        def send() -> None:
            producer.send("orders", b"x")

        with pytest.raises((TypeError, pickle.PicklingError), match="make one where it is used"):
            send.remote()
