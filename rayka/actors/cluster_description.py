"""A cluster as it is now, asked of its nodes: what `Cluster.describe` returns and `Cluster.start` waits for."""

import asyncio
from collections.abc import Collection, Coroutine
from dataclasses import dataclass, fields, replace
from typing import Any, TypeVar

from rayka.actors import supervisor_handle
from rayka.actors.names import NAMESPACE, actor_name, node_directories
from rayka.actors.ray_network import RayNetwork
from rayka.actors.ray_records import LastPlace, last_places
from rayka.actors.scaling.planner import ScalingStatus
from rayka.client.admin.admin_quorum import ask_quorum
from rayka.client.admin.admin_results import BrokerDescription, QuorumInfo
from rayka.config.cluster_config import ClusterSpec
from rayka.errors import ApiError, UnavailableError
from rayka.ids import NO_EPOCH, NO_NODE, ZERO_ID, Role, role_of
from rayka.protocol.membership import MetadataRequest, MetadataResponse, NodeState, StatusRequest

UNREACHABLE, DEGRADED = "unreachable", "degraded"
LEADER, VOTER, OBSERVER = "leader", "voter", "observer"
_TIMEOUT_MS = 2_000
AnswerT = TypeVar("AnswerT")


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeDescription:
    """One node as it is now. `state` is a NodeState; or `degraded` for a broker that serves, but not with all its
    directories; or `unreachable` when the node does not answer: Ray may be restarting it, and `pid` is None.

    `detail` says why a node is failed, or why the supervisor cannot bring it back; `partition_count` and `size_bytes`
    are of the partitions on its disks, and `offline_data_dirs` and `full_data_dirs` those of its directories that have
    failed or have no room. `log_path` is a file on its machine. Of a node that is unreachable, `host` and `data_dirs`
    are where it was, and `gone_since_ms` is the wall clock when Ray noticed that its machine or process had gone, 0
    where that is not known. `drained_until_ms`: Ray drains its machine, which goes at that wall clock, 0 where Ray does
    not say when; -1: it stays.

    Of a controller `quorum_role` is leader, voter or observer, and `lag` how many records of metadata it is behind the
    leader; empty and -1 while there is no leader that knows.
    """

    node_id: int
    roles: tuple[Role, ...]
    actor_name: str
    state: str
    pid: int | None = None
    host: str = ""
    data_dirs: tuple[str, ...] = ()
    partition_count: int = 0
    size_bytes: int = 0
    detail: str = ""
    quorum_role: str = ""
    lag: int = -1
    rack: str = ""
    offline_data_dirs: tuple[str, ...] = ()
    full_data_dirs: tuple[str, ...] = ()
    gone_since_ms: int = 0
    drained_until_ms: int = -1
    log_path: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterDescription:
    """A cluster as it is now; the counts are 0 and the id empty while no node knows them.

    `controller_id` is the active controller, the leader of the metadata in `leader_epoch`; both are -1 while there is
    none. `scaling`: how many brokers there should be, where they come and go by the load; `coordinator_scaling`: the
    same of coordinators.
    """

    name: str
    cluster_id: str
    ray_address: str
    namespace: str
    controller_id: int
    leader_epoch: int
    topic_count: int
    partition_count: int
    nodes: tuple[NodeDescription, ...]
    scaling: ScalingStatus | None = None
    coordinator_scaling: ScalingStatus | None = None

    @property
    def is_running(self) -> bool:
        """Whether every node is up and serves, and a controller is active."""
        return self.controller_id != NO_NODE and all(node.state == NodeState.RUNNING for node in self.nodes)


async def describe(network: RayNetwork, ray_address: str, node_ids: Collection[int]) -> ClusterDescription:
    """The nodes and what is in the cluster; one that does not answer within 2 s, or that is in the spec, a voter or a
    registered broker but has no actor, is `unreachable`.

    Takes about 4 s at most, whatever is lost: all nodes are asked at the same time, and answers that come later are
    left out.
    """
    nodes, spec, report = await asyncio.gather(
        describe_nodes(network, node_ids),
        _kept_spec(network.cluster_name),
        supervisor_handle.report(network.cluster_name, _TIMEOUT_MS / 1000),
    )
    metadata, quorum = await ask_cluster(network, nodes)
    members = set(spec.roles) if spec else set[int]()
    members |= {each.node_id for each in metadata.brokers} if metadata else set()
    members |= {each.node_id for each in quorum.voters} if quorum else set()
    gone = [_without_actor(network.cluster_name, each) for each in members.difference(node_ids)]
    nodes = tuple(sorted((*nodes, *gone), key=lambda each: each.node_id))
    nodes = await _with_last_places(nodes, spec)
    nodes = tuple(_with_problem(each, report.problems.get(each.node_id)) for each in nodes)
    nodes = tuple(replace(each, drained_until_ms=report.draining.get(each.node_id, -1)) for each in nodes)
    if metadata is not None:
        brokers = {each.node_id: BrokerDescription.of(each, ()) for each in metadata.brokers}
        nodes = tuple(_with_registration(each, brokers.get(each.node_id)) for each in nodes)
    if quorum is not None:
        nodes = tuple(_with_role(each, quorum) for each in nodes)
    return ClusterDescription(
        name=network.cluster_name,
        cluster_id=metadata.cluster_id if metadata else "",
        ray_address=ray_address,
        namespace=NAMESPACE,
        controller_id=quorum.leader_id if quorum else NO_NODE,
        leader_epoch=quorum.leader_epoch if quorum else NO_EPOCH,
        topic_count=len(metadata.topics) if metadata else 0,
        partition_count=sum(len(topic.partitions) for topic in metadata.topics) if metadata else 0,
        nodes=nodes,
        scaling=report.scaling,
        coordinator_scaling=report.coordinator_scaling,
    )


