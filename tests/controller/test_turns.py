"""Requests that concern many partitions: how much one turn of the event loop does of them, and what is so between two
turns (B44, A68). A turn here is of ten steps, so that a few dozen partitions are many.
"""

import itertools
from collections.abc import Sequence
from random import Random
from typing import Any
from uuid import UUID

import pytest

from rayka.config.broker_config import BrokerConfig
from rayka.controller.controller import Controller
from rayka.controller.controller_timers import (
    ElectLeaderless,
    ElectPreferredLeaders,
    FenceStaleBroker,
    SweepBrokers,
)
from rayka.errors import NotController, TooManyRequests
from rayka.metadata.image import MetadataImage
from rayka.metadata.metadata_records import MetadataRecord
from rayka.protocol.configs import (
    AlterConfigOp,
    AlteredResource,
    ConfigChange,
    ConfigResourceName,
    DescribeConfigsRequest,
    IncrementalAlterConfigsRequest,
    ResourceType,
)
from rayka.protocol.membership import (
    AlterPartitionItem,
    AlterPartitionRequest,
    HeartbeatRequest,
    IsrMember,
    MetadataRequest,
    RegisterBrokerRequest,
    RegisterBrokerResponse,
    ReportExitRequest,
)
from rayka.protocol.topics import (
    AlterPartitionReassignmentsRequest,
    CreatePartitionsRequest,
    CreateTopicsRequest,
    DeleteTopicsRequest,
    ElectionType,
    ElectLeadersRequest,
    ListPartitionReassignmentsRequest,
    NewPartitions,
    NewTopic,
    Reassignment,
)
from rayka.shard.runtime import TIMER_RETRY_MS, Pending, ShardRuntime
from tests.controller.support import CLUSTER_ID, SECOND_PROCESS, SESSION_MS, WITH_ELR, registration
from tests.metadata.support import ORDERS, active, partition, topic

COUNT, STEPS = 35, 10
FIRST_PROCESS = UUID(int=1001)  # of broker 1


class Log:
    """What is appended is committed at once, unless the log takes nothing."""

    def __init__(self) -> None:
        self.records: list[MetadataRecord] = []
        self.is_full = False

    @property
    def next_offset(self) -> int:
        return len(self.records)

    @property
    def high_watermark(self) -> int:
        return len(self.records)

    def append(self, records: Sequence[MetadataRecord]) -> int:
        if self.is_full:
            raise TooManyRequests("much waits for the disk")
        self.records += records
        return len(self.records) - len(records)


class Active:
    """An active controller on a log, run turn by turn."""

    def __init__(self, *records: MetadataRecord) -> None:
        self.log = Log()
        self.now_ms = 0
        self.log.records += records
        self.fail_over()

    def fail_over(self) -> None:
        """Another controller replays what the log holds, and becomes active."""
        runtime: ShardRuntime[Controller, MetadataRecord] = ShardRuntime(
            _new_controller, self.log, steps_per_turn=STEPS
        )
        runtime.replay_committed(enumerate(self.log.records), self.log.next_offset)
        runtime.activate(self.now_ms)
        self.runtime = runtime

    @property
    def image(self) -> MetadataImage:
        return self.runtime.shard.image(self.runtime.replayed_offset)

    @property
    def leaders(self) -> list[int]:
        return [each.leader_id for each in self.image.topics["orders"].partitions]

    def begin(self, request: Any) -> Pending:
        """The first turn of it."""
        return self.runtime.handle(request, now_ms=self.now_ms, deadline_ms=1 << 60)

    def turns(self, request: Any) -> list[int]:
        """How many records each turn of it made the controller take in."""
        offsets = [self.runtime.replayed_offset]
        pending = self.begin(request)
        offsets.append(self.runtime.replayed_offset)
        while self.runtime.is_busy:
            self.runtime.advance(self.now_ms)
            offsets.append(self.runtime.replayed_offset)
        assert pending.error is None, pending
        return [after - before for before, after in itertools.pairwise(offsets)]

    def run(self, request: Any) -> Any:
        """The response."""
        pending = self.begin(request)
        while not pending.has_run:
            self.runtime.advance(self.now_ms)
        assert pending.error is None, pending
        return pending.response

    def sweep(self) -> None:
        """Fences the brokers whose session is over."""
        self.run(SweepBrokers(self.now_ms))
        while self.run(FenceStaleBroker()):
            pass

    def heartbeat(self, broker_id: int, **changes: Any) -> HeartbeatRequest:
        """From the broker's present process; it counts as a contact."""
        epoch = self.image.brokers[broker_id].broker_epoch
        fields = {"want_fence": False, "want_shut_down": False} | changes
        request = HeartbeatRequest(broker_id, epoch, self.runtime.replayed_offset - 1, **fields)
        self.runtime.shard.on_heartbeat(request, now_ms=self.now_ms, next_offset=self.runtime.replayed_offset)
        return request


