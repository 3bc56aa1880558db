"""A cluster as it is now, asked of its nodes: what `Cluster.describe` returns and `Cluster.start` waits for."""

import asyncio
from collections.abc import Collection
from dataclasses import dataclass, replace

from rayka.actors.names import NAMESPACE, actor_name
from rayka.actors.network import RayNetwork
from rayka.client.admin_quorum import ask_quorum
from rayka.client.admin_results import QuorumInfo
from rayka.errors import ApiError
from rayka.ids import NO_EPOCH, NO_NODE, ZERO_ID, Role, role_of
from rayka.protocol.cluster import MetadataRequest, MetadataResponse, NodeState, StatusRequest

UNREACHABLE = "unreachable"
LEADER, VOTER, OBSERVER = "leader", "voter", "observer"
_TIMEOUT_MS = 2_000


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeDescription:
    """One node as it is now. `state` is a NodeState, or `unreachable` when the node does not answer: Ray may be
    restarting it, and `pid` is None.

    `detail` says why a node is failed; `partition_count` and `size_bytes` are of the partitions on its disks. Of a
    controller `quorum_role` is leader, voter or observer, and `lag` how many records of metadata it is behind the
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


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterDescription:
    """A cluster as it is now; the counts are 0 and the id empty while no node knows them.

    `controller_id` is the active controller, the leader of the metadata in `leader_epoch`; both are -1 while there is
    none.
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

    @property
    def is_running(self) -> bool:
        """Whether every node is up and serves, and a controller is active."""
        return self.controller_id != NO_NODE and all(node.state == NodeState.RUNNING for node in self.nodes)


async def describe(network: RayNetwork, ray_address: str, node_ids: Collection[int]) -> ClusterDescription:
    """The nodes and what is in the cluster; one that does not answer within 2 s, or that is a voter or a registered
    broker but has no actor, is `unreachable`.
    """
    nodes = await describe_nodes(network, node_ids)
    metadata, quorum = await asyncio.gather(ask_metadata(network, nodes), _quorum(network, nodes))
    members = {each.node_id for each in metadata.brokers} if metadata else set()
    members |= {each.node_id for each in quorum.voters} if quorum else set()
    gone = sorted(members.difference(node_ids))
    nodes = tuple(sorted((*nodes, *await describe_nodes(network, gone)), key=lambda each: each.node_id))
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
    return NodeDescription(
        node_id=node_id,
        roles=status.roles,
        actor_name=name,
        state=status.state.value,
        pid=status.pid,
        host=status.host,
        data_dirs=status.data_dirs,
        partition_count=status.partition_count,
        size_bytes=status.size_bytes,
        detail=status.detail,
    )


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
