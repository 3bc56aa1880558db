"""The driver of the synchronous `Quorum` core of one replica.

The core decides; the driver performs, in one loop. Each turn looks at the state of the core, never at the event that
came last: time, then what must be durable, then what may be sent, then appends, then a snapshot that has arrived. Rules
that always hold:

- *Persist, then send*: nothing leaves this node that depends on an election which is not durable in `quorum-state`
  (A8).
- One flush serves all appends before it; appends during the flush are the next batch (A25). Followers that wait are
  answered before the flush, so their flush runs beside it (A26); a follower fetches again only after its own flush,
  which the core sees to (A34).
- A disk that failed once is not used again: its content is not what was written.

Kafka: `KafkaRaftClientDriver`, `KafkaNetworkChannel`, `KafkaRaftManager`.
"""

import asyncio
import logging
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any

from rayka.clock import now_ms, now_s
from rayka.errors import (
    ApiError,
    BrokerNotAvailable,
    CorruptRecord,
    ErrorCode,
    KafkaStorageError,
    RaykaError,
    RetriableApiError,
    StorageError,
)
from rayka.ids import NO_NODE, node_name, possible_controllers
from rayka.log.checkpoint_files import replace_durably
from rayka.log.log import PrefixCopy
from rayka.node.quorum_directory import QuorumDirectory
from rayka.node.settings import NodeSettings
from rayka.node.tasks import Repeats, Signal, Tasks
from rayka.ports import Message, Request
from rayka.protocol.apis import api_of
from rayka.protocol.fetch import FetchResponse
from rayka.raft.election_state import encode_election
from rayka.raft.leader import Leader
from rayka.raft.quorum import Quorum
from rayka.raft.roles import Follower

# Each look makes a description of the quorum.
_LOOKS_PER_TIMEOUT = 8
_GONE_AFTER_FAILURES = 3

# Errors which say that this node, or the one asked, is not the expected replica.
_REFUSALS = {
    ErrorCode.INCONSISTENT_CLUSTER_ID: "they belong to different clusters; check the data directories",
    ErrorCode.INVALID_VOTER_KEY: "its directory id is not the one that the voters know; it was replaced or wiped",
    ErrorCode.INVALID_REQUEST: "they do not agree on the protocol",
    ErrorCode.UNSUPPORTED_VERSION: "they run different versions",
}
_SEARCH_S = 1.0
_logger = logging.getLogger(__name__)