def _new_controller() -> Controller:
    return Controller(
        cluster_id=CLUSTER_ID, node_id=3001, config=BrokerConfig(), random=Random(1), wall_clock_ms=lambda: 0
    )


def three_brokers(*, leader_id: int = 1, isr: tuple[int, ...] = (1, 2, 3)) -> Active:
    """Three brokers, and many partitions that the first one leads, or another."""
    partitions = [partition(number, (1, 2, 3), isr=isr, leader_id=leader_id) for number in range(COUNT)]
    return Active(*WITH_ELR, *active(1, 2, 3), topic(), *partitions)


def all_fenced_but_first() -> Active:
    """Only broker 1 runs, and leads many partitions that only it is in sync for."""
    controller = three_brokers(isr=(1,))
    for broker_id in (2, 3):
        controller.run(controller.heartbeat(broker_id, want_fence=True))
    return controller


def restarted(controller: Active, **changes: Any) -> RegisterBrokerRequest:
    """Broker 1 by its next process."""
    epoch = controller.image.brokers[1].broker_epoch
    known = {"incarnation_id": SECOND_PROCESS, "known_broker_epoch": epoch}
    return registration(1, **(known | changes))


# ---- How much a turn does --------------------------------------------------------------------------------------------

_ALL = tuple(range(COUNT))
_REASSIGNED = tuple(Reassignment("orders", number, (1, 2)) for number in _ALL)
_SHRUNK = tuple(AlterPartitionItem(ORDERS, number, 0, 0, (IsrMember(1), IsrMember(2))) for number in _ALL)
_CLEAN = AlteredResource(
    ResourceType.TOPIC, "orders", (ConfigChange("unclean.leader.election.enable", AlterConfigOp.SET, "true"),)
)


@pytest.mark.parametrize(
    "request_of",
    [
        lambda of: of.heartbeat(1, want_fence=True),
        lambda of: of.heartbeat(1, want_shut_down=True),
        lambda of: ReportExitRequest(1, of.image.brokers[1].registration.incarnation_id),
        restarted,
        lambda of: restarted(of, previous_broker_epoch=of.image.brokers[1].broker_epoch),
        lambda _: AlterPartitionRequest(1, 1, _SHRUNK),
        lambda _: AlterPartitionReassignmentsRequest(_REASSIGNED),
        lambda _: CreateTopicsRequest((NewTopic("many", partition_count=COUNT, replication_factor=3),)),
        lambda _: CreatePartitionsRequest((NewPartitions("orders", 2 * COUNT),)),
    ],
)
def test_a_turn_writes_no_more_records_than_it_has_steps(request_of: Any) -> None:  # A68
    controller = three_brokers()
    turns = controller.turns(request_of(controller))
    assert sum(turns) >= COUNT
    assert max(turns) <= STEPS + 1  # the last one, and what ends it


@pytest.mark.parametrize(
    "request_of",
    [
        lambda _: ElectPreferredLeaders(1),
        lambda _: ElectLeadersRequest(ElectionType.PREFERRED, None),
    ],
)
def test_a_turn_holds_no_more_elections_than_it_has_steps(request_of: Any) -> None:  # B46
    turns = three_brokers(leader_id=2).turns(request_of(None))
    assert (sum(turns), max(turns)) == (COUNT, STEPS)


@pytest.mark.parametrize(
    "request_of",
    [
        lambda _: ListPartitionReassignmentsRequest(None),
        lambda _: ElectLeadersRequest(ElectionType.PREFERRED, None),
        lambda _: IncrementalAlterConfigsRequest((_CLEAN,)),
        lambda of: of.heartbeat(3, want_fence=True),
    ],
)
def test_a_turn_looks_at_no_more_partitions_than_it_has_steps(request_of: Any) -> None:
    controller = three_brokers(isr=(1, 2))
    turns = controller.turns(request_of(controller))
    assert len(turns) == COUNT // STEPS + 1
    assert sum(turns) <= 1


def test_an_answer_about_very_many_partitions_takes_several_turns() -> None:
    partitions = [partition(number, (1, 2, 3)) for number in range(32 * 3 * STEPS)]
    controller = Active(*WITH_ELR, *active(1, 2, 3), topic(), *partitions)
    assert controller.turns(MetadataRequest()) == [0] * 4
    assert controller.turns(MetadataRequest(("absent",))) == [0]


def test_configurations_of_many_brokers_are_described_in_several_turns() -> None:
    """To write out all keys of one takes a third of a millisecond, and the supervisor asks for all brokers."""
    controller = Active(*WITH_ELR, *active(1, 2, 3))
    names = tuple(ConfigResourceName(ResourceType.BROKER, str(each)) for each in (1, 2, 3))
    assert controller.turns(DescribeConfigsRequest(names)) == [0] * 7


