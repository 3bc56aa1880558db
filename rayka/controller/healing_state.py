"""What the active controller remembers for healing: since when brokers and directories are away, when the next plan is
due, and which event was written last. All of it is soft state.

A broker is away while it is fenced, a directory while it is offline. The clock of either runs from look to look; it
ends with the unfencing, or with the process that tries the directory again. A clock counts no time in which the
controller itself stood still. A new active controller begins all clocks anew, because the metadata does not say since
when a broker is fenced. A broker that is fenced and sends heartbeats is not unavailable: recovery of its logs may take
long. Rayka's own; the timeout is that of Redpanda's `partition_autobalancing_node_availability_timeout_sec`.

A new active controller writes events of what it begins itself.
"""

from collections.abc import Callable, Iterator, Mapping
from enum import Enum, auto
from typing import NamedTuple
from uuid import UUID

from rayka.controller.decided_events import Decision, EventKind
from rayka.ids import TopicIdPartition, node_name
from rayka.metadata.image import BrokerImage, PartitionImage

REPLAN_INTERVAL_MS = 10_000
# After a plan without a move: a disk may have room since.
UNPLANNED_INTERVAL_MS = 60_000
# A broker, or one directory of it.
_Away = tuple[int, UUID | None]


class Unavailable(NamedTuple):
    """Brokers that have been away for `broker.unavailable.timeout.ms`, and directories, each in the order of ids."""

    broker_ids: tuple[int, ...] = ()
    directories: tuple[tuple[int, UUID], ...] = ()

    @property
    def is_anything(self) -> bool:
        return bool(self.broker_ids or self.directories)

    def holds(self, partition: PartitionImage, broker_id: int) -> bool:
        """Whether the broker's replica of the partition is unavailable."""
        home = (broker_id, partition.directory_of(broker_id))
        return broker_id in self.broker_ids or home in self.directories

    def lost_replicas(self, partition: PartitionImage) -> tuple[int, ...]:
        """The target replicas of the partition that are unavailable."""
        return tuple(each for each in partition.target_replicas if self.holds(partition, each))

    def awaited_replicas(self, partition: PartitionImage) -> tuple[int, ...]:
        """The unavailable replicas without which the partition's reassignment cannot end: adding ones and, if the
        replica set shrinks, any that remains (B45).
        """
        adding, removing = partition.adding_replicas, partition.removing_replicas
        awaited = partition.target_replicas if len(removing) > len(adding) else adding
        return tuple(each for each in awaited if self.holds(partition, each))


class AbsenceClocks:
    """Since when brokers and directories are away. Invariant: each clock is of a broker or directory that was away at
    every look since the clock began.
    """

    def __init__(self) -> None:
        self._away_ms: dict[_Away, int] = {}
        self._looked_ms = 0

    def __repr__(self) -> str:
        return f"<AbsenceClocks {[(broker_id, ms) for (broker_id, _), ms in self._away_ms.items()]}>"

    def on_active(self, now_ms: int) -> None:
        """A new active controller: every clock begins anew."""
        self._away_ms = {}
        self._looked_ms = now_ms

    def on_unfenced(self, broker_id: int) -> None:
        """The broker is back, for however short a time."""
        self._away_ms.pop((broker_id, None), None)

    def look(self, brokers: Mapping[int, BrokerImage], *, due_ms: int, now_ms: int) -> None:
        """Advances the clocks to the time of the look; ends those of returned brokers, begins those of missing ones."""
        elapsed_ms = max(0, min(due_ms, now_ms) - self._looked_ms)
        known, self._looked_ms = self._away_ms, now_ms
        self._away_ms = {
            away: known[away] + elapsed_ms if away in known else 0
            for broker in brokers.values()
            for away in _away(broker)
        }

    def unavailable(
        self,
        brokers: Mapping[int, BrokerImage],
        *,
        timeout_ms: int,
        is_alive: Callable[[BrokerImage], bool],
    ) -> Unavailable:
        """The brokers and directories missing for the timeout; a broker counts only if it sends no heartbeats."""
        long = [away for away, ms in self._away_ms.items() if ms >= timeout_ms and away[0] in brokers]
        return Unavailable(
            tuple(each for each, directory in long if directory is None and not is_alive(brokers[each])),
            tuple((each, directory) for each, directory in long if directory is not None),
        )


def _away(broker: BrokerImage) -> Iterator[_Away]:
    if broker.is_fenced:
        yield broker.broker_id, None
    for directory_id in broker.offline_directories:
        yield broker.broker_id, directory_id


class _Recorded(Enum):
    """The last event about the brokers and directories that are unavailable now."""

    NOTHING = auto()
    BEGUN = auto()
    OVER = auto()


