"""The direct lanes of one event loop, one to each node, shared by all callers on that loop.

A lane is opened beside the calls, which go by the other way meanwhile; a node whose lane cannot be opened is asked
again after a growing pause, and one that serves none from time to time. Kafka: `ClusterConnectionStates`.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Hashable
from functools import partial
from typing import NamedTuple, Protocol
from weakref import WeakKeyDictionary

from rayka.errors import RaykaError
from rayka.protocol.caller import Answer, Call
from rayka.protocol.later import Later
from rayka.transport.greeting import LaneOffer
from rayka.transport.lane import open_lane
from rayka.transport.receive_memory import ReceiveMemory

_PAUSE_FIRST_S, _PAUSE_MAX_S = 0.5, 10.0
_PAUSE_UNSERVED_S = 2.0  # a node that is about to start serves its lane soon

_logger = logging.getLogger(__name__)

Ask = Callable[[], Awaitable[LaneOffer]]
Open = Callable[[int, LaneOffer], Awaitable["OpenedLane"]]


class OpenedLane(Protocol):
    """A `Lane`, or a simulated one."""

    @property
    def is_open(self) -> bool: ...

    def send(self, call: Call) -> Later[Answer]: ...

    def close(self) -> None: ...


class Node(NamedTuple):
    """A node of a cluster."""

    cluster_name: str
    node_id: int


class Lanes:
    """See the module. All of them belong to one connection of this process to Ray, and end with it. `open_one`
    connects to a node; without it sockets do, into memory that these lanes share.
    """

    def __init__(self, open_one: Open | None = None) -> None:
        self._open_one = open_one or partial(open_lane, memory=ReceiveMemory())
        self._connection: Hashable = None
        self._lanes: dict[Node, OpenedLane] = {}
        self._opening: dict[Node, asyncio.Task[None]] = {}
        self._pauses_s: dict[Node, float] = {}
        self._not_before_s: dict[Node, float] = {}

    def __repr__(self) -> str:
        return f"<Lanes {list(self._lanes.values())} opening={len(self._opening)}>"

    def get(self, connection: Hashable, node: Node, ask: Ask) -> OpenedLane | None:
        """The lane to a node; None while there is none: then one is opened, with what `ask` gives."""
        if connection != self._connection:
            self._connection = connection  # before the end of a lane has its calls ask for the next
            self.close()
        lane = self._lanes.get(node)
        if lane is not None and lane.is_open:
            return lane
        loop = asyncio.get_running_loop()
        if node not in self._opening and self._not_before_s.get(node, 0.0) <= loop.time():
            task = self._opening[node] = loop.create_task(self._open(node, ask), name="open lane")
            task.add_done_callback(lambda _: self._on_opened(node, task))
        return None

    def close(self) -> None:
        """Closes all of them. What this ends may ask for lanes anew at once."""
        opening, self._opening = self._opening, {}
        lanes, self._lanes = self._lanes, {}
        self._pauses_s.clear()
        self._not_before_s.clear()
        for task in opening.values():
            task.cancel()
        for lane in lanes.values():
            lane.close()

    async def _open(self, node: Node, ask: Ask) -> None:
        try:
            offer = await ask()
            if offer.ticket:
                self._lanes[node] = await self._open_one(node.node_id, offer)
                self._pauses_s.pop(node, None)
            else:
                self._pause(node, _PAUSE_UNSERVED_S)
        except (RaykaError, OSError) as error:
            level = logging.DEBUG if node in self._pauses_s else logging.INFO
            _logger.log(level, "calls go by Ray, not directly: %s", error)
            pause_s = self._pauses_s[node] = min(
                _PAUSE_MAX_S, 2 * self._pauses_s.get(node, _PAUSE_FIRST_S / 2)
            )
            self._pause(node, pause_s)

    def _pause(self, node: Node, pause_s: float) -> None:
        self._not_before_s[node] = asyncio.get_running_loop().time() + pause_s

    def _on_opened(self, node: Node, task: asyncio.Task[None]) -> None:
        if self._opening.get(node) is task:
            del self._opening[node]


_of_loops: "WeakKeyDictionary[asyncio.AbstractEventLoop, Lanes]" = WeakKeyDictionary()


def lanes_of_this_loop() -> Lanes:
    """Those of the running event loop."""
    loop = asyncio.get_running_loop()
    lanes = _of_loops.get(loop)
    if lanes is None:
        lanes = _of_loops[loop] = Lanes()
    return lanes
