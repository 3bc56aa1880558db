"""The events of healing: when it begins, when it ends, and when it stops before its end, each once.

Soft state: a new active controller has events of what it begins itself.
"""

from collections.abc import Mapping
from enum import Enum, auto

from rayka.controller.balancer.gone_brokers import Gone
from rayka.controller.decided_events import Decision, EventKind
from rayka.ids import node_name
from rayka.metadata.image import BrokerImage


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
