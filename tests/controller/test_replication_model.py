"""Whatever happens to brokers, and in whatever order leaders propose ISRs and operators change things: the leader has
every committed record, and a replica that has them may lead (B13, B40-B45).

The model knows which replicas hold all that is committed. Those that come into the ISR do; once enough are in sync the
high watermark may move, and then no other broker does; a broker that restarts without its disk does not.
"""

from typing import Any
from uuid import UUID

from hypothesis import example, given, settings
from hypothesis import strategies as st

from rayka.config.broker_config import BrokerConfig
from rayka.controller.controller_timers import ElectPreferredLeaders, LookAfterReplicas
from rayka.metadata.image import PartitionImage, topic_config
from rayka.protocol.configs import (
    AlterConfigOp,
    AlteredResource,
    ConfigChange,
    IncrementalAlterConfigsRequest,
    ResourceType,
)
from rayka.protocol.membership import (
    AlterPartitionItem,
    AlterPartitionRequest,
    IsrMember,
    LeaderRecoveryState,
)
from rayka.protocol.topics import (
    AlterPartitionReassignmentsRequest,
    ElectionType,
    ElectLeadersRequest,
    Reassignment,
)
from tests.controller.support import WITH_ELR, WITHOUT_ELR, Machine
from tests.metadata.support import directory, partition, topic

BROKERS = (1, 2, 3, 4)
PARTITIONS = ((1, 2, 3), (2, 3, 4), (4, 1))
_brokers = st.sampled_from(BROKERS)
_numbers = st.sampled_from(range(len(PARTITIONS)))
_some = st.lists(_brokers, min_size=1, max_size=3, unique=True).map(tuple)
_steps = st.lists(
    st.one_of(
        st.tuples(st.just("fence"), _brokers),
        st.tuples(st.just("exit"), _brokers),
        st.tuples(st.just("run"), _brokers),
        st.tuples(st.just("shut_down"), _brokers),
        st.tuples(st.just("restart"), _brokers, st.booleans()),
        st.tuples(st.just("lose_directory"), _brokers),
        st.tuples(st.just("propose"), _numbers, _some),
        st.tuples(st.just("reassign"), _numbers, st.none() | _some),
        st.tuples(st.just("elect"), _numbers),
        st.tuples(st.just("need"), st.integers(1, 3)),
        st.tuples(st.just("balance"), _brokers),
        st.tuples(st.just("heal"), st.sampled_from((1_000, 900_000))),
    ),
    min_size=5,
    max_size=40,
)


