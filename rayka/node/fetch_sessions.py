"""Incremental fetch sessions: a request names only what changed, the answer only what has news.

A session remembers the fetch offsets of its partitions and what the caller was last told of them, and keeps one watch
on them over all its requests. `watch.due` holds the partitions that may have news: those that changed in the request,
those that were woken, and those whose last look was not the end of it (data left, an error, a follower that may join
the ISR). The other partitions need no look, so an idle session costs nothing for each partition. A partition that got
data moves to the end of `due`, so that all get their turn.

Invariants: an answer counts as told only while its request is the newest of the session; a partition that is not due
was read, had no news, and nothing has happened to it since. Kafka: `FetchSession`, `FetchSessionCache`, `FetchManager`
(G14). Left out: FETCH_SESSION_TOPIC_ID_ERROR, because partitions always go by their topic's id.
"""

from collections.abc import Iterable, Iterator
from itertools import islice
from random import Random

from rayka.errors import ErrorCode, FetchSessionIdNotFound, InvalidFetchSessionEpoch
from rayka.ids import NO_NODE, NO_OFFSET
from rayka.node.parked import News, Parked, Watch
from rayka.protocol.fetch import (
    FINAL_SESSION_EPOCH,
    FIRST_SESSION_EPOCH,
    NO_SESSION,
    FetchPartition,
    FetchPartitionResult,
    FetchRequest,
    PartitionKey,
    next_session_epoch,
)

# A session that was not used for so long makes room; one that is as old may have to.
EVICTION_MS = 120_000
_ID_BITS = 31


class SessionPartition:
    """One partition of a session: where reading goes on, and what the caller was last told."""

    __slots__ = ("_high_watermark", "_log_start_offset", "fetch")

    def __init__(self, fetch: FetchPartition) -> None:
        self.fetch = fetch
        # As told last; -1: not told, or told beside an error.
        self._high_watermark = NO_OFFSET
        self._log_start_offset = NO_OFFSET

    def is_news(self, result: FetchPartitionResult) -> bool:
        """True if the answer must name the result."""
        return (
            result.error_code is not ErrorCode.NONE
            or result.high_watermark != self._high_watermark
            or result.log_start_offset != self._log_start_offset
            or result.preferred_read_replica != NO_NODE
            or result.diverging_epoch is not None
            or result.size_bytes > 0
        )

    def on_told(self, result: FetchPartitionResult) -> None:
        """Remembers the result as told. Beside an error, or where the logs part, the receiver ignores the watermarks
        (B3), so the next result says them again.
        """
        is_unheeded = result.error_code is not ErrorCode.NONE or result.diverging_epoch is not None
        self._high_watermark = NO_OFFSET if is_unheeded else result.high_watermark
        self._log_start_offset = result.log_start_offset


class FetchSession:
    """The partitions of one caller on this node. A session without an id lasts for one request."""

    def __init__(self, session_id: int, replica_id: int, now_ms: int, watch: Watch[PartitionKey]) -> None:
        self.session_id = session_id
        self.replica_id = replica_id
        self.epoch = FIRST_SESSION_EPOCH
        self.partitions: dict[PartitionKey, SessionPartition] = {}
        self.watch = watch
        self.is_closed = False
        # True once one of the partitions was read to its end.
        self.has_caught_up = False
        self.created_ms = self.used_ms = self.refreshed_ms = now_ms
        self._round: Iterator[PartitionKey] = iter(())

    def __repr__(self) -> str:
        return (
            f"<FetchSession {self.session_id} of {self.replica_id} epoch={self.epoch}"
            f" partitions={len(self.partitions)} due={len(self.watch.due)}>"
        )

    @property
    def rank(self) -> tuple[bool, int]:
        """The order in which sessions keep their place: followers before consumers, larger sessions before smaller
        ones.
        """
        return self.replica_id != NO_NODE, len(self.partitions)

    def next_keys(self, count: int) -> list[PartitionKey]:
        """The next `count` partitions in turn; the first comes behind the last."""
        keys = list(islice(self._round, count))
        if len(keys) < count:
            self._round = iter(tuple(self.partitions))
            keys += islice(self._round, count - len(keys))
        return [key for key in keys if key in self.partitions]


