"""Which replica a consumer reads from, when the leader is not in its rack (G15).

Kafka: `RackAwareReplicaSelector` (KIP-392).
"""

from collections.abc import Iterable

from rayka.ids import NO_NODE
from rayka.partition.follower_states import FollowerState


def choose_read_replica(candidates: Iterable[FollowerState], fetch_offset: int, now_ms: int) -> int:
    """The most caught up of those that have the offset; -1 when none has it. The candidates are in sync and near."""
    able = [each for each in candidates if each.log_start_offset <= fetch_offset <= each.log_end_offset]
    if not able:
        return NO_NODE
    return max(
        able, key=lambda each: (each.log_end_offset, each.last_caught_up_ms, each.replica_id)
    ).replica_id
