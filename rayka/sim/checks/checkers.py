"""The invariants of a run, checked after every event where the event changed something.

A checker has a name; the first `Violation` names it, the time, the node and the evidence, and ends the run. Here are
the checkers of messages and disks; `watches` looks into the nodes. The rules are
the seven of Kafka's `RaftEventSimulationTest` (kafka.md §3.1, I1-I7), and what the quorum promises beyond them.
"""

from collections.abc import Callable, Mapping
from uuid import UUID

import msgspec

from rayka.errors import CorruptRecord, ErrorCode, StorageError
from rayka.ids import METADATA_TOPIC_ID, NO_EPOCH, NO_NODE, ZERO_ID, OffsetAndEpoch, ReplicaKey
from rayka.log.log import LogRead
from rayka.metadata.image_snapshot import image_of
from rayka.metadata.metadata_records import decode_record
from rayka.ports import Request
from rayka.protocol.batch_format import split_batches
from rayka.protocol.caller import Answer, Call
from rayka.protocol.fetch import FetchRequest, FetchResponse
from rayka.protocol.produce import ProduceRequest, ProduceResponse
from rayka.protocol.quorum_messages import (
    FetchSnapshotRequest,
    FetchSnapshotResponse,
    VoteRequest,
    VoteResponse,
)
from rayka.protocol.wire import decode
from rayka.raft.election_state import QUORUM_STATE_FILE, ElectionState, decode_election
from rayka.raft.quorum import Quorum
from rayka.raft.snapshot import BOOTSTRAP_SNAPSHOT_ID, decode_snapshot, parse_snapshot_name
from rayka.sim.checks.ledger import Ledger, difference
from rayka.sim.loop import Process, VirtualLoop
from rayka.sim.trace import Trace
from rayka.sim.world.exchange import Endpoint, Exchange
from rayka.sim.world.machines import Machine
from rayka.sim.world.simulated_disk import SimDisk

_NO_CALL = (-1, -1)


class Violation(msgspec.Struct, frozen=True):
    """A rule was broken: which, when, where, and what shows it."""

    checker: str
    at_ms: int
    node_id: int
    evidence: str

    def __str__(self) -> str:
        return f"{self.checker} at {self.at_ms} ms, node {self.node_id}: {self.evidence}"


