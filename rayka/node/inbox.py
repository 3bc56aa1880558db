"""Where calls enter a node: decoded, put in their caller's order, bounded, handed to the node, answered.

A shell (the Ray actor, the direct lane, the in-process cluster) hands every call to `Inbox.start` or `Inbox.handle` and
returns what that gives. Invariants: of one caller, calls are handed to the node in the order of their numbers, each at
most once, and what a handler does without waiting (a fetch looks) is done by then; the requests of an API that wait
are bounded, by number and by bytes, but what keeps the cluster alive (heartbeats, fetches of followers and observers,
status) is always admitted; nothing here refers to a request once its handler has it; no exception leaves, except that
of the task being cancelled.

Kafka: `SocketServer` (ordering, throttling, `queued.max.request.bytes`) and `KafkaApis` (dispatch).
"""

import asyncio
from collections.abc import Coroutine
from dataclasses import dataclass
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
from rayka.ports import Message, Request
from rayka.protocol.apis import API_BY_NAME, APIS, Api, ServedBy
from rayka.protocol.caller import Answer
from rayka.protocol.fetch import FetchRequest
from rayka.protocol.later import Later
from rayka.protocol.wire import (
    Admission,
    CallNumber,
    Failure,
    Inbound,
    Payload,
    RequestHeader,
    decode,
    encode,
    payload_bytes,
)

# What a handler gives: its response where it need not wait, else what brings it.
#
# A request that can be answered at once so needs no task, and what it did is done when the handler returns. Nor does
# one that waits for news of partitions (`Later`): what its handler does then is done in the turn that brings the news.


Response = Message | Later[Any] | Coroutine[Any, Any, Any]


async def completed(response: Response) -> Any:
    """The response, awaited where it has to be."""
    return response if isinstance(response, Message) else await response


VERSION_MAX = 0  # the newest version of requests that this node knows
GAP_TIMEOUT_S = 1.0
_ALWAYS_ADMITTED = ("heartbeat", "register_broker", "status")

Answering = Answer | Later[Answer] | Coroutine[Any, Any, Answer]


class Node(Protocol):
    """What receives calls. `serves` says which rows of the table of APIs it answers."""

    @property
    def settings(self) -> NodeSettings: ...

    @property
    def serves(self) -> ServedBy: ...

    def handle(self, request: Any) -> Response:
        """The response to a request that its API's check has let pass, or what is to be awaited for it.

        May raise ApiError, at once or when awaited, which the caller then gets; any other exception is a bug and ends
        the node.
        """
        ...


@dataclass(slots=True)
class _Waiting:
    """The requests of one API that were started and are not answered yet."""

    count: int = 0
    size_bytes: int = 0

    def add(self, size_bytes: int) -> "_Waiting":
        self.count += 1
        self.size_bytes += size_bytes
        return self

    def remove(self, size_bytes: int) -> None:
        self.count -= 1
        self.size_bytes -= size_bytes


