"""Fetch and ListOffsets: reading partitions, by consumers and by replicas that follow a log.

Kafka: FetchRequest/FetchResponse, ListOffsetsRequest (G1-G8, G12, A27-A32).
"""

from enum import Enum, auto
from itertools import islice
from typing import NamedTuple
from uuid import UUID

import msgspec
import numpy as np

from rayka.errors import ErrorCode, InvalidRequest
from rayka.ids import (
    METADATA_PARTITION,
    METADATA_TOPIC_ID,
    NO_EPOCH,
    NO_NODE,
    NO_OFFSET,
    NO_TIMESTAMP,
    ZERO_ID,
    OffsetAndEpoch,
    TopicIdPartition,
)
from rayka.ports import Message, Request
from rayka.protocol.request_parts import PartitionAnswer, PartitionMessage, require
from rayka.protocol.wire import NO_BYTES

LATEST_TIMESTAMP, EARLIEST_TIMESTAMP, MAX_TIMESTAMP = -1, -2, -3
NO_SESSION = 0
FIRST_SESSION_EPOCH, FINAL_SESSION_EPOCH = 0, -1  # begin a session; have none, or end it (G14)


class FileRange(Message, frozen=True, array_like=True):
    """Whole batches in a segment file, for a reader on the same machine (design §3).

    The reader opens `path`, checks device and inode and that the file reaches `position + size_bytes`, maps
    it, and checks that the first batch starts at `base_offset`; otherwise it asks again for bytes. The range
    ends below the high watermark.
    """

    path: str
    device: int
    inode: int
    position: int
    size_bytes: int
    base_offset: int


class FetchPartition(PartitionMessage, frozen=True, array_like=True):
    """From where to read one partition; epochs of -1 mean "not checked"."""

    fetch_offset: int
    max_bytes: int
    current_leader_epoch: int = NO_EPOCH
    last_fetched_epoch: int = NO_EPOCH
    log_start_offset: int = NO_OFFSET
    high_watermark: int = NO_OFFSET


class FetchPartitionResult(PartitionAnswer, frozen=True, array_like=True):
    """What was read from one partition.

    `records` are whole batches from the one that contains `fetch_offset` (G4); the reader drops what lies before it.
    `next_offset` is where to continue: after the last batch given, or the fetch offset when nothing was. Either
    `records` or `file_ranges` has the data, never both. A `snapshot_id` says: fetch that snapshot first, the
    log does not hold what was asked for (A29, A30). A `preferred_read_replica` says: read there, nothing is given
    here (G15). Beside an error `leader_id` and `leader_epoch` say which node leads, where this one knows.
    `last_fetched_epoch` is that of the last batch given: the next request of the reader names it (G2).
    """

    high_watermark: int = NO_OFFSET
    log_start_offset: int = NO_OFFSET
    next_offset: int = NO_OFFSET
    leader_id: int = NO_NODE
    leader_epoch: int = NO_EPOCH
    diverging_epoch: OffsetAndEpoch | None = None
    records: np.ndarray = msgspec.field(default_factory=lambda: NO_BYTES)
    file_ranges: tuple[FileRange, ...] = ()
    snapshot_id: OffsetAndEpoch | None = None
    preferred_read_replica: int = NO_NODE
    last_fetched_epoch: int = NO_EPOCH

    @property
    def size_bytes(self) -> int:
        """How much data it gives, sent or in files."""
        return sum(each.size_bytes for each in self.file_ranges) if self.file_ranges else self.records.size


class FetchResponse(Message, frozen=True, array_like=True):
    """One result for each partition of the request, for a consumer in its order; within a session only of those with
    news (G14).

    With an error code the session is over, and nothing was read.
    """

    partitions: tuple[FetchPartitionResult, ...]
    error_code: ErrorCode = ErrorCode.NONE
    error_message: str = ""
    session_id: int = NO_SESSION


