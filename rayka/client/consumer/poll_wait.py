"""The wait of a poll until something is there for it: data, an error for the application, an interruption, or its end.

Invariants: one poll waits at a time; it ends once, in the step that brings what it waits for: a turn of the event loop
more would take about as long as the work in it; a silence of all nodes is an error, once in as long. Kafka:
`FetchBuffer.awaitWakeup`.
"""

import asyncio
from collections.abc import Callable

from rayka.client.loop_time import now_s
from rayka.client.silence import SilenceWatch
from rayka.errors import InvariantBroken, UnavailableError

_ARRIVED_S = 0.1  # for answers that arrived while the process or its loop stood still
_LEAST_S = 0.001  # a timer may ring a moment early: what is left then is no time that passes
OnEnd = Callable[[UnavailableError | None], object]


class PollWait:
    """See the module. `is_over`: whether there is something for the poll. `is_asking`: whether a silence counts."""

    def __init__(
        self, network: SilenceWatch, is_over: Callable[[], bool], is_asking: Callable[[], bool]
    ) -> None:
        self._network = network
        self._is_over = is_over
        self._is_asking = is_asking
        self._on_end: OnEnd | None = None
        self._deadline_s = 0.0
        self._silence_s_max = 0.0
        self._is_silent = False  # the nodes have been for too long, and what has arrived is looked at
        self._timer: asyncio.TimerHandle | None = None

    def __repr__(self) -> str:
        return f"<PollWait {'waiting' if self._on_end is not None else 'idle'}>"

    def begin(self, timeout_s: float, silence_s_max: float, on_end: OnEnd) -> None:
        """Calls `on_end`, at once if there is something already: with None, or with the error for a silence that has
        lasted too long, and then not again before as long a one.
        """
        if self._on_end is not None:
            raise InvariantBroken(f"{self!r} has begun already")
        self._on_end = on_end
        self._deadline_s, self._silence_s_max = now_s() + timeout_s, silence_s_max
        self._is_silent = False
        self._look()

    def tell(self) -> None:
        """Something has changed."""
        if self._on_end is not None and self._is_over():
            self._end(None)

    def tell_soon(self) -> None:
        """As `tell`, behind this step, which brings more perhaps."""
        if self._on_end is not None:
            asyncio.get_running_loop().call_soon(self.tell)

    def give_up(self) -> None:
        """Nothing waits any more."""
        self._on_end = None
        if self._timer is not None:
            self._timer.cancel()

    def _look(self) -> None:
        if self._is_over():
            self._end(None)
            return
        silence_left_s = self._silence_left_s()
        if silence_left_s <= 0:
            if self._is_silent:
                self._network.forget()
                self._end(self._network.error(self._silence_s_max))
                return
            self._is_silent = True
            wait_s = _ARRIVED_S
        else:
            self._is_silent = False
            wait_s = min(self._deadline_s - now_s(), silence_left_s)
        if wait_s <= 0:
            self._end(None)
        else:
            self._timer = asyncio.get_running_loop().call_later(max(wait_s, _LEAST_S), self._look)

    def _silence_left_s(self) -> float:
        return self._network.remaining_s(self._silence_s_max) if self._is_asking() else self._silence_s_max

    def _end(self, error: UnavailableError | None) -> None:
        on_end = self._on_end
        self.give_up()
        if on_end is not None:
            on_end(error)