class Inbox:
    """The entrance of one node. A call after a gap is held for `gap_timeout_s`; then its connection is
    closed."""

    def __init__(self, node: Node, *, gap_timeout_s: float = GAP_TIMEOUT_S) -> None:
        self._node = node
        self._settings = node.settings
        self._name = node_name(node.settings.node_id)
        self._gap_timeout_s = gap_timeout_s
        self._waiting = {api.name: _Waiting() for api in APIS if api.served_by & node.serves}
        # Requests that are always admitted, such as fetches of replicas, which wait all the time. They take no places
        # of clients' requests.
        self._always_admitted = _Waiting()
        self._inbound = Inbound()
        self._held: dict[UUID, dict[int, tuple[CallNumber, asyncio.Future[None]]]] = {}

    def __repr__(self) -> str:
        waiting = {name: each.count for name, each in self._waiting.items() if each.count}
        return f"<Inbox of {self._name} waiting={waiting} held={len(self._held)}>"

    async def handle(self, api_name: str, header: bytes, body: bytes, payload: Payload) -> Answer:
        """As `start`, to its end."""
        answer = self.start(api_name, header, body, payload)
        del header, body, payload  # the handler may let go of them before it answers
        return answer if isinstance(answer, tuple) else await answer

    def start(self, api_name: str, header: bytes, body: bytes, payload: Payload) -> Answering:
        """Executes one call as far as it goes without waiting. The answer is a response, or a Failure when there is no
        payload; of a call that waits, what brings it, or what is to be awaited for it.
        """
        try:
            head = decode(RequestHeader, header)
            turn = self._take_turn(head.call)
        except Exception as error:
            return self._refusal(error)
        if turn is not None:
            return self._execute_in_turn(head, turn, (api_name, body, payload))
        return self._execute(head, api_name, body, payload)

    def _execute(self, head: RequestHeader, api_name: str, body: bytes, payload: Payload) -> Answering:
        """The next call, if it is here already, is woken once this one has run to its first wait."""
        request: Any = None
        response: Response | Exception
        try:
            request = self._admitted(head, api_name, body, payload)
            response = self._node.handle(request)
        except Exception as error:
            response = error
        answer: Answer | Later[Answer]
        if isinstance(response, (Message, Exception)):
            answer = self.answer_of(response)
        else:
            size_bytes = len(body) + payload_bytes(payload)
            is_bounded = not _is_always_admitted(api_name, request)
            waiting = (self._waiting[api_name] if is_bounded else self._always_admitted).add(size_bytes)
            if not isinstance(response, Later):
                return self._wait(head.call, response, waiting, size_bytes)
            answer = self._answer_later(response, waiting, size_bytes)
        self._wake_next(head.call)
        return answer

    def _admitted(self, head: RequestHeader, api_name: str, body: bytes, payload: Payload) -> Any:
        api = self._served(api_name)
        if head.version > VERSION_MAX:
            raise UnsupportedVersion(
                f"{self._name} knows {api_name} up to version {VERSION_MAX}, found {head.version}"
            )
        request: Request[Any] = decode(api.request_type, body, payload)
        request.check()
        self._check_bound(api_name, request)
        return request

    async def _wait(
        self, call: CallNumber, answering: Coroutine[Any, Any, Message], waiting: _Waiting, size_bytes: int
    ) -> Answer:
        self._wake_next(call)
        try:
            return self.answer_of(await answering)
        except Exception as error:
            return self._refusal(error)
        finally:
            waiting.remove(size_bytes)

    def _answer_later(self, response: Later[Any], waiting: _Waiting, size_bytes: int) -> Later[Answer]:
        def on_end(outcome: Message | BaseException) -> None:
            waiting.remove(size_bytes)
            answer.end(self.answer_of(outcome))

        def give_up() -> None:
            waiting.remove(size_bytes)
            response.cancel()

        answer: Later[Answer] = Later(give_up)
        response.then(on_end)
        return answer

    def answer_of(self, outcome: Message | BaseException) -> Answer:
        """A handler's outcome as it leaves."""
        if isinstance(outcome, BaseException):
            return self._refusal(outcome)
        try:
            encoded = encode(outcome)
            return encoded.body, encoded.payload()
        except Exception as error:
            return self._refusal(error)

    def _refusal(self, error: BaseException) -> Answer:
        match error:
            case ApiError():
                refusal = error
            case StorageError():
                refusal = KafkaStorageError(str(error))
            case _:  # a bug: the node ends and comes back from its disk
                self._settings.crash(error)
                refusal = UnknownServerError(f"{self._name} failed: {error!r}; its log has the cause")
        return encode(Failure.of(refusal)).body, None

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
        if not _is_always_admitted(api_name, request):
            raise TooManyRequests(f"{self._name} has {found}, its bound; retry later")

    # ---- Order -----------------------------------------------------------------------------------------

    def _take_turn(self, call: CallNumber) -> asyncio.Future[None] | None:
        """None when it is this call's turn, else what is done when it is."""
        admission = self._inbound.admit(call)
        if self._held and call.caller_id in self._held:
            self._refuse_held(call.caller_id, below_epoch=call.epoch)
        if admission is Admission.HOLD:
            loop = asyncio.get_running_loop()
            turn = loop.create_future()
            timer = loop.call_later(self._gap_timeout_s, self._close, call)
            turn.add_done_callback(lambda _: timer.cancel())
            self._held.setdefault(call.caller_id, {})[call.number] = (call, turn)
            return turn
        if admission is Admission.REFUSE:
            raise self._late()
        return None

    async def _execute_in_turn(
        self, head: RequestHeader, turn: asyncio.Future[None], arguments: tuple[str, bytes, Payload]
    ) -> Answer:
        try:
            await turn
            if not self._inbound.start_held(head.call):
                raise self._late()
        except asyncio.CancelledError:
            self._close(head.call)
            raise
        except Exception as error:
            return self._refusal(error)
        answer = self._execute(head, *arguments)
        del arguments  # as in `handle`
        return answer if isinstance(answer, tuple) else await answer

    def _wake_next(self, call: CallNumber) -> None:
        following = self._inbound.next_held(call.caller_id) if self._held else None
        if following is not None:
            self._wake(following)

    def _late(self) -> NetworkException:
        return NetworkException(f"{self._name} refused a late or repeated call; its connection was closed")

    def _wake(self, call: CallNumber) -> None:
        """Once: until it starts, another call before it, which has begun to wait only now, finds it to be next, too."""
        held = self._held.get(call.caller_id)
        if held is None or call.number not in held:
            return
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


def _is_always_admitted(api_name: str, request: Any) -> bool:
    is_replica = isinstance(request, FetchRequest) and request.replica_id != NO_NODE
    return is_replica or api_name in _ALWAYS_ADMITTED
