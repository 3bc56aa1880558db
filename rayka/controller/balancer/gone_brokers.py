"""Which brokers and directories have been gone for long, so that what they held is to be made anew: soft state.

A broker is away while it is fenced, a directory while it is offline; the clock of either runs from look to look and
ends with the unfencing, or with the process that tries the directory again. It counts no time in which the controller
itself stood still, and a new active controller begins all of them anew, because the metadata does not say since when
a broker is fenced. A broker that is fenced and sends heartbeats is not gone: it may recover its logs for long. Rayka's
own; the timeout is that of Redpanda's `partition_autobalancing_node_availability_timeout_sec`.
"""

from collections.abc import Callable, Iterator, Mapping
from typing import NamedTuple
from uuid import UUID

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