class Checkers:
    """All checkers of one run. `violation` is the first one found."""

    def __init__(self, loop: VirtualLoop, trace: Trace, ledger: Ledger) -> None:
        self.loop = loop
        self.trace = trace
        self.ledger = ledger
        self.violation: Violation | None = None
        self.is_enabled = True
        self.machines: Mapping[int, Machine] = {}
        self.leaders: dict[int, tuple[int, int]] = {}  # by epoch: node and incarnation
        self.last_fetch_us: dict[tuple[int, int], int] = {}  # by leader and follower: the last fetch
        self.homes: dict[ReplicaKey, tuple[Machine, SimDisk]] = {}  # each replica's machine, and its disk
        self.on_produced: Callable[[int, ProduceRequest, ProduceResponse], None] = lambda *_: None
        self.on_asked: Callable[[Request[object]], None] = lambda request: None
        self.on_answered: Callable[[Request[object] | None], None] = lambda request: None
        self._sent: dict[tuple[UUID, int], tuple[int, int]] = {}  # by caller and node: the last call's place
        self._votes: dict[tuple[ReplicaKey, int], ReplicaKey] = {}
        self._elections: dict[int, ElectionState] = {}  # by node: what its disk said last

    @property
    def now_ms(self) -> int:
        return self.loop.now_ms

    # ---- Reporting ---------------------------------------------------------------------------------------------------

    def report(self, checker: str, node_id: int, evidence: str) -> None:
        """A rule was broken; the first report counts."""
        if self.violation is None:
            self.violation = Violation(checker, self.loop.now_ms, node_id, evidence)
            self.trace.add(node_id, "VIOLATION", f"{checker}: {evidence}")

    def report_if(self, checker: str, node_id: int, problem: str) -> None:
        """Reports the problem, if there is one."""
        if problem and self.is_enabled:
            self.report(checker, node_id, problem)

    def _machine(self, process: Process) -> Machine | None:
        return self.machines.get(process.node_id)

    def _quorum(self, process: Process) -> Quorum | None:
        machine = self._machine(process)
        return quorum_of(machine) if machine is not None and machine.process is process else None

    # ---- What a node sends -------------------------------------------------------------------------------------------

    def on_request(self, process: Process, node_id: int, request: Request[object]) -> None:
        """A process is about to send a request."""
        if not self.is_enabled:
            return
        self.on_asked(request)
        if isinstance(request, VoteRequest) and not request.is_pre_vote:
            self._check_vote(process, request.replica, request.replica, request.replica_epoch)
        elif isinstance(request, FetchRequest) and is_of_quorum(request):
            self._check_fetch(process, request.partitions[0].fetch_offset)

    def on_send(self, process: Process, call: Call) -> None:
        """A call leaves its caller: each of its numbers does so once, in their order, whichever ways they take."""
        number = call.number
        place, key = (number.epoch, number.number), (number.caller_id, call.node_id)
        before = self._sent.get(key, _NO_CALL)
        self._sent[key] = place
        if place <= before and self.is_enabled:
            self.report("call-number", process.node_id, f"{call.api.name} {place} is sent after {before}")

    def on_start(self, endpoint: Endpoint, exchange: Exchange) -> None:
        """The handler of a call begins: of one caller each call does so once, in the order of their numbers."""
        number, request, process = exchange.call.number, exchange.request, endpoint.process
        place = (number.epoch, number.number)
        before = endpoint.last_started.get(number.caller_id, _NO_CALL)
        endpoint.last_started[number.caller_id] = place
        if place <= before and self.is_enabled:
            self.report(
                "call-order", process.node_id, f"{exchange.call.api.name} {place} starts after {before}"
            )
        is_of_log = isinstance(request, FetchRequest) and is_of_quorum(request)
        if is_of_log or isinstance(request, FetchSnapshotRequest):
            self.last_fetch_us[process.node_id, exchange.caller.node_id] = self.loop.now_us

    def on_answer(self, process: Process, exchange: Exchange, answer: Answer) -> None:
        """A node has answered a call."""
        body, payload = answer
        request = exchange.request
        if not self.is_enabled or payload is None:
            return
        self.on_answered(request)
        if isinstance(request, ProduceRequest):
            self.on_produced(process.node_id, request, decode(ProduceResponse, body, payload))
        elif isinstance(request, VoteRequest):
            self._on_vote_answer(process, request, decode(VoteResponse, body))
        elif isinstance(request, FetchRequest) and names_epoch(request):
            self._on_fetch_answer(process, request, decode(FetchResponse, body, payload))
        elif isinstance(request, FetchSnapshotRequest):
            self._on_snapshot_answer(process, request, decode(FetchSnapshotResponse, body, payload))

    # ---- Votes -------------------------------------------------------------------------------------------------------

    def _on_vote_answer(self, process: Process, request: VoteRequest, response: VoteResponse) -> None:
        quorum = self._quorum(process)
        if not response.is_granted or request.is_pre_vote or quorum is None:
            return
        self._check_vote(process, quorum.local, request.replica, request.replica_epoch)
        position = (quorum.log.last_epoch, quorum.log.log_end_offset)
        if (request.last_epoch, request.end_offset) < position:
            self.report(
                "votes-for-full-log", process.node_id,
                f"granted {request!r}, whose log ends before its own, {position}",
            )  # fmt: skip

    def _check_vote(self, process: Process, voter: ReplicaKey, candidate: ReplicaKey, epoch: int) -> None:
        """A vote is about to be seen by others: it is the only one of its epoch, and durable (A4, A8)."""
        before = self._votes.setdefault((voter, epoch), candidate)
        if before != candidate:
            self.report(
                "vote-once",
                process.node_id,
                f"{voter} votes for {candidate} in epoch {epoch}, and voted for {before}",
            )
        stored = self._durable_election(process)
        known = (-1, None) if stored is None else (stored.leader_epoch, stored.voted_key)
        if known[0] <= epoch and known != (epoch, candidate):
            self.report(
                "vote-durable",
                process.node_id,
                f"{voter} votes for {candidate} in epoch {epoch}; disk: {stored!r}",
            )

    def _durable_election(self, process: Process) -> ElectionState | None:
        machine = self._machine(process)
        if machine is None:
            return None
        file = machine.disk.durable_file(f"{machine.metadata_dir}/{QUORUM_STATE_FILE}")
        return decode_election(bytes(file.data[: file.synced_bytes])) if file is not None else None

    # ---- Fetches -----------------------------------------------------------------------------------------------------

    def _check_fetch(self, process: Process, fetch_offset: int) -> None:
        """A fetch offset promises that everything below is durable (A34)."""
        machine = self._machine(process)
        if machine is None:
            return
        durable = machine.disk.durable_end(machine.metadata_dir)
        if durable < fetch_offset:
            self.report(
                "fetch-durable",
                process.node_id,
                f"fetches from {fetch_offset}; durable is what is below {durable}",
            )

    def _on_fetch_answer(self, process: Process, request: FetchRequest, response: FetchResponse) -> None:
        """A fetch counts in the epoch that it names, or not at all (A28, B24). Without one it counts for nothing."""
        asked = {(each.topic_id, each.partition): each.current_leader_epoch for each in request.partitions}
        for result in response.partitions:
            epoch = asked.get((result.topic_id, result.partition), NO_EPOCH)
            if result.error_code is ErrorCode.NONE and epoch not in (NO_EPOCH, result.leader_epoch):
                self.report(
                    "fetch-epoch", process.node_id,
                    f"a fetch of epoch {epoch} was accepted in epoch {result.leader_epoch}: {request!r}"[:300],
                )  # fmt: skip

    # ---- Snapshots ---------------------------------------------------------------------------------------------------

    def _on_snapshot_answer(
        self, process: Process, request: FetchSnapshotRequest, response: FetchSnapshotResponse
    ) -> None:
        if response.error_code is ErrorCode.NONE:
            if response.snapshot_id != request.snapshot_id:
                self.report(
                    "snapshot-id", process.node_id, f"asked for {request!r}, served {response.snapshot_id}"
                )
            self._check_snapshot_id(process.node_id, response.snapshot_id)

    def _check_snapshot_id(self, node_id: int, snapshot_id: OffsetAndEpoch) -> None:
        expected = self.ledger.epoch_of(snapshot_id.offset)
        if expected != snapshot_id.epoch:
            self.report(
                "snapshot-id", node_id, f"snapshot {snapshot_id}: committed there is epoch {expected}"
            )

    def _check_snapshot(self, machine: Machine, path: str, snapshot_id: OffsetAndEpoch) -> None:
        """A snapshot was written or fetched: it is what the committed records below its end add up to (A45)."""
        self._check_snapshot_id(machine.node_id, snapshot_id)
        expected = self.ledger.image(snapshot_id.offset)
        if expected is None:
            return
        try:
            snapshot = decode_snapshot(machine.disk.map(path), path)
        except StorageError as error:
            self.report("snapshot-content", machine.node_id, str(error))
            return
        image = image_of(map(decode_record, snapshot.values()), snapshot_id.offset)
        problem = difference(image, expected)
        self.report_if("snapshot-content", machine.node_id, f"{path}: {problem}" if problem else "")

    # ---- Disks -------------------------------------------------------------------------------------------------------

    def on_rename(self, node_id: int, path: str) -> None:
        """A file got its name on a node's disk."""
        machine = self.machines.get(node_id)
        if machine is None or not self.is_enabled:
            return
        directory, _, name = path.rpartition("/")
        if directory != machine.metadata_dir:
            return
        if name == QUORUM_STATE_FILE:
            self._on_election_written(machine, path)
        snapshot_id = parse_snapshot_name(name)
        if snapshot_id is not None and snapshot_id != BOOTSTRAP_SNAPSHOT_ID:
            self._check_snapshot(machine, path, snapshot_id)

    def on_started(self, machine: Machine) -> None:
        """A process begins with the state on the disk; after a power cut that may be older than the last write."""
        path = f"{machine.metadata_dir}/{QUORUM_STATE_FILE}"
        stored = _stored_election(machine, path) if machine.disk.exists(path) else None
        self._elections[machine.node_id] = stored or ElectionState()

    def _on_election_written(self, machine: Machine, path: str) -> None:
        """Epochs on disk never fall; in one epoch the vote, once given, and the leader, once known, stay (A4, I2)."""
        written = _stored_election(machine, path)
        before = self._elections.get(machine.node_id, ElectionState())
        if written is None:
            self.report("epoch-monotonic", machine.node_id, f"{path} cannot be read back")
            return
        self._elections[machine.node_id] = written
        if written.leader_epoch < before.leader_epoch:
            self.report("epoch-monotonic", machine.node_id, f"{before!r}, then {written!r}")
        elif written.leader_epoch == before.leader_epoch and before.voted_key not in (
            None,
            written.voted_key,
        ):
            self.report("vote-once", machine.node_id, f"{before!r}, then {written!r}")
        if written.leader_id != NO_NODE:
            self.check_leader(machine.node_id, written.leader_id, written.leader_epoch)

    def check_leader(self, node_id: int, leader_id: int, epoch: int) -> None:
        """One leader for each epoch, whichever node says so (I4)."""
        known = self.leaders.setdefault(epoch, (leader_id, 0))[0]
        if known != leader_id:
            self.report("single-leader", node_id, f"nodes {known} and {leader_id} lead epoch {epoch}")

    # ---- The committed log -------------------------------------------------------------------------------------------

    def on_committed(self, node_id: int, quorum: Quorum, begin: int, end: int, *, is_leader: bool) -> None:
        """A node says that everything below `end` is committed; it had been compared with the ledger up to `begin`."""
        offset = max(begin, quorum.log.log_start_offset)
        try:
            while offset < end:
                read: LogRead = quorum.log.read(offset, max_bytes=1 << 20, end_offset=end)
                if not read.records:
                    self.report(
                        "committed-prefix", node_id, f"nothing to read at {offset}, committed up to {end}"
                    )
                    return
                self._compare(node_id, read, is_leader)
                offset = read.next_offset
        except CorruptRecord as error:
            if self.ledger.end <= offset:
                self.report("committed-prefix", node_id, f"committed, and damaged: {error}")

    def _compare(self, node_id: int, read: LogRead, is_leader: bool) -> None:
        ledger = self.ledger
        for batch in split_batches(read.records):
            known = ledger.batches.get(batch.base_offset)
            if known is not None:
                found = (batch.base_offset, batch.next_offset, batch.leader_epoch, batch.crc)
                if known != found:
                    self.report("committed-prefix", node_id, f"holds {found}, committed is {known}")
            elif batch.base_offset != ledger.end:
                self.report("committed-prefix", node_id, f"{batch!r} does not fit {ledger!r}")
            elif not is_leader:
                self.report(
                    "high-watermark", node_id, f"a follower is the first to say that {batch!r} is committed"
                )
            elif batch.leader_epoch < ledger.last_epoch:
                self.report("log-epochs", node_id, f"{batch!r} follows epoch {ledger.last_epoch}")
            else:
                count = len(ledger.voter_sets)
                ledger.extend(batch)
                if len(ledger.voter_sets) > count:
                    self._check_voter_sets(node_id)
            if self.violation is not None:
                return

    def _check_voter_sets(self, node_id: int) -> None:
        """Successive sets of voters differ by one voter (A59)."""
        if len(self.ledger.voter_sets) < 2:
            return
        before, after = ({*each.voters} for each in self.ledger.voter_sets[-2:])
        if len(before ^ after) > 1:
            self.report("one-voter-change", node_id, f"{sorted(before)}, then {sorted(after)}")


def _stored_election(machine: Machine, path: str) -> ElectionState | None:
    return decode_election(machine.disk.read_at(path, 0, machine.disk.size(path)))


def is_of_quorum(request: FetchRequest) -> bool:
    """Whether a controller fetches the metadata for its own log; a broker only reads them, and names no directory."""
    partitions = request.partitions
    is_for_log = request.replica_directory_id != ZERO_ID
    return is_for_log and bool(partitions) and partitions[0].topic_id == METADATA_TOPIC_ID


def names_epoch(request: FetchRequest) -> bool:
    """Whether some partition is fetched in an epoch: only then does the answer's epoch mean anything (A28)."""
    return any(each.current_leader_epoch != NO_EPOCH for each in request.partitions)


def quorum_of(machine: Machine) -> Quorum | None:
    """The quorum core on a machine; None when there is none just now."""
    observed = machine.controller.observed if machine.controller is not None else None
    return observed.driver.quorum if observed is not None else None
