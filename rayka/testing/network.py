"""The network port inside one process: every call is encoded, numbered and dispatched as Ray would carry it.

Invariants: a call reaches a node only through its inbox, as bytes; payloads arrive read-only; when a node
is detached, whoever waits for it gets NetworkException, and what it still does is cancelled. Calls can be
made to fail, before or after the node has executed them.
"""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from random import Random
from typing import TypeVar

from rayka.errors import NetworkException
from rayka.ids import node_name, random_uuid
from rayka.node.inbox import Inbox
from rayka.ports import Request
from rayka.protocol.caller import Answer, Call, Caller

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
        payload = call.request.payload().view()
        payload.flags.writeable = False
        task = loop.create_task(
            self._inbox.handle(call.api.name, call.header, call.request.body, payload),
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
            answer.set_result(task.result())


class Switch:
    """Where the nodes and clients of one cluster are plugged in. Everything but `network` runs on one event
    loop."""

    def __init__(self, node_ids: Sequence[int], random: Random) -> None:
        self._node_ids = sorted(node_ids)
        self._random = random
        self._endpoints: dict[int, _Endpoint] = {}
        self._faults: list[_Fault] = []

    def __repr__(self) -> str:
        return f"<Switch {[node_name(each) for each in self._endpoints]}>"

    def network(self) -> "InProcessNetwork":
        """A new caller."""
        return InProcessNetwork(self, Caller(random_uuid(self._random)), self._node_ids)

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

    async def send(self, call: Call) -> Answer:
        """The lane of `Caller.call`."""
        fault = next((each for each in self._faults if each.strikes(call)), None)
        endpoint = self._endpoints.get(call.node_id)
        if endpoint is None or (fault is not None and not fault.is_executed):
            cause = "it is not running" if endpoint is None else "the call was lost"
            raise NetworkException(f"{node_name(call.node_id)} cannot be reached: {cause}")
        answer = await endpoint.handle(call)
        if fault is not None:
            raise NetworkException(f"{node_name(call.node_id)}: the answer was lost")
        return answer


class InProcessNetwork:
    """The network port of one client or node in this process."""

    def __init__(self, switch: Switch, caller: Caller, node_ids: Sequence[int]) -> None:
        self._switch = switch
        self._caller = caller
        self._node_ids = node_ids

    def __repr__(self) -> str:
        return f"<InProcessNetwork {self._caller!r}>"

    async def call(self, node_id: int, request: Request[ResponseT], timeout_ms: int) -> ResponseT:
        """The node's answer; see `rayka.ports.Network`."""
        return await self._caller.call(node_id, request, timeout_ms, self._switch.send)

    async def node_ids(self) -> Sequence[int]:
        """All nodes of the cluster, running or not."""
        return self._node_ids
