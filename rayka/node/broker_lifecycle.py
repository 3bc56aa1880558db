"""A broker and its controller: the broker registers, says every two seconds that it lives, and asks for what it wants.

Invariants: one incarnation is one process. A heartbeat carries the epoch of this incarnation's registration, so a
controller never takes an older process for this one. Heartbeats go on, at a growing pause, while no controller answers.
Kafka: `BrokerLifecycleManager` (H1-H5).
"""

import asyncio
import logging

from rayka.clock import now_s
from rayka.config.broker_config import BROKER_KEYS
from rayka.config.config_model import snake
from rayka.errors import (
    ApiError,
    BrokerNotAvailable,
    DuplicateBrokerRegistration,
    ErrorCode,
    NotController,
    RetriableApiError,
    UnavailableError,
    error_for,
)
from rayka.ids import NO_EPOCH, random_uuid
from rayka.metadata.metadata_records import METADATA_VERSION_MAX, METADATA_VERSION_MIN
from rayka.node.controller_link import ControllerLink, Pauses
from rayka.node.data_directories import DataDirectories
from rayka.node.load_meter import LoadMeter
from rayka.node.metadata_follower import MetadataFollower
from rayka.node.settings import NodeSettings
from rayka.node.tasks import Repeats
from rayka.protocol.membership import (
    HeartbeatRequest,
    HeartbeatResponse,
    MetadataRequest,
    RegisterBrokerRequest,
    RegisterBrokerResponse,
)
from rayka.protocol.produce import AllocateProducerIdsRequest
from rayka.protocol.topics import CreateTopicsRequest, NewTopic

# The interval of heartbeats until the controller has granted a request.
_ASK_AGAIN_MS = 20
_CALL_TIMEOUT_MS = 5_000
_SHUTDOWN_FAILURES_MAX = 3
_logger = logging.getLogger(__name__)


