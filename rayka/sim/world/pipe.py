"""What a simulated lane is made of: a pair of caller and node, with what is drawn for it, and two pipes."""

from collections import deque
from collections.abc import Callable
from contextvars import Context
from enum import StrEnum
from functools import partial
from random import Random
from typing import Any

from rayka.sim.loop import VirtualLoop
from rayka.sim.run_options import SimOptions
from rayka.sim.world.links import Link, Links

_RESEND_FIRST_US = 200_000  # it doubles, as with TCP
STALLED_US = 10_000_000  # what `rayka.transport.stream.tune` lets TCP wait


class Kind(StrEnum):
    """Whether a caller and a node have a lane."""

    WORKS = "works"
    NOT_WANTED = "not wanted"  # the caller's transport is `ray`
    NOT_SERVED = "not served"  # the node's transport is `ray`
    UNREACHABLE = "unreachable"


class Pair:
    """A caller and a node, whatever their incarnations: what was drawn for them."""

    def __init__(self, options: SimOptions, caller_id: int, node_id: int) -> None:
        self.node_id = node_id
        self.there: Link = (caller_id, node_id)
        self.back: Link = (node_id, caller_id)
        self.random = Random(f"lane {options.seed} {caller_id} {node_id}")
        others = (Kind.NOT_WANTED, Kind.NOT_SERVED, Kind.UNREACHABLE)
        works = self.random.random() < options.lanes.share
        self.kind = Kind.WORKS if works else self.random.choice(others)
        self.latency_us = options.lanes.latency_ms * 1000 * (0.5 + self.random.random())
        self.jitter_us = options.lanes.jitter_ms * 1000

    def __str__(self) -> str:
        return f"{self.there[0]}->{self.node_id}"

    def delay_us(self) -> int:
        """How long a message takes, or a part of the opening."""
        return 1 + int(self.latency_us + self.random.expovariate(1.0) * self.jitter_us)


class Pipe:
    """One direction of a lane: what is put in comes out in its order, or not at all from some place on."""

    def __init__(
        self, loop: VirtualLoop, links: Links, pair: Pair, *, is_back: bool, on_stalled: Callable[[], None]
    ) -> None:
        self._loop = loop
        self._links = links
        self._context = Context()  # what is on its way belongs to no process
        self._pair = pair
        self._link = pair.back if is_back else pair.there
        self._on_stalled = on_stalled
        self._queue: deque[tuple[int, Callable[[], None]]] = deque()
        self._last_us = 0
        self._resend_us, self._stalled_us = _RESEND_FIRST_US, 0
        self._is_due = False

    def put(self, arrive: Callable[..., None], *arguments: Any) -> None:
        """Sends something; `arrive` is called where it comes out."""
        delay_us = self._pair.delay_us() + int(self._links.extra_us.get(self._link, 0.0))
        self._last_us = max(self._last_us, self._loop.now_us + delay_us)
        self._queue.append((self._last_us, partial(arrive, *arguments)))
        self._schedule()

    def cut_short(self) -> None:
        """Of what is on its way only a part from the beginning arrives."""
        arriving = self._pair.random.randint(0, len(self._queue))
        while len(self._queue) > arriving:
            self._queue.pop()

    def stop(self) -> None:
        """Nothing more arrives."""
        self._queue.clear()

    def _schedule(self, earliest_us: int = 0) -> None:
        if self._queue and not self._is_due:
            self._is_due = True
            when_us = max(earliest_us, self._queue[0][0])
            self._loop.call_at_us(when_us, self._arrive, context=self._context)

    def _arrive(self) -> None:
        self._is_due = False
        if not self._queue or self._queue[0][0] > self._loop.now_us:  # what it was due for has been dropped
            self._schedule()
            return
        if self._link in self._links.cuts:
            self._wait_for_link()
            return
        self._resend_us, self._stalled_us = _RESEND_FIRST_US, 0
        _, arrive = self._queue.popleft()
        self._schedule(self._loop.now_us)
        arrive()

    def _wait_for_link(self) -> None:
        self._stalled_us += self._resend_us
        if self._stalled_us > STALLED_US:
            self._on_stalled()
            return
        self._schedule(self._loop.now_us + self._resend_us)
        self._resend_us *= 2
