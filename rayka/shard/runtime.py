"""Runs one replicated state machine. The leader of the log decides; any other node replays committed records.

A request runs on the newest state. Its records are appended and replayed at once, so the next request sees them. Its
response waits until the high watermark has passed the records. A response without records, such as an error, waits for
everything that was replayed before it. So no caller hears of state that a failover could take back, and no request
waits for the disk before the next one runs (A65).

A timer that is due is a request without a caller; its records are written like those of any request.

A request may wait for another one (`Deferred`), as a member waits for the rest of its group. A later result ends the
wait and holds the answer. The answer waits for the high watermark like the response of that result. No deadline of the
caller ends such a wait.

A request that is too much for one turn of the event loop runs in steps (`Steps`). Records that are committed together
are replayed in parts. Each call of `advance` does as much as fits a turn. Other requests wait in order until the
last step, so nothing else is decided between two steps.

Invariants: a standby has replayed committed records only, in order, from a snapshot or from offset 0 on; everything
below `log.next_offset` has been replayed before a request runs; responses are released in the order in which their
requests ran. A record that the leader replayed may never be committed. So a node that stops leading starts over:
`deactivate` makes an empty state machine, which is filled from the newest snapshot and the committed log (A66).

Kafka: `CoordinatorRuntime`, `DeferredEventQueue` of `QuorumController`. Kafka reverts the state of a leader with
`SnapshotRegistry`. Here a change of leaders costs a replay, and the state needs no history.
"""

from collections import deque
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from rayka.errors import ApiError, InvalidRequest, InvariantBroken, RequestTimedOut
from rayka.shard.shard import (
    RECORDS_PER_BATCH_MAX,
    Answer,
    AppendLog,
    Deferred,
    RecordT,
    Result,
    Shard,
    Steps,
    Timer,
    Timers,
)

ShardT = TypeVar("ShardT", bound=Shard[Any])
# A step takes about 15 µs where a broker is fenced: 4 ms a turn, or 15 ms on a busy machine.
STEPS_PER_TURN = 250
TIMER_RETRY_MS = 500
_NEVER_MS = 1 << 62


@dataclass(slots=True, eq=False, repr=False)
class Pending:
    """A response that a caller waits for, or the outcome of a timer's request."""

    # `expire` ends the response then.
    deadline_ms: int
    # The timer that made the request.
    timer: Timer | None = None
    # The time that the answer of a parked request has for its commit, from the end of the wait on.
    timeout_ms: int = 0
    # The answer waits until the high watermark is here.
    required_offset: int = -1
    # The answer once `is_done`: the error, if there is one, else the response.
    response: Any = None
    error: ApiError | None = None
    # The request has run to its end, and the answer waits for its commit or for another request.
    has_run: bool = False
    is_done: bool = False

    def __repr__(self) -> str:
        waits = f"waits for {self.required_offset}" if self.has_run else "runs or waits to run"
        return f"<Pending {'done' if self.is_done else waits} {self.error or self.response!r}>"


