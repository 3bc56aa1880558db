"""The contract of an assignor, and the parts that all assignors share: members in their order, partitions by topic.

An assignor gives each partition of a subscribed topic to exactly one subscriber of the topic. The result depends on the
arguments alone, so any member may be the leader. Topics that do not exist are left out. Kafka:
`ConsumerPartitionAssignor`, `AbstractPartitionAssignor` (E9).
"""

from collections.abc import Iterable, Mapping
from typing import NamedTuple, Protocol

from rayka.ids import TopicPartition
from rayka.protocol.groups import ConsumerSubscription

Assignment = dict[str, list[TopicPartition]]

# The racks of the replicas by partition, each once and in order; empty if the brokers have no racks.
PartitionRacks = tuple[tuple[str, ...], ...]
RacksByTopic = Mapping[str, PartitionRacks]
NO_RACKS: RacksByTopic = {}


class Subscriber(NamedTuple):
    """A member of the group, as the leader sees it."""

    member_id: str
    subscription: ConsumerSubscription
    # Empty for a dynamic member.
    instance_id: str = ""

    @property
    def rank(self) -> tuple[bool, str, str]:
        """The sort key. Static members come first, by instance: a restart with another member id changes nothing."""
        return not self.instance_id, self.instance_id, self.member_id


class AssignFunction(Protocol):
    """An assignor. Returns partitions by member id; `racks` names the racks of replicas, where they are known."""

    def __call__(
        self, members: Iterable[Subscriber], partition_counts: Mapping[str, int], racks: RacksByTopic = ...
    ) -> Assignment: ...


def ranked(members: Iterable[Subscriber]) -> list[Subscriber]:
    """The members in the order in which they get partitions."""
    return sorted(members, key=lambda each: each.rank)


def subscribers_by_topic(
    members: Iterable[Subscriber], partition_counts: Mapping[str, int]
) -> dict[str, list[str]]:
    """The subscribers of each existing topic, in the order of the members; topics in the order of their names."""
    found: dict[str, list[str]] = {}
    for member in members:
        for topic in dict.fromkeys(member.subscription.topics):
            if partition_counts.get(topic, 0) > 0:
                found.setdefault(topic, []).append(member.member_id)
    return dict(sorted(found.items()))


def partitions_of(topic: str, count: int) -> list[TopicPartition]:
    return [TopicPartition(topic, number) for number in range(count)]


def is_rack_aware(member_racks: Iterable[str], topics: Iterable[PartitionRacks]) -> bool:
    """True if racks make a difference: members and replicas name racks, and not every rack has a replica of everything.

    A reader in a rack of its partition's replicas reads within the rack (KIP-392). Kafka:
    `AbstractPartitionAssignor.useRackAwareAssignment`, KIP-881 (E9).
    """
    named = {rack: None for rack in member_racks if rack}
    if not named:
        return False
    found = {frozenset(racks) for partitions in topics for racks in partitions}
    union = frozenset[str]().union(*found)
    return any(rack in union for rack in named) and found != {union}