class FetchRequest(Request[FetchResponse], frozen=True, array_like=True):
    """Waits up to `max_wait_ms` for `min_bytes` (G7), then answers up to `max_bytes` in request order (G5, G6).

    `replica_id` is the follower's or observer's node id, -1 for a consumer. `local_directory_ids` names data
    directories that the reader can open itself: partitions that live there are answered as file ranges.
    `replica_epoch` is a follower's broker epoch: an older process does not count (B5). Within a session `partitions`
    are those that changed, and `forgotten` those that are not wanted any more (G14). `rack_id` is where a consumer
    is; it may be sent to a replica there (G15).
    """

    max_wait_ms: int
    min_bytes: int
    max_bytes: int
    partitions: tuple[FetchPartition, ...]
    replica_id: int = NO_NODE
    replica_directory_id: UUID = ZERO_ID
    cluster_id: str = ""
    local_directory_ids: tuple[UUID, ...] = ()
    replica_epoch: int = NO_EPOCH
    session_id: int = NO_SESSION
    session_epoch: int = FINAL_SESSION_EPOCH
    forgotten: tuple[TopicIdPartition, ...] = ()
    rack_id: str = ""

    @property
    def is_of_metadata(self) -> bool:
        """Whether it asks for the metadata log, which each replica of the quorum has, and which is fetched alone."""
        return bool(self.partitions) and self.partitions[0].topic_id == METADATA_TOPIC_ID

    def check(self) -> None:
        if self.is_of_metadata:
            _check_metadata_fetch(self)
            return
        amounts = (self.min_bytes, self.max_bytes, self.session_id)
        if min(amounts) < 0 or min(self.replica_id, self.replica_epoch, self.session_epoch) < -1:
            raise InvalidRequest(f"fetch: an amount, an id or an epoch is negative: {self!r:.500}")
        is_new = self.session_epoch in (FIRST_SESSION_EPOCH, FINAL_SESSION_EPOCH)
        if is_new and self.forgotten:
            raise InvalidRequest(
                "fetch: expected no forgotten partitions in a request that begins or has no session"
            )
        if not is_new and self.session_id == NO_SESSION:
            raise InvalidRequest(
                f"fetch: expected the id of a session with its epoch {self.session_epoch}, found none"
            )
        named = {(each.topic_id, each.partition) for each in self.partitions}
        if len(named) < len(self.partitions):
            raise InvalidRequest("fetch: expected each partition once, found one twice")
        for each in self.partitions:
            _check_partition(each)


def _check_partition(fetch: FetchPartition) -> None:
    if fetch.max_bytes < 0 or min(fetch.current_leader_epoch, fetch.last_fetched_epoch) < NO_EPOCH:
        raise InvalidRequest(f"fetch: an amount or an epoch is negative: {fetch!r}")
    if not NO_OFFSET <= fetch.log_start_offset <= max(fetch.fetch_offset, NO_OFFSET):
        raise InvalidRequest(f"fetch: a log starts at or before its end, found {fetch!r}")


def _check_metadata_fetch(request: FetchRequest) -> None:
    """A follower of the metadata log (A27)."""
    found = [(each.topic_id, each.partition) for each in request.partitions]
    is_alone = found == [(METADATA_TOPIC_ID, METADATA_PARTITION)]
    require(is_alone, "partitions", "that of __cluster_metadata alone", found)
    (partition,) = request.partitions
    require(request.replica_id >= 0, "replica_id", "a node that follows", request.replica_id)
    require(request.max_wait_ms >= 0, "max_wait_ms", "0 or more", request.max_wait_ms)
    max_bytes = min(request.max_bytes, partition.max_bytes)
    require(max_bytes > 0, "max_bytes", "more than 0", max_bytes)
    require(partition.fetch_offset >= 0, "fetch_offset", "0 or more", partition.fetch_offset)
    least_epoch = 0 if partition.fetch_offset else NO_EPOCH
    epoch, current_epoch = partition.last_fetched_epoch, partition.current_leader_epoch
    require(epoch >= least_epoch, "last_fetched_epoch", f"{least_epoch} or more", epoch)
    is_known = current_epoch == NO_EPOCH or epoch <= current_epoch
    require(is_known, "last_fetched_epoch", "at most current_leader_epoch", epoch)


class ListOffsetsPartition(PartitionMessage, frozen=True, array_like=True):
    """Which offset of one partition is asked for: a timestamp in ms, or -1 latest, -2 earliest, -3 maximal
    timestamp.
    """

    timestamp_ms: int
    current_leader_epoch: int = NO_EPOCH


class ListOffsetsPartitionResult(PartitionAnswer, frozen=True, array_like=True):
    """The first offset whose timestamp is at or after the one asked for; offset -1 when there is none (G12)."""

    timestamp_ms: int = NO_TIMESTAMP
    offset: int = NO_OFFSET
    leader_epoch: int = NO_EPOCH


