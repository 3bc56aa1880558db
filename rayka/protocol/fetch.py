"""Fetch and ListOffsets: reading partitions, by consumers and by replicas that follow a log.

Kafka: FetchRequest/FetchResponse, ListOffsetsRequest (G1-G8, G12, A27-A32).
"""

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
from rayka.protocol.of_partition import OfPartition, PartitionAnswer
from rayka.protocol.request_checks import require
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


class FetchPartition(OfPartition, frozen=True, array_like=True):
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


class ListOffsetsPartition(OfPartition, frozen=True, array_like=True):
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
