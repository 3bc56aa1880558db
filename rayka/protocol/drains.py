"""Drains: brokers and coordinators that are emptied, for whichever cause, and how far that is. Rayka's own.

A drain is a mark of its broker in the metadata (`broker.drain`, `scaling.leaving`, `machine.drain.deadline.ms`), so it
goes on whichever caller, supervisor or controller ends.
"""

from enum import StrEnum

from rayka.ids import NO_OFFSET
from rayka.ports import Message, Request
from rayka.protocol.request_parts import NamedPartitionMessage, require


class DrainCause(StrEnum):
    """Why a broker is emptied."""

    # An operator asked for it.
    OPERATOR = "operator"
    # Fewer brokers are needed.
    SCALING = "scaling"
    # Ray drains its machine.
    MACHINE = "machine"


class DrainMove(NamedPartitionMessage, frozen=True, array_like=True, gc=False):
    """A partition that the broker has a replica of, and the replicas that it gets."""

    replicas: tuple[int, ...]


class DrainBrokerResponse(Message, frozen=True, array_like=True):
    """The moves by which the broker is emptied. Metadata from before `metadata_offset` are older."""

    moves: tuple[DrainMove, ...] = ()
    # Why the disks of the others have no room for what the broker holds; then nothing was begun.
    no_room: str = ""
    metadata_offset: int = NO_OFFSET


class DrainBrokerRequest(Request[DrainBrokerResponse], frozen=True, array_like=True):
    """Has a broker emptied, for good; of a drain that is under way the response has what still moves. A dry run only
    plans. A machine is no cause of a request: its deadline is set in the broker's configuration.
    """

    broker_id: int
    cause: DrainCause = DrainCause.OPERATOR
    is_dry_run: bool = False

    def check(self) -> None:
        require(self.cause is not DrainCause.MACHINE, "cause", "operator or scaling", self.cause)


class CancelDrainResponse(Message, frozen=True, array_like=True):
    """Whether there was a drain to cancel, and from where on the metadata have that."""

    is_cancelled: bool
    metadata_offset: int = NO_OFFSET


class CancelDrainRequest(Request[CancelDrainResponse], frozen=True, array_like=True):
    """Ends an operator's drain: what is under way is taken back, and the broker takes replicas again."""

    broker_id: int


class DrainStatus(Message, frozen=True, array_like=True):
    """A broker that is emptied."""

    broker_id: int
    cause: DrainCause
    # The wall clock at which the machine goes; 0 where that is not known.
    deadline_ms: int
    # How many replicas the broker holds; one whose move is under way counts until the end of the move.
    replica_count: int
    moving_count: int
    # Why what does not move stays; empty if everything moves, or soon will.
    waits_for: str = ""
    # Whether no time helps: brokers, disk space or a leader is missing, or an operator cancelled a move.
    is_stuck: bool = False


class DescribeDrainsResponse(Message, frozen=True, array_like=True):
    """All brokers that are emptied: those with a deadline first, in the order in which they are served."""

    drains: tuple[DrainStatus, ...]


class DescribeDrainsRequest(Request[DescribeDrainsResponse], frozen=True, array_like=True):
    """Asks which brokers are emptied."""
