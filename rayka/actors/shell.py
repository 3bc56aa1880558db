"""The shell of every node's actor: starts the node, hands it the calls, and ends the process when it must.

Ray reruns only the constructor when it restarts an actor, keeps an actor alive after an exception, and lets background
tasks die in silence. So the constructor starts the node, and the task that starts it is watched. An exception that no
code expected ends the process by `os._exit` (Ray would count `exit_actor` as intended), and Ray starts another process.

A start that is refused is no crash: a directory is missing, locked, or of another node or cluster. The node is then
FAILED, answers only `status`, with the reason, and tries again at growing intervals. The fourth start within a minute
of crashes is treated in the same way.
"""

import asyncio
import ctypes
import gc
import logging
import os
import sys
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import ray

from rayka.actors.names import actor_name
from rayka.actors.node_logs import begin_log, own_log_path
from rayka.actors.node_placement import NodePlacement, wall_clock_ms
from rayka.actors.ray_network import PackedAnswer, PackedCall, pack_answer, unpack_call
from rayka.descriptors import raise_limit
from rayka.errors import BrokerNotAvailable, InvalidRequest, RaykaError
from rayka.ids import node_name
from rayka.log.local_disk import LocalDisk
from rayka.node.combined_node import CombinedNode
from rayka.node.inbox import Inbox, Node
from rayka.node.settings import NodeSettings
from rayka.protocol.membership import NodeState, StatusResponse
from rayka.protocol.wire import Failure, encode
from rayka.transport.greeting import LaneOffer
from rayka.transport.lane_server import LaneServer

# The time between attempts to start: doubled after each, up to the second value.
_RETRY_FIRST_S, _RETRY_MAX_S = 1.0, 60.0
CRASHES_MAX = 3
WINDOW_MS = 60_000
FILE_NAME = "crash-times"
# `int` refuses thousands of digits.
_DIGITS_MAX = 15
KEPT_BYTES_MAX = 128 << 20
# The largest that glibc takes.
_BLOCK_BYTES_MAX = 32 << 20
# From malloc.h.
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3

_logger = logging.getLogger(__name__)


class StartableNode(Node, Protocol):
    """The methods of a node that its shell needs."""

    async def start(self) -> None: ...

    async def stop(self) -> None: ...

    def kill(self) -> None: ...


@dataclass(frozen=True, slots=True)
class NodeProcess:
    """The process of a node's actor, and the placement that the actor was made from."""

    placement: NodePlacement
    pid: int
    # Ray's ids of the process and of its Ray node.
    worker_id: str
    ray_node_id: str


class NodeShell:
    """One node in this process. All methods run on the actor's event loop."""

    def __init__(self, make_node: Callable[[NodeSettings], StartableNode], placement: NodePlacement) -> None:
        begin_log(actor_name(placement.spec.name, placement.node_id))
        keep_freed_memory()
        set_modules_aside()
        take_usual_niceness()
        raise_limit()
        self._make_node = make_node
        self._placement = placement
        self._disk = LocalDisk(hang_timeout_s=placement.spec.config.log_dir_hang_timeout_ms / 1000)
        self._host = ray.util.get_node_ip_address()
        # The node and its inbox: None before a start, after a refused one, and after the stop.
        self._node: StartableNode | None = None
        self._inbox: Inbox | None = None
        # None while the node does not run, and without direct lanes.
        self._lanes: LaneServer | None = None
        self._state = NodeState.STARTING
        self._detail = ""
        self._starting = asyncio.get_running_loop().create_task(self._run(), name="start")
        self._starting.add_done_callback(self._on_start_done)

    async def handle(self, api_name: str, call: PackedCall) -> PackedAnswer:
        """Hands one call to the node. Without a node, answers only `status`."""
        if self._inbox is not None:
            try:
                header, body, payload = unpack_call(call)
            except InvalidRequest as error:
                return encode(Failure.of(error)).body, None
            return pack_answer(await self._inbox.handle(api_name, header, body, payload))
        if api_name == "status":
            return encode(self._status()).body, b""
        reason = f"{self._name} is {self._state}" + (f": {self._detail}" if self._detail else "")
        return encode(Failure.of(BrokerNotAvailable(reason))).body, None

    def process(self) -> NodeProcess:
        """Returns the placement of the actor, and the process that it is."""
        context = ray.get_runtime_context()
        return NodeProcess(self._placement, os.getpid(), context.get_worker_id(), context.get_node_id())

    def open_lane(self) -> bytes:
        """Returns an encoded `LaneOffer`, without addresses while the node does not run."""
        return encode(LaneOffer("", "", 0, b"") if self._lanes is None else self._lanes.offer()).body

    async def stop(self) -> None:
        """Stops the node under control, or the attempts to start it. Only the end of the process is left to the caller.

        The node gets calls until it has stopped: a controller that hands over answers the nodes that vote (A23).
        """
        self._starting.cancel()
        await asyncio.wait([self._starting])
        if self._node is not None:
            await self._node.stop()
        if self._lanes is not None:
            self._lanes.close()
        self._node, self._inbox, self._lanes = None, None, None
        self._state = NodeState.SHUTTING_DOWN
        self._disk.close()

    async def stop_broker(self) -> None:
        """Stops the broker under control and leaves the controller, which other brokers need for their stops. Does
        nothing if the node is not both.
        """
        if isinstance(self._node, CombinedNode) and self._starting.done():
            await self._node.stop_broker()

    # ---- Starting --------------------------------------------------------------------------------------------------

    async def _run(self) -> None:
        crashes = recent_crashes(self._placement.directories[0], wall_clock_ms())
        pause_s = _RETRY_FIRST_S
        if len(crashes) >= CRASHES_MAX:
            self._fail(f"it crashed {len(crashes)} times within a minute; its log has the cause")
            await asyncio.sleep(_RETRY_MAX_S)
        while not await self._has_started():
            await asyncio.sleep(pause_s)
            pause_s = min(_RETRY_MAX_S, pause_s * 2)

    async def _has_started(self) -> bool:
        node = self._make_node(self._placement.settings(self._disk, self._crash))
        self._node, self._inbox = node, Inbox(node)
        try:
            await node.start()
        except RaykaError as error:
            self._node, self._inbox = None, None
            node.kill()
            self._fail(str(error))
            return False
        spec = self._placement.spec
        if spec.transport == "auto":
            first, last = spec.transport_ports or (0, 0)
            self._lanes = LaneServer(self._inbox.start)
            self._lanes.start(self._host, range(first, last + 1))
        _logger.info(
            "%s runs on Ray node %s, process %d", self._name, self._placement.ray_node_id, os.getpid()
        )
        return True

    def _fail(self, reason: str) -> None:
        _logger.error("%s did not start: %s", self._name, reason)
        self._state, self._detail = NodeState.FAILED, reason

    def _status(self) -> StatusResponse:
        return StatusResponse(
            node_id=self._placement.node_id,
            roles=self._placement.roles,
            state=self._state,
            pid=os.getpid(),
            host=self._host,
            data_dirs=self._placement.directories,
            detail=self._detail,
            log_path=own_log_path(),
        )

    # ---- Crashing --------------------------------------------------------------------------------------------------

    def _on_start_done(self, task: asyncio.Task[None]) -> None:
        error = None if task.cancelled() else task.exception()
        if error is not None:
            self._crash(error)

    def _crash(self, error: BaseException) -> None:
        _logger.critical("%s ends: an exception that no code expected", self._name, exc_info=error)
        try:
            record_crash(self._placement.directories[0], wall_clock_ms())
            sys.stdout.flush()
            sys.stderr.flush()
        finally:
            # Whatever has failed above: a node that lives on without its tasks would look well.
            os._exit(1)

    @property
    def _name(self) -> str:
        return node_name(self._placement.node_id)