class ListOffsetsResponse(Message, frozen=True, array_like=True):
    """One result for each partition of the request, in its order."""

    partitions: tuple[ListOffsetsPartitionResult, ...]


class ListOffsetsRequest(Request[ListOffsetsResponse], frozen=True, array_like=True):
    """Offsets by time or by position in the log. For the follower `replica_id` latest is the log end (G12)."""

    partitions: tuple[ListOffsetsPartition, ...]
    replica_id: int = NO_NODE


# The caller's half of an incremental fetch session: says only what changed since its last request.
#
# The caller states what it wants of each partition; `next` gives what the node does not know yet, so a
# request costs as much as has changed, not as much as is wanted, and no more than the caller allows: the rest
# is said next. Invariants: nothing follows a request that begins a session before its answer, which names the
# session; a later request may overtake one that the node still holds back, and then only the later one's end
# counts; what may not have arrived (a broken call, a session that the node has forgotten) is said again, in
# full, in a new session. The node's half is `rayka.node.fetch_sessions`. Kafka:
# `FetchSessionHandler` (G14).


SESSION_EPOCH_MAX = 2**31 - 1
PartitionKey = tuple[UUID, int]


class SessionRequest(NamedTuple):
    """The part of a FetchRequest that is about its session; the fields have its names."""

    session_id: int
    session_epoch: int
    partitions: tuple[FetchPartition, ...]
    forgotten: tuple[TopicIdPartition, ...]


class FetchSessionHandler:
    """What one caller wants of one node."""

    def __init__(self) -> None:
        self._wanted: dict[PartitionKey, FetchPartition] = {}
        self._changed: dict[PartitionKey, None] = {}  # wanted, but not as the node knows it
        self._forgotten: dict[PartitionKey, None] = {}  # known to the node, but not wanted
        self.session_id = NO_SESSION  # the node keeps one of this id, unless it has forgotten it
        self._epoch = FIRST_SESSION_EPOCH

    def __repr__(self) -> str:
        return (
            f"<FetchSessionHandler session={self.session_id} epoch={self._epoch} wanted={len(self._wanted)}"
            f" changed={len(self._changed)} forgotten={len(self._forgotten)}>"
        )

    def want(self, fetch: FetchPartition) -> None:
        """This is to be fetched from now on; what was said of the partition before is obsolete."""
        key = (fetch.topic_id, fetch.partition)
        if self._wanted.get(key) != fetch:
            self._wanted[key] = fetch
            self._changed[key] = None
            self._forgotten.pop(key, None)

    def forget(self, topic_id: UUID, partition: int) -> None:
        """The partition is not wanted any more; one that never was is no error."""
        key = (topic_id, partition)
        if self._wanted.pop(key, None) is not None:
            self._changed.pop(key, None)
            self._forgotten[key] = None

    def wanted(self, topic_id: UUID, partition: int) -> FetchPartition | None:
        """What is fetched of the partition; None: nothing, and a result of it is to be ignored."""
        return self._wanted.get((topic_id, partition))

    @property
    def has_changed(self) -> bool:
        """Whether something is wanted otherwise than the node knows."""
        return bool(self._changed)

    def next(self, partitions_max: int | None = None) -> SessionRequest:
        """What to send now, about so many partitions at most; while some are left, `has_changed`. `on_response` or
        `on_failure` ends it, unless a later one overtakes it.
        """
        epoch = self._epoch
        is_first = epoch == FIRST_SESSION_EPOCH
        unsaid = iter(list(self._wanted if is_first else self._changed))
        partitions = tuple(self._wanted[key] for key in islice(unsaid, partitions_max))
        forgotten = tuple(TopicIdPartition(*key) for key in (() if is_first else self._forgotten))
        if not is_first:
            self._epoch = next_session_epoch(epoch)
        self._changed, self._forgotten = dict.fromkeys(unsaid), {}
        return SessionRequest(self.session_id, epoch, partitions, forgotten)

    def on_response(self, response: FetchResponse) -> None:
        """The node has answered. After an error, and when it keeps no session, everything is said again."""
        if response.error_code is not ErrorCode.NONE:
            self.on_failure()
        elif response.session_id == NO_SESSION:
            self.session_id, self._epoch = NO_SESSION, FIRST_SESSION_EPOCH
        elif self._epoch == FIRST_SESSION_EPOCH:
            self.session_id, self._epoch = response.session_id, next_session_epoch(FIRST_SESSION_EPOCH)

    def on_failure(self) -> None:
        """Without an answer it is not known what has arrived: the next request begins another session instead."""
        self._epoch = FIRST_SESSION_EPOCH


