"""A broker, coordinator or both, and a controller in one process: Kafka's combined mode (`process.roles`).

Each of the two is the whole node that it would be alone, with its own state and its own directory. The controller's
directory lies inside the broker's first one, as Kafka's `metadata.log.dir` may, with a lock and a `meta.properties` of
its own. The two call each other as two processes would. Invariant: a call reaches the node that its caller means. Most
APIs are served by one of the two, as the table of APIs says. The others are told apart here: `fetch` by topic,
`metadata` and events by the active controller, `status` is of both (decision 032).
"""

import logging
from typing import Any

import msgspec

from rayka.errors import UnavailableError
from rayka.ids import NO_NODE, Role, node_name
from rayka.node.broker_node import BrokerNode
from rayka.node.controller_node import ControllerNode
from rayka.node.inbox import Response, completed
from rayka.node.settings import NodeSettings, controller_settings
from rayka.ports import Request
from rayka.protocol.apis import ServedBy, api_of
from rayka.protocol.fetch import FetchRequest
from rayka.protocol.membership import (
    MetadataRequest,
    MetadataResponse,
    NodeState,
    StatusRequest,
    StatusResponse,
)

_logger = logging.getLogger(__name__)


class CombinedNode:
    """A broker and a controller; `settings.data_dirs` are the broker's directories, all of them formatted before."""

    serves = BrokerNode.serves | ControllerNode.serves

    def __init__(self, settings: NodeSettings) -> None:
        self.settings = settings
        self.controller = ControllerNode(controller_settings(settings))
        self.broker = BrokerNode(settings)

    def __repr__(self) -> str:
        return f"<CombinedNode {node_name(self.settings.node_id)} {self.broker!r} {self.controller!r}>"

    # ---- Life ------------------------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Returns when the broker serves; the controller serves earlier, so that there can be a quorum.

        Raises StorageError when a directory cannot be used, and the ApiError with which the broker was refused.
        """
        await self.controller.start()
        while True:
            try:
                return await self.broker.start()
            # Too few controllers run; this one must not end for it.
            except UnavailableError as error:
                _logger.warning("%r: %s; it tries again", self, error)
                self.broker.kill()
                self.broker = BrokerNode(self.settings)

    async def stop(self) -> None:
        """Shuts both down in a controlled way, the broker first: it needs controllers for that."""
        await self.broker.stop()
        await self.controller.stop()

    async def stop_broker(self) -> None:
        """Makes the first half of `stop`: the controller goes on, for brokers of other nodes that stop."""
        await self.broker.stop()

    def kill(self) -> None:
        """Ends both as a killed process does."""
        self.broker.kill()
        self.controller.kill()

    # ---- Requests --------------------------------------------------------------------------------------------------

    def handle(self, request: Request[Any]) -> Response:
        """The answer of the node that serves the API. The broker may be another object at the next call."""
        match request:
            case MetadataRequest():
                return self._metadata(request)
            case StatusRequest():
                return self._status(request)
            case _:
                return self._serving(request).handle(request)

    def _serving(self, request: Request[Any]) -> BrokerNode | ControllerNode:
        if isinstance(request, FetchRequest):
            return self.controller if request.is_of_metadata else self.broker
        served_by = api_of(request).served_by
        is_newest_here = ServedBy.CONTROLLER in served_by and self.controller.is_active
        return self.broker if ServedBy.BROKER in served_by and not is_newest_here else self.controller

    async def _metadata(self, request: MetadataRequest) -> MetadataResponse:
        """The newest metadata if this is the active controller, else those that the broker knows.

        An offset to wait for is the broker's in any case: a caller that waits wants the broker to have it. A broker
        that does not know yet that its own controller leads no more names no controller.
        """
        if not self.controller.is_active:
            response: MetadataResponse = await completed(self.broker.handle(request))
            is_outdated = response.controller_id == self.settings.node_id and not self.controller.is_active
            return msgspec.structs.replace(response, controller_id=NO_NODE) if is_outdated else response
        if request.min_metadata_offset >= 0:
            await completed(self.broker.handle(request))
        newest: MetadataResponse = await self.controller.handle(request)
        return newest

    async def _status(self, request: StatusRequest) -> StatusResponse:
        """The status of both: running when both are, else the state of the one that is not."""
        broker: StatusResponse = await completed(self.broker.handle(request))
        controller: StatusResponse = await self.controller.handle(request)
        return msgspec.structs.replace(
            broker,
            roles=(*broker.roles, Role.CONTROLLER),
            state=broker.state if controller.state is NodeState.RUNNING else controller.state,
            cluster_id=controller.cluster_id or broker.cluster_id,
            detail="; ".join(each for each in (broker.detail, controller.detail) if each),
            leader_id=controller.leader_id,
            leader_epoch=controller.leader_epoch,
            log_end_offset=controller.log_end_offset,
            high_watermark=controller.high_watermark,
        )
