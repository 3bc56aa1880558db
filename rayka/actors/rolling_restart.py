"""The restart of nodes one after another while the cluster runs: which nodes, in which order, and what is unavailable.

For each node:
1. It is stopped under control: its partitions, groups and quorum leadership are handed over first.
2. Its process ends, and its actor is made again on the same Ray node, by the spec in force. The supervisor may make the
   actor first, by the same spec.
3. The next node is restarted when this one has caught up.

Invariants: at most one node is away because of the restart. No partition falls below `min.insync.replicas` because of
it, unless the plan names the partition. Kafka leaves this to its operators; the order is theirs.
"""

import time
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from rayka.actors import node_handles
from rayka.actors.cluster_actors import ANSWER_TIMEOUT_S, process_of, stop_nodes, wait_for
from rayka.actors.cluster_description import UNREACHABLE, ClusterDescription, NodeDescription
from rayka.client.admin.admin import Admin
from rayka.config.cluster_config import ClusterSpec
from rayka.errors import ConfigError, RaykaError, UnavailableError
from rayka.ids import NO_NODE, Role, TopicPartition
from rayka.protocol.configs import MIN_ISR
from rayka.protocol.membership import MetadataPartition, MetadataRequest, MetadataTopic, NodeState

if TYPE_CHECKING:
    from rayka.cluster import Cluster


def below_min_isr(topics: Iterable[MetadataTopic], node_id: int, min_isr: int) -> list[TopicPartition]:
    """Returns the partitions that would have too few replicas in sync without the node, which holds one of those in
    sync. A partition with fewer replicas than `min.insync.replicas` needs all of them (B1, B15).
    """
    return [
        TopicPartition(topic.name, each.partition)
        for topic in topics
        for each in topic.partitions
        if node_id in each.isr
        and len(each.isr) - 1 < min(int(topic.configs.get(MIN_ISR, min_isr)), len(each.replicas))
    ]


_POLL_S = 0.25
# A leader adds a record twice a second.
_LAG_MAX = 10


@dataclass(frozen=True, slots=True)
class RestartStep:
    """The restart of one node, and what is unavailable until the node is back."""

    node_id: int
    actor_name: str
    # The partitions of `below_min_isr` without any replica in sync: they cannot be read either.
    only_copies: tuple[TopicPartition, ...] = ()
    # Whether topics cannot change until the node is back.
    is_only_voter: bool = False
    # The partitions with fewer replicas in sync than their `min.insync.replicas`: writes with acks=all are refused.
    below_min_isr: tuple[TopicPartition, ...] = ()


OnRestarted = Callable[[RestartStep], object]


