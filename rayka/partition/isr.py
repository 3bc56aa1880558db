"""The ISR: what the controller has committed, and what the leader has proposed without an answer yet (B2, B12).

Invariants: one proposal at a time; `maximal` holds every replica that may be in the committed ISR once the controller
has answered, whatever it answers, so a leader that counts all of them commits nothing that a member lacks.
Kafka: `PartitionState`, `CommittedPartitionState`, `PendingExpandIsr`, `PendingShrinkIsr`.
"""

from dataclasses import dataclass, field
from enum import Enum, auto

from rayka.errors import ErrorCode
from rayka.protocol.membership import AlterPartitionItem


@dataclass(frozen=True, slots=True, repr=False)
class IsrState:
    """The committed ISR and the proposal that would change it."""

    committed: tuple[int, ...] = ()
    proposal: AlterPartitionItem | None = None
    maximal: tuple[int, ...] = field(init=False)

    def __post_init__(self) -> None:
        proposed = () if self.proposal is None else tuple(each.broker_id for each in self.proposal.isr)
        joining = tuple(each for each in proposed if each not in self.committed)
        object.__setattr__(self, "maximal", self.committed + joining)

    def __repr__(self) -> str:
        pending = "" if self.proposal is None else " pending"
        return f"<IsrState {list(self.committed)} maximal={list(self.maximal)}{pending}>"

    @property
    def is_pending(self) -> bool:
        return self.proposal is not None


class Outcome(Enum):
    """What a leader does after an answer to its proposal."""

    ACCEPTED = auto()
    REVERTED = auto()  # the controller has not done it, and will not: it has raised the partition epoch
    AWAITS_METADATA = auto()  # the leader's picture is too old to propose anything
    RETRIED = auto()


# B12. An error that is not known says nothing about what was done: the same is proposed again (RETRIED).
OUTCOMES = {
    ErrorCode.NONE: Outcome.ACCEPTED,
    ErrorCode.OPERATION_NOT_ATTEMPTED: Outcome.REVERTED,
    ErrorCode.INELIGIBLE_REPLICA: Outcome.REVERTED,
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION: Outcome.AWAITS_METADATA,
    ErrorCode.UNKNOWN_TOPIC_ID: Outcome.AWAITS_METADATA,
    ErrorCode.FENCED_LEADER_EPOCH: Outcome.AWAITS_METADATA,
    ErrorCode.INVALID_UPDATE_VERSION: Outcome.AWAITS_METADATA,
    ErrorCode.INVALID_REQUEST: Outcome.AWAITS_METADATA,
    ErrorCode.NEW_LEADER_ELECTED: Outcome.AWAITS_METADATA,
}
