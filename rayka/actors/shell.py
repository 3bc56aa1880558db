"""What every node's actor has in common: it starts the node by itself, hands it the calls, and ends when it must.

Ray reruns only the constructor when it restarts an actor, keeps an actor alive after an exception, and lets
background tasks die in silence. So the constructor starts the node, the task that does so is watched, and an
exception that no code expected ends the process (`os._exit`: Ray takes `exit_actor` for a wish), upon which Ray starts
another one (design §2, crash-only).

A start that is refused (a directory that is missing, locked, of another node or cluster) is no crash, and neither is
the fourth start within a minute of crashes: the node is FAILED, answers only `status`, with the reason, and tries
again, ever more rarely.
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
from rayka.actors.node_placement import Placement, wall_clock_ms
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

# The priority of a node's event loop among the processes of its machine.


def take_usual_niceness() -> None:
    """The calling thread, and those that it starts, wait for a processor no longer than those of other programs.

    Ray starts its workers with a niceness of 15, so that tasks hold up none of its own processes. A node is what others
    wait for, as these are: with 15 it waits whenever a client beside it has something to do. Where the system does not
    allow it (a container without the right SYS_NICE) the niceness stays as it is.
    """
    if os.getpriority(os.PRIO_PROCESS, 0) > 0:
        with suppress(OSError):
            os.setpriority(os.PRIO_PROCESS, 0, 0)


# A node's memory: what its process frees, it keeps for its next request, and what it has loaded is looked at no more.
#
# The C library gives blocks of a megabyte back to the kernel as soon as they are freed, and takes new ones for the
# next fetch: the first touch of new pages then costs a broker as much as all else it does for a fetch (measured: 0.93
# ms of processor time per MB against 0.45). Kafka has its heap for that.
#
# Python's garbage collector looks at all objects that have lived for a while in one turn of the event loop. Most of
# them are of modules: without them a look takes 6 ms instead of 41, and a coordinator of a hundred groups that commit
# all the time has an eighth of its processor time back.


KEPT_BYTES_MAX = 128 << 20
_BLOCK_BYTES_MAX = 32 << 20  # the largest that glibc takes
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3  # malloc.h


def keep_freed_memory() -> None:
    """Has this process keep up to KEPT_BYTES_MAX of freed memory. Without effect where the C library is another one."""
    if not sys.platform.startswith("linux"):
        return
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(_M_MMAP_THRESHOLD, _BLOCK_BYTES_MAX)
        mallopt(_M_TRIM_THRESHOLD, KEPT_BYTES_MAX)


def set_modules_aside() -> None:
    """Has the garbage collector look no more at what is there now, in a process that has just loaded its modules."""
    gc.freeze()


# When a node's process ended itself after an unexpected exception, kept in its directory across restarts.
#
# Three crashes in a minute are a loop that a further restart will not end (design §2). A process killed from outside
# leaves no entry: Ray may restart it as often as it likes.


CRASHES_MAX = 3
WINDOW_MS = 60_000
FILE_NAME = "crash-times"
_DIGITS_MAX = 15  # `int` refuses thousands of them


def record_crash(directory: str, now_ms: int) -> None:
    """Adds a crash; nothing when the directory is not there or cannot be written, which is then the lesser problem."""
    if os.path.isdir(directory):
        lines = [str(each) for each in [*recent_crashes(directory, now_ms), now_ms][-CRASHES_MAX:]]
        with suppress(OSError):
            Path(directory, FILE_NAME).write_bytes("\n".join(lines).encode())


def recent_crashes(directory: str, now_ms: int) -> list[int]:
    """Times of the crashes of the last minute, by the wall clock in ms, oldest first.

    The process reads the file while it ends, and must end whatever is in it: what is not a time is skipped.
    """
    with suppress(OSError):
        lines = Path(directory, FILE_NAME).read_bytes().split()
        times = [int(line) for line in lines if line.isdigit() and len(line) <= _DIGITS_MAX]
        return [each for each in times if now_ms - WINDOW_MS < each <= now_ms]
    return []


_RETRY_FIRST_S, _RETRY_MAX_S = 1.0, 60.0

_logger = logging.getLogger(__name__)


class StartableNode(Node, Protocol):
    """A node as its shell sees it."""

    async def start(self) -> None: ...

    async def stop(self) -> None: ...

    def kill(self) -> None: ...


@dataclass(frozen=True, slots=True)
class NodeProcess:
    """What an actor was made from, the process that it is now, and Ray's ids of that and of its machine."""

    placement: Placement
    pid: int
    worker_id: str
    ray_node_id: str


class NodeShell:
    """One node in this process. Everything runs on the actor's event loop."""

    def __init__(self, make_node: Callable[[NodeSettings], StartableNode], placement: Placement) -> None:
        begin_log(actor_name(placement.spec.name, placement.node_id))
        keep_freed_memory()
        set_modules_aside()
        take_usual_niceness()
        raise_limit()
        self._make_node = make_node
        self._placement = placement
        self._disk = LocalDisk(hang_timeout_s=placement.spec.config.log_dir_hang_timeout_ms / 1000)
        self._host = ray.util.get_node_ip_address()
        self._node: StartableNode | None = None
        self._inbox: Inbox | None = None
        self._lanes: LaneServer | None = None
        self._state = NodeState.STARTING
        self._detail = ""
        self._starting = asyncio.get_running_loop().create_task(self._run(), name="start")
        self._starting.add_done_callback(self._on_start_done)

    def __repr__(self) -> str:
        return f"<NodeShell {self._name} {self._state} {self._detail}>"

    async def handle(self, api_name: str, call: PackedCall) -> PackedAnswer:
        """One call, executed by the node; while there is none, only `status` is answered."""
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
        """What this actor was made from and which process it is."""
        context = ray.get_runtime_context()
        return NodeProcess(self._placement, os.getpid(), context.get_worker_id(), context.get_node_id())

    def open_lane(self) -> bytes:
        """An encoded `LaneOffer`; without addresses while the node does not run."""
        return encode(LaneOffer("", "", 0, b"") if self._lanes is None else self._lanes.offer()).body

    async def stop(self) -> None:
        """Stops the node under control, or the attempts to start it; nothing is left to do but end the process.

        Until it has stopped it is handed calls: a controller that hands over answers those that vote (A23).
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
        """Stops the broker under control and leaves the controller, which others need for the same; nothing where the
        node is not both.
        """
        if isinstance(self._node, CombinedNode) and self._starting.done():
            await self._node.stop_broker()

    # ---- Starting --------------------------------------------------------------------------------------------------

    async def _run(self) -> None:
        directory = self._placement.directories[0]
        crashes = recent_crashes(directory, wall_clock_ms())
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
        self._serve_lanes(self._inbox)
        _logger.info(
            "%s runs on Ray node %s, process %d", self._name, self._placement.ray_node_id, os.getpid()
        )
        return True

    def _serve_lanes(self, inbox: Inbox) -> None:
        spec = self._placement.spec
        if spec.transport == "auto":
            first, last = spec.transport_ports or (0, 0)
            self._lanes = LaneServer(inbox.start)
            self._lanes.start(self._host, range(first, last + 1))

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
            os._exit(1)  # whatever has failed above: a node that lives on without its tasks would look well

    @property
    def _name(self) -> str:
        return node_name(self._placement.node_id)
