"""How far a follower knows its partition to be committed (B3), and from where on every replica still has it (G11).

Kafka: `Partition.lowWatermarkIfLeader`, `UnifiedLog.updateHighWatermark`.
"""

from collections.abc import Iterable

from rayka.partition.follower_states import FollowerState


def low_watermark(own_start_offset: int, followers: Iterable[FollowerState]) -> int:
    """The lowest log start offset of this replica and of these (G11)."""
    return min([own_start_offset, *(each.log_start_offset for each in followers)])


def followed_high_watermark(leader_high_watermark: int, log_start_offset: int, log_end_offset: int) -> int:
    """The leader's, as far as this log has it (B3); it may be lower than before."""
    return min(max(leader_high_watermark, log_start_offset), log_end_offset)