class FetchContext:
    """One request of a session: the partitions it reads, and the results it answers. Made by `FetchSessions.begin`."""

    def __init__(self, session: FetchSession, *, is_full: bool) -> None:
        self.session = session
        self._epoch = session.epoch
        self._is_full = is_full
        # Partitions that the last look read to their end and that have news, which is not answered yet.
        self._read_out: dict[PartitionKey, None] = {}

    def due(self) -> list[FetchPartition]:
        """The partitions that need a look, in the order in which the bounds are used up."""
        find = self.session.partitions.get
        return [each.fetch for key in self.session.watch.due if (each := find(key)) is not None]

    def to_read(self) -> list[FetchPartition]:
        """Begins a look: returns `due`, or all partitions for a full request, whose answer names them all."""
        self._read_out = {}
        return [each.fetch for each in self.session.partitions.values()] if self._is_full else self.due()

    def fetch_offset(self, result: FetchPartitionResult) -> int:
        """The offset from which the partition of this result was read."""
        return self.session.partitions[result.topic_id, result.partition].fetch.fetch_offset

    def settle(self, result: FetchPartitionResult) -> None:
        """The partition was read to its end. It needs no look until something happens to it; with news, until the news
        is answered.
        """
        self.session.has_caught_up = True
        key = (result.topic_id, result.partition)
        if self.session.partitions[key].is_news(result):
            self._read_out[key] = None
        else:
            self.session.watch.due.pop(key, None)

    @property
    def is_current(self) -> bool:
        """False once a later request came, or the session ended."""
        return not self.session.is_closed and self.session.epoch == self._epoch

    def check_current(self) -> None:
        """Raises InvalidFetchSessionEpoch unless current: the caller does not wait for this answer any more."""
        if not self.is_current:
            raise InvalidFetchSessionEpoch(
                f"fetch session {self.session.session_id} went on without this request"
            )

    def tell(self, results: Iterable[FetchPartitionResult]) -> tuple[FetchPartitionResult, ...]:
        """Returns the results of the last look that the answer names; the caller counts as knowing them.

        Raises as `check_current`.
        """
        self.check_current()
        session = self.session
        read_out = {} if session.watch.is_woken else self._read_out
        told = []
        due = session.watch.due
        for result in results:
            key = (result.topic_id, result.partition)
            partition = session.partitions[key]
            if self._is_full or partition.is_news(result):
                partition.on_told(result)
                told.append(result)
            if result.size_bytes:
                # Behind the others.
                due.pop(key, None)
                due[key] = None
            elif key in read_out and not partition.is_news(result):
                due.pop(key, None)
        return tuple(told)

    def to_refresh(self, now_ms: int, interval_ms: int) -> list[FetchPartition]:
        """Some of the partitions to which nothing has happened since they were read. Each request takes so many that
        all of them have their turn within one or two intervals.
        """
        session = self.session
        count = len(session.partitions) * (now_ms - session.refreshed_ms) // interval_ms
        if count <= 0:
            return []
        session.refreshed_ms = now_ms
        keys = session.next_keys(min(count, len(session.partitions)))
        return [session.partitions[key].fetch for key in keys if key not in session.watch.due]


