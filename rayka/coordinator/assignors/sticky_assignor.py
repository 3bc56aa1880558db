"""The sticky assignors: loads are as even as the subscriptions allow, and members keep partitions as far as that goes.

A claim of a newer generation beats an older one. Two claims of one generation cancel each other, and the partition is
assigned anew. The cooperative assignor computes the same assignment, and then holds back each partition that another
member may still read: that member gives the partition up first, and the next rebalance assigns it. If racks matter, a
partition also moves to a nearer reader, as long as the loads stay even. Kafka: `AbstractStickyAssignor`,
`StickyAssignor`, `CooperativeStickyAssignor`, KIP-54, KIP-429, KIP-881 (E9).

Unlike Kafka's, one algorithm serves equal and different subscriptions. The loads are the most even ones possible
(`even_loads.py`). A partition that is far from its reader stays there unless another member is nearer
(`near_loads.py`).
"""

from collections.abc import Iterable, Mapping, Sequence

from rayka.coordinator.assignors.assignor import (
    NO_RACKS,
    Assignment,
    RacksByTopic,
    Subscriber,
    is_rack_aware,
    partitions_of,
    ranked,
    subscribers_by_topic,
)
from rayka.coordinator.assignors.even_loads import EvenLoads, Pool
from rayka.coordinator.assignors.near_loads import NearLoads
from rayka.ids import TopicPartition


def assign_sticky(
    members: Iterable[Subscriber], partition_counts: Mapping[str, int], racks: RacksByTopic = NO_RACKS
) -> Assignment:
    """Assigns partitions by member id."""
    order = ranked(members)
    return _assign(order, partition_counts, racks, owners_of(order))


def assign_cooperative_sticky(
    members: Iterable[Subscriber], partition_counts: Mapping[str, int], racks: RacksByTopic = NO_RACKS
) -> Assignment:
    """Assigns partitions by member id, except those that another member claims to read."""
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
