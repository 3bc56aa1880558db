"""The network of the simulator: under every `Caller`, messages that are late, lost, doubled and out of order.

A call is bytes, as on Ray, and each copy of it, and of its answer, is one message with a fate of its own. Links are
directed; what is cut loses messages both when they leave and when they arrive. Everything is drawn from one random, in
the order of the events. So what is under attack is the connection's ordering layer and all above it.

Kafka: `RaftEventSimulationTest.MessageRouter` and its filters.
"""

import asyncio
from collections.abc import Callable, Iterable, Sequence
from contextvars import Context
from random import Random
from typing import Any, Protocol, TypeVar

from rayka.errors import ErrorCode, NetworkException
from rayka.ids import node_name, random_uuid
from rayka.node.inbox import Inbox
from rayka.ports import Request
from rayka.protocol.caller import Answer, Call, Caller
from rayka.protocol.wire import Failure, decode
from rayka.sim.loop import VirtualLoop
from rayka.sim.process import Process
from rayka.sim.run_options import SimOptions
from rayka.sim.trace import Trace

ResponseT = TypeVar("ResponseT")
Link = tuple[int, int]  # from, to


class Observer(Protocol):
    """What watches the calls that cross the network: the checkers."""

    def on_request(self, process: Process, node_id: int, request: Request[Any]) -> None: ...

    def on_deliver(self, process: Process, caller_id: int, call: Call) -> None: ...

    def on_answer(self, process: Process, call: Call, answer: Answer) -> None: ...


class _Exchange:
    """One call: its answer to come, and how many copies of it may still bring it."""

    __slots__ = ("answer", "call", "caller", "copies", "text")

    def __init__(self, caller: Process, call: Call, answer: "asyncio.Future[Answer]") -> None:
        self.caller = caller
        self.call = call
        self.answer = answer
        self.copies = 0
        number = call.number  # the text stands in each of its lines in the trace
        self.text = f"{call.api.name} {caller.node_id}->{call.node_id} #{number.epoch}:{number.number}"


class _Endpoint:
    """A process that takes calls, and those that it has not answered yet."""

    def __init__(self, process: Process, inbox: Inbox, context: Context) -> None:
        self.process = process
        self.inbox = inbox
        self.context = context
        self.open: dict[asyncio.Task[Answer], _Exchange] = {}


