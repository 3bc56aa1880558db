"""What is done with nodes on machines that Ray drains: the order of the steps, and when a broker is stopped.

The model carries the steps out on a real controller, in virtual time, with supervisors and controllers that die.
"""

import asyncio
from collections.abc import Mapping
from typing import Any
from uuid import uuid4

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rayka.client.admin.drained_brokers import (
    STOP_BEFORE_MS,
    DrainedBrokers,
    DrainStep,
    Mark,
    QuorumLeadership,
    Resign,
    SeenDrains,
    StopDrained,
    Unmark,
    next_step,
)
from rayka.controller import drain_control
from rayka.ids import NO_NODE
from rayka.protocol.configs import (
    DRAIN_DEADLINE,
    AlterConfigOp,
    AlteredResource,
    ConfigChange,
    IncrementalAlterConfigsRequest,
    ResourceType,
)
from rayka.protocol.drains import DescribeDrainsRequest, DescribeDrainsResponse
from rayka.protocol.load import LoadReport
from rayka.protocol.membership import MetadataRequest, MetadataResponse
from tests.controller.admin_support import cluster, create, report_isr
from tests.controller.support import EPOCH_MS, Machine
from tests.controller.test_healing import look, set_for_all

NOW_MS = 1_700_000_000_000
SOON_MS = NOW_MS + 60_000
MB = 1_000_000


def seen(count: int = 1, **changes: Any) -> SeenDrains:
    """Of four brokers the first goes in a minute, is marked, and holds so many replicas."""
    fields: dict[str, Any] = {
        "now_ms": NOW_MS,
        "drains": {1: SOON_MS},
        "marks": {1: SOON_MS},
        "replica_counts": {1: count},
        "registered": (1, 2, 3, 4),
        "actors": (1, 2, 3, 4),
    }
    return SeenDrains(**(fields | changes))


# ---- Order -----------------------------------------------------------------------------------------------------------


def test_leads_go_first_then_the_quorums() -> None:
    quorum = QuorumLeadership(3001, 7, (3001, 3002, 3003))
    fields: dict[str, Any] = {
        "drains": {1: SOON_MS, 3001: SOON_MS},
        "actors": (1, 2, 3, 4, 3001, 3002, 3003),
        "quorum": quorum,
    }
    step = next_step(seen(marks={}, **fields))
    assert isinstance(step, Mark)
    assert step.deadlines_ms == {1: SOON_MS}
    assert step.kind == "drain-begun"
    assert (
        step.reason
        == "Ray drains its machine until 2023-11-14 22:14:20 UTC: others lead, and it gets no new replicas"
    )
    step = next_step(seen(**fields))
    assert isinstance(step, Resign)
    assert (step.node_ids, step.leader_epoch, step.successors) == ((3001,), 7, (3002, 3003))
    assert next_step(seen(**(fields | {"quorum": QuorumLeadership(3002, 8, quorum.voters)}))) is None


def test_two_machines_that_go_are_marked_together() -> None:
    step = next_step(seen(drains={1: SOON_MS, 2: 0}, marks={}))
    assert isinstance(step, Mark)
    assert step.deadlines_ms == {1: SOON_MS, 2: 0}


def test_another_deadline_is_marked_anew() -> None:
    step = next_step(seen(drains={1: SOON_MS + 1}))
    assert isinstance(step, Mark)
    assert step.deadlines_ms == {1: SOON_MS + 1}


def test_a_drain_that_is_withdrawn_takes_the_mark_back() -> None:
    step = next_step(seen(drains={}))
    assert isinstance(step, Unmark)
    assert (step.node_ids, step.kind) == ((1,), "drain-ended")
    assert next_step(seen(drains={}, marks={})) is None


def test_the_quorums_leader_stays_where_no_other_voter_may_lead() -> None:
    fields: dict[str, Any] = {"marks": {}, "quorum": QuorumLeadership(3001, 7, (3001, 3002))}
    both = {3001: SOON_MS, 3002: SOON_MS}
    assert next_step(seen(drains=both, actors=(2, 3001, 3002), **fields)) is None
    without = seen(drains={3001: SOON_MS}, actors=(2, 3001), **fields)
    assert next_step(without) is None, "the other one has no actor"


# ---- Stopping --------------------------------------------------------------------------------------------------------


def test_shortly_before_the_machine_goes_its_brokers_are_stopped_whatever_they_hold() -> None:
    late = SOON_MS - STOP_BEFORE_MS
    assert next_step(seen(now_ms=late - 1)) is None
    step = next_step(seen(now_ms=late))
    assert isinstance(step, StopDrained)
    assert step.node_ids == (1,)
    assert step.reason == "its machine goes within seconds; 1 replicas are there still"
    assert next_step(seen(now_ms=late, actors=(2, 3))) is None, "it has stopped"


def test_one_that_holds_nothing_is_stopped_at_once_unless_it_votes() -> None:
    assert isinstance(next_step(seen(0)), StopDrained)
    assert next_step(seen(0, quorum=QuorumLeadership(2, 1, (1, 2, 3)))) is None


