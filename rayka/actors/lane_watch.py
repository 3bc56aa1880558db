"""Says when to look whether a node's process has ended: the kernel closes the process's sockets at once.

A lane that ended is a sign and no evidence (decision 033): it may break for other reasons. Where the node serves no
lane, or none can be opened, only time passes.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable

from rayka.transport.lane import Lane

_LOOK_SOON_S, _SOON_FOR_S = 0.01, 1.0  # Ray has the end of a process on record some 12 ms after the kernel
_OPEN_AGAIN_S = 10.0  # where the node serves no lane
_logger = logging.getLogger(__name__)


class LaneWatch:
    """A lane to one process of a node. `open_one` gives one, or None where the node serves none; whatever it raises
    means that there is none now. It is asked again after `open_again_s`, and a lane that ended makes looks frequent
    for `soon_for_s`.
    """

    def __init__(
        self,
        open_one: Callable[[], Awaitable[Lane | None]],
        *,
        soon_for_s: float = _SOON_FOR_S,
        open_again_s: float = _OPEN_AGAIN_S,
    ) -> None:
        self._open_one = open_one
        self._soon_for_s = soon_for_s
        self._pause_s = open_again_s
        self._lane: Lane | None = None
        self._open_again_s = self._look_soon_until_s = 0.0

    def __repr__(self) -> str:
        return f"<LaneWatch {self._lane!r}>"

    async def until_look(self, look_s: float) -> None:
        """Until the next look is due: after so long; at once when the lane ends, and often for a while after that."""
        loop = asyncio.get_running_loop()
        if loop.time() < self._look_soon_until_s:
            await asyncio.sleep(_LOOK_SOON_S)
            return
        if self._lane is None and loop.time() >= self._open_again_s:
            self._open_again_s = loop.time() + self._pause_s
            await self._open()
        if self._lane is None:
            await asyncio.sleep(look_s)
        elif await self._lane.wait_closed(look_s):
            self._lane = None
            self._look_soon_until_s = loop.time() + self._soon_for_s

    async def _open(self) -> None:
        try:
            self._lane = await self._open_one()
        except Exception as error:  # Ray's as well: the node may be about to end
            _logger.debug("no lane to watch: %r", error)

    def close(self) -> None:
        """Ends the lane."""
        if self._lane is not None:
            self._lane.close()
            self._lane = None
