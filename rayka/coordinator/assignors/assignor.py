"""The table of assignors, and what all of them share: members in their order, partitions by topic.

An assignor gives each partition of the topics that some member subscribes to, to exactly one member that subscribes to
its topic. The result depends on its arguments alone, so any member may be the leader. Topics that do not exist are left
out. `racks`, where they are known, says in which racks the replicas of each partition are. Kafka:
`ConsumerPartitionAssignor`, `AbstractPartitionAssignor` (E9).
"""

from collections.abc import Iterable, Mapping
from typing import NamedTuple, Protocol

from rayka.ids import TopicPartition
from rayka.protocol.groups import ConsumerSubscription

Assignment = dict[str, list[TopicPartition]]

# By partition: the racks of its replicas, each once and in order; none where the brokers name none.
PartitionRacks = tuple[tuple[str, ...], ...]
RacksByTopic = Mapping[str, PartitionRacks]
NO_RACKS: RacksByTopic = {}


class Subscriber(NamedTuple):
    """One member of the group as its leader sees it; `instance_id` is empty for a dynamic member."""

    member_id: str
    subscription: ConsumerSubscription
    instance_id: str = ""

    @property
    def rank(self) -> tuple[bool, str, str]:
        """Static members come first, by their instance: a restart under another member id changes nothing."""
        return not self.instance_id, self.instance_id, self.member_id


class AssignFunction(Protocol):
    """An assignor: the partitions of each member, by its id."""

    def __call__(
        self, members: Iterable[Subscriber], partition_counts: Mapping[str, int], racks: RacksByTopic = ...
    ) -> Assignment: ...


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


def is_rack_aware(member_racks: Iterable[str], topics: Iterable[PartitionRacks]) -> bool:
    """Whether it makes a difference which member reads which of these topics' partitions: members and replicas name
    racks, and not every rack has a replica of everything. A reader in a rack of its partition's replicas need not read
    from another one (KIP-392). Kafka: `AbstractPartitionAssignor.useRackAwareAssignment`, KIP-881 (E9).
    """
    named = {rack: None for rack in member_racks if rack}
    if not named:
        return False
    found = {frozenset(racks) for partitions in topics for racks in partitions}
    union = frozenset[str]().union(*found)
    return any(rack in union for rack in named) and found != {union}
