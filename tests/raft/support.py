"""What the tests of the quorum share: cores on memory disks, driven by hand as their drivers would, in virtual time.

`Node` is one core with its disk: `settle` does what a driver's loop does after an event. `Cluster` wires several back
to back: requests that a core gives are handled by another a moment later, unless the link between them is cut.
"""

import asyncio
from collections.abc import Iterator, Sequence
from random import Random
from typing import Any
from uuid import UUID

from rayka.config.topic_config import TopicConfig
from rayka.ids import METADATA_TOPIC_ID, OffsetAndEpoch, ReplicaKey
from rayka.log.log import Log
from rayka.log.log_opening import ShutdownState
from rayka.log.recovery import Tearing
from rayka.ports import Request
from rayka.protocol.batch_decode import decode
from rayka.protocol.batch_encode import encode_batch
from rayka.protocol.batch_format import RecordBatch, split_batches
from rayka.protocol.fetch import FetchPartition, FetchPartitionResult, FetchRequest, FetchResponse
from rayka.protocol.quorum_messages import (
    AddRaftVoterRequest,
    BeginQuorumEpochRequest,
    EndQuorumEpochRequest,
    FetchSnapshotRequest,
    RemoveRaftVoterRequest,
    VoteRequest,
    VoteResponse,
)
from rayka.raft.control_records import ControlRecord, decode_control_batch
from rayka.raft.election_state import ElectionState
from rayka.raft.quorum import Quorum
from rayka.raft.quorum_config import QuorumConfig
from rayka.raft.snapshot import BOOTSTRAP_SNAPSHOT_ID, SnapshotStore, encode_snapshot, snapshot_name
from rayka.raft.voters import VoterSet
from rayka.testing.memory_disk import MemoryDisk
from tests.log.support import opened_log

CLUSTER_ID = "cluster"
DIRECTORY = "/data/__cluster_metadata-0"
LOG_CONFIG = TopicConfig(max_message_bytes=2**31 - 1)


def key(number: int, directory: int = 7) -> ReplicaKey:
    """The replica of controller 300<number>."""
    return ReplicaKey(3000 + number, UUID(int=directory))


ME, OTHER, THIRD = key(1), key(2), key(3)


