"""How a broker follows the partitions that other brokers lead: one stream of fetches for each leader.

Each request names only what changed since the one before it (G14). The next request leaves as soon as the answer is
appended, because a producer with acks=all waits for it. A partition that becomes ready while the leader holds a request
back does not wait for that request: the next one overtakes it.

Invariants: while there is anything to fetch, one request is under way, and at most a few that it has overtaken
(`FetchStream`). After a failed call there is a pause, which only news from the metadata cuts short. A partition is
followed by at most one fetcher, that of its leader, in its epoch; a fetcher without partitions ends.

Kafka: `AbstractFetcherThread`, `ReplicaFetcherThread`, `RemoteLeaderEndPoint`, `ReplicaFetcherManager` (B17, G14).
"""

import asyncio
import logging
from collections.abc import Iterable

from rayka.errors import ApiError
from rayka.ids import NO_NODE, node_name
from rayka.log.mapped_reader import LocalDirectories
from rayka.node.fetch_answers import FetchAnswers
from rayka.node.fetch_positions import FetchPositions
from rayka.node.replica import Replica, ReplicaOwner, Truncations, key_of
from rayka.node.tasks import Repeats, Tasks
from rayka.partition.partition import Partition
from rayka.protocol.fetch import (
    FIRST_SESSION_EPOCH,
    FetchOutcome,
    FetchRequest,
    PartitionKey,
    SessionRequest,
)

_logger = logging.getLogger(__name__)


class ReplicaFetcher:
    """All partitions that this broker follows from one leader."""

    def __init__(
        self,
        leader_id: int,
        owner: ReplicaOwner,
        truncations: Truncations,
        local: LocalDirectories | None,
        tasks: Tasks,
    ) -> None:
        self._leader_id = leader_id
        self._owner = owner
        self._local = local
        self._tasks = tasks
        self._config = config = owner.settings.config
        self.positions = FetchPositions(config.replica_fetch_max_bytes, owner.follower_quotas, self._on_ready)
        self._answers = FetchAnswers(leader_id, owner, self.positions, truncations, local, tasks)
        self._wake = asyncio.Event()
        # True while there is something to ask for that no request asks for yet.
        self._has_news = False
        # Runs after a failed call; None: no pause.
        self._pause: asyncio.TimerHandle | None = None
        # The number of answers that are being taken.
        self._taken_count = 0
        self._failures = Repeats(_logger)
        self._is_closed = False

    def __repr__(self) -> str:
        return f"<ReplicaFetcher from {node_name(self._leader_id)} partitions={len(self.positions)}>"

    # ---- What to follow --------------------------------------------------------------------------------

    def follow(self, replica: Replica) -> None:
        """Follows the partition from the end of its log, in its present epoch (B17)."""
        self._end_pause()
        self.positions.follow(replica)

    def close(self) -> None:
        """Follows no partition any more; ignores a call that is under way."""
        self._is_closed = True
        self.positions.clear()
        self._end_pause()
        self._wake.set()

    def _on_ready(self) -> None:
        self._has_news = True
        # While an answer is taken, the exchange that takes it goes on with the news.
        if not self._taken_count:
            self._wake.set()

    # ---- The stream ------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Fetches until `close`."""
        while not self._is_closed:
            await self._wake.wait()
            self._wake.clear()
            if self._may_send():
                self._tasks.start(f"fetch from {node_name(self._leader_id)}", self._exchange())

    def _may_send(self) -> bool:
        """True if a request may leave now; a second one only to overtake the first with news."""
        if self._is_closed or self._pause is not None or self._taken_count:
            return False
        stream = self.positions.stream
        if stream.is_waiting:
            return self._has_news and stream.may_overtake
        return stream.may_follow and self.positions.is_any_wanted

    async def _exchange(self) -> None:
        """Sends one request after another, each as soon as the answer before it is taken; ends when none may follow."""
        stream = self.positions.stream
        while self._may_send():
            self._has_news = False
            number, session = self.positions.next_request()
            request = self._request(session)
            timeout_ms = request.max_wait_ms + self._config.replica_socket_timeout_ms
            try:
                response = await self._owner.settings.network.call(self._leader_id, request, timeout_ms)
            except ApiError as error:
                self._on_end(stream.on_failure(number), str(error))
                continue
            outcome = stream.on_response(number, response)
            if outcome is not FetchOutcome.ANSWERED:
                self._on_end(outcome, f"{response.error_code.name}: {response.error_message}")
                continue
            if self._failures.failing:
                self._failures.succeeded(None)
            # Nothing is asked for before all of the answer is taken, since the rest would be sent again. The answer to
            # an overtaken request is as true as another.
            self._taken_count += 1
            try:
                await self._answers.take(response.partitions, number)
            finally:
                self._taken_count -= 1

    def _request(self, session: SessionRequest) -> FetchRequest:
        """Makes the request. One that begins a session does not wait: only a request of a known session can be
        overtaken.
        """
        is_first = session.session_epoch == FIRST_SESSION_EPOCH
        max_wait_ms = self._config.replica_fetch_wait_max_ms
        # Where the leader need not send many bytes, because this process can read its files.
        leader = self._owner.broker(self._leader_id) if self._local is not None else None
        readable_ids = () if leader is None or self._local is None else self._local.ids(leader.directories)
        return FetchRequest(
            max_wait_ms=0 if is_first and not self.positions.stream.has_no_sessions else max_wait_ms,
            min_bytes=self._config.replica_fetch_min_bytes,
            max_bytes=self._config.replica_fetch_response_max_bytes,
            partitions=session.partitions,
            replica_id=self._owner.settings.node_id,
            cluster_id=self._owner.directories.cluster_id,
            replica_epoch=self._owner.directories.broker_epoch,
            session_id=session.session_id,
            session_epoch=session.session_epoch,
            forgotten=session.forgotten,
            local_directory_ids=readable_ids,
        )

    # ---- Failures --------------------------------------------------------------------------------------

    def _on_end(self, ending: FetchOutcome, reason: str) -> None:
        """Begins the next session at once if the leader dropped this one; pauses after any other failure."""
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


