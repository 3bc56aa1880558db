"""The quorum as its leader sees it: the voters, the observers, how far each is. Kafka: `DescribeQuorumRequest`."""

from rayka.errors import ErrorCode
from rayka.protocol.quorum_messages import DescribeQuorumResponse, QuorumReplica
from rayka.raft.leader import Leader
from rayka.raft.quorum_state import QuorumState


def describe(state: QuorumState, now_ms: int) -> DescribeQuorumResponse:
    """NOT_LEADER_OR_FOLLOWER, with the leader known, from a node that does not lead."""
    leader = state.role
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
