"""Where calls enter a node: decoded, put in their caller's order, bounded, handed to the node, answered.

A shell (the Ray actor, the in-process cluster) hands every call to `Inbox.handle` and returns what it
gives. Invariants: of one caller, calls start in the order of their numbers, each at most once, and a call
has run to its first wait before the next one starts; the requests of an API that wait are bounded, by number
and by bytes, but what keeps the cluster alive (heartbeats, fetches of followers and observers, status) is
always admitted; nothing here refers to a request once its handler has it; no exception leaves, except that of
the task being cancelled.

Kafka: `SocketServer` (ordering, throttling, `queued.max.request.bytes`) and `KafkaApis` (dispatch).
"""

import asyncio
from collections.abc import Awaitable
from typing import Any, Protocol
from uuid import UUID

from rayka.errors import (
    ApiError,
    InvalidRequest,
    KafkaStorageError,
    NetworkException,
    StorageError,
    TooManyRequests,
    UnknownServerError,
    UnsupportedVersion,
)
from rayka.ids import NO_NODE, node_name
from rayka.node.settings import NodeSettings
from rayka.ports import Message
from rayka.protocol.apis import API_BY_NAME, APIS, Api, ServedBy
from rayka.protocol.caller import Answer
from rayka.protocol.connection import Admission, CallNumber, Inbound
from rayka.protocol.fetch import FetchRequest
from rayka.protocol.wire import Failure, Payload, RequestHeader, decode, encode, payload_bytes

VERSION_MAX = 0  # the newest version of requests that this node knows
GAP_TIMEOUT_S = 1.0
_ALWAYS_ADMITTED = ("heartbeat", "register_broker", "status")


class Node(Protocol):
    """What receives calls. `serves` says which rows of the table of APIs it answers."""

    @property
    def settings(self) -> NodeSettings: ...

    @property
    def serves(self) -> ServedBy: ...

    def handle(self, request: Any) -> Awaitable[Message]:
        """The response to a request that its API's check has let pass, run to its first wait when this returns.

        May raise ApiError, at once or when awaited, which the caller then gets; any other exception is a bug and ends
        the node.
        """
        ...


class _Waiting:
    """The requests of one API that were started and are not answered yet."""

    __slots__ = ("count", "size_bytes")

    def __init__(self) -> None:
        self.count = 0
        self.size_bytes = 0


