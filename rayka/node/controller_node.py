"""A controller: a replica of `__cluster_metadata`, and, while it leads, the node that decides over brokers, topics and
leaders.

The table of APIs says which requests the replica of the log answers and which the state machine. A refused request
raises ApiError; any other exception is a bug that ends the node. Life: `start` opens the directory and returns when
calls are taken, whether there is a quorum or not; the active controller serves the metadata, and the others name it.
`stop` resigns and leaves a clean log; `kill` leaves everything as a killed process does. A disk that fails makes the
node FAILED: it goes on answering, `status` with the cause and everything else with KAFKA_STORAGE_ERROR.

Kafka: `ControllerServer`, `ControllerApis`, `QuorumController`.
"""

import logging
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import Any

import msgspec

from rayka.clock import now_ms
from rayka.controller.configuration_control import unheeded_min_isr
from rayka.controller.controller import BootstrapMetadata, Controller
from rayka.errors import (
    ErrorCode,
    InvariantBroken,
    KafkaStorageError,
    NotController,
    RaykaError,
    StorageError,
)
from rayka.ids import NO_NODE, Role, node_name
from rayka.metadata.image import MetadataImage
from rayka.metadata.metadata_records import MetadataRecord
from rayka.node.metadata_follower import METADATA_CODEC
from rayka.node.quorum_driver import QuorumDriver
from rayka.node.quorum_log import QuorumLog
from rayka.node.quorum_requests import QuorumRequests
from rayka.node.replicated_shard import ReplicatedShard
from rayka.node.settings import NodeSettings
from rayka.node.snapshot_generator import SnapshotGenerator
from rayka.node.tasks import Tasks
from rayka.ports import Message, Request
from rayka.protocol.apis import ServedBy, api_of
from rayka.protocol.events import RecordEventRequest
from rayka.protocol.membership import (
    HeartbeatRequest,
    MetadataRequest,
    NodeState,
    ReportExitRequest,
    StatusRequest,
    StatusResponse,
)
from rayka.protocol.quorum_messages import AddRaftVoterRequest, RemoveRaftVoterRequest, VoterChangeResponse

_logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class ControllerParts:
    """The parts of a controller whose directory is open."""

    driver: QuorumDriver
    requests: QuorumRequests
    shard: ReplicatedShard[Controller, MetadataRecord]

    def image(self) -> MetadataImage:
        return self.shard.shard.image(self.shard.replayed_offset)


