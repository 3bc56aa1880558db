"""A balance asked for: what should move so that all brokers have their share, and the first of it. Rayka's own."""

from rayka.ids import NO_OFFSET
from rayka.ports import Message, Request
from rayka.protocol.request_checks import require

MOVES_AT_ONCE_MAX = 100


class BalanceMove(Message, frozen=True, array_like=True, gc=False):
    """A partition's replicas, the preferred leader first, as they are and as they are to be; what is copied for that,
    and the goal that it is for.
    """

    topic: str
    partition: int
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
    them. `is_whole`: more would not improve it. Metadata from before `metadata_offset` are older.
    """

    moves: tuple[BalanceMove, ...]
    before: tuple[BalanceShare, ...]
    after: tuple[BalanceShare, ...]
    is_whole: bool
    begun_count: int = 0
    metadata_offset: int = NO_OFFSET


class BalanceRequest(Request[BalanceResponse], frozen=True, array_like=True):
    """Plans a balance and begins its first `moves` moves; with 0, none."""

    moves: int = 0


def check_balance(request: BalanceRequest) -> None:
    is_bounded = 0 <= request.moves <= MOVES_AT_ONCE_MAX
    require(is_bounded, "moves", f"0 to {MOVES_AT_ONCE_MAX}", request.moves)