class Model:
    """A controller, and which replicas of each partition are whole."""

    def __init__(self, has_elr: bool) -> None:
        self.has_elr = has_elr
        self.machine = Machine(records=WITH_ELR if has_elr else WITHOUT_ELR)
        self.machine.start(*BROKERS)
        self.machine.replay(
            topic(), *(partition(number, replicas) for number, replicas in enumerate(PARTITIONS))
        )
        self.whole = [set(replicas) for replicas in PARTITIONS]
        self.incarnations = 5_000
        self.proposed: set[int] = set()  # in the step under way: into which ISR
        self.lost: set[int] = set()  # and whose records
        self.exited: set[int] = set()

    def step(self, name: str, *arguments: Any) -> None:
        before = self.partitions()
        self.proposed, self.lost = set(), set()
        getattr(self, name)(*arguments)
        for number, (old, new) in enumerate(zip(before, self.partitions(), strict=True)):
            self.check_state(new)
            self.check_epochs(old, new)
            self.check_leader(number, old, new)
            self.let_high_watermark_move(number, new)

    def partitions(self) -> tuple[PartitionImage, ...]:
        return self.machine.image.topics["orders"].partitions

    # ---- What happens ------------------------------------------------------------------------------------------------

    def fence(self, broker_id: int) -> None:
        self.beat(broker_id, want_fence=True)

    def run(self, broker_id: int) -> None:
        self.beat(broker_id)

    def shut_down(self, broker_id: int) -> None:
        self.beat(broker_id, want_shut_down=True)

    def lose_directory(self, broker_id: int) -> None:
        self.beat(broker_id, offline_directory_ids=(directory(broker_id).directory_id,))

    def beat(self, broker_id: int, **wishes: Any) -> None:
        if broker_id not in self.exited:
            self.machine.heartbeat(broker_id, **wishes)

    def exit(self, broker_id: int) -> None:
        registered = self.machine.image.brokers[broker_id].registration
        self.machine.report_exit(broker_id, registered.incarnation_id)
        self.exited.add(broker_id)

    def restart(self, broker_id: int, is_clean: bool) -> None:
        self.incarnations += 1
        self.exited.discard(broker_id)
        known = self.machine.image.brokers[broker_id].broker_epoch
        epoch = known if is_clean else -1
        if (
            not is_clean and self.has_elr
        ):  # without ELRs records are lost when the last in sync loses its disk
            self.lost = {broker_id}
            for whole in self.whole:
                whole.discard(broker_id)
        self.machine.register(
            broker_id,
            incarnation_id=UUID(int=self.incarnations),
            previous_broker_epoch=epoch,
            known_broker_epoch=known,
        )

    def propose(self, number: int, isr: tuple[int, ...]) -> None:
        """By the leader, with the epochs that it knows by now; with the broker epochs of those it sees."""
        state, brokers = self.partitions()[number], self.machine.image.brokers
        if not state.has_leader:
            return
        members = dict.fromkeys((state.leader_id, *isr))
        item = AlterPartitionItem(
            self.machine.image.topics["orders"].topic_id,
            number,
            state.leader_epoch,
            state.partition_epoch,
            tuple(IsrMember(each, brokers[each].broker_epoch) for each in members),
        )
        request = AlterPartitionRequest(state.leader_id, brokers[state.leader_id].broker_epoch, (item,))
        if self.machine.written_by(request):
            self.proposed = set(members)
            self.whole[number] |= self.proposed

    def reassign(self, number: int, replicas: tuple[int, ...] | None) -> None:
        self.machine.handle(AlterPartitionReassignmentsRequest((Reassignment("orders", number, replicas),)))

    def elect(self, number: int) -> None:
        self.machine.handle(ElectLeadersRequest(ElectionType.PREFERRED))

    def need(self, min_isr: int) -> None:
        change = ConfigChange("min.insync.replicas", AlterConfigOp.SET, str(min_isr))
        resource = AlteredResource(ResourceType.TOPIC, "orders", (change,))
        self.machine.handle(IncrementalAlterConfigsRequest((resource,)))

    def balance(self, broker_id: int) -> None:
        self.machine.handle(ElectPreferredLeaders(broker_id))

    def heal(self, after_ms: int) -> None:
        """What is gone for long is made anew; no partition has fewer replicas then, and no other broker goes."""
        before = self.partitions()
        self.machine.now_ms += after_ms
        begun_count = self.machine.handle(LookAfterReplicas(self.machine.now_ms))
        changed = [(old, new) for old, new in zip(before, self.partitions(), strict=True) if old != new]
        assert len(changed) == begun_count
        for old, new in changed:
            assert len(new.target_replicas) == len(old.target_replicas)
            lost = [each for each in old.target_replicas if each not in new.target_replicas]
            assert lost
            assert not any(self.runs(old, each) for each in lost)
            assert all(
                self.runs(new, each) for each in new.target_replicas if each not in old.target_replicas
            )

    # ---- What holds --------------------------------------------------------------------------------------------------

    def check_state(self, state: PartitionImage) -> None:
        isr, elr = set(state.isr), set(state.eligible_leader_replicas)
        assert isr | elr <= set(state.replicas)
        assert not isr & elr
        assert state.leader_id in isr | {-1}
        assert len(state.replicas) == len(state.directories) == len(set(state.replicas))
        running = {each for each in state.replicas if self.runs(state, each)}
        if self.has_elr:
            assert isr <= running
        else:
            assert isr <= running or len(isr) == 1  # B43
            assert isr
            assert not elr
        candidates = isr or elr or (set(state.last_known_elr) if self.has_elr else set())
        assert state.has_leader == bool(candidates & running), "a replica leads where one may"

    def runs(self, state: PartitionImage, broker_id: int) -> bool:
        broker = self.machine.image.brokers[broker_id]
        return broker.is_active and state.directory_of(broker_id) in broker.online_directories

    def check_epochs(self, old: PartitionImage, new: PartitionImage) -> None:
        assert new.partition_epoch >= old.partition_epoch
        is_raised = new.leader_id != old.leader_id or not set(old.replicas) <= set(new.replicas)
        assert new.leader_epoch > old.leader_epoch if is_raised else new.leader_epoch == old.leader_epoch

    def check_leader(self, number: int, old: PartitionImage, new: PartitionImage) -> None:
        if new.leader_id in (old.leader_id, -1):
            return
        if new.leader_id in {*old.isr, *old.eligible_leader_replicas, *self.proposed}:
            assert new.leader_id in self.whole[number], "a leader elected from the ISR or ELR lacks records"
            return
        assert {*old.isr, *old.eligible_leader_replicas} <= self.lost, "another replica held them all"
        assert old.last_known_elr == (new.leader_id,)
        assert new.leader_recovery_state is LeaderRecoveryState.RECOVERING
        self.whole[number] = {new.leader_id}  # what it lacks is lost

    def let_high_watermark_move(self, number: int, state: PartitionImage) -> None:
        wanted = topic_config(self.machine.image, BrokerConfig(), "orders").min_insync_replicas
        needed = min(wanted, len(state.replicas))  # B1
        if state.has_leader and len(state.isr) >= needed:
            self.whole[number] = set(state.isr)


# All become eligible while three are needed, then one is enough: the first to be back leads the others.
ENOUGH_ALONE = [("fence", 1), ("fence", 2), ("fence", 3), ("need", 1), ("run", 1), ("fence", 1), ("run", 2)]


@example(3, ENOUGH_ALONE)
@settings(max_examples=500)
@given(st.integers(1, 3), _steps)
def test_the_leader_has_every_committed_record(min_isr: int, steps: list[tuple[Any, ...]]) -> None:
    model = Model(has_elr=True)
    for each in [("need", min_isr), *steps]:
        model.step(*each)


@settings(max_examples=500)
@given(st.integers(1, 3), _steps)
def test_without_elrs_the_last_in_sync_waits_for_itself(
    min_isr: int, steps: list[tuple[Any, ...]]
) -> None:  # B43
    model = Model(has_elr=False)
    for each in [("need", min_isr), *steps]:
        model.step(*each)
