"""The table of assignors, and what all of them share: members in their order, partitions by topic.

An assignor gives each partition of the topics that some member subscribes to, to exactly one member that subscribes to
its topic. The result depends on its arguments alone, so any member may be the leader. Topics that do not exist are left
out. Kafka: `ConsumerPartitionAssignor`, `AbstractPartitionAssignor` (E9). Left out: placement by rack.
"""

from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple

from rayka.ids import TopicPartition
from rayka.protocol.consumer_protocol import ConsumerSubscription

Assignment = dict[str, list[TopicPartition]]


class Subscriber(NamedTuple):
    """One member of the group as its leader sees it; `instance_id` is empty for a dynamic member."""

    member_id: str
    subscription: ConsumerSubscription
    instance_id: str = ""

    @property
    def rank(self) -> tuple[bool, str, str]:
        """Static members come first, by their instance: a restart under another member id changes nothing."""
        return not self.instance_id, self.instance_id, self.member_id


AssignFunction = Callable[[Iterable[Subscriber], Mapping[str, int]], Assignment]


def ranked(members: Iterable[Subscriber]) -> list[Subscriber]:
    """The members in the order in which partitions are dealt out."""
    return sorted(members, key=lambda each: each.rank)


def subscribers_by_topic(
    members: Iterable[Subscriber], partition_counts: Mapping[str, int]
) -> dict[str, list[str]]:
    """The ids of the subscribers of each topic that exists, in the members' order; topics in the order of names."""
    found: dict[str, list[str]] = {}
    for member in members:
        for topic in dict.fromkeys(member.subscription.topics):
            if partition_counts.get(topic, 0) > 0:
                found.setdefault(topic, []).append(member.member_id)
    return dict(sorted(found.items()))


def partitions_of(topic: str, count: int) -> list[TopicPartition]:
    return [TopicPartition(topic, number) for number in range(count)]
