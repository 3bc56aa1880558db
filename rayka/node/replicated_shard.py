"""One shard on one replicated log: it stands by, becomes active, answers requests, and stands by again.

One loop looks at the log after every news of it. The host knows no log and no state machine: the shard makes the errors
for callers of another node, and has the timers.

Invariants:

- An active shard belongs to the present lead of this node, so no answer of a former lead is given.
- A shard becomes active when the beginning of the lead is committed and everything before is replayed (A41, A67).
- It is built anew, from the newest snapshot and the committed log, when that lead ends (A66), or when the log has lost
  records that the shard has replayed (B27).
- Long replays and long requests leave other work its turn. A replay that fails is a bug, and ends the node.

A lead may last for several epochs: when a partition drops a replica, its leader goes on in the next epoch. Its shard
knows all that is in the log, and goes on too: else a group would stand still for as long as its coordinator loads.

Kafka: `CoordinatorRuntime`, `QuorumController.QuorumMetaLogListener`.
"""

import asyncio
import logging
from collections.abc import Callable, Iterator
from itertools import islice
from typing import Any, Generic, NamedTuple, Protocol

from rayka import clock
from rayka.errors import ApiError, RequestTimedOut, StorageError
from rayka.ids import NO_EPOCH, NO_OFFSET, node_name
from rayka.node.tasks import Signal
from rayka.shard.runtime import STEPS_PER_TURN, Pending, ShardRuntime, ShardT
from rayka.shard.shard import AppendLog, NotHere, RecordT

COMMIT_TIMEOUT_MS = 30_000
_RECORDS_PER_TURN = 1_000
_logger = logging.getLogger(__name__)


class ReplicatedLog(AppendLog[RecordT], Protocol[RecordT]):
    """One replica of the log under a shard: a `QuorumLog` or a `PartitionLog`. On a new leader its high watermark is -1
    until the beginning of its epoch is committed.

    The host relies on this: appended records become committed in order, or never; committed records stay, but for a
    loss that `epoch_of` shows, since one offset and epoch mean one record in the world; the log's own records take up
    offsets. Kafka: `RaftClient` with its `Listener`; `PartitionWriter`, `CoordinatorLoader` and `PartitionListener`.
    """

    @property
    def news(self) -> Signal:
        """Notified at every change that the other members tell."""
        ...

    @property
    def failure(self) -> StorageError | None:
        """Why this replica is not used any more, for good; None while it is used."""
        ...

    # ---- Leadership -------------------------------------------------------------------------------------------------

    @property
    def leading_epoch(self) -> int | None:
        """The epoch that this node leads; None while it does not lead, or cannot append."""
        ...

    @property
    def lead_began_in(self) -> int | None:
        """The epoch in which the present lead of this node began; None while it does not lead. Between that epoch and
        `leading_epoch` no other node has led: this node has appended all records since.
        """
        ...

    @property
    def leader_id(self) -> int:
        """The leader as far as this node knows; -1: none is known."""
        ...

    @property
    def leader_epoch(self) -> int:
        """The newest epoch that is known here."""
        ...

    def commit_problem(self) -> str:
        """Why records are not committed, as far as this node knows; empty when they are."""
        ...

    # ---- Committed records -------------------------------------------------------------------------------------------

    @property
    def start_offset(self) -> int:
        """The offset at which a new state machine begins: behind the newest snapshot, or where a compacted log
        begins.
        """
        ...

    def start_records(self) -> Iterator[RecordT]:
        """The records before `start_offset`: those of the snapshot, none for a compacted log. Raises StorageError as
        `committed`.
        """
        ...

    def committed(self, offset: int) -> tuple[Iterator[tuple[int, RecordT]], int]:
        """Some committed records from an offset on, each with its offset, and the offset at which to read on.

        Iteration raises StorageError at a record that is damaged or of a type that this node does not know.
        """
        ...

    def epoch_of(self, offset: int) -> int:
        """The leader epoch of a record that is there, not before `start_offset`."""
        ...


class _Loading(NamedTuple, Generic[RecordT]):
    """Records on their way into the shard."""

    # Each with its offset.
    records: Iterator[tuple[int, RecordT]]
    # The shard's offset once all are replayed, and the epoch of the record before that.
    next_offset: int
    last_epoch: int


