"""The queue of the active controller's own moves: the waiting ones, and those under way.

A move gives a partition other replicas, or another order of the same replicas, by a reassignment as any other (B45).
Its cause is healing, a drain or a balance. Soft state: another active controller plans anew what waits.

Invariants: a partition has at most one move under way. A move under way is a reassignment that no other caller has
changed since the last look. No move begins while as many are under way as the configuration allows, unless it takes the
place of one of them. Moves of partitions without a leader do not count, because they copy nothing and may never end;
nor do those of an operator's drain, which the rate of one broker bounds (decision 078).
Rayka's own; Ray Serve's deployment scheduler is of this kind.
"""

from collections import deque
from collections.abc import Iterable
from enum import Enum, IntEnum, auto
from typing import NamedTuple, Self

from rayka.controller.placeable_directories import drain_of
from rayka.controller.planning.balance_plan import Goal, Move
from rayka.errors import UnknownTopicOrPartition
from rayka.ids import TopicIdPartition, TopicPartition
from rayka.metadata.image import MetadataImage, PartitionImage, named_partition
from rayka.protocol.drains import DrainCause


class MoveCause(IntEnum):
    """The cause of a move; moves of a smaller value begin first."""

    HEAL = 0
    DRAIN = 1
    BALANCE = 2


class MoveOutcome(Enum):
    """The end of a move."""

    # The partition has the new replicas.
    MOVED = auto()
    # Another caller took the reassignment back.
    CANCELLED = auto()
    # Another caller wants other replicas, or the partition was deleted.
    CHANGED = auto()
    # The log did not take the record of the move.
    LOST = auto()


class EndedMove(NamedTuple):
    """A move that is not under way any more."""

    key: TopicIdPartition
    move: Move
    cause: MoveCause
    outcome: MoveOutcome


class _Begun(NamedTuple):
    """A move under way."""

    move: Move
    cause: MoveCause
    # The replicas that a cancel goes back to.
    original: tuple[int, ...]
    # The epoch of the partition before the record of the move.
    partition_epoch: int
    # Whether the move counts against the bound.
    is_bounded: bool = True

    def outcome(self, partition: PartitionImage | None) -> MoveOutcome | None:
        """The end of the move; None while it is under way."""
        if partition is None:
            return MoveOutcome.CHANGED
        if partition.target_replicas == self.move.after:
            return None if partition.is_reassigned else MoveOutcome.MOVED
        if partition.is_reassigned or partition.replicas != self.original:
            return MoveOutcome.CHANGED
        is_later = partition.partition_epoch > self.partition_epoch
        return MoveOutcome.CANCELLED if is_later else MoveOutcome.LOST


class MoveQueue:
    """The moves of all causes."""

    def __init__(self) -> None:
        # The moves of each cause that have not begun, in the order in which they begin.
        self.waiting: dict[MoveCause, deque[Move]] = {each: deque() for each in MoveCause}
        self._under_way: dict[TopicIdPartition, _Begun] = {}
        # The bounded moves under way whose partition has no leader; a subset of `_under_way`.
        self._leaderless: dict[TopicIdPartition, None] = {}

    @classmethod
    def of_reassigned(cls, image: MetadataImage, reassigned: Iterable[TopicIdPartition]) -> Self:
        """The queue of a new active controller. Reassignments off a drained broker are the drain's; an operator's
        drain has no bound. The controller does not know which caller began the others: all of them count as
        healing's, so the bound holds over a change of controllers.
        """
        moves = cls()
        for key in reassigned:
            partition = image.partition(key)
            if partition is not None:
                name = TopicPartition(image.topics_by_id[key.topic_id].name, key.partition)
                original = partition.original_replicas
                move = Move(name, original, partition.target_replicas, 0, Goal.REPLACEMENT)
                epoch = partition.partition_epoch - 1
                drains = [drain for each in partition.removing_replicas if (drain := drain_of(image, each))]
                cause = MoveCause.DRAIN if drains else MoveCause.HEAL
                is_bounded = all(each.cause is not DrainCause.OPERATOR for each in drains)
                moves._under_way[key] = _Begun(move, cause, original, epoch, is_bounded)
        return moves

    def __repr__(self) -> str:
        waiting = {each.name: len(moves) for each, moves in self.waiting.items()}
        return f"<MoveQueue waiting={waiting} under_way={len(self._under_way)}>"

    @property
    def copying_count(self) -> int:
        """The number of moves under way that count."""
        return sum(each.is_bounded for each in self._under_way.values()) - len(self._leaderless)

    def is_idle(self, cause: MoveCause) -> bool:
        """Whether no move of the cause waits or is under way."""
        return not self.waiting[cause] and not self.under_way(cause)

    def under_way(self, cause: MoveCause) -> dict[TopicIdPartition, Move]:
        """The moves of the cause that have begun, in the order in which they began."""
        return {key: each.move for key, each in self._under_way.items() if each.cause is cause}

    def is_under_way(self, key: TopicIdPartition, cause: MoveCause) -> bool:
        begun = self._under_way.get(key)
        return begun is not None and begun.cause is cause

    def may_begin(self, key: TopicIdPartition, moves_max: int) -> bool:
        """Whether a move of the partition may begin where at most `moves_max` are under way."""
        return key in self._under_way or self.copying_count < moves_max

    def on_begun(self, due: "DueMove", cause: MoveCause, *, is_bounded: bool = True) -> None:
        """The record of the move is written. A move of another cause that was under way is replaced."""
        partition = due.partition
        epoch = partition.partition_epoch
        self._under_way[due.key] = _Begun(due.move, cause, partition.original_replicas, epoch, is_bounded)
        self._leaderless.pop(due.key, None)

    def settle(self, image: MetadataImage) -> list[EndedMove]:
        """Forgets the moves that have ended, were cancelled or were changed, and returns them."""
        ended: list[EndedMove] = []
        self._leaderless = {}
        for key, begun in list(self._under_way.items()):
            partition = image.partition(key)
            outcome = begun.outcome(partition)
            if outcome is not None:
                ended.append(EndedMove(key, begun.move, begun.cause, outcome))
                del self._under_way[key]
            elif begun.is_bounded and partition is not None and not partition.has_leader:
                self._leaderless[key] = None
        return ended

    def take_back(self, key: TopicIdPartition) -> None:
        """The move of the partition was cancelled by its own cause."""
        del self._under_way[key]
        self._leaderless.pop(key, None)

    def clear(self, cause: MoveCause) -> None:
        """Forgets the cause's waiting moves and those under way, which go on or were cancelled."""
        self.waiting[cause].clear()
        for key in self.under_way(cause):
            self.take_back(key)


class DueMove(NamedTuple):
    """A move that may begin now, and its partition."""

    key: TopicIdPartition
    move: Move
    partition: PartitionImage


def still_due(image: MetadataImage, move: Move) -> DueMove | None:
    """The move, if its partition has a leader and has the target replicas that the plan found, and the brokers that
    get a replica run.

    Whether the partition is reassigned is for the caller to check. Healing does so. A balance need not: no balance
    begins a move while another caller's reassignment is under way, and a plan has no partition twice.
    """
    try:
        key, partition = named_partition(image, move.topic_partition)
    except UnknownTopicOrPartition:
        return None
    added = [image.brokers.get(each) for each in move.after if each not in move.before]
    is_there = all(each is not None and each.is_active for each in added)
    is_same = partition.has_leader and partition.target_replicas == move.before
    return DueMove(key, move, partition) if is_there and is_same else None
