"""How async clients look for their cluster: one look, which no task and no event loop that ends can break off."""

import asyncio
import threading
from collections.abc import Callable
from typing import Any

import pytest

from rayka.aio import Admin, Consumer, Producer
from rayka.errors import UnavailableError
from tests.client.support import QUICK, ScriptedCluster

WAIT_S = 60


class Gated(ScriptedCluster):
    """A cluster that is found once the gate opens; `error` is raised then instead, once."""

    def __init__(self, error: Exception | None = None) -> None:
        super().__init__()
        self.begun, self.gate = threading.Event(), threading.Event()
        self.error = error
        self.looks = 0

    def network(self, transport: str = "auto") -> ScriptedCluster:
        self.looks += 1
        self.begun.set()
        assert self.gate.wait(WAIT_S)
        error, self.error = self.error, None
        if error is not None:
            raise error
        return self


CLIENTS: dict[str, Callable[[Gated], Any]] = {
    "Producer": lambda cluster: Producer(cluster, **QUICK),
    "Consumer": lambda cluster: Consumer(cluster=cluster),
    "Admin": Admin,
}
each_client = pytest.mark.parametrize("make", CLIENTS.values(), ids=CLIENTS)


async def use(client: Any) -> None:
    async with asyncio.timeout(WAIT_S), client:
        pass


async def begun(client: Any, cluster: Gated) -> "asyncio.Task[None]":
    """A task that waits for the look."""
    task = asyncio.ensure_future(use(client))
    await asyncio.to_thread(cluster.begun.wait, WAIT_S)
    assert not task.done()
    return task


@each_client
def test_a_look_that_was_cut_off_with_its_loop_serves_the_next_loop(make: Callable[[Gated], Any]) -> None:
    async def cut_off() -> None:
        await begun(client, cluster)  # the end of the loop cancels it

    cluster = Gated()
    client = make(cluster)
    asyncio.run(cut_off())
    cluster.gate.set()
    asyncio.run(use(client))
    assert cluster.looks == 1


@each_client
def test_a_loop_that_was_closed_within_a_look_leaves_it_to_the_next_loop(
    make: Callable[[Gated], Any],
) -> None:
    cluster = Gated()
    client = make(cluster)
    loop = asyncio.new_event_loop()
    task = loop.run_until_complete(begun(client, cluster))
    loop.close()
    cluster.gate.set()
    asyncio.run(use(client))
    task._log_destroy_pending = False  # type: ignore[attr-defined]  # that is what happened
    assert cluster.looks == 1


@each_client
def test_a_task_that_is_cancelled_in_a_look_ends_its_own_wait_only(make: Callable[[Gated], Any]) -> None:
    async def work() -> None:
        first = await begun(client, cluster)
        second = await begun(client, cluster)
        first.cancel()
        await asyncio.wait([first])
        cluster.gate.set()
        await second
        assert first.cancelled()

    cluster = Gated()
    client = make(cluster)
    asyncio.run(work())
    assert cluster.looks == 1


@each_client
def test_a_failed_look_that_nobody_awaited_is_repeated(make: Callable[[Gated], Any]) -> None:
    async def cut_off() -> None:
        await begun(client, cluster)

    cluster = Gated(UnavailableError("not yet"))
    client = make(cluster)
    asyncio.run(cut_off())
    cluster.gate.set()
    while not client._look.done():
        threading.Event().wait(0.001)
    asyncio.run(use(client))
    assert cluster.looks == 2


@each_client
def test_a_client_whose_look_has_failed_has_nothing_to_close(make: Callable[[Gated], Any]) -> None:
    cluster = Gated(UnavailableError("not yet"))
    client = make(cluster)
    cluster.gate.set()
    with pytest.raises(UnavailableError, match="not yet"):
        asyncio.run(use(client))
    asyncio.run(client.close())