class ReplicatedShard(Generic[ShardT, RecordT]):
    """Hosts the shards that `make_shard` makes, one after another.

    `on_active` is called when a shard has become active, before its first request and its first timer; `on_replayed`
    after each step of committed records, and of a request that takes several turns.
    """

    def __init__(
        self,
        node_id: int,
        log: ReplicatedLog[RecordT],
        make_shard: Callable[[], ShardT],
        *,
        on_active: Callable[[], None] = lambda: None,
        on_replayed: Callable[[], object] = lambda: None,
        steps_per_turn: int = STEPS_PER_TURN,
    ) -> None:
        self._name = node_name(node_id)
        self._log = log
        self._runtime: ShardRuntime[ShardT, RecordT] = ShardRuntime(
            make_shard, log, steps_per_turn=steps_per_turn
        )
        self._on_active = on_active
        self._on_replayed = on_replayed
        # The first epoch of the lead in which the shard is active.
        self._lead_began_in: int | None = None
        # The epoch of the last record that was replayed.
        self._last_epoch = NO_EPOCH
        self._loading: _Loading[RecordT] | None = None
        self._waiting: dict[Pending, asyncio.Future[None]] = {}

    def __repr__(self) -> str:
        return f"<ReplicatedShard on {self._name} {self._runtime!r}>"

    @property
    def shard(self) -> ShardT:
        return self._runtime.shard

    @property
    def replayed_offset(self) -> int:
        """The first offset that the shard has not replayed."""
        return self._runtime.replayed_offset

    @property
    def is_active(self) -> bool:
        return self._runtime.is_active and self._lead_began_in == self._log.lead_began_in

    @property
    def active_epoch(self) -> int:
        """The leader epoch in which the shard is active; NO_EPOCH while it is not."""
        epoch = self._log.leading_epoch
        return epoch if epoch is not None and self.is_active else NO_EPOCH

    @property
    def takes_requests(self) -> bool:
        """True while it leads, as far as it has noticed: the shard may be ahead of the committed records."""
        return self._runtime.is_active

    @property
    def stands_by(self) -> bool:
        """True if the shard holds the committed records up to `replayed_offset` and nothing else. False until the end
        of a lead was noticed.
        """
        return not self._runtime.is_active and self._loading is None

    # ---- Requests ----------------------------------------------------------------------------------------------------

    async def submit(self, request: Any) -> Any:
        """The response, once the request's records and all before them are committed. Raises the ApiError that refuses
        the request, the shard's error for a node where it is not active (`Shard.not_here`), or RequestTimedOut.
        """
        return await self.answer_of(self.run_request(request))

    async def answer_of(self, pending: Pending) -> Any:
        """The response of a request that runs already. Raises as `submit`."""
        if not pending.is_done:
            loop = asyncio.get_running_loop()
            future = self._waiting[pending] = loop.create_future()
            timer = loop.call_later(COMMIT_TIMEOUT_MS / 1000, self._expire, pending)
            try:
                await future
            finally:
                timer.cancel()
                del self._waiting[pending]
        if pending.error is not None:
            raise pending.error
        return pending.response

    def run_request(self, request: Any) -> Pending:
        """Runs a request on the active shard without waiting for its answer. Raises the error of `Shard.not_here`."""
        self.check_active()
        runtime, now_ms = self._runtime, clock.now_ms()
        was_busy, next_timer_ms, could_release = runtime.is_busy, runtime.next_timer_ms, runtime.can_release
        pending = runtime.handle(request, now_ms=now_ms, deadline_ms=now_ms + COMMIT_TIMEOUT_MS)
        is_news = (runtime.is_busy and not was_busy) or (runtime.can_release and not could_release)
        timer_ms = runtime.next_timer_ms
        is_sooner = timer_ms is not None and (next_timer_ms is None or timer_ms < next_timer_ms)
        if is_news or is_sooner:
            self._log.news.notify()
        return pending

    def check_active(self) -> None:
        """Raises the shard's error unless it is active; the error names the leader, or why there is none."""
        if not self.is_active:
            is_leading = self._log.leading_epoch is not None
            raise self.not_here("leads, and has yet to load" if is_leading else "does not lead")

    async def until_committed(self, offset: int) -> None:
        """Returns once all records below the offset are committed. Raises as `submit`."""
        deadline_s = clock.now_s() + COMMIT_TIMEOUT_MS / 1000
        self.check_active()
        while self._log.high_watermark < offset:
            if clock.now_s() >= deadline_s:
                raise RequestTimedOut(
                    f"{self._name} has not committed offset {offset} in time; {self._log.commit_problem()}"
                )
            await self._log.news.wait(deadline_s)
            self.check_active()

    def _expire(self, pending: Pending) -> None:
        """Ends the request at its deadline. The deadline of a request that waits for another one begins anew with that
        one's answer.
        """
        now_ms = clock.now_ms()
        if pending.deadline_ms <= now_ms + 1:
            self._complete(self._runtime.expire(pending.deadline_ms, self._log.commit_problem()))
        if not pending.is_done and pending in self._waiting:
            left_ms = pending.deadline_ms - now_ms
            delay_ms = left_ms if left_ms > 0 else COMMIT_TIMEOUT_MS
            asyncio.get_running_loop().call_later(delay_ms / 1000, self._expire, pending)

    def _complete(self, ended: list[Pending]) -> None:
        for pending in ended:
            # A timer's request has none.
            future = self._waiting.get(pending)
            if future is not None and not future.done():
                future.set_result(None)

    def not_here(self, what: str, *, may_have_run: bool = False) -> ApiError:
        """The shard's error for callers of this node, where it is not active."""
        log = self._log
        problem = log.commit_problem()
        why = NotHere(
            f"{self._name} {what}" + (f"; {problem}" if problem else ""),
            log.leader_id,
            log.leader_epoch,
            is_loading=log.leading_epoch is not None and not self.is_active,
            may_have_run=may_have_run,
        )
        return self.shard.not_here(why)

    # ---- Following the log -------------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Follows the log until its disk fails. Raises StorageError when a committed record is damaged."""
        while self._log.failure is None:
            if self._step():
                await asyncio.sleep(0)
            else:
                timer_ms = self._runtime.next_timer_ms
                await self._log.news.wait(float("inf") if timer_ms is None else timer_ms / 1000)

    def _step(self) -> bool:
        """Takes one step towards the state of the log; True if another one may follow at once."""
        if self._runtime.is_active:
            return self._lead()
        if self._loading is not None:
            return self._load(self._loading)
        start_offset = self._log.start_offset
        if self.replayed_offset < start_offset or self._has_lost_records(start_offset):
            self._runtime.begin_snapshot()
            content = ((start_offset - 1, record) for record in self._log.start_records())
            self._loading = _Loading(content, start_offset, NO_EPOCH)
            return True
        if self.replayed_offset < self._log.high_watermark:
            records, next_offset = self._log.committed(self.replayed_offset)
            if next_offset == self.replayed_offset:
                # Only a part of the batch that begins there is known to be committed.
                return False
            self._loading = _Loading(records, next_offset, self._log.epoch_of(next_offset - 1))
            return self._load(self._loading)
        return self._maybe_activate()

    def _has_lost_records(self, start_offset: int) -> bool:
        """True if the log has lost records that the shard has replayed: the last one is gone, or replaced."""
        offset = self.replayed_offset
        if offset <= start_offset:
            return False
        return offset > self._log.next_offset or self._log.epoch_of(offset - 1) != self._last_epoch

    def _lead(self) -> bool:
        """Goes on with the lead, after a check that it is not over: the high watermark may have passed records of a
        successor.
        """
        if not self.is_active:
            self.end(self.not_here("leads no more", may_have_run=True))
            return True
        now_ms = clock.now_ms()
        self._complete(self._runtime.on_high_watermark())
        self._runtime.fire(now_ms)
        if not self._runtime.is_busy:
            return False
        ran = self._runtime.advance(now_ms)
        self._on_replayed()
        if ran is not None and ran.timer is not None and ran.error is not None:
            _logger.debug("%r: %r: %s; it is tried again", self, ran.timer, ran.error)
        if ran is not None and ran.is_done:
            self._complete([ran])
        return True

    def _load(self, loading: _Loading[RecordT]) -> bool:
        """Replays some records. The shard's offset moves with the last of them only: a batch is replayed as a whole."""
        records = list(islice(loading.records, _RECORDS_PER_TURN))
        is_last = len(records) < _RECORDS_PER_TURN
        self._runtime.replay_committed(records, loading.next_offset if is_last else self.replayed_offset)
        if is_last:
            self._loading, self._last_epoch = None, loading.last_epoch
        self._on_replayed()
        return True

    def _maybe_activate(self) -> bool:
        if self._log.leading_epoch is None or self._log.high_watermark == NO_OFFSET:
            return False
        self._lead_began_in = self._log.lead_began_in
        now_ms = clock.now_ms()
        self._runtime.activate(now_ms)
        self._on_active()
        self._runtime.fire(now_ms)
        return True

    # ---- End ---------------------------------------------------------------------------------------------------------

    def end(self, error: ApiError) -> None:
        """Gives all waiting callers an error; the shard is built anew."""
        self._lead_began_in, self._loading = None, None
        self._complete(self._runtime.deactivate(error))

    def abandon(self) -> None:
        """Ends as the process does: no caller gets an answer."""
        for future in self._waiting.values():
            future.cancel()
