"""A balance asked for: what should move so that all brokers have their share, and the first of it. Rayka's own."""

from enum import StrEnum

from rayka.ids import NO_OFFSET
from rayka.ports import Message, Request
from rayka.protocol.of_partition import OfNamedPartition
from rayka.protocol.request_checks import require

MOVES_AT_ONCE_MAX = 100
MOVES_AS_CONFIGURED = -1


class BalanceMove(OfNamedPartition, frozen=True, array_like=True, gc=False):
    """A partition's replicas, the preferred leader first, as they are and as they are to be; what is copied for that,
    and the goal that it is for.
    """

    replicas: tuple[int, ...]
    new_replicas: tuple[int, ...]
    copied_bytes: int
    goal: str


class BalanceShare(Message, frozen=True, array_like=True, gc=False):
    """What a broker holds, by the sizes that are known or estimated: of how many partitions it is the preferred leader,
    and the traffic of all its replicas, in bytes a second.
    """

    broker_id: int
    size_bytes: int
    replica_count: int
    leader_count: int
    bytes_in: int
    bytes_out: int


class BalanceResponse(Message, frozen=True, array_like=True):
    """The plan: moves in their order, of which the first `begun_count` have begun, and shares before and after all of
    them. `is_whole`: more would not improve it. Metadata from before `metadata_offset` are older. `is_joined`: a
    balance was under way already, and this is its plan, without moves where it is yet to be made.
    """

    moves: tuple[BalanceMove, ...]
    before: tuple[BalanceShare, ...]
    after: tuple[BalanceShare, ...]
    is_whole: bool
    begun_count: int = 0
    metadata_offset: int = NO_OFFSET
    is_joined: bool = False


class BalanceRequest(Request[BalanceResponse], frozen=True, array_like=True):
    """Plans a balance, and begins it with so many moves at a time, -1: as configured; with 0 it only plans."""

    moves: int = 0

    def check(self) -> None:
        is_bounded = MOVES_AS_CONFIGURED <= self.moves <= MOVES_AT_ONCE_MAX
        require(is_bounded, "moves", f"-1 to {MOVES_AT_ONCE_MAX}", self.moves)


class BalanceState(StrEnum):
    """How far the balance is that is under way, or what became of the last one."""

    NONE = "none"
    PLANNING = "planning"
    MOVING = "moving"
    ENDED = "ended"
    CANCELLED = "cancelled"


class DescribeBalanceResponse(Message, frozen=True, array_like=True):
    """A balance: why it began or what came of it, why no move begins now (or nothing), how many moves are planned, have
    been made and are under way, and how many bytes were copied.
    """

    state: BalanceState
    reason: str
    waits_for: str
    planned_count: int
    moved_count: int
    under_way_count: int
    moved_bytes: int


class DescribeBalanceRequest(Request[DescribeBalanceResponse], frozen=True, array_like=True):
    """How far the balance is; a new active controller knows of the last one only if it is under way."""


class CancelBalanceResponse(Message, frozen=True, array_like=True):
    """Whether one was under way. Metadata from before `metadata_offset` are older."""

    is_cancelled: bool
    metadata_offset: int = NO_OFFSET


class CancelBalanceRequest(Request[CancelBalanceResponse], frozen=True, array_like=True):
    """Ends the balance that is under way; what its moves have not done goes back."""
