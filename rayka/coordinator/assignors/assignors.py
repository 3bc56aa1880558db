"""The four assignors by name, as a consumer's `partition_assignment_strategy` lists them (E9).

Kafka: `ConsumerPartitionAssignor` and its `RebalanceProtocol`, `RangeAssignor`, `RoundRobinAssignor`,
`AbstractStickyAssignor`, `StickyAssignor`, `CooperativeStickyAssignor`, KIP-54, KIP-429, KIP-881. Unlike Kafka's, one
sticky algorithm serves equal and different subscriptions. The loads are the most even ones possible (`even_loads.py`).
A partition that is far from its reader stays there unless another member is nearer (`near_loads.py`).
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice

from rayka.coordinator.assignors.even_loads import EvenLoads, Pool
from rayka.coordinator.assignors.near_loads import NearLoads
from rayka.coordinator.assignors.subscribers import (
    NO_RACKS,
    AssignFunction,
    Assignment,
    PartitionRacks,
    RacksByTopic,
    Subscriber,
    is_rack_aware,
    partitions_of,
    ranked,
    subscribers_by_topic,
)
from rayka.ids import TopicPartition

# ---- Range ---------------------------------------------------------------------------------------------------------


def assign_range(
    members: Iterable[Subscriber], partition_counts: Mapping[str, int], racks: RacksByTopic = NO_RACKS
) -> Assignment:
    """Assigns each topic by itself, in ranges. The first members get one partition more if the count does not divide
    evenly.

    Topics with the same count and the same subscribers are aligned: one member reads partition n of each. If racks
    matter, a first round gives members partitions with a replica in their rack, up to their share, and partitions of
    aligned topics together or not at all. A second round assigns the rest in ranges.
    """
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


# ---- Round robin ---------------------------------------------------------------------------------------------------


def assign_round_robin(
    members: Iterable[Subscriber],
    partition_counts: Mapping[str, int],
    racks: RacksByTopic = NO_RACKS,
) -> Assignment:
    """Assigns all partitions, by topic and number, to the members in turn. Skips members that do not subscribe to the
    topic. Racks change nothing, like in Kafka.
    """
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


# ---- Sticky --------------------------------------------------------------------------------------------------------


def assign_sticky(
    members: Iterable[Subscriber], partition_counts: Mapping[str, int], racks: RacksByTopic = NO_RACKS
) -> Assignment:
    """Assigns partitions so that loads are as even as the subscriptions allow, and members keep as many as possible.

    A claim of a newer generation beats an older one. Two claims of one generation cancel each other, and the partition
    is assigned anew. If racks matter, a partition also moves to a nearer reader, as long as the loads stay even.
    """
    order = ranked(members)
    return _assign(order, partition_counts, racks, owners_of(order))


def assign_cooperative_sticky(
    members: Iterable[Subscriber], partition_counts: Mapping[str, int], racks: RacksByTopic = NO_RACKS
) -> Assignment:
    """Makes the sticky assignment, and holds back each partition that another member may still read.

    That member gives the partition up first, and the next rebalance assigns it.
    """
    order = ranked(members)
    owners = owners_of(order)
    assignment = _assign(order, partition_counts, racks, owners, is_cooperative=True)
    claims: dict[TopicPartition, list[str]] = {}
    for member in order:
        for partition in dict.fromkeys(member.subscription.owned_partitions):
            claims.setdefault(partition, []).append(member.member_id)
    return {
        member_id: [
            each
            for each in partitions
            if owners.get(each) == member_id or claims.get(each, []) in ([], [member_id])
        ]
        for member_id, partitions in assignment.items()
    }


def owners_of(members: Sequence[Subscriber]) -> dict[TopicPartition, str]:
    """The owner of each claimed partition: the member with the only claim of the newest generation."""
    newest: dict[TopicPartition, tuple[int, str | None]] = {}
    for member in members:
        generation_id = member.subscription.generation_id
        for partition in dict.fromkeys(member.subscription.owned_partitions):
            known = newest.get(partition)
            if known is None or known[0] < generation_id:
                newest[partition] = (generation_id, member.member_id)
            elif known[0] == generation_id:
                newest[partition] = (generation_id, None)
    return {partition: owner for partition, (_, owner) in newest.items() if owner is not None}


def _assign(
    order: Sequence[Subscriber],
    partition_counts: Mapping[str, int],
    racks: RacksByTopic,
    owners: Mapping[TopicPartition, str],
    *,
    is_cooperative: bool = False,
) -> Assignment:
    index_of = {each.member_id: index for index, each in enumerate(order)}
    # Topics with the same subscribers are one pool, because their partitions weigh the same for the balance.
    topics_of_pools: dict[tuple[int, ...], list[str]] = {}
    for topic, subscribers in subscribers_by_topic(order, partition_counts).items():
        topics_of_pools.setdefault(tuple(index_of[each] for each in subscribers), []).append(topic)
    pools = [
        _pool(subscribers, topics, partition_counts, owners, index_of)
        for subscribers, topics in sorted(topics_of_pools.items(), key=lambda each: len(each[0]))
    ]
    topics = [topic for each in topics_of_pools.values() for topic in each]
    member_racks = [each.subscription.rack for each in order]
    if is_rack_aware(member_racks, [racks.get(each, ()) for each in topics]):
        loads: EvenLoads = NearLoads(member_racks, pools, racks, is_cooperative=is_cooperative)
    else:
        loads = EvenLoads(len(order), pools)
    loads.deal_out()
    loads.level()
    held = loads.held()
    return {each.member_id: held[index] for index, each in enumerate(order)}


def _pool(
    subscribers: tuple[int, ...],
    topics: Iterable[str],
    partition_counts: Mapping[str, int],
    owners: Mapping[TopicPartition, str],
    index_of: Mapping[str, int],
) -> Pool:
    pool = Pool({each: [] for each in subscribers})
    for topic in topics:
        for partition in partitions_of(topic, partition_counts[topic]):
            owner = index_of.get(owners.get(partition, ""), -1)
            pool.held.get(owner, pool.free).append(partition)
    return pool


# ---- Table ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Assignor:
    """An assignor with its name and protocol."""

    name: str
    assign: AssignFunction
    # Members keep reading during a rebalance, and give up only the partitions that another member gets.
    is_cooperative: bool = False


ASSIGNORS: dict[str, Assignor] = {
    each.name: each
    for each in (
        Assignor("range", assign_range),
        Assignor("roundrobin", assign_round_robin),
        Assignor("sticky", assign_sticky),
        Assignor("cooperative-sticky", assign_cooperative_sticky, is_cooperative=True),
    )
}
