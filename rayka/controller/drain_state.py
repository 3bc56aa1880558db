"""Soft state of the active controller about drains; their marks are in the metadata.

A new active controller finds the marks and plans anew. It has forgotten which moves of a draining machine were
cancelled, so they may begin again; a cancelled move of an operator's drain ends the drain, which is in the metadata.
"""

from collections.abc import Iterable
from typing import NamedTuple

from rayka.controller.placeable_directories import Drain
from rayka.ids import TopicIdPartition

_PLAN_INTERVAL_MS = 1_000
# After a plan without a move: room, a leader or a report may be there since.
_UNPLANNED_INTERVAL_MS = 5_000


class Obstacle(NamedTuple):
    """Why replicas of a drained broker stay."""

    reason: str
    # Whether no time helps.
    is_stuck: bool


NO_OBSTACLE = Obstacle("", is_stuck=False)


class DrainState:
    """The drains that the last look found, and when their next plan is due."""

    def __init__(self) -> None:
        self._found: tuple[Drain, ...] = ()
        self._plan_due_ms = 0
        # Drains whose first plan has its event.
        self._recorded: dict[Drain, None] = {}
        # Moves that another caller has cancelled: each with the broker that it was to leave.
        self._declined: dict[tuple[int, TopicIdPartition], None] = {}
        self._obstacles: dict[int, Obstacle] = {}

    def __repr__(self) -> str:
        return f"<DrainState {[each.broker_id for each in self._found]}>"

    def look(self, found: Iterable[Drain], now_ms: int) -> bool:
        """Notes which drains there are. Returns whether they are others than at the last look; then a plan is due."""
        drains = tuple(found)
        if drains == self._found:
            return False
        self._found, self._plan_due_ms = drains, now_ms
        self._recorded = {each: None for each in self._recorded if each in drains}
        ids = {each.broker_id for each in drains}
        self._declined = {each: None for each in self._declined if each[0] in ids}
        self._obstacles = {each: value for each, value in self._obstacles.items() if each in ids}
        return True

    def is_plan_due(self, now_ms: int) -> bool:
        return now_ms >= self._plan_due_ms

    def on_planned(self, move_count: int, now_ms: int) -> None:
        self._plan_due_ms = now_ms + (_PLAN_INTERVAL_MS if move_count else _UNPLANNED_INTERVAL_MS)

    def is_first_plan(self, drain: Drain) -> bool:
        """Whether no plan of this drain had its event yet; from now on it has."""
        is_first = drain not in self._recorded
        self._recorded[drain] = None
        return is_first

    def decline(self, broker_id: int, key: TopicIdPartition) -> None:
        """Another caller has cancelled the move of the partition off the broker."""
        self._declined[broker_id, key] = None

    def is_declined(self, broker_id: int, key: TopicIdPartition) -> bool:
        return (broker_id, key) in self._declined

    def declined_brokers(self) -> list[int]:
        """The brokers of which a move was cancelled."""
        return list(dict.fromkeys(broker_id for broker_id, _ in self._declined))

    def set_obstacle(self, broker_id: int, obstacle: Obstacle) -> None:
        self._obstacles[broker_id] = obstacle

    def obstacle(self, broker_id: int) -> Obstacle:
        return self._obstacles.get(broker_id, NO_OBSTACLE)
