"""What a description of the cluster makes of the answers of its nodes. Needs no Ray."""

import asyncio
from typing import Any

from rayka.actors.cluster_description import NodeDescription, ask_cluster, describe_nodes
from rayka.actors.ray_network import RayNetwork
from rayka.errors import RequestTimedOut
from rayka.ids import Role
from rayka.ports import Request
from rayka.protocol.membership import NodeState, StatusResponse
from tests.node.log_support import run


class FakeNetwork(RayNetwork):
    """Every node answers that it starts, and has no process yet."""

    async def call(self, node_id: int, request: Request[Any], timeout_ms: int) -> Any:  # type: ignore[override]
        return StatusResponse(node_id, (Role.BROKER,), NodeState.STARTING, None, "here", ("/data",))


def test_a_node_that_starts_is_described_without_a_process() -> None:
    (described,) = asyncio.run(describe_nodes(FakeNetwork("rayka"), [1]))
    assert (described.actor_name, described.state, described.pid) == ("rayka/broker-1", "starting", None)
    assert (described.host, described.data_dirs) == ("here", ("/data",))


class HangingNetwork(RayNetwork):
    """Every node takes the whole time that a caller has."""

    async def call(self, node_id: int, request: Request[Any], timeout_ms: int) -> Any:  # type: ignore[override]
        await asyncio.sleep(timeout_ms / 1000)
        raise RequestTimedOut(f"node {node_id} did not answer")


def test_answers_after_two_seconds_are_left_out_however_many_nodes_there_are() -> None:
    nodes = [
        NodeDescription(node_id=each, roles=(), actor_name="", state=NodeState.RUNNING)
        for each in (1, 2, 3, 4, 5, 6, 3001, 3002, 3003)
    ]

    async def scenario() -> None:
        loop = asyncio.get_running_loop()
        began_s = loop.time()
        assert await ask_cluster(HangingNetwork("rayka"), nodes) == (None, None)
        assert loop.time() - began_s < 2.1

    run(scenario())
