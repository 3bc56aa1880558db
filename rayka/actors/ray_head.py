"""The head of the Ray that this process is connected to: which connection it is, and whether the head still answers.

Ray waits for a head that has gone: a look-up of a name for a minute, and after 60 s without its head it ends the whole
process with a line of its own. So everything that asks the head first tries whether anything listens at its address,
and a client raises RayEnded well before Ray ends the process. A head that comes back before that has not ended: calls
to nodes need it only where a name is looked up. Where another Ray has taken the place of one that ended, perhaps at the
same address, a process that rayka connected is connected to the new one, and its clients go on.
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
RECONNECT_VARIABLE = "RAY_gcs_rpc_server_reconnect_timeout_s"  # when Ray ends a process that lost its head
_RECONNECT_DEFAULT_S = 60.0
_SHARE_OF_IT = 4  # a client waits a quarter of it
_PATIENCE_MAX_S = 15.0
_PROBE_TIMEOUT_S = 2.0
_LOOK_EVERY_S = 1.0  # while Ray owes an answer
_CONNECTION_KNOWN_S = 0.01  # to make another one takes longer
ResultT = TypeVar("ResultT")


class _Loss(NamedTuple):
    connection: ConnectionId
    since_s: float


class _Known:
    """What all clients of this process share: `lost` since the head first did not answer, and the connection that rayka
    made so that the process `outlives` its Ray; `reconnect` replaces that connection.
    """

    connection: ConnectionId = ("", "")
    connection_until_s = 0.0
    lost: _Loss | None = None
    outlives: ConnectionId | None = None
    reconnect: Callable[[], bool] | None = None


def connection_id() -> ConnectionId:
    """What distinguishes this process's present connection to Ray from those before it: a driver's worker id counts the
    drivers of one Ray, the id of a Ray node is random. Raises NetworkException without a connection.

    Ray would start a new Ray by itself when a process that has none asks it for something.
    """
    if not ray.is_initialized():
        raise NetworkException(
            "this process is no longer connected to Ray; connect again with rayka.Cluster.connect() or ray.init()"
        )
    context = ray.get_runtime_context()
    return context.get_node_id(), context.get_worker_id()


def recent_connection_id() -> ConnectionId:
    """As `connection_id`, found out at most 10 ms ago: for one call of one of many clients that takes as long as the
    call itself. Raises as that, at once.
    """
    now_s = time.monotonic()
    if now_s >= _Known.connection_until_s or not ray.is_initialized():
        _Known.connection = connection_id()
        _Known.connection_until_s = now_s + _CONNECTION_KNOWN_S
    return _Known.connection


def head_address() -> str:
    """Where the head of the Ray is that this process is connected to."""
    address: str = ray.get_runtime_context().gcs_address
    return address


def outlive(reconnect: Callable[[], bool]) -> None:
    """Notes that this process lives on when the Ray of its present connection ends. `reconnect` connects the process to
    the Ray in the place of the ended one; False if there is none.
    """
    _Known.outlives, _Known.reconnect = connection_id(), reconnect


def check_head(*, for_client: bool) -> None:
    """Raises NetworkException when this process has no connection, or nothing listens where the head should; with
    `for_client` RayEnded when that has lasted for `patience_s`. Nodes end with their Ray, so they need no such error.
    Raises NetworkException, too, where the process was connected to another Ray: the call is repeated there.

    Takes some milliseconds where the head runs; blocks for up to two seconds, and for some more to connect again.
    """
    connection, address = connection_id(), head_address()
    if for_client:
        _connect_again(connection)
    _judge(connection, address, has_answered=answers(address, _PROBE_TIMEOUT_S), for_client=for_client)


async def while_head_answers(asked: "asyncio.Future[ResultT]", *, for_client: bool) -> ResultT:
    """What Ray was asked for, off the event loop. Raises as `check_head` as soon as the head is gone meanwhile, for
    which Ray itself waits a minute. What was asked goes on until it ends by itself.
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
    """Raises NetworkException, upon which a call is repeated, if the Ray of the connection has ended and the process is
    connected to another one now.
    """
    if connection != _Known.outlives or _Known.reconnect is None:
        return
    if _Known.reconnect() or connection_id() != connection:
        raise NetworkException("this process was connected to the Ray in the place of the one that has ended")


def _take_note(asked: "asyncio.Future[ResultT]") -> None:
    """Else Python complains of an exception that was never retrieved."""
    if not asked.cancelled():
        asked.exception()


async def _has_answered(address: str) -> bool:
    """As `answers`, without a thread: those of the loop may all wait for the head."""
    host, _, port = address.rpartition(":")
    try:
        async with asyncio.timeout(_PROBE_TIMEOUT_S):
            _, writer = await asyncio.open_connection(host.strip("[]"), int(port))
    except OSError:  # TimeoutError is one
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
    raise RayEnded(
        f"the Ray at {address} has ended: for {lost_s:.0f} s nothing has answered there; when its nodes have ended "
        f"too, start it again (`rayka start`){_fate(connection)}"
    )


def answers(address: str, timeout_s: float) -> bool:
    """Whether anything accepts connections there."""
    try:
        knock(address, timeout_s)
    except OSError:
        return False
    return True


def knock(address: str, timeout_s: float) -> None:
    """Makes a connection and closes it. Raises OSError."""
    host, _, port = address.rpartition(":")
    socket.create_connection((host.strip("[]"), int(port)), timeout=timeout_s).close()


def patience_s() -> float:
    """How long a head may be away until its Ray counts as ended: well before Ray ends the process."""
    return min(_PATIENCE_MAX_S, _reconnect_s() / _SHARE_OF_IT)


def _fate(connection: ConnectionId) -> str:
    if connection == _Known.outlives:
        return "; this process then connects to it by itself, and its clients go on"
    return (
        ", then make a new client, in this process after ray.shutdown(). Ray itself ends this process "
        f"{_reconnect_s():g} s after it lost its head, as ray.init() connected it"
    )


def _reconnect_s() -> float:
    try:
        return float(os.environ[RECONNECT_VARIABLE])
    except (KeyError, ValueError):
        return _RECONNECT_DEFAULT_S
