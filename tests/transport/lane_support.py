"""A node's end of a lane in this process: a server whose inbox answers as a test says."""

import asyncio
import socket
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from typing import Any
from uuid import UUID

import msgspec
import numpy as np

from rayka.protocol.apis import API_BY_NAME
from rayka.protocol.caller import Answer, Call
from rayka.protocol.wire import CallNumber, Encoded, Payload
from rayka.transport.greeting import WELCOME, LaneOffer, greeting
from rayka.transport.lane import Lane, open_lane
from rayka.transport.lane_server import Handle, LaneServer

NODE_ID, HOST, WAIT_S = 1, "127.0.0.1", 30.0


def run(coroutine: Coroutine[Any, Any, None]) -> None:
    """Runs a test on an event loop of its own; one that hangs fails."""

    async def bounded() -> None:
        async with asyncio.timeout(WAIT_S):
            await coroutine

    asyncio.run(bounded())


def call(body: bytes = b"body", *buffers: bytes, header: bytes = b"header") -> Call:
    """A call of `produce` whose parts are as given."""
    arrays = [np.frombuffer(each, dtype=np.uint8) for each in buffers]
    number = CallNumber(UUID(int=1), 0, 0)
    return Call(NODE_ID, API_BY_NAME["produce"], number, header, Encoded(body, arrays))


async def echo(api_name: str, header: bytes, body: bytes, payload: Payload) -> Answer:
    """Answers with what was asked."""
    return b"|".join((api_name.encode(), header, body)), payload


@asynccontextmanager
async def served(handle: Handle = echo) -> AsyncIterator[LaneServer]:
    """A server, and no connection or task left of it."""
    server = LaneServer(handle)
    server.start(HOST)
    try:
        yield server
    finally:
        server.close()
        await until(lambda: len(asyncio.all_tasks()) == 1)


@asynccontextmanager
async def connected(
    handle: Handle = echo, *, over_tcp: bool = False
) -> AsyncIterator[tuple[LaneServer, Lane]]:
    """A server and an open lane to it."""
    async with served(handle) as server:
        lane = await open_lane(NODE_ID, offer(server, over_tcp=over_tcp))
        try:
            yield server, lane
        finally:
            lane.close()


def offer(server: LaneServer, *, over_tcp: bool = False) -> LaneOffer:
    """The server's offer; with `over_tcp` as a caller on another machine sees it."""
    offered: LaneOffer = server.offer()
    return msgspec.structs.replace(offered, local_name="") if over_tcp else offered


def shown(server: LaneServer) -> LaneOffer:
    """The server's offer as callers of an older release understand it: they show the ticket itself."""
    return msgspec.structs.replace(server.offer(), has_proof=False)


async def raw_connection(server: LaneServer) -> socket.socket:
    """A connection on which a test sends what it wants."""
    connection = socket.create_connection((HOST, server.offer().port))
    connection.setblocking(False)
    return connection


async def greeted(server: LaneServer) -> socket.socket:
    """A connection that has shown its ticket."""
    connection = await raw_connection(server)
    connection.send(greeting(shown(server)))
    assert await asyncio.get_running_loop().sock_recv(connection, len(WELCOME)) == WELCOME
    return connection


async def until(holds: Callable[[], bool]) -> None:
    """Returns when it holds; `run` bounds the wait."""
    while not holds():  # noqa: ASYNC110  # there is no event for most of what is awaited
        await asyncio.sleep(0.001)
