"""Fetch and ListOffsets: consumers and followers read partitions. Fetch sessions: the caller's half.

**Session.** A request of a session names only the changes since the caller's last one (G14), so its size follows from
the changes and not from the number of partitions. A request may be cut to a number of partitions; the next one names
the rest. Invariants:

- No request follows one that begins a session until that one ends: its answer names the session.
- A later request may overtake one that the node still holds; the node then answers only the newest.
- The results of an overtaken request count, but only the newest request's answer tells about the session.
- Content that may not have arrived (the call broke, the node forgot the session) is sent again in full, in a new
  session. The same holds if the answer of an overtaken request is lost: the node takes its content for known.

Followers and consumers share it; the node's half is `rayka.node.fetch_sessions`. Kafka: FetchRequest,
FetchResponse, ListOffsetsRequest (G1-G8, G12, A27-A32), `FetchSessionHandler` (G14). In Kafka no request overtakes
another: one at a time is open.
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
# Session epochs of requests (G14): one that begins a session, and one that has none or ends it.
FIRST_SESSION_EPOCH, FINAL_SESSION_EPOCH = 0, -1
SESSION_EPOCH_MAX = 2**31 - 1
# Open requests that were overtaken.
_OVERTAKEN_MAX = 4

# Topic id and number of a partition.
PartitionKey = tuple[UUID, int]


class FileRange(Message, frozen=True, array_like=True):
    """Whole batches in a segment file, for a reader on the same machine (decision 046). Ends below the high watermark.

    The reader opens `path`, checks device and inode, checks that the file reaches `position + size_bytes`, maps the
    file, and checks that the first batch starts at `base_offset`. If a check fails, the reader asks again for bytes.
    """

    path: str
    device: int
    inode: int
    position: int
    size_bytes: int
    base_offset: int


class FetchPartition(PartitionMessage, frozen=True, array_like=True):
    """A read of one partition from an offset on. The node does not check an epoch of NO_EPOCH."""

    fetch_offset: int
    max_bytes: int
    current_leader_epoch: int = NO_EPOCH
    last_fetched_epoch: int = NO_EPOCH
    log_start_offset: int = NO_OFFSET
    high_watermark: int = NO_OFFSET


class FetchPartitionResult(PartitionAnswer, frozen=True, array_like=True):
    """The result of reading one partition. The data are in `records` or in `file_ranges`, never in both."""

    high_watermark: int = NO_OFFSET
    log_start_offset: int = NO_OFFSET
    # The offset to continue from: behind the last batch of the result, or the fetch offset without data.
    next_offset: int = NO_OFFSET
    # Beside an error: the node that leads, if this one knows it.
    leader_id: int = NO_NODE
    leader_epoch: int = NO_EPOCH
    diverging_epoch: OffsetAndEpoch | None = None
    # Whole batches, the first of which contains `fetch_offset` (G4): the reader drops the records before it.
    records: np.ndarray = msgspec.field(default_factory=lambda: NO_BYTES)
    file_ranges: tuple[FileRange, ...] = ()
    # The log does not hold the offset asked for: the reader fetches this snapshot first (A29, A30).
    snapshot_id: OffsetAndEpoch | None = None
    # The result has no data: the reader reads from this replica (G15).
    preferred_read_replica: int = NO_NODE
    # The epoch of the last batch of the result; the reader's next request names it (G2).
    last_fetched_epoch: int = NO_EPOCH

    @property
    def size_bytes(self) -> int:
        """The size of the data, sent or in files."""
        return sum(each.size_bytes for each in self.file_ranges) if self.file_ranges else self.records.size


class FetchResponse(Message, frozen=True, array_like=True):
    """One result for each partition of the request, in its order; within a session only for partitions with news (G14).

    With an error code the session has ended, and nothing was read.
    """

    partitions: tuple[FetchPartitionResult, ...]
    error_code: ErrorCode = ErrorCode.NONE
    error_message: str = ""
    session_id: int = NO_SESSION


class FetchRequest(Request[FetchResponse], frozen=True, array_like=True):
    """Reads partitions: waits up to `max_wait_ms` for `min_bytes` (G7), then answers up to `max_bytes` in request order
    (G5, G6).
    """

    max_wait_ms: int
    min_bytes: int
    max_bytes: int
    # Within a session: the partitions that have changed (G14).
    partitions: tuple[FetchPartition, ...]
    # The node id of a follower or observer; NO_NODE for a consumer.
    replica_id: int = NO_NODE
    replica_directory_id: UUID = ZERO_ID
    cluster_id: str = ""
    # Data directories that the reader can open: partitions there are answered as file ranges.
    local_directory_ids: tuple[UUID, ...] = ()
    # The broker epoch of a follower: an older process of the broker does not count (B5).
    replica_epoch: int = NO_EPOCH
    session_id: int = NO_SESSION
    session_epoch: int = FINAL_SESSION_EPOCH
    # Partitions of the session that are no longer wanted (G14).
    forgotten: tuple[TopicIdPartition, ...] = ()
    # The rack of a consumer, which may be sent to a replica there (G15).
    rack_id: str = ""

    @property
    def is_of_metadata(self) -> bool:
        """Whether the request reads the metadata log, which each replica of the quorum has and which is fetched
        alone.
        """
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
            if each.max_bytes < 0 or min(each.current_leader_epoch, each.last_fetched_epoch) < NO_EPOCH:
                raise InvalidRequest(f"fetch: an amount or an epoch is negative: {each!r}")
            if not NO_OFFSET <= each.log_start_offset <= max(each.fetch_offset, NO_OFFSET):
                raise InvalidRequest(f"fetch: a log starts at or before its end, found {each!r}")


def _check_metadata_fetch(request: FetchRequest) -> None:
    """Raises InvalidRequest unless a follower of the metadata log may send the request (A27)."""
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
    """A question for one offset of a partition."""

    # LATEST_TIMESTAMP, EARLIEST_TIMESTAMP and MAX_TIMESTAMP are special.
    timestamp_ms: int
    current_leader_epoch: int = NO_EPOCH


class ListOffsetsPartitionResult(PartitionAnswer, frozen=True, array_like=True):
    """The first offset whose timestamp is at or after the one asked for; NO_OFFSET: there is none (G12)."""

    timestamp_ms: int = NO_TIMESTAMP
    offset: int = NO_OFFSET
    leader_epoch: int = NO_EPOCH


class ListOffsetsResponse(Message, frozen=True, array_like=True):
    """One result for each partition of the request, in its order."""

    partitions: tuple[ListOffsetsPartitionResult, ...]


class ListOffsetsRequest(Request[ListOffsetsResponse], frozen=True, array_like=True):
    """Asks for offsets by time or by position in the log."""

    partitions: tuple[ListOffsetsPartition, ...]
    # For a follower, the latest offset is the log end (G12).
    replica_id: int = NO_NODE


# ---- Sessions ------------------------------------------------------------------------------------------------------


class SessionRequest(NamedTuple):
    """The fields of a FetchRequest that belong to its session."""

    session_id: int
    session_epoch: int
    partitions: tuple[FetchPartition, ...]
    forgotten: tuple[TopicIdPartition, ...]


class FetchSessionHandler:
    """The partitions that one caller reads from one node, and the session in which the node knows them."""

    def __init__(self) -> None:
        self._wanted: dict[PartitionKey, FetchPartition] = {}
        # Wanted partitions that the node knows otherwise, or not at all.
        self._changed: dict[PartitionKey, None] = {}
        # Partitions that the node knows and that are not wanted.
        self._forgotten: dict[PartitionKey, None] = {}
        # The node keeps a session of this id, unless it has forgotten the session.
        self.session_id = NO_SESSION
        # The epoch of the next request.
        self._epoch = FIRST_SESSION_EPOCH

    def __repr__(self) -> str:
        return (
            f"<FetchSessionHandler session={self.session_id} epoch={self._epoch} wanted={len(self._wanted)}"
            f" changed={len(self._changed)} forgotten={len(self._forgotten)}>"
        )

    def want(self, fetch: FetchPartition) -> None:
        """Adds a partition to those that are fetched, or replaces its position."""
        key = (fetch.topic_id, fetch.partition)
        if self._wanted.get(key) != fetch:
            self._wanted[key] = fetch
            self._changed[key] = None
            self._forgotten.pop(key, None)

    def forget(self, topic_id: UUID, partition: int) -> None:
        """Removes a partition from those that are fetched, if it is one."""
        key = (topic_id, partition)
        if self._wanted.pop(key, None) is not None:
            self._changed.pop(key, None)
            self._forgotten[key] = None

    def wanted(self, topic_id: UUID, partition: int) -> FetchPartition | None:
        """The position from which the partition is fetched. None: it is not fetched, and a result for it is ignored."""
        return self._wanted.get((topic_id, partition))

    @property
    def has_changed(self) -> bool:
        """Whether the node does not know all wanted partitions as they are."""
        return bool(self._changed)

    def next(self, partitions_max: int | None = None) -> SessionRequest:
        """The content of the next request, cut to `partitions_max` partitions; `has_changed` stays true if some are
        left. `on_response` or `on_failure` ends the request, unless a later one overtakes it.
        """
        epoch = self._epoch
        is_first = epoch == FIRST_SESSION_EPOCH
        unsent = iter(list(self._wanted if is_first else self._changed))
        partitions = tuple(self._wanted[key] for key in islice(unsent, partitions_max))
        forgotten = tuple(TopicIdPartition(*key) for key in (() if is_first else self._forgotten))
        if not is_first:
            self._epoch = next_session_epoch(epoch)
        self._changed, self._forgotten = dict.fromkeys(unsent), {}
        return SessionRequest(self.session_id, epoch, partitions, forgotten)

    def on_response(self, response: FetchResponse) -> None:
        """Takes the node's answer in. After an error, or if the node keeps no session, the next request names
        everything.
        """
        if response.error_code is not ErrorCode.NONE:
            self.on_failure()
        elif response.session_id == NO_SESSION:
            self.session_id, self._epoch = NO_SESSION, FIRST_SESSION_EPOCH
        elif self._epoch == FIRST_SESSION_EPOCH:
            self.session_id, self._epoch = response.session_id, next_session_epoch(FIRST_SESSION_EPOCH)

    def on_failure(self) -> None:
        """Lets the next request begin a new session: without an answer nothing tells whether the request arrived."""
        self._epoch = FIRST_SESSION_EPOCH


def next_session_epoch(epoch: int) -> int:
    """The epoch of the next request. 1 follows the largest epoch, because 0 would begin another session."""
    if epoch == FINAL_SESSION_EPOCH:
        return FINAL_SESSION_EPOCH
    return 1 if epoch >= SESSION_EPOCH_MAX else epoch + 1


class FetchOutcome(Enum):
    """The consequence of a request's end."""

    # The results of the request count.
    ANSWERED = auto()
    # The request brought no results, and a later request is open.
    OVERTAKEN = auto()
    # The node has dropped the session: the next request begins another, at once.
    RENEWED = auto()
    # The next request begins a session, after a pause.
    FAILED = auto()


