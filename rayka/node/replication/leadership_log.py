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
    won: list[str] = []
    lost: list[str] = []
    isrs: list[str] = []
    async for each, state in in_turns(changed):
        former = before.partition(each) if before is not None else None
        was_leader = former is not None and former.leader_id == broker_id
        name = f"{image.topics_by_id[each.topic_id].name}-{each.partition}"
        if state.leader_id != broker_id:
            if was_leader:
                successor = f"broker {state.leader_id}" if state.leader_id >= 0 else "no broker"
                lost.append(f"{name} ({successor} in epoch {state.leader_epoch})")
        elif not was_leader or former is None or former.leader_epoch != state.leader_epoch:
            won.append(f"{name} (epoch {state.leader_epoch}, ISR {_ids(state.isr)})")
        elif former.isr != state.isr:
            isrs.append(f"{name} {_ids(state.isr)}, was {_ids(former.isr)}")
    for what, partitions in (("leads", won), ("leads no more", lost), ("has other ISRs of", isrs)):
        others = len(partitions) - _NAMES_MAX
        rest = f"; and {others} more" if others > 0 else ""
        if partitions:
            _logger.info("broker %d %s %s%s", broker_id, what, "; ".join(partitions[:_NAMES_MAX]), rest)


def _ids(node_ids: Sequence[int]) -> str:
    return "[" + ",".join(map(str, node_ids)) + "]"
