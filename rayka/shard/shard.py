"""The contract of a replicated state machine: what a shard decides and replays, the log under it, and its timers.

`ShardRuntime` runs a shard. Kafka: `CoordinatorShard`, `CoordinatorResult`, `ControllerWriteOperation`,
`ControllerResult`, `CoordinatorTimer`, `CoordinatorTimerImpl` (decision 020, A65).
"""

from collections.abc import Generator, Hashable, Iterable, Sequence
from heapq import heappop, heappush
from itertools import count
from typing import Any, Generic, NamedTuple, Protocol, TypeVar

from rayka.errors import ApiError

RecordT = TypeVar("RecordT")
RecordT_contra = TypeVar("RecordT_contra", contravariant=True)
RecordT_co = TypeVar("RecordT_co", covariant=True)
ResponseT = TypeVar("ResponseT")
# A68
RECORDS_PER_BATCH_MAX = 10_000


class Timer(NamedTuple):
    """A request that the runtime makes by itself at a time. A timer replaces the earlier one with its key."""

    key: Hashable
    # Monotonic.
    due_ms: int
    # None cancels the timer.
    request: Any


class Deferred(NamedTuple):
    """The response of a request that waits for another request or for a timer. Timers of the shard bound the wait."""

    # The shard ends the wait by an `Answer` with this key. No other waiting request has the key.
    key: Hashable


class Answer(NamedTuple):
    """The end of the wait of a parked request: a response, or an error."""

    key: Hashable
    response: Any = None
    error: ApiError | None = None


class Result(NamedTuple, Generic[RecordT_co, ResponseT]):
    """The result of a request."""

    # Committed together or not at all; at most RECORDS_PER_BATCH_MAX (A68).
    records: Sequence[RecordT_co]
    # Given once the records, and everything before them, are committed.
    response: ResponseT
    # Set or cancelled when the records are in the log. So a refused request has changed no timer.
    timers: Sequence[Timer] = ()
    # Ends of the waits of parked requests; given like the response.
    answers: Sequence[Answer] = ()


Steps = Generator[RecordT | list[RecordT] | None, int, Result[RecordT, ResponseT]]
"""A request that is too much for one turn of the event loop.

Each step yields a record, a list of records that are committed together, or None; the generator returns a result. Each
`yield` evaluates to the offset of the next record.

The records of the steps are written in several batches, so after a failover only the first batches may be there. The
records of the result are written together. No other request runs before the end, so the state changes by the records of
the steps only.
"""


class NotHere(NamedTuple):
    """Why a node cannot run a request."""

    # The reason in words.
    reason: str
    leader_id: int
    leader_epoch: int
    # The node leads the log, and has not replayed all of it.
    is_loading: bool = False
    # The request was running when the node stopped leading.
    may_have_run: bool = False


class Shard(Protocol[RecordT]):
    """A state machine whose replicated state is the replay of its records.

    An active shard may also have soft state, such as timers and contact times, which is lost with the leadership.
    """

    def handle(
        self, request: Any, *, now_ms: int, next_offset: int
    ) -> Result[RecordT, Any] | Steps[RecordT, Any]:
        """Decides on a request, without a change of replicated state.

        Every record below `next_offset` has been replayed; the first record of the result will have this offset. Raises
        ApiError to refuse the request, at once or between two steps.
        """
        ...

    def replay(self, record: RecordT, offset: int) -> None:
        """Applies a record. The only method that changes replicated state; never refuses a record."""

    def on_active(self, *, now_ms: int, next_offset: int) -> Iterable[Timer]:
        """Begins the soft state of a new leader and returns its first timers.

        Every record below `next_offset` has been replayed.
        """
        ...

    def not_here(self, why: NotHere) -> ApiError:
        """The error that sends a caller to another node. Must not depend on replicated state."""
        ...


class SnapshotShard(Shard[RecordT], Protocol[RecordT]):
    """A state machine whose log is deleted below snapshots of its state."""

    def snapshot(self, next_offset: int) -> Iterable[RecordT]:
        """The records that make the state of everything below the offset.

        The state is captured by the call and does not change with the shard, although iterating makes the records.
        """
        ...


class AppendLog(Protocol[RecordT_contra]):
    """The log of an active shard. Appended records are committed in order, or never."""

    @property
    def next_offset(self) -> int:
        """The offset of the next record that is appended."""
        ...

    @property
    def high_watermark(self) -> int:
        """The first offset that is not committed; -1 while it is unknown."""
        ...

    def append(self, records: Sequence[RecordT_contra]) -> int:
        """Appends the records atomically, without waiting until they are durable. Returns the offset of the first."""
        ...


class _Entry(NamedTuple):
    """The entry of a timer in the heap."""

    due_ms: int
    # Timers of one instant fire in the order in which they were set.
    number: int
    key: Hashable


class Timers:
    """The timers of one active shard. They are soft state: the end of the leadership cancels them.

    Invariant: the heap holds an entry for each timer, not later than its time. A timer that is put off again and again,
    such as that of a session, costs no further entry.
    """

    def __init__(self) -> None:
        self._timers: dict[Hashable, Timer] = {}
        # The newest entry of each timer; older ones in the heap are stale.
        self._entries: dict[Hashable, _Entry] = {}
        self._heap: list[_Entry] = []
        self._numbers = count()

    def __contains__(self, key: Hashable) -> bool:
        return key in self._timers

    def set(self, timer: Timer) -> None:
        """Sets, moves or cancels a timer."""
        if timer.request is None:
            self._timers.pop(timer.key, None)
            return
        self._timers[timer.key] = timer
        entry = self._entries.get(timer.key)
        if entry is None or timer.due_ms < entry.due_ms:
            self._push(timer)

    def set_all(self, timers: Iterable[Timer]) -> None:
        """Sets the timers in their order."""
        for timer in timers:
            self.set(timer)

    @property
    def next_ms(self) -> int | None:
        """The time of the first timer; None without timers."""
        self._settle()
        return self._heap[0].due_ms if self._heap else None

    def take_due(self, now_ms: int) -> Timer | None:
        """Removes and returns the first timer that is due; None if no timer is."""
        self._settle()
        if not self._heap or self._heap[0].due_ms > now_ms:
            return None
        entry = heappop(self._heap)
        del self._entries[entry.key]
        return self._timers.pop(entry.key)

    def _push(self, timer: Timer) -> None:
        entry = self._entries[timer.key] = _Entry(timer.due_ms, next(self._numbers), timer.key)
        heappush(self._heap, entry)

    def _settle(self) -> None:
        """Drops and moves entries until the first one has the time of its timer."""
        while self._heap:
            entry = self._heap[0]
            timer = self._timers.get(entry.key)
            is_current = self._entries.get(entry.key) is entry
            if is_current and timer is not None and timer.due_ms == entry.due_ms:
                return
            heappop(self._heap)
            if is_current:
                del self._entries[entry.key]
                if timer is not None:
                    self._push(timer)
