"""The cluster that a scaler works on, as it is on Ray."""

import asyncio
from collections.abc import Mapping

from rayka.actors.cluster_record import ClusterRecord
from rayka.actors.node_placement import wall_clock_ms
from rayka.actors.ray_network import RayNetwork
from rayka.actors.scaling.cluster_looks import ClusterLooks
from rayka.actors.scaling.cluster_steps import ClusterSteps
from rayka.actors.scaling.planner import Seen, Step
from rayka.actors.start_lock import is_starting
from rayka.ids import Role, node_name
from rayka.node.controller_link import ControllerLink
from rayka.protocol.events import REASON_LENGTH_MAX, RecordEventRequest


class ScaledCluster:
    """A `ScalingPort`."""

    def __init__(self, record: ClusterRecord) -> None:
        self._spec = record.spec
        self._looks = ClusterLooks(record.spec, ControllerLink(RayNetwork(record.spec.name)))
        self._steps = ClusterSteps(record.spec, self._looks)

    def __repr__(self) -> str:
        return f"<ScaledCluster {self._spec.name}>"

    async def see(self) -> Mapping[Role, Seen] | None:
        if await asyncio.to_thread(is_starting, self._spec.name):
            return None
        return await self._looks.see()

    async def take(self, step: Step) -> str:
        return await self._steps.take(step)

    async def record(self, kind: str, broker_id: int, reason: str) -> None:
        subjects = (node_name(broker_id),)
        said = reason[:REASON_LENGTH_MAX]
        await self._looks.ask(RecordEventRequest(wall_clock_ms(), kind, subjects, said))
