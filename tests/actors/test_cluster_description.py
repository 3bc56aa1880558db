"""What a description of the cluster makes of the answers of its nodes. Needs no Ray."""

import asyncio
from typing import Any

from rayka.actors.cluster_description import describe_nodes
from rayka.actors.ray_network import RayNetwork
from rayka.ids import Role
from rayka.ports import Request
from rayka.protocol.membership import NodeState, StatusResponse


class FakeNetwork(RayNetwork):
    """Every node answers that it starts, and has no process yet."""

    async def call(self, node_id: int, request: Request[Any], timeout_ms: int) -> Any:  # type: ignore[override]
        return StatusResponse(node_id, (Role.BROKER,), NodeState.STARTING, None, "here", ("/data",))


def test_a_node_that_starts_is_described_without_a_process() -> None:
    (described,) = asyncio.run(describe_nodes(FakeNetwork("rayka"), [1]))
    assert (described.actor_name, described.state, described.pid) == ("rayka/broker-1", "starting", None)
    assert (described.host, described.data_dirs) == ("here", ("/data",))