# Leader and leader epoch.
_Assignment = tuple[int, int]


class ReplicaFetcherManager:
    """All fetchers of one broker: one for each broker that leads a partition of which this one has a replica."""

    def __init__(
        self, owner: ReplicaOwner, truncations: Truncations, local: LocalDirectories | None, tasks: Tasks
    ) -> None:
        self._owner = owner
        self._truncations = truncations
        self._local = local
        self._tasks = tasks
        self._fetchers: dict[int, ReplicaFetcher] = {}
        self._assigned: dict[PartitionKey, _Assignment] = {}

    def assign(self, replicas: Iterable[Replica]) -> None:
        """Follows each of these partitions from its leader, if another broker leads it (B17).

        Nothing changes while leader and epoch stay the same.
        """
        for replica in replicas:
            partition, key = replica.partition, key_of(replica.partition)
            wanted = (partition.leader_id, partition.leader_epoch)
            if self._assigned.get(key) == wanted:
                continue
            self._unassign(key)
            is_writable = partition.failure is None and partition.log.failure is None
            if is_writable and not partition.is_leader and partition.leader_id != NO_NODE:
                self._assigned[key] = wanted
                self._fetcher(partition.leader_id).follow(replica)
        self._close_idle()

    def remove(self, keys: Iterable[PartitionKey]) -> None:
        """Follows these partitions no more: they are gone from here, or cannot be written."""
        for key in keys:
            self._unassign(key)
        self._close_idle()

    def on_synced(self, partition: Partition) -> None:
        """Goes on with a partition whose records are on the disk now."""
        assigned = self._assigned.get(key_of(partition))
        if assigned is not None:
            self._fetchers[assigned[0]].positions.on_synced(key_of(partition))

    def problems(self) -> list[str]:
        """Why partitions cannot be copied, one line each."""
        return [problem for each in self._fetchers.values() for problem in each.positions.problems()]

    def _unassign(self, key: PartitionKey) -> None:
        assigned = self._assigned.pop(key, None)
        if assigned is not None:
            self._fetchers[assigned[0]].positions.unfollow(key)

    def _fetcher(self, leader_id: int) -> ReplicaFetcher:
        fetcher = self._fetchers.get(leader_id)
        if fetcher is None:
            fetcher = ReplicaFetcher(leader_id, self._owner, self._truncations, self._local, self._tasks)
            self._fetchers[leader_id] = fetcher
            self._tasks.start(f"follow {node_name(leader_id)}", fetcher.run())
        return fetcher

    def _close_idle(self) -> None:
        for leader_id in [key for key, fetcher in self._fetchers.items() if not fetcher.positions]:
            self._fetchers.pop(leader_id).close()