class FetchSessions:
    """All sessions of one node that have an id, at most `slots`."""

    def __init__(self, parked: Parked[PartitionKey], slots: int, random: Random) -> None:
        self._parked = parked
        self._slots = slots
        self._random = random
        # By id; the session used longest ago comes first.
        self._sessions: dict[int, FetchSession] = {}

    def __repr__(self) -> str:
        return f"<FetchSessions {len(self._sessions)} of {self._slots}>"

    def begin(self, request: FetchRequest, now_ms: int) -> FetchContext:
        """Begins the request in its session; `end` must follow in any case.

        Raises FetchSessionIdNotFound and InvalidFetchSessionEpoch: the caller begins another session then.
        """
        if request.session_epoch not in (FIRST_SESSION_EPOCH, FINAL_SESSION_EPOCH):
            return self._continue(request, now_ms)
        replaced = self._sessions.get(request.session_id)
        if replaced is not None and replaced.replica_id == request.replica_id:
            self._close(replaced)
        session_id = NO_SESSION
        if request.session_epoch == FIRST_SESSION_EPOCH and request.partitions:
            rank = (request.replica_id != NO_NODE, len(request.partitions))
            if len(self._sessions) < self._slots or self._evict(rank, now_ms):
                session_id = self._new_id()
        # The next answer tells a follower what is committed; a consumer gets no uncommitted record.
        sleeps_through = News.APPENDED if request.replica_id == NO_NODE else News.COMMITTED
        session = FetchSession(session_id, request.replica_id, now_ms, Watch(sleeps_through))
        if session_id != NO_SESSION:
            self._sessions[session_id] = session
            session.epoch = next_session_epoch(FIRST_SESSION_EPOCH)
        self._want(session, request.partitions)
        return FetchContext(session, is_full=True)

    def end(self, context: FetchContext) -> None:
        """The request is answered, or given up."""
        if context.session.session_id == NO_SESSION:
            self._close(context.session)

    def _continue(self, request: FetchRequest, now_ms: int) -> FetchContext:
        session = self._sessions.get(request.session_id)
        if session is None or session.replica_id != request.replica_id:
            raise FetchSessionIdNotFound(f"fetch session {request.session_id} is not known here (any more)")
        if request.session_epoch != session.epoch:
            raise InvalidFetchSessionEpoch(
                f"fetch session {session.session_id}: expected epoch {session.epoch}, found {request.session_epoch}"
            )
        session.epoch = next_session_epoch(session.epoch)
        # An older request that still waits is answered now.
        session.watch.release()
        self._want(session, request.partitions)
        for each in request.forgotten:
            key = (each.topic_id, each.partition)
            if session.partitions.pop(key, None) is not None:
                self._parked.remove(session.watch, (key,))
                session.watch.due.pop(key, None)
        session.used_ms = now_ms
        self._sessions[session.session_id] = self._sessions.pop(session.session_id)
        return FetchContext(session, is_full=False)

    def _want(self, session: FetchSession, fetches: Iterable[FetchPartition]) -> None:
        for fetch in fetches:
            key = (fetch.topic_id, fetch.partition)
            known = session.partitions.get(key)
            # News of an epoch that was over when they arrived did not count (B26), so another epoch begins anew.
            if known is not None and known.fetch.current_leader_epoch == fetch.current_leader_epoch:
                known.fetch = fetch
            else:
                session.partitions[key] = SessionPartition(fetch)
                self._parked.add(session.watch, (key,))
            session.watch.due.setdefault(key)

    # ---- Room ----------------------------------------------------------------------------------------------

    def _evict(self, rank: tuple[bool, int], now_ms: int) -> bool:
        """Makes room for a session of this rank; False if there is none.

        A session that was idle for too long goes first; else the lowest of those that may be displaced, if it ranks
        lower. A consumer displaces only old sessions. Among equals the present one stays: it would come back and
        displace another.
        """
        if not self._sessions:
            return False
        oldest = next(iter(self._sessions.values()))
        if now_ms - oldest.used_ms > EVICTION_MS:
            self._close(oldest)
            return True
        candidates = [
            each
            for each in self._sessions.values()
            if now_ms - each.created_ms > EVICTION_MS or (rank[0] and not each.rank[0])
        ]
        lowest = min(candidates, key=lambda each: each.rank, default=None)
        if lowest is None or lowest.rank >= rank:
            return False
        self._close(lowest)
        return True

    def _close(self, session: FetchSession) -> None:
        session.is_closed = True
        self._sessions.pop(session.session_id, None)
        self._parked.remove(session.watch, session.partitions)
        session.watch.release()
        session.watch.close()

    def _new_id(self) -> int:
        while True:
            session_id = self._random.getrandbits(_ID_BITS)
            if session_id != NO_SESSION and session_id not in self._sessions:
                return session_id
