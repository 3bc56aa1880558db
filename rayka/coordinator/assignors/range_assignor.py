"""Each topic on its own, in ranges: the first members get one partition more where the count does not divide evenly.

Topics with the same count and the same subscribers are aligned, so that partition n of one and of the other have the
same reader. Where racks matter, members first get partitions with a replica in their rack, no more than their share and
of aligned topics all or none; what is left is dealt out in ranges. Kafka: `RangeAssignor`, KIP-881 (E9).
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
    """The assignment, by member id."""
    order = ranked(members)
    rack_of = {each.member_id: each.subscription.rack for each in order}
    topics = {
        topic: _Topic(partition_counts[topic], subscribers, racks.get(topic, ()), rack_of)
        for topic, subscribers in subscribers_by_topic(order, partition_counts).items()
    }
    if any(each.is_rack_aware for each in topics.values()):
        _match_racks(topics.values())
    assignment: Assignment = {each.member_id: [] for each in order}
    for name, topic in topics.items():
        topic.assign()
        partitions = partitions_of(name, partition_counts[name])
        for member_id, numbers in topic.given.items():
            assignment[member_id] += [partitions[number] for number in sorted(numbers)]
    return assignment


class _Topic:
    """What of one topic each subscriber has been given, and what is free. No member gets more than its share."""

    def __init__(
        self, count: int, subscribers: Sequence[str], racks: PartitionRacks, rack_of: Mapping[str, str]
    ) -> None:
        self.count = count
        self.given: dict[str, list[int]] = {each: [] for each in subscribers}
        self.is_rack_aware = is_rack_aware((rack_of[each] for each in subscribers), (racks,))
        self._racks = racks
        self._rack_of = rack_of
        self._free = dict.fromkeys(range(count))
        self._least, self._more = divmod(count, len(subscribers))

    def assign(self, *, in_rack: bool = False) -> None:
        """Gives each member in turn what is free, up to its share; `in_rack`: only what has a replica in its rack."""
        for member_id in self.given:
            if self._free and (room := self.room(member_id)):
                free = (each for each in self._free if not in_rack or self.is_near(member_id, each))
                self.give(member_id, list(islice(free, room)))

    def give(self, member_id: str, numbers: Sequence[int]) -> None:
        """Gives the member partitions that are free, no more than it has room for."""
        given = self.given[member_id]
        given += numbers
        self._more -= len(given) > self._least
        for number in numbers:
            del self._free[number]

    def room(self, member_id: str) -> int:
        """How many partitions the member may still get."""
        return max(0, self._least + (self._more > 0) - len(self.given[member_id]))

    def is_near(self, member_id: str, number: int) -> bool:
        """Whether the partition has a replica in the member's rack; to a member without a rack all are near."""
        rack = self._rack_of[member_id]
        return not rack or (number < len(self._racks) and rack in self._racks[number])


def _match_racks(topics: Iterable[_Topic]) -> None:
    aligned: dict[tuple[int, tuple[str, ...]], list[_Topic]] = {}
    for topic in topics:
        aligned.setdefault((topic.count, tuple(topic.given)), []).append(topic)
    for group in aligned.values():
        if len(group) > 1:
            _match_aligned(group)
        elif group[0].is_rack_aware:
            group[0].assign(in_rack=True)


def _match_aligned(topics: Sequence[_Topic]) -> None:
    """Gives partition n of all these topics to the first member with room that is near to each of them."""
    first, open_members = topics[0], list(topics[0].given)
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


# All partitions, by topic and number, dealt out to the members in turn; a member that does not subscribe to a topic
# is passed over. Racks change nothing, as in Kafka: `RoundRobinAssignor` (E9).


def assign_round_robin(
    members: Iterable[Subscriber],
    partition_counts: Mapping[str, int],
    racks: RacksByTopic = NO_RACKS,
) -> Assignment:
    """The assignment, by member id."""
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
