"""Requests of a replicated state machine whose answers are not out yet, and the order in which they are released.

An answer is kept back until the high watermark has passed the records that were in the log when its request ran. A
request that waits for another one (`Later`) is parked; the result that ends its wait names it. Invariant: answers are
released in the order in which their requests ran, or in which their waits ended. Kafka: `DeferredEventQueue`.
"""

from collections import deque
from collections.abc import Hashable, Iterable
from dataclasses import dataclass
from typing import Any

from rayka.errors import ApiError, InvariantBroken
from rayka.shard.shard import Answer
from rayka.shard.timers import Timer


@dataclass(slots=True, eq=False, repr=False)
class Pending:
    """A response on its way: once `is_done`, `error` or else `response` is the answer. `has_run`: the request has, and
    its answer waits to be committed, for as long as `patience_ms` from then on.
    """

    deadline_ms: int
    timer: Timer | None = None
    patience_ms: int = 0
    required_offset: int = -1
    response: Any = None
    error: ApiError | None = None
    has_run: bool = False
    is_done: bool = False

    def __repr__(self) -> str:
        waits = f"waits for {self.required_offset}" if self.has_run else "runs or waits to run"
        return f"<Pending {'done' if self.is_done else waits} {self.error or self.response!r}>"


class KeptBack:
    """The requests that have run: those whose answers wait to be committed, and those that are parked."""

    def __init__(self) -> None:
        self._uncommitted: deque[Pending] = deque()
        self._parked: dict[Hashable, Pending] = {}

    def __repr__(self) -> str:
        return f"<KeptBack uncommitted={len(self._uncommitted)} parked={len(self._parked)}>"

    def __len__(self) -> int:
        return len(self._uncommitted)

    @property
    def uncommitted(self) -> tuple[Pending, ...]:
        """Those whose answers wait to be committed, in order."""
        return tuple(self._uncommitted)

    def keep(self, pending: Pending, next_offset: int, high_watermark: int) -> None:
        """Its answer is known. Done at once if all records are committed and no other answer waits: behind others it
        waits for its turn, so that `release` returns it after them.
        """
        pending.required_offset = next_offset
        pending.is_done = not self._uncommitted and next_offset <= high_watermark
        if not pending.is_done:
            self._uncommitted.append(pending)

    def park(self, key: Hashable, pending: Pending) -> None:
        """It waits for an answer with this key."""
        if key in self._parked:
            raise InvariantBroken(f"{self!r}: a request waits as {key!r} already")
        pending.has_run = True
        if not pending.is_done:  # its deadline came while it ran
            self._parked[key] = pending

    def answer(self, answers: Iterable[Answer], next_offset: int, now_ms: int) -> None:
        """Ends waits, whose answers now wait to be committed; a request that was given up is not there any more."""
        for answer in answers:
            pending = self._parked.pop(answer.key, None)
            if pending is not None:
                pending.response, pending.error = answer.response, answer.error
                pending.required_offset = next_offset
                pending.deadline_ms = now_ms + pending.patience_ms
                self._uncommitted.append(pending)

    def can_release(self, high_watermark: int) -> bool:
        """Whether `release` has something to do."""
        return bool(self._uncommitted) and self._uncommitted[0].required_offset <= high_watermark

    def release(self, high_watermark: int) -> list[Pending]:
        """The answers that are committed now, in their order."""
        released = []
        while self.can_release(high_watermark):
            pending = self._uncommitted.popleft()
            pending.is_done = True
            released.append(pending)
        return released

    def take_parked(self) -> list[Pending]:
        """All that are parked, which are not any more."""
        parked, self._parked = list(self._parked.values()), {}
        return parked

    def drop_done(self) -> None:
        """Forgets those that were ended by other means, a deadline among them."""
        self._uncommitted = deque(pending for pending in self._uncommitted if not pending.is_done)
