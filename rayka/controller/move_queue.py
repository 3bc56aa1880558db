"""The moves that the active controller makes by itself: those that wait, and those under way. Soft state.

Invariant: no move begins while as many are under way as the configuration allows, but in the place of one of them.
Those of partitions that no broker leads do not count: they copy nothing, and may never end. A new active controller
does not know which of the reassignments under way the one before it began, so all others count; what waited is planned
anew.
"""

from collections import deque
from collections.abc import Iterable
from typing import NamedTuple, Self

from rayka.controller.healing_state import Gone
from rayka.controller.planning.balance_plan import Move
from rayka.errors import UnknownTopicOrPartition
from rayka.ids import TopicIdPartition
from rayka.metadata.image import MetadataImage, PartitionImage, named_partition

REPLAN_INTERVAL_MS = 10_000
UNPLANNED_INTERVAL_MS = 60_000  # when no move was found: a disk may have room since


class _Begun(NamedTuple):
    """A move under way: the replicas that a cancel goes back to, those that its partition is to have, and the epoch
    that it had before.
    """

    original: tuple[int, ...]
    after: tuple[int, ...]
    partition_epoch: int

    def is_under_way(self, partition: PartitionImage) -> bool:
        return partition.is_reassigned and partition.target_replicas == self.after

    def is_cancelled(self, partition: PartitionImage) -> bool:
        """Without a later epoch the log did not take the record of the move."""
        is_restored = not partition.is_reassigned and partition.replicas == self.original
        return is_restored and partition.partition_epoch > self.partition_epoch


class PlannedMoves:
    """See the module. A partition whose move another caller has cancelled is declined, until something else is gone."""

    def __init__(self) -> None:
        self.waiting: deque[Move] = deque()
        self._under_way: dict[TopicIdPartition, _Begun] = {}
        self._leaderless: dict[TopicIdPartition, None] = {}  # those of them that no broker leads
        self._declined: dict[TopicIdPartition, None] = {}
        self._gone = Gone()
        self._planned_ms = 0
        self._plan_due_ms = 0

    @classmethod
    def of_reassigned(cls, image: MetadataImage, reassigned: Iterable[TopicIdPartition]) -> Self:
        """Of a new active controller: what is under way counts, whichever caller began it."""
        moves = cls()
        for key in reassigned:
            partition = image.partition(key)
            if partition is not None:
                moves._under_way[key] = _Begun(
                    partition.original_replicas, partition.target_replicas, partition.partition_epoch - 1
                )
        return moves

    def __repr__(self) -> str:
        return f"<PlannedMoves waiting={len(self.waiting)} under_way={len(self._under_way)}>"

    @property
    def is_idle(self) -> bool:
        return not self.waiting and not self._under_way

    @property
    def copying_count(self) -> int:
        """How many of those under way count."""
        return len(self._under_way) - len(self._leaderless)

    def settle(self, image: MetadataImage) -> None:
        """Forgets the moves that have ended, and those that another caller has cancelled or changed."""
        self._leaderless = {}
        for key, begun in list(self._under_way.items()):
            partition = image.partition(key)
            if partition is not None and begun.is_under_way(partition):
                if not partition.has_leader:
                    self._leaderless[key] = None
                continue
            del self._under_way[key]
            if partition is not None and begun.is_cancelled(partition):
                self._declined[key] = None

    def on_gone(self, gone: Gone, now_ms: int) -> None:
        """What is gone now; where that is not what it was, no old plan goes on, and a new one is due."""
        if gone != self._gone:
            self._gone = gone
            self.waiting.clear()
            self._declined.clear()
            self._plan_due_ms = now_ms

    def on_unfenced(self) -> None:
        """A broker has come, which may take what found no place."""
        self._plan_due_ms = min(self._plan_due_ms, self._planned_ms + REPLAN_INTERVAL_MS)

    def may_plan(self, now_ms: int) -> bool:
        return not self.waiting and now_ms >= self._plan_due_ms

    def on_planned(self, moves: Iterable[Move], now_ms: int) -> None:
        self.waiting.extend(moves)
        self._planned_ms = now_ms
        self._plan_due_ms = now_ms + (UNPLANNED_INTERVAL_MS if self.is_idle else REPLAN_INTERVAL_MS)

    def may_begin(self, key: TopicIdPartition, moves_max: int) -> bool:
        """Whether so many moves at most are under way then."""
        return key in self._under_way or self.copying_count < moves_max

    def on_begun(self, key: TopicIdPartition, move: Move, partition: PartitionImage) -> None:
        """The partition was that before."""
        self._under_way[key] = _Begun(partition.original_replicas, move.after, partition.partition_epoch)

    def is_declined(self, key: TopicIdPartition) -> bool:
        """Whether another caller has cancelled its move."""
        return key in self._declined


class DueMove(NamedTuple):
    """A move, and its partition."""

    key: TopicIdPartition
    move: Move
    partition: PartitionImage


def still_due(image: MetadataImage, move: Move) -> DueMove | None:
    """The move, if its partition has a leader and is to have the replicas that it had when the move was planned, and
    the brokers that it is to go to run.

    Whether it is reassigned meanwhile is for the caller to know. Healing asks. A balance need not: it begins nothing
    while a reassignment is under way that is not its own, and a plan has no partition twice.
    """
    try:
        key, partition = named_partition(image, move.topic_partition)
    except UnknownTopicOrPartition:
        return None
    added = [image.brokers.get(each) for each in move.after if each not in move.before]
    is_there = all(each is not None and each.is_active for each in added)
    is_same = partition.has_leader and partition.target_replicas == move.before
    return DueMove(key, move, partition) if is_there and is_same else None