def plan_restart(
    description: ClusterDescription,
    topics: Sequence[MetadataTopic],
    node_ids: Collection[int],
    min_isr: int = 1,
) -> tuple[RestartStep, ...]:
    """Returns the steps in their order: brokers, coordinators, controllers, and the active controller last, so that the
    leadership of the metadata moves once. Without ids, restarts all nodes. `min_isr` counts for topics without their
    own.

    Raises ConfigError for a node that the cluster does not have. Raises UnavailableError if another node does not run,
    or a node to be restarted has no process: a second node away could be one too many. Raises it as well while Ray
    drains the machine of a node: Ray makes no actor there again.
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
            only_copies=tuple(tp for tp, each in _partitions(topics) if tuple(each.isr) == (node.node_id,)),
            is_only_voter=voters == [node],
            below_min_isr=tuple(below_min_isr(topics, node.node_id, min_isr)),
        )
        for node in sorted(chosen, key=lambda each: _restart_order(each, description.controller_id))
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


def replicas_in_sync(topics: Iterable[MetadataTopic], node_id: int) -> set[TopicPartition]:
    """Returns the partitions of which the node has an in-sync replica."""
    return {tp for tp, partition in _partitions(topics) if node_id in partition.isr}


def replicas_behind(
    topics: Iterable[MetadataTopic], node_id: int, before: Collection[TopicPartition]
) -> list[TopicPartition]:
    """Returns the partitions of `before` of which the node still has a replica, which is not in sync."""
    return [
        tp
        for tp, partition in _partitions(topics)
        if tp in before and node_id in partition.replicas and node_id not in partition.isr
    ]


def _partitions(topics: Iterable[MetadataTopic]) -> Iterable[tuple[TopicPartition, MetadataPartition]]:
    return (
        (TopicPartition(topic.name, each.partition), each) for topic in topics for each in topic.partitions
    )


def _restart_order(node: NodeDescription, controller_id: int) -> tuple[int, int]:
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


class RollingRestart:
    """The restart of some nodes of a cluster."""

    def __init__(self, cluster: "Cluster", timeout_s: float, spec: ClusterSpec | None = None) -> None:
        """`timeout_s` is how long each node may take to catch up. With `spec`, nodes are made from it; else from their
        former one.
        """
        self._cluster = cluster
        self._spec = spec
        self._network = cluster.network()
        self._timeout_s = timeout_s

    def plan(self, node_ids: Collection[int]) -> tuple[RestartStep, ...]:
        """Plans the restart. Raises the errors of `plan_restart`, and UnavailableError while no controller is
        active.
        """
        description = self._cluster.describe()
        return plan_restart(
            description, self._topics(description.controller_id), node_ids, self._default_min_isr()
        )

    def execute(self, steps: Sequence[RestartStep], on_restarted: OnRestarted) -> None:
        """Restarts the nodes of the steps in their order. Raises UnavailableError when a node has not caught up in
        time. The error names the node, its problem and the nodes that were not restarted.
        """
        min_isr = self._default_min_isr()
        for number, step in enumerate(steps):
            topics = self._await_turn(step, steps[number:], min_isr)
            lacks = self._restart(step, replicas_in_sync(topics, step.node_id))
            if lacks:
                left = steps[number + 1 :]
                raise UnavailableError(
                    f"restart: {step.actor_name} was restarted, but after {self._timeout_s:g} s {lacks}; "
                    f"{f'left as they are: {_named(left)}; ' if left else ''}see `rayka logs {step.node_id}`, then "
                    "restart what is left"
                )
            on_restarted(step)

    def _await_turn(
        self, step: RestartStep, left: Sequence[RestartStep], min_isr: int
    ) -> tuple[MetadataTopic, ...]:
        """Waits until the node may stop, and returns the topics: only partitions of the plan would be below
        `min.insync.replicas`. On a busy machine no controller may lead for a moment.
        """
        deadline_s = time.monotonic() + max(self._timeout_s, ANSWER_TIMEOUT_S)
        while True:
            try:
                topics = self._topics(self._cluster.describe().controller_id)
            except UnavailableError as error:
                reason = str(error)
            else:
                below = below_min_isr(topics, step.node_id, min_isr)
                worse = [each for each in below if each not in step.below_min_isr]
                if not worse:
                    return topics
                reason = (
                    f"restart: without {step.actor_name}, {len(worse)} partitions, such as {worse[0]}, would have "
                    "fewer replicas in sync than min.insync.replicas; see `rayka topic describe --under-replicated`"
                )
            if time.monotonic() >= deadline_s:
                raise UnavailableError(f"{reason}; left as they are: {_named(left)}; restart them later")
            time.sleep(_POLL_S)

    def _restart(self, step: RestartStep, in_sync: Collection[TopicPartition]) -> str:
        """Restarts the node. Returns its problem at the end of the time; empty if it has caught up."""
        name, node_id = self._cluster.name, step.node_id
        handle = node_handles.find(name, node_id)
        former = None if handle is None else process_of(handle)
        if former is None:
            raise UnavailableError(
                f"restart: {step.actor_name} does not say which process it is; see `rayka status`, and try again"
            )
        stop_nodes(name, {node_id: handle}, {node_id: former})
        deadline_s = time.monotonic() + self._timeout_s
        placement = replace(former.placement, spec=self._spec) if self._spec else former.placement
        lacks = "it does not run"
        while lacks and time.monotonic() < deadline_s:
            time.sleep(_POLL_S)
            # Makes the actor if Ray has none of that name.
            process = process_of(node_handles.create(placement))
            if process is not None and process.pid != former.pid:
                lacks = self._what_lacks(node_id, in_sync)
        return lacks

    def _what_lacks(self, node_id: int, in_sync: Collection[TopicPartition]) -> str:
        try:
            description = self._cluster.describe()
            topics = self._topics(description.controller_id)
        except RaykaError as error:
            # The quorum may be electing just now.
            return str(error)
        node = next(each for each in description.nodes if each.node_id == node_id)
        if node.state != NodeState.RUNNING:
            return f"it is {node.state} {node.detail}".strip()
        if node.quorum_role and not 0 <= node.lag <= _LAG_MAX:
            return f"it is {node.lag} records of metadata behind"
        behind = replicas_behind(topics, node_id, in_sync)
        return f"{len(behind)} of its replicas are not in sync, such as {behind[0]}" if behind else ""

    def _default_min_isr(self) -> int:
        """Returns the `min.insync.replicas` of topics without their own."""
        with Admin(cluster=self._cluster) as admin:
            return int(admin.describe_configs(broker="all")[MIN_ISR].value)

    def _topics(self, controller_id: int) -> tuple[MetadataTopic, ...]:
        """Returns the topics as the active controller has them: another node may know the state before the restart."""
        if controller_id == NO_NODE:
            raise UnavailableError(
                f"restart: cluster {self._cluster.name!r} has no active controller; see `rayka quorum status`"
            )

        async def ask() -> tuple[MetadataTopic, ...]:
            timeout_ms = int(ANSWER_TIMEOUT_S * 1000)
            return (await self._network.call(controller_id, MetadataRequest(), timeout_ms)).topics

        return wait_for(ask, ANSWER_TIMEOUT_S)


def _named(steps: Sequence[RestartStep]) -> str:
    return ", ".join(each.actor_name for each in steps)
