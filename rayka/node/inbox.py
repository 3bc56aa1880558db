"""Where calls enter a node: decoded, put in their caller's order, bounded, handed to the node, answered.

A shell (the Ray actor, the direct lane, the in-process cluster) hands every call to `Inbox.start` or `Inbox.handle` and
returns the outcome.

Invariants:

- Calls of one caller are handed to the node in the order of their numbers, each at most once. The part of a handler
  before its first wait (the first look of a fetch) is done by then.
- The waiting requests of an API are bounded by number and by bytes. Calls that keep the cluster alive (heartbeats,
  fetches of followers and observers, status) are always admitted.
- Nothing here refers to a request once its handler has it.
- No exception leaves, except that of the task being cancelled.

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
from rayka.protocol.apis import API_BY_NAME, APIS, ServedBy
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

# The newest version of requests that this node knows.
VERSION_MAX = 0
GAP_TIMEOUT_S = 1.0
_ALWAYS_ADMITTED = ("heartbeat", "register_broker", "status")

# The outcome of a handler. A response that is there at once needs no task, and all its effects have happened when the
# handler returns. Nor does a request that waits for news of partitions (`Later`): it goes on in the turn of the event
# loop that brings the news. Produce, fetch and commit wait so: a small replicated write over the direct lane takes an
# eighth less time than with a task for each. Every other handler is a coroutine.
Response = Message | Later[Any] | Coroutine[Any, Any, Any]
Answering = Answer | Later[Answer] | Coroutine[Any, Any, Answer]


async def completed(response: Response) -> Any:
    """The response, awaited if necessary."""
    return response if isinstance(response, Message) else await response


class Node(Protocol):
    """The receiver of calls. `serves` says which rows of the table of APIs it answers."""

    @property
    def settings(self) -> NodeSettings: ...

    @property
    def serves(self) -> ServedBy: ...

    def handle(self, request: Any) -> Response:
        """The response to a request that has passed its API's check.

        May raise ApiError, at once or when awaited, which the caller then gets. Any other exception is a bug and ends
        the node.
        """
        ...


@dataclass(slots=True)
class _Waiting:
    """The requests of one API that were started and are not answered yet."""

    count: int = 0
    size_bytes: int = 0

    def remove(self, size_bytes: int) -> None:
        self.count -= 1
        self.size_bytes -= size_bytes


class Inbox:
    """The entrance of one node. A call after a gap is held for `gap_timeout_s`; then its connection is closed."""

    def __init__(self, node: Node, *, gap_timeout_s: float = GAP_TIMEOUT_S) -> None:
        self._node = node
        self._settings = node.settings
        self._name = node_name(node.settings.node_id)
        self._gap_timeout_s = gap_timeout_s
        self._waiting = {api.name: _Waiting() for api in APIS if api.served_by & node.serves}
        # Requests that are always admitted, such as fetches of replicas, which wait all the time. They take no place of
        # clients' requests.
        self._always_admitted = _Waiting()
        self._inbound = Inbound()
        # Held calls by caller and number, each with the future that starts it.
        self._held: dict[UUID, dict[int, tuple[CallNumber, asyncio.Future[None]]]] = {}

    def __repr__(self) -> str:
        waiting = {name: each.count for name, each in self._waiting.items() if each.count}
        return f"<Inbox of {self._name} waiting={waiting} held={len(self._held)}>"

    async def handle(self, api_name: str, header: bytes, body: bytes, payload: Payload) -> Answer:
        """Executes one call to its end."""
        answer = self.start(api_name, header, body, payload)
        # The handler may let go of them before it answers.
        del header, body, payload
        return answer if isinstance(answer, tuple) else await answer

    def start(self, api_name: str, header: bytes, body: bytes, payload: Payload) -> Answering:
        """Executes one call up to its first wait. Returns the answer (a response, or a Failure without payload), or for
        a call that waits the `Later` or the coroutine that brings the answer.
        """
        try:
            head = decode(RequestHeader, header)
            admission = self._inbound.admit(head.call)
            is_next = admission is Admission.START and not self._held
            turn = None if is_next else self._take_turn(head.call, admission)
        except Exception as error:
            return self._refusal(error)
        if turn is not None:
            return self._execute_in_turn(head, turn, (api_name, body, payload))
        return self._execute(head, api_name, body, payload)

    def _execute(self, head: RequestHeader, api_name: str, body: bytes, payload: Payload) -> Answering:
        """Executes a call whose turn it is. The caller's next call, if it is here already, is woken once this one has
        run to its first wait.
        """
        waiting = self._waiting.get(api_name, self._always_admitted)
        response: Response | Exception
        try:
            if api_name not in self._waiting:
                raise InvalidRequest(
                    f"{self._name} does not serve {api_name!r}; it serves {', '.join(self._waiting)}"
                )
            if head.version > VERSION_MAX:
                raise UnsupportedVersion(
                    f"{self._name} knows {api_name} up to version {VERSION_MAX}, found {head.version}"
                )
            request: Request[Any] = decode(API_BY_NAME[api_name].request_type, body, payload)
            request.check()
            is_of_replica = isinstance(request, FetchRequest) and request.replica_id != NO_NODE
            if is_of_replica or api_name in _ALWAYS_ADMITTED:
                waiting = self._always_admitted
            else:
                self._check_bound(api_name, waiting)
            response = self._node.handle(request)
        except Exception as error:
            response = error
        answer: Answer | Later[Answer]
        if isinstance(response, (Message, Exception)):
            answer = self.answer_of(response)
        else:
            size_bytes = len(body) + payload_bytes(payload)
            waiting.count += 1
            waiting.size_bytes += size_bytes
            if not isinstance(response, Later):
                return self._wait(head.call, response, waiting, size_bytes)
            answer = self._answer_later(response, waiting, size_bytes)
        if self._held:
            self._wake_next(head.call)
        return answer

    async def _wait(
        self, call: CallNumber, answering: Coroutine[Any, Any, Message], waiting: _Waiting, size_bytes: int
    ) -> Answer:
        if self._held:
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
        """Encodes the outcome of a handler."""
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
            # A bug: the node ends and comes back from its disk.
            case _:
                self._settings.crash(error)
                refusal = UnknownServerError(f"{self._name} failed: {error!r}; its log has the cause")
        return encode(Failure.of(refusal)).body, None

    def _check_bound(self, api_name: str, waiting: _Waiting) -> None:
        """Raises TooManyRequests at a bound. The request that reaches the bound of bytes is the last to be admitted, so
        a large one gets its turn, too.
        """
        config = self._settings.config
        if waiting.count >= config.max_parked_requests:
            found = f"{waiting.count} waiting {api_name} requests"
        elif waiting.size_bytes >= config.queued_max_request_bytes:
            found = f"{waiting.size_bytes} bytes in waiting {api_name} requests"
        else:
            return
        raise TooManyRequests(f"{self._name} has {found}, its bound; retry later")

    # ---- Order -----------------------------------------------------------------------------------------

    def _take_turn(self, call: CallNumber, admission: Admission) -> asyncio.Future[None] | None:
        """None if it is the call's turn; else a future that is done when it is."""
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
        # As in `handle`.
        del arguments
        return answer if isinstance(answer, tuple) else await answer

    def _wake_next(self, call: CallNumber) -> None:
        following = self._inbound.next_held(call.caller_id)
        if following is not None:
            self._wake(following)

    def _late(self) -> NetworkException:
        return NetworkException(f"{self._name} refused a late or repeated call; its connection was closed")

    def _wake(self, call: CallNumber) -> None:
        """Wakes the held call, once: a call before it that begins to wait only now finds it to be next, too."""
        held = self._held.get(call.caller_id)
        if held is None or call.number not in held:
            return
        _, turn = held.pop(call.number)
        if not held:
            del self._held[call.caller_id]
        # Its task may have been cancelled.
        if not turn.done():
            turn.set_result(None)

    def _close(self, call: CallNumber) -> None:
        """Closes the connection: the gap before a held call was not filled in time, or the call itself is gone."""
        self._inbound.close(call)
        self._refuse_held(call.caller_id, below_epoch=call.epoch + 1)

    def _refuse_held(self, caller_id: UUID, below_epoch: int) -> None:
        held = self._held.get(caller_id, {})
        for call, turn in [each for each in held.values() if each[0].epoch < below_epoch]:
            del held[call.number]
            # Its task may have been cancelled.
            if not turn.done():
                turn.set_exception(
                    NetworkException(f"{self._name} closed a connection: a call before this one was lost")
                )
        if not held:
            self._held.pop(caller_id, None)
