"""Runs one replicated state machine: while this node leads its log it decides, otherwise it replays what is committed.

A request is handled on the newest state, its records are appended and replayed at once, so that the next
request sees them, and its response is kept back until the high watermark passes them. A response without
records, an error included, waits for everything replayed before it. So no caller is told of state that a
failover could take back, and no request waits for the disk before the next one runs (A65).

Timers belong to the runtime: one that is due is a request without a caller, whose records are written like any other's.

A request may wait for another one (`Deferred`), as a member waits for the rest of its group. The result that ends the
wait names the request, and holds back its answer like its own. No deadline of the caller ends such a wait.

A request that is too much for one turn of the event loop runs step by step (`Steps`), and records that are committed
together are replayed part by part: each call of `advance` does as much as fits a turn. The requests that come meanwhile
wait in their order, so between two steps nothing else is decided.

Invariants: a standby has replayed committed records only, from a snapshot or from offset 0 on, in order; everything
below `log.next_offset` has been replayed before a request runs; responses are released in the order in which their
requests ran. What a leader replayed may never be committed, so a node that leads no more begins from nothing:
`deactivate` gives a new state machine, to be filled from the newest snapshot and the committed log (A66).

Kafka: `CoordinatorRuntime`, `QuorumController`'s deferred event queue. It reverts a leader's state with
`SnapshotRegistry`; here a change of leaders costs a replay, and state needs no history.
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

# Requests of a replicated state machine whose answers are not out yet, and the order in which they are released.
#
# An answer is kept back until the high watermark has passed the records that were in the log when its request ran. A
# request that waits for another one (`Deferred`) is parked; the result that ends its wait names it. Invariant: answers
# are released in the order in which their requests ran, or in which their waits ended. Kafka: `DeferredEventQueue`.


@dataclass(slots=True, eq=False, repr=False)
class Pending:
    """A response on its way: once `is_done`, `error` or else `response` is the answer. `has_run`: the request has, and
    its answer waits to be committed, for as long as `timeout_ms` from then on.
    """

    deadline_ms: int
    timer: Timer | None = None
    timeout_ms: int = 0
    required_offset: int = -1
    response: Any = None
    error: ApiError | None = None
    has_run: bool = False
    is_done: bool = False

    def __repr__(self) -> str:
        waits = f"waits for {self.required_offset}" if self.has_run else "runs or waits to run"
        return f"<Pending {'done' if self.is_done else waits} {self.error or self.response!r}>"


class PendingResponses:
    """The requests that have run: those whose answers wait to be committed, and those that are parked."""

    def __init__(self) -> None:
        self._uncommitted: deque[Pending] = deque()
        self._parked: dict[Hashable, Pending] = {}

    def __repr__(self) -> str:
        return f"<PendingResponses uncommitted={len(self._uncommitted)} parked={len(self._parked)}>"

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
                pending.deadline_ms = now_ms + pending.timeout_ms
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


ShardT = TypeVar("ShardT", bound=Shard[Any])
# About 15 µs each where a broker is fenced: 4 ms, and 15 on a machine that is busy otherwise.
STEPS_PER_TURN = 250
TIMER_RETRY_MS = 500
_NEVER_MS = 1 << 62


class _Operation(Generic[RecordT]):
    """A request that runs: its steps, then its result, whose records are in the log and not all replayed yet."""

    __slots__ = ("_has_begun", "first_offset", "pending", "replayed_count", "result", "steps")

    def __init__(self, pending: Pending, outcome: "Result[RecordT, Any] | Steps[RecordT, Any]") -> None:
        self.pending = pending
        self.steps = _no_steps(outcome) if isinstance(outcome, Result) else outcome
        self.result: Result[RecordT, Any] | None = None
        self.first_offset = -1
        self.replayed_count = 0
        self._has_begun = False

    def __repr__(self) -> str:
        return (
            f"<_Operation {self.pending!r} {'takes steps' if self.result is None else self.replayed_count}>"
        )

    def take_steps(self, count: int, next_offset: int) -> list[RecordT]:
        """The records of so many steps, the first to have that offset; `result` is there when they were the last."""
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
    """The same records. Raises InvalidRequest for more than are committed together."""
    if len(records) > RECORDS_PER_BATCH_MAX:
        raise InvalidRequest(
            f"the request would write {len(records):,} records, expected at most {RECORDS_PER_BATCH_MAX:,}, which"
            " are committed together; make several requests of it"
        )
    return records


class ShardRuntime(Generic[ShardT, RecordT]):
    """One shard, the log under it, and the responses that wait to be committed. It begins as a standby."""

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
        self._operation: _Operation[RecordT] | None = None
        self._queue: deque[tuple[Any, Pending]] = deque()
        self._timers = Timers()
        self._now_ms = 0
        self.shard = make_shard()
        self.replayed_offset = 0
        self.is_active = False

    def __repr__(self) -> str:
        state = "active" if self.is_active else "standby"
        return (
            f"<ShardRuntime {state} replayed={self.replayed_offset} pending={len(self._pending_responses)}>"
        )

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
        replay = self.shard.replay
        for offset, record in records:
            replay(record, offset)
        self.replayed_offset = next_offset

    # ---- Leading -----------------------------------------------------------------------------------------------------

    def activate(self, now_ms: int) -> None:
        """This node leads, and everything there is has been replayed (A41)."""
        if not self.replayed_offset >= self._log.high_watermark >= 0:
            raise InvariantBroken(f"{self!r} has not seen everything")
        self.is_active, self._now_ms = True, now_ms
        self._timers.set_all(self.shard.on_active(now_ms=now_ms, next_offset=self._log.next_offset))

    def deactivate(self, error: ApiError) -> list[Pending]:
        """This node leads no more: those that wait end with the error, and the state is to be built anew (A66)."""
        self.is_active, self._timers = False, Timers()
        if self._operation is not None:
            self._operation.steps.close()
        ended = self.fail(error)
        self._operation = None
        self.begin_snapshot()
        return ended

    @property
    def is_busy(self) -> bool:
        """Whether some request has not run to its end: `advance` is to be called."""
        return self._operation is not None or bool(self._queue)

    def handle(self, request: Any, *, now_ms: int, deadline_ms: int) -> Pending:
        """Runs a request, the first turn of it, or lets it wait for those before it. The answer is done at once or
        ended by one of the methods below.
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
        """Whether the first response that waits need wait no more: `on_high_watermark` is to be called."""
        return bool(self._pending_responses) and self._pending_responses.can_release(self._log.high_watermark)

    @property
    def next_timer_ms(self) -> int | None:
        """When `fire` has something to do; None: not before a request has set a timer."""
        return self._timers.next_ms if self.is_active else None

    def fire(self, now_ms: int) -> None:
        """Lets the requests of the timers that are due wait for those before them, to be run by `advance`. One that is
        refused is tried again soon, unless its timer was set anew.
        """
        while (timer := self._timers.take_due(now_ms)) is not None:
            self._queue.append((timer.request, Pending(_NEVER_MS, timer)))

    def advance(self, now_ms: int) -> Pending | None:
        """The next turn of what runs, or the first turn of what waits to; the one that has run to its end by it."""
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
        # Beyond what was replayed there are records of the log's own only.
        self.replayed_offset = self._log.next_offset
        try:
            outcome = self.shard.handle(request, now_ms=now_ms, next_offset=self.replayed_offset)
        except ApiError as refusal:
            self._finish(pending, None, refusal)
        else:
            if isinstance(outcome, Result) and len(outcome.records) <= self._steps_per_turn:
                self._run_at_once(pending, outcome)
            else:
                self._take_turn(_Operation(pending, outcome))

    def _run_at_once(self, pending: Pending, result: Result[RecordT, Any]) -> None:
        """What most requests lead to: a result that fits this turn."""
        try:
            first_offset = self._append(_together(result.records))
        except ApiError as refusal:
            self._finish(pending, None, refusal)
            return
        if result.records:
            self._replay(result.records, first_offset)
        self._conclude(pending, result)

    def _take_turn(self, operation: _Operation[RecordT]) -> None:
        self._operation = None
        try:
            result = self._result(operation)
        except ApiError as refusal:
            self._finish(operation.pending, None, refusal)
            return
        if result is None:
            self._operation = operation
        else:
            self._conclude(operation.pending, result)

    def _conclude(self, pending: Pending, result: Result[RecordT, Any]) -> None:
        """Its records are in the log, and replayed."""
        self._timers.set_all(result.timers)
        if isinstance(result.response, Deferred):
            self._pending_responses.park(result.response.key, pending)
        else:
            self._finish(pending, result.response, None)
        self._pending_responses.answer(result.answers, self._log.next_offset, self._now_ms)

    def _result(self, operation: _Operation[RecordT]) -> Result[RecordT, Any] | None:
        """What comes of it, when this turn is the last. Raises what the shard or the log refuse it with: what was
        written stays.
        """
        if operation.result is None:
            records = operation.take_steps(self._steps_per_turn, self._log.next_offset)
            if records:
                self._replay(records, self._append(records))
            if operation.result is None:
                return None
            operation.first_offset = self._append(_together(operation.result.records))
        result, begin = operation.result, operation.replayed_count
        some = result.records[begin : begin + self._steps_per_turn]
        if some:
            self._replay(some, operation.first_offset + begin)
        operation.replayed_count += len(some)
        return result if operation.replayed_count == len(result.records) else None

    def _finish(self, pending: Pending, response: Any, error: ApiError | None) -> None:
        pending.has_run = True
        if error is not None and pending.timer is not None and pending.timer.key not in self._timers:
            self._timers.set(pending.timer._replace(due_ms=self._now_ms + TIMER_RETRY_MS))
        if pending.is_done:  # its deadline came while it ran
            return
        pending.response, pending.error = response, error
        self._pending_responses.keep(pending, self._log.next_offset, self._log.high_watermark)

    def on_high_watermark(self) -> list[Pending]:
        """The log's high watermark moved: the answers that this released, in the order of their requests."""
        return self._pending_responses.release(self._log.high_watermark)

    def expire(self, now_ms: int, reason: str = "") -> list[Pending]:
        """Ends those whose deadline has come. Their records stay, and may yet be committed; what runs goes on, what
        has not begun never will.
        """
        expired = [pending for pending in self._waiting() if pending.deadline_ms <= now_ms]
        why = f": {reason}" if reason else ""
        return self._end(
            expired,
            RequestTimedOut(f"not committed in time{why}; it may be later, so look before trying again"),
        )

    def fail(self, error: ApiError) -> list[Pending]:
        """Ends all that wait with an error: the node stops, leads no more, or its disk failed."""
        return self._end([*self._waiting(), *self._pending_responses.take_parked()], error)

    def _waiting(self) -> list[Pending]:
        runs = [] if self._operation is None or self._operation.pending.is_done else [self._operation.pending]
        return [*self._pending_responses.uncommitted, *runs, *(pending for _, pending in self._queue)]

    def _append(self, records: Sequence[RecordT]) -> int:
        """The offset of the first, or of the next one to be written. Raises what the log refuses them with."""
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
