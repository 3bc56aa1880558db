"""Watches the calls of one client without an answer: finds silent nodes and gives up calls to former leaders.

A killed process refuses no call. The network notices its death after a second or two, and the death of a machine only
shows in a timeout; another node may lead long before. The watch therefore reacts earlier:

1. A node with open calls that answers none for several times its usual pause counts as silent.
2. `on_silent` is called. The owner asks another node for metadata, and calls `give_up` for calls whose node leads no
   more.
3. While the silence lasts, `on_silent` is called again: often at first, because most elections end within a second,
   then once a second, to spare the nodes that still answer.
4. A single call that stays open on a node that answers others is reported, too, once it has taken `most_s`.

Invariants: one timer in all, and none while no call is open; a call that is given up ends like a call whose connection
broke: it may or may not have been executed, and a late answer is dropped. Kafka has no such thing: there the operating
system closes a dead process's connections.
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
# A node counts as silent after this many times its usual pause.
_USUAL_PAUSES = 4
# The weight of the newest pause in the usual one is 1 / _SMOOTHING.
_SMOOTHING = 8
# Between two reports of the same silence, once it has lasted for a second.
_SELDOM_S = 1.0


class SilenceLimits(NamedTuple):
    """The silence that a node is allowed: several times its usual pause, within [least_s, most_s]."""

    least_s: float
    # Also the time that a single call may take.
    most_s: float
    # Between two reports of a new silence.
    often_s: float = 0.1


class _OpenCall(msgspec.Struct, Generic[SubjectT], eq=False):
    """A call without an answer."""

    node: "_AskedNode[SubjectT]"
    subject: SubjectT
    began_s: float
    answer: Later[Any]

    def on_end(self, outcome: object) -> None:
        """Removes the call from the node's open calls. An answer, unlike an error, counts for the usual pause."""
        self.node.calls.pop(self, None)
        if not isinstance(outcome, BaseException):
            self.node.on_answer(self.began_s)


class _AskedNode(Generic[SubjectT]):
    """A node that was called."""

    def __init__(self, clock: LoopClock) -> None:
        self._clock = clock
        # Calls without an answer, the oldest first.
        self.calls: dict[_OpenCall[SubjectT], None] = {}
        # The last answer.
        self.answered_s = 0.0
        # The last report to the owner.
        self.looked_s = 0.0
        # The smoothed pause before an answer.
        self.usual_s = 0.0

    @property
    def oldest_s(self) -> float:
        return next(iter(self.calls)).began_s

    @property
    def silent_since_s(self) -> float:
        return max(self.answered_s, self.oldest_s)

    @property
    def is_silent(self) -> bool:
        """Whether the owner was told of this silence, and the node has not answered since."""
        return bool(self.calls) and self.looked_s > self.silent_since_s

    def on_answer(self, began_s: float) -> None:
        now_s = self._clock.now_s()
        quiet_s = now_s - max(self.answered_s, began_s)
        self.usual_s += (quiet_s - self.usual_s) / _SMOOTHING
        self.answered_s = now_s

    def due_s(self, silence_limits: SilenceLimits) -> float:
        """The time of the next report to the owner. Precondition: `calls` is not empty."""
        if not self.is_silent:
            usual_s = max(silence_limits.least_s, _USUAL_PAUSES * self.usual_s)
            silence_due_s = self.silent_since_s + min(usual_s, silence_limits.most_s)
        else:
            is_new = self.looked_s - self.silent_since_s < silence_limits.most_s + _SELDOM_S
            silence_due_s = self.looked_s + (silence_limits.often_s if is_new else _SELDOM_S)
        return min(silence_due_s, max(self.oldest_s + silence_limits.most_s, self.looked_s + _SELDOM_S))


class CallWatch(Generic[SubjectT]):
    """Watches the open calls of one client. All methods and timers belong to one loop.

    `on_silent` gets the silent node and the subjects of its open calls.
    """

    def __init__(
        self, silence_limits: SilenceLimits, on_silent: Callable[[int, list[SubjectT]], None]
    ) -> None:
        self._silence_limits = silence_limits
        self._on_silent = on_silent
        self._nodes: dict[int, _AskedNode[SubjectT]] = {}
        self._clock = LoopClock()
        self._timer: asyncio.TimerHandle | None = None

    def __repr__(self) -> str:
        counts = {node_name(node_id): len(node.calls) for node_id, node in self._nodes.items() if node.calls}
        return f"<CallWatch open={counts}>"

    def answer(self, node_id: int, subject: SubjectT, call: Awaitable[ResponseT]) -> Later[ResponseT]:
        """Watches a call that starts now; returns its answer. Ends in NetworkException when the call is given up."""
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
        """Gives up calls for which `is_in_vain` holds, if their node is silent or they are older than `most_s`."""
        at_s = self._clock.now_s()
        for node_id, node in list(self._nodes.items()):
            late_s = at_s if node.is_silent else at_s - self._silence_limits.most_s
            for call in list(node.calls):
                if call.began_s <= late_s and is_in_vain(node_id, call.subject):
                    reason = f"{node_name(node_id)} did not answer before another node was to be asked"
                    call.answer.fail(NetworkException(reason))

    def _arm(self) -> None:
        """Sets the timer; never later than `least_s`, because a call that begins after this needs no earlier one."""
        due = [node.due_s(self._silence_limits) for node in self._nodes.values() if node.calls]
        if due:
            loop = asyncio.get_running_loop()
            self._timer = loop.call_at(min(loop.time() + self._silence_limits.least_s, *due), self._look)

    def _look(self) -> None:
        self._timer = None
        at_s = self._clock.now_s()
        for node_id, node in list(self._nodes.items()):
            if node.calls and node.due_s(self._silence_limits) <= at_s:
                node.looked_s = at_s
                self._on_silent(node_id, [each.subject for each in node.calls])
        self._arm()
