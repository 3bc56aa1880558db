"""What is done with nodes on machines that Ray drains: the order of the steps, and what fits before the machine goes.

The model carries the steps out on a real controller, in virtual time, with supervisors that die between them.
"""

from collections.abc import Mapping
from itertools import count
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rayka.client.admin.drain_planner import STOP_BEFORE_MS, DrainPlanner
from rayka.client.admin.drain_steps import Mark, Move, Quorum, Resign, Seen, Step, Stop, Unmark
from rayka.client.admin.drain_survey import SLICE
from rayka.errors import ErrorCode
from rayka.ids import TopicPartition
from rayka.protocol.configs import (
    DRAIN_DEADLINE,
    AlterConfigOp,
    AlteredResource,
    ConfigChange,
    IncrementalAlterConfigsRequest,
    ResourceType,
)
from rayka.protocol.membership import (
    MetadataBroker,
    MetadataPartition,
    MetadataRequest,
    MetadataResponse,
    MetadataTopic,
)
from rayka.protocol.topics import AlterPartitionReassignmentsRequest, Reassignment
from tests.controller.admin_support import cluster, create, report_isr
from tests.controller.support import Machine
from tests.controller.test_healing import set_for_all
from tests.metadata.support import directory

NOW_MS = 1_700_000_000_000
SOON_MS = NOW_MS + 60_000
MB = 1_000_000


def broker(node_id: int, **changes: Any) -> MetadataBroker:
    fields = {
        "node_id": node_id,
        "host": f"m{node_id}",
        "is_fenced": False,
        "directories": (directory(node_id),),
    }
    return MetadataBroker(**(fields | changes))


def topic(*partitions: tuple[int, ...], isr: tuple[int, ...] | None = None, name: str = "t") -> MetadataTopic:
    """Each partition by its replicas, of which the first leads."""
    return MetadataTopic(
        name,
        partitions=tuple(
            MetadataPartition(number, replicas[0], 1, replicas, isr or replicas)
            for number, replicas in enumerate(partitions)
        ),
    )


def seen(*topics: MetadataTopic, brokers: int = 4, **changes: Any) -> Seen:
    """Broker 1 goes in a minute, and is marked."""
    nodes = tuple(broker(each) for each in range(1, brokers + 1))
    fields: dict[str, Any] = {
        "now_ms": NOW_MS,
        "drains": {1: SOON_MS},
        "marks": {1: SOON_MS},
        "cluster": MetadataResponse("c", 3001, nodes, topics, 0),
        "actors": tuple(range(1, brokers + 1)),
        "sizes": {1: {}},
        "bytes_per_s": MB,
    }
    return Seen(**(fields | changes))


def planned(planner: DrainPlanner, seen: Seen) -> Step | None:
    return in_turns(planner, seen)[0]


def in_turns(planner: DrainPlanner, seen: Seen) -> tuple[Step | None, int]:
    """What is planned, and in how many turns."""
    planning = planner.plan(seen)
    for turns in count(1):
        try:
            next(planning)
        except StopIteration as end:
            return end.value, turns
    raise AssertionError("it does not end")


def tp(number: int) -> TopicPartition:
    return TopicPartition("t", number)


def sized(*sizes: int) -> dict[int, dict[TopicPartition, int]]:
    return {1: {tp(number): size for number, size in enumerate(sizes)}}


# ---- Order -----------------------------------------------------------------------------------------------------------


def test_leads_go_first_then_the_quorums_then_replicas() -> None:
    quorum = Quorum(3001, 7, (3001, 3002, 3003))
    drains = {1: SOON_MS, 3001: SOON_MS}
    there = (1, 2, 3, 4, 3001, 3002, 3003)
    planner = DrainPlanner()
    found = seen(topic((1, 2)), drains=drains, marks={}, quorum=quorum, actors=there)
    step = planned(planner, found)
    assert isinstance(step, Mark)
    assert step.deadlines_ms == {1: SOON_MS}
    assert step.kind == "drain-begun"
    assert (
        step.reason
        == "Ray drains its machine until 2023-11-14 22:14:20 UTC: others lead, and it gets no new replicas"
    )
    step = planned(planner, seen(topic((2, 1)), drains=drains, quorum=quorum, actors=there))
    assert isinstance(step, Resign)
    assert (step.node_ids, step.leader_epoch, step.successors) == ((3001,), 7, (3002, 3003))
    after = Quorum(3002, 8, quorum.voters)
    step = planned(planner, seen(topic((2, 1)), drains=drains, quorum=after, actors=there))
    assert isinstance(step, Move)
    assert step.plan == {tp(0): (2, 3)}


