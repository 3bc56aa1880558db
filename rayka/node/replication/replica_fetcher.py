"""How a broker follows the partitions that one other broker leads: one stream of fetches for all of them.

Each request names only what changed since the one before it (G14), and the next one leaves as soon as the answer is
appended, because a producer with acks=all waits for it. A partition that becomes ready while the leader holds a request
back does not wait for that: the next request overtakes it.

Invariants: while there is anything to fetch, one request is under way, and at most a few that it has overtaken
(`FetchStream`); after a failed call there is a pause, which only news from the metadata cuts short. Kafka:
`AbstractFetcherThread`, `ReplicaFetcherThread`, `RemoteLeaderEndPoint` (B17, G14).
"""

import asyncio
import logging
from uuid import UUID

from rayka.errors import ApiError
from rayka.ids import node_name
from rayka.node.repeats import Repeats
from rayka.node.replication.fetch_answers import FetchAnswers, Shared
from rayka.node.replication.fetch_positions import FetchPositions
from rayka.node.replication.replica import Replica
from rayka.protocol.fetch import (
    FIRST_SESSION_EPOCH,
    FetchOutcome,
    FetchRequest,
    FetchResponse,
    SessionRequest,
)

_logger = logging.getLogger(__name__)


class ReplicaFetcher:
    """All that this broker follows from one leader."""

    def __init__(self, leader_id: int, shared: Shared) -> None:
        self._leader_id = leader_id
        self._shared = shared
        self._config = shared.settings.config
        self.positions = FetchPositions(self._config.replica_fetch_max_bytes, shared.quotas, self._on_ready)
        self._results = FetchAnswers(leader_id, shared, self.positions)
        self._wake = asyncio.Event()
        self._has_news = False  # something to ask for that no request asks for yet
        self._pause: asyncio.TimerHandle | None = None
        self._taken_count = 0  # answers that are being taken
        self._failures = Repeats(_logger)
        self._is_closed = False

    def __repr__(self) -> str:
        return f"<ReplicaFetcher from {node_name(self._leader_id)} partitions={len(self.positions)}>"

    # ---- What to follow --------------------------------------------------------------------------------

    def follow(self, replica: Replica) -> None:
        """From where its log ends, in the epoch that it is in now (B17)."""
        self._end_pause()
        self.positions.follow(replica)

    def close(self) -> None:
        """Follows nothing any more; a call that is under way is left to itself."""
        self._is_closed = True
        self.positions.clear()
        self._end_pause()
        self._wake.set()

    def _on_ready(self) -> None:
        self._has_news = True
        if not self._taken_count:  # else the exchange that takes an answer goes on with it
            self._wake.set()

    # ---- The stream ------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Fetches until `close`."""
        while not self._is_closed:
            await self._wake.wait()
            self._wake.clear()
            if self._may_send():
                self._shared.tasks.start(f"fetch from {node_name(self._leader_id)}", self._exchange())

    def _may_send(self) -> bool:
        """A second request only to overtake the first with news."""
        if self._is_closed or self._pause is not None or self._taken_count:
            return False
        stream = self.positions.stream
        if stream.is_waiting:
            return self._has_news and stream.may_overtake
        return stream.may_follow and self.positions.is_any_wanted

    async def _exchange(self) -> None:
        """One request after another, each as soon as the answer before it is taken; ends when nothing may follow."""
        while self._may_send():
            await self._fetch()

    async def _fetch(self) -> None:
        self._has_news = False
        number, session = self.positions.next_request()
        request = self._request(session)
        timeout_ms = request.max_wait_ms + self._config.replica_socket_timeout_ms
        try:
            response = await self._shared.settings.network.call(self._leader_id, request, timeout_ms)
        except ApiError as error:
            self._on_end(self.positions.stream.on_failure(number), str(error))
        else:
            await self._on_response(number, response)

    def _request(self, session: SessionRequest) -> FetchRequest:
        """One that begins a session does not wait: what comes next can overtake only a request of a known session."""
        is_first = session.session_epoch == FIRST_SESSION_EPOCH
        max_wait_ms = self._config.replica_fetch_wait_max_ms
        return FetchRequest(
            max_wait_ms=0 if is_first and not self.positions.stream.has_no_sessions else max_wait_ms,
            min_bytes=self._config.replica_fetch_min_bytes,
            max_bytes=self._config.replica_fetch_response_max_bytes,
            partitions=session.partitions,
            replica_id=self._shared.settings.node_id,
            cluster_id=self._shared.directories.cluster_id,
            replica_epoch=self._shared.directories.broker_epoch,
            session_id=session.session_id,
            session_epoch=session.session_epoch,
            forgotten=session.forgotten,
            local_directory_ids=self._local_directory_ids(),
        )

    def _local_directory_ids(self) -> tuple[UUID, ...]:
        """Where the leader need not send many bytes, because this broker can read its files."""
        leader, local = self._shared.host.broker(self._leader_id), self._shared.local
        if leader is None or local is None:
            return ()
        return local.ids(leader.directories)

    async def _on_response(self, number: int, response: FetchResponse) -> None:
        """What an overtaken request brings is as true. Nothing is asked for before all of it is taken, since the rest
        would be sent again.
        """
        ending = self.positions.stream.on_response(number, response)
        if ending is FetchOutcome.ANSWERED:
            self._failures.succeeded(None)
            self._taken_count += 1
            try:
                await self._results.take(response.partitions, number)
            finally:
                self._taken_count -= 1
        else:
            self._on_end(ending, f"{response.error_code.name}: {response.error_message}")

    # ---- Failures --------------------------------------------------------------------------------------

    def _on_end(self, ending: FetchOutcome, reason: str) -> None:
        """When a session was dropped the next one begins at once, after any other failure there is a pause."""
        if ending is FetchOutcome.RENEWED:
            _logger.info("%r: %s; a new session begins", self, reason)
        elif ending is FetchOutcome.FAILED and not self._is_closed:
            backoff_ms = self._config.replica_fetch_backoff_ms
            self._failures.failed(None, f"{self!r}: {reason}; trying again every {backoff_ms} ms")
            self._end_pause()
            self._pause = asyncio.get_running_loop().call_later(backoff_ms / 1000, self._end_pause)

    def _end_pause(self) -> None:
        if self._pause is not None:
            self._pause.cancel()
            self._pause = None
            self._wake.set()
