"""The range and the round robin assignor, which keep no state between rebalances (E9).

Range assigns each topic by itself, in ranges; the first members get one partition more if the count does not divide
evenly. Topics with the same count and the same subscribers are aligned: one member reads partition n of each. If racks
matter, a first round gives members partitions with a replica in their rack, up to their share, and partitions of
aligned topics together or not at all; a second round assigns the rest in ranges. Kafka: `RangeAssignor`, KIP-881.

Round robin assigns all partitions, by topic and number, to the members in turn. A member that does not subscribe to the
topic is skipped. Racks change nothing, like in Kafka: `RoundRobinAssignor`.
"""

from collections.abc import Iterable, Mapping, Sequence
from itertools import islice

from rayka.coordinator.assignors.assignor import (
    NO_RACKS,
    Assignment,
    PartitionRacks,
    RacksByTopic,
    Subscriber,
    is_rack_aware,
    partitions_of,
    ranked,
    subscribers_by_topic,
)


def assign_range(
    members: Iterable[Subscriber], partition_counts: Mapping[str, int], racks: RacksByTopic = NO_RACKS
) -> Assignment:
    """Assigns partitions by member id."""
    order = ranked(members)
    rack_of = {each.member_id: each.subscription.rack for each in order}
    topics = {
        topic: _Topic(partition_counts[topic], subscribers, racks.get(topic, ()), rack_of)
        for topic, subscribers in subscribers_by_topic(order, partition_counts).items()
    }
    if any(each.is_rack_aware for each in topics.values()):
        aligned: dict[tuple[int, tuple[str, ...]], list[_Topic]] = {}
        for topic in topics.values():
            aligned.setdefault((topic.count, tuple(topic.assigned)), []).append(topic)
        for group in aligned.values():
            if len(group) > 1:
                _match_aligned(group)
            elif group[0].is_rack_aware:
                group[0].assign(in_rack=True)
    assignment: Assignment = {each.member_id: [] for each in order}
    for name, topic in topics.items():
        topic.assign()
        partitions = partitions_of(name, partition_counts[name])
        for member_id, numbers in topic.assigned.items():
            assignment[member_id] += [partitions[number] for number in sorted(numbers)]
    return assignment


class _Topic:
    """The assigned and the free partitions of one topic. No member gets more than its share."""

    def __init__(
        self, count: int, subscribers: Sequence[str], racks: PartitionRacks, rack_of: Mapping[str, str]
    ) -> None:
        self.count = count
        self.assigned: dict[str, list[int]] = {each: [] for each in subscribers}
        self.is_rack_aware = is_rack_aware((rack_of[each] for each in subscribers), (racks,))
        self._racks = racks
        self._rack_of = rack_of
        self._free = dict.fromkeys(range(count))
        # Each member gets `_least` partitions; `_more` members may still get one more.
        self._least, self._more = divmod(count, len(subscribers))

    def assign(self, *, in_rack: bool = False) -> None:
        """Gives free partitions to each member in turn, up to its share; `in_rack`: only those with a replica in its
        rack.
        """
        for member_id in self.assigned:
            if self._free and (room := self.room(member_id)):
                free = (each for each in self._free if not in_rack or self.is_near(member_id, each))
                self.give(member_id, list(islice(free, room)))

    def give(self, member_id: str, numbers: Sequence[int]) -> None:
        """Gives free partitions to a member, no more than its room."""
        assigned = self.assigned[member_id]
        assigned += numbers
        self._more -= len(assigned) > self._least
        for number in numbers:
            del self._free[number]

    def room(self, member_id: str) -> int:
        """The number of partitions that the member may still get."""
        return max(0, self._least + (self._more > 0) - len(self.assigned[member_id]))

    def is_near(self, member_id: str, number: int) -> bool:
        """True if the partition has a replica in the member's rack, or the member has no rack."""
        rack = self._rack_of[member_id]
        return not rack or (number < len(self._racks) and rack in self._racks[number])


def _match_aligned(topics: Sequence[_Topic]) -> None:
    """Gives partition n of all aligned topics to the first member that has room and is near to each of them."""
    first, open_members = topics[0], list(topics[0].assigned)
    for number in range(first.count):
        near = (
            each
            for each in open_members
            if first.room(each) and all(topic.is_near(each, number) for topic in topics)
        )
        if (member_id := next(near, None)) is not None:
            for topic in topics:
                topic.give(member_id, (number,))
            if not first.room(member_id):
                open_members.remove(member_id)


def assign_round_robin(
    members: Iterable[Subscriber],
    partition_counts: Mapping[str, int],
    racks: RacksByTopic = NO_RACKS,
) -> Assignment:
    """Assigns partitions by member id."""
    order = ranked(members)
    assignment: Assignment = {each.member_id: [] for each in order}
    topics = {each.member_id: frozenset(each.subscription.topics) for each in order}
    turn = 0
    for topic in subscribers_by_topic(order, partition_counts):
        for partition in partitions_of(topic, partition_counts[topic]):
            while topic not in topics[order[turn].member_id]:
                turn = (turn + 1) % len(order)
            assignment[order[turn].member_id].append(partition)
            turn = (turn + 1) % len(order)
    return assignment
