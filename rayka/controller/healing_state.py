"""Which brokers and directories have been gone for long, so that what they held is to be made anew: soft state.

A broker is away while it is fenced, a directory while it is offline; the clock of either runs from look to look and
ends with the unfencing, or with the process that tries the directory again. It counts no time in which the controller
itself stood still, and a new active controller begins all of them anew, because the metadata does not say since when
a broker is fenced. A broker that is fenced and sends heartbeats is not gone: it may recover its logs for long. Rayka's
own; the timeout is that of Redpanda's `partition_autobalancing_node_availability_timeout_sec`.
"""

from collections.abc import Callable, Iterator, Mapping
from enum import Enum, auto
from typing import NamedTuple
from uuid import UUID

from rayka.controller.decided_events import Decision, EventKind
from rayka.ids import node_name
from rayka.metadata.image import BrokerImage, PartitionImage

_Away = tuple[int, UUID | None]  # a broker, or one directory of it


class Gone(NamedTuple):
    """Brokers that are gone, and directories of brokers, each in the order of their ids."""

    broker_ids: tuple[int, ...] = ()
    directories: tuple[tuple[int, UUID], ...] = ()

    @property
    def is_anything(self) -> bool:
        return bool(self.broker_ids or self.directories)

    def holds(self, partition: PartitionImage, broker_id: int) -> bool:
        """Whether the broker's replica of the partition is gone."""
        home = (broker_id, partition.directory_of(broker_id))
        return broker_id in self.broker_ids or home in self.directories

    def lost_replicas(self, partition: PartitionImage) -> tuple[int, ...]:
        """Which of the replicas that the partition has, or will have, are gone."""
        return tuple(each for each in partition.target_replicas if self.holds(partition, each))

    def awaited_replicas(self, partition: PartitionImage) -> tuple[int, ...]:
        """The gone replicas without which the partition's reassignment cannot end: adding ones and, if the replica set
        shrinks, any that remains (B45).
        """
        adding, removing = partition.adding_replicas, partition.removing_replicas
        awaited = partition.target_replicas if len(removing) > len(adding) else adding
        return tuple(each for each in awaited if self.holds(partition, each))


class GoneBrokers:
    """The clocks. Invariant: each is of a broker or directory that was away at every look since it began."""

    def __init__(self) -> None:
        self._away_ms: dict[_Away, int] = {}
        self._looked_ms = 0

    def __repr__(self) -> str:
        return f"<GoneBrokers {[(broker_id, ms) for (broker_id, _), ms in self._away_ms.items()]}>"

    def on_active(self, now_ms: int) -> None:
        """A new active controller: every clock begins anew."""
        self._away_ms = {}
        self._looked_ms = now_ms

    def on_unfenced(self, broker_id: int) -> None:
        """The broker is back, for however short a time."""
        self._away_ms.pop((broker_id, None), None)

    def look(self, brokers: Mapping[int, BrokerImage], *, due_ms: int, now_ms: int) -> None:
        """Lets the clocks run until the look was due, ends those of what is back, and begins those of what is not."""
        elapsed_ms = max(0, min(due_ms, now_ms) - self._looked_ms)
        known, self._looked_ms = self._away_ms, now_ms
        self._away_ms = {
            away: known[away] + elapsed_ms if away in known else 0
            for broker in brokers.values()
            for away in _away(broker)
        }

    def gone(
        self,
        brokers: Mapping[int, BrokerImage],
        *,
        timeout_ms: int,
        is_alive: Callable[[BrokerImage], bool],
    ) -> Gone:
        """What has been away for so long; of the brokers, those that send no heartbeats."""
        long = [away for away, ms in self._away_ms.items() if ms >= timeout_ms and away[0] in brokers]
        return Gone(
            tuple(each for each, directory in long if directory is None and not is_alive(brokers[each])),
            tuple((each, directory) for each, directory in long if directory is not None),
        )


def _away(broker: BrokerImage) -> Iterator[_Away]:
    if broker.is_fenced:
        yield broker.broker_id, None
    for directory_id in broker.offline_directories:
        yield broker.broker_id, directory_id


# The events of healing: when it begins, when it ends, and when it stops before its end, each once.
#
# Soft state: a new active controller has events of what it begins itself.


class _Told(Enum):
    """The last event of what is gone now."""

    NOTHING = auto()
    BEGUN = auto()
    OVER = auto()


class HealStory:
    """See the module."""

    def __init__(self) -> None:
        self._gone = Gone()
        self._told = _Told.NOTHING

    def __repr__(self) -> str:
        return f"<HealStory {self._told.name} {self._gone}>"

    def on_gone(self, gone: Gone, brokers: Mapping[int, BrokerImage], *, is_enabled: bool) -> Decision | None:
        """What is gone now; healing stops where that is less than before, and ends where that was forgotten: only what
        holds no replica any more is.
        """
        if gone == self._gone:
            return None
        before, told = self._gone, self._told
        self._gone, self._told = gone, _Told.NOTHING
        less = Gone(
            tuple(each for each in before.broker_ids if each not in gone.broker_ids),
            tuple(each for each in before.directories if each not in gone.directories),
        )
        if told is not _Told.BEGUN or not less.is_anything:
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
        moves: int,
        healable: int,
        left: int,
        is_idle: bool,
        timeout_ms: int,
    ) -> Decision | None:
        """So many moves are planned, for so many partitions that can be healed; so many others are left alone.
        `is_idle`: no move waits or is under way.
        """
        names = _names(self._gone, brokers)
        alone = (
            f"; {left} without a leader, reassigned or cancelled by an operator are left alone"
            if left
            else ""
        )
        if moves and self._told is not _Told.BEGUN:
            self._told = _Told.BEGUN
            why = f"{names} has been gone for {timeout_ms / 1000:g} s; replicas of {_partitions(moves)} are made anew"
            return Decision(EventKind.HEAL_BEGUN, _subjects(self._gone), why + alone)
        if moves or not is_idle or self._told is _Told.OVER:
            return None
        if self._told is _Told.NOTHING and not (healable or left):
            return None
        is_whole = self._told is _Told.BEGUN and not healable
        self._told = _Told.OVER
        if is_whole:
            return self._ended(self._gone, brokers, alone)
        why = f"{names} is gone, and no broker may take the replicas of {_partitions(healable)}"
        return Decision(EventKind.HEAL_STOPPED, _subjects(self._gone), why + alone)

    def _ended(self, gone: Gone, brokers: Mapping[int, BrokerImage], alone: str = "") -> Decision:
        why = f"no replica is left to be made anew of what {_names(gone, brokers)} held"
        return Decision(EventKind.HEAL_ENDED, _subjects(gone), why + alone)


def _subjects(gone: Gone) -> tuple[str, ...]:
    ids = dict.fromkeys((*gone.broker_ids, *(broker_id for broker_id, _ in gone.directories)))
    return tuple(map(node_name, ids))


def _partitions(count: int) -> str:
    return f"{count:,} partition{'s' * (count != 1)}"


def _names(gone: Gone, brokers: Mapping[int, BrokerImage]) -> str:
    """`broker 2, /data/a of broker 3`."""
    paths = {
        (broker_id, directory.directory_id): directory.path
        for broker_id, broker in brokers.items()
        for directory in broker.directories
    }
    lost = (f"{paths.get(each, each[1])} of broker {each[0]}" for each in gone.directories)
    return ", ".join((*(f"broker {each}" for each in gone.broker_ids), *lost))
