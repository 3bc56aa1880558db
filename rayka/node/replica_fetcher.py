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
from collections.abc import Iterable
from uuid import UUID

from rayka.errors import ApiError
from rayka.ids import NO_NODE, node_name
from rayka.node.fetch_answers import FetchAnswers, Shared
from rayka.node.fetch_positions import FetchPositions
from rayka.node.replica import PartitionKey, Replica, key_of
from rayka.node.tasks import Repeats
from rayka.partition.partition import Partition
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


# Which fetcher follows which partition: one for each broker that leads something that this one holds.
#
# Invariant: a partition is followed by at most one fetcher, that of its leader, in its epoch; a fetcher that follows
# nothing ends. Kafka: `AbstractFetcherManager`, `ReplicaFetcherManager`.


_Assignment = tuple[int, int]  # leader and leader epoch


class ReplicaFetcherManager:
    """All fetchers of one broker."""

    def __init__(self, shared: Shared) -> None:
        self._shared = shared
        self._fetchers: dict[int, ReplicaFetcher] = {}
        self._assigned: dict[PartitionKey, _Assignment] = {}

    def __repr__(self) -> str:
        return f"<ReplicaFetcherManager {list(self._fetchers.values())}>"

    def assign(self, replicas: Iterable[Replica]) -> None:
        """Follows each of these partitions from its leader, if another broker is that, and from no other (B17).

        While leader and epoch stay the same nothing changes.
        """
        for replica in replicas:
            partition, key = replica.partition, key_of(replica.partition)
            wanted = (partition.leader_id, partition.leader_epoch)
            if self._assigned.get(key) == wanted:
                continue
            self._unassign(key)
            if _is_followed(partition):
                self._assigned[key] = wanted
                self._fetcher(partition.leader_id).follow(replica)
        self._close_idle()

    def remove(self, keys: Iterable[PartitionKey]) -> None:
        """Follows these no more: they are gone from here, or cannot be written."""
        for key in keys:
            self._unassign(key)
        self._close_idle()

    def on_synced(self, partition: Partition) -> None:
        """What was appended to the partition is on the disk."""
        assigned = self._assigned.get(key_of(partition))
        if assigned is not None:
            self._fetchers[assigned[0]].positions.on_synced(key_of(partition))

    def problems(self) -> list[str]:
        """What cannot be copied, and why, one line each."""
        return [problem for each in self._fetchers.values() for problem in each.positions.problems()]

    def _unassign(self, key: PartitionKey) -> None:
        assigned = self._assigned.pop(key, None)
        if assigned is not None:
            self._fetchers[assigned[0]].positions.unfollow(key)

    def _fetcher(self, leader_id: int) -> ReplicaFetcher:
        fetcher = self._fetchers.get(leader_id)
        if fetcher is None:
            fetcher = self._fetchers[leader_id] = ReplicaFetcher(leader_id, self._shared)
            self._shared.tasks.start(f"follow {node_name(leader_id)}", fetcher.run())
        return fetcher

    def _close_idle(self) -> None:
        for leader_id in [key for key, fetcher in self._fetchers.items() if not fetcher.positions]:
            self._fetchers.pop(leader_id).close()


def _is_followed(partition: Partition) -> bool:
    is_writable = partition.failure is None and partition.log.failure is None
    return is_writable and not partition.is_leader and partition.leader_id != NO_NODE