class QuorumDriver:
    """One replica of a quorum: its directory, its core, and its calls to the others. Made by `open`, driven by `run`.
    Code that changes the core from outside calls `wake`.
    """

    def __init__(
        self, settings: NodeSettings, directory: QuorumDirectory, quorum: Quorum, tasks: Tasks
    ) -> None:
        self._settings = settings
        self._tasks = tasks
        # True if another turn must follow at once.
        self._is_due = False
        self._due = Signal()
        self._search: asyncio.Task[None] | None = None
        self._told: object = None
        self._is_copying = False
        self._is_closed = False
        self.directory = directory
        self.quorum = quorum
        # The number of elections that are durable.
        self.durable_count = 0
        self.failure: StorageError | None = None
        # Notified at every change that a caller may wait for.
        self.news = Signal()
        late_ms = settings.config.controller_quorum_fetch_timeout_ms
        self.peers = Peers(settings.node_id, quorum, late_ms=late_ms)

    @classmethod
    async def open(cls, settings: NodeSettings, tasks: Tasks) -> "QuorumDriver":
        """Takes over the directory. Raises StorageError that says why it cannot: missing, not formatted, in use, of
        another node, or with a damaged log, snapshot or `quorum-state`.
        """
        directory = await QuorumDirectory.open(settings, now_ms=now_ms())
        try:
            quorum = directory.make_quorum(await settings.network.node_ids(), now_ms=now_ms())
        except BaseException:
            directory.release()
            raise
        return cls(settings, directory, quorum, tasks)

    def __repr__(self) -> str:
        return f"<QuorumDriver {self.quorum!r}>"

    # ---- The loop ----------------------------------------------------------------------------------------------------

    def wake(self) -> None:
        """Lets the loop take a turn, and tells callers the news."""
        self._set_due()
        self._tell()

    def _set_due(self) -> None:
        self._is_due = True
        self._due.notify()

    async def run(self) -> None:
        """Drives the quorum for ever. Raises StorageError when the disk fails."""
        while True:
            self._is_due = False
            await self._turn()
            if not self._is_due:
                await self._due.wait(self._next_turn_s())

    async def _turn(self) -> None:
        if self.failure is not None:
            raise self.failure
        self.peers.look(now_ms())
        self.quorum.poll(now_ms())
        await self._persist()
        for node_id, request in self.quorum.requests(now_ms()):
            name = f"{api_of(request).name} to {node_name(node_id)}"
            self._tasks.start(name, self._exchange(node_id, request))
        self._maybe_copy()
        await self._flush()
        await self._freeze()
        self._maybe_search()
        self._tell()

    def _next_turn_s(self) -> float:
        time_s = now_s()
        time_ms = int(time_s * 1000)
        return time_s + max(0, self.quorum.next_poll_ms(time_ms) - time_ms) / 1000

    async def _persist(self) -> None:
        """Makes the newest election durable, which covers earlier ones (A8)."""
        quorum = self.quorum
        while self.durable_count < quorum.election_count:
            count, election = quorum.election_count, quorum.election
            content = {self.directory.election_path: encode_election(election)}
            await replace_durably(self._settings.disk, content)
            quorum.on_persisted(election)
            self.durable_count = count
            self._tell()

    async def _flush(self) -> None:
        log = self.directory.log
        self.quorum.leader_log.drain(now_ms=now_ms(), timestamp_ms=self._settings.wall_clock_ms())
        if log.unsynced().is_empty:
            return
        self._tell()
        await self.directory.sync()
        self.quorum.leader_log.on_flushed(log.flushed_offset, now_ms())
        self._set_due()

    async def _freeze(self) -> None:
        download = self.quorum.finished_download
        if download is None:
            return
        try:
            await self.directory.snapshots.freeze(download)
        except CorruptRecord as error:
            _logger.warning("%r: %s; it is fetched again", self, error)
            self.quorum.fetcher.on_snapshot_damaged(now_ms())
        else:
            self.quorum.fetcher.on_snapshot_frozen()
        self._set_due()

    def _maybe_search(self) -> None:
        """Lets an observer that finds no leader look for nodes: it may have started before the controllers."""
        if self.quorum.fetcher.is_searching(now_ms()) and (self._search is None or self._search.done()):
            self._search = self._tasks.start("look for controllers", self._look_for_nodes())

    async def _look_for_nodes(self) -> None:
        await asyncio.sleep(_SEARCH_S)
        # After an error it looks again.
        with suppress(RaykaError):
            self.quorum.fetcher.learn_nodes(possible_controllers(await self._settings.network.node_ids()))
        self._set_due()

    def _maybe_copy(self) -> None:
        """Begins the copy that a truncation needs, one at a time; elections go on beside it."""
        copy = self.quorum.needed_copy
        if copy is not None and not self._is_copying:
            self._is_copying = True
            self._tasks.start("copy for a truncation", self._copy(copy))

    async def _copy(self, copy: PrefixCopy) -> None:
        disk = self._settings.disk
        with suppress(StorageError), self.failing():
            await disk.copy_prefix(copy.source, copy.target, copy.size_bytes)
            self.quorum.fetcher.on_copied(copy, now_ms())
            # The truncation was not wanted any more.
            if disk.exists(copy.target):
                disk.unlink(copy.target)
        self._is_copying = False
        self.wake()

    async def _exchange(self, node_id: int, request: Request[Any]) -> None:
        """Sends one request to another replica, and gives the core its outcome."""
        timeout_ms = self._settings.config.controller_quorum_request_timeout_ms
        try:
            response = await self._settings.network.call(node_id, request, timeout_ms)
        except ApiError as error:
            self.peers.on_failed(node_id, error)
            self.quorum.on_no_response(node_id, request, now_ms())
        else:
            self.peers.on_answered(node_id, response)
            with suppress(StorageError), self.failing():
                self.quorum.on_response(node_id, request, response, now_ms())
        self.wake()

    def fail(self, error: StorageError) -> None:
        """Ends the loop with this error, which all waiting callers get: the disk has failed."""
        self.failure = self.failure or error
        self._set_due()
        self.news.notify()

    @contextmanager
    def failing(self) -> Iterator[None]:
        """Ends the replica at an error of the disk: a leader that cannot read would keep others from leading."""
        try:
            yield
        except StorageError as error:
            self.fail(error)
            raise

    def _tell(self) -> None:
        """Notifies `news` of a change, if there is one."""
        quorum, log = self.quorum, self.directory.log
        now = (
            quorum.election, quorum.is_leader, self.durable_count, quorum.high_watermark, log.log_end_offset,
            log.log_start_offset, quorum.voters, self.directory.snapshots.latest, self.peers.state,
        )  # fmt: skip
        if now != self._told:
            self._told = now
            self.news.notify()

    def check_open(self) -> None:
        if self.failure is not None:
            raise KafkaStorageError(
                f"{node_name(self._settings.node_id)} cannot use its disk: {self.failure}"
            )
        if self._is_closed:
            raise BrokerNotAvailable(f"{node_name(self._settings.node_id)} is shutting down")

    # ---- End ---------------------------------------------------------------------------------------------------------

    async def shut_down(self) -> None:
        """Stands for no election any more, and resigns if it leads. Returns when a successor leads, when there cannot
        be one, or after two election timeouts (A23).
        """
        if not self.quorum.is_leader:
            self.quorum.shut_down(now_ms())
            return
        deadline_s = now_s() + 2 * self._settings.config.controller_quorum_election_timeout_ms / 1000
        self.peers.forget()
        self.quorum.shut_down(now_ms())
        self.wake()
        while now_s() < deadline_s and self._awaits_successor():
            await self.news.wait(deadline_s)

    def _awaits_successor(self) -> bool:
        """True while no node leads, and enough voters may be there to elect one. If this node ended too early, the
        others would notice by their timeouts, together, and split their votes.
        """
        quorum = self.quorum
        is_succeeded = quorum.election.leader_id not in (NO_NODE, self._settings.node_id)
        if is_succeeded or self.failure is not None or quorum.voters is None:
            return False
        reachable_count = len(self.peers.reachable_voters())
        return reachable_count > 0 and 2 * (reachable_count + 1) > len(quorum.voters.voters)

    async def close(self) -> None:
        """Closes the log cleanly, unless its disk has failed. The loop has ended."""
        self._end_waits()
        await self.directory.close()

    def release(self) -> None:
        """Releases the directory's lock and writes nothing, as the end of the process would."""
        self._end_waits()
        self.directory.release()

    def _end_waits(self) -> None:
        self._is_closed = True
        self.news.notify()


