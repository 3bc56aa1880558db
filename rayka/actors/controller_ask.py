"""Questions of the supervisor to the active controller of its cluster."""

import asyncio
from typing import TypeVar

from rayka.actors.ray_network import RayNetwork
from rayka.node.controller_link import ControllerLink
from rayka.ports import Request

_CALL_TIMEOUT_MS = 2_000
_ANSWER_TIMEOUT_S = 10.0
ResponseT = TypeVar("ResponseT")


class ControllerAsk:
    """An `Ask`, used on one event loop."""

    def __init__(self, network: RayNetwork) -> None:
        self._link = ControllerLink(network)

    async def __call__(self, request: Request[ResponseT]) -> ResponseT:
        async with asyncio.timeout(_ANSWER_TIMEOUT_S):
            return await self._link.call_until_answered(request, _CALL_TIMEOUT_MS)