def test_two_machines_that_go_are_marked_together() -> None:
    step = planned(DrainPlanner(), seen(topic((1, 2)), drains={1: SOON_MS, 2: 0}, marks={}))
    assert isinstance(step, Mark)
    assert step.deadlines_ms == {1: SOON_MS, 2: 0}


def test_a_lead_that_is_left_has_the_mark_set_again_and_no_second_event() -> None:
    step = planned(DrainPlanner(), seen(topic((1, 2))))
    assert isinstance(step, Mark)
    assert step.kind == ""


def test_a_lead_that_no_other_can_take_is_left() -> None:
    alone = topic((1, 2), isr=(1,))
    assert not isinstance(planned(DrainPlanner(), seen(alone)), Mark)
    other_goes = seen(topic((1, 2)), drains={1: SOON_MS, 2: SOON_MS}, marks={1: SOON_MS, 2: SOON_MS})
    assert not isinstance(planned(DrainPlanner(), other_goes), Mark)


def test_another_deadline_is_marked_anew() -> None:
    step = planned(DrainPlanner(), seen(topic((2, 1)), drains={1: SOON_MS + 1}))
    assert isinstance(step, Mark)
    assert step.deadlines_ms == {1: SOON_MS + 1}


def test_a_drain_that_is_withdrawn_takes_the_mark_back() -> None:
    step = planned(DrainPlanner(), seen(topic((2, 1)), drains={}))
    assert isinstance(step, Unmark)
    assert (step.node_ids, step.kind) == ((1,), "drain-ended")
    assert planned(DrainPlanner(), seen(topic((2, 1)), drains={}, marks={})) is None


def test_the_quorums_leader_stays_where_no_other_voter_may_lead() -> None:
    quorum = Quorum(3001, 7, (3001, 3002))
    drains = {3001: SOON_MS, 3002: SOON_MS}
    there = (2, 3001, 3002)
    assert planned(DrainPlanner(), seen(drains=drains, marks={}, quorum=quorum, actors=there)) is None
    without = seen(drains={3001: SOON_MS}, marks={}, quorum=quorum, actors=(2, 3001))
    assert planned(DrainPlanner(), without) is None, "the other one has no actor"


# ---- Moving ----------------------------------------------------------------------------------------------------------


def test_what_cannot_be_copied_before_the_machine_goes_is_not_begun() -> None:
    """55 s at 1 MB/s."""
    found = seen(topic((2, 1), (2, 1), (2, 1)), sizes=sized(40 * MB, 20 * MB, 30 * MB))
    step = planned(DrainPlanner(), found)
    assert isinstance(step, Move)
    assert list(step.plan) == [tp(1), tp(2)]
    assert step.reason == (
        "2 replicas with 50,000,000 bytes are moved to other brokers; 1 stay, as copying them takes longer than is left"
    )
    assert step.kind == "drain-moves"


def test_what_is_on_its_way_takes_of_the_time_that_is_left() -> None:
    moving = MetadataPartition(0, 2, 1, (2, 3, 1), (2, 1), adding_replicas=(3,), removing_replicas=(1,))
    waiting = [MetadataPartition(each, 2, 1, (2, 1), (2, 1)) for each in (1, 2)]
    found = seen(MetadataTopic("t", partitions=(moving, *waiting)), sizes=sized(30 * MB, 26 * MB, 25 * MB))
    step = planned(DrainPlanner(), found)
    assert isinstance(step, Move)
    assert list(step.plan) == [tp(2)]


def test_without_a_deadline_everything_moves() -> None:
    found = seen(topic((2, 1), (2, 1)), drains={1: 0}, marks={1: 0}, sizes=sized(10**15, 10**15))
    step = planned(DrainPlanner(), found)
    assert isinstance(step, Move)
    assert list(step.plan) == [tp(0), tp(1)]


