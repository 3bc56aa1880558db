"""What a drain planner is told of a cluster."""

import asyncio
from typing import Any
from uuid import uuid4

from rayka.client.admin.drain_planner import DrainPlanner
from rayka.client.admin.drained_brokers import DrainedBrokers, next_step
from rayka.ids import NO_NODE
from rayka.protocol.membership import MetadataRequest, MetadataResponse
from tests.client.test_drain_planner import SOON_MS


async def _ask_an_empty_cluster(request: Any) -> Any:
    assert isinstance(request, MetadataRequest)
    return MetadataResponse(str(uuid4()), NO_NODE, (), (), 0)


def test_before_a_broker_is_registered_there_is_nothing_to_do_about_a_machine_that_drains() -> None:
    brokers = DrainedBrokers(network=None, ask=_ask_an_empty_cluster, wall_clock_ms=lambda: 0)  # type: ignore[arg-type]

    async def look() -> object:
        return await next_step(DrainPlanner(), await brokers.see({1: SOON_MS}, actors=()))

    assert asyncio.run(look()) is None
