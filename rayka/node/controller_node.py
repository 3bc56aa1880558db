"""A controller: the node that keeps `__cluster_metadata` and decides over brokers, topics and leaders.

One method for each API that it serves, request to response; what is refused is raised as ApiError, and any other
exception is a bug that ends the node. Life: `start` opens the directory, gets elected, replays what is committed and
only then serves (A41); `stop` leaves a clean log; `kill` is the end of the process without its end. A disk that fails
makes the node FAILED: it goes on answering, `status` with the cause and everything else with KAFKA_STORAGE_ERROR.
Kafka: `ControllerServer`, `ControllerApis`, `QuorumController`.
"""

import asyncio
import logging
from dataclasses import dataclass
from typing import Any

import msgspec

from rayka.controller.controller import BootstrapMetadata, Controller, FenceStaleBroker
from rayka.errors import KafkaStorageError, NotController, RequestTimedOut, StorageError
from rayka.ids import Role, node_name
from rayka.metadata.records import MetadataRecord
from rayka.node.controller_requests import (
    check_create_topics,
    check_delete_topics,
    check_fetch,
    check_heartbeat,
    check_register_broker,
)
from rayka.node.metadata_log import MetadataLog
from rayka.node.settings import NodeSettings
from rayka.node.tasks import Tasks
from rayka.protocol.cluster import (
    HeartbeatRequest,
    HeartbeatResponse,
    MetadataRequest,
    MetadataResponse,
    NodeState,
    RegisterBrokerRequest,
    RegisterBrokerResponse,
    StatusRequest,
    StatusResponse,
)
from rayka.protocol.fetch import FetchRequest, FetchResponse
from rayka.protocol.topics import (
    CreateTopicsRequest,
    CreateTopicsResponse,
    DeleteTopicsRequest,
    DeleteTopicsResponse,
)
from rayka.shard.runtime import Pending, ShardRuntime

COMMIT_TIMEOUT_MS = 30_000
SWEEPS_PER_SESSION = 8  # H6
_logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class _Active:
    """What an active controller works with."""

    log: MetadataLog
    controller: Controller
    runtime: ShardRuntime[MetadataRecord]