class PendingResponses:
    """The responses of requests that have run: answers that wait for their commit, and parked requests.

    Invariant: answers are released in the order in which their requests ran or their waits ended. Kafka:
    `DeferredEventQueue`.
    """

    def __init__(self) -> None:
        # In order of `required_offset`.
        self._uncommitted: deque[Pending] = deque()
        # By the key of `Deferred`.
        self._parked: dict[Hashable, Pending] = {}

    def __repr__(self) -> str:
        return f"<PendingResponses uncommitted={len(self._uncommitted)} parked={len(self._parked)}>"

    def __len__(self) -> int:
        return len(self._uncommitted)

    @property
    def uncommitted(self) -> tuple[Pending, ...]:
        """The answers that wait for their commit, in order."""
        return tuple(self._uncommitted)

    def keep(self, pending: Pending, next_offset: int, high_watermark: int) -> None:
        """Holds an answer until its commit. The answer is done at once if all records are committed and no other answer
        waits; else `release` returns it in its order.
        """
        pending.required_offset = next_offset
        pending.is_done = not self._uncommitted and next_offset <= high_watermark
        if not pending.is_done:
            self._uncommitted.append(pending)

    def park(self, key: Hashable, pending: Pending) -> None:
        """Parks a request that waits for an answer with this key."""
        if key in self._parked:
            raise InvariantBroken(f"{self!r}: a request waits as {key!r} already")
        pending.has_run = True
        # Done: the deadline came while the request ran.
        if not pending.is_done:
            self._parked[key] = pending

    def answer(self, answers: Iterable[Answer], next_offset: int, now_ms: int) -> None:
        """Ends the waits of parked requests; the answers now wait for their commit. Ignores keys without a request."""
        for answer in answers:
            pending = self._parked.pop(answer.key, None)
            if pending is not None:
                pending.response, pending.error = answer.response, answer.error
                pending.required_offset = next_offset
                pending.deadline_ms = now_ms + pending.timeout_ms
                self._uncommitted.append(pending)

    def can_release(self, high_watermark: int) -> bool:
        """True if the first answer is committed."""
        return bool(self._uncommitted) and self._uncommitted[0].required_offset <= high_watermark

    def release(self, high_watermark: int) -> list[Pending]:
        """Removes and returns the answers that are committed, in order."""
        released = []
        while self.can_release(high_watermark):
            pending = self._uncommitted.popleft()
            pending.is_done = True
            released.append(pending)
        return released

    def take_parked(self) -> list[Pending]:
        """Removes and returns all parked requests."""
        parked, self._parked = list(self._parked.values()), {}
        return parked

    def drop_done(self) -> None:
        """Drops the answers that a deadline or an error has ended."""
        self._uncommitted = deque(pending for pending in self._uncommitted if not pending.is_done)


class _Operation(Generic[RecordT]):
    """A request that takes several turns: first its steps, then the replay of its result's records."""

    __slots__ = ("_has_begun", "first_offset", "pending", "replayed_count", "result", "steps")

    def __init__(self, pending: Pending, outcome: "Result[RecordT, Any] | Steps[RecordT, Any]") -> None:
        self.pending = pending
        self.steps = _no_steps(outcome) if isinstance(outcome, Result) else outcome
        # None until the last step. Its records are in the log then, from `first_offset` on.
        self.result: Result[RecordT, Any] | None = None
        self.first_offset = -1
        # 0 <= replayed_count <= len(result.records)
        self.replayed_count = 0
        self._has_begun = False

    def take_steps(self, count: int, next_offset: int) -> list[RecordT]:
        """Takes up to `count` steps and returns their records; sets `result` after the last step. The first record gets
        `next_offset`.
        """
        records: list[RecordT] = []
        try:
            for _ in range(count):
                step = self.steps.send(next_offset + len(records)) if self._has_begun else next(self.steps)
                self._has_begun = True
                if isinstance(step, list):
                    records += step
                elif step is not None:
                    records.append(step)
        except StopIteration as end:
            self.result = end.value
        return records


def _no_steps(result: "Result[RecordT, Any]") -> "Steps[RecordT, Any]":
    yield from ()
    return result


def _together(records: Sequence[RecordT]) -> Sequence[RecordT]:
    """Returns the records of a result. Raises InvalidRequest if they are too many for one commit."""
    if len(records) > RECORDS_PER_BATCH_MAX:
        raise InvalidRequest(
            f"the request would write {len(records):,} records, expected at most {RECORDS_PER_BATCH_MAX:,}, which"
            " are committed together; make several requests of it"
        )
    return records