class ControllerNode:
    """One controller in one process; `settings.data_dirs[0]` is its directory, formatted before."""

    serves = ServedBy.CONTROLLER | ServedBy.QUORUM

    def __init__(self, settings: NodeSettings) -> None:
        self.settings = settings
        self._name = node_name(settings.node_id)
        self._tasks = Tasks(settings.crash)
        self.state = NodeState.STARTING
        self._failure: RaykaError | None = None
        self._parts: ControllerParts | None = None

    def __repr__(self) -> str:
        return f"<ControllerNode {self._name} {self.state} {self._parts.driver if self._parts else None!r}>"

    @property
    def is_active(self) -> bool:
        """True while this is the active controller."""
        return self._parts is not None and self._parts.shard.is_active

    @property
    def observed(self) -> ControllerParts | None:
        """The parts, for checkers to read; None while the log is not open."""
        return self._parts

    # ---- Life --------------------------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Returns when the node takes calls; it need not be active, nor any other controller. Raises StorageError when
        its directory cannot be used.
        """
        try:
            driver = await QuorumDriver.open(self.settings, self._tasks)
        except BaseException as error:
            self.kill()
            if isinstance(error, StorageError):
                self._fail(error)
            raise
        shard: ReplicatedShard[Controller, MetadataRecord] = ReplicatedShard(
            self.settings.node_id,
            QuorumLog(driver, METADATA_CODEC),
            lambda: self._new_controller(driver.directory.cluster_id),
            on_active=self._on_active,
            # So that deltas stay small.
            on_replayed=lambda: shard.shard.image(shard.replayed_offset),
            steps_per_turn=self.settings.steps_per_turn,
        )
        self._parts = ControllerParts(driver, QuorumRequests(driver, self.settings.config), shard)
        self.state = NodeState.RUNNING
        self._tasks.start("quorum", self._until_disk_fails(driver.run))
        self._tasks.start("shard", self._until_disk_fails(shard.run))
        snapshots = SnapshotGenerator(self.settings, driver, shard, METADATA_CODEC)
        self._tasks.start("snapshots", self._until_disk_fails(snapshots.run))

    def _new_controller(self, cluster_id: str) -> Controller:
        return Controller(
            cluster_id=cluster_id,
            node_id=self.settings.node_id,
            config=self.settings.config,
            random=self.settings.random,
            wall_clock_ms=self.settings.wall_clock_ms,
        )

    async def stop(self) -> None:
        """Resigns (A23), answers waiting requests with NOT_CONTROLLER, and closes the log cleanly, unless its disk has
        failed.
        """
        self.state = NodeState.SHUTTING_DOWN
        if self._parts is not None and self._failure is None:
            await self._parts.driver.shut_down()
        await self._tasks.stop()
        parts, self._parts = self._parts, None
        if parts is not None:
            parts.shard.end(NotController(f"{self._name} is shutting down", may_have_run=True))
            await parts.driver.close()

    def kill(self) -> None:
        """Ends as a killed process does: writes and answers nothing any more, and releases the lock."""
        self._tasks.abandon()
        parts, self._parts = self._parts, None
        if parts is not None:
            parts.shard.abandon()
            parts.driver.release()

    # ---- Requests ----------------------------------------------------------------------------------------------------

    def handle(self, request: Request[Any]) -> Coroutine[Any, Any, Any]:
        """The answer of the replica of the log, or of the state machine, as the API's row in the table says."""
        if isinstance(request, StatusRequest):
            return self._status()
        if isinstance(request, AddRaftVoterRequest | RemoveRaftVoterRequest):
            return self._change_voters(request)
        if ServedBy.QUORUM in api_of(request).served_by:
            return self._open().requests.handle(request)
        return self._submit(request)

    async def _change_voters(
        self, request: AddRaftVoterRequest | RemoveRaftVoterRequest
    ) -> VoterChangeResponse:
        """The answer of the quorum. A change is recorded as an event, but by a leader that has removed itself."""
        parts = self._open()
        response: VoterChangeResponse = await parts.requests.handle(request)
        if response.error_code is ErrorCode.NONE and parts.shard.is_active:
            is_added = isinstance(request, AddRaftVoterRequest)
            kind, what = ("voter-added", "got a") if is_added else ("voter-removed", "lost its")
            reason = f"it {what} vote in the quorum, with directory {request.voter.directory_id}"
            timestamp_ms, node_ids = self.settings.wall_clock_ms(), (request.voter.node_id,)
            parts.shard.run_request(RecordEventRequest.of_nodes(timestamp_ms, kind, node_ids, reason))
        return response

    async def _submit(self, request: Request[Any]) -> Message:
        """The answer of the state machine. A heartbeat or an exit changes its soft state at once, before its turn."""
        shard = self._open().shard
        shard.check_active()
        match request:
            case MetadataRequest():
                await shard.until_committed(request.min_metadata_offset)
            case HeartbeatRequest():
                shard.shard.on_heartbeat(request, now_ms=now_ms(), next_offset=shard.replayed_offset)
            case ReportExitRequest():
                shard.shard.on_exit(request, next_offset=shard.replayed_offset)
        response: Message = await shard.submit(request)
        return response

    async def _status(self) -> StatusResponse:
        """The status of this node, active or not, in whatever state it is."""
        status = self.settings.status(self.state, (Role.CONTROLLER,), str(self._failure or ""))
        if self._parts is None:
            return status
        driver, log = self._parts.driver, self._parts.driver.directory.log
        election = driver.quorum.election
        has_failed = self._failure is not None
        return msgspec.structs.replace(
            status,
            detail=status.detail or driver.peers.commit_problem(now_ms()),
            cluster_id=driver.directory.cluster_id,
            leader_id=NO_NODE if has_failed else election.leader_id,
            leader_epoch=election.leader_epoch,
            log_end_offset=log.log_end_offset,
            high_watermark=driver.quorum.high_watermark,
            size_bytes=log.segments.size_bytes,
        )

    def _open(self) -> ControllerParts:
        if self._failure is not None:
            raise KafkaStorageError(f"{self._name} cannot use its disk: {self._failure}")
        if self._parts is None:
            raise NotController(f"{self._name} is {self.state}; it does not lead the metadata")
        return self._parts

    # ---- Being active ------------------------------------------------------------------------------------------------

    def _on_active(self) -> None:
        """Writes the first records if there are none (A67). Elections that another controller began are finished by the
        first timer.
        """
        if self._parts is None:
            raise InvariantBroken(f"{self!r} is not open")
        pending = self._parts.shard.run_request(BootstrapMetadata())
        if pending.error is not None:
            self._fail(pending.error)
            return
        unheeded = unheeded_min_isr(self._parts.image(), self.settings.config)
        if unheeded:
            _logger.warning("%s: %s", self._name, unheeded)
        _logger.info("%s is the active controller, %r", self._name, self._parts.driver)

    # ---- Failing -----------------------------------------------------------------------------------------------------

    async def _until_disk_fails(self, run: Callable[[], Coroutine[Any, Any, None]]) -> None:
        try:
            await run()
        except StorageError as error:
            self._fail(error)

    def _fail(self, error: RaykaError) -> None:
        if self._failure is not None:
            return
        _logger.error("%s: %s", self._name, error)
        self._failure = error
        self.state = NodeState.FAILED
        if self._parts is not None:
            self._parts.driver.fail(error if isinstance(error, StorageError) else StorageError(str(error)))
            self._parts.shard.end(KafkaStorageError(f"{self._name}: {error}"))
