"""One call on its way in a simulation, and the process that takes calls: what Ray's way and the direct lane share."""

import asyncio
from collections.abc import Callable, Iterable
from contextvars import copy_context
from typing import Any, Protocol
from uuid import UUID

from rayka.errors import NetworkException
from rayka.ids import node_name
from rayka.node.inbox import Inbox, Node, Response
from rayka.ports import Request
from rayka.protocol.caller import Answer, Call
from rayka.protocol.later import Later
from rayka.sim.loop import Process


class WayBack(Protocol):
    """The way of a call's answer: the same way as the call's."""

    def answer(self, exchange: "Exchange", answer: Answer) -> None: ...


class Exchange:
    """One call: its answer to come, and how many copies of it may still bring it."""

    __slots__ = ("_context", "answer", "call", "caller", "copies", "request", "text", "way")

    def __init__(
        self, caller: Process, call: Call, answer: Later[Answer], way: WayBack, by: str = ""
    ) -> None:
        self.caller = caller
        self.call = call
        self.answer = answer
        self._context = copy_context()  # the caller's: a message on its way belongs to no process
        self.way = way
        self.copies = 1
        self.request: Request[Any] | None = None  # as the node has decoded it; None while it has not started
        number = call.number  # the text stands in each of its lines in the trace
        self.text = f"{call.api.name} {caller.node_id}->{call.node_id} #{number.epoch}:{number.number}{by}"

    def is_awaited(self) -> bool:
        """Whether the caller lives and still waits for the answer."""
        return self.caller.is_alive and not self.answer.done()

    def end(self, answer: Answer | NetworkException) -> None:
        """The caller gets the answer or the error."""
        self._context.run(self.answer.end, answer)

    def fail(self, cause: str) -> None:
        """Its caller learns that it broke off."""
        self.end(NetworkException(f"{node_name(self.call.node_id)} cannot be reached: {cause}"))


class Endpoint:
    """A process that takes calls, and those that it has not answered yet. Of each caller it knows which call started
    last. It is the node of its own inbox, so that it sees calls start.
    """

    def __init__(
        self, process: Process, node: Node, on_start: "Callable[[Endpoint, Exchange], None]"
    ) -> None:
        self.process = process
        self.open: dict[asyncio.Task[Answer], Exchange] = {}
        self.last_started: dict[UUID, tuple[int, int]] = {}
        self.settings = node.settings
        self.serves = node.serves
        self._node = node
        self._on_start = on_start
        self.inbox = Inbox(self)

    def handle(self, request: Any) -> Response:
        """The inbox starts a call."""
        task: asyncio.Task[Any] | None = asyncio.current_task()
        assert task is not None, "calls are handed to the inbox in tasks of their own"
        exchange = self.open[task]
        exchange.request = request
        self._on_start(self, exchange)
        return self._node.handle(request)


# The links between the nodes and clients of one simulation: which are cut, and which are slow.
#
# Links are directed. What is cut loses messages both when they leave and when they arrive.


Link = tuple[int, int]  # from, to


class Links:
    """All that faults do to links."""

    def __init__(self) -> None:
        self.cuts: dict[Link, int] = {}  # how often each is cut
        self.extra_us: dict[Link, float] = {}  # of each that is clogged

    def __repr__(self) -> str:
        return f"<Links cut={sorted(self.cuts)}>"

    def cut(self, links: Iterable[Link]) -> None:
        """Cuts these links; a link passes messages again when it was mended as often as cut."""
        for link in links:
            self.cuts[link] = self.cuts.get(link, 0) + 1

    def mend(self, links: Iterable[Link]) -> None:
        """Undoes one `cut` of each."""
        for link in links:
            count = self.cuts.get(link, 0)
            if count <= 1:
                self.cuts.pop(link, None)
            else:
                self.cuts[link] = count - 1

    def clog(self, link: Link, extra_ms: float) -> None:
        """This link takes so much longer; 0 is as before."""
        if extra_ms:
            self.extra_us[link] = extra_ms * 1000
        else:
            self.extra_us.pop(link, None)

    def heal(self) -> None:
        """Every link works."""
        self.cuts.clear()
        self.extra_us.clear()
