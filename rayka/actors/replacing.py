"""Nodes that have a process but no disk any more, in a machine that lives: which they are, and their end, so that they
can begin again on an empty disk while the cluster runs.
"""

from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING, Any

from rayka.actors.bring_up import stop_nodes
from rayka.actors.cluster_description import ask_metadata, describe_nodes
from rayka.actors.names import actor_name, await_gone
from rayka.actors.ray_network import RayNetwork
from rayka.protocol.membership import NodeState

if TYPE_CHECKING:
    from rayka.actors.shell import NodeProcess


async def without_disk(network: RayNetwork, node_ids: Collection[int]) -> list[int]:
    """Those of a running cluster's nodes that serve nothing: FAILED, or brokers with all directories offline."""
    nodes = await describe_nodes(network, await network.node_ids())
    metadata = await ask_metadata(network, nodes)
    offline = {
        each.node_id
        for each in (metadata.brokers if metadata else ())
        if each.directories
        and not {own.directory_id for own in each.directories}.difference(each.offline_directories)
    }
    failed = {each.node_id for each in nodes if each.state == NodeState.FAILED}
    return [each for each in node_ids if each in failed or each in offline]


def end(cluster_name: str, handles: Mapping[int, Any], processes: "Mapping[int, NodeProcess]") -> None:
    """Ends these nodes for good; returns when their locks are free, and their names."""
    stop_nodes(cluster_name, handles, processes)
    for node_id in handles:
        await_gone(actor_name(cluster_name, node_id))