# ---- Crashes, memory, priority -------------------------------------------------------------------------------------


def record_crash(directory: str, now_ms: int) -> None:
    """Adds a crash of the node to the file in its directory, which outlives restarts. Does nothing if the directory is
    missing or cannot be written: the crash is the greater problem.

    More than three crashes in a minute are a loop that another restart will not end. A process that was
    killed from outside leaves no entry: Ray may restart it as often as it likes.
    """
    if os.path.isdir(directory):
        lines = [str(each) for each in [*recent_crashes(directory, now_ms), now_ms][-CRASHES_MAX:]]
        with suppress(OSError):
            Path(directory, FILE_NAME).write_bytes("\n".join(lines).encode())


def recent_crashes(directory: str, now_ms: int) -> list[int]:
    """Returns the times of the crashes of the last minute, by the wall clock in ms, oldest first.

    Ignores lines that are no times: a process reads the file while it ends, and must end whatever the file contains.
    """
    with suppress(OSError):
        lines = Path(directory, FILE_NAME).read_bytes().split()
        times = [int(line) for line in lines if line.isdigit() and len(line) <= _DIGITS_MAX]
        return [each for each in times if now_ms - WINDOW_MS < each <= now_ms]
    return []


def take_usual_niceness() -> None:
    """Gives the calling thread, and the threads that it starts, the usual priority for a processor.

    Ray starts its workers with a niceness of 15, so that tasks do not hold up Ray's own processes. Clients wait for a
    node as for these processes: with 15 the node waits whenever a client beside it computes. Does nothing where the
    system forbids it, as in a container without the right SYS_NICE.
    """
    if os.getpriority(os.PRIO_PROCESS, 0) > 0:
        with suppress(OSError):
            os.setpriority(os.PRIO_PROCESS, 0, 0)


def keep_freed_memory() -> None:
    """Lets this process keep up to KEPT_BYTES_MAX of freed memory. No effect with another C library than glibc.

    The C library gives blocks of a megabyte back to the kernel as soon as they are freed, and takes new ones for the
    next fetch. The first touch of new pages costs a broker as much as the rest of a fetch: 0.93 ms of processor time
    per MB against 0.45, measured. Kafka has its heap for that.
    """
    if not sys.platform.startswith("linux"):
        return
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(_M_MMAP_THRESHOLD, _BLOCK_BYTES_MAX)
        mallopt(_M_TRIM_THRESHOLD, KEPT_BYTES_MAX)


def set_modules_aside() -> None:
    """Exempts all present objects from garbage collection, in a process that has just loaded its modules.

    The collector visits all objects that have lived for a while in one turn of the event loop. Most of them belong to
    modules. Without them a collection takes 6 ms instead of 41, and a coordinator of a hundred groups that commit all
    the time saves an eighth of its processor time.
    """
    gc.freeze()
