"""The network of the simulator: under every `Caller`, messages that are late, lost, doubled and out of order.

A call is bytes, as on Ray, and each copy of it, and of its answer, is one message with a fate of its own. Everything is
drawn from one random, in the order of the events. So what is under attack is the connection's ordering layer and all
above it. This is Ray's way; a hot call takes the direct lane of its caller and node while there is one
(`simulated_lanes`).

Kafka: `RaftEventSimulationTest.MessageRouter` and its filters.
"""

import asyncio
from collections.abc import Callable, Sequence
from contextvars import Context
from random import Random
from typing import TYPE_CHECKING, Any, TypeVar

from rayka.errors import ErrorCode, NetworkException
from rayka.ids import random_uuid
from rayka.node.inbox import Node
from rayka.ports import Request
from rayka.protocol.caller import Answer, Call, Caller
from rayka.protocol.later import Later
from rayka.protocol.wire import Failure, decode, in_memory
from rayka.sim.loop import Process, VirtualLoop
from rayka.sim.run_options import SimOptions
from rayka.sim.trace import Trace
from rayka.sim.world.exchange import Endpoint, Exchange, Link, Links
from rayka.sim.world.simulated_lanes import SimLanes

if TYPE_CHECKING:
    from rayka.sim.checks.checkers import Checkers

ResponseT = TypeVar("ResponseT")


