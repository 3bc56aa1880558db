"""Measures how long no node has answered a client's calls, which tells a stopped cluster from an idle one.

Invariants: any answer ends the silence, a refusal too; a call that breaks off, times out or is given up is no answer.
There is no silence while no call is under way. Time in which this process was stopped does not count: no call was made
then, and calls under way may be lost. Kafka has no such thing: its consumer polls for ever when the cluster is gone.
"""

import asyncio
import math
from collections.abc import Sequence
from typing import TypeVar

from rayka.clock import LoopClock
from rayka.errors import ApiError, NetworkException, RequestTimedOut, UnavailableError
from rayka.ports import Network, Request
from rayka.protocol.later import Later, later_of

ResponseT = TypeVar("ResponseT")
_LOOK_S = 1.0


class SilenceWatch:
    """The network port of one client, which records when nodes answer."""

    def __init__(self, network: Network, cluster_name: str) -> None:
        self._network = network
        self._cluster_name = cluster_name
        self._clock = LoopClock()
        # Calls under way.
        self._open_count = 0
        # The beginning of the silence; None: there is none.
        self._since_s: float | None = None
        # The last error since the last answer.
        self._problem: ApiError | None = None
        # The last look at the clock.
        self._looked_s: float | None = None

    def __repr__(self) -> str:
        return f"<SilenceWatch {self._cluster_name} since={self._since_s} open={self._open_count}>"

    async def watch_clock(self) -> None:
        """Looks at the clock once a second, for ever: a longer gap between looks shows that the process was stopped."""
        while True:
            self._look()
            await asyncio.sleep(_LOOK_S)

    async def node_ids(self) -> Sequence[int]:
        return await self._network.node_ids()

    def call(self, node_id: int, request: "Request[ResponseT]", timeout_ms: int) -> Later[ResponseT]:
        """The node's answer; see `rayka.ports.Network`."""
        if self._since_s is None:
            self._since_s = self._clock.now_s()
        self._open_count += 1
        asked = later_of(self._network.call(node_id, request, timeout_ms))
        asked.observe(self._on_end)
        return asked

    def forget(self) -> None:
        """Ends the silence. While calls are under way another silence begins now."""
        self._since_s = self._clock.now_s() if self._open_count else None

    def remaining_s(self, limit_s: float) -> float:
        """The time until the silence reaches the limit; the whole limit while there is no silence."""
        self._look()
        return limit_s if self._since_s is None else self._since_s + limit_s - self._clock.now_s()

    def error(self, limit_s: float) -> UnavailableError:
        """The error for a silence that has reached the limit."""
        said = f"last error: {self._problem}; " if self._problem is not None else ""
        return UnavailableError(
            f"no node of cluster {self._cluster_name!r} has answered for {math.floor(limit_s * 1000)} ms: {said}"
            "is it running? see `rayka status`; when it is, poll again, and reading goes on where it was"
        )

    def _look(self) -> None:
        """Subtracts the time of a stop from the silence. Every timer looks first, because after a stop timers run in
        any order.
        """
        at_s = self._clock.now_s()
        if self._looked_s is not None and self._since_s is not None:
            stopped_s = max(0.0, at_s - self._looked_s - _LOOK_S)
            self._since_s = min(self._since_s + stopped_s, at_s)
        self._looked_s = at_s

    def _on_end(self, outcome: object) -> None:
        """Ends the silence on an answer. A call that was given up shows nothing about the node."""
        self._open_count -= 1
        if isinstance(outcome, (NetworkException, RequestTimedOut)):
            self._problem = outcome
        elif isinstance(outcome, ApiError) or not isinstance(outcome, BaseException):
            self._problem = None
            self.forget()
