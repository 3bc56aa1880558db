"""Runs one replicated state machine while this node leads its log; standbys only replay what is committed.

A request is handled on the newest state, its records are appended and replayed at once, so that the next
request sees them, and its response is kept back until the high watermark passes them. A response without
records, an error included, waits for everything replayed before it. So nobody is told of state that a
failover could take back, and no request waits for the disk before the next one runs (A65).

Invariants: responses are released in the order in which their requests ran; everything below
`log.next_offset` has been replayed before a request runs. Kafka: `CoordinatorRuntime`, `QuorumController`'s
deferred event queue. Left out: going back to committed state when leadership is lost (A66); a log with one
voter never loses it.
"""

from collections import deque
from collections.abc import Iterable
from typing import Any, Generic

from rayka.errors import ApiError, RequestTimedOut
from rayka.shard.shard import RecordT, ReplicatedLog, Result, Shard


class Pending:
    """A response on its way: once `is_done`, `error` or else `response` is the answer."""

    __slots__ = ("deadline_ms", "error", "is_done", "required_offset", "response")

    def __init__(self, required_offset: int, deadline_ms: int, response: Any, error: ApiError | None) -> None:
        self.required_offset = required_offset
        self.deadline_ms = deadline_ms
        self.response = response
        self.error = error
        self.is_done = False

    def __repr__(self) -> str:
        state = "done" if self.is_done else f"waits for {self.required_offset}"
        return f"<Pending {state} {self.error or self.response!r}>"


class ShardRuntime(Generic[RecordT]):
    """One shard, the log under it, and the responses that wait to be committed."""

    def __init__(self, shard: Shard[RecordT], log: ReplicatedLog[RecordT]) -> None:
        self._shard = shard
        self._log = log
        self._pending: deque[Pending] = deque()

    def __repr__(self) -> str:
        return f"<ShardRuntime next_offset={self._log.next_offset} pending={len(self._pending)}>"

    def replay_committed(self, records: Iterable[tuple[int, RecordT]]) -> None:
        """Takes in committed records, each with its offset, before this node leads."""
        for offset, record in records:
            self._shard.replay(record, offset)

    def handle(self, request: Any, *, now_ms: int, deadline_ms: int) -> Pending:
        """Runs a request. The answer is done at once or ended by one of the methods below."""
        next_offset = self._log.next_offset
        error = None
        try:
            result = self._shard.handle(request, now_ms=now_ms, next_offset=next_offset)
        except ApiError as refusal:
            error, result = refusal, Result((), None)
        if result.records:
            self._append(result, next_offset)
        pending = Pending(self._log.next_offset, deadline_ms, result.response, error)
        # Behind others it waits for its turn, so that whoever waits for those is told by `on_high_watermark`.
        pending.is_done = not self._pending and pending.required_offset <= self._log.high_watermark
        if not pending.is_done:
            self._pending.append(pending)
        return pending

    def on_high_watermark(self) -> list[Pending]:
        """The log's high watermark moved: the answers that this released, in the order of their requests."""
        released = []
        while self._pending and self._pending[0].required_offset <= self._log.high_watermark:
            pending = self._pending.popleft()
            pending.is_done = True
            released.append(pending)
        return released

    def expire(self, now_ms: int) -> list[Pending]:
        """Ends those whose deadline has come. Their records stay, and may yet be committed."""
        expired = [pending for pending in self._pending if pending.deadline_ms <= now_ms]
        return self._end(
            expired,
            RequestTimedOut("not committed in time; it may be later, so look before trying again"),
        )

    def fail(self, error: ApiError) -> list[Pending]:
        """Ends all that wait with an error: the node stops, or its disk failed."""
        return self._end(list(self._pending), error)

    def _append(self, result: Result[RecordT, Any], next_offset: int) -> None:
        first_offset = self._log.append(result.records)
        assert first_offset == next_offset, f"{self!r}: expected offset {next_offset}, got {first_offset}"
        for offset, record in enumerate(result.records, first_offset):
            self._shard.replay(record, offset)

    def _end(self, ended: list[Pending], error: ApiError) -> list[Pending]:
        for pending in ended:
            pending.error, pending.is_done = error, True
        self._pending = deque(pending for pending in self._pending if not pending.is_done)
        return ended
