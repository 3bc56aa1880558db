"""The description of a cluster, asked of its nodes: `Cluster.describe` returns it, and `Cluster.start` waits for its
states.
"""

import asyncio
from collections.abc import Collection, Coroutine
from dataclasses import dataclass, fields, replace
from typing import Any, TypeVar

from rayka.actors import supervisor_handle
from rayka.actors.names import NAMESPACE, actor_name, node_directories
from rayka.actors.ray_network import RayNetwork
from rayka.actors.ray_records import last_places
from rayka.actors.scaling_planner import ScalingStatus
from rayka.actors.supervisor_handle import SupervisorReport
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
    """One node as it is now."""

    node_id: int
    roles: tuple[Role, ...]
    actor_name: str
    # A NodeState; `degraded`: a broker serves, but not with all its directories; `unreachable`: the node does not
    # answer, and Ray may be restarting it.
    state: str
    # None while the node is unreachable.
    pid: int | None = None
    # Of an unreachable node, where it was.
    host: str = ""
    data_dirs: tuple[str, ...] = ()
    # Of the partitions on the node's disks.
    partition_count: int = 0
    size_bytes: int = 0
    # Why the node is failed, or why the supervisor cannot bring it back.
    detail: str = ""
    # Of a controller: leader, voter or observer; empty while there is no leader that knows.
    quorum_role: str = ""
    # How many records of metadata a controller is behind the leader; -1 while there is no leader that knows.
    lag: int = -1
    rack: str = ""
    # Directories that have failed, and those without room.
    offline_data_dirs: tuple[str, ...] = ()
    full_data_dirs: tuple[str, ...] = ()
    # Of an unreachable node, the wall clock when Ray noticed that its machine or process had gone; 0: not known.
    gone_since_ms: int = 0
    # The wall clock when the machine goes, which Ray drains; 0: Ray does not say when; -1: the machine stays.
    drained_until_ms: int = -1
    # A file on the node's machine.
    log_path: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterDescription:
    """A cluster as it is now. The counts are 0 and the id is empty while no node knows them."""

    name: str
    cluster_id: str
    ray_address: str
    namespace: str
    # The active controller: the leader of the metadata in `leader_epoch`; both are -1 while there is none.
    controller_id: int
    leader_epoch: int
    topic_count: int
    partition_count: int
    nodes: tuple[NodeDescription, ...]
    # How many brokers there should be; None where they do not come and go by the load.
    scaling: ScalingStatus | None = None
    # The same of coordinators.
    coordinator_scaling: ScalingStatus | None = None

    @property
    def is_running(self) -> bool:
        """Whether every node is up and serves, and a controller is active."""
        return self.controller_id != NO_NODE and all(node.state == NodeState.RUNNING for node in self.nodes)


async def describe(network: RayNetwork, ray_address: str, node_ids: Collection[int]) -> ClusterDescription:
    """Describes the nodes and the contents of the cluster. A node is `unreachable` if it does not answer within 2 s, or
    has no actor though it is in the spec, a voter or a registered broker.

    Takes about 4 s at most, whatever is lost: all nodes are asked at the same time, and later answers are left out.
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
    gone = [
        NodeDescription(
            node_id=each,
            roles=(role_of(each),),
            actor_name=actor_name(network.cluster_name, each),
            state=UNREACHABLE,
            detail="it has no actor on this Ray: its machine is lost, or it was stopped",
        )
        for each in members.difference(node_ids)
    ]
    nodes = tuple(sorted((*nodes, *gone), key=lambda each: each.node_id))
    nodes = await _with_last_places(nodes, spec)
    nodes = tuple(_with_report(each, report) for each in nodes)
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
    """Describes all nodes, asked at the same time, in the order given."""
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


async def _in_time(answer: Coroutine[Any, Any, AnswerT | None]) -> AnswerT | None:
    """Returns the answer; None after `_TIMEOUT_MS`, however many nodes are asked one after another."""
    try:
        async with asyncio.timeout(_TIMEOUT_MS / 1000):
            return await answer
    except TimeoutError:
        return None


async def _kept_spec(cluster_name: str) -> ClusterSpec | None:
    """Returns the spec in force; None if no supervisor says so, as after a stop that was interrupted."""
    try:
        record = await supervisor_handle.kept_record(cluster_name, _TIMEOUT_MS / 1000)
    except UnavailableError:
        return None
    return record.spec if record is not None else None


def _with_report(node: NodeDescription, report: SupervisorReport) -> NodeDescription:
    """Adds the supervisor's problem with an unreachable node to its detail, and when the machine of a node goes."""
    problem = report.problems.get(node.node_id) if node.state == UNREACHABLE else None
    return replace(
        node,
        detail=node.detail if problem is None else "; ".join(filter(None, (node.detail, problem))),
        drained_until_ms=report.draining.get(node.node_id, -1),
    )


