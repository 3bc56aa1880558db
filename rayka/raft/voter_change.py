"""One change of the voters on its way (A55): asked for, appended, committed, or not."""

from dataclasses import dataclass

from rayka.errors import ErrorCode
from rayka.ids import NO_OFFSET
from rayka.protocol.quorum_messages import VoterChangeResponse


@dataclass(slots=True, eq=False)
class VoterChange:
    """`response` is None until the outcome is known; a caller that waits for it asks again after every event."""

    response: VoterChangeResponse | None = None
    offset: int = NO_OFFSET  # of the VotersRecord

    def __repr__(self) -> str:
        return f"<VoterChange offset={self.offset} {self.response or 'not committed'}>"

    def end_with_leadership(self, leader_id: int, leader_epoch: int) -> None:
        """Another leader may commit it or not: this node cannot know."""
        if self.response is None:
            self.response = VoterChangeResponse(
                leader_id,
                leader_epoch,
                ErrorCode.NOT_LEADER_OR_FOLLOWER,
                "the leader changed before the new voters were committed; look at who votes now",
            )