def test_nothing_is_stopped_while_another_process_changes_the_cluster() -> None:
    assert next_step(seen(0, is_changing=True)) is None


def test_the_controller_counts_on_the_time_at_which_a_broker_is_stopped() -> None:
    assert drain_control.STOP_BEFORE_MS == STOP_BEFORE_MS


async def _ask_an_empty_cluster(request: Any) -> Any:
    if isinstance(request, DescribeDrainsRequest):
        return DescribeDrainsResponse(())
    assert isinstance(request, MetadataRequest)
    return MetadataResponse(str(uuid4()), NO_NODE, (), (), 0)


def test_before_a_broker_is_registered_there_is_nothing_to_do_about_a_machine_that_drains() -> None:
    brokers = DrainedBrokers(network=None, ask=_ask_an_empty_cluster, wall_clock_ms=lambda: 0)  # type: ignore[arg-type]

    async def step() -> DrainStep | None:
        return next_step(await brokers.see({1: SOON_MS}, actors=()))

    assert asyncio.run(step()) is None


# ---- The whole way ---------------------------------------------------------------------------------------------------


class Drained:
    """A real controller whose brokers copy as fast as the throttle says; Ray drains what the test says."""

    def __init__(self, machine: Machine, size_bytes: int) -> None:
        self.machine = machine
        self.drains: dict[int, int] = {}
        self.stopped: set[int] = set()
        self.size_bytes = size_bytes
        self.steps: list[DrainStep] = []
        set_for_all(machine, "reassignment.replication.throttled.rate", str(MB))
        set_for_all(machine, "balancer.moves.max", "2")

    @property
    def now_ms(self) -> int:
        return EPOCH_MS + self.machine.now_ms

    def see(self) -> SeenDrains:
        brokers = list(self.machine.image.brokers)
        described = self.machine.handle(DescribeDrainsRequest()).drains
        return SeenDrains(
            now_ms=self.now_ms,
            drains=dict(self.drains),
            marks={each.broker_id: each.deadline_ms for each in described},
            replica_counts={each.broker_id: each.replica_count for each in described},
            registered=brokers,
            actors=[each for each in brokers if each not in self.stopped],
        )

    def take(self, step: DrainStep) -> None:
        self.steps.append(step)
        match step:
            case Mark():
                self._configure({each: str(ms) for each, ms in step.deadlines_ms.items()})
            case Unmark():
                self._configure(dict.fromkeys(step.node_ids))
            case StopDrained():
                self.stopped.update(step.node_ids)
                for each in step.node_ids:
                    self.machine.heartbeat(each, want_fence=True)

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

    def look(self) -> DrainStep | None:
        """One look of the supervisor, which remembers nothing, and one of the controller."""
        step = next_step(self.see())
        if step is not None:
            self.take(step)
        look(self.machine, 0)
        return step

    def copy(self) -> None:
        """A second passes, in which what is on its way arrives and brokers report."""
        self.machine.now_ms += 1_000
        partitions = self.machine.image.topics["orders"].partitions
        for number, each in enumerate(partitions):
            if each.adding_replicas and each.has_leader:
                report_isr(self.machine, *dict.fromkeys((*each.isr, *each.adding_replicas)), number=number)
        for broker_id, broker in self.machine.image.brokers.items():
            count = sum(broker_id in each.replicas for each in partitions)
            led = sum(broker_id == each.leader_id for each in partitions)
            load = LoadReport(1_000, 0, 1 << 40, count * self.size_bytes, count, led)
            if not broker.is_fenced:
                self.machine.heartbeat(broker_id, load=load)

    def settle(self) -> None:
        """Looks until there is nothing to do for longer than the controller waits between plans."""
        idle_count = 0
        for _ in range(200):
            self.copy()
            moving = any(each.is_reassigned for each in self.machine.image.topics["orders"].partitions)
            idle_count = 0 if self.look() is not None or moving else idle_count + 1
            if idle_count == 7:
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
    assert [type(each) for each in here.steps] == [Mark, StopDrained]
    assert held(here, 1) == 0
    here.check(2)
    here.drains = {}
    here.settle()
    assert isinstance(here.steps[-1], Unmark)
    assert not here.machine.image.broker_configs(1)


def test_a_short_notice_moves_what_fits_and_leads_go_anyway() -> None:
    here = drained(size_bytes=3 * MB)
    here.copy()
    here.drains = {1: here.now_ms + STOP_BEFORE_MS + 3_500}
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
        marked = {each.broker_id for each in here.machine.handle(DescribeDrainsRequest()).drains}
        before = [each.replicas for each in here.machine.image.topics["orders"].partitions]
        here.look()
        added = {
            each
            for earlier, later in zip(before, here.machine.image.topics["orders"].partitions, strict=True)
            for each in later.replicas
            if each not in earlier
        }
        assert added.isdisjoint(marked & here.drains.keys())
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