def next_session_epoch(epoch: int) -> int:
    """The epoch of the request that follows: after the largest comes 1, because 0 would begin another session."""
    if epoch == FINAL_SESSION_EPOCH:
        return FINAL_SESSION_EPOCH
    return 1 if epoch >= SESSION_EPOCH_MAX else epoch + 1


# The requests of one caller to one node in a fetch session: when one may leave, and what its end means.
#
# The next request leaves when the one before it has ended. While the node holds one back, a request that has something
# new to say overtakes it: the node answers only the newest (G14). Followers and consumers share it.
#
# Invariants: nothing follows a request that begins a session before its end; the results of an overtaken request count,
# but only the newest request's answer says anything about the session; when an overtaken request's answer is lost, the
# node takes its content for known to the caller, so the session begins anew. Kafka has no such thing: there one request
# at a time is under way.


_OVERTAKEN_MAX = 4  # requests that the node may still hold back


class FetchOutcome(Enum):
    """What the end of a request means for the stream."""

    ANSWERED = auto()  # its results count
    OVERTAKEN = auto()  # it brought nothing, and a later request is under way
    RENEWED = auto()  # the node has dropped the session: the next request begins another, at once
    FAILED = auto()  # the next request begins a session, after a pause


class FetchStream:
    """See the module. The caller puts what it wants into `session`, and sends what `begin` returns."""

    def __init__(self) -> None:
        self.session = FetchSessionHandler()
        self.has_no_sessions = False  # the node keeps none for this caller
        self._number = 0  # of the newest request
        self._in_flight: dict[int, bool] = {}  # request number -> whether it begins a session
        self._has_lost_answer = False

    def __repr__(self) -> str:
        return f"<FetchStream {self.session!r} in_flight={list(self._in_flight)}>"

    @property
    def is_waiting(self) -> bool:
        """Whether the newest request is under way."""
        return self._number in self._in_flight

    @property
    def may_overtake(self) -> bool:
        """Whether a request may leave while another is under way: not before it is known under which id the node keeps
        the session. One that was overtaken is not waited for: its answer may be lost.
        """
        return not any(self._in_flight.values()) and len(self._in_flight) <= _OVERTAKEN_MAX

    @property
    def may_follow(self) -> bool:
        """Whether a request may leave that overtakes none."""
        return not self.is_waiting and not any(self._in_flight.values())

    def begin(self, partitions_max: int | None = None) -> tuple[int, SessionRequest]:
        """The number of the request that leaves now, and its content, for so many partitions at most; for all where the
        node keeps no session, since it then knows nothing of former requests. `on_response` or `on_failure` ends it.
        """
        self._number += 1
        request = self.session.next(None if self.has_no_sessions else partitions_max)
        self._in_flight[self._number] = request.session_epoch == FIRST_SESSION_EPOCH
        return self._number, request

    def on_response(self, number: int, response: FetchResponse) -> FetchOutcome:
        """The request of this number was answered."""
        is_first = self._in_flight.pop(number)
        is_newest = number == self._number
        if response.error_code is not ErrorCode.NONE:
            if not is_newest:
                return FetchOutcome.OVERTAKEN
            self._begin_session()
            return FetchOutcome.FAILED if is_first else FetchOutcome.RENEWED
        if is_newest:
            self.session.on_response(response)
            self.has_no_sessions = response.session_id == NO_SESSION
            if self._has_lost_answer:
                self._begin_session()
        return FetchOutcome.ANSWERED

    def on_failure(self, number: int) -> FetchOutcome:
        """There is no answer. If a later request has overtaken it, the session ends with that one's answer."""
        del self._in_flight[number]
        if number != self._number:
            self._has_lost_answer = True
            return FetchOutcome.OVERTAKEN
        self._begin_session()
        return FetchOutcome.FAILED

    def _begin_session(self) -> None:
        """The next request begins a session: it names all partitions, and all are answered."""
        self._has_lost_answer = False
        self.session.on_failure()