class Node:
    """One replica, its log, its snapshots and its disk."""

    def __init__(  # noqa: PLR0913 - what a replica is made of
        self, local: ReplicaKey = ME, voters: Sequence[ReplicaKey] | None = (ME,), *,
        disk: MemoryDisk | None = None, stored: ElectionState | None = None, now_ms: int = 0, seed: int = 0,
        config: QuorumConfig | None = None, bootstrap_ids: Sequence[int] = (), cluster_id: str = CLUSTER_ID,
        tearing: Tearing = Tearing.SHORT_TAIL,
    ) -> None:  # fmt: skip
        self.local = local
        self.disk = disk or MemoryDisk()
        if disk is None:
            self.disk.make_directory(DIRECTORY)
            self.disk.sync_now([], ["/data", "/"])
        if disk is None and voters is not None:
            write_snapshot(self.disk, BOOTSTRAP_SNAPSHOT_ID.offset, 0, VoterSet(tuple(voters)))
        self.log = opened_log(self.disk, DIRECTORY, LOG_CONFIG, ShutdownState(0, tearing=tearing))
        self.snapshots = SnapshotStore(self.disk, DIRECTORY)
        self.stored = stored
        self.quorum = Quorum(
            cluster_id=cluster_id,
            local=local,
            log=self.log,
            snapshots=self.snapshots,
            stored=stored,
            config=config or QuorumConfig(),
            random=Random(seed),
            now_ms=now_ms,
            bootstrap_ids=bootstrap_ids,
        )

    def __repr__(self) -> str:
        return repr(self.quorum)

    @property
    def role(self) -> str:
        return type(self.quorum.role).__name__

    @property
    def epoch(self) -> int:
        return self.quorum.election.leader_epoch

    # ---- What a driver does ------------------------------------------------------------------------------------------

    def persist(self) -> None:
        self.stored = self.quorum.election
        self.quorum.on_persisted(self.stored)

    def drain(self) -> bool:
        self.quorum.leader_log.drain(now_ms=0, timestamp_ms=5)
        return not self.log.unsynced().is_empty

    def sync(self, now_ms: int = 0) -> bool:
        plan = self.log.unsynced()
        self.disk.sync_now(plan.files, plan.directories)
        self.log.on_synced(plan)
        before = self.quorum.high_watermark
        self.quorum.leader_log.on_flushed(self.log.flushed_offset, now_ms)
        return self.quorum.high_watermark > before

    def flush(self, now_ms: int = 0) -> bool:
        return self.drain() and self.sync(now_ms)

    def freeze(self, now_ms: int = 0) -> None:
        """Freezes a download like `SnapshotStore.freeze`, without waiting."""
        download = self.quorum.finished_download
        if download is not None:
            run(self.snapshots.freeze(download))
            self.quorum.fetcher.on_snapshot_frozen()

    def copy(self, now_ms: int = 0) -> None:
        """Makes the copy that a truncation waits for, without waiting."""
        copy = self.quorum.needed_copy
        if copy is not None:
            self.disk.copy_prefix_now(copy.source, copy.target, copy.size_bytes)
            self.quorum.fetcher.on_copied(copy, now_ms)

    def write_snapshot(self, snapshot_id: OffsetAndEpoch, *values: bytes) -> None:
        """Writes a snapshot like the driver."""
        voters = self.quorum.log.history.voters_at(snapshot_id.offset)
        data = [encode_batch(values, timestamps_ms=1)] if values else []
        run(self.snapshots.write(snapshot_id, encode_snapshot(snapshot_id, voters, data, timestamp_ms=1)))

    def settle(self, now_ms: int = 0, *, is_stalled: bool = False) -> list[tuple[int, Request[Any]]]:
        """Repeats poll, persist and flush until nothing is left; returns the requests. A stalled disk syncs nothing."""
        self.quorum.poll(now_ms)
        if is_stalled:
            self.drain()
            return self.quorum.requests(now_ms)
        self.persist()
        self.freeze(now_ms)
        self.copy(now_ms)
        while self.flush(now_ms):
            pass
        self.persist()
        return self.quorum.requests(now_ms)

    def restarted(self, *, now_ms: int = 0, **changed: Any) -> "Node":
        """Restarts after a crash of the process, which keeps the page cache."""
        self.disk.process_crash()
        return Node(self.local, disk=self.disk, stored=self.stored, now_ms=now_ms, **changed)

    # ---- Short forms -------------------------------------------------------------------------------------------------

    @classmethod
    def leading(cls, **given: Any) -> "Node":
        """The leader of a quorum of one voter; its first record is committed."""
        node = cls(**given)
        node.settle(given.get("now_ms", 0))
        return node

    def commit(self, *values: bytes) -> int:
        offset = self.quorum.leader_log.append(values)
        self.flush()
        return offset

    def elect(self, now_ms: int, *voting: ReplicaKey) -> None:
        """Lets the election timeout pass and the given voters elect the node."""
        while self.role not in ("Prospective", "Candidate"):
            now_ms = max(now_ms, self.quorum.next_poll_ms(now_ms))
            self.quorum.poll(now_ms)
        while self.role != "Leader":
            role = self.role
            for node_id, request in self.settle(now_ms):
                if isinstance(request, VoteRequest) and request.voter in voting and self.role == role:
                    self.quorum.on_response(node_id, request, granted(self), now_ms)
        self.persist()

    def records(self) -> list[ControlRecord | bytes]:
        return list(contents(self.log, self.log.log_start_offset, self.log.log_end_offset))

    def committed(self) -> list[bytes]:
        read = contents(self.log, self.log.log_start_offset, self.quorum.high_watermark)
        return [each for each in read if isinstance(each, bytes)]

    def fetch(self, offset: int, last_epoch: int = 1, **given: Any) -> FetchPartitionResult | None:
        may_wait, now_ms = given.pop("may_wait", True), given.pop("now_ms", 0)
        request = fetch_request(offset, last_epoch, **given)
        return self.quorum.leader_log.handle_fetch(request, now_ms=now_ms, may_wait=may_wait)

    def fetched_by(self, replica: ReplicaKey, offset: int | None = None, *, now_ms: int = 0) -> bool:
        """Fetches from the end of this leader's log, or from the offset. True: the high watermark moved."""
        before = self.quorum.high_watermark
        offset = self.log.log_end_offset if offset is None else offset
        last_epoch = max(self.log.epochs.epoch_of(offset - 1), 0)
        self.fetch(offset, last_epoch, epoch=self.epoch, replica=replica, now_ms=now_ms)
        return self.quorum.high_watermark > before