class ShardRuntime(Generic[ShardT, RecordT]):
    """One shard, the log under it, and the responses that wait. Begins as a standby."""

    def __init__(
        self,
        make_shard: Callable[[], ShardT],
        log: AppendLog[RecordT],
        *,
        steps_per_turn: int = STEPS_PER_TURN,
    ) -> None:
        self._make_shard = make_shard
        self._log = log
        self._steps_per_turn = steps_per_turn
        self._pending_responses = PendingResponses()
        # The request that takes several turns; requests wait in the queue behind it.
        self._operation: _Operation[RecordT] | None = None
        self._queue: deque[tuple[Any, Pending]] = deque()
        self._timers = Timers()
        # When the newest request began.
        self._now_ms = 0
        self.shard = make_shard()
        # Everything below has been replayed.
        self.replayed_offset = 0
        self.is_active = False

    def __repr__(self) -> str:
        state = "active" if self.is_active else "standby"
        return (
            f"<ShardRuntime {state} replayed={self.replayed_offset} pending={len(self._pending_responses)}>"
        )

    # ---- Standby -----------------------------------------------------------------------------------------------------

    def begin_snapshot(self) -> None:
        """Starts over with an empty state machine, for the records of a snapshot."""
        if self.is_active:
            raise InvariantBroken(f"{self!r} has newer state than any snapshot")
        self.shard, self.replayed_offset = self._make_shard(), 0

    def replay_committed(self, records: Iterable[tuple[int, RecordT]], next_offset: int) -> None:
        """Replays committed records, each with its offset; everything below `next_offset` is replayed then. The records
        of a snapshot have the snapshot's last offset.
        """
        if self.is_active:
            raise InvariantBroken(f"{self!r} has replayed what it appended")
        if next_offset < self.replayed_offset:
            raise InvariantBroken(f"{self!r} cannot go back to {next_offset}")
        replay = self.shard.replay
        for offset, record in records:
            replay(record, offset)
        self.replayed_offset = next_offset

    # ---- Leadership --------------------------------------------------------------------------------------------------

    def activate(self, now_ms: int) -> None:
        """Begins to lead. All committed records have been replayed (A41)."""
        if not self.replayed_offset >= self._log.high_watermark >= 0:
            raise InvariantBroken(f"{self!r} has not seen everything")
        self.is_active, self._now_ms = True, now_ms
        self._timers.set_all(self.shard.on_active(now_ms=now_ms, next_offset=self._log.next_offset))

    def deactivate(self, error: ApiError) -> list[Pending]:
        """Stops leading: ends all waiting responses with the error, and starts over with an empty state (A66)."""
        self.is_active, self._timers = False, Timers()
        if self._operation is not None:
            self._operation.steps.close()
        ended = self.fail(error)
        self._operation = None
        self.begin_snapshot()
        return ended

    @property
    def is_busy(self) -> bool:
        """True if a request has not run to its end, so that `advance` must be called."""
        return self._operation is not None or bool(self._queue)

    def handle(self, request: Any, *, now_ms: int, deadline_ms: int) -> Pending:
        """Runs the first turn of a request, or queues the request behind others.

        The answer is done at once, or one of the methods below ends it.
        """
        if not self.is_active:
            raise InvariantBroken(f"{self!r} does not lead")
        pending = Pending(deadline_ms, timeout_ms=deadline_ms - now_ms)
        if self.is_busy:
            self._queue.append((request, pending))
        else:
            self._begin(request, pending, now_ms)
        return pending

    @property
    def can_release(self) -> bool:
        """True if an answer is committed, so that `on_high_watermark` must be called."""
        return bool(self._pending_responses) and self._pending_responses.can_release(self._log.high_watermark)

    @property
    def next_timer_ms(self) -> int | None:
        """The time of the next timer; None without timers."""
        return self._timers.next_ms if self.is_active else None

    def fire(self, now_ms: int) -> None:
        """Queues the requests of the timers that are due. A refused one is tried again after TIMER_RETRY_MS, unless its
        timer was set again.
        """
        while (timer := self._timers.take_due(now_ms)) is not None:
            self._queue.append((timer.request, Pending(_NEVER_MS, timer)))

    def advance(self, now_ms: int) -> Pending | None:
        """Runs one turn: of the running request, or of the next one in the queue. Returns a request that has ended."""
        if not self.is_active:
            raise InvariantBroken(f"{self!r} does not lead")
        if self._operation is not None:
            pending = self._operation.pending
            self._take_turn(self._operation)
        elif self._queue:
            request, pending = self._queue.popleft()
            self._begin(request, pending, now_ms)
        else:
            return None
        return pending if pending.has_run else None

    def _begin(self, request: Any, pending: Pending, now_ms: int) -> None:
        self._now_ms = now_ms
        # The records behind `replayed_offset` are control records of the log.
        self.replayed_offset = self._log.next_offset
        try:
            outcome = self.shard.handle(request, now_ms=now_ms, next_offset=self.replayed_offset)
        except ApiError as refusal:
            self._finish(pending, None, refusal)
            return
        if not isinstance(outcome, Result) or len(outcome.records) > self._steps_per_turn:
            self._take_turn(_Operation(pending, outcome))
            return
        # Most requests have a result that fits this turn.
        try:
            first_offset = self._append(_together(outcome.records))
        except ApiError as refusal:
            self._finish(pending, None, refusal)
            return
        if outcome.records:
            self._replay(outcome.records, first_offset)
        self._conclude(pending, outcome)

    def _take_turn(self, operation: _Operation[RecordT]) -> None:
        """Takes the next steps of a request, or replays the next records of its result.

        The shard and the log may refuse the request with ApiError; the records that are written stay.
        """
        self._operation = None
        try:
            if operation.result is None:
                records = operation.take_steps(self._steps_per_turn, self._log.next_offset)
                if records:
                    self._replay(records, self._append(records))
                if operation.result is None:
                    self._operation = operation
                    return
                operation.first_offset = self._append(_together(operation.result.records))
        except ApiError as refusal:
            self._finish(operation.pending, None, refusal)
            return
        result, begin = operation.result, operation.replayed_count
        some = result.records[begin : begin + self._steps_per_turn]
        if some:
            self._replay(some, operation.first_offset + begin)
        operation.replayed_count += len(some)
        if operation.replayed_count < len(result.records):
            self._operation = operation
        else:
            self._conclude(operation.pending, result)

    def _conclude(self, pending: Pending, result: Result[RecordT, Any]) -> None:
        """Ends a request whose records are written and replayed."""
        self._timers.set_all(result.timers)
        if isinstance(result.response, Deferred):
            self._pending_responses.park(result.response.key, pending)
        else:
            self._finish(pending, result.response, None)
        self._pending_responses.answer(result.answers, self._log.next_offset, self._now_ms)

    def _finish(self, pending: Pending, response: Any, error: ApiError | None) -> None:
        """Ends a request with its answer."""
        pending.has_run = True
        if error is not None and pending.timer is not None and pending.timer.key not in self._timers:
            self._timers.set(pending.timer._replace(due_ms=self._now_ms + TIMER_RETRY_MS))
        # Done: the deadline came while the request ran.
        if pending.is_done:
            return
        pending.response, pending.error = response, error
        self._pending_responses.keep(pending, self._log.next_offset, self._log.high_watermark)

    def on_high_watermark(self) -> list[Pending]:
        """Releases the answers below the new high watermark, in the order of their requests."""
        return self._pending_responses.release(self._log.high_watermark)

    def expire(self, now_ms: int, reason: str = "") -> list[Pending]:
        """Ends the responses whose deadline has come.

        Their records stay and may be committed later. The running request goes on; a queued request is dropped.
        """
        expired = [pending for pending in self._waiting() if pending.deadline_ms <= now_ms]
        why = f": {reason}" if reason else ""
        return self._end(
            expired,
            RequestTimedOut(f"not committed in time{why}; it may be later, so look before trying again"),
        )

    def fail(self, error: ApiError) -> list[Pending]:
        """Ends all waiting responses with an error: the node stops, leads no more, or its disk failed."""
        return self._end([*self._waiting(), *self._pending_responses.take_parked()], error)

    def _waiting(self) -> list[Pending]:
        runs = [] if self._operation is None or self._operation.pending.is_done else [self._operation.pending]
        return [*self._pending_responses.uncommitted, *runs, *(pending for _, pending in self._queue)]

    def _append(self, records: Sequence[RecordT]) -> int:
        """Appends the records, if any, and returns the offset of the first. Raises ApiError if the log refuses them."""
        next_offset = self._log.next_offset
        if not records:
            return next_offset
        first_offset = self._log.append(records)
        if first_offset != next_offset:
            raise InvariantBroken(f"{self!r}: expected offset {next_offset}, got {first_offset}")
        return first_offset

    def _replay(self, records: Sequence[RecordT], first_offset: int) -> None:
        for offset, record in enumerate(records, first_offset):
            self.shard.replay(record, offset)
        self.replayed_offset = first_offset + len(records)

    def _end(self, ended: list[Pending], error: ApiError) -> list[Pending]:
        for pending in ended:
            pending.error, pending.is_done = error, True
        self._pending_responses.drop_done()
        self._queue = deque(each for each in self._queue if not each[1].is_done)
        return ended