async def describe_nodes(network: RayNetwork, node_ids: Collection[int]) -> tuple[NodeDescription, ...]:
    """All nodes, asked at the same time, in the order given."""
    return tuple(await asyncio.gather(*(_describe_node(network, node_id) for node_id in node_ids)))


async def _describe_node(network: RayNetwork, node_id: int) -> NodeDescription:
    name = actor_name(network.cluster_name, node_id)
    try:
        status = await network.call(node_id, StatusRequest(), _TIMEOUT_MS)
    except ApiError as error:
        roles = (role_of(node_id),)
        return NodeDescription(
            node_id=node_id, roles=roles, actor_name=name, state=UNREACHABLE, detail=str(error)
        )
    said = {
        each.name: getattr(status, each.name)
        for each in fields(NodeDescription)
        if hasattr(status, each.name)
    }
    return NodeDescription(actor_name=name, **{**said, "state": status.state.value})


def _without_actor(cluster_name: str, node_id: int) -> NodeDescription:
    return NodeDescription(
        node_id=node_id,
        roles=(role_of(node_id),),
        actor_name=actor_name(cluster_name, node_id),
        state=UNREACHABLE,
        detail="it has no actor on this Ray: its machine is lost, or it was stopped",
    )


async def _in_time(answer: Coroutine[Any, Any, AnswerT | None]) -> AnswerT | None:
    """The answer; None after `_TIMEOUT_MS`, however many nodes are asked one after another."""
    try:
        async with asyncio.timeout(_TIMEOUT_MS / 1000):
            return await answer
    except TimeoutError:
        return None


async def _kept_spec(cluster_name: str) -> ClusterSpec | None:
    """The spec in force; None where no supervisor says so, as after a stop that was interrupted."""
    try:
        record = await supervisor_handle.kept_record(cluster_name, _TIMEOUT_MS / 1000)
    except UnavailableError:
        return None
    return record.spec if record is not None else None


def _with_problem(node: NodeDescription, problem: str | None) -> NodeDescription:
    if problem is None or node.state != UNREACHABLE:
        return node
    return replace(node, detail="; ".join(filter(None, (node.detail, problem))))


async def _with_last_places(
    nodes: Collection[NodeDescription], spec: ClusterSpec | None
) -> tuple[NodeDescription, ...]:
    """Nodes that do not answer with where they were, as Ray remembers it, and what the spec says of them."""
    silent = [each.actor_name for each in nodes if each.state == UNREACHABLE]
    places = await asyncio.to_thread(last_places, NAMESPACE, silent) if silent else {}
    return tuple(
        _at_last_place(each, places.get(each.actor_name), spec) if each.state == UNREACHABLE else each
        for each in nodes
    )


def _at_last_place(
    node: NodeDescription, place: LastPlace | None, spec: ClusterSpec | None
) -> NodeDescription:
    if spec is not None and node.node_id in spec.roles:
        node = replace(node, roles=spec.roles[node.node_id], data_dirs=node_directories(spec, node.node_id))
    return node if place is None else replace(node, host=place.host, gone_since_ms=place.gone_since_ms)


def _with_registration(node: NodeDescription, known: BrokerDescription | None) -> NodeDescription:
    """A broker with what the controller knows of it, also when the broker itself does not answer."""
    if known is None:
        return node
    offline = node.offline_data_dirs or known.offline_data_dirs
    is_degraded = bool(offline) and node.state == NodeState.RUNNING
    return replace(
        node,
        state=DEGRADED if is_degraded else node.state,
        host=node.host or known.host,
        rack=known.rack,
        data_dirs=node.data_dirs or known.data_dirs,
        offline_data_dirs=offline,
    )


async def ask_cluster(
    network: RayNetwork, nodes: Collection[NodeDescription]
) -> tuple[MetadataResponse | None, QuorumInfo | None]:
    """The metadata and the quorum, each None where none of these nodes has answered within 2 s."""
    metadata, quorum = await asyncio.gather(
        _in_time(ask_metadata(network, nodes)), _in_time(_quorum(network, nodes))
    )
    return metadata, quorum


async def ask_metadata(network: RayNetwork, nodes: Collection[NodeDescription]) -> MetadataResponse | None:
    """From the first node that serves it; brokers and controllers both do."""
    for node in nodes:
        if node.state == NodeState.RUNNING:
            try:
                return await network.call(node.node_id, MetadataRequest(), _TIMEOUT_MS)
            except ApiError:
                continue  # the next one may know
    return None


async def find_leader(network: RayNetwork, node_ids: Collection[int]) -> int:
    """The active controller among these nodes; -1 when none is."""
    response, _ = await ask_quorum(network, node_ids, _TIMEOUT_MS)
    return response.leader_id if response else NO_NODE


async def _quorum(network: RayNetwork, nodes: Collection[NodeDescription]) -> QuorumInfo | None:
    """From the active controller, if one of those that answer leads."""
    answering = [node.node_id for node in nodes if node.state != UNREACHABLE]
    response, _ = await ask_quorum(network, answering, _TIMEOUT_MS)
    return QuorumInfo.of(response) if response else None


def _with_role(node: NodeDescription, quorum: QuorumInfo) -> NodeDescription:
    for role, replicas in ((VOTER, quorum.voters), (OBSERVER, quorum.observers)):
        for each in replicas:
            if each.node_id == node.node_id and each.directory_id != ZERO_ID:  # a broker follows, too
                is_leader = node.node_id == quorum.leader_id
                return replace(node, quorum_role=LEADER if is_leader else role, lag=each.lag)
    return node