class Inbox:
    """The entrance of one node. A call after a gap is held for `gap_timeout_s`; then its connection is
    closed."""

    def __init__(self, node: Node, *, gap_timeout_s: float = GAP_TIMEOUT_S) -> None:
        self._node = node
        self._settings = node.settings
        self._gap_timeout_s = gap_timeout_s
        self._waiting = {api.name: _Waiting() for api in APIS if api.served_by & node.serves}
        self._inbound = Inbound()
        self._held: dict[UUID, dict[int, tuple[CallNumber, asyncio.Future[None]]]] = {}

    def __repr__(self) -> str:
        waiting = {name: each.count for name, each in self._waiting.items() if each.count}
        return f"<Inbox of {node_name(self._settings.node_id)} waiting={waiting} held={len(self._held)}>"

    async def handle(self, api_name: str, header: bytes, body: bytes, payload: Payload) -> Answer:
        """Executes one call; the answer is a response, or a Failure when there is no payload."""
        executing = self._execute(api_name, header, body, payload)
        del body, payload  # the handler may let go of them before it answers
        try:
            response = encode(await executing)
            return response.body, response.payload()
        except ApiError as error:
            return _failure(error)
        except StorageError as error:
            return _failure(KafkaStorageError(str(error)))
        except Exception as error:  # a bug: the node ends and comes back from its disk
            self._settings.crash(error)
            return _failure(UnknownServerError(f"{self._name} failed: {error!r}; its log has the cause"))

    async def _execute(self, api_name: str, header_bytes: bytes, body: bytes, payload: Payload) -> Message:
        header = decode(RequestHeader, header_bytes)
        await self._take_turn(header.call)
        api = self._served(api_name)
        if header.version > VERSION_MAX:
            raise UnsupportedVersion(
                f"{self._name} knows {api_name} up to version {VERSION_MAX}, found {header.version}"
            )
        request = decode(api.request_type, body, payload)
        api.check(request)
        self._check_bound(api_name, request)
        waiting, size_bytes = self._waiting[api_name], len(body) + payload_bytes(payload)
        waiting.count += 1
        waiting.size_bytes += size_bytes
        try:
            answering = self._node.handle(request)
            del request, body, payload
            return await answering
        finally:
            waiting.count -= 1
            waiting.size_bytes -= size_bytes

    def _served(self, api_name: str) -> Api:
        if api_name not in self._waiting:
            raise InvalidRequest(
                f"{self._name} does not serve {api_name!r}; it serves {', '.join(self._waiting)}"
            )
        return API_BY_NAME[api_name]

    def _check_bound(self, api_name: str, request: Any) -> None:
        """The request that reaches the bound of bytes is the last to be admitted, so a large one gets its turn, too."""
        waiting, config = self._waiting[api_name], self._settings.config
        if waiting.count >= config.max_parked_requests:
            found = f"{waiting.count} waiting {api_name} requests"
        elif waiting.size_bytes >= config.queued_max_request_bytes:
            found = f"{waiting.size_bytes} bytes in waiting {api_name} requests"
        else:
            return
        is_replica = isinstance(request, FetchRequest) and request.replica_id != NO_NODE
        if not is_replica and api_name not in _ALWAYS_ADMITTED:
            raise TooManyRequests(f"{self._name} has {found}, its bound; retry later")

    @property
    def _name(self) -> str:
        return node_name(self._settings.node_id)

    # ---- Order -----------------------------------------------------------------------------------------

    async def _take_turn(self, call: CallNumber) -> None:
        """Returns when it is this call's turn; the next one is woken, and runs after this one's first
        wait."""
        admission = self._inbound.admit(call)
        if call.caller_id in self._held:
            self._refuse_held(call.caller_id, below_epoch=call.epoch)
        if admission is Admission.HOLD:
            await self._hold(call)
        if admission is Admission.REFUSE or (
            admission is Admission.HOLD and not self._inbound.start_held(call)
        ):
            raise NetworkException(f"{self._name} refused a late or repeated call; its connection was closed")
        following = self._inbound.next_held(call.caller_id)
        if following is not None:
            self._wake(following)

    async def _hold(self, call: CallNumber) -> None:
        loop = asyncio.get_running_loop()
        turn = loop.create_future()
        self._held.setdefault(call.caller_id, {})[call.number] = (call, turn)
        timer = loop.call_later(self._gap_timeout_s, self._close, call)
        try:
            await turn
        except asyncio.CancelledError:
            self._close(call)
            raise
        finally:
            timer.cancel()

    def _wake(self, call: CallNumber) -> None:
        held = self._held[call.caller_id]
        _, turn = held.pop(call.number)
        if not held:
            del self._held[call.caller_id]
        if not turn.done():  # its task may have been cancelled
            turn.set_result(None)

    def _close(self, call: CallNumber) -> None:
        """The gap before a held call was not filled in time, or the call itself is gone."""
        self._inbound.close(call)
        self._refuse_held(call.caller_id, below_epoch=call.epoch + 1)

    def _refuse_held(self, caller_id: UUID, below_epoch: int) -> None:
        held = self._held.get(caller_id, {})
        for call, turn in [each for each in held.values() if each[0].epoch < below_epoch]:
            del held[call.number]
            if not turn.done():  # its task may have been cancelled
                turn.set_exception(
                    NetworkException(f"{self._name} closed a connection: a call before this one was lost")
                )
        if not held:
            self._held.pop(caller_id, None)


def _failure(error: ApiError) -> Answer:
    return encode(Failure.of(error)).body, None