def test_configurations_of_many_topics_are_checked_in_several_turns_and_written_in_one() -> None:
    changes = (ConfigChange("retention.ms", AlterConfigOp.SET, "1000"),)
    request = IncrementalAlterConfigsRequest(
        (AlteredResource(ResourceType.TOPIC, "orders", changes),) * COUNT
    )
    assert three_brokers().turns(request) == [0] * (COUNT // STEPS) + [COUNT]


def test_topics_with_many_partitions_are_deleted_in_different_turns() -> None:
    controller = three_brokers()
    names = [f"topic-{number}" for number in range(4)]
    for name in names:
        controller.run(CreateTopicsRequest((NewTopic(name, partition_count=60, replication_factor=3),)))
    assert controller.turns(DeleteTopicsRequest(tuple(names))) == [2, 1, 1]  # seven steps each


# ---- Between two turns -----------------------------------------------------------------------------------------------


def test_a_fencing_that_a_dead_controller_began_is_finished_by_the_next() -> None:  # B44, A67
    controller = three_brokers()
    controller.begin(controller.heartbeat(1, want_fence=True))
    assert controller.leaders == [2] * STEPS + [1] * (COUNT - STEPS)
    assert not controller.image.brokers[1].is_fenced
    controller.fail_over()
    controller.now_ms = SESSION_MS
    controller.heartbeat(2), controller.heartbeat(3)
    controller.sweep()
    assert controller.leaders == [2] * COUNT
    assert controller.image.brokers[1].is_fenced
    assert not any(1 in each.isr for each in controller.image.topics["orders"].partitions)


def test_an_unfencing_that_a_dead_controller_began_is_finished_by_the_next() -> None:  # B44, A67
    controller = all_fenced_but_first()
    controller.run(controller.heartbeat(1, want_fence=True))
    assert controller.leaders == [-1] * COUNT
    controller.begin(controller.heartbeat(1))
    assert not controller.image.brokers[1].is_fenced  # a fenced broker leads nothing
    assert controller.leaders == [1] * (STEPS - 1) + [-1] * (COUNT - STEPS + 1)
    controller.fail_over()
    assert max(controller.turns(ElectLeaderless())) == STEPS
    assert controller.leaders == [1] * COUNT


@pytest.mark.parametrize("turns", [1, COUNT // STEPS])
def test_an_unfencing_that_the_log_refused_in_the_middle_is_finished_at_the_next_heartbeats(
    turns: int,
) -> None:  # B44
    controller = all_fenced_but_first()
    controller.run(controller.heartbeat(1, want_fence=True))
    for _ in range(2):  # what is tried again may be refused, too
        heartbeat = controller.begin(controller.heartbeat(1))
        for _ in range(turns - 1):
            controller.runtime.advance(controller.now_ms)
        controller.log.is_full = True
        controller.runtime.advance(controller.now_ms)
        controller.log.is_full = False
        assert isinstance(heartbeat.error, TooManyRequests)
    led_count = turns * STEPS
    assert controller.leaders == [1] * led_count + [-1] * (COUNT - led_count)
    controller.run(controller.heartbeat(1))
    assert controller.leaders == [1] * COUNT


@pytest.mark.parametrize("turns", [1, 2])
def test_elections_of_a_timer_that_the_log_refused_in_the_middle_are_held_soon_after(
    turns: int,
) -> None:  # B44, B46
    controller = all_fenced_but_first()
    controller.run(controller.heartbeat(1, want_fence=True))
    controller.begin(controller.heartbeat(1))
    controller.fail_over()  # whose first timer elects where no broker leads
    runtime = controller.runtime
    runtime.fire(controller.now_ms)
    for _ in range(turns):
        runtime.advance(controller.now_ms)
    controller.log.is_full = True
    runtime.advance(controller.now_ms)
    controller.log.is_full = False
    assert -1 in controller.leaders
    assert not runtime.is_busy
    controller.now_ms += TIMER_RETRY_MS
    runtime.fire(controller.now_ms)
    while runtime.is_busy:
        runtime.advance(controller.now_ms)
    assert controller.leaders == [1] * COUNT


def test_a_broker_that_has_taken_its_leads_is_not_looked_through_at_each_heartbeat() -> None:
    controller = all_fenced_but_first()
    controller.run(controller.heartbeat(1, want_fence=True))
    controller.run(controller.heartbeat(1))
    assert controller.turns(controller.heartbeat(1)) == [0] * (COUNT // STEPS + 1)
    assert controller.turns(controller.heartbeat(1)) == [0]


def test_elections_that_a_new_controller_holds_are_clean_ones() -> None:  # B44, B46
    controller = all_fenced_but_first()
    controller.run(controller.heartbeat(1, want_fence=True))
    controller.run(controller.heartbeat(2))
    assert controller.turns(ElectLeaderless()) == [0] * (COUNT // STEPS + 1)
    assert controller.leaders == [-1] * COUNT


def test_a_broker_that_sends_heartbeats_to_the_next_controller_stays_and_may_take_back_what_it_lost() -> None:
    controller = three_brokers()  # A67, B46
    controller.begin(controller.heartbeat(1, want_fence=True))
    controller.fail_over()
    controller.now_ms = SESSION_MS
    for broker_id in (1, 2, 3):
        controller.heartbeat(broker_id)
    controller.sweep()
    assert controller.leaders == [2] * STEPS + [1] * (COUNT - STEPS)
    rejoined = tuple(
        AlterPartitionItem(ORDERS, number, 1, 1, tuple(IsrMember(each) for each in (2, 3, 1)))
        for number in range(STEPS)
    )
    controller.run(AlterPartitionRequest(2, 1, rejoined))
    assert controller.run(ElectPreferredLeaders(1)) is False
    assert controller.leaders == [1] * COUNT


def test_a_broker_that_is_being_unfenced_leads_nothing_before_it_is() -> None:  # B44
    controller = three_brokers(isr=(1,))
    controller.run(controller.heartbeat(1, want_fence=True))
    assert controller.leaders == [-1] * COUNT
    controller.begin(controller.heartbeat(1))
    assert not controller.image.brokers[1].is_fenced
    assert 0 < controller.leaders.count(1) < COUNT
    controller.fail_over()
    controller.run(ElectPreferredLeaders(1))  # the timer of the next active controller
    assert controller.leaders == [1] * COUNT


def test_a_broker_that_is_being_fenced_cannot_rejoin_before_the_end() -> None:  # B13, B44
    controller = three_brokers()
    controller.begin(controller.heartbeat(1, want_fence=True))
    rejoins = AlterPartitionItem(ORDERS, 0, 1, 1, tuple(IsrMember(each) for each in (2, 3, 1)))
    controller.run(AlterPartitionRequest(2, 1, (rejoins,)))
    assert controller.image.brokers[1].is_fenced
    assert not any(1 in each.isr for each in controller.image.topics["orders"].partitions)


def test_a_broker_that_is_being_fenced_can_be_unfenced_and_registered_after_the_end() -> None:  # H3, H5
    controller = three_brokers()
    controller.begin(controller.heartbeat(1, want_fence=True))
    alive = controller.begin(controller.heartbeat(1))
    registered: RegisterBrokerResponse = controller.run(restarted(controller))
    assert alive.response.is_fenced is False
    assert controller.leaders == [2] * COUNT
    broker = controller.image.brokers[1]
    assert (broker.is_fenced, broker.broker_epoch) == (True, registered.broker_epoch)
    assert controller.log.records[registered.broker_epoch] == broker.registration


def test_a_registration_whose_controller_died_is_finished_when_the_broker_asks_again() -> None:  # H3, B42
    controller = three_brokers()
    lost = restarted(controller)
    controller.begin(lost)
    controller.fail_over()
    assert controller.image.brokers[1].registration.incarnation_id != SECOND_PROCESS
    registered: RegisterBrokerResponse = controller.run(lost)
    assert controller.leaders == [2] * COUNT
    assert controller.log.records[registered.broker_epoch] == controller.image.brokers[1].registration


def test_a_controlled_shutdown_whose_controller_died_begins_again_and_others_see_all_of_it() -> (
    None
):  # H5, H8
    controller = three_brokers()
    controller.begin(controller.heartbeat(1, want_shut_down=True))
    controller.fail_over()
    assert not controller.image.brokers[1].is_in_controlled_shutdown
    response = controller.run(controller.heartbeat(1, want_shut_down=True))
    assert (response.should_shut_down, controller.leaders) == (False, [2] * COUNT)
    controller.heartbeat(2), controller.heartbeat(3)
    assert controller.run(controller.heartbeat(1, want_shut_down=True)).should_shut_down


def test_a_topic_is_created_as_a_whole_or_not_at_all() -> None:  # A68
    controller = three_brokers()
    before = controller.log.next_offset
    many = CreateTopicsRequest((NewTopic("many", partition_count=COUNT, replication_factor=3),))
    pending = controller.begin(many)
    while controller.log.next_offset == before:
        controller.runtime.advance(0)
    assert not pending.has_run
    controller.fail_over()
    assert len(controller.image.topics["many"].partitions) == COUNT


def test_a_controller_that_loses_the_lead_between_two_turns_says_that_it_may_have_happened() -> None:  # A66
    controller = three_brokers()
    pending = controller.begin(controller.heartbeat(1, want_fence=True))
    controller.runtime.deactivate(NotController("another leads", may_have_run=True))
    assert isinstance(pending.error, NotController)
    assert not controller.runtime.is_busy
