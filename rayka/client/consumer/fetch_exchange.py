"""One fetch of a consumer, from the request to each partition of the answer; and the end of its fetch sessions.

Invariants: every failure is reported once: a failure that a pause may mend is returned, any other goes into the state,
from which the application gets it; data count only for the position that was asked from; a follower's error says
nothing about the log, so the leader is asked next.

Records in files of this machine are mapped instead of sent (`LocalReader`; decision 046). Kafka: AbstractFetch,
Fetcher, FetchCollector (G2, G3, G7, G14-G16).
"""

import asyncio
import logging
from collections.abc import Iterable, Sequence
from typing import NamedTuple
from uuid import UUID

import numpy as np

from rayka.client.call_watch import CallWatch
from rayka.client.consumer.fetch_plan import NodeFetches
from rayka.client.consumer.fetch_state import FetchState, FetchTicket
from rayka.client.metadata import ClusterMetadata
from rayka.client.retry import SOON_MAX
from rayka.clock import now_s
from rayka.config.client_config import ConsumerConfig
from rayka.errors import (
    ApiError,
    ErrorCode,
    NetworkException,
    RequestTimedOut,
    TooManyOpenFiles,
    error_for,
    is_retriable,
)
from rayka.ids import NO_NODE, TopicPartition
from rayka.log.mapped_reader import LocalDirectories, MappedReader
from rayka.log.segment import COPIED_RANGE_BYTES_MIN
from rayka.ports import Network
from rayka.protocol.fetch import (
    FINAL_SESSION_EPOCH,
    NO_SESSION,
    FetchOutcome,
    FetchPartitionResult,
    FetchRequest,
    FetchResponse,
    FileRange,
    SessionRequest,
)
from rayka.protocol.later import Later
from rayka.protocol.membership import MetadataBroker


class LocalReader:
    """Reads file ranges from the data directories of brokers on this machine."""

    def __init__(self) -> None:
        self._mapped = MappedReader()
        self._directories = LocalDirectories()

    def directory_ids(self, brokers: Sequence[MetadataBroker]) -> tuple[UUID, ...]:
        """The data directories of these brokers that this process can read."""
        return self._directories.ids(each for broker in brokers for each in broker.directories)

    def rack(self, brokers: Sequence[MetadataBroker]) -> str:
        """The rack of the first broker whose files this process can read; empty without one."""
        return next((each.rack for each in brokers if self._directories.ids(each.directories)), "")

    def read(self, ranges: Sequence[FileRange], topic_id: UUID) -> tuple[np.ndarray, ...] | None:
        """The bytes of the topic's ranges, mapped; None if a file is gone or was replaced: ask again."""
        buffers = []
        for each in ranges:
            try:
                view = self._mapped.read(each, topic_id)
            except TooManyOpenFiles as error:
                logger.warning("%s; asking over the network", error)
                self._directories.on_no_descriptor()
                return None
            self._directories.on_read(is_found=view is not None)
            if view is None:
                logger.info("%s is not what its broker described; asking again", each.path)
                return None
            buffers.append(np.frombuffer(view, dtype=np.uint8))
        return tuple(buffers)

    def close(self) -> None:
        """Closes the maps. Arrays that were handed out stay valid."""
        self._mapped.close()


_CLOSE_TIMEOUT_S = 0.2  # not worth more: brokers evict sessions that are not ended

logger = logging.getLogger(__name__)


Refused = tuple[FetchTicket, ApiError]


class FetchErrors(NamedTuple):
    """Errors that a pause may mend."""

    # The error of the whole broker.
    node_error: ApiError | None = None
    # Partitions with errors of their own.
    partitions: tuple[Refused, ...] = ()
    # Partitions whose leader epoch the broker does not know yet. A short pause is enough.
    behind: tuple[Refused, ...] = ()
    # How often in a row a broker was behind.
    behind_count: int = 0


