"""The leader of one epoch: what each voter has made durable, and thereby what is committed (A24, A40).

Invariant: the high watermark is unknown until a record of this epoch is committed, and never falls. Kafka:
`LeaderState`. Left out until there are several voters: check quorum, observers' positions, changes of the
voter set.
"""

from rayka.ids import NO_OFFSET, ReplicaKey
from rayka.raft.voters import VoterSet


class Leader:
    """Counts what the voters hold. `epoch_start_offset` is that of its own LeaderChange record."""

    __slots__ = ("_end_offsets", "epoch", "epoch_start_offset", "high_watermark")

    def __init__(self, epoch: int, epoch_start_offset: int, voters: VoterSet) -> None:
        self.epoch = epoch
        self.epoch_start_offset = epoch_start_offset
        self.high_watermark = NO_OFFSET
        self._end_offsets = dict.fromkeys(voters.voters, NO_OFFSET)

    def __repr__(self) -> str:
        return f"<Leader epoch={self.epoch} start={self.epoch_start_offset} hw={self.high_watermark}>"

    def on_voter_flushed(self, voter: ReplicaKey, end_offset: int) -> bool:
        """A voter holds everything below the offset durably. Whether the high watermark moved."""
        assert voter in self._end_offsets, f"{self!r}: {voter!r} does not vote"
        self._end_offsets[voter] = end_offset
        return self._maybe_update_high_watermark()

    def _maybe_update_high_watermark(self) -> bool:
        descending = sorted(self._end_offsets.values(), reverse=True)
        held_by_majority = descending[len(descending) // 2]
        if held_by_majority <= max(self.epoch_start_offset, self.high_watermark):
            return False
        self.high_watermark = held_by_majority
        return True