def test_those_come_first_that_fewest_others_hold() -> None:
    found = seen(topic((2, 3, 1), (1,), (2, 1)), sizes=sized(1, 3, 2), moves_max=2)
    step = planned(DrainPlanner(), found)
    assert isinstance(step, Move)
    assert list(step.plan) == [tp(1), tp(2)]


def test_so_many_move_at_a_time_and_others_count() -> None:
    moving = MetadataPartition(0, 2, 1, (2, 3), (2, 3), adding_replicas=(4,))
    waiting = [MetadataPartition(each, 2, 1, (2, 1), (2, 1)) for each in (1, 2, 3)]
    found = seen(MetadataTopic("t", partitions=(moving, *waiting)), sizes=sized(0, 1, 1, 1), moves_max=2)
    step = planned(DrainPlanner(), found)
    assert isinstance(step, Move)
    assert len(step.plan) == 1


def test_moves_of_partitions_that_no_broker_leads_take_no_place() -> None:
    """They copy nothing, and may never end."""
    stuck = MetadataPartition(0, -1, 1, (2, 3, 4), (), adding_replicas=(4,))
    waiting = MetadataPartition(1, 2, 1, (2, 1), (2, 1))
    found = seen(MetadataTopic("t", partitions=(stuck, waiting)), sizes=sized(0, 1), moves_max=1)
    step = planned(DrainPlanner(), found)
    assert isinstance(step, Move)
    assert list(step.plan) == [tp(1)]


def test_no_operators_reassignment_is_touched() -> None:
    moving = MetadataPartition(0, 2, 1, (2, 1, 3), (2, 1), adding_replicas=(3,))
    step = planned(DrainPlanner(), seen(MetadataTopic("t", partitions=(moving,)), sizes=sized(5)))
    assert step is None


def test_a_move_that_is_cancelled_does_not_begin_again() -> None:
    planner = DrainPlanner()
    found = seen(topic((2, 1)), sizes=sized(5))
    assert isinstance(planned(planner, found), Move)
    assert planned(planner, found) is None


def test_a_move_that_failed_is_tried_again() -> None:
    planner = DrainPlanner()
    found = seen(topic((2, 1)), sizes=sized(5))
    step = planned(planner, found)
    assert step is not None
    planner.failed(step)
    assert planned(planner, found) == step


def test_what_finds_no_other_broker_is_told_once() -> None:
    planner = DrainPlanner()
    found = seen(topic((2, 3, 1)), brokers=3, sizes=sized(5))
    step = planned(planner, found)
    assert isinstance(step, Move)
    assert step.plan == {}
    assert step.reason.endswith("1 stay, as no other broker can take them")
    assert planned(planner, found) is None


def test_nothing_moves_to_a_machine_that_goes_or_to_a_cordoned_broker() -> None:
    both = {1: SOON_MS, 3: SOON_MS}
    given = {"drains": both, "marks": both, "sizes": sized(5), "actors": (1, 2, 4)}
    step = planned(DrainPlanner(), seen(topic((2, 1)), **given))
    assert isinstance(step, Move)
    assert step.plan == {tp(0): (2, 4)}
    none = planned(DrainPlanner(), seen(topic((2, 1)), closed={4}, **given))
    assert isinstance(none, Move)
    assert none.plan == {}


def test_a_turn_looks_at_so_many_partitions_only_and_what_is_told_is_not_counted_again() -> None:
    planner = DrainPlanner()
    found = seen(topic(*[(2, 1)] * 10 * SLICE), sizes=sized(*[1] * 10 * SLICE))
    step, turns = in_turns(planner, found)
    assert isinstance(step, Move)
    assert step.reason == "5,000 replicas with 5,000 bytes are moved to other brokers"
    assert turns > 10 + 10 + 10 * SLICE / 32
    step, turns = in_turns(planner, found)
    assert isinstance(step, Move)
    assert step.reason == "10 replicas with 10 bytes are moved to other brokers"
    assert 20 < turns < 30


# ---- Stopping --------------------------------------------------------------------------------------------------------


