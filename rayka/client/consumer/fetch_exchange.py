"""One fetch of a consumer, from the request to the results; and the end of its fetch sessions.

Invariants: every failure is reported once: one that a pause may mend is returned, any other goes into the state, from
which the application gets it. Kafka: AbstractFetch, Fetcher (G7, G14).
"""

import asyncio
import logging
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from rayka.client.call_watch import CallWatch
from rayka.client.consumer.fetch_results import FetchResults
from rayka.client.consumer.fetch_state import FetchState, FetchTicket
from rayka.client.consumer.local_reader import LocalReader
from rayka.client.consumer.node_fetches import NodeFetches
from rayka.client.metadata import ClusterMetadata
from rayka.config import ConsumerConfig
from rayka.errors import ApiError, NetworkException, RequestTimedOut, error_for
from rayka.ports import Network
from rayka.protocol.fetch import (
    FINAL_SESSION_EPOCH,
    NO_SESSION,
    FetchPartitionResult,
    FetchRequest,
)
from rayka.protocol.fetch_session import SessionRequest
from rayka.protocol.fetch_stream import Ending

_CLOSE_TIMEOUT_S = 0.2  # not worth more: brokers evict sessions that are not ended

logger = logging.getLogger(__name__)


class Trouble(NamedTuple):
    """Errors that a pause may mend: one of the whole broker, or those of single partitions."""

    node_error: ApiError | None = None
    partitions: tuple[tuple[FetchTicket, ApiError], ...] = ()


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
        self._results = FetchResults(state, self._local, config.metadata_max_age_ms)

    async def run(self, node: NodeFetches, number: int, session: SessionRequest) -> Trouble:
        """The request of this number, from its beginning to its end."""
        timeout_ms = self._config.request_timeout_ms + self._config.fetch_max_wait_ms
        try:
            call = self._network.call(node.node_id, self._request(node, session), timeout_ms)
            response = await self._calls.answer(node.node_id, node, call)
        except ApiError as error:
            return self._on_failure(node, number, error)
        except BaseException:
            node.stream.on_failure(number)
            raise
        ending = node.stream.on_response(number, response)
        if ending is not Ending.ANSWERED:
            logger.debug("%r: %s", node, response.error_message)
            is_failed = ending is Ending.FAILED
            return Trouble(error_for(response.error_code, response.error_message) if is_failed else None)
        return Trouble(partitions=tuple(self._take(node, number, response.partitions)))

    def _take(
        self, node: NodeFetches, number: int, results: Iterable[FetchPartitionResult]
    ) -> Iterator[tuple[FetchTicket, ApiError]]:
        for result in results:
            ticket = node.ticket(number, result)
            if ticket is not None:
                error = self._results.take(ticket, result)
                if error is not None:
                    yield ticket, error

    def _request(self, node: NodeFetches, session: SessionRequest) -> FetchRequest:
        return FetchRequest(
            self._config.fetch_max_wait_ms if node.may_wait(session) else 0,
            self._config.fetch_min_bytes,
            self._config.fetch_max_bytes,
            session.partitions,
            local_directory_ids=self._local.directory_ids(self._metadata.nodes.brokers)
            if self._local
            else (),
            session_id=session.session_id,
            session_epoch=session.session_epoch,
            forgotten=session.forgotten,
            rack_id=self._rack(),
        )

    def _rack(self) -> str:
        """The rack of this reader: as configured, or that of a broker on this machine, whose files it can open."""
        if self._config.client_rack or self._local is None:
            return self._config.client_rack
        return self._local.rack(self._metadata.nodes.brokers)

    def _on_failure(self, node: NodeFetches, number: int, error: ApiError) -> Trouble:
        """Without an answer the leaders are asked for what was read elsewhere; they may name another replica."""
        logger.debug("fetch from node %d: %s", node.node_id, error)
        if isinstance(error, (NetworkException, RequestTimedOut)):
            self._metadata.nodes.doubt(node.node_id)
        if node.stream.on_failure(number) is Ending.OVERTAKEN:
            return Trouble()
        for ticket in node.tickets():
            self._state.read_replicas.read_from_leader(ticket.topic_partition)
            if not error.retriable:
                self._state.on_error(ticket, error)
        return Trouble(error)

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
