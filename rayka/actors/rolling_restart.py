"""Which nodes a restart takes, in which order, and what is away meanwhile. Needs no Ray."""

import time
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING

from rayka.actors import node_handles
from rayka.actors.cluster_actors import ANSWER_TIMEOUT_S, process_of, stop_nodes, wait_for
from rayka.actors.cluster_description import UNREACHABLE, ClusterDescription, NodeDescription
from rayka.actors.ray_network import RayNetwork
from rayka.client.admin.admin import Admin
from rayka.config.cluster_config import ClusterSpec
from rayka.errors import ConfigError, RaykaError, UnavailableError
from rayka.ids import NO_NODE, Role, TopicPartition
from rayka.protocol.configs import MIN_ISR
from rayka.protocol.membership import MetadataPartition, MetadataRequest, MetadataTopic, NodeState

if TYPE_CHECKING:
    from rayka.actors.shell import NodeProcess
    from rayka.cluster import Cluster


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


# Nodes restarted one after another while the cluster runs.
#
# Each is stopped under control (its partitions, groups and quorum leadership are handed over first), its process ends,
# its actor is made again where it was, by the spec that is in force, and the next has its turn when this one has caught
# up. Invariants: at most one node is away by our doing; no partition falls below `min.insync.replicas` by it that the
# plan does not name. The supervisor may make the actor before we do, which is the same to us: it goes by the same spec.
# Kafka leaves this to its operators; the order is theirs.


_POLL_S = 0.25
_LAG_MAX = 10  # a leader adds a record twice a second

OnRestarted = Callable[[RestartStep], object]


class RollingRestart:
    """The restart of some nodes of a cluster."""

    def __init__(self, cluster: "Cluster", timeout_s: float, spec: ClusterSpec | None = None) -> None:
        """`timeout_s` is how long each node may take to catch up; without a spec each has the one that it had."""
        self._cluster = cluster
        self._spec = spec
        self._network = cluster.network()
        self._timeout_s = timeout_s

    def __repr__(self) -> str:
        return f"<RollingRestart {self._cluster!r}>"

    def plan(self, node_ids: Collection[int]) -> tuple[RestartStep, ...]:
        """Raises as `plan_restart`, and UnavailableError while no controller is active."""
        description = self._cluster.describe()
        return plan_restart(
            description, self._topics(description.controller_id), node_ids, self._default_min_isr()
        )

    def execute(self, steps: Sequence[RestartStep], on_restarted: OnRestarted) -> None:
        """Restarts the nodes of the steps in their order. Raises UnavailableError, which names the node, what it lacks
        and the nodes that were left alone, when one has not caught up in time.
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
        """The topics as soon as the node may go: no partition would be below `min.insync.replicas` but those of the
        plan. On a busy machine no controller may lead for a moment.
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
        """What the node lacks in the end; empty when it has caught up."""
        name, node_id = self._cluster.name, step.node_id
        handle = node_handles.find(name, node_id)
        former = None if handle is None else process_of(handle)
        if former is None:
            raise UnavailableError(
                f"restart: {step.actor_name} does not say which process it is; see `rayka status`, and try again"
            )
        stop_nodes(name, {node_id: handle}, {node_id: former})
        deadline_s = time.monotonic() + self._timeout_s
        lacks = "it does not run"
        while lacks and time.monotonic() < deadline_s:
            time.sleep(_POLL_S)
            if _is_made_again(former, self._spec):
                lacks = self._what_lacks(node_id, in_sync)
        return lacks

    def _what_lacks(self, node_id: int, in_sync: Collection[TopicPartition]) -> str:
        try:
            description = self._cluster.describe()
            topics = self._topics(description.controller_id)
        except RaykaError as error:  # the quorum elects just now
            return str(error)
        node = next(each for each in description.nodes if each.node_id == node_id)
        if node.state != NodeState.RUNNING:
            return f"it is {node.state} {node.detail}".strip()
        if node.quorum_role and not 0 <= node.lag <= _LAG_MAX:
            return f"it is {node.lag} records of metadata behind"
        behind = replicas_behind(topics, node_id, in_sync)
        return f"{len(behind)} of its replicas are not in sync, such as {behind[0]}" if behind else ""

    def _default_min_isr(self) -> int:
        """Of topics without their own."""
        with Admin(cluster=self._cluster) as admin:
            return int(admin.describe_configs(broker="all")[MIN_ISR].value)

    def _topics(self, controller_id: int) -> tuple[MetadataTopic, ...]:
        """As the active controller has them: what another node knows may be of before the restart."""
        if controller_id == NO_NODE:
            raise UnavailableError(
                f"restart: cluster {self._cluster.name!r} has no active controller; see `rayka quorum status`"
            )
        return wait_for(partial(_ask_topics, self._network, controller_id), ANSWER_TIMEOUT_S)


async def _ask_topics(network: RayNetwork, controller_id: int) -> tuple[MetadataTopic, ...]:
    response = await network.call(controller_id, MetadataRequest(), int(ANSWER_TIMEOUT_S * 1000))
    return response.topics


def _named(steps: Sequence[RestartStep]) -> str:
    return ", ".join(each.actor_name for each in steps)


def _is_made_again(former: "NodeProcess", spec: ClusterSpec | None) -> bool:
    """Whether the actor is another process now; makes it where Ray has none of that name."""
    placement = replace(former.placement, spec=spec) if spec else former.placement
    process = process_of(node_handles.create(placement))
    return process is not None and process.pid != former.pid
