"""What a consumer makes of the answer of a broker, partition by partition.

Invariants: what arrives counts only for the position that was asked from; an error that passes by itself is returned
for a retry, any other is raised to the application; a follower's error says nothing about the log, so the leader is
asked next. Kafka: FetchCollector (G2, G3, G15, G16).
"""

import logging

import numpy as np

from rayka.client.consumer.fetch_state import FetchState, FetchTicket
from rayka.client.consumer.local_reader import LocalReader
from rayka.client.loop_time import now_s
from rayka.errors import ApiError, ErrorCode, error_for, is_retriable
from rayka.ids import NO_NODE
from rayka.protocol.fetch import FetchPartitionResult

logger = logging.getLogger(__name__)


class FetchResults:
    """Brings results into the state of one consumer."""

    def __init__(self, state: FetchState, local: LocalReader | None, read_replica_ms: int) -> None:
        self._state = state
        self._local = local
        self._read_replica_ms = read_replica_ms

    def take(self, ticket: FetchTicket, result: FetchPartitionResult) -> ApiError | None:
        """Keeps the data; returns an error that a retry may mend."""
        tp, now_ms = ticket.topic_partition, int(now_s() * 1000)
        if result.error_code is ErrorCode.NONE and result.diverging_epoch is None:
            if result.preferred_read_replica != NO_NODE:
                until_ms = now_ms + self._read_replica_ms
                self._state.read_from(ticket, result.preferred_read_replica, until_ms)
            elif (buffers := self._buffers(result)) is not None:
                self._state.on_fetched(ticket, buffers, result.next_offset, result.last_fetched_epoch)
            return None
        if self._state.read_replicas.node_id(tp, now_ms) is not None:
            self._state.read_replicas.read_from_leader(tp)
            code = result.error_code or ErrorCode.NOT_LEADER_OR_FOLLOWER
            return error_for(code, f"{tp}: a follower says: {result.error_message or 'its log differs'}")
        if result.diverging_epoch is not None:
            logger.warning("%s: the log was truncated below %d", tp, ticket.fetch_offset)
            self._state.on_diverging(ticket, result.diverging_epoch)
            return None
        return self._on_error(ticket, result)

    def _on_error(self, ticket: FetchTicket, result: FetchPartitionResult) -> ApiError | None:
        """An error of the leader, which alone decides about offsets and epochs."""
        tp = ticket.topic_partition
        error = error_for(result.error_code, f"{tp}: {result.error_message}")
        if result.error_code is ErrorCode.OFFSET_OUT_OF_RANGE and self._state.reset(ticket):
            logger.warning("%s: offset %d is out of range; reset", tp, ticket.fetch_offset)
            return None
        if is_retriable(result.error_code) and result.error_code is not ErrorCode.CORRUPT_MESSAGE:
            return error
        self._state.on_error(ticket, error)
        return None

    def _buffers(self, result: FetchPartitionResult) -> tuple[np.ndarray, ...] | None:
        """The batches, mapped if they are in files here; None when a file was replaced meanwhile: ask again."""
        if not result.file_ranges:
            return (result.records,)
        assert self._local is not None
        return self._local.read(result.file_ranges, result.topic_id)