class Healing:
    """The healing of what is unavailable now: its plan and its events.

    A partition whose move another caller has cancelled is declined until something else is unavailable. Healing begins,
    ends, and stops before its end with one event each.
    """

    def __init__(self) -> None:
        self._unavailable = Unavailable()
        self._declined: dict[TopicIdPartition, None] = {}
        self._planned_ms = 0
        self._plan_due_ms = 0
        self._recorded = _Recorded.NOTHING

    def __repr__(self) -> str:
        return f"<Healing {self._recorded.name} {self._unavailable}>"

    def decline(self, key: TopicIdPartition) -> None:
        """Another caller has cancelled the partition's move."""
        self._declined[key] = None

    def is_declined(self, key: TopicIdPartition) -> bool:
        return key in self._declined

    # ---- When a plan is due ------------------------------------------------------------------------------------------

    def is_news(self, unavailable: Unavailable) -> bool:
        """Whether something else is unavailable than at the last look."""
        return unavailable != self._unavailable

    def on_unfenced(self) -> None:
        """A broker has come, which may take replicas that found no place."""
        self._plan_due_ms = min(self._plan_due_ms, self._planned_ms + REPLAN_INTERVAL_MS)

    def is_plan_due(self, now_ms: int) -> bool:
        return now_ms >= self._plan_due_ms

    # ---- Events ------------------------------------------------------------------------------------------------------

    def on_unavailable(
        self, unavailable: Unavailable, brokers: Mapping[int, BrokerImage], now_ms: int, *, is_enabled: bool
    ) -> Decision | None:
        """Something else is unavailable: a new plan is due, and nothing is declined any more.

        Healing stops if less is unavailable than before. Healing ends if the controller forgot the brokers in question,
        because it forgets only brokers without replicas.
        """
        before, recorded = self._unavailable, self._recorded
        self._unavailable, self._recorded = unavailable, _Recorded.NOTHING
        self._declined.clear()
        self._plan_due_ms = now_ms
        less = Unavailable(
            tuple(each for each in before.broker_ids if each not in unavailable.broker_ids),
            tuple(each for each in before.directories if each not in unavailable.directories),
        )
        if recorded is not _Recorded.BEGUN or not less.is_anything:
            return None
        if not less.directories and not any(each in brokers for each in less.broker_ids):
            return self._ended(less, brokers)
        why = (
            f"{_names(less, brokers)} is not gone any more" if is_enabled else "self.healing.enable is false"
        )
        return Decision(EventKind.HEAL_STOPPED, _subjects(less), f"{why}; moves under way go on")

    def on_planned(
        self,
        brokers: Mapping[int, BrokerImage],
        *,
        now_ms: int,
        moves: int,
        healable: int,
        left: int,
        is_idle: bool,
        timeout_ms: int,
    ) -> Decision | None:
        """`moves` moves are planned for `healable` partitions; `left` others are left alone. `is_idle`: no move waits
        or is under way.
        """
        self._planned_ms = now_ms
        self._plan_due_ms = now_ms + (UNPLANNED_INTERVAL_MS if is_idle else REPLAN_INTERVAL_MS)
        names = _names(self._unavailable, brokers)
        alone = (
            f"; {left} without a leader, reassigned or cancelled by an operator are left alone"
            if left
            else ""
        )
        if moves and self._recorded is not _Recorded.BEGUN:
            self._recorded = _Recorded.BEGUN
            why = f"{names} has been gone for {timeout_ms / 1000:g} s; replicas of {_partitions(moves)} are made anew"
            return Decision(EventKind.HEAL_BEGUN, _subjects(self._unavailable), why + alone)
        if moves or not is_idle or self._recorded is _Recorded.OVER:
            return None
        if self._recorded is _Recorded.NOTHING and not (healable or left):
            return None
        is_whole = self._recorded is _Recorded.BEGUN and not healable
        self._recorded = _Recorded.OVER
        if is_whole:
            return self._ended(self._unavailable, brokers, alone)
        why = f"{names} is gone, and no broker may take the replicas of {_partitions(healable)}"
        return Decision(EventKind.HEAL_STOPPED, _subjects(self._unavailable), why + alone)

    def _ended(
        self, unavailable: Unavailable, brokers: Mapping[int, BrokerImage], alone: str = ""
    ) -> Decision:
        why = f"no replica is left to be made anew of what {_names(unavailable, brokers)} held"
        return Decision(EventKind.HEAL_ENDED, _subjects(unavailable), why + alone)


def _subjects(unavailable: Unavailable) -> tuple[str, ...]:
    ids = dict.fromkeys((*unavailable.broker_ids, *(broker_id for broker_id, _ in unavailable.directories)))
    return tuple(map(node_name, ids))


def _partitions(count: int) -> str:
    return f"{count:,} partition{'s' * (count != 1)}"


def _names(unavailable: Unavailable, brokers: Mapping[int, BrokerImage]) -> str:
    """`broker 2, /data/a of broker 3`."""
    paths = {
        (broker_id, directory.directory_id): directory.path
        for broker_id, broker in brokers.items()
        for directory in broker.directories
    }
    lost = (f"{paths.get(each, each[1])} of broker {each[0]}" for each in unavailable.directories)
    return ", ".join((*(f"broker {each}" for each in unavailable.broker_ids), *lost))
