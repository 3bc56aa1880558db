"""One replica of a quorum's log on this node: the driver of the synchronous `Quorum` core.

The core decides; this performs, in one loop that looks at what there is to do and never at what has just happened:
time, then what must be durable, then what may be sent, then what was appended, then a snapshot that has arrived. Rules
that hold whatever comes in between:

- *Persist, then send*: nothing leaves this node that depends on an election which is not durable in `quorum-state`
  (A8). A handler takes the core's response at once and gives it out when an election at least as new is durable.
- One flush serves all that was appended before it began, and what arrives during it is the next batch (A25). Followers
  that wait are answered before the flush, so theirs runs beside it (A26); a follower fetches again only after its own
  flush, which the core sees to (A34).
- A disk that failed once is not used again: what it holds is not what was written to it.

It knows nothing of what the records mean; `RecordCodec` turns them into bytes. Kafka: `KafkaRaftClientDriver`,
`KafkaNetworkChannel`, `KafkaRaftManager`.
"""

import asyncio
import logging
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any, Generic, TypeVar

from rayka.errors import (
    ApiError,
    BrokerNotAvailable,
    CorruptRecord,
    ErrorCode,
    KafkaStorageError,
    RaykaError,
    StorageError,
)
from rayka.ids import NO_NODE, OffsetAndEpoch, node_name, possible_controllers
from rayka.log.durable import replace_durably
from rayka.log.log import PrefixCopy
from rayka.node.hosting.record_reader import RecordReader
from rayka.node.quorum.peers import Peers
from rayka.node.quorum.quorum_directory import QuorumDirectory
from rayka.node.settings import NodeSettings
from rayka.node.signal import Signal
from rayka.node.tasks import Tasks
from rayka.ports import Message, Request
from rayka.protocol.apis import api_of
from rayka.protocol.fetch import FetchRequest, FetchResponse
from rayka.protocol.quorum_messages import (
    AddRaftVoterRequest,
    BeginQuorumEpochRequest,
    BeginQuorumEpochResponse,
    DescribeQuorumRequest,
    DescribeQuorumResponse,
    EndQuorumEpochRequest,
    EndQuorumEpochResponse,
    FetchSnapshotRequest,
    FetchSnapshotResponse,
    RemoveRaftVoterRequest,
    UpdateRaftVoterRequest,
    VoterChangeResponse,
    VoteRequest,
    VoteResponse,
)
from rayka.raft.election_state import ElectionState, encode_election
from rayka.raft.quorum import Quorum
from rayka.raft.voter_change import VoterChange
from rayka.shard.shard import RecordT
from rayka.shard.shard_records import RecordCodec

_logger = logging.getLogger(__name__)
ResponseT = TypeVar("ResponseT", bound=Message)
_SEARCH_S = 1.0


