"""The leader's use of the log: appends, commits, and answers to fetches (A24-A32, A40, A49, A50).

An append takes three steps, so that any number of appends share one flush: `append` gives offsets, `drain` writes the
records, and `on_flushed` counts them once the log is synced. Kafka: the leader's half of `KafkaRaftClient`.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np

from rayka.errors import ErrorCode, InvariantBroken, NotLeaderOrFollower
from rayka.ids import METADATA_PARTITION, METADATA_TOPIC_ID, NO_EPOCH, ZERO_ID, OffsetAndEpoch, ReplicaKey
from rayka.protocol.fetch import FetchPartitionResult, FetchRequest
from rayka.protocol.quorum_messages import (
    DescribeQuorumResponse,
    FetchSnapshotRequest,
    FetchSnapshotResponse,
    QuorumReplica,
)
from rayka.raft.leader import Leader
from rayka.raft.quorum_state import QuorumState
from rayka.raft.voter_changes import VoterChanges


class LeaderLog:
    """The part of a quorum core that appends records and answers fetches."""

    def __init__(self, state: QuorumState, changes: VoterChanges) -> None:
        self._state = state
        self._changes = changes

    # ---- Appending ---------------------------------------------------------------------------------------------------

    def append(self, values: Sequence[bytes | None], keys: Sequence[bytes | None] | None = None) -> int:
        """Accepts records that are committed together and returns the offset of the first.

        Raises NotLeaderOrFollower, RecordBatchTooLarge, TooManyRequests.
        """
        role = self._state.role
        if not isinstance(role, Leader):
            raise NotLeaderOrFollower(f"{self._state!r} does not lead")
        return role.accumulator.append(values, keys)

    def drain(self, *, now_ms: int, timestamp_ms: int) -> None:
        """Writes the accepted records to the log, with this timestamp; nothing before the election is durable (A8).

        Raises StorageError when the disk fails; the log accepts nothing more then.
        """
        state, role = self._state, self._state.role
        if not isinstance(role, Leader) or role.accumulator.is_empty or not state.is_persisted:
            return
        batches = role.accumulator.drain(timestamp_ms=timestamp_ms)
        state.log.append_as_leader(batches, state.epoch, now_ms)
        if state.log.log_end_offset != role.accumulator.next_offset:
            raise InvariantBroken(f"{state!r}: offsets went astray")
        if state.voters is not None and state.voters != role.voters:
            role.update_voters(state.voters)

    def on_flushed(self, flushed_offset: int, now_ms: int) -> None:
        """Counts the leader's own records up to the synced offset; the high watermark may move (A26, A40)."""
        role = self._state.role
        if isinstance(role, Leader) and role.on_flushed(flushed_offset):
            self._on_high_watermark(role, now_ms)

    def _on_high_watermark(self, leader: Leader, now_ms: int) -> None:
        self._state.advance_high_watermark(leader.high_watermark)
        self._changes.on_high_watermark(now_ms)

    # ---- Fetches -----------------------------------------------------------------------------------------------------

    def handle_fetch(
        self, request: FetchRequest, *, now_ms: int, may_wait: bool
    ) -> FetchPartitionResult | None:
        """Answers a replica that follows the log; None if the fetch should wait for news (A27-A32).

        A voter gets records that are not committed yet, with the high watermark. A broker, which names no directory,
        gets committed records only. So a broker needs one fetch for each record; uncommitted records would cost it a
        second fetch for the high watermark.
        """
        error = self._request_error(request)
        if error is ErrorCode.NONE:
            error = self.epoch_error(request.partitions[0].current_leader_epoch)
        if error is not ErrorCode.NONE:
            return self._result(error)
        partition = request.partitions[0]
        position = self._state.log.validate_position(partition.fetch_offset, partition.last_fetched_epoch)
        self._record_fetch(request, now_ms, is_valid=position.is_valid)
        if not position.is_valid:
            return self._result(diverging_epoch=position.diverging_epoch, snapshot_id=position.snapshot_id)
        is_replica = request.replica_directory_id != ZERO_ID
        end_offset = self._state.log.log_end_offset if is_replica else self._state.known_high_watermark
        has_news = partition.high_watermark < self._state.high_watermark
        if may_wait and not has_news and partition.fetch_offset >= end_offset:
            return None
        max_bytes = min(request.max_bytes, partition.max_bytes)
        read = self._state.log.read(partition.fetch_offset, max_bytes=max_bytes, end_offset=end_offset)
        records = np.frombuffer(read.records, dtype=np.uint8)
        return self._result(next_offset=read.next_offset, records=records)

    def _request_error(self, request: FetchRequest) -> ErrorCode:
        if request.cluster_id not in ("", self._state.cluster_id):
            return ErrorCode.INCONSISTENT_CLUSTER_ID
        if request.max_wait_ms < 0 or len(request.partitions) != 1:
            return ErrorCode.INVALID_REQUEST
        (partition,) = request.partitions
        offset, last_epoch = partition.fetch_offset, partition.last_fetched_epoch
        is_later = NO_EPOCH < partition.current_leader_epoch < last_epoch
        if offset < 0 or (last_epoch < 0 and offset > 0) or is_later:
            return ErrorCode.INVALID_REQUEST
        return ErrorCode.NONE

    def epoch_error(self, current_leader_epoch: int) -> ErrorCode:
        """The error for a request of another epoch than this node's, or to a node that does not lead; NONE if neither.

        An epoch of -1 is not compared (A28).
        """
        state = self._state
        if current_leader_epoch not in (NO_EPOCH, state.epoch):
            is_behind = current_leader_epoch < state.epoch
            return ErrorCode.FENCED_LEADER_EPOCH if is_behind else ErrorCode.UNKNOWN_LEADER_EPOCH
        if not isinstance(state.role, Leader):
            is_ending = state.is_shutting_down
            return ErrorCode.BROKER_NOT_AVAILABLE if is_ending else ErrorCode.NOT_LEADER_OR_FOLLOWER
        return ErrorCode.NONE

    def _record_fetch(self, request: FetchRequest, now_ms: int, *, is_valid: bool) -> None:
        """Counts the replica for check quorum and, at a valid position, as holding everything before it (A31).

        The fetch of a voter counts only if it names the leader's epoch. The progress of an observer is kept for its
        description, and for the day when it asks to vote.
        """
        state, role = self._state, self._state.role
        assert isinstance(role, Leader)
        partition = request.partitions[0]
        replica = ReplicaKey(request.replica_id, request.replica_directory_id)
        is_current = partition.current_leader_epoch == state.epoch or replica not in role.voters
        if not is_current or replica == state.local or request.replica_id < 0:
            return
        role.update_check_quorum(replica, now_ms)
        if not is_valid:
            return
        if role.on_fetch(replica, partition.fetch_offset, state.log.log_end_offset, now_ms):
            self._on_high_watermark(role, now_ms)

    def _result(self, error_code: ErrorCode = ErrorCode.NONE, **found: Any) -> FetchPartitionResult:
        """Builds an answer; every answer names the leader and the epoch (A28)."""
        state = self._state
        return FetchPartitionResult(
            METADATA_TOPIC_ID,
            METADATA_PARTITION,
            error_code=error_code,
            high_watermark=state.high_watermark,
            log_start_offset=state.log.log_start_offset,
            leader_id=state.leader_id,
            leader_epoch=state.epoch,
            **found,
        )

    # ---- Snapshots ---------------------------------------------------------------------------------------------------

    def handle_fetch_snapshot(self, request: FetchSnapshotRequest, now_ms: int) -> FetchSnapshotResponse:
        """Answers with a part of a snapshot (A49). A voter that loads one counts for check quorum only (A50)."""
        state = self._state
        if request.cluster_id not in ("", state.cluster_id):
            return self._snapshot_response(request, ErrorCode.INCONSISTENT_CLUSTER_ID)
        error = self.epoch_error(request.current_leader_epoch)
        if error is ErrorCode.NONE and request.snapshot_id not in state.log.snapshots.ids:
            error = ErrorCode.SNAPSHOT_NOT_FOUND
        if error is not ErrorCode.NONE:
            return self._snapshot_response(request, error)
        size_bytes = state.log.snapshots.size(request.snapshot_id)
        if not 0 <= request.position < size_bytes or request.max_bytes <= 0:
            return self._snapshot_response(request, ErrorCode.POSITION_OUT_OF_RANGE)
        role = state.role
        if isinstance(role, Leader) and request.current_leader_epoch == state.epoch:
            replica = ReplicaKey(request.replica_id, request.replica_directory_id)
            role.on_snapshot_fetch(replica, now_ms)
        data = state.log.snapshots.read(request.snapshot_id, request.position, request.max_bytes)
        return self._snapshot_response(request, size_bytes=size_bytes, data=np.frombuffer(data, np.uint8))

    def _snapshot_response(
        self, request: FetchSnapshotRequest, error_code: ErrorCode = ErrorCode.NONE, **found: Any
    ) -> FetchSnapshotResponse:
        state = self._state
        return FetchSnapshotResponse(
            state.leader_id,
            state.epoch,
            OffsetAndEpoch(request.snapshot_id.offset, request.snapshot_id.epoch),
            error_code,
            position=request.position,
            **found,
        )

    # ---- Description -------------------------------------------------------------------------------------------------

    def handle_describe_quorum(self, now_ms: int) -> DescribeQuorumResponse:
        """Describes the progress of voters and observers. A node that does not lead answers NOT_LEADER_OR_FOLLOWER and
        names the leader that it knows.
        """
        state, leader = self._state, self._state.role
        if not isinstance(leader, Leader):
            return DescribeQuorumResponse(state.leader_id, state.epoch, ErrorCode.NOT_LEADER_OR_FOLLOWER)
        voters: list[QuorumReplica] = []
        observers: list[QuorumReplica] = []
        for replica, progress in leader.replicas(now_ms).items():
            found = QuorumReplica(
                replica,
                progress.end_offset,
                _ago_ms(progress.last_fetch_ms, now_ms),
                _ago_ms(progress.last_caught_up_ms, now_ms),
            )
            if replica == state.local:
                found = QuorumReplica(replica, state.log.log_end_offset, 0, 0)
            (voters if replica in leader.voters else observers).append(found)
        return DescribeQuorumResponse(
            state.leader_id,
            state.epoch,
            high_watermark=leader.high_watermark,
            voters=tuple(voters),
            observers=tuple(observers),
        )


def _ago_ms(time_ms: int, now_ms: int) -> int:
    return now_ms - time_ms if time_ms >= 0 else -1
