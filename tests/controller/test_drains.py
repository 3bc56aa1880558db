"""Drains that the controller carries out: an operator's, scaling's and a machine's; whatever ends, they go on."""

import msgspec
import pytest

from rayka.config.broker_config import BrokerConfig
from rayka.controller.controller_timers import BUSY_LOOK_INTERVAL_MS, LOOK_INTERVAL_MS
from rayka.controller.drain_control import STOP_BEFORE_MS
from rayka.errors import BrokerIdNotRegistered, ErrorCode, InvalidReplicationFactor, InvalidRequest
from rayka.protocol.configs import (
    CORDONED,
    DRAIN,
    DRAIN_DEADLINE,
    LEAVING,
    AlterConfigOp,
    AlterConfigsResult,
    AlteredResource,
    ConfigChange,
    IncrementalAlterConfigsRequest,
    ResourceType,
)
from rayka.protocol.drains import (
    CancelDrainRequest,
    CancelDrainResponse,
    DescribeDrainsRequest,
    DrainBrokerRequest,
    DrainBrokerResponse,
    DrainCause,
    DrainStatus,
)
from rayka.protocol.load import LoadReport
from tests.controller.admin_support import cluster, create, fence, report_isr
from tests.controller.support import EPOCH_MS, Machine
from tests.controller.test_balance_run import balance, complete_all, report, status, under_way
from tests.controller.test_draining import drain, leaders
from tests.controller.test_events import told
from tests.controller.test_healing import look, lose, reassign, set_for_all

MB = 1_000_000
# Longer than any interval between two plans.
PLAN_MS = 10_000
ASSIGNMENTS = ((1, 2), (2, 3), (3, 4), (4, 1), (1, 3))


@pytest.fixture
def machine() -> Machine:
    """Four brokers, of which the first holds three of five partitions."""
    return four()


def four(config: BrokerConfig | None = None) -> Machine:
    machine = cluster(4, config)
    create(machine, *ASSIGNMENTS)
    report(machine)
    return machine


def ask(machine: Machine, broker_id: int = 1, **fields: object) -> DrainBrokerResponse:
    response: DrainBrokerResponse = machine.handle(DrainBrokerRequest(broker_id, **fields))  # type: ignore[arg-type]
    return response


def scale_in(machine: Machine, broker_id: int = 1) -> DrainBrokerResponse:
    return ask(machine, broker_id, cause=DrainCause.SCALING)


def drains(machine: Machine) -> list[DrainStatus]:
    return list(machine.handle(DescribeDrainsRequest()).drains)


def held(machine: Machine, broker_id: int = 1) -> list[int]:
    partitions = machine.image.topics["orders"].partitions
    return [number for number, each in enumerate(partitions) if broker_id in each.replicas]


def alter(machine: Machine, key: str, value: str | None, broker_id: int = 1) -> AlterConfigsResult:
    op = AlterConfigOp.DELETE if value is None else AlterConfigOp.SET
    resource = AlteredResource(ResourceType.BROKER, str(broker_id), (ConfigChange(key, op, value or ""),))
    (result,) = machine.handle(IncrementalAlterConfigsRequest((resource,))).resources
    return result


def go_on(machine: Machine, looks: int = 40) -> None:
    """Copies arrive, brokers report, the controller looks."""
    for _ in range(looks):
        complete_all(machine)
        report(machine)
        look(machine, PLAN_MS)
        if not drains(machine) and not under_way(machine):
            return
    raise AssertionError(f"{drains(machine)} goes on, {under_way(machine)} are under way")


# ---- An operator's ---------------------------------------------------------------------------------------------------


def test_a_drained_broker_is_cordoned_and_all_its_replicas_move_at_once(machine: Machine) -> None:
    planned = ask(machine, is_dry_run=True)
    assert (under_way(machine), machine.image.broker_configs(1)) == ([], {})
    response = ask(machine)
    assert response.moves == planned.moves
    assert [each.partition for each in response.moves] == [0, 3, 4] == under_way(machine)
    assert all(1 not in each.replicas for each in response.moves)
    assert machine.image.broker_configs(1) == {CORDONED: "*", DRAIN: "true"}
    assert drains(machine) == [DrainStatus(1, DrainCause.OPERATOR, 0, 3, 3)]
    assert [(each.key, each.due_ms) for each in machine.timers if each.key == "look"] == []
    go_on(machine)
    assert held(machine) == []
    assert machine.image.broker_configs(1) == {CORDONED: "*"}
    assert told(machine)[-1] == ("drain-ended", "it holds no replica any more")


