"""The network port inside one process: every call is encoded, numbered and dispatched as Ray would carry it.

Invariants: a call reaches a node only through its inbox, as bytes; payloads arrive read-only; when a node
is detached, a caller that waits for it gets NetworkException, and what it still does is cancelled. Calls can be
made to fail, before or after the node has executed them. Between two nodes that are parted nothing arrives, neither
calls nor answers; what was sent meanwhile arrives when the parting has healed, if a caller still waits for it.
"""

import asyncio
import math
from collections.abc import Awaitable, Sequence
from dataclasses import dataclass
from random import Random
from typing import TypeVar

from rayka.errors import NetworkException
from rayka.ids import NO_NODE, node_name, random_uuid
from rayka.node.inbox import Inbox
from rayka.node.tasks import Signal
from rayka.ports import Request
from rayka.protocol.caller import Answer, Call, Caller
from rayka.protocol.wire import Encoded, Payload, in_memory

ResponseT = TypeVar("ResponseT")


@dataclass(slots=True)
class _Fault:
    """The next `times` calls of an API fail; executed or not, the caller cannot tell."""

    api_name: str
    node_id: int | None
    is_executed: bool
    times: int

    def strikes(self, call: Call) -> bool:
        if self.times == 0 or call.api.name != self.api_name or self.node_id not in (None, call.node_id):
            return False
        self.times -= 1
        return True


class _Endpoint:
    """A node that can be called, and the calls that it has not answered yet."""

    def __init__(self, inbox: Inbox) -> None:
        self._inbox = inbox
        self._open: dict[asyncio.Task[Answer], asyncio.Future[Answer]] = {}

    def handle(self, call: Call) -> asyncio.Future[Answer]:
        """The answer to come. The node goes on when its caller no longer waits."""
        loop = asyncio.get_running_loop()
        task = loop.create_task(
            self._inbox.handle(call.api.name, call.header, call.request.body, _read_only(call.request)),
            name=f"{call.api.name} on {node_name(call.node_id)}",
        )
        answer = self._open[task] = loop.create_future()
        task.add_done_callback(self._on_done)
        return answer

    def close(self) -> None:
        """The process is gone, and with it what it was doing."""
        for task, answer in self._open.items():
            task.cancel()
            if not answer.done():
                answer.set_exception(NetworkException("the node's process ended"))

    def _on_done(self, task: asyncio.Task[Answer]) -> None:
        answer = self._open.pop(task)
        if not answer.done() and not task.cancelled():
            body, payload = task.result()
            answer.set_result((body, in_memory(payload)))


class Switch:
    """Where the nodes and clients of one cluster are plugged in. Everything but `network` runs on one event
    loop."""

    def __init__(self, node_ids: Sequence[int], random: Random) -> None:
        self._node_ids = sorted(node_ids)
        self._random = random
        self._endpoints: dict[int, _Endpoint] = {}
        self._faults: list[_Fault] = []
        self._parted: dict[tuple[int, int], None] = {}
        self._healed = Signal()

    def __repr__(self) -> str:
        return f"<Switch {[node_name(each) for each in self._endpoints]}>"

    def network(self, node_id: int = NO_NODE) -> "InProcessNetwork":
        """A new caller: that node, or a client, which is never parted from a node."""
        return InProcessNetwork(self, Caller(random_uuid(self._random)), node_id, self._node_ids)

    def attach(self, node_id: int, inbox: Inbox) -> None:
        """The node takes calls from now on."""
        self._endpoints[node_id] = _Endpoint(inbox)

    def detach(self, node_id: int) -> None:
        """The node's process is gone."""
        endpoint = self._endpoints.pop(node_id, None)
        if endpoint is not None:
            endpoint.close()

    def fail_calls(
        self, api_name: str, *, times: int = 1, is_executed: bool = False, node_id: int | None = None
    ) -> None:
        """The next calls of this API end in NetworkException; with `is_executed` the node has done its work
        by then."""
        self._faults.append(_Fault(api_name, node_id, is_executed, times))

    def part(self, a: int, b: int) -> None:
        """Nothing passes between these two nodes, in either direction."""
        self._parted |= {(a, b): None, (b, a): None}

    @property
    def is_parted(self) -> bool:
        return bool(self._parted)

    def heal(self) -> None:
        """Everything passes again."""
        self._parted.clear()
        self._healed.notify()

    def send(self, call: Call, source: int) -> Awaitable[Answer]:
        """The lane of `Caller.call`, for calls of this node."""
        if (source, call.node_id) in self._parted:
            return self._send_when_healed(call, source)
        return self._answer(call, source, *self._deliver(call))

    async def _send_when_healed(self, call: Call, source: int) -> Answer:
        await self._passage(source, call.node_id)
        return await self._answer(call, source, *self._deliver(call))

    def _deliver(self, call: Call) -> tuple[asyncio.Future[Answer], _Fault | None]:
        """Delivers a call; returns the future answer, and the fault that loses the answer, if any."""
        fault = next((each for each in self._faults if each.strikes(call)), None)
        endpoint = self._endpoints.get(call.node_id)
        if endpoint is None or (fault is not None and not fault.is_executed):
            cause = "it is not running" if endpoint is None else "the call was lost"
            raise NetworkException(f"{node_name(call.node_id)} cannot be reached: {cause}")
        return endpoint.handle(call), fault

    async def _answer(
        self, call: Call, source: int, coming: asyncio.Future[Answer], fault: _Fault | None
    ) -> Answer:
        answer = await coming
        await self._passage(source, call.node_id)
        if fault is not None:
            raise NetworkException(f"{node_name(call.node_id)}: the answer was lost")
        return answer

    async def _passage(self, source: int, target: int) -> None:
        """Returns when something can pass; at once where nothing is parted."""
        while (source, target) in self._parted:
            await self._healed.wait(math.inf)


def _read_only(request: Encoded) -> Payload:
    """The payload as it would arrive by way of shared memory."""
    payload = request.payload()
    views = [each.view() for each in (payload if isinstance(payload, list) else [payload])]  # type: ignore[union-attr]
    for view in views:
        view.flags.writeable = False
    return views if isinstance(payload, list) else views[0]


class InProcessNetwork:
    """The network port of one client or node in this process."""

    def __init__(self, switch: Switch, caller: Caller, node_id: int, node_ids: Sequence[int]) -> None:
        self._switch = switch
        self._caller = caller
        self._node_id = node_id
        self._node_ids = node_ids

    def __repr__(self) -> str:
        return f"<InProcessNetwork {self._caller!r}>"

    async def call(self, node_id: int, request: Request[ResponseT], timeout_ms: int) -> ResponseT:
        """The node's answer; see `rayka.ports.Network`. A coroutine, which a test can hand to another thread's loop."""
        return await self._caller.call(
            node_id, request, timeout_ms, lambda call: self._switch.send(call, self._node_id)
        )

    async def node_ids(self) -> Sequence[int]:
        """All nodes of the cluster, running or not."""
        return self._node_ids
