"""Look-ups of actors by name while the head of the Ray goes; without a Ray."""

import asyncio
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from rayka.actors import ray_head, ray_network
from rayka.actors.ray_network import NamedActors
from rayka.errors import NetworkException, RayEnded

WAIT_S = 60


class Head:
    """A head that accepts connections until it is killed, and a look-up there that ends when it is told to."""

    def __init__(self, listener: socket.socket) -> None:
        self.listener = listener
        self.is_asked = threading.Event()
        self.may_answer = threading.Event()

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.listener.getsockname()[1]}"

    def get_actor(self, name: str, namespace: str) -> str:
        self.is_asked.set()
        assert self.may_answer.wait(WAIT_S)
        return f"the handle of {name}"


@contextmanager
def running_head(monkeypatch: pytest.MonkeyPatch) -> Iterator[Head]:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        head = Head(listener)
        address = head.address
        monkeypatch.setattr(ray_network.ray, "get_actor", head.get_actor)
        monkeypatch.setattr(ray_head, "connection_id", lambda: ("node", "worker"))
        monkeypatch.setattr(ray_head, "head_address", lambda: address)
        monkeypatch.setattr(ray_head, "_LOOK_EVERY_S", 0.01)
        try:
            yield head
        finally:
            head.may_answer.set()


async def begin_look_up(actors: NamedActors, head: Head) -> "asyncio.Task[Any]":
    looking = asyncio.create_task(actors.look_up("broker-1"))
    assert await asyncio.to_thread(head.is_asked.wait, WAIT_S)
    return looking


def test_a_slow_look_up_goes_on_while_the_head_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    async def look(head: Head) -> None:
        actors = NamedActors(None, for_client=True)
        looking = await begin_look_up(actors, head)
        await asyncio.sleep(0.1)  # several looks at the head
        assert not looking.done()
        head.may_answer.set()
        assert await looking == "the handle of broker-1"

    with running_head(monkeypatch) as head:
        asyncio.run(look(head))


def test_a_look_up_that_was_begun_before_the_head_went_does_not_wait_for_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def look(head: Head) -> None:
        actors = NamedActors(None, for_client=True)
        looking = await begin_look_up(actors, head)
        head.listener.close()
        with pytest.raises(NetworkException, match="does not answer") as raised:
            await looking
        assert not isinstance(raised.value, RayEnded)
        monkeypatch.setattr(ray_head, "patience_s", lambda: 0.0)
        with pytest.raises(RayEnded, match="has ended"):
            await actors.look_up("broker-1")
        head.may_answer.set()

    with running_head(monkeypatch) as head:
        asyncio.run(look(head))


def test_all_clients_of_a_process_find_out_about_its_connection_together(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked: list[int] = []

    def connection_id() -> tuple[str, str]:
        asked.append(len(asked))
        return "node", f"worker {len(asked)}"

    now_s = 1e9
    monkeypatch.setattr(ray_head._Known, "connection", ("", ""))
    monkeypatch.setattr(ray_head._Known, "connection_until_s", 0.0)
    monkeypatch.setattr(ray_head, "connection_id", connection_id)
    monkeypatch.setattr(ray_head.ray, "is_initialized", lambda: True)
    monkeypatch.setattr(ray_head.time, "monotonic", lambda: now_s)
    assert [ray_head.recent_connection_id() for _ in range(3)] == [("node", "worker 1")] * 3
    now_s += 0.011
    assert ray_head.recent_connection_id() == ("node", "worker 2")
    monkeypatch.setattr(ray_head.ray, "is_initialized", lambda: False)
    assert ray_head.recent_connection_id() == ("node", "worker 3")
