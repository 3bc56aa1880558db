"""Where the replicas of a broker or coordinator go that is to be emptied. Pure."""

from collections.abc import Collection, Mapping, Sequence

from rayka.client.admin.admin_results import BrokerDescription, PartitionDescription, TopicDescription
from rayka.errors import BrokerIdNotRegistered, InvalidReplicationFactor
from rayka.ids import Role, TopicPartition, is_internal, role_of

Plan = dict[TopicPartition, tuple[int, ...]]
Homeless = dict[TopicPartition, tuple[int, Sequence[int]]]


def drain_plan(
    broker_id: int,
    brokers: Sequence[BrokerDescription],
    topics: Sequence[TopicDescription],
    cordoned: Collection[int] = (),
) -> Plan:
    """What `plan_moves` says, where every replica finds a place. Raises BrokerIdNotRegistered, and
    InvalidReplicationFactor naming the topics for which there are not enough brokers.
    """
    known = [each.node_id for each in brokers]
    if broker_id not in known:
        listed = ", ".join(map(str, known)) or "none"
        raise BrokerIdNotRegistered(f"there is no broker {broker_id}; the cluster has {listed}")
    plan, homeless = plan_moves(broker_id, brokers, topics, cordoned)
    if homeless:
        factors = {tp.topic: count for tp, (count, _) in homeless.items()}
        *_, (_, remaining) = homeless.values()
        named = ", ".join(f"{name} (replication factor {count})" for name, count in factors.items())
        raise InvalidReplicationFactor(
            f"without {role_of(broker_id)} {broker_id} {len(remaining)} active brokers remain ({_listed(remaining)}), "
            f"too few for topic {named}; add another broker first (one more in the spec, and `rayka start` again while "
            "the cluster runs), or reassign to fewer replicas with `rayka partition reassign`"
        )
    return plan


def plan_moves(
    broker_id: int,
    brokers: Sequence[BrokerDescription],
    topics: Sequence[TopicDescription],
    cordoned: Collection[int] = (),
) -> tuple[Plan, Homeless]:
    """New replicas of each partition that has one on the broker, another broker taking its place in the order; and the
    partitions for which there is none, each with its replication factor and the brokers that there are.

    Each goes to an active broker that is not cordoned and has none of the partition, in a rack that has none if there
    is one, with the fewest replicas by then. Users' partitions go to brokers only, internal ones to coordinators before
    brokers, and the coordinators among their replicas come first.
    """
    nodes = {each.node_id: each for each in brokers}
    counts = {
        each.node_id: each.replica_count
        for each in brokers
        if each.state == "active" and each.node_id != broker_id and each.node_id not in cordoned
    }
    plan: Plan = {}
    homeless: Homeless = {}
    for topic in topics:
        role = Role.COORDINATOR if is_internal(topic.name) else Role.BROKER
        preferred = [each.node_id for each in brokers if role in each.roles]
        able = [each for each in counts if each in preferred or role is Role.COORDINATOR]
        for partition in topic.partitions:
            target = _target(partition)
            if broker_id not in target:
                continue
            others = [each for each in target if each != broker_id]
            free = [nodes[each] for each in able if each not in others]
            taken = [nodes[each].rack for each in others if each in nodes]
            chosen = _successor(free, preferred, taken, counts)
            tp = TopicPartition(topic.name, partition.partition)
            if chosen is None:
                homeless[tp] = (len(target), able)
            else:
                counts[chosen] += 1
                replicas = [chosen if each == broker_id else each for each in target]
                if is_internal(topic.name):
                    replicas.sort(key=preferred.__contains__, reverse=True)
                plan[tp] = tuple(replicas)
    return plan, homeless


def _target(partition: PartitionDescription) -> tuple[int, ...]:
    """The replicas that it has, or will have when its reassignment is over."""
    return tuple(each for each in partition.replicas if each not in partition.removing_replicas)


def _successor(
    free: Sequence[BrokerDescription],
    preferred: Collection[int],
    taken: Collection[str],
    counts: Mapping[int, int],
) -> int | None:
    """A preferred one before others, in a rack that is not taken, with the fewest replicas."""

    def cost(node: BrokerDescription) -> tuple[bool, bool, int, int]:
        return node.node_id not in preferred, node.rack in taken, counts[node.node_id], node.node_id

    return min(map(cost, free))[-1] if free else None


def _listed(node_ids: Collection[int]) -> str:
    return ", ".join(str(each) for each in sorted(node_ids)) or "none"
