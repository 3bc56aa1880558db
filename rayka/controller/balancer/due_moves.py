"""Whether a planned move may begin still: the plan of a balance or of healing is a while old by then."""

from typing import NamedTuple

from rayka.controller.balancer.balance_plan import Move
from rayka.errors import UnknownTopicOrPartition
from rayka.ids import TopicIdPartition
from rayka.metadata.image import MetadataImage, PartitionImage, named_partition


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