class BrokerLifecycle:
    """One broker process as the controller knows it."""

    def __init__(
        self,
        settings: NodeSettings,
        link: ControllerLink,
        directories: DataDirectories,
        follower: MetadataFollower,
        meter: LoadMeter,
    ) -> None:
        self._settings = settings
        self._link = link
        self._directories = directories
        self._follower = follower
        self._meter = meter
        texts = settings.config.overrides()
        self._started_with = {key: texts[key] for key in texts if snake(key) in BROKER_KEYS}
        # No longer than the quorum needs before there can be a successor: then the broker looks for it.
        self._call_timeout_ms = settings.config.controller_quorum_request_timeout_ms
        self._is_fenced = True
        self._wants_fence = True
        self._wants_shut_down = False
        self._failures_in_shutdown = 0
        # Each fail-over has some.
        self._failures = Repeats(_logger, logging.INFO)
        self._woken = asyncio.Event()
        self._unfenced = asyncio.Event()
        self._may_end = asyncio.Event()
        self.incarnation_id = random_uuid(settings.random)
        self._heartbeat_count = 0
        self.broker_epoch = NO_EPOCH

    def __repr__(self) -> str:
        state = "fenced" if self._is_fenced else "unfenced"
        return f"<BrokerLifecycle {self._settings.node_id} epoch={self.broker_epoch} {state}>"

    # ---- Registration ----------------------------------------------------------------------------------

    async def register(self) -> RegisterBrokerResponse:
        """Registers this incarnation; tries again while no controller answers or an older process may live (H1, H2).

        Raises the controller's refusal, and UnavailableError when the time for it is over.
        """
        timeout_ms = self._settings.config.initial_broker_registration_timeout_ms
        deadline_s = now_s() + timeout_ms / 1000
        pauses = Pauses()
        while True:
            try:
                if self._directories.absent:
                    known = await self._link.call(MetadataRequest(()), self._call_timeout_ms)
                    own = [each for each in known.brokers if each.node_id == self._settings.node_id]
                    self._directories.learn(directory for each in own for directory in each.directories)
                response = await self._link.call(self._registration(), self._call_timeout_ms)
            except (RetriableApiError, DuplicateBrokerRegistration) as error:
                if now_s() >= deadline_s:
                    raise UnavailableError(
                        f"broker {self._settings.node_id} could not register within {timeout_ms} ms: {error}"
                    ) from error
                self._failures.failed(
                    "register", f"broker {self._settings.node_id} is not registered yet: {error}"
                )
                await pauses.pause()
            else:
                self.broker_epoch = response.broker_epoch
                return response

    def _registration(self) -> RegisterBrokerRequest:
        return RegisterBrokerRequest(
            broker_id=self._settings.node_id,
            cluster_id=self._directories.cluster_id,
            incarnation_id=self.incarnation_id,
            host=self._settings.host,
            directories=self._directories.registered(),
            previous_broker_epoch=self._directories.previous_broker_epoch,
            rack=self._settings.rack,
            min_metadata_version=METADATA_VERSION_MIN,
            max_metadata_version=METADATA_VERSION_MAX,
            known_broker_epoch=self._directories.known_broker_epoch,
            roles=self._settings.roles,
        )

    # ---- Requests to the controller -------------------------------------------------------------------------

    async def unfence(self) -> None:
        """Returns when the controller lets the broker serve."""
        self._wants_fence = False
        self.wake()
        await self._unfenced.wait()

    async def shut_down(self) -> None:
        """Returns when the controller has moved the leads that it can, no longer answers, or the time for it is over
        (H5).
        """
        self._wants_shut_down = True
        self.wake()
        try:
            async with asyncio.timeout(self._settings.config.controlled_shutdown_timeout_ms / 1000):
                await self._may_end.wait()
        except TimeoutError:
            _logger.warning("broker %d ends without the controller's consent", self._settings.node_id)

    async def create_internal_topic(self, topic: NewTopic) -> int:
        """Creates a topic that the cluster needs for itself, unless it exists. Returns the metadata offset of a broker
        that knows the topic. Raises the ApiError that refuses it. Kafka: `AutoTopicCreationManager`.
        """
        request = CreateTopicsRequest((topic,), self._settings.node_id, self.broker_epoch)
        response = await self._link.call(request, _CALL_TIMEOUT_MS)
        (result,) = response.topics
        if result.error_code not in (ErrorCode.NONE, ErrorCode.TOPIC_ALREADY_EXISTS):
            raise error_for(result.error_code, result.error_message)
        return response.metadata_offset

    async def allocate_producer_ids(self) -> range:
        """Asks for a block of ids that no other broker has. Raises BrokerNotAvailable while the controller gives
        none.
        """
        request = AllocateProducerIdsRequest(self._settings.node_id, self.broker_epoch)
        try:
            block = await self._link.call(request, _CALL_TIMEOUT_MS)
        except ApiError as error:
            raise BrokerNotAvailable(
                f"broker {self._settings.node_id} has no producer ids left, and the controller gives none: {error}"
            ) from error
        return range(block.producer_id_start, block.producer_id_start + block.producer_id_count)

    def wake(self) -> None:
        """Sends a heartbeat now instead of in two seconds."""
        self._woken.set()

    # ---- Heartbeats ------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Sends heartbeats for ever. Raises StaleBrokerEpoch or BrokerIdNotRegistered when this incarnation is over."""
        pauses = Pauses()
        while True:
            request = self._heartbeat()
            try:
                response = await self._link.call(request, self._call_timeout_ms)
            except RetriableApiError as error:
                self._failures.failed("heartbeat", f"{self!r}: no controller takes its heartbeats: {error}")
                self._on_unanswered(error)
                await self._wait(pauses.next_ms())
            else:
                pauses.reset()
                self._failures.succeeded("heartbeat")
                self._meter.on_reported(request.load)
                self._on_response(response)
                await self._wait(self._interval_ms())

    def _heartbeat(self) -> HeartbeatRequest:
        self._heartbeat_count += 1
        load = self._meter.unreported
        return HeartbeatRequest(
            broker_id=self._settings.node_id,
            broker_epoch=self.broker_epoch,
            current_metadata_offset=self._follower.image.next_offset - 1,
            want_fence=self._wants_fence,
            want_shut_down=self._wants_shut_down,
            offline_directory_ids=self._directories.offline_ids(),
            recovered_directory_ids=self._directories.recovered_ids(),
            number=self._heartbeat_count,
            directory_size_bytes=self._directories.size_bytes,
            load=load,
            offline_reasons=self._directories.offline_reasons(),
            started_with={} if load is None else self._started_with,
        )

    def _on_response(self, response: HeartbeatResponse) -> None:
        if response.is_fenced != self._is_fenced:
            _logger.info(
                "broker %d is %s", self._settings.node_id, "fenced" if response.is_fenced else "unfenced"
            )
        self._is_fenced = response.is_fenced
        if not response.is_fenced:
            self._unfenced.set()
        if response.should_shut_down:
            self._may_end.set()

    def _on_unanswered(self, error: RetriableApiError) -> None:
        """Lets a shutdown end when no controller answers: there may be none left. An answer that no controller is
        active means that there will be one.
        """
        if self._wants_shut_down and not isinstance(error, NotController):
            self._failures_in_shutdown += 1
            if self._failures_in_shutdown >= _SHUTDOWN_FAILURES_MAX:
                self._may_end.set()

    def _interval_ms(self) -> int:
        has_what_it_wants = self._is_fenced == self._wants_fence and not self._wants_shut_down
        return self._settings.config.broker_heartbeat_interval_ms if has_what_it_wants else _ASK_AGAIN_MS

    async def _wait(self, pause_ms: int) -> None:
        try:
            async with asyncio.timeout(pause_ms / 1000):
                await self._woken.wait()
        except TimeoutError:
            return
        self._woken.clear()
