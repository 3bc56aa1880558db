"""The head of the Ray that this process is connected to: identifies the connection, and finds out whether the head
answers.

Ray waits for a head that has gone: a look-up of a name takes a minute, and 60 s after it lost its head Ray ends the
whole process. So all code that asks the head first tries whether anything listens at the head's address, and a client
raises RayEnded well before Ray ends the process. A head that comes back in time has not ended: calls to nodes need the
head only to look up names.

Another Ray may take the place of an ended one, perhaps at the same address. A process that rayka connected is then
connected to the new one, and its clients go on.
"""

import asyncio
import os
import socket
import time
from collections.abc import Callable
from typing import NamedTuple, TypeVar

import ray

from rayka.errors import NetworkException, RayEnded

ConnectionId = tuple[str, str]
# How long Ray waits for a lost head before it ends the process.
RECONNECT_VARIABLE = "RAY_gcs_rpc_server_reconnect_timeout_s"
_RECONNECT_DEFAULT_S = 60.0
# A client waits a quarter of that time.
_SHARE_OF_IT = 4
_PATIENCE_MAX_S = 15.0
_PROBE_TIMEOUT_S = 2.0
# How often the head is looked at while Ray owes an answer.
_LOOK_EVERY_S = 1.0
# Another connection takes longer to make.
_CONNECTION_KNOWN_S = 0.01
ResultT = TypeVar("ResultT")


class _Loss(NamedTuple):
    connection: ConnectionId
    since_s: float


class _Known:
    """The state that all clients of this process share."""

    # The connection as it was found out last, and how long that counts.
    connection: ConnectionId = ("", "")
    connection_until_s = 0.0
    # Since when the head does not answer; None while it does.
    lost: _Loss | None = None
    # The connection that rayka made so that the process outlives its Ray, and the function that replaces it.
    outlives: ConnectionId | None = None
    reconnect: Callable[[], bool] | None = None


def connection_id() -> ConnectionId:
    """Identifies this process's present connection to Ray. A driver's worker id counts the drivers of one Ray, and the
    id of a Ray node is random, so both together differ from those of earlier connections.

    Raises NetworkException without a connection: Ray would start a new Ray by itself when asked for something.
    """
    if not ray.is_initialized():
        raise NetworkException(
            "this process is no longer connected to Ray; connect again with rayka.Cluster.connect() or ray.init()"
        )
    context = ray.get_runtime_context()
    return context.get_node_id(), context.get_worker_id()


def recent_connection_id() -> ConnectionId:
    """Returns the `connection_id` of at most 10 ms ago: with many clients, finding it out takes as long as a call.
    Raises NetworkException, at once.
    """
    now_s = time.monotonic()
    if now_s >= _Known.connection_until_s or not ray.is_initialized():
        _Known.connection = connection_id()
        _Known.connection_until_s = now_s + _CONNECTION_KNOWN_S
    return _Known.connection


def head_address() -> str:
    """Returns the address of the head of the Ray that this process is connected to."""
    address: str = ray.get_runtime_context().gcs_address
    return address


def outlive(reconnect: Callable[[], bool]) -> None:
    """Notes that this process outlives the Ray of its present connection. `reconnect` connects the process to the Ray
    that took the place of the ended one, and returns False if there is none.
    """
    _Known.outlives, _Known.reconnect = connection_id(), reconnect


def check_head(*, for_client: bool) -> None:
    """Checks that this process has a connection, and that its head is reachable.

    Raises NetworkException if not, and after connecting the process to another Ray, where the caller repeats the call.
    With `for_client`, raises RayEnded when the head has been away for `patience_s`; nodes end with their Ray, so they
    need no such error. Takes some milliseconds if the head runs, up to two seconds if not, and some more to connect
    again.
    """
    connection, address = connection_id(), head_address()
    if for_client:
        _connect_again(connection)
    _judge(connection, address, has_answered=is_listening(address, _PROBE_TIMEOUT_S), for_client=for_client)


async def while_head_answers(asked: "asyncio.Future[ResultT]", *, for_client: bool) -> ResultT:
    """Awaits an answer that Ray owes, off the event loop. Raises as `check_head` as soon as the head is gone; Ray
    itself would wait a minute. The question to Ray goes on until it ends by itself.
    """
    asked.add_done_callback(_take_note)
    while not (await asyncio.wait([asked], timeout=_LOOK_EVERY_S))[0]:
        connection, address = connection_id(), head_address()
        has_answered = await _has_answered(address)
        if not asked.done():
            if for_client and not has_answered:
                await asyncio.get_running_loop().run_in_executor(None, _connect_again, connection)
            _judge(connection, address, has_answered=has_answered, for_client=for_client)
    return asked.result()


def _connect_again(connection: ConnectionId) -> None:
    """Connects the process to another Ray if the Ray of the connection has ended. Raises NetworkException then, upon
    which the caller repeats the call.
    """
    if connection != _Known.outlives or _Known.reconnect is None:
        return
    if _Known.reconnect() or connection_id() != connection:
        raise NetworkException("this process was connected to the Ray in the place of the one that has ended")


def _take_note(asked: "asyncio.Future[ResultT]") -> None:
    """Retrieves the exception: else Python complains that it was never retrieved."""
    if not asked.cancelled():
        asked.exception()


async def _has_answered(address: str) -> bool:
    """As `is_listening`, without a thread: all threads of the loop may be waiting for the head."""
    host, _, port = address.rpartition(":")
    try:
        async with asyncio.timeout(_PROBE_TIMEOUT_S):
            _, writer = await asyncio.open_connection(host.strip("[]"), int(port))
    except OSError:
        # A TimeoutError is an OSError.
        return False
    writer.close()
    return True


def _judge(connection: ConnectionId, address: str, *, has_answered: bool, for_client: bool) -> None:
    if has_answered:
        _Known.lost = None
        return
    lost = _Known.lost
    if lost is None or lost.connection != connection:
        lost = _Known.lost = _Loss(connection, time.monotonic())
    lost_s = time.monotonic() - lost.since_s
    if not for_client or lost_s < patience_s():
        raise NetworkException(f"the Ray at {address} does not answer: has it ended?")
    if connection == _Known.outlives:
        advice = "; this process then connects to it by itself, and its clients go on"
    else:
        advice = (
            ", then make a new client, in this process after ray.shutdown(). Ray itself ends this process "
            f"{_reconnect_s():g} s after it lost its head, as ray.init() connected it"
        )
    raise RayEnded(
        f"the Ray at {address} has ended: for {lost_s:.0f} s nothing has answered there; when its nodes have ended "
        f"too, start it again (`rayka start`){advice}"
    )


def is_listening(address: str, timeout_s: float) -> bool:
    """Whether anything accepts connections at the address."""
    try:
        try_connection(address, timeout_s)
    except OSError:
        return False
    return True


def try_connection(address: str, timeout_s: float) -> None:
    """Makes a connection and closes it. Raises OSError."""
    host, _, port = address.rpartition(":")
    socket.create_connection((host.strip("[]"), int(port)), timeout=timeout_s).close()


def patience_s() -> float:
    """How long a head may be away until its Ray counts as ended: well before Ray ends the process."""
    return min(_PATIENCE_MAX_S, _reconnect_s() / _SHARE_OF_IT)


def _reconnect_s() -> float:
    try:
        return float(os.environ[RECONNECT_VARIABLE])
    except (KeyError, ValueError):
        return _RECONNECT_DEFAULT_S
