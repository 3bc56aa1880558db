"""Runs one replicated state machine: while this node leads its log it decides, otherwise it replays what is committed.

A request is handled on the newest state, its records are appended and replayed at once, so that the next
request sees them, and its response is kept back until the high watermark passes them. A response without
records, an error included, waits for everything replayed before it. So nobody is told of state that a
failover could take back, and no request waits for the disk before the next one runs (A65).

Invariants: a standby has replayed committed records only, from a snapshot or from offset 0 on, in order; everything
below `log.next_offset` has been replayed before a request runs; responses are released in the order in which their
requests ran. What a leader replayed may never be committed, so who leads no more begins from nothing: `deactivate`
gives a new state machine, to be filled from the newest snapshot and the committed log (A66).

Kafka: `CoordinatorRuntime`, `QuorumController`'s deferred event queue. It reverts a leader's state with
`SnapshotRegistry`; here a change of leaders costs a replay, and state needs no history.
"""

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Generic, TypeVar

from rayka.errors import ApiError, InvalidRequest, InvariantBroken, RequestTimedOut
from rayka.shard.shard import RECORDS_PER_BATCH_MAX, RecordT, ReplicatedLog, Result, Shard

ShardT = TypeVar("ShardT", bound=Shard[Any])


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


class ShardRuntime(Generic[ShardT, RecordT]):
    """One shard, the log under it, and the responses that wait to be committed. It begins as a standby."""

    def __init__(self, make_shard: Callable[[], ShardT], log: ReplicatedLog[RecordT]) -> None:
        self._make_shard = make_shard
        self._log = log
        self._pending: deque[Pending] = deque()
        self.shard = make_shard()
        self.replayed_offset = 0
        self.is_active = False

    def __repr__(self) -> str:
        state = "active" if self.is_active else "standby"
        return f"<ShardRuntime {state} replayed={self.replayed_offset} pending={len(self._pending)}>"

    # ---- Standing by -------------------------------------------------------------------------------------------------

    def begin_snapshot(self) -> None:
        """What follows is the content of a snapshot: a new state machine takes it in."""
        if self.is_active:
            raise InvariantBroken(f"{self!r} has newer state than any snapshot")
        self.shard, self.replayed_offset = self._make_shard(), 0

    def replay_committed(self, records: Iterable[tuple[int, RecordT]], next_offset: int) -> None:
        """Takes in committed records, each with its offset, up to an offset; those of a snapshot count as its last."""
        if self.is_active:
            raise InvariantBroken(f"{self!r} has replayed what it appended")
        if next_offset < self.replayed_offset:
            raise InvariantBroken(f"{self!r} cannot go back to {next_offset}")
        for offset, record in records:
            self.shard.replay(record, offset)
        self.replayed_offset = next_offset

    # ---- Leading -----------------------------------------------------------------------------------------------------

    def activate(self) -> None:
        """This node leads, and everything there is has been replayed (A41)."""
        if not self.replayed_offset >= self._log.high_watermark >= 0:
            raise InvariantBroken(f"{self!r} has not seen everything")
        self.is_active = True

    def deactivate(self, error: ApiError) -> list[Pending]:
        """This node leads no more: those that wait end with the error, and the state is to be built anew (A66)."""
        self.is_active = False
        self.begin_snapshot()
        return self.fail(error)

    def handle(self, request: Any, *, now_ms: int, deadline_ms: int) -> Pending:
        """Runs a request. The answer is done at once or ended by one of the methods below."""
        if not self.is_active:
            raise InvariantBroken(f"{self!r} does not lead")
        next_offset = self._log.next_offset
        error: ApiError | None = None
        try:
            result = self.shard.handle(request, now_ms=now_ms, next_offset=next_offset)
            self._append(result)
        except ApiError as refusal:
            error, result = refusal, Result((), None)
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

    def expire(self, now_ms: int, reason: str = "") -> list[Pending]:
        """Ends those whose deadline has come. Their records stay, and may yet be committed."""
        expired = [pending for pending in self._pending if pending.deadline_ms <= now_ms]
        why = f": {reason}" if reason else ""
        return self._end(
            expired,
            RequestTimedOut(f"not committed in time{why}; it may be later, so look before trying again"),
        )

    def fail(self, error: ApiError) -> list[Pending]:
        """Ends all that wait with an error: the node stops, leads no more, or its disk failed."""
        return self._end(list(self._pending), error)

    def _append(self, result: Result[RecordT, Any]) -> None:
        """Raises InvalidRequest for more records than fit together, and what the log refuses them with."""
        count = len(result.records)
        if result.is_atomic and count > RECORDS_PER_BATCH_MAX:
            raise InvalidRequest(
                f"the request would write {count:,} records, expected at most {RECORDS_PER_BATCH_MAX:,}, which are"
                " committed together; make several requests of it"
            )
        for first in range(0, count, RECORDS_PER_BATCH_MAX):
            self._append_batch(result.records[first : first + RECORDS_PER_BATCH_MAX])

    def _append_batch(self, records: Sequence[RecordT]) -> None:
        next_offset = self._log.next_offset
        first_offset = self._log.append(records)
        if first_offset != next_offset:
            raise InvariantBroken(f"{self!r}: expected offset {next_offset}, got {first_offset}")
        for offset, record in enumerate(records, first_offset):
            self.shard.replay(record, offset)
        self.replayed_offset = first_offset + len(records)

    def _end(self, ended: list[Pending], error: ApiError) -> list[Pending]:
        for pending in ended:
            pending.error, pending.is_done = error, True
        self._pending = deque(pending for pending in self._pending if not pending.is_done)
        return ended
