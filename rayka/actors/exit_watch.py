"""The watch of processes: tells the active controller that a node's process has ended, as soon as Ray has that on
record.

The session of a broker that died ends after seconds, and only then does the controller move its leaderships (H6). But
the kernel and Ray know at once when a process ends on a machine that lives. Ray's record is evidence, so the controller
may act upon it (decision 033). Failed calls are no evidence, and neither is a Ray node that is gone: a process that is
slow, paused or cut off is not dead. A report names the incarnation, so that a late report does not concern the next
process.

Each end of a process is also an event, of controllers too, and so is a lost machine: operators look at events first.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple
from uuid import UUID

from rayka.actors.names import actor_name
from rayka.actors.node_handles import find, process_of
from rayka.actors.ray_network import RayNetwork
from rayka.actors.ray_records import exit_detail, has_exited, has_left, lost_machines
from rayka.config.cluster_config import ClusterSpec
from rayka.errors import ApiError
from rayka.ids import Role, node_name, role_of
from rayka.node.controller_link import ControllerLink, Tell
from rayka.protocol.membership import NodeState, ReportExitRequest, StatusRequest
from rayka.protocol.wire import decode
from rayka.transport.greeting import LaneOffer
from rayka.transport.lane import Lane, open_lane

if TYPE_CHECKING:
    from rayka.actors.shell import NodeProcess


_ASK_AGAIN_S = 0.25
_LOOK_S = 0.25
_MACHINES_S = 1.0
# For each broker, so that looking takes less than 1 % of a core: one look takes 0.6 ms.
_LOOK_COST_S = 0.08
_CALL_TIMEOUT_MS = 2_000
# Ray has the end of a process on record some 12 ms after the kernel closed its sockets.
_LOOK_SOON_S, _SOON_FOR_S = 0.01, 1.0
# The pause before the next attempt where the node serves no lane.
_OPEN_AGAIN_S = 10.0
_logger = logging.getLogger(__name__)


class LaneWatch:
    """A lane to one process of a node, which says when to look whether the process has ended: the kernel closes the
    process's sockets at once.

    `open_one` opens a lane, and returns None if the node serves none. Any error of it means that there is no lane now.
    It is called again after `open_again_s`. Looks are frequent for `soon_for_s` after a lane has ended. The end of a
    lane is a sign and no evidence (decision 033), because a lane may break for other reasons. Without a lane, looks are
    due after fixed times.
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

    async def until_look(self, look_s: float) -> None:
        """Waits until the next look is due: after `look_s`, at once when the lane ends, and often for a while after
        that.
        """
        loop = asyncio.get_running_loop()
        if loop.time() < self._look_soon_until_s:
            await asyncio.sleep(_LOOK_SOON_S)
            return
        if self._lane is None and loop.time() >= self._open_again_s:
            self._open_again_s = loop.time() + self._pause_s
            try:
                self._lane = await self._open_one()
            except Exception as error:
                # Ray's errors as well: the node may be about to end.
                _logger.debug("no lane to watch: %r", error)
        if self._lane is None:
            await asyncio.sleep(look_s)
        elif await self._lane.wait_closed(look_s):
            self._lane = None
            self._look_soon_until_s = loop.time() + self._soon_for_s

    def close(self) -> None:
        """Ends the lane."""
        if self._lane is not None:
            self._lane.close()
            self._lane = None


class _Serving(NamedTuple):
    """One process that serves as a node, of this actor."""

    handle: Any
    process: "NodeProcess"
    incarnation_id: UUID

    def __str__(self) -> str:
        return f"process {self.process.pid} on Ray node {self.process.ray_node_id}"