class SimNetwork:
    """All links of one simulation."""

    def __init__(
        self, loop: VirtualLoop, options: SimOptions, random: Random, trace: Trace, observer: "Checkers"
    ) -> None:
        self._loop = loop
        self._options = options
        self._random = random
        self._trace = trace
        self.observer = observer
        self._context = Context()  # messages on their way belong to no process
        self._endpoints: dict[int, Endpoint] = {}
        self.links = Links()
        self.lanes = SimLanes(loop, options, trace, self.links)
        self.lanes.endpoints, self.lanes.deliver = self._endpoints, self._execute
        self._latency_us: dict[Link, float] = {}
        self._loss, self._duplication = options.loss, options.duplication
        self.node_ids: Sequence[int] = sorted(options.node_ids)
        self.all_ids: Sequence[int] = (*self.node_ids, *options.client_ids, *options.data_client_ids)

    def __repr__(self) -> str:
        return f"<SimNetwork up={sorted(self._endpoints)} {self.links!r}>"

    def port(self, process: Process) -> "SimPort":
        """The network port of a process."""
        return SimPort(self, process, Caller(random_uuid(self._random)))

    def attach(self, process: Process, node: Node) -> None:
        """The node takes calls from now on."""
        self._endpoints[process.node_id] = Endpoint(process, node, self.observer.on_start)

    def detach(self, node_id: int, *, is_silent: bool = False) -> None:
        """The node's process is gone; its callers learn of it, unless it was the whole machine."""
        endpoint = self._endpoints.pop(node_id, None)
        if endpoint is None:
            return
        for task, exchange in list(endpoint.open.items()):
            task.cancel()
            if not is_silent and exchange.way is self:
                self._break(exchange, "its process ended", int(self._options.lanes.death_news_ms * 1000))
        self.lanes.on_node_gone(endpoint, is_silent=is_silent)

    def heal(self) -> None:
        """Every link works, loses and doubles nothing, and no lane breaks by chance."""
        self._loss = self._duplication = self.lanes.breaks = 0.0
        self.links.heal()

    # ---- Messages ----------------------------------------------------------------------------------------------------

    def send(self, caller: Process, call: Call) -> Later[Answer]:
        """The way of `Caller.call`."""
        if not caller.is_alive:
            raise NetworkException(f"{caller!r} is gone and must not call")
        self.observer.on_send(caller, call)
        lane = self.lanes.lane_of(caller, call)
        return self._send_by_ray(caller, call) if lane is None else lane.send(call)

    def _send_by_ray(self, caller: Process, call: Call) -> Later[Answer]:
        exchange = Exchange(caller, call, Later(), self)
        self._trace.add(caller.node_id, "send", f"{exchange.text} {len(call.request.body)} bytes")
        exchange.copies = 2 if self._random.random() < self._duplication else 1
        for _ in range(exchange.copies):
            self._transmit((caller.node_id, call.node_id), exchange, self._deliver, exchange)
        return exchange.answer

    def _transmit(
        self, link: Link, exchange: Exchange, arrive: Callable[..., None], *arguments: Any, extra_us: int = 0
    ) -> None:
        if link in self.links.cuts or self._random.random() < self._loss:
            self._trace.add(link[1], "lost", exchange.text)
            return
        self._loop.call_at_us(
            self._loop.now_us + self._delay_us(link) + extra_us, self._arrive, link, exchange, arrive, arguments,
            context=self._context,
        )  # fmt: skip

    def _delay_us(self, link: Link) -> int:
        latency_us = self._latency_us.get(link)
        if latency_us is None:  # each link is faster or slower than the others
            latency_us = self._options.latency_ms * 1000 * (0.5 + self._random.random())
            self._latency_us[link] = latency_us
        jitter_us = self._random.expovariate(1.0) * self._options.jitter_ms * 1000
        return 1 + int(latency_us + jitter_us + self.links.extra_us.get(link, 0.0))

    def _arrive(
        self, link: Link, exchange: Exchange, arrive: Callable[..., None], arguments: Sequence[Any]
    ) -> None:
        if link in self.links.cuts:
            self._trace.add(link[1], "lost", exchange.text)
        else:
            arrive(*arguments)

    def _deliver(self, exchange: Exchange) -> None:
        endpoint = self._endpoints.get(exchange.call.node_id)
        if endpoint is None:
            self._break(exchange, "it is not running")
        else:
            self._execute(endpoint, exchange)

    def _execute(self, endpoint: Endpoint, exchange: Exchange) -> None:
        """A call has reached the node, whichever way."""
        call = exchange.call
        self._trace.add(call.node_id, "deliver", exchange.text)
        request = call.request
        task = self._loop.create_task(
            endpoint.inbox.handle(call.api.name, call.header, request.body, request.payload()),
            name=call.api.name,
            context=endpoint.process.context,
        )
        endpoint.open[task] = exchange
        task.add_done_callback(lambda task: self._on_handled(endpoint, task))

    def _on_handled(self, endpoint: Endpoint, task: "asyncio.Task[Answer]") -> None:
        exchange = endpoint.open.pop(task)
        if task.cancelled() or not endpoint.process.is_alive:
            return
        body, payload = task.result()
        answer = (body, in_memory(payload))
        self.observer.on_answer(endpoint.process, exchange, answer)
        exchange.copies -= 1
        if exchange.copies and _is_refusal(answer):
            return  # of the two copies the other one is executed
        self._trace.add(exchange.call.node_id, "answer", f"{exchange.text} {len(answer[0])} bytes")
        exchange.way.answer(exchange, answer)

    def answer(self, exchange: Exchange, answer: Answer) -> None:
        """The answer to a call that came by Ray leaves the node."""
        link = (exchange.call.node_id, exchange.caller.node_id)
        self._transmit(link, exchange, self._on_answer, exchange, answer)

    def _on_answer(self, exchange: Exchange, answer: Answer) -> None:
        if exchange.is_awaited():
            self._trace.add(exchange.caller.node_id, "answered", exchange.text)
            exchange.end(answer)

    def _break(self, exchange: Exchange, cause: str, extra_us: int = 0) -> None:
        link = (exchange.call.node_id, exchange.caller.node_id)
        self._transmit(link, exchange, self._on_broken, exchange, cause, extra_us=extra_us)

    def _on_broken(self, exchange: Exchange, cause: str) -> None:
        if exchange.is_awaited():
            self._trace.add(exchange.caller.node_id, "broken", f"{exchange.text}: {cause}")
            exchange.fail(cause)


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

    def call(self, node_id: int, request: Request[ResponseT], timeout_ms: int) -> Later[ResponseT]:
        """The node's answer; see `rayka.ports.Network`."""
        self._network.observer.on_request(self._process, node_id, request)
        return self._caller.call(
            node_id, request, timeout_ms, lambda call: self._network.send(self._process, call)
        )

    async def node_ids(self) -> Sequence[int]:
        """All nodes of the cluster, running or not."""
        return self._network.node_ids