class FetchExchange:
    """Sends the requests of `NodeFetches` and brings the responses into the state."""

    def __init__(
        self,
        network: Network,
        config: ConsumerConfig,
        metadata: ClusterMetadata,
        state: FetchState,
        calls: "CallWatch[NodeFetches]",
    ) -> None:
        self._network = network
        self._config = config
        self._metadata = metadata
        self._state = state
        self._calls = calls
        self._local = LocalReader() if config.local_reads else None
        # By partition, how often in a row its broker was behind.
        self._behind_counts: dict[TopicPartition, int] = {}

    def begin(self, node: NodeFetches, session: SessionRequest) -> Later[FetchResponse]:
        """Sends a request, and returns its answer."""
        timeout_ms = self._config.request_timeout_ms + self._config.fetch_max_wait_ms
        call = self._network.call(node.node_id, self._request(node, session), timeout_ms)
        return self._calls.answer(node.node_id, node, call)

    def finish(self, node: NodeFetches, number: int, outcome: FetchResponse | BaseException) -> FetchErrors:
        """Takes the outcome of the request of this number. Raises an exception that is no answer of a node."""
        if isinstance(outcome, ApiError):
            return self._on_failure(node, number, outcome)
        if isinstance(outcome, BaseException):
            node.stream.on_failure(number)
            raise outcome
        return self._on_response(node, number, outcome)

    def _on_response(self, node: NodeFetches, number: int, response: FetchResponse) -> FetchErrors:
        ending = node.stream.on_response(number, response)
        if ending is not FetchOutcome.ANSWERED:
            logger.debug("%r: %s", node, response.error_message)
            is_failed = ending is FetchOutcome.FAILED
            return FetchErrors(error_for(response.error_code, response.error_message) if is_failed else None)
        if size_bytes := sum(each.size_bytes for each in response.partitions):
            node.gets_many = size_bytes >= COPIED_RANGE_BYTES_MIN
        self._metadata.on_refused(response.partitions)
        refused: list[Refused] = []
        behind: list[Refused] = []
        for result in response.partitions:
            ticket = node.ticket(number, result)
            if ticket is None:
                continue
            problem = self.take(ticket, result)
            if problem is None:
                if self._behind_counts:
                    self._behind_counts.pop(ticket.topic_partition, None)
            elif not self._has_later_leader(ticket.topic_partition, node.leader_epoch(result)):
                (behind if self._is_behind(ticket, problem) else refused).append((ticket, problem))
        count = max((self._behind_counts[each.topic_partition] for each, _ in behind), default=0)
        return FetchErrors(None, tuple(refused), tuple(behind), count)

    def _is_behind(self, ticket: FetchTicket, problem: ApiError) -> bool:
        """Whether the broker does not know the leader epoch yet, but is likely to know it soon."""
        tp = ticket.topic_partition
        if problem.code is not ErrorCode.UNKNOWN_LEADER_EPOCH:
            self._behind_counts.pop(tp, None)
            return False
        self._behind_counts[tp] = count = self._behind_counts.get(tp, 0) + 1
        return count <= SOON_MAX

    def _has_later_leader(self, topic_partition: TopicPartition, leader_epoch: int) -> bool:
        """Whether a leader of a later epoch is known. That leader is asked without a pause."""
        known = self._metadata.partition(topic_partition.topic, topic_partition.partition)
        return known is not None and known.leader_id != NO_NODE and known.leader_epoch > leader_epoch

    def _request(self, node: NodeFetches, session: SessionRequest) -> FetchRequest:
        directory_ids: tuple[UUID, ...] = ()
        # Without a configured rack it is that of a broker on this machine, whose files this reader can open.
        rack = self._config.client_rack
        if self._local is not None:
            brokers = self._metadata.nodes.brokers
            directory_ids = self._local.directory_ids(brokers) if node.gets_many else ()
            rack = rack or self._local.rack(brokers)
        return FetchRequest(
            self._config.fetch_max_wait_ms if node.may_wait(session) else 0,
            self._config.fetch_min_bytes,
            self._config.fetch_max_bytes,
            session.partitions,
            local_directory_ids=directory_ids,
            session_id=session.session_id,
            session_epoch=session.session_epoch,
            forgotten=session.forgotten,
            rack_id=rack,
        )

    def _on_failure(self, node: NodeFetches, number: int, error: ApiError) -> FetchErrors:
        """Takes a failure of the call. The leaders are asked next, which may name another replica."""
        logger.debug("fetch from node %d: %s", node.node_id, error)
        if isinstance(error, (NetworkException, RequestTimedOut)):
            self._metadata.nodes.on_unanswered(node.node_id)
        if node.stream.on_failure(number) is FetchOutcome.OVERTAKEN:
            return FetchErrors()
        for ticket in node.tickets():
            self._state.read_replicas.read_from_leader(ticket.topic_partition)
            if not error.retriable:
                self._state.on_error(ticket, error)
        return FetchErrors(error)

    # ---- One partition of the answer -------------------------------------------------------------------------------

    def take(self, ticket: FetchTicket, result: FetchPartitionResult) -> ApiError | None:
        """Takes one partition of the answer. Returns an error that a retry may mend."""
        tp, now_ms = ticket.topic_partition, int(now_s() * 1000)
        if result.error_code is ErrorCode.NONE and result.diverging_epoch is None:
            if result.preferred_read_replica != NO_NODE:
                until_ms = now_ms + self._config.metadata_max_age_ms
                self._state.read_from(ticket, result.preferred_read_replica, until_ms)
            elif (buffers := self._buffers(result)) is not None:
                self._state.on_fetched(ticket, buffers, result.next_offset, result.last_fetched_epoch)
            return None
        if self._state.read_replicas.node_id(tp, now_ms) is not None:
            self._state.read_replicas.read_from_leader(tp)
            code = result.error_code or ErrorCode.NOT_LEADER_OR_FOLLOWER
            return error_for(code, f"{tp}: a follower says: {result.error_message or 'its log differs'}")
        if self._is_deposed(ticket):
            reason = f"{tp}: the leader that is known is of an epoch before that of the records read"
            return error_for(ErrorCode.NOT_LEADER_OR_FOLLOWER, reason)
        if result.diverging_epoch is not None:
            offset = self._state.on_diverging(ticket, result.diverging_epoch)
            logger.warning(
                "%s: records that were read are not in the log any more, from offset %d on; the position was %d",
                tp,
                offset,
                ticket.fetch_offset,
            )
            return None
        return self._on_leader_error(ticket, result)

    def _is_deposed(self, ticket: FetchTicket) -> bool:
        """Whether the known leader is older than the epoch of the position, which another member may have committed.
        Until a former leader learns of its successor, its log is no evidence that records were lost. Kafka:
        `ConsumerMetadata`, `updateLastSeenEpochIfNewer`.
        """
        known = self._metadata.partition(ticket.topic_partition.topic, ticket.topic_partition.partition)
        return known is not None and known.leader_epoch < ticket.last_fetched_epoch

    def _on_leader_error(self, ticket: FetchTicket, result: FetchPartitionResult) -> ApiError | None:
        """Takes an error of the leader, which alone decides about offsets and epochs."""
        tp = ticket.topic_partition
        error = error_for(result.error_code, f"{tp}: {result.error_message}")
        if result.error_code is ErrorCode.OFFSET_OUT_OF_RANGE and self._state.reset(ticket):
            # `FetchStarts` logs the new offset once it is known.
            return None
        if is_retriable(result.error_code) and result.error_code is not ErrorCode.CORRUPT_MESSAGE:
            return error
        self._state.on_error(ticket, error)
        return None

    def _buffers(self, result: FetchPartitionResult) -> tuple[np.ndarray, ...] | None:
        """The batches, mapped if they are in files here; None if a file was replaced since: ask again."""
        if not result.file_ranges:
            return (result.records,)
        assert self._local is not None
        return self._local.read(result.file_ranges, result.topic_id)

    # ---- End -------------------------------------------------------------------------------------------------------

    async def close(self, nodes: Iterable[NodeFetches]) -> None:
        """Ends the sessions with the brokers that answer soon, and closes the mapped files."""
        open_sessions = [each for each in nodes if each.session_id != NO_SESSION and not each.is_paused]
        try:
            async with asyncio.timeout(_CLOSE_TIMEOUT_S):
                await asyncio.gather(*map(self._end_session, open_sessions), return_exceptions=True)
        except TimeoutError:
            logger.debug("not all of %s confirmed the end of their sessions", open_sessions)
        if self._local:
            self._local.close()

    async def _end_session(self, node: NodeFetches) -> None:
        request = FetchRequest(0, 0, 0, (), session_id=node.session_id, session_epoch=FINAL_SESSION_EPOCH)
        await self._network.call(node.node_id, request, int(_CLOSE_TIMEOUT_S * 1000))