class SimNetwork:
    """All links of one simulation."""

    def __init__(
        self, loop: VirtualLoop, options: SimOptions, random: Random, trace: Trace, observer: Observer
    ) -> None:
        self._loop = loop
        self._options = options
        self._random = random
        self._trace = trace
        self.observer = observer
        self._context = Context()  # messages on their way belong to no process
        self._endpoints: dict[int, _Endpoint] = {}
        self._cuts: dict[Link, int] = {}
        self._clogs: dict[Link, float] = {}
        self._latency_us: dict[Link, float] = {}
        self._loss, self._duplication = options.loss, options.duplication
        self.node_ids: Sequence[int] = sorted(options.node_ids)
        self.all_ids: Sequence[int] = (*self.node_ids, *options.client_ids, *options.data_client_ids)

    def __repr__(self) -> str:
        return f"<SimNetwork up={sorted(self._endpoints)} cut={sorted(self._cuts)}>"

    def port(self, process: Process) -> "SimPort":
        """The network port of a process."""
        return SimPort(self, process, Caller(random_uuid(self._random)))

    def attach(self, process: Process, inbox: Inbox, context: Context) -> None:
        """The node takes calls from now on."""
        self._endpoints[process.node_id] = _Endpoint(process, inbox, context)

    def detach(self, node_id: int, *, is_silent: bool = False) -> None:
        """The node's process is gone; its callers learn of it, unless it was the whole machine."""
        endpoint = self._endpoints.pop(node_id, None)
        if endpoint is None:
            return
        for task, exchange in list(endpoint.open.items()):
            task.cancel()
            if not is_silent:
                self._break(exchange, "its process ended")

    # ---- Faults ------------------------------------------------------------------------------------------------------

    def cut(self, links: Iterable[Link]) -> None:
        """These links lose everything, until as many times mended."""
        for link in links:
            self._cuts[link] = self._cuts.get(link, 0) + 1

    def mend(self, links: Iterable[Link]) -> None:
        for link in links:
            count = self._cuts.get(link, 0)
            if count <= 1:
                self._cuts.pop(link, None)
            else:
                self._cuts[link] = count - 1

    def clog(self, link: Link, extra_ms: float) -> None:
        """This link takes so much longer; 0 is as before."""
        if extra_ms:
            self._clogs[link] = extra_ms
        else:
            self._clogs.pop(link, None)

    def heal(self) -> None:
        """Every link works, and loses and doubles nothing."""
        self._loss = self._duplication = 0.0
        self._cuts.clear()
        self._clogs.clear()

    # ---- Messages ----------------------------------------------------------------------------------------------------

    async def send(self, caller: Process, call: Call) -> Answer:
        """The lane of `Caller.call`."""
        if not caller.is_alive:
            raise NetworkException(f"{caller!r} is gone and must not call")
        exchange = _Exchange(caller, call, self._loop.create_future())
        self._trace.add(caller.node_id, "send", f"{exchange.text} {len(call.request.body)} bytes")
        copies = 2 if self._random.random() < self._duplication else 1
        exchange.copies = copies
        for _ in range(copies):
            self._transmit((caller.node_id, call.node_id), exchange, self._deliver, exchange)
        return await exchange.answer

    def _transmit(
        self, link: Link, exchange: _Exchange, arrive: Callable[..., None], *arguments: Any
    ) -> None:
        if link in self._cuts or self._random.random() < self._loss:
            self._trace.add(link[1], "lost", exchange.text)
            return
        self._loop.call_at_us(
            self._loop.now_us + self._delay_us(link), self._arrive, link, exchange, arrive, arguments,
            context=self._context,
        )  # fmt: skip

    def _delay_us(self, link: Link) -> int:
        latency_us = self._latency_us.get(link)
        if latency_us is None:  # each link is faster or slower than the others
            latency_us = self._options.latency_ms * 1000 * (0.5 + self._random.random())
            self._latency_us[link] = latency_us
        jitter_us = self._random.expovariate(1.0) * self._options.jitter_ms * 1000
        return 1 + int(latency_us + jitter_us + self._clogs.get(link, 0.0) * 1000)

    def _arrive(
        self, link: Link, exchange: _Exchange, arrive: Callable[..., None], arguments: Sequence[Any]
    ) -> None:
        if link in self._cuts:
            self._trace.add(link[1], "lost", exchange.text)
        else:
            arrive(*arguments)

    def _deliver(self, exchange: _Exchange) -> None:
        call = exchange.call
        endpoint = self._endpoints.get(call.node_id)
        if endpoint is None:
            self._break(exchange, "it is not running")
            return
        self._trace.add(call.node_id, "deliver", exchange.text)
        self.observer.on_deliver(endpoint.process, exchange.caller.node_id, call)
        request = call.request
        task = self._loop.create_task(
            endpoint.inbox.handle(call.api.name, call.header, request.body, request.payload()),
            name=call.api.name,
            context=endpoint.context,
        )
        endpoint.open[task] = exchange
        task.add_done_callback(lambda task: self._on_handled(endpoint, task))

    def _on_handled(self, endpoint: _Endpoint, task: "asyncio.Task[Answer]") -> None:
        exchange = endpoint.open.pop(task)
        if task.cancelled() or not endpoint.process.is_alive:
            return
        answer = task.result()
        self.observer.on_answer(endpoint.process, exchange.call, answer)
        exchange.copies -= 1
        if exchange.copies and _is_refusal(answer):
            return  # of the two copies the other one is executed
        self._trace.add(exchange.call.node_id, "answer", f"{exchange.text} {len(answer[0])} bytes")
        link = (exchange.call.node_id, exchange.caller.node_id)
        self._transmit(link, exchange, self._on_answer, exchange, answer)

    def _on_answer(self, exchange: _Exchange, answer: Answer) -> None:
        if exchange.caller.is_alive and not exchange.answer.done():
            self._trace.add(exchange.caller.node_id, "answered", exchange.text)
            exchange.answer.set_result(answer)

    def _break(self, exchange: _Exchange, cause: str) -> None:
        link = (exchange.call.node_id, exchange.caller.node_id)
        self._transmit(link, exchange, self._on_broken, exchange, cause)

    def _on_broken(self, exchange: _Exchange, cause: str) -> None:
        if exchange.caller.is_alive and not exchange.answer.done():
            self._trace.add(exchange.caller.node_id, "broken", f"{exchange.text}: {cause}")
            name = node_name(exchange.call.node_id)
            exchange.answer.set_exception(NetworkException(f"{name} cannot be reached: {cause}"))


def _is_refusal(answer: Answer) -> bool:
    body, payload = answer
    return payload is None and decode(Failure, body).error_code is ErrorCode.NETWORK_EXCEPTION


class SimPort:
    """The network port of one process."""

    def __init__(self, network: SimNetwork, process: Process, caller: Caller) -> None:
        self._network = network
        self._process = process
        self._caller = caller

    def __repr__(self) -> str:
        return f"<SimPort of {self._process!r}>"

    async def call(self, node_id: int, request: Request[ResponseT], timeout_ms: int) -> ResponseT:
        """The node's answer; see `rayka.ports.Network`."""
        self._network.observer.on_request(self._process, node_id, request)
        return await self._caller.call(node_id, request, timeout_ms, self._send)

    async def node_ids(self) -> Sequence[int]:
        """All nodes of the cluster, running or not."""
        return self._network.node_ids

    async def _send(self, call: Call) -> Answer:
        return await self._network.send(self._process, call)