def granted(node: Node) -> Any:
    """Gives the node a vote or a pre-vote in its epoch."""
    return VoteResponse(-1, node.epoch, is_granted=True)


def fetch_request(
    offset: int, last_epoch: int = 1, *, epoch: int = -1, high_watermark: int = -1, replica: ReplicaKey = OTHER,
    max_bytes: int = 1 << 20, max_wait_ms: int = 500, cluster_id: str = CLUSTER_ID,
) -> FetchRequest:  # fmt: skip
    """A fetch of the metadata log."""
    partition = FetchPartition(
        METADATA_TOPIC_ID, 0, offset, max_bytes, epoch, last_epoch, high_watermark=high_watermark
    )
    return FetchRequest(
        max_wait_ms,
        1,
        max_bytes,
        (partition,),
        replica_id=replica.node_id,
        replica_directory_id=replica.directory_id,
        cluster_id=cluster_id,
    )


def write_snapshot(
    disk: MemoryDisk, offset: int, epoch: int, voters: VoterSet | None, *values: bytes
) -> None:
    """Writes the file of a snapshot into the directory, durably."""
    snapshot_id = OffsetAndEpoch(offset, epoch)
    data = [encode_batch(values, timestamps_ms=1)] if values else []
    path = f"{DIRECTORY}/{snapshot_name(snapshot_id)}"
    disk.make_directory(DIRECTORY)
    disk.append(path, list(encode_snapshot(snapshot_id, voters, data, timestamp_ms=1)))
    disk.sync_now([path], [DIRECTORY, "/data", "/"])


def contents(log: Log, begin: int, end: int) -> Iterator[ControlRecord | bytes]:
    """All records of the log between two offsets."""
    while begin < end:
        read = log.read(begin, max_bytes=1 << 25, end_offset=end)
        for batch in split_batches(read.records):
            yield from values_of(batch)
        begin = read.next_offset


def values_of(batch: RecordBatch) -> Iterator[ControlRecord | bytes]:
    if batch.is_control:
        yield from decode_control_batch(batch)
    else:
        yield from (value for value in decode(batch).values_list() if value is not None)


def run(coroutine: Any) -> None:
    """Runs a coroutine that awaits nothing but a memory disk."""
    asyncio.run(coroutine)


# ---- Several ---------------------------------------------------------------------------------------------------------


class _Call:
    __slots__ = ("due_ms", "request", "sender", "sent_ms", "target")

    def __init__(self, sender: Node, target: int, request: Request[Any], due_ms: int) -> None:
        self.sender = sender
        self.target = target
        self.request = request
        self.due_ms = self.sent_ms = due_ms