class QuorumLog(Generic[RecordT]):
    """The replicated log under a shard (`ReplicatedLog`), with the quorum's APIs. Made by `open`, driven by
    `run`. `news` tells of every change that somebody may wait for.
    """

    def __init__(
        self, settings: NodeSettings, directory: QuorumDirectory, quorum: Quorum, codec: RecordCodec[RecordT],
        tasks: Tasks,
    ) -> None:  # fmt: skip
        self._settings = settings
        self._directory = directory
        self._quorum = quorum
        self._codec = codec
        self._tasks = tasks
        self._is_due = False
        self._due = Signal()
        self._durable_count = 0
        self._search: asyncio.Task[None] | None = None
        self._told: object = None
        self._reader = RecordReader(quorum, directory.snapshots, codec)
        late_ms = settings.config.controller_quorum_fetch_timeout_ms
        self._peers = Peers(settings.node_id, quorum, late_ms=late_ms)
        self._is_copying = False
        self._is_closed = False
        self.failure: StorageError | None = None
        self.news = Signal()

    @classmethod
    async def open(
        cls, settings: NodeSettings, codec: RecordCodec[RecordT], tasks: Tasks
    ) -> "QuorumLog[RecordT]":
        """Takes the directory over. Raises StorageError saying which one and why: missing, not formatted, in use, of
        another node, or with a log, a snapshot or a `quorum-state` that is damaged.
        """
        directory = await QuorumDirectory.open(settings, now_ms=_now_ms())
        try:
            quorum = directory.make_quorum(await settings.network.node_ids(), now_ms=_now_ms())
        except BaseException:
            directory.release()
            raise
        return cls(settings, directory, quorum, codec, tasks)

    def __repr__(self) -> str:
        return f"<QuorumLog {self._quorum!r}>"

    # ---- State -------------------------------------------------------------------------------------------------------

    @property
    def quorum(self) -> Quorum:
        """The core: to look at, and for snapshots; whoever changes it calls `wake`."""
        return self._quorum

    @property
    def directory(self) -> QuorumDirectory:
        return self._directory

    @property
    def cluster_id(self) -> str:
        return self._directory.cluster_id

    @property
    def election(self) -> ElectionState:
        return self._quorum.election

    @property
    def leading_epoch(self) -> int | None:
        """The epoch that this node leads; None while it does not."""
        return self.election.leader_epoch if self._quorum.is_leader else None

    @property
    def leader_id(self) -> int:
        return self.election.leader_id

    @property
    def leader_epoch(self) -> int:
        return self.election.leader_epoch

    @property
    def next_offset(self) -> int:
        return self._quorum.next_offset

    @property
    def high_watermark(self) -> int:
        return self._quorum.high_watermark

    @property
    def log_end_offset(self) -> int:
        return self._quorum.log_end_offset

    @property
    def size_bytes(self) -> int:
        return self._directory.log.size_bytes

    def trouble(self) -> str:
        """What keeps the quorum from committing, as far as this node knows; empty when nothing does."""
        return self._peers.trouble(_now_ms())

    # ---- Records -----------------------------------------------------------------------------------------------------

    def append(self, records: Sequence[RecordT]) -> int:
        """Appends the records atomically, without waiting; the offset of the first. Raises what the core refuses."""
        first_offset = self._quorum.append(*self._codec.columns(records))
        self.wake()
        return first_offset

    def committed(self, offset: int) -> tuple[Iterator[tuple[int, RecordT]], int]:
        """Some of the records from an offset on that are committed, each with its offset, and where to read on.

        To iterate raises StorageError when one is damaged or of a type that this node does not know.
        """
        return self._reader.committed(offset)

    @property
    def latest_snapshot_id(self) -> OffsetAndEpoch | None:
        return self._directory.snapshots.latest

    @property
    def start_offset(self) -> int:
        """The end of the newest snapshot, 0 without one."""
        latest = self.latest_snapshot_id
        return latest.offset if latest is not None else 0

    def start_records(self) -> Iterator[RecordT]:
        """The records in the newest snapshot. Raises StorageError as `committed`."""
        latest = self.latest_snapshot_id
        return self._reader.snapshot(latest) if latest is not None else iter(())

    def epoch_of(self, offset: int) -> int:
        return self._quorum.epoch_of(offset)

    # ---- The loop ----------------------------------------------------------------------------------------------------

    def wake(self) -> None:
        """There may be something to do, or to tell."""
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
        now_ms = _now_ms()
        self._peers.look(now_ms)
        self._quorum.poll(now_ms)
        await self._persist()
        for node_id, request in self._quorum.requests(_now_ms()):
            name = f"{api_of(request).name} to {node_name(node_id)}"
            self._tasks.start(name, self._exchange(node_id, request))
        self._maybe_copy()
        await self._flush()
        await self._freeze()
        self._maybe_search()
        self._tell()

    def _next_turn_s(self) -> float:
        now_s = asyncio.get_running_loop().time()
        now_ms = int(now_s * 1000)
        return now_s + max(0, self._quorum.next_poll_ms(now_ms) - now_ms) / 1000

    async def _persist(self) -> None:
        """Until the newest election is durable; later ones cover earlier ones (A8)."""
        quorum = self._quorum
        while self._durable_count < quorum.election_count:
            count, election = quorum.election_count, quorum.election
            content = {self._directory.election_path: encode_election(election)}
            await replace_durably(self._settings.disk, content)
            quorum.on_persisted(election)
            self._durable_count = count
            self._tell()

    async def _flush(self) -> None:
        if not self._quorum.drain(now_ms=_now_ms(), timestamp_ms=self._settings.wall_clock_ms()):
            return
        self._tell()
        await self._directory.sync()
        self._quorum.on_flushed(_now_ms())
        self._set_due()

    async def _freeze(self) -> None:
        download = self._quorum.finished_download
        if download is None:
            return
        try:
            await self._directory.snapshots.freeze(download)
        except CorruptRecord as error:
            _logger.warning("%r: %s; it is fetched again", self, error)
            self._quorum.on_snapshot_damaged(_now_ms())
        else:
            self._quorum.on_snapshot_frozen(_now_ms())
        self._set_due()

    def _maybe_search(self) -> None:
        """An observer that finds no leader looks which nodes there are: it may have begun before the controllers."""
        if self._quorum.is_searching(_now_ms()) and (self._search is None or self._search.done()):
            self._search = self._tasks.start("look for controllers", self._look_for_nodes())

    async def _look_for_nodes(self) -> None:
        await asyncio.sleep(_SEARCH_S)
        with suppress(RaykaError):  # it looks again
            self._quorum.learn_nodes(possible_controllers(await self._settings.network.node_ids()))
        self._set_due()

    def _maybe_copy(self) -> None:
        """Begins what a truncation needs, one copy at a time; elections go on meanwhile."""
        copy = self._quorum.needed_copy
        if copy is not None and not self._is_copying:
            self._is_copying = True
            self._tasks.start("copy for a truncation", self._copy(copy))

    async def _copy(self, copy: PrefixCopy) -> None:
        disk = self._settings.disk
        with suppress(StorageError), self._failing():
            await disk.copy_prefix(copy.source, copy.target, copy.size_bytes)
            self._quorum.on_copied(copy, _now_ms())
            if disk.exists(copy.target):  # the truncation was not wanted any more
                disk.unlink(copy.target)
        self._is_copying = False
        self.wake()

    async def _exchange(self, node_id: int, request: Request[Any]) -> None:
        """One request to another replica, and what comes of it."""
        timeout_ms = self._settings.config.controller_quorum_request_timeout_ms
        try:
            response = await self._settings.network.call(node_id, request, timeout_ms)
        except ApiError as error:
            self._on_no_response(node_id, request, error)
        else:
            self._peers.on_answered(node_id, response)
            with suppress(StorageError), self._failing():
                self._quorum.on_response(node_id, request, response, _now_ms())
        self.wake()

    def _on_no_response(self, node_id: int, request: Request[Any], error: ApiError) -> None:
        self._peers.on_failed(node_id, error)
        self._quorum.on_no_response(node_id, request, _now_ms())

    def fail(self, error: StorageError) -> None:
        """The disk has failed: the loop ends, and all callers that wait are told."""
        self.failure = self.failure or error
        self._set_due()
        self.news.notify()

    @contextmanager
    def _failing(self) -> Iterator[None]:
        """A disk that fails here ends the replica: a leader that cannot read would keep others from leading."""
        try:
            yield
        except StorageError as error:
            self.fail(error)
            raise

    def _tell(self) -> None:
        """Wakes what waits for a change, if there is one."""
        quorum = self._quorum
        now = (
            quorum.election, quorum.is_leader, self._durable_count, quorum.high_watermark, quorum.log_end_offset,
            quorum.log_start_offset, quorum.voters, self.latest_snapshot_id, self._peers.state,
        )  # fmt: skip
        if now != self._told:
            self._told = now
            self.news.notify()

    # ---- The quorum's requests ---------------------------------------------------------------------------------------

    async def vote(self, request: VoteRequest) -> VoteResponse:
        return await self._when_durable(self._quorum.handle_vote(request, _now_ms()))

    async def begin_quorum_epoch(self, request: BeginQuorumEpochRequest) -> BeginQuorumEpochResponse:
        return await self._when_durable(self._quorum.handle_begin_quorum_epoch(request, _now_ms()))

    async def end_quorum_epoch(self, request: EndQuorumEpochRequest) -> EndQuorumEpochResponse:
        return await self._when_durable(self._quorum.handle_end_quorum_epoch(request, _now_ms()))

    async def fetch_snapshot(self, request: FetchSnapshotRequest) -> FetchSnapshotResponse:
        with self._failing():
            response = self._quorum.handle_fetch_snapshot(request, _now_ms())
        return await self._when_durable(response)

    async def describe_quorum(self, request: DescribeQuorumRequest) -> DescribeQuorumResponse:
        return await self._when_durable(self._quorum.handle_describe_quorum(request, _now_ms()))

    async def fetch(self, request: FetchRequest) -> FetchResponse:
        """The answer to a replica that follows the log: at once when there is news for it, else when there is, or when
        the time that it gave is over (A32). Raises BrokerNotAvailable when the node stops meanwhile (A28).
        """
        loop = asyncio.get_running_loop()
        deadline_s = loop.time() + request.max_wait_ms / 1000
        while True:
            self._check_open()
            may_wait = loop.time() < deadline_s
            with self._failing():
                result = self._quorum.handle_fetch(request, now_ms=_now_ms(), may_wait=may_wait)
            if result is not None:
                return await self._when_durable(FetchResponse((result,)))
            self.wake()
            await self.news.wait(deadline_s)

    async def add_raft_voter(self, request: AddRaftVoterRequest) -> VoterChangeResponse:
        change = self._quorum.add_voter(request, _now_ms())
        return await self._decided(change, request.timeout_ms)

    async def remove_raft_voter(self, request: RemoveRaftVoterRequest) -> VoterChangeResponse:
        change = self._quorum.remove_voter(request, _now_ms())
        return await self._decided(change, request.timeout_ms)

    async def update_raft_voter(self, request: UpdateRaftVoterRequest) -> VoterChangeResponse:
        change = self._quorum.update_voter(request, _now_ms())
        return await self._decided(change, self._settings.config.controller_quorum_request_timeout_ms)

    async def _decided(self, change: VoterChange, timeout_ms: int) -> VoterChangeResponse:
        """The outcome of a change, or REQUEST_TIMED_OUT: then it may be made yet (A55)."""
        loop = asyncio.get_running_loop()
        deadline_s = loop.time() + timeout_ms / 1000
        self.wake()
        while change.response is None and loop.time() < deadline_s:
            await self.news.wait(deadline_s)
            self._check_open()
        if change.response is not None:
            return await self._when_durable(change.response)
        missing = self.trouble() or "it is not committed yet"
        leader_id, epoch = self.election.leader_id, self.election.leader_epoch
        return VoterChangeResponse(
            leader_id, epoch, ErrorCode.REQUEST_TIMED_OUT, f"in {timeout_ms} ms: {missing}"
        )

    async def _when_durable(self, response: ResponseT) -> ResponseT:
        """The response, once the election that it depends on is durable."""
        count = self._quorum.election_count
        self.wake()
        while self._durable_count < count:
            self._check_open()
            await self.news.wait(float("inf"))
        return response

    def _check_open(self) -> None:
        if self.failure is not None:
            raise KafkaStorageError(
                f"{node_name(self._settings.node_id)} cannot use its disk: {self.failure}"
            )
        if self._is_closed:
            raise BrokerNotAvailable(f"{node_name(self._settings.node_id)} is shutting down")

    # ---- End ---------------------------------------------------------------------------------------------------------

    async def shut_down(self) -> None:
        """Stands for no election any more, and gives up the lead if it has it; then it returns when a successor leads,
        when there cannot be one, or after two election timeouts (A23).
        """
        if not self._quorum.is_leader:
            self._quorum.shut_down(_now_ms())
            return
        loop = asyncio.get_running_loop()
        deadline_s = loop.time() + 2 * self._settings.config.controller_quorum_election_timeout_ms / 1000
        self._peers.forget()
        self._quorum.shut_down(_now_ms())
        self.wake()
        while loop.time() < deadline_s and self._awaits_successor():
            await self.news.wait(deadline_s)

    def _awaits_successor(self) -> bool:
        """Whether nobody leads yet, and enough voters may be there that one of them can.

        Who gives up too early leaves the others to find out by their timeouts, together, and to split their votes.
        """
        quorum = self._quorum
        is_succeeded = self.election.leader_id not in (NO_NODE, self._settings.node_id)
        if is_succeeded or self.failure is not None or quorum.voters is None:
            return False
        reachable_count = len(self._peers.reachable_voters())
        return reachable_count > 0 and 2 * (reachable_count + 1) > len(quorum.voters.voters)

    async def close(self) -> None:
        """Leaves a cleanly closed log behind, unless its disk has failed. The loop has ended."""
        self._end_waits()
        await self._directory.close()

    def release(self) -> None:
        """Gives up the directory's lock and writes nothing, as the end of the process would."""
        self._end_waits()
        self._directory.release()

    def _end_waits(self) -> None:
        self._is_closed = True
        self.news.notify()


def _now_ms() -> int:
    return int(asyncio.get_running_loop().time() * 1000)
