"""What a replica that does not lead does with the log: finding the leader, and fetching records and snapshots from it
(A29, A33-A36, A49).

A fetch says that everything before its offset is durable here, so it is sent only when the log is flushed (A34).
Kafka: the follower's half of `KafkaRaftClient`.
"""

from collections.abc import Sequence

from rayka.errors import ErrorCode, InvariantBroken
from rayka.ids import METADATA_PARTITION, METADATA_TOPIC_ID, NO_NODE, OffsetAndEpoch
from rayka.log.log import PrefixCopy
from rayka.ports import Message, Request
from rayka.protocol.batch_format import split_batches
from rayka.protocol.fetch import FetchPartition, FetchPartitionResult, FetchRequest
from rayka.protocol.quorum_messages import FetchSnapshotRequest, FetchSnapshotResponse
from rayka.raft.leader import FAR_MS
from rayka.raft.quorum_state import QuorumState
from rayka.raft.roles import Follower, Truncation, Unattached


class LogFetcher:
    """The part of a quorum core that fetches."""

    def __init__(self, state: QuorumState, bootstrap_ids: Sequence[int]) -> None:
        self._state = state
        self._bootstrap_ids = bootstrap_ids
        self._asked_id = NO_NODE  # the node that may know the leader
        self._asked_until_ms = 0

    # ---- Where to fetch ------------------------------------------------------------------------------------------

    def deadline_ms(self) -> int:
        """When an observer stops believing in its leader, and asks others (A36)."""
        state, role = self._state, self._state.role
        return role.fetch_deadline_ms if isinstance(role, Follower) and not state.is_voter else FAR_MS

    def targets(self, now_ms: int) -> list[int]:
        """The leader; or, while none is known or answers, some other node, one at a time (A36)."""
        state, role = self._state, self._state.role
        if not state.log.is_flushed:
            return []
        if isinstance(role, Follower) and (state.is_voter or now_ms < role.fetch_deadline_ms):
            is_busy = state.finished_download is not None or role.truncation is not None
            return [] if is_busy else [role.leader_id]
        return self._discovery_targets(now_ms) if isinstance(role, Unattached | Follower) else []

    def _discovery_targets(self, now_ms: int) -> list[int]:
        if self._asked_id == NO_NODE or now_ms >= self._asked_until_ms:
            others = self._others()
            self._asked_id = self._state.random.choice(others) if others else NO_NODE
            self._asked_until_ms = now_ms + self._state.config.request_timeout_ms
        return [self._asked_id] if self._asked_id != NO_NODE else []

    def _others(self) -> list[int]:
        voters = self._state.voters
        known = [voter.node_id for voter in voters.voters] if voters is not None else []
        distinct = dict.fromkeys([*known, *self._bootstrap_ids])
        return [node_id for node_id in distinct if node_id != self._state.local.node_id]

    def is_searching(self, now_ms: int) -> bool:
        """Whether this is an observer that no node has told of a leader, or whose leader is silent (A36)."""
        state, role = self._state, self._state.role
        is_left = isinstance(role, Follower) and now_ms >= role.fetch_deadline_ms
        return not state.is_voter and (is_left or isinstance(role, Unattached))

    def learn_nodes(self, node_ids: Sequence[int]) -> None:
        """These may know the leader; those known before may be gone."""
        self._bootstrap_ids = node_ids

    def on_ended(self, node_id: int) -> None:
        """The node has answered, or not: next time another may be asked."""
        if node_id == self._asked_id:
            self._asked_id = NO_NODE

    # ---- Requests ----------------------------------------------------------------------------------------------------

    def request_to(self, node_id: int, now_ms: int) -> Request[Message]:
        """What the target is to get: a fetch of records, or of the next part of a snapshot."""
        role = self._state.role
        if isinstance(role, Follower) and role.download is not None and node_id == role.leader_id:
            return self._fetch_snapshot_request(role.download.snapshot_id, role.download.size_bytes)
        return self._fetch_request()

    def _fetch_request(self) -> FetchRequest:
        state = self._state
        partition = FetchPartition(
            METADATA_TOPIC_ID,
            METADATA_PARTITION,
            fetch_offset=state.log.log_end_offset,
            max_bytes=state.config.fetch_max_bytes,
            current_leader_epoch=state.epoch,
            last_fetched_epoch=state.log.last_epoch,
            log_start_offset=state.log.log_start_offset,
            high_watermark=state.high_watermark,
        )
        return FetchRequest(
            max_wait_ms=state.config.fetch_max_wait_ms,
            min_bytes=1,
            max_bytes=state.config.fetch_max_bytes,
            partitions=(partition,),
            replica_id=state.local.node_id,
            replica_directory_id=state.local.directory_id,
            cluster_id=state.cluster_id,
        )

    def _fetch_snapshot_request(self, snapshot_id: OffsetAndEpoch, position: int) -> FetchSnapshotRequest:
        state = self._state
        return FetchSnapshotRequest(
            state.cluster_id,
            snapshot_id,
            position,
            state.config.fetch_max_bytes,
            replica_id=state.local.node_id,
            replica_directory_id=state.local.directory_id,
            current_leader_epoch=state.epoch,
        )

    # ---- Records -----------------------------------------------------------------------------------------------------

    def on_fetch(
        self, node_id: int, request: FetchRequest, result: FetchPartitionResult, now_ms: int
    ) -> None:
        """The answer of the node that was asked, in this epoch. It counts if that node is the leader (A36)."""
        state, role = self._state, self._state.role
        is_leader = isinstance(role, Follower) and role.leader_id == node_id
        if not is_leader or result.error_code is not ErrorCode.NONE:
            state.request_manager.back_off(node_id, now_ms)
            return
        assert isinstance(role, Follower)
        if request.partitions[0].fetch_offset != state.log.log_end_offset:
            return
        if self._take(role, result, now_ms):
            role.on_fetched(now_ms + state.config.fetch_timeout_ms)
        else:
            state.request_manager.back_off(node_id, now_ms)

    def _take(self, follower: Follower, result: FetchPartitionResult, now_ms: int) -> bool:
        """Whether the answer is of use: one whose first batch is damaged is not, and is asked for again. A leader with
        nothing else to give is no better than none.
        """
        log = self._state.log
        if result.snapshot_id is not None:
            return self._start_download(follower, result.snapshot_id)
        if result.diverging_epoch is not None:
            self._truncate(follower, result.diverging_epoch, None)
            return True
        before = log.log_end_offset
        if result.records.size:
            is_whole = log.append_as_follower(split_batches(result.records), self._state.epoch, now_ms)
            if not is_whole and log.log_end_offset == before:
                return False
        self._on_leader_high_watermark(result.high_watermark)
        return True

    def _truncate(self, follower: Follower, end: OffsetAndEpoch, copied: PrefixCopy | None) -> None:
        state = self._state
        needed = state.log.truncate_to(end, copied, committed_offset=state.known_high_watermark)
        follower.truncation = None if needed is None else Truncation(end, needed)

    def on_copied(self, copied: PrefixCopy, now_ms: int) -> None:
        """What a truncation needed is there; it is made if it still is to be made (A33)."""
        state, role = self._state, self._state.role
        if isinstance(role, Follower) and role.truncation is not None and role.truncation.copy == copied:
            self._truncate(role, role.truncation.end, copied)
            role.on_fetched(now_ms + state.config.fetch_timeout_ms)

    def _on_leader_high_watermark(self, offset: int) -> None:
        """A35. A new leader does not know it yet; what this node knows stays true."""
        if offset >= 0:
            self._state.advance_high_watermark(min(offset, self._state.log.log_end_offset))

    # ---- Snapshots ---------------------------------------------------------------------------------------------------

    def _start_download(self, follower: Follower, snapshot_id: OffsetAndEpoch) -> bool:
        snapshots = self._state.log.snapshots
        if snapshot_id in snapshots.ids:
            return False
        follower.drop_download()
        follower.download = snapshots.begin(snapshot_id)
        return True

    def on_fetch_snapshot(self, response: FetchSnapshotResponse, now_ms: int) -> None:
        """A part of the snapshot has come, or the leader has it no more (A49)."""
        state, role = self._state, self._state.role
        if not isinstance(role, Follower) or response.leader_id != role.leader_id or role.download is None:
            return
        download = role.download
        is_asked = (response.snapshot_id, response.position) == (download.snapshot_id, download.size_bytes)
        if response.error_code is not ErrorCode.NONE or not is_asked or not response.data.size:
            role.drop_download()
            state.request_manager.back_off(role.leader_id, now_ms)
            return
        download.append(response.data)
        role.on_fetched(now_ms + state.config.fetch_timeout_ms)
        if download.size_bytes >= response.size_bytes:
            state.finished_download, role.download = download, None

    def on_snapshot_frozen(self) -> None:
        """The download is one of the store's: the log begins anew at its end, and all of it is committed (A49)."""
        state = self._state
        if state.finished_download is None:
            raise InvariantBroken(f"{state!r} awaits no snapshot")
        end_offset = state.finished_download.snapshot_id.offset
        state.finished_download = None
        if state.log.truncate_to_latest_snapshot():
            if not isinstance(state.role, Unattached | Follower):
                raise InvariantBroken(f"{state!r} lacked a snapshot")
            state.advance_high_watermark(end_offset)

    def on_snapshot_damaged(self, now_ms: int) -> None:
        """What was downloaded is no whole snapshot. It is asked for again, a little later."""
        state = self._state
        state.finished_download = None
        if isinstance(state.role, Follower):
            state.request_manager.back_off(state.role.leader_id, now_ms)