async def _with_last_places(
    nodes: Collection[NodeDescription], spec: ClusterSpec | None
) -> tuple[NodeDescription, ...]:
    """Adds to unreachable nodes the places that Ray remembers, and their roles and directories in the spec."""
    silent = [each.actor_name for each in nodes if each.state == UNREACHABLE]
    places = await asyncio.to_thread(last_places, NAMESPACE, silent) if silent else {}
    described = []
    for each in nodes:
        node, place = each, places.get(each.actor_name)
        if node.state == UNREACHABLE and spec is not None and node.node_id in spec.roles:
            node = replace(
                node, roles=spec.roles[node.node_id], data_dirs=node_directories(spec, node.node_id)
            )
        if node.state == UNREACHABLE and place is not None:
            node = replace(node, host=place.host, gone_since_ms=place.gone_since_ms)
        described.append(node)
    return tuple(described)


def _with_registration(node: NodeDescription, known: BrokerDescription | None) -> NodeDescription:
    """Adds the controller's knowledge of a broker, also if the broker itself does not answer."""
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
    """Returns the metadata and the quorum, each None if none of these nodes has answered within 2 s."""
    metadata, quorum = await asyncio.gather(
        _in_time(ask_metadata(network, nodes)), _in_time(_quorum(network, nodes))
    )
    return metadata, quorum


async def ask_metadata(network: RayNetwork, nodes: Collection[NodeDescription]) -> MetadataResponse | None:
    """Returns the metadata of the first node that serves it. Brokers and controllers do."""
    for node in nodes:
        if node.state == NodeState.RUNNING:
            try:
                return await network.call(node.node_id, MetadataRequest(), _TIMEOUT_MS)
            except ApiError:
                # The next node may know.
                continue
    return None


async def find_leader(network: RayNetwork, node_ids: Collection[int]) -> int:
    """Returns the active controller among these nodes; -1 if none is."""
    response, _ = await ask_quorum(network, node_ids, _TIMEOUT_MS)
    return response.leader_id if response else NO_NODE


async def _quorum(network: RayNetwork, nodes: Collection[NodeDescription]) -> QuorumInfo | None:
    """Returns the quorum as the active controller sees it; None if none of the answering nodes leads."""
    answering = [node.node_id for node in nodes if node.state != UNREACHABLE]
    response, _ = await ask_quorum(network, answering, _TIMEOUT_MS)
    return QuorumInfo.of(response) if response else None


def _with_role(node: NodeDescription, quorum: QuorumInfo) -> NodeDescription:
    for role, replicas in ((VOTER, quorum.voters), (OBSERVER, quorum.observers)):
        for each in replicas:
            # A broker follows too, without a directory id.
            if each.node_id == node.node_id and each.directory_id != ZERO_ID:
                is_leader = node.node_id == quorum.leader_id
                return replace(node, quorum_role=LEADER if is_leader else role, lag=each.lag)
    return node