class Cluster:
    """Replicas back to back. A call takes up to `delay_ms_max` to get there; fetches wait there as long as they may.
    `stalls` is how often a disk syncs nothing.
    """

    def __init__(
        self, voters: int = 3, *, observers: int = 0, seed: int = 0, config: QuorumConfig | None = None
    ) -> None:
        self.now_ms = 0
        self.random = Random(seed)
        self.config = config or QuorumConfig()
        self.delay_ms_max = 1
        self.stalls = 0.0
        self._is_busy = False
        self.sent_count = 0
        self.keys = [key(number) for number in range(1, voters + 1)]
        self.cut: dict[tuple[int, int], None] = {}
        self.nodes: dict[int, Node] = {}
        self._calls: list[_Call] = []
        self.leaders: dict[int, int] = {}
        for replica in self.keys:
            self.start(replica, voters=self.keys)
        for number in range(voters + 1, voters + observers + 1):
            self.start(key(number), voters=None)

    def start(
        self,
        replica: ReplicaKey,
        *,
        voters: Sequence[ReplicaKey] | None = None,
        config: QuorumConfig | None = None,
    ) -> Node:
        bootstrap_ids = [each.node_id for each in self.keys]
        node = Node(
            replica,
            voters,
            now_ms=self.now_ms,
            seed=self.random.getrandbits(32),
            config=config or self.config,
            bootstrap_ids=bootstrap_ids,
        )
        self.nodes[replica.node_id] = node
        return node

    def restart(self, node_id: int, *, has_lost_power: bool = False) -> Node:
        """Restarts the process of the node. A power cut may lose everything that was not synced."""
        if has_lost_power:
            self.nodes[node_id].disk.power_loss(self.random)
        node = self.nodes[node_id].restarted(
            tearing=Tearing.ANYWHERE if has_lost_power else Tearing.SHORT_TAIL,
            now_ms=self.now_ms,
            seed=self.random.getrandbits(32),
            config=self.config,
            bootstrap_ids=[each.node_id for each in self.keys],
        )
        self.nodes[node_id] = node
        return node

    def kill(self, node_id: int) -> Node:
        return self.nodes.pop(node_id)

    def isolate(self, *node_ids: int) -> None:
        """Cuts the network between these nodes and the others."""
        for one in self.nodes:
            for other in self.nodes:
                if (one in node_ids) != (other in node_ids):
                    self.cut[one, other] = None

    def heal(self) -> None:
        self.cut.clear()

    # ---- Time --------------------------------------------------------------------------------------------------------

    def run_until(self, condition: Any, *, timeout_ms: int = 60_000) -> None:
        """Runs until the condition holds; fails if it does not hold in time."""
        deadline_ms = self.now_ms + timeout_ms
        while not condition():
            assert self.now_ms < deadline_ms, f"not within {timeout_ms} ms: {list(self.nodes.values())}"
            self.step()

    def run_for(self, duration_ms: int) -> None:
        deadline_ms = self.now_ms + duration_ms
        while self.now_ms < deadline_ms:
            self.step()

    def step(self) -> None:
        """Advances to the next time at which something may happen; not at all if something just has."""
        self.now_ms = self.now_ms + 1 if self._is_busy else max(self.now_ms + 1, min(self._times_ms()))
        before = self._happened()
        for node in list(self.nodes.values()):
            is_stalled = self.stalls > 0 and self.random.random() < self.stalls
            for target, request in node.settle(self.now_ms, is_stalled=is_stalled):
                self._calls.append(_Call(node, target, request, self.now_ms + self._delay_ms()))
                self.sent_count += 1
            if node.quorum.is_leader:
                leader_id = self.leaders.setdefault(node.epoch, node.local.node_id)
                assert leader_id == node.local.node_id, f"two lead epoch {node.epoch}"
        calls, self._calls = self._calls, []
        self._calls += [call for call in calls if call.due_ms > self.now_ms or not self._perform(call)]
        self._is_busy = self._happened() != before

    def _happened(self) -> list[object]:
        nodes = self.nodes.values()
        return [
            len(self._calls),
            [(node.quorum.next_offset, node.quorum.high_watermark, node.quorum.role) for node in nodes],
        ]

    def _delay_ms(self) -> int:
        return self.random.randint(1, self.delay_ms_max)

    def _times_ms(self) -> Iterator[int]:
        yield self.now_ms + 100
        for node in self.nodes.values():
            yield node.quorum.next_poll_ms(self.now_ms)
        config = self.config
        for call in self._calls:
            times_ms = (0, config.fetch_max_wait_ms, config.request_timeout_ms)
            yield from (call.sent_ms + each for each in times_ms if call.sent_ms + each > self.now_ms)

    def _perform(self, call: _Call) -> bool:
        """True if the call is over. A lost call is over after the request timeout."""
        sender, target = call.sender, self.nodes.get(call.target)
        here, there = sender.local.node_id, call.target
        if self.nodes.get(here) is not sender:
            return True
        if target is None or (here, there) in self.cut or (there, here) in self.cut:
            if self.now_ms < call.sent_ms + self.config.request_timeout_ms:
                return False
            sender.quorum.on_no_response(there, call.request, self.now_ms)
            return True
        may_wait = self.now_ms < call.sent_ms + self.config.fetch_max_wait_ms
        response = answer(target, call.request, self.now_ms, may_wait=may_wait)
        if response is None:
            return False
        sender.quorum.on_response(there, call.request, response, self.now_ms)
        return True

    # ---- Short forms -------------------------------------------------------------------------------------------------

    @property
    def leader(self) -> Node | None:
        """The leader of the newest epoch, if it leads still."""
        leading = [node for node in self.nodes.values() if node.quorum.is_leader]
        return max(leading, key=lambda node: node.epoch) if leading else None

    def elected(self) -> Node:
        """Runs until a leader has committed a record of its epoch."""
        self.run_until(lambda: self.leader is not None and self.leader.quorum.high_watermark > 0)
        assert self.leader is not None
        return self.leader

    def commit(self, *values: bytes) -> None:
        """Runs until a leader has committed the values; the next leader appends them again if it lost the lead."""
        leader = self.elected()
        end, epoch = leader.quorum.leader_log.append(values) + len(values), leader.epoch
        self.run_until(lambda: leader.quorum.high_watermark >= end or leader.epoch != epoch)
        if leader.epoch != epoch:
            self.commit(*values)

    def all_have(self, end_offset: int) -> bool:
        return all(node.quorum.high_watermark >= end_offset for node in self.nodes.values())