def test_shortly_before_the_machine_goes_its_brokers_are_stopped_whatever_they_hold() -> None:
    late = SOON_MS - STOP_BEFORE_MS
    held = topic((2, 1))
    assert not isinstance(planned(DrainPlanner(), seen(held, now_ms=late - 1)), Stop)
    step = planned(DrainPlanner(), seen(held, now_ms=late))
    assert isinstance(step, Stop)
    assert step.node_ids == (1,)
    assert step.reason == "its machine goes within seconds; 1 replicas are there still"
    assert not isinstance(planned(DrainPlanner(), seen(held, now_ms=late, actors=(2, 3))), Stop), (
        "it has stopped"
    )


def test_one_that_holds_nothing_is_stopped_at_once_unless_it_votes() -> None:
    empty = seen(topic((2, 3)))
    assert isinstance(planned(DrainPlanner(), empty), Stop)
    votes = seen(topic((2, 3)), quorum=Quorum(2, 1, (1, 2, 3)))
    assert planned(DrainPlanner(), votes) is None


def test_nothing_is_stopped_while_another_process_changes_the_cluster() -> None:
    assert planned(DrainPlanner(), seen(topic((2, 3)), is_changing=True)) is None


# ---- The whole way ---------------------------------------------------------------------------------------------------


class Drained:
    """A real controller whose brokers copy as fast as the throttle says; Ray drains what the test says."""

    def __init__(self, machine: Machine, size_bytes: int) -> None:
        self.machine = machine
        self.drains: dict[int, int] = {}
        self.stopped: set[int] = set()
        self.size_bytes = size_bytes
        self.planner = DrainPlanner()
        self.steps: list[Step] = []

    @property
    def now_ms(self) -> int:
        return NOW_MS + self.machine.now_ms

    def see(self) -> Seen:
        metadata: MetadataResponse = self.machine.handle(MetadataRequest())
        brokers = [each.node_id for each in metadata.brokers]
        configs = {each: self.machine.image.broker_configs(each) for each in brokers}
        marks = {each: int(own[DRAIN_DEADLINE]) for each, own in configs.items() if DRAIN_DEADLINE in own}
        held = {
            TopicPartition("orders", each.partition): self.size_bytes
            for each in metadata.topics[0].partitions
        }
        return Seen(
            now_ms=self.now_ms,
            drains=dict(self.drains),
            marks=marks,
            cluster=metadata,
            closed=set(marks),
            sizes={each: held for each in self.drains if each not in self.stopped},
            actors=[each for each in brokers if each not in self.stopped],
            bytes_per_s=MB,
            moves_max=2,
        )

    def take(self, step: Step) -> None:
        self.steps.append(step)
        match step:
            case Mark():
                self._configure({each: str(ms) for each, ms in step.deadlines_ms.items()})
            case Unmark():
                self._configure(dict.fromkeys(step.node_ids))
            case Stop():
                self.stopped.update(step.node_ids)
                for each in step.node_ids:
                    self.machine.heartbeat(each, want_fence=True)
            case Move():
                wanted = tuple(Reassignment(tp.topic, tp.partition, to) for tp, to in step.plan.items())
                results = self.machine.handle(AlterPartitionReassignmentsRequest(wanted)).partitions
                assert [each.error_code for each in results] == [ErrorCode.NONE] * len(wanted)

    def _configure(self, marks: Mapping[int, str | None]) -> None:
        altered = tuple(
            AlteredResource(
                ResourceType.BROKER,
                str(each),
                (
                    ConfigChange(
                        DRAIN_DEADLINE, AlterConfigOp.DELETE if ms is None else AlterConfigOp.SET, ms or ""
                    ),
                ),
            )
            for each, ms in marks.items()
        )
        self.machine.handle(IncrementalAlterConfigsRequest(altered))

    def look(self, *, dies: bool = False) -> Step | None:
        """One look of the supervisor; one that dies has taken the step, and remembers nothing."""
        step = planned(self.planner, self.see())
        if step is not None:
            self.take(step)
        if dies:
            self.planner = DrainPlanner()
        return step

    def copy(self) -> None:
        """A second passes, in which what is on its way arrives."""
        self.machine.now_ms += 1_000
        for number, each in enumerate(self.machine.image.topics["orders"].partitions):
            if each.adding_replicas and each.has_leader:
                report_isr(self.machine, *dict.fromkeys((*each.isr, *each.adding_replicas)), number=number)

    def settle(self) -> None:
        """Looks until there is nothing to do."""
        for _ in range(100):
            self.copy()
            if self.look() is None:
                return
        raise AssertionError(f"it does not come to rest: {self.steps[-3:]}")

    def check(self, factor: int) -> None:
        """No partition has fewer replicas than it had, or no leader while one in sync runs."""
        brokers = self.machine.image.brokers
        for each in self.machine.image.topics["orders"].partitions:
            assert len(each.target_replicas) == factor, each
            assert each.has_leader or not any(brokers[id].is_active for id in each.isr), each


