"""The voters of a running cluster, asked for and changed by the thread of a command."""

from collections.abc import Collection
from functools import partial
from random import Random

from rayka.actors.bring_up import ANSWER_TIMEOUT_S, START_TIMEOUT_S, wait_for
from rayka.actors.voter_steps import change_voters
from rayka.client.admin.admin_brain import AsyncAdmin
from rayka.client.admin.admin_quorum import ask_quorum
from rayka.client.admin.admin_results import QuorumInfo
from rayka.client.bootstrap import ClusterHandle
from rayka.config.client_config import AdminConfig

_NODE_TIMEOUT_MS = 3_000


def look_at_quorum(cluster: ClusterHandle) -> QuorumInfo | None:
    """As its leader sees it; None while no controller leads."""
    return wait_for(partial(_look, cluster), ANSWER_TIMEOUT_S)


def change_votes(cluster: ClusterHandle, to_add: Collection[int], to_remove: Collection[int]) -> None:
    """As `change_voters`, with a client of its own."""
    quorum = AsyncAdmin(cluster, AdminConfig(), Random()).quorum
    timeout_s = START_TIMEOUT_S * (1 + len(to_add) + len(to_remove))
    wait_for(partial(change_voters, quorum, to_add, to_remove, START_TIMEOUT_S), timeout_s)


async def _look(cluster: ClusterHandle) -> QuorumInfo | None:
    network = cluster.network()
    response, _ = await ask_quorum(network, await network.node_ids(), _NODE_TIMEOUT_MS)
    return None if response is None else QuorumInfo.of(response)