class ControllerNode:
    """One controller in one process; `settings.data_dirs[0]` is its directory, formatted before."""

    def __init__(self, settings: NodeSettings) -> None:
        self._settings = settings
        self._tasks = Tasks(settings.crash)
        self._state = NodeState.STARTING
        self._failure: StorageError | None = None
        self._log: MetadataLog | None = None
        self._active: _Active | None = None
        self._waiting: dict[Pending, asyncio.Future[None]] = {}

    def __repr__(self) -> str:
        return f"<ControllerNode {self._name} {self._state} {self._log!r}>"

    @property
    def settings(self) -> NodeSettings:
        return self._settings

    # ---- Life --------------------------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Returns when this node is the active controller. Raises StorageError when its directory cannot be used."""
        try:
            self._log = await MetadataLog.open(self._settings)
            await self._activate(self._log)
        except BaseException as error:
            self.kill()
            if isinstance(error, StorageError):
                self._fail(error)
            raise

    async def _activate(self, log: MetadataLog) -> None:
        settings = self._settings
        await log.lead()
        controller = Controller(
            cluster_id=log.cluster_id,
            node_id=settings.node_id,
            config=settings.config,
            random=settings.random,
        )
        runtime = ShardRuntime(controller, log)
        runtime.replay_committed(log.committed_records())
        self._active = _Active(log, controller, runtime)
        self._tasks.start("flush", self._flush(log))
        await self._submit(BootstrapMetadata())
        self._state = NodeState.RUNNING
        self._tasks.start("sweep", self._sweep(self._active))

    async def stop(self) -> None:
        """Answers what waits with NOT_CONTROLLER and closes the log cleanly, unless its disk has failed."""
        self._state = NodeState.SHUTTING_DOWN
        await self._tasks.stop()
        active, self._active = self._active, None
        if active is not None:
            self._complete(active.runtime.fail(NotController(f"{self._name} is shutting down")))
        log, self._log = self._log, None
        if log is not None:
            await log.close()

    def kill(self) -> None:
        """The end of the process: nothing is written any more, nothing answered, and the lock is free."""
        self._tasks.abandon()
        for future in self._waiting.values():
            future.cancel()
        self._active = None
        log, self._log = self._log, None
        if log is not None:
            log.release()

    # ---- Requests ----------------------------------------------------------------------------------------------------

    async def fetch(self, request: FetchRequest) -> FetchResponse:
        log = self._serving().log
        check_fetch(request, log.cluster_id)
        return await log.fetch(request)

    async def metadata(self, request: MetadataRequest) -> MetadataResponse:
        await self._until_committed(request.min_metadata_offset)
        response: MetadataResponse = await self._submit(request)
        return response

    async def create_topics(self, request: CreateTopicsRequest) -> CreateTopicsResponse:
        check_create_topics(request)
        response: CreateTopicsResponse = await self._submit(request)
        return response

    async def delete_topics(self, request: DeleteTopicsRequest) -> DeleteTopicsResponse:
        check_delete_topics(request)
        response: DeleteTopicsResponse = await self._submit(request)
        return response

    async def register_broker(self, request: RegisterBrokerRequest) -> RegisterBrokerResponse:
        check_register_broker(request)
        response: RegisterBrokerResponse = await self._submit(request)
        return response

    async def heartbeat(self, request: HeartbeatRequest) -> HeartbeatResponse:
        check_heartbeat(request)
        active = self._serving()
        active.controller.on_heartbeat(request, now_ms=self._now_ms(), next_offset=active.log.next_offset)
        response: HeartbeatResponse = await self._submit(request)
        return response

    async def status(self, request: StatusRequest) -> StatusResponse:
        """How this node is; it answers whatever has happened to it."""
        status = StatusResponse(
            node_id=self._settings.node_id,
            roles=(Role.CONTROLLER,),
            state=self._state,
            pid=self._settings.pid,
            host=self._settings.host,
            data_dirs=self._settings.data_dirs,
            detail=str(self._failure or ""),
        )
        if self._active is None:
            return status
        log = self._active.log
        return msgspec.structs.replace(
            status,
            cluster_id=log.cluster_id,
            leader_id=log.election.leader_id,
            leader_epoch=log.election.leader_epoch,
            log_end_offset=log.log_end_offset,
            high_watermark=log.high_watermark,
            size_bytes=log.size_bytes,
        )

    # ---- Committing --------------------------------------------------------------------------------------------------

    def _serving(self) -> _Active:
        if self._failure is not None:
            raise KafkaStorageError(f"{self._name} cannot use its disk: {self._failure}")
        if self._active is None:
            raise NotController(f"{self._name} is {self._state}; it does not lead the metadata")
        return self._active

    async def _submit(self, request: Any) -> Any:
        """The response, once it and everything before it is committed. Raises the ApiError that refuses it."""
        runtime = self._serving().runtime
        pending = self._run(request)
        if not pending.is_done:
            await self._until_done(pending, runtime)
        if pending.error is not None:
            raise pending.error
        return pending.response

    def _run(self, request: Any) -> Pending:
        now_ms = self._now_ms()
        return self._serving().runtime.handle(request, now_ms=now_ms, deadline_ms=now_ms + COMMIT_TIMEOUT_MS)

    async def _until_done(self, pending: Pending, runtime: ShardRuntime[MetadataRecord]) -> None:
        loop = asyncio.get_running_loop()
        future = self._waiting[pending] = loop.create_future()
        timer = loop.call_later(
            COMMIT_TIMEOUT_MS / 1000, lambda: self._complete(runtime.expire(pending.deadline_ms))
        )
        try:
            await future
        finally:
            timer.cancel()
            del self._waiting[pending]

    def _complete(self, ended: list[Pending]) -> None:
        for pending in ended:
            future = self._waiting.get(pending)  # a timer's request has none
            if future is not None and not future.done():
                future.set_result(None)

    async def _until_committed(self, offset: int) -> None:
        loop = asyncio.get_running_loop()
        deadline_s = loop.time() + COMMIT_TIMEOUT_MS / 1000
        while self._serving().log.high_watermark < offset:
            if loop.time() >= deadline_s:
                raise RequestTimedOut(f"{self._name} has not committed offset {offset} in time")
            await self._serving().log.news.wait(deadline_s)

    # ---- Background --------------------------------------------------------------------------------------------------

    async def _flush(self, log: MetadataLog) -> None:
        try:
            await log.flush_forever(self._on_committed)
        except StorageError as error:
            self._fail(error)

    def _on_committed(self) -> None:
        self._complete(self._serving().runtime.on_high_watermark())

    async def _sweep(self, active: _Active) -> None:
        """Fences brokers whose session has ended, one record batch each (H6)."""
        interval_s = self._settings.config.broker_session_timeout_ms / SWEEPS_PER_SESSION / 1000
        while self._failure is None:
            active.controller.on_sweep(now_ms=self._now_ms(), next_offset=active.log.next_offset)
            while self._run(FenceStaleBroker()).response:
                pass
            await asyncio.sleep(interval_s)

    def _fail(self, error: StorageError) -> None:
        _logger.error("%s: %s", self._name, error)
        self._failure = error
        self._state = NodeState.FAILED
        if self._active is not None:
            self._complete(self._active.runtime.fail(KafkaStorageError(f"{self._name}: {error}")))

    @property
    def _name(self) -> str:
        return node_name(self._settings.node_id)

    @staticmethod
    def _now_ms() -> int:
        return int(asyncio.get_running_loop().time() * 1000)
