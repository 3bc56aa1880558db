"""Where the replicas of a broker go that is to be emptied. Pure."""

from collections.abc import Mapping, Sequence

from rayka.client.admin.admin_results import BrokerDescription, PartitionDescription, TopicDescription
from rayka.errors import BrokerIdNotRegistered, InvalidReplicationFactor
from rayka.ids import TopicPartition

Plan = dict[TopicPartition, tuple[int, ...]]


def drain_plan(
    broker_id: int, brokers: Sequence[BrokerDescription], topics: Sequence[TopicDescription]
) -> Plan:
    """New replicas of each partition that has one on the broker: another broker takes its place in the order.

    Each goes to an active broker that has none of the partition, in a rack that has none if there is one, with the
    fewest replicas by then. Raises BrokerIdNotRegistered, and InvalidReplicationFactor naming the topics for which
    there are not enough brokers.
    """
    known = [each.node_id for each in brokers]
    if broker_id not in known:
        listed = ", ".join(map(str, known)) or "none"
        raise BrokerIdNotRegistered(f"there is no broker {broker_id}; the cluster has {listed}")
    racks = {each.node_id: each.rack for each in brokers}
    counts = {
        each.node_id: each.replica_count
        for each in brokers
        if each.state == "active" and each.node_id != broker_id
    }
    plan: Plan = {}
    homeless: dict[str, int] = {}
    for topic in topics:
        for partition in topic.partitions:
            target = _target(partition)
            if broker_id not in target:
                continue
            others = [each for each in target if each != broker_id]
            chosen = _successor(others, counts, racks)
            if chosen is None:
                homeless[topic.name] = len(target)
            else:
                counts[chosen] += 1
                plan[TopicPartition(topic.name, partition.partition)] = tuple(
                    chosen if each == broker_id else each for each in target
                )
    if homeless:
        named = ", ".join(f"{name} (replication factor {count})" for name, count in homeless.items())
        raise InvalidReplicationFactor(
            f"without broker {broker_id} {len(counts)} active brokers remain ({_listed(counts)}), too few for topic "
            f"{named}; add another broker first (one more in the spec, and `rayka start` again while the cluster "
            "runs), or reassign to fewer replicas with `rayka partition reassign`"
        )
    return plan


def _target(partition: PartitionDescription) -> tuple[int, ...]:
    """The replicas that it has, or will have when its reassignment is over."""
    return tuple(each for each in partition.replicas if each not in partition.removing_replicas)


def _successor(others: Sequence[int], counts: Mapping[int, int], racks: Mapping[int, str]) -> int | None:
    taken = [racks.get(each, "") for each in others]
    free = [each for each in counts if each not in others]
    return min(free, key=lambda each: (racks[each] in taken, counts[each], each), default=None)


def _listed(counts: Mapping[int, int]) -> str:
    return ", ".join(str(each) for each in sorted(counts)) or "none"
