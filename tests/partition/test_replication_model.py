"""Replication as a whole: whatever is delivered late, twice or never, what is committed stays (P1-P6; B1-B28)."""

from random import Random

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from rayka.config.topic_config import FlushPolicy, TopicConfig
from rayka.errors import ErrorCode, NotEnoughReplicasAfterAppend, NotLeaderOrFollower
from rayka.ids import NO_NODE, ZERO_ID
from rayka.log.recovery import Tearing
from rayka.partition.partition_leader import Appended, PartitionLeader
from rayka.protocol.membership import AlterPartitionItem, AlterPartitionResult
from rayka.protocol.produce import ACKS_ALL, ACKS_LEADER
from tests.partition.replication_cluster import BROKERS, Controller, Replica, Request, Response
from tests.partition.support import LAG_MAX_MS, sync

BROKER = st.sampled_from(BROKERS)
INDEX = st.integers(0, 7)


class Replication(RuleBasedStateMachine):
    """Three brokers; `committed` is all that was ever below a high watermark, by offset."""

    def __init__(self) -> None:
        super().__init__()
        self.now_ms = 0
        self.count = 0
        self.controller = Controller()
        self.requests: list[Request] = []
        self.responses: list[Response] = []
        self.proposals: list[tuple[int, AlterPartitionItem]] = []
        self.copies: list[tuple[int, AlterPartitionItem]] = []  # of proposals, still on their way
        self.unacknowledged: list[tuple[int, Appended, bytes]] = []
        self.committed: dict[int, bytes | None] = {}

    @initialize(min_isr=st.integers(1, 2), flush=st.sampled_from(FlushPolicy))
    def start(self, min_isr: int, flush: FlushPolicy) -> None:
        config = TopicConfig(min_insync_replicas=min_isr, flush=flush, segment_bytes=1024)
        self.is_synced = flush is FlushPolicy.BATCH
        self.replicas = {each: Replica(each, config) for each in BROKERS}
        for each in BROKERS:
            self.learn(each)

    # ---- Records ----

    @rule(acks=st.sampled_from((ACKS_ALL, ACKS_LEADER)), count=st.integers(1, 3))
    def append_to_leader(self, acks: int, count: int) -> None:
        if self.controller.state.leader_id != NO_NODE:
            self.append(self.controller.state.leader_id, acks, count)

    @rule(broker=BROKER, acks=st.sampled_from((ACKS_ALL, ACKS_LEADER)), count=st.integers(1, 3))
    def append(self, broker: int, acks: int, count: int) -> None:
        for _ in range(count):
            self.count += 1
            value = b"%d" % self.count
            appended = self.replicas[broker].append(value, acks, self.now_ms)
            if appended is not None and acks == ACKS_ALL:
                self.unacknowledged.append((broker, appended, value))

    @rule(broker=BROKER)
    def fetch(self, broker: int) -> None:
        if self.replicas[broker].is_following:
            self.count += 1
            self.requests.append(self.replicas[broker].next_request(self.count))

    @precondition(lambda self: self.requests)
    @rule(index=INDEX, is_kept=st.booleans())
    def answer(self, index: int, is_kept: bool) -> None:
        request = _taken(self.requests, index, is_kept=is_kept)
        response, proposal = self.replicas[request.leader_id].answer(request, self.now_ms)
        self.responses.append(response)
        if proposal is not None:
            self.proposals.append((request.leader_id, proposal))

    @precondition(lambda self: self.responses)
    @rule(index=INDEX, is_kept=st.booleans())
    def receive(self, index: int, is_kept: bool) -> None:
        response = _taken(self.responses, index, is_kept=is_kept)
        self.replicas[response.request.follower.replica_id].on_response(response, self.now_ms)

    @rule(broker=BROKER)
    def replicate(self, broker: int) -> None:
        """A whole fetch, at once: histories would get nowhere if each took three steps."""
        if self.replicas[broker].is_following:
            self.fetch(broker)
            self.answer(len(self.requests) - 1, is_kept=False)
            self.receive(len(self.responses) - 1, is_kept=False)

    @rule(broker=BROKER)
    def sync(self, broker: int) -> None:
        replica = self.replicas[broker]
        sync(replica.partition, replica.disk)
        replica.partition.maybe_increment_high_watermark(self.now_ms)

    @rule(broker=BROKER)
    def delete_records(self, broker: int) -> None:
        if self.replicas[broker].partition.is_leader:
            self.replicas[broker].partition.as_leader().delete_records(-1)

    # ---- The leader, and the replicas in sync ----

    @rule(broker=BROKER)
    def learn(self, broker: int) -> None:
        self.replicas[broker].learn(self.controller, self.now_ms)

    @rule(broker=BROKER)
    def shrink(self, broker: int) -> None:
        partition = self.replicas[broker].partition
        proposal = partition.as_leader().maybe_shrink_isr(now_ms=self.now_ms) if partition.is_leader else None
        if proposal is not None:
            self.proposals.append((broker, proposal))

    @precondition(lambda self: self.proposals)
    @rule(index=INDEX, is_answer_lost=st.booleans(), is_repeated=st.booleans())
    def decide(self, index: int, is_answer_lost: bool, is_repeated: bool = False) -> None:
        """The controller does what is proposed; the answer may be lost, and the leader proposes it again."""
        sender, item = _taken(self.proposals, index)
        if is_repeated:
            self.copies.append((sender, item))
        result = self.controller.alter_partition(sender, item)
        if is_answer_lost:
            result = AlterPartitionResult(ZERO_ID, 0, ErrorCode.NETWORK_EXCEPTION)
        self._answer(sender, item, result)

    @precondition(lambda self: self.copies)
    @rule(index=INDEX)
    def repeat(self, index: int) -> None:
        """The network brings a proposal once more; no replica waits for the answer."""
        self.controller.alter_partition(*_taken(self.copies, index))

    @precondition(lambda self: self.proposals)
    @rule(index=INDEX)
    def lose(self, index: int) -> None:
        """The proposal is lost on its way to the controller."""
        sender, item = _taken(self.proposals, index)
        self._answer(sender, item, AlterPartitionResult(ZERO_ID, 0, ErrorCode.NETWORK_EXCEPTION))

    @precondition(lambda self: self.proposals)
    @rule(index=INDEX)
    def refuse(self, index: int) -> None:
        """The controller does not do what it could, and says so."""
        sender, item = _taken(self.proposals, index)
        error = self.controller.refusal(sender, item) or ErrorCode.OPERATION_NOT_ATTEMPTED
        self.controller.supersede(error)
        self._answer(sender, item, AlterPartitionResult(ZERO_ID, 0, error))

    def _answer(self, sender: int, item: AlterPartitionItem, result: AlterPartitionResult) -> None:
        role = self.replicas[sender].partition.role
        if isinstance(role, PartitionLeader):
            again = role.on_alter_partition(item, result, now_ms=self.now_ms)
            if again is not None:
                self.proposals.append((sender, again))

    @rule(broker=BROKER)
    def fence(self, broker: int) -> None:
        self.controller.fence(broker)

    @rule(is_learnt=st.booleans())
    def fail_over(self, is_learnt: bool) -> None:
        """The leader is cut off for a while; another takes over, and everyone may know at once."""
        deposed = self.controller.state.leader_id
        if deposed != NO_NODE:
            self.controller.fence(deposed)
            self.controller.unfence(deposed)
            for each in BROKERS if is_learnt else ():
                self.learn(each)

    @rule(broker=BROKER)
    def unfence(self, broker: int) -> None:
        self.controller.unfence(broker)

    @rule(ms=st.sampled_from((1, LAG_MAX_MS // 2, 2 * LAG_MAX_MS)))
    def pass_time(self, ms: int) -> None:
        self.now_ms += ms

    # ---- Faults ----

    @rule(broker=BROKER, seed=st.integers(0, 99), is_checkpoint_old=st.booleans())
    def restart(self, broker: int, seed: int, is_checkpoint_old: bool) -> None:
        """The process dies; with `flush=batch` the machine loses its power."""
        replica = self.replicas[broker]
        saved = 0 if is_checkpoint_old else replica.partition.high_watermark
        if self.is_synced:
            replica.disk.power_loss(Random(seed))
        else:
            replica.disk.process_crash()
        tearing = Tearing.ANYWHERE if self.is_synced else Tearing.SHORT_TAIL
        self.controller.register(broker)
        self.proposals = [each for each in self.proposals if each[0] != broker]
        self.unacknowledged = [each for each in self.unacknowledged if each[0] != broker]
        replica.start(saved, tearing)
        self.controller.unfence(broker)
        self.learn(broker)

    # ---- What holds after each step ----

    @invariant()
    def every_high_watermark_lies_in_its_log(self) -> None:
        for each in self._partitions():
            assert each.log.log_start_offset <= each.high_watermark <= each.log.log_end_offset, each

    @invariant()
    def what_is_committed_never_changes(self) -> None:  # P3, P4
        for replica in getattr(self, "replicas", {}).values():
            for offset, value in replica.values().items():
                if offset < replica.partition.high_watermark:
                    assert self.committed.setdefault(offset, value) == value, (replica.partition, offset)

    @invariant()
    def the_isr_has_all_that_is_committed(self) -> None:  # P2, P5
        for broker_id in self.controller.state.isr if self._partitions() else ():
            replica = self.replicas[broker_id]
            values, start = replica.values(), replica.partition.log.log_start_offset
            for offset, value in self.committed.items():
                assert offset < start or values.get(offset) == value, (replica.partition, offset)

    @invariant()
    def a_leader_counts_every_member_of_the_isr(self) -> None:  # P6, B2
        for each in self._partitions():
            assert set(each.isr) <= set(each.maximal_isr)
            if each.is_leader and each.leader_epoch == self.controller.state.leader_epoch:
                assert set(self.controller.state.isr) <= set(each.maximal_isr), each

    @invariant()
    def what_is_acknowledged_is_committed(self) -> None:  # P1, P2
        for broker, appended, value in list(self.unacknowledged):
            try:
                is_acknowledged = (
                    self.replicas[broker].partition.as_leader().is_acknowledged(appended, ACKS_ALL)
                )
            except (NotLeaderOrFollower, NotEnoughReplicasAfterAppend):
                self.unacknowledged.remove((broker, appended, value))
                continue
            if is_acknowledged:
                offset = appended.base_offset
                assert self.committed.setdefault(offset, value) == value, (broker, appended)
                self.unacknowledged.remove((broker, appended, value))

    def _partitions(self) -> list:  # type: ignore[type-arg]
        return [each.partition for each in getattr(self, "replicas", {}).values()]

    # ---- The end ----

    def teardown(self) -> None:
        """Once nothing is lost any more, all logs become equal, all replicas are in sync, and all is committed."""
        if not self._partitions():
            return
        for each in BROKERS:
            self.controller.unfence(each)
        self.requests.clear()
        self.responses.clear()
        for _ in range(self.count + 20):  # a fetch brings one batch at least
            for each in BROKERS:
                self.learn(each)
                self.replicate(each)
                self.sync(each)
                self.what_is_committed_never_changes()
                self.the_isr_has_all_that_is_committed()
            while self.proposals:
                self.decide(0, is_answer_lost=False)
        assert self.controller.state.leader_id != NO_NODE
        leader = self.replicas[self.controller.state.leader_id]
        assert sorted(self.controller.state.isr) == list(BROKERS)
        for replica in self.replicas.values():
            start = max(replica.partition.log.log_start_offset, leader.partition.log.log_start_offset)
            assert replica.values_from(start) == leader.values_from(start), (
                replica.partition,
                leader.partition,
            )
            assert replica.partition.high_watermark == leader.partition.log.log_end_offset, replica.partition


def _taken(queue: list, index: int, *, is_kept: bool = False):  # type: ignore[no-untyped-def, type-arg]
    """One of the queue, wherever it stands."""
    index %= len(queue)
    return queue[index] if is_kept else queue.pop(index)


Replication.TestCase.settings = settings(max_examples=60, stateful_step_count=60)
TestReplication = Replication.TestCase