class Peers:
    """The outcome of the last call to each other replica: an answer, silence, or a refusal of this node.

    It decides nothing, and explains a quorum without a leader, or one that does not commit. A leader calls only voters
    that do not fetch, so a fetch of a voter clears its problem, too. Kafka says this in its logs only.
    """

    def __init__(self, node_id: int, quorum: Quorum, *, late_ms: int) -> None:
        self._node_id = node_id
        self._quorum = quorum
        self._late_ms = late_ms
        self._next_look_ms = 0
        # By node: the number of calls that failed, one after another.
        self._silent: dict[int, int] = {}
        self._refusals: dict[int, str] = {}
        self._failures = Repeats(_logger)

    @property
    def state(self) -> tuple[tuple[tuple[int, bool], ...], tuple[int, ...]]:
        """A value that differs when something has changed."""
        silent = tuple((each, count >= _GONE_AFTER_FAILURES) for each, count in self._silent.items())
        return silent, tuple(self._refusals)

    def on_answered(self, node_id: int, response: Message) -> None:
        self._silent.pop(node_id, None)
        header = response.partitions[0] if isinstance(response, FetchResponse) else response
        code = getattr(header, "error_code", ErrorCode.NONE)
        if code in _REFUSALS:
            self._refuse(node_id, f"{code.name}: {_REFUSALS[code]}")
        else:
            self._refusals.pop(node_id, None)

    def on_failed(self, node_id: int, error: ApiError) -> None:
        """Records that the node did not answer, or refused to."""
        if isinstance(error, RetriableApiError):
            self._refusals.pop(node_id, None)
            self._silent[node_id] = self._silent.get(node_id, 0) + 1
        else:
            self._silent.pop(node_id, None)
            self._refuse(node_id, f"{error.code.name}: {error}")

    def _refuse(self, node_id: int, reason: str) -> None:
        self._refusals[node_id] = reason
        self._failures.failed((node_id, reason), f"{self._quorum!r}: {node_name(node_id)} refuses: {reason}")

    def forget(self) -> None:
        """Forgets all outcomes: those of a leader's calls say nothing about later calls."""
        self._silent.clear()
        self._refusals.clear()

    def look(self, now_ms: int) -> None:
        """Looks at each interval which voters fetch; a leader without its majority must know which were missing."""
        if now_ms >= self._next_look_ms:
            self._look(now_ms)

    def _look(self, now_ms: int) -> None:
        self._next_look_ms = now_ms + self._late_ms // _LOOKS_PER_TIMEOUT
        if self._quorum.is_leader:
            not_fetching = self._not_fetching(now_ms)
            for node_id in self._other_voters():
                self._silent.pop(node_id, None)
                if node_id not in not_fetching:
                    self._refusals.pop(node_id, None)
            self._silent.update(dict.fromkeys(not_fetching, 1))

    # ---- Problems -----------------------------------------------------------------------------------------------

    def commit_problem(self, now_ms: int) -> str:
        """Why the quorum does not commit, as far as this node knows; empty when it does."""
        role = self._quorum.role
        if isinstance(role, Follower) and role.leader_id not in self._silent:
            return ""
        parts = [] if isinstance(role, Leader) else ["no leader answers"]
        if self._quorum.voters is None:
            parts.append("the voters are not known")
        self._look(now_ms)
        missing = self.silent_voters()
        if missing:
            parts.append(f"voters that do not answer: {', '.join(map(node_name, missing))}")
        voters = self._other_voters()
        parts += [
            f"{node_name(each)} refuses: {reason}"
            for each, reason in self._refusals.items()
            if self._quorum.voters is None or each in voters
        ]
        return "; ".join(parts)

    def reachable_voters(self) -> Sequence[int]:
        """The other voters, without those whose calls failed so often that they are gone.

        One failure says nothing: the first call to a process that replaced another one finds the old connection.
        """
        return [each for each in self._other_voters() if self._silent.get(each, 0) < _GONE_AFTER_FAILURES]

    def silent_voters(self) -> Sequence[int]:
        """The other voters whose last call failed."""
        return [each for each in self._other_voters() if each in self._silent]

    def _not_fetching(self, now_ms: int) -> Sequence[int]:
        """The voters that have not fetched from this leader for a while."""
        described = self._quorum.leader_log.handle_describe_quorum(now_ms)
        return [
            each.replica.node_id
            for each in described.voters
            if each.replica.node_id != self._node_id and not 0 <= each.last_fetch_ago_ms <= self._late_ms
        ]

    def _other_voters(self) -> Sequence[int]:
        voters = self._quorum.voters
        known = voters.voters if voters is not None else ()
        return [each.node_id for each in known if each.node_id != self._node_id]