class ExitWatch:
    """Watches the nodes of one cluster. Made and run on one event loop."""

    def __init__(self, spec: ClusterSpec, tell: Tell) -> None:
        self._spec = spec
        self._tell = tell
        # By node.
        self._watches: dict[int, asyncio.Task[None]] = {}
        # Ray nodes that are lost, each with its address.
        self._lost: Mapping[str, str] = {}
        # By node, the process that refused to start, and its reason as last told. Else each look would tell it again.
        self._refused: dict[int, tuple[int, str]] = {}
        self._network = RayNetwork(spec.name)
        self._link = ControllerLink(self._network)

    async def run(self, node_ids: Callable[[], Collection[int]]) -> None:
        """Watches the nodes that `node_ids` returns, for ever. Calls it four times a second."""
        loop, machines_s = asyncio.get_running_loop(), 0.0
        try:
            while True:
                if loop.time() >= machines_s:
                    machines_s = loop.time() + _MACHINES_S
                    self._lost = await asyncio.to_thread(lost_machines)
                wanted = node_ids()
                for each in self._watches.keys() - set(wanted):
                    self._watches.pop(each).cancel()
                for each in wanted:
                    if each not in self._watches:
                        self._watches[each] = asyncio.create_task(self._watch(each))
                await asyncio.wait(self._watches.values(), timeout=_ASK_AGAIN_S)
                for task in self._watches.values():
                    if task.done():
                        task.result()
        finally:
            for task in self._watches.values():
                task.cancel()

    async def _watch(self, node_id: int) -> None:
        name, before = node_name(node_id), None
        while True:
            found = await self._until_serving(node_id, before)
            process = found.process
            if before is None:
                _logger.info("%s runs as %s", name, found)
            elif process.worker_id != before.process.worker_id:
                _logger.info("%s runs again as %s; it was %s", name, found, before)
            before = found
            await self._until_left(node_id, found)
            if await asyncio.to_thread(has_exited, process.worker_id, process.ray_node_id):
                words = await asyncio.to_thread(exit_detail, process.worker_id)
                said = f" (Ray: {words})" if words else ""
                ended = f"process {process.pid} was killed or ended itself{said}"
                self._tell("process-ended", (node_id,), f"{ended}; `rayka logs {name}` has its last lines")
                if role_of(node_id) is not Role.CONTROLLER:
                    await self._report(node_id, found)
            else:
                _logger.info("%s of %s has gone: it was told to end, or its Ray node is lost", found, name)
            # No other process follows sooner.
            await asyncio.sleep(_ASK_AGAIN_S)

    async def _until_left(self, node_id: int, found: _Serving) -> None:
        """Waits until the process is gone. Asks Ray from time to time, and as soon as the lane to the process ends.

        Looks at the lost machines too: Ray may count a worker on such a machine as alive for ever.
        """
        lane = LaneWatch(partial(_open_lane, node_id, found.handle))
        try:
            while found.process.ray_node_id not in self._lost and not await asyncio.to_thread(
                has_left, found.process.worker_id
            ):
                await lane.until_look(max(_LOOK_S, _LOOK_COST_S * len(self._watches)))
        finally:
            lane.close()

    async def _until_serving(self, node_id: int, before: _Serving | None) -> _Serving:
        """Waits for the process of this node that serves. Only a serving process can lead, and its incarnation stays.

        Until then, reports that the machine of the process `before` is lost, which Ray notices late.
        """
        while (found := await self._ask(node_id)) is None:
            if before is not None and (host := self._lost.get(before.process.ray_node_id)) is not None:
                ran = f"where process {before.process.pid} ran"
                lost = f"Ray node {before.process.ray_node_id} on {host}, {ran}, is gone"
                self._tell("machine-lost", (node_id,), lost)
                before = None
            await asyncio.sleep(_ASK_AGAIN_S)
        return found

    async def _ask(self, node_id: int) -> _Serving | None:
        handle = await asyncio.to_thread(find, self._spec.name, node_id)
        process = await process_of(handle, _CALL_TIMEOUT_MS / 1000) if handle is not None else None
        if process is None:
            return None
        try:
            status = await self._network.call(node_id, StatusRequest(), _CALL_TIMEOUT_MS)
        except ApiError:
            return None
        if status.state is NodeState.FAILED and self._refused.get(node_id) != (process.pid, status.detail):
            self._refused[node_id] = (process.pid, status.detail)
            self._tell("node-failed", (node_id,), f"it did not start, and tries again: {status.detail}")
        if status.state is not NodeState.RUNNING or status.pid != process.pid:
            return None
        return _Serving(handle, process, status.incarnation_id)

    async def _report(self, broker_id: int, found: _Serving) -> None:
        """Reports the exit until the controller knows of it, or would have found out by itself."""
        request, pid = ReportExitRequest(broker_id, found.incarnation_id), found.process.pid
        name = actor_name(self._spec.name, broker_id)
        try:
            async with asyncio.timeout(self._spec.config.broker_session_timeout_ms / 1000):
                response = await self._link.call_until_answered(request, _CALL_TIMEOUT_MS)
        except TimeoutError:
            _logger.warning(
                "process %d of %s has exited, and it could not be reported to a controller in time", pid, name
            )
        else:
            outcome = "is fenced" if response.is_fenced else "has been succeeded already"
            _logger.info("process %d of %s has exited; it %s", pid, name, outcome)


async def _open_lane(broker_id: int, handle: Any) -> Lane | None:
    """Opens a lane to the actor's present process; None if it serves none."""
    async with asyncio.timeout(_CALL_TIMEOUT_MS / 1000):
        offer = decode(LaneOffer, await handle.open_lane.remote())
        return await open_lane(broker_id, offer) if offer.ticket else None
