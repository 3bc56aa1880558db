"""What a replicated state machine is, and the log that its runtime appends to.

Kafka: `CoordinatorShard`, `CoordinatorResult`, `ControllerWriteOperation`, `ControllerResult` (design §2,
A65).
"""

from collections.abc import Generator, Hashable, Iterable, Sequence
from heapq import heappop, heappush
from itertools import count
from typing import Any, Generic, NamedTuple, Protocol, TypeVar

from rayka.errors import ApiError

# Timers of an active shard: requests that the runtime makes by itself when their time has come.
#
# A result names the timers that it sets or cancels, so a request that was refused has changed none. They are soft
# state: the end of a leadership cancels all, and `Shard.on_active` names those to begin with. Invariant: the heap holds
# at least one entry for each timer, none later than its time; a timer that is put off again and again (a session that
# goes on) costs no further entry. Kafka: `CoordinatorTimer`, `CoordinatorTimerImpl`.


class Timer(NamedTuple):
    """A request to run at a time of the monotonic clock, instead of the one that had this key; None: no more."""

    key: Hashable
    due_ms: int
    request: Any


class _Entry(NamedTuple):
    due_ms: int
    number: int  # so that timers of one instant fire in the order in which they were set
    key: Hashable


class Timers:
    """The timers of one active shard."""

    def __init__(self) -> None:
        self._timers: dict[Hashable, Timer] = {}
        self._entries: dict[Hashable, _Entry] = {}
        self._heap: list[_Entry] = []
        self._numbers = count()

    def __repr__(self) -> str:
        return f"<Timers {len(self._timers)} next_ms={self.next_ms}>"

    def __contains__(self, key: Hashable) -> bool:
        return key in self._timers

    def set(self, timer: Timer) -> None:
        """Sets it, puts it off or forward, or cancels it."""
        if timer.request is None:
            self._timers.pop(timer.key, None)
            return
        self._timers[timer.key] = timer
        entry = self._entries.get(timer.key)
        if entry is None or timer.due_ms < entry.due_ms:
            self._push(timer)

    def set_all(self, timers: Iterable[Timer]) -> None:
        """Sets each, in their order."""
        for timer in timers:
            self.set(timer)

    @property
    def next_ms(self) -> int | None:
        """When the first is due; None when there is none."""
        self._settle()
        return self._heap[0].due_ms if self._heap else None

    def take_due(self, now_ms: int) -> Timer | None:
        """The first that is due, which is no timer any more; None when none is."""
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
        """Until the first entry is that of a timer which is due then."""
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


RecordT = TypeVar("RecordT")
RecordT_contra = TypeVar("RecordT_contra", contravariant=True)
RecordT_co = TypeVar("RecordT_co", covariant=True)
ResponseT = TypeVar("ResponseT")
RECORDS_PER_BATCH_MAX = 10_000  # A68


class Deferred(NamedTuple):
    """The response of a request that waits for another one, or for a timer: `key` is the one with which the shard
    answers it, and no other request that waits has it. The shard's timers bound the wait.
    """

    key: Hashable


class Answer(NamedTuple):
    """The end of the wait of a parked request: a response, or the error that refuses it."""

    key: Hashable
    response: Any = None
    error: ApiError | None = None


class Result(NamedTuple, Generic[RecordT_co, ResponseT]):
    """What a request leads to: records to write, the response to give once they are committed, and timers to set or
    cancel and parked requests to answer when the records are in the log. An answer is given as the response is: once
    everything before it is committed.

    The records are committed together or not at all, and are no more than 10,000 (A68).
    """

    records: Sequence[RecordT_co]
    response: ResponseT
    timers: Sequence[Timer] = ()
    answers: Sequence[Answer] = ()


Steps = Generator[RecordT | list[RecordT] | None, int, Result[RecordT, ResponseT]]
"""What a request leads to that is too much for one turn of the event loop: step by step a record, a list of records
that are committed together, or None for a step without any, and in the end a result. Each `yield` gives the offset that
the next record will have.

The records of the steps are written as they come, in several batches, so after a failover only the first ones may be
there; those of the result are written together. No other request runs before the end, and the state replayed meanwhile
is what the steps themselves wrote.
"""


class NotHere(NamedTuple):
    """Why a node cannot run a request: `reason` says it in words. `is_loading`: it leads the log, and has yet to
    replay it. `may_have_run`: the request was running when the node stopped leading.
    """

    reason: str
    leader_id: int
    leader_epoch: int
    is_loading: bool = False
    may_have_run: bool = False


class Shard(Protocol[RecordT]):
    """A state machine whose state is what its records say.

    Beside it a shard may have soft state, which only the active one needs and which may be lost: timers, contact times.
    """

    def handle(
        self, request: Any, *, now_ms: int, next_offset: int
    ) -> Result[RecordT, Any] | Steps[RecordT, Any]:
        """Decides; changes no replicated state. Every record below `next_offset` has been replayed, and the first
        record to be written will have that offset. Raises ApiError to refuse, at once or between two steps.
        """
        ...

    def replay(self, record: RecordT, offset: int) -> None:
        """Takes in one record: the only method that changes replicated state. It never refuses one."""

    def on_active(self, *, now_ms: int, next_offset: int) -> Iterable[Timer]:
        """This node leads from now on, and everything below the offset has been replayed: soft state begins. What is
        returned are the timers to begin with.
        """
        ...

    def not_here(self, why: NotHere) -> ApiError:
        """The error that sends a caller to the node that can run its request. It may not depend on replicated state."""
        ...


class SnapshotShard(Shard[RecordT], Protocol[RecordT]):
    """A state machine whose log is cut off below snapshots of its state."""

    def snapshot(self, next_offset: int) -> Iterable[RecordT]:
        """The state, of everything below the offset, as records to begin with. It is captured now and does not change
        with the shard, though its records are made as they are asked for.
        """
        ...


class AppendLog(Protocol[RecordT_contra]):
    """The log of an active shard. Appended records become committed, in order, or never."""

    @property
    def next_offset(self) -> int:
        """The offset that the next record appended gets."""
        ...

    @property
    def high_watermark(self) -> int:
        """The first offset that is not committed; -1 while that is not known."""
        ...

    def append(self, records: Sequence[RecordT_contra]) -> int:
        """Appends the records atomically, without waiting for them to be durable; the offset of the first."""
        ...