def test_a_broker_that_holds_nothing_is_cordoned_and_no_drain_is_under_way(machine: Machine) -> None:
    machine.start(5)
    assert ask(machine, 5).moves == ()
    assert machine.image.broker_configs(5) == {CORDONED: "*"}
    assert drains(machine) == []


def test_what_cannot_be_drained_is_refused_and_nothing_is_begun(machine: Machine) -> None:
    create(machine, (1, 2, 3, 4), name="wide")
    with pytest.raises(
        InvalidReplicationFactor, match=r"3 active brokers remain \(2, 3, 4\).*wide \(repl.* 4\)"
    ):
        ask(machine)
    with pytest.raises(BrokerIdNotRegistered, match="there is no broker 9; the cluster has 1, 2, 3, 4"):
        ask(machine, 9)
    assert (under_way(machine), machine.image.broker_configs(1)) == ([], {})


def test_a_drain_that_no_disk_has_room_for_is_refused_with_numbers(machine: Machine) -> None:
    for each in (2, 3, 4):
        load = LoadReport(1_000, free_bytes=MB // 2, size_bytes=2 * MB, partition_count=2, leader_count=1)
        machine.heartbeat(each, load=load)
    response = ask(machine)
    assert response.no_room.startswith(
        "without broker 1 disks would be above 80%: 3 of its replicas (orders-0, orders-3, orders-4) with 3.0 MB find "
        "no room when the others are moved (broker 2 may take 0.0 MB more"
    )
    assert (response.moves, under_way(machine), machine.image.broker_configs(1)) == ((), [], {})


def test_a_drain_goes_on_when_the_controller_ends_on_the_way(machine: Machine) -> None:
    """The log took the mark, and none of the moves."""
    outcome = machine.controller.handle(
        DrainBrokerRequest(1), now_ms=machine.now_ms, next_offset=len(machine.records)
    )
    assert not isinstance(outcome, tuple)
    marks = next(step for step in outcome if step is not None)  # type: ignore[union-attr]
    machine.change_controller()
    machine.replay(*marks)  # type: ignore[misc]
    machine.change_controller()
    assert under_way(machine) == []
    look(machine, BUSY_LOOK_INTERVAL_MS)
    assert under_way(machine) == [], "no broker has reported what it holds"
    assert "have not reported their load" in drains(machine)[0].waits_for
    report(machine)
    look(machine, PLAN_MS)
    assert under_way(machine) == [0, 3, 4]
    go_on(machine)
    assert held(machine) == []


def test_a_broker_that_starts_again_is_drained_still(machine: Machine) -> None:
    ask(machine)
    machine.restart(1)
    machine.heartbeat(1)
    machine.change_controller()
    go_on(machine)
    assert held(machine) == []


def test_what_another_caller_moves_to_the_broker_leaves_it_again(machine: Machine) -> None:
    ask(machine)
    reassign(machine, (1, 2, 4), number=0)
    look(machine, BUSY_LOOK_INTERVAL_MS)
    assert machine.partition(number=0).target_replicas == (1, 2, 4)
    go_on(machine)
    assert held(machine) == []
    assert machine.partition(number=0).replicas == (3, 2, 4)


def test_asked_for_again_a_drain_is_the_one_that_is_under_way(machine: Machine) -> None:
    first = ask(machine)
    records = len(machine.records)
    assert ask(machine).moves == first.moves
    assert len(machine.records) - records <= 1
    assert under_way(machine) == [0, 3, 4]


def test_a_move_that_another_caller_cancels_ends_the_drain(machine: Machine) -> None:
    ask(machine)
    reassign(machine, None, number=3)
    look(machine, BUSY_LOOK_INTERVAL_MS)
    assert (drains(machine), under_way(machine)) == ([], [0, 4])
    assert machine.image.broker_configs(1) == {CORDONED: "*"}
    assert told(machine)[-1] == ("drain-ended", "an operator cancelled a move of it")
    complete_all(machine)
    look(machine, PLAN_MS)
    assert (held(machine), under_way(machine)) == ([3], [])


def test_a_cancelled_drain_takes_back_what_is_under_way_and_the_broker_takes_replicas(
    machine: Machine,
) -> None:
    ask(machine)
    response: CancelDrainResponse = machine.handle(CancelDrainRequest(1))
    assert response.is_cancelled
    assert (under_way(machine), held(machine), machine.image.broker_configs(1)) == ([], [0, 3, 4], {})
    assert told(machine)[-1] == ("drain-ended", "an operator cancelled it")
    look(machine, PLAN_MS)
    assert under_way(machine) == []
    assert not machine.handle(CancelDrainRequest(1)).is_cancelled


def test_whoever_takes_the_cordon_back_ends_the_drain(machine: Machine) -> None:
    ask(machine)
    assert alter(machine, CORDONED, None).error_code is ErrorCode.NONE
    assert machine.image.broker_configs(1) == {}
    assert drains(machine) == []


def test_only_a_drain_sets_its_mark(machine: Machine) -> None:
    refused = alter(machine, DRAIN, "true")
    assert refused.error_code is ErrorCode.INVALID_REQUEST
    assert "is set by `rayka broker drain`" in refused.error_message


def test_no_balance_moves_anything_beside_a_drain_nor_fills_the_drained_broker(machine: Machine) -> None:
    ask(machine)
    with pytest.raises(InvalidRequest, match="the reassignment of orders-0 is under way"):
        balance(machine)
    go_on(machine)
    balance(machine)
    for _ in range(10):
        complete_all(machine)
        report(machine)
        look(machine, PLAN_MS)
    assert held(machine) == []
    assert status(machine).state != "moving"


def test_moves_of_a_drain_take_no_place_of_healing() -> None:
    machine = four(BrokerConfig(balancer_moves_max=2))
    ask(machine)
    assert under_way(machine) == [0, 3, 4]
    machine.start(5)
    assert lose(machine, 3) == 2
    assert under_way(machine) == [0, 1, 2, 3, 4]


def test_moves_of_a_drain_take_no_place_of_healing_after_a_change_of_controllers() -> None:
    machine = four(BrokerConfig(balancer_moves_max=2))
    ask(machine)
    machine.start(5)
    machine.change_controller()
    report(machine)
    assert under_way(machine) == [0, 3, 4]
    assert lose(machine, 3) == 2
    assert under_way(machine) == [0, 1, 2, 3, 4]


# ---- Scaling's -------------------------------------------------------------------------------------------------------


def test_a_broker_that_goes_by_the_load_is_marked_and_emptied_some_moves_at_a_time() -> None:
    machine = four(BrokerConfig(balancer_moves_max=2))
    scale_in(machine)
    assert machine.image.broker_configs(1) == {LEAVING: "true"}
    assert under_way(machine) == []
    look(machine, BUSY_LOOK_INTERVAL_MS)
    assert len(under_way(machine)) == 2
    machine.change_controller()
    complete_all(machine)
    report(machine)
    look(machine, PLAN_MS)
    assert len(under_way(machine)) == 1
    complete_all(machine)
    look(machine, PLAN_MS)
    assert (held(machine), drains(machine)) == ([], [DrainStatus(1, DrainCause.SCALING, 0, 0, 0)])
    assert machine.image.broker_configs(1) == {LEAVING: "true"}, "the supervisor removes the broker"


def test_what_has_no_leader_keeps_a_broker_from_going(machine: Machine) -> None:
    report_isr(machine, 1)
    fence(machine, 1)
    with pytest.raises(
        InvalidRequest, match="no broker leads 1, such as orders-0: nothing is there to copy from"
    ):
        scale_in(machine)
    assert machine.image.broker_configs(1) == {}


def test_a_broker_whose_replicas_find_no_place_any_more_is_stuck_and_nothing_of_it_begins(
    machine: Machine,
) -> None:
    scale_in(machine)
    fence(machine, 3, 4)
    report(machine)
    look(machine, PLAN_MS)
    assert under_way(machine) == []
    (drain,) = drains(machine)
    assert drain.is_stuck
    assert drain.waits_for.startswith(
        "without broker 1 1 active brokers remain (2), too few for topic orders"
    )


# ---- A machine's -----------------------------------------------------------------------------------------------------


def deadline(machine: Machine, after_ms: int) -> str:
    return str(EPOCH_MS + machine.now_ms + after_ms)


def test_a_machine_that_goes_is_emptied_some_moves_at_a_time_and_moves_of_others_count() -> None:
    machine = four(BrokerConfig(balancer_moves_max=2))
    reassign(machine, (3, 2), number=2)
    drain(machine, 1)
    look(machine, 0)
    assert len(under_way(machine)) == 2
    go_on_with_machine(machine)
    assert held(machine) == []
    assert [kind for kind, _ in told(machine)] == ["drain-moves"]
    assert told(machine)[0][1] == "3 replicas with 3,000,000 bytes are moved to other brokers"
    assert drains(machine) == [DrainStatus(1, DrainCause.MACHINE, 0, 0, 0)], (
        "the supervisor takes the mark back"
    )


def go_on_with_machine(machine: Machine, looks: int = 10) -> None:
    for _ in range(looks):
        complete_all(machine)
        report(machine)
        look(machine, PLAN_MS)


def test_what_cannot_be_copied_before_the_machine_goes_is_not_begun() -> None:
    machine = four()
    set_for_all(machine, "reassignment.replication.throttled.rate", str(MB))
    drain(machine, 1, deadline=deadline(machine, STOP_BEFORE_MS + 2_500))
    look(machine, 0)
    assert len(under_way(machine)) == 2
    assert told(machine)[-1] == (
        "drain-moves",
        "2 replicas with 2,000,000 bytes are moved to other brokers; 1 stay, as copying them takes longer than is left",
    )


def test_another_deadline_is_planned_for_anew() -> None:
    machine = four()
    set_for_all(machine, "reassignment.replication.throttled.rate", str(MB))
    drain(machine, 1, deadline=deadline(machine, STOP_BEFORE_MS))
    look(machine, 0)
    assert under_way(machine) == []
    drain(machine, 1, deadline=deadline(machine, STOP_BEFORE_MS + 60_000))
    look(machine, 0)
    assert len(under_way(machine)) == 3


def test_a_machine_without_a_report_waits_for_one_and_not_for_those_of_others(machine: Machine) -> None:
    drain(machine, 1)
    machine.change_controller()
    look(machine, 0)
    assert under_way(machine) == []
    assert drains(machine)[0].waits_for == "broker-1 has not reported what it holds"
    machine.heartbeat(1, load=LoadReport(1_000, size_bytes=3 * MB, partition_count=3, leader_count=1))
    look(machine, PLAN_MS)
    assert len(under_way(machine)) == 3


def test_a_move_off_a_machine_that_an_operator_cancels_does_not_begin_again(machine: Machine) -> None:
    drain(machine, 1)
    look(machine, 0)
    reassign(machine, None, number=3)
    go_on_with_machine(machine)
    assert (held(machine), under_way(machine)) == ([3], [])


def test_moves_of_partitions_without_a_leader_take_no_place() -> None:
    """They copy nothing, and may never end."""
    machine = cluster(6, BrokerConfig(balancer_moves_max=1))
    create(machine, (5, 2), (1, 2))
    report(machine)
    report_isr(machine, 5)
    reassign(machine, (6, 2), number=0)
    fence(machine, 5)
    drain(machine, 1)
    look(machine, 0)
    assert under_way(machine) == [0, 1]


def test_no_operators_reassignment_is_touched(machine: Machine) -> None:
    reassign(machine, (1, 4), number=0)
    before = machine.partition(number=0)
    drain(machine, 1)
    look(machine, 0)
    assert machine.partition(number=0).target_replicas == before.target_replicas


def test_what_a_controller_that_died_has_left_is_led_by_others_at_the_next_look(machine: Machine) -> None:
    report_isr(machine, 1, number=0)
    drain(machine, 1)
    assert leaders(machine)[0] == 1
    report_isr(machine, 1, 2, number=0)
    machine.change_controller()
    look(machine, 0)
    assert leaders(machine)[0] == 2


def test_replicas_go_to_no_second_machine_that_drains(machine: Machine) -> None:
    drain(machine, 1, 4)
    look(machine, 0)
    moving = [machine.partition(number=each) for each in under_way(machine)]
    assert moving
    assert all({1, 4}.isdisjoint(each.adding_replicas) for each in moving)


def test_a_new_controller_looks_at_once_where_a_broker_is_drained(machine: Machine) -> None:
    drain(machine, 1)
    machine.controller = machine._new_controller()
    for offset, record in enumerate(machine.records):
        machine.controller.replay(record, offset)
    timers = machine.controller.on_active(now_ms=machine.now_ms, next_offset=len(machine.records))
    assert [each.due_ms for each in timers if each.key == "look"][-1] == machine.now_ms
    assert LOOK_INTERVAL_MS > BUSY_LOOK_INTERVAL_MS


def test_marks_are_read_as_they_were_written_before(machine: Machine) -> None:
    """By an operator, scaling and the supervisor at once: the machine is the most urgent."""
    ask(machine)
    scaling = AlteredResource(ResourceType.BROKER, "1", (ConfigChange(LEAVING, AlterConfigOp.SET, "true"),))
    machine.handle(msgspec.structs.replace(IncrementalAlterConfigsRequest((scaling,)), is_scaling=True))
    assert drains(machine)[0].cause is DrainCause.SCALING
    alter(machine, DRAIN_DEADLINE, "7")
    assert (drains(machine)[0].cause, drains(machine)[0].deadline_ms) == (DrainCause.MACHINE, 7)