class FetchStream:
    """The open requests of one caller to one node. The caller puts its partitions into `session`, and sends the
    requests that `begin` returns.
    """

    def __init__(self) -> None:
        self.session = FetchSessionHandler()
        # The node keeps no session for this caller.
        self.has_no_sessions = False
        # The number of the newest request.
        self._number = 0
        # By number, whether the request begins a session.
        self._in_flight: dict[int, bool] = {}
        # An overtaken request has failed: the session ends with the newest request's answer.
        self._has_lost_answer = False

    def __repr__(self) -> str:
        return f"<FetchStream {self.session!r} in_flight={list(self._in_flight)}>"

    @property
    def is_waiting(self) -> bool:
        """Whether the newest request is open."""
        return self._number in self._in_flight

    @property
    def may_overtake(self) -> bool:
        """Whether a request may leave while another is open: only when the session's id is known. An overtaken request
        is not waited for: its answer may be lost.
        """
        return not any(self._in_flight.values()) and len(self._in_flight) <= _OVERTAKEN_MAX

    @property
    def may_follow(self) -> bool:
        """Whether a request may leave that overtakes no other."""
        return not self.is_waiting and not any(self._in_flight.values())

    def begin(self, partitions_max: int | None = None) -> tuple[int, SessionRequest]:
        """Begins a request, and returns its number and its content of at most `partitions_max` partitions: of all, if
        the node keeps no session and so knows no earlier request. `on_response` or `on_failure` ends the request.
        """
        self._number += 1
        request = self.session.next(None if self.has_no_sessions else partitions_max)
        self._in_flight[self._number] = request.session_epoch == FIRST_SESSION_EPOCH
        return self._number, request

    def on_response(self, number: int, response: FetchResponse) -> FetchOutcome:
        """Ends a request that was answered."""
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
        """Ends a request without an answer. If the request was overtaken, the session ends with the newest one's
        answer.
        """
        del self._in_flight[number]
        if number != self._number:
            self._has_lost_answer = True
            return FetchOutcome.OVERTAKEN
        self._begin_session()
        return FetchOutcome.FAILED

    def _begin_session(self) -> None:
        """Lets the next request begin a session: the request names all partitions, and all are answered."""
        self._has_lost_answer = False
        self.session.on_failure()
