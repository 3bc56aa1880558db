"""What a change of the metadata means for one broker, as lines of its log: partitions that it leads from now on or no
more, and the ISRs of those that it leads. One line for each kind of change, whatever the number of partitions.

Kafka: `state-change.log`, and "Shrinking ISR" of `Partition`.
"""

import logging
from collections.abc import Iterable, Sequence

from rayka.ids import TopicIdPartition
from rayka.metadata.image import MetadataImage, PartitionImage
from rayka.node.turns import in_turns

_NAMES_MAX = 10
_logger = logging.getLogger(__name__)


async def log_leadership(
    broker_id: int,
    changed: Iterable[tuple[TopicIdPartition, PartitionImage]],
    before: MetadataImage | None,
    image: MetadataImage,
) -> None:
    """Says what differs for this broker between two images, of the partitions that changed and are still there."""
    won, lost, isrs = _Partitions(image), _Partitions(image), _Partitions(image)
    async for each, state in in_turns(changed):
        former = before.partition(each) if before is not None else None
        was_leader = former is not None and former.leader_id == broker_id
        if state.leader_id != broker_id:
            if was_leader:
                successor = f"broker {state.leader_id}" if state.leader_id >= 0 else "no broker"
                lost.add(each, f" ({successor} in epoch {state.leader_epoch})")
        elif not was_leader or former is None or former.leader_epoch != state.leader_epoch:
            won.add(each, f" (epoch {state.leader_epoch}, ISR {_ids(state.isr)})")
        elif former.isr != state.isr:
            isrs.add(each, f" {_ids(state.isr)}, was {_ids(former.isr)}")
    won.log(broker_id, "leads")
    lost.log(broker_id, "leads no more")
    isrs.log(broker_id, "has other ISRs of")


class _Partitions:
    """Partitions of which one thing is to be said; the first ones by name."""

    def __init__(self, image: MetadataImage) -> None:
        self._image = image
        self._named: list[str] = []
        self._others_count = 0

    def add(self, partition: TopicIdPartition, what: str) -> None:
        if len(self._named) < _NAMES_MAX:
            name = self._image.topics_by_id[partition.topic_id].name
            self._named.append(f"{name}-{partition.partition}{what}")
        else:
            self._others_count += 1

    def log(self, broker_id: int, what: str) -> None:
        if self._named:
            rest = f"; and {self._others_count} more" if self._others_count else ""
            _logger.info("broker %d %s %s%s", broker_id, what, "; ".join(self._named), rest)


def _ids(node_ids: Sequence[int]) -> str:
    return "[" + ",".join(map(str, node_ids)) + "]"
