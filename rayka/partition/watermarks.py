"""How far a partition is committed (B1, B3), and from where on every replica still has it (G11).

Kafka: `Partition.maybeIncrementLeaderHW`, `lowWatermarkIfLeader`, `UnifiedLog.updateHighWatermark`.
"""

from collections.abc import Callable, Iterable

from rayka.partition.follower_states import FollowerState


def committed_offset(
    own_offset: int,
    followers: Iterable[FollowerState],
    maximal_isr: tuple[int, ...],
    is_waited_for: Callable[[FollowerState], bool],
) -> int:
    """What every member of the maximal ISR has, and everyone who is about to join it (B1).

    The latter, because a follower that is as far as the leader would otherwise never stay so: the leader alone in the
    ISR would commit each record at once, and the follower would be behind whenever it is looked at.
    """
    lowest = own_offset
    for each in followers:
        if each.log_end_offset < lowest and (each.replica_id in maximal_isr or is_waited_for(each)):
            lowest = each.log_end_offset
    return lowest


def low_watermark(
    own_start_offset: int, followers: Iterable[FollowerState], is_alive: Callable[[int], bool]
) -> int:
    """The lowest log start offset of this replica and of all that are alive (G11)."""
    return min(
        [own_start_offset, *(each.log_start_offset for each in followers if is_alive(each.replica_id))]
    )


def followed_high_watermark(leader_high_watermark: int, log_start_offset: int, log_end_offset: int) -> int:
    """The leader's, as far as this log has it (B3); it may be lower than before."""
    return min(max(leader_high_watermark, log_start_offset), log_end_offset)
