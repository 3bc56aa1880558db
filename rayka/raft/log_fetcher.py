"""The log of a replica that does not lead: finds the leader, and fetches records and snapshots from it (A29, A33-A36,
A49).

A fetch promises that everything before its offset is durable here, so it is sent only when the log is flushed (A34).
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
        # Nodes that may know the leader, besides the voters.
        self._bootstrap_ids = bootstrap_ids
        # The node that is asked for the leader, until it answers or the time is over.
        self._asked_id = NO_NODE
        self._asked_until_ms = 0

    # ---- Where to fetch ------------------------------------------------------------------------------------------

    def deadline_ms(self) -> int:
        """The time at which an observer gives up its leader and asks other nodes (A36)."""
        state, role = self._state, self._state.role
        return role.fetch_deadline_ms if isinstance(role, Follower) and not state.is_voter else FAR_MS

    def targets(self, now_ms: int) -> list[int]:
        """The leader; or, while no leader is known or answers, one other node at a time, chosen at random (A36)."""
        state, role = self._state, self._state.role
        if not state.log.is_flushed:
            return []
        if isinstance(role, Follower) and (state.is_voter or now_ms < role.fetch_deadline_ms):
            is_busy = state.finished_download is not None or role.truncation is not None
            return [] if is_busy else [role.leader_id]
        if not isinstance(role, Unattached | Follower):
            return []
        if self._asked_id == NO_NODE or now_ms >= self._asked_until_ms:
            voters = [voter.node_id for voter in state.voters.voters] if state.voters is not None else []
            distinct = dict.fromkeys([*voters, *self._bootstrap_ids])
            others = [node_id for node_id in distinct if node_id != state.local.node_id]
            self._asked_id = state.random.choice(others) if others else NO_NODE
            self._asked_until_ms = now_ms + state.config.request_timeout_ms
        return [self._asked_id] if self._asked_id != NO_NODE else []

    def is_searching(self, now_ms: int) -> bool:
        """True for an observer without a leader, or with a leader that is silent (A36)."""
        state, role = self._state, self._state.role
        is_left = isinstance(role, Follower) and now_ms >= role.fetch_deadline_ms
        return not state.is_voter and (is_left or isinstance(role, Unattached))

    def learn_nodes(self, node_ids: Sequence[int]) -> None:
        """Replaces the bootstrap nodes, because the former ones may be gone."""
        self._bootstrap_ids = node_ids

    def on_ended(self, node_id: int) -> None:
        """Ends the request to a node that may know the leader: the next request may go to another node."""
        if node_id == self._asked_id:
            self._asked_id = NO_NODE

    # ---- Requests ----------------------------------------------------------------------------------------------------

    def request_to(self, node_id: int, now_ms: int) -> Request[Message]:
        """The request to a target: a fetch of the next part of a snapshot, or else of records."""
        state, role = self._state, self._state.role
        if isinstance(role, Follower) and role.download is not None and node_id == role.leader_id:
            return FetchSnapshotRequest(
                state.cluster_id,
                role.download.snapshot_id,
                role.download.size_bytes,
                state.config.fetch_max_bytes,
                replica_id=state.local.node_id,
                replica_directory_id=state.local.directory_id,
                current_leader_epoch=state.epoch,
            )
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

    # ---- Records -----------------------------------------------------------------------------------------------------

    def on_fetch(
        self, node_id: int, request: FetchRequest, result: FetchPartitionResult, now_ms: int
    ) -> None:
        """Takes an answer of this epoch. Only the answer of the leader counts (A36)."""
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
        """Takes the leader's answer; False if the answer is of no use.

        An answer whose first batch is damaged is of no use and is fetched again later. A leader that has nothing else
        counts as silent.
        """
        log = self._state.log
        if result.snapshot_id is not None:
            if result.snapshot_id in log.snapshots.ids:
                return False
            follower.drop_download()
            follower.download = log.snapshots.begin(result.snapshot_id)
            return True
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
        """Truncates the log, if the truncation still waits for this copy (A33)."""
        state, role = self._state, self._state.role
        if isinstance(role, Follower) and role.truncation is not None and role.truncation.copy == copied:
            self._truncate(role, role.truncation.end, copied)
            role.on_fetched(now_ms + state.config.fetch_timeout_ms)

    def _on_leader_high_watermark(self, offset: int) -> None:
        """A35. Raises the known high watermark. A new leader answers -1: it does not know the high watermark yet."""
        if offset >= 0:
            self._state.advance_high_watermark(min(offset, self._state.log.log_end_offset))

    # ---- Snapshots ---------------------------------------------------------------------------------------------------

    def on_fetch_snapshot(self, response: FetchSnapshotResponse, now_ms: int) -> None:
        """Takes a part of the snapshot; drops the download if the leader does not have the snapshot any more (A49)."""
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
        """Restarts the log at the end of the snapshot, which the store now holds and which is committed (A49)."""
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
        """Drops a download that is not a whole snapshot; the replica fetches it again after a back-off."""
        state = self._state
        state.finished_download = None
        if isinstance(state.role, Follower):
            state.request_manager.back_off(state.role.leader_id, now_ms)
