"""A process, if there were one: whatever a node's incarnation, or a client, runs in the simulator belongs to one.

The process is found through a context variable, which every task and timer inherits from what started it. So a
whole process can be paused (its callbacks are kept, in order) or be gone (it reaches no disk and no network any more).
"""

from collections import deque
from collections.abc import Callable, Sequence
from contextvars import Context, ContextVar
from typing import Any


class Process:
    """One incarnation of one node, or a client. `watches` are called after each of its callbacks; `context` is that of
    its tasks.
    """

    __slots__ = (
        "context", "incarnation", "is_alive", "is_paused", "node_id", "resumed_us", "watches", "withheld",
    )  # fmt: skip

    def __init__(self, node_id: int, incarnation: int) -> None:
        self.context = Context()
        self.context.run(PROCESS.set, self)
        self.node_id = node_id
        self.incarnation = incarnation
        self.is_alive = True
        self.is_paused = False
        self.resumed_us = 0
        self.withheld: deque[Any] = deque()
        self.watches: Sequence[Callable[[], None]] = ()

    def __repr__(self) -> str:
        state = "" if self.is_alive else " gone"
        return f"<Process of node {self.node_id} #{self.incarnation}{' paused' * self.is_paused}{state}>"


PROCESS: ContextVar[Process | None] = ContextVar("rayka.sim.process", default=None)
