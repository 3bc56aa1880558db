"""Calls of one client that have no answer yet: which of the nodes asked say nothing, and which calls are given up.

A process that was killed refuses nothing. The network finds out after a second or two, of a machine that is gone only a
timeout tells, and by then another node may lead long since. So a node that has calls and says nothing for several times
as long as it usually does counts as silent. The owner is called back, asks another node for metadata, and has the calls
given up whose node has lost what they are about. It is called again and again while the silence lasts: often at first,
because most elections are over within a second, then more seldom, so as to be no burden on those that still answer. A
call that alone stays without answer, from a node that talks otherwise, is looked at when it has been out for long.

Invariants: one timer in all, and none while no call is out; what is given up ends like a call whose connection broke:
it may or may not have been executed, and an answer that still comes is dropped. Kafka has no such thing: there it is
the operating system that closes a dead process's connections.
"""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, Generic, NamedTuple, TypeVar

import msgspec

from rayka.clock import LoopClock
from rayka.errors import NetworkException
from rayka.ids import node_name
from rayka.protocol.later import Later, later_of

SubjectT = TypeVar("SubjectT")
ResponseT = TypeVar("ResponseT")
_TIMES_AS_LONG = 4  # as usual: that long a silence means something
_SMOOTHING = 8
_SELDOM_S = 1.0  # between two looks at the same silence, once it has lasted for a second


class Patience(NamedTuple):
    """How long a node may say nothing: between the two, whatever is usual for it. A single call may take the most.
    `often_s` is the time between two looks at a silence that is new.
    """

    least_s: float
    most_s: float
    often_s: float = 0.1


class _OpenCall(msgspec.Struct, Generic[SubjectT], eq=False):
    """A call without an answer."""

    node: "_AskedNode[SubjectT]"
    subject: SubjectT
    began_s: float
    answer: Later[Any]

    def on_end(self, outcome: object) -> None:
        """It was answered, broke off, or was given up."""
        self.node.calls.pop(self, None)
        if not isinstance(outcome, BaseException):
            self.node.on_answer(self.began_s)


class _AskedNode(Generic[SubjectT]):
    """A node that was called. `calls` are those without an answer, in the order in which they were made."""

    def __init__(self, clock: LoopClock) -> None:
        self._clock = clock
        self.calls: dict[_OpenCall[SubjectT], None] = {}
        self.answered_s = 0.0  # when it answered last
        self.looked_s = 0.0  # when the owner was called last
        self.usual_s = 0.0  # how long it says nothing, on average

    @property
    def oldest_s(self) -> float:
        return next(iter(self.calls)).began_s

    @property
    def silent_since_s(self) -> float:
        return max(self.answered_s, self.oldest_s)

    @property
    def is_silent(self) -> bool:
        """Whether the owner was called, and nothing has come since."""
        return bool(self.calls) and self.looked_s > self.silent_since_s

    def on_answer(self, began_s: float) -> None:
        now_s = self._clock.now_s()
        quiet_s = now_s - max(self.answered_s, began_s)
        self.usual_s += (quiet_s - self.usual_s) / _SMOOTHING
        self.answered_s = now_s

    def due_s(self, patience: Patience) -> float:
        """When the owner is to be called next."""
        if not self.is_silent:
            usual_s = max(patience.least_s, _TIMES_AS_LONG * self.usual_s)
            silence_due_s = self.silent_since_s + min(usual_s, patience.most_s)
        else:
            is_new = self.looked_s - self.silent_since_s < patience.most_s + _SELDOM_S
            silence_due_s = self.looked_s + (patience.often_s if is_new else _SELDOM_S)
        return min(silence_due_s, max(self.oldest_s + patience.most_s, self.looked_s + _SELDOM_S))


class CallWatch(Generic[SubjectT]):
    """See the module. `on_silent` gets the node and what its open calls are about. All on one loop."""

    def __init__(self, patience: Patience, on_silent: Callable[[int, list[SubjectT]], None]) -> None:
        self._patience = patience
        self._on_silent = on_silent
        self._nodes: dict[int, _AskedNode[SubjectT]] = {}
        self._clock = LoopClock()
        self._timer: asyncio.TimerHandle | None = None

    def __repr__(self) -> str:
        counts = {node_name(node_id): len(node.calls) for node_id, node in self._nodes.items() if node.calls}
        return f"<CallWatch open={counts}>"

    def answer(self, node_id: int, subject: SubjectT, call: Awaitable[ResponseT]) -> Later[ResponseT]:
        """The call's, which begins now. Ends in NetworkException also when it is given up."""
        node = self._nodes.get(node_id)
        if node is None:
            node = self._nodes[node_id] = _AskedNode(self._clock)
        answer = later_of(call)
        asked = _OpenCall(node, subject, self._clock.now_s(), answer)
        node.calls[asked] = None
        answer.observe(asked.on_end)
        if self._timer is None:
            self._arm()
        return answer

    def give_up(self, is_in_vain: Callable[[int, SubjectT], bool]) -> None:
        """Ends the calls to silent nodes, and those that take too long, that ask the wrong node by now."""
        at_s = self._clock.now_s()
        for node_id, node in list(self._nodes.items()):
            late_s = at_s if node.is_silent else at_s - self._patience.most_s
            for call in list(node.calls):
                if call.began_s <= late_s and is_in_vain(node_id, call.subject):
                    reason = f"{node_name(node_id)} did not answer before another node was to be asked"
                    call.answer.fail(NetworkException(reason))

    def _arm(self) -> None:
        """The timer is never set for later than a call that begins meanwhile could need it."""
        due = [node.due_s(self._patience) for node in self._nodes.values() if node.calls]
        if due:
            loop = asyncio.get_running_loop()
            self._timer = loop.call_at(min(loop.time() + self._patience.least_s, *due), self._look)

    def _look(self) -> None:
        self._timer = None
        at_s = self._clock.now_s()
        for node_id, node in list(self._nodes.items()):
            if node.calls and node.due_s(self._patience) <= at_s:
                node.looked_s = at_s
                self._on_silent(node_id, [each.subject for each in node.calls])
        self._arm()