ASSIGNMENTS = ((1, 2), (2, 3), (3, 4), (4, 5), (5, 1), (1, 3))


def drained(size_bytes: int = MB) -> Drained:
    machine = cluster(5)
    create(machine, *ASSIGNMENTS)
    return Drained(machine, size_bytes)


def held(here: Drained, broker_id: int) -> int:
    return sum(broker_id in each.replicas for each in here.machine.image.topics["orders"].partitions)


@pytest.mark.parametrize("heals", ["true", "false"])
def test_a_machine_is_emptied_and_its_broker_stopped_then_all_is_as_before(heals: str) -> None:
    """Healing is about what is lost, so a drain is none of its business."""
    here = drained()
    set_for_all(here.machine, "self.healing.enable", heals)
    here.drains = {1: here.now_ms + 120_000}
    here.settle()
    assert [type(each) for each in here.steps] == [Mark, Move, Move, Stop]
    assert held(here, 1) == 0
    here.check(2)
    here.drains = {}
    here.settle()
    assert isinstance(here.steps[-1], Unmark)
    assert not here.machine.image.broker_configs(1)


def test_a_short_notice_moves_what_fits_and_leads_go_anyway() -> None:
    here = drained(size_bytes=3 * MB)
    here.drains = {1: here.now_ms + STOP_BEFORE_MS + 4_500}
    for _ in range(20):
        here.look()
        here.copy()
        here.check(2)
    assert here.stopped == {1}
    assert held(here, 1) == 2
    assert all(each.leader_id != 1 for each in here.machine.image.topics["orders"].partitions)


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_whatever_is_drained_and_withdrawn_and_dies_the_cluster_keeps_its_replicas_and_rests(
    data: st.DataObject,
) -> None:
    here = drained(size_bytes=data.draw(st.sampled_from((1, MB, 30 * MB)), "size"))
    for _ in range(data.draw(st.integers(1, 12), "turns")):
        event = data.draw(st.sampled_from(("drain", "withdraw", "controller", "copy", "look")), "event")
        broker_id = data.draw(st.integers(1, 5), "broker")
        if event == "drain" and len(here.drains) < 3:
            here.drains[broker_id] = data.draw(
                st.sampled_from((0, here.now_ms + 30_000, here.now_ms + 4_000)), "until"
            )
        elif event == "withdraw":
            here.drains.pop(broker_id, None)
            if broker_id in here.stopped:
                here.stopped.discard(broker_id)
                here.machine.heartbeat(broker_id)
        elif event == "controller":
            here.machine.change_controller()
        elif event == "copy":
            here.copy()
        before = [each.replicas for each in here.machine.image.topics["orders"].partitions]
        step = here.look(dies=data.draw(st.booleans(), "dies"))
        if isinstance(step, Move):
            added = {
                each
                for earlier, later in zip(before, here.machine.image.topics["orders"].partitions, strict=True)
                for each in later.replicas
                if each not in earlier
            }
            assert added.isdisjoint(here.drains)
        here.check(2)
    here.settle()
    here.check(2)
    running = here.machine.image.brokers
    for each in here.machine.image.topics["orders"].partitions:
        better = [id for id in each.isr if id not in here.drains and running[id].is_active]
        assert each.leader_id not in here.drains or not better
    here.drains.clear()
    here.settle()
    assert not any(here.machine.image.broker_configs(each) for each in here.machine.image.brokers)
