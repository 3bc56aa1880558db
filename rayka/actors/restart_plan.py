"""Which nodes a restart takes, in which order, and what is away meanwhile. Needs no Ray."""

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass

from rayka.actors.cluster_description import UNREACHABLE, ClusterDescription, NodeDescription
from rayka.errors import ConfigError, UnavailableError
from rayka.ids import Role, TopicPartition
from rayka.protocol.configs import MIN_ISR
from rayka.protocol.membership import MetadataPartition, MetadataTopic, NodeState


@dataclass(frozen=True, slots=True)
class RestartStep:
    """One node that is restarted. `below_min_isr` are the partitions that have fewer replicas in sync than their
    `min.insync.replicas` until the node is back: a write with acks=all is refused. `only_copies`, some of these, have
    none and cannot be read either. `is_only_voter`: topics cannot change until then.
    """

    node_id: int
    actor_name: str
    only_copies: tuple[TopicPartition, ...] = ()
    is_only_voter: bool = False
    below_min_isr: tuple[TopicPartition, ...] = ()


def plan_restart(
    description: ClusterDescription,
    topics: Sequence[MetadataTopic],
    node_ids: Collection[int],
    min_isr: int = 1,
) -> tuple[RestartStep, ...]:
    """The steps in their order: brokers, coordinators, controllers, and the active controller last, so that the
    leadership of the metadata moves once. Without ids all nodes. `min_isr` is that of topics without their own.

    Raises ConfigError for a node that the cluster does not have, UnavailableError when one that is not to be restarted
    does not run, or one that is has no process: a second node away could be one too many. So it is while Ray drains the
    machine of one, where moreover Ray makes nothing again.
    """
    nodes = {each.node_id: each for each in description.nodes}
    unknown = [each for each in node_ids if each not in nodes]
    if unknown:
        raise ConfigError(
            f"restart: cluster {description.name!r} has no node {', '.join(map(str, unknown))}; it has "
            f"{', '.join(map(str, nodes))}"
        )
    chosen = [nodes[each] for each in dict.fromkeys(node_ids)] or list(nodes.values())
    _refuse_while_others_are_away(description, chosen)
    voters = [each for each in nodes.values() if each.quorum_role in ("leader", "voter")]
    return tuple(
        RestartStep(
            node.node_id,
            node.actor_name,
            only_copies=tuple(_only_copies(topics, node.node_id)),
            is_only_voter=voters == [node],
            below_min_isr=tuple(below_min_isr(topics, node.node_id, min_isr)),
        )
        for node in sorted(chosen, key=lambda each: _rank(each, description.controller_id))
    )


def refuse_below_min_isr(steps: Iterable[RestartStep]) -> None:
    """Raises UnavailableError that names the nodes whose restart takes partitions below `min.insync.replicas`."""
    said = [
        f"while {each.actor_name} restarts, {len(each.below_min_isr):,} partitions, such as {each.below_min_isr[0]}, "
        "have fewer replicas in sync than min.insync.replicas and refuse writes"
        for each in steps
        if each.below_min_isr
    ]
    if said:
        raise UnavailableError(
            f"restart: {'; '.join(said)}; nothing was restarted; wait until all replicas are in sync (`rayka topic "
            "describe --under-replicated`), give the topics more replicas, or accept it with --force, force=True in "
            "Python"
        )


def below_min_isr(topics: Iterable[MetadataTopic], node_id: int, min_isr: int) -> list[TopicPartition]:
    """The partitions that would have too few replicas in sync without the node, which is one of those. A partition with
    fewer replicas than `min.insync.replicas` needs all of them (B1, B15).
    """
    return [
        TopicPartition(topic.name, each.partition)
        for topic in topics
        for each in topic.partitions
        if node_id in each.isr
        and len(each.isr) - 1 < min(int(topic.configs.get(MIN_ISR, min_isr)), len(each.replicas))
    ]


def replicas_in_sync(topics: Iterable[MetadataTopic], node_id: int) -> set[TopicPartition]:
    """The partitions that the node has an in-sync replica of."""
    return {tp for tp, partition in _partitions(topics) if node_id in partition.isr}


def replicas_behind(
    topics: Iterable[MetadataTopic], node_id: int, before: Collection[TopicPartition]
) -> list[TopicPartition]:
    """Those of `before` that the node still has a replica of which is not in sync."""
    return [
        tp
        for tp, partition in _partitions(topics)
        if tp in before and node_id in partition.replicas and node_id not in partition.isr
    ]


def _partitions(topics: Iterable[MetadataTopic]) -> Iterable[tuple[TopicPartition, MetadataPartition]]:
    return (
        (TopicPartition(topic.name, each.partition), each) for topic in topics for each in topic.partitions
    )


def _only_copies(topics: Iterable[MetadataTopic], node_id: int) -> list[TopicPartition]:
    return [tp for tp, partition in _partitions(topics) if tuple(partition.isr) == (node_id,)]


def _rank(node: NodeDescription, controller_id: int) -> tuple[int, int]:
    if node.node_id == controller_id:
        return 3, node.node_id
    if Role.CONTROLLER in node.roles:
        return 2, node.node_id
    return int(Role.BROKER not in node.roles), node.node_id


def _refuse_while_others_are_away(description: ClusterDescription, chosen: Sequence[NodeDescription]) -> None:
    away = [
        each
        for each in description.nodes
        if each.state == UNREACHABLE or (each not in chosen and each.state != NodeState.RUNNING)
    ]
    if away:
        states = ", ".join(f"{each.actor_name} is {each.state}" for each in away)
        raise UnavailableError(
            f"restart: expected that all other nodes of cluster {description.name!r} run, found that {states}; nothing "
            "was restarted; see `rayka status`"
        )
    drained = [each.actor_name for each in description.nodes if each.drained_until_ms >= 0]
    if drained:
        raise UnavailableError(
            f"restart: Ray drains the machine of {', '.join(drained)}; nothing was restarted; try again when it has "
            "gone and its nodes are back"
        )