def answer(node: Node, request: Any, now_ms: int, *, may_wait: bool = True) -> Any:
    """The answer of a node whose election is durable; None while a fetch waits."""
    response = _answer(node.quorum, request, now_ms, may_wait)
    node.persist()
    return response


def _answer(quorum: Quorum, request: Any, now_ms: int, may_wait: bool) -> Any:
    if isinstance(request, FetchRequest):
        result = quorum.leader_log.handle_fetch(request, now_ms=now_ms, may_wait=may_wait)
        return None if result is None else FetchResponse((result,))
    if isinstance(request, VoteRequest):
        return quorum.elections.handle_vote(request, now_ms)
    if isinstance(request, BeginQuorumEpochRequest):
        return quorum.elections.handle_begin_quorum_epoch(request, now_ms)
    if isinstance(request, EndQuorumEpochRequest):
        return quorum.elections.handle_end_quorum_epoch(request, now_ms)
    if isinstance(request, FetchSnapshotRequest):
        return quorum.leader_log.handle_fetch_snapshot(request, now_ms)
    return _changed(quorum, request, now_ms).response


def _changed(quorum: Quorum, request: Any, now_ms: int) -> Any:
    if isinstance(request, AddRaftVoterRequest):
        return quorum.changes.add_voter(request, now_ms)
    if isinstance(request, RemoveRaftVoterRequest):
        return quorum.changes.remove_voter(request)
    return quorum.changes.update_voter(request)
