"""A balance that the controller carries out: so many moves at a time, beside no other reassignment, until it rests."""

import pytest

from rayka.config.broker_config import BrokerConfig
from rayka.controller.balance_control import REPLAN_MS
from rayka.controller.balance_run import REPEAT_MS
from rayka.controller.controller_timers import BUSY_LOOK_INTERVAL_MS, LOOK_INTERVAL_MS
from rayka.ids import Role
from rayka.protocol.configs import (
    AlterConfigOp,
    AlteredResource,
    ConfigChange,
    IncrementalAlterConfigsRequest,
    ResourceType,
)
from rayka.protocol.events import EVENTS_MAX, RecordEventRequest
from rayka.protocol.load import (
    BalanceRequest,
    BalanceResponse,
    BalanceState,
    CancelBalanceRequest,
    CancelBalanceResponse,
    DescribeBalanceRequest,
    DescribeBalanceResponse,
    LoadReport,
)
from rayka.protocol.topics import CreateTopicsRequest, DeleteTopicsRequest, NewTopic, UnregisterBrokerRequest
from tests.controller.admin_support import cluster, create, fence
from tests.controller.support import WITHOUT_ELR, Machine
from tests.controller.test_draining import drain
from tests.controller.test_events import told
from tests.controller.test_healing import (
    TIMEOUT_MS,
    begin_in_vain,
    complete,
    look,
    lose,
    reassign,
    set_for_all,
)
from tests.metadata.support import directory

MB = 1_000_000
COUNT, SETTLE_MS = 12, 60_000


@pytest.fixture
def machine() -> Machine:
    return uneven()


def uneven(config: BrokerConfig | None = None, replicas: int = 1) -> Machine:
    """Four brokers, and a topic of twelve partitions on the first three, of one megabyte each."""
    machine = cluster(4, config)
    create(
        machine, *(tuple(1 + (number + place) % 3 for place in range(replicas)) for number in range(COUNT))
    )
    report(machine)
    return machine


def report(machine: Machine) -> None:
    """Every broker that runs says what it holds now."""
    held = machine.image.topics["orders"].partitions
    for broker_id, broker in machine.image.brokers.items():
        count = sum(broker_id in each.target_replicas for each in held)
        led = sum(broker_id == each.leader_id for each in held)
        if not broker.is_fenced:
            machine.heartbeat(broker_id, load=LoadReport(1_000, 0, 900 * MB, count * MB, count, led))


def balance(machine: Machine, moves: int = 2) -> BalanceResponse:
    response: BalanceResponse = machine.handle(BalanceRequest(moves))
    return response


def status(machine: Machine) -> DescribeBalanceResponse:
    response: DescribeBalanceResponse = machine.handle(DescribeBalanceRequest())
    return response


def cancel(machine: Machine) -> bool:
    response: CancelBalanceResponse = machine.handle(CancelBalanceRequest())
    return response.is_cancelled


def under_way(machine: Machine) -> list[int]:
    partitions = machine.image.topics["orders"].partitions
    return [number for number, each in enumerate(partitions) if each.is_reassigned]


def counts(machine: Machine) -> list[int]:
    held = machine.image.topics["orders"].partitions
    return [sum(broker_id in each.target_replicas for each in held) for broker_id in (1, 2, 3, 4)]


def complete_all(machine: Machine) -> None:
    for number in under_way(machine):
        complete(machine, number)


def go_on(machine: Machine, looks: int = 400) -> int:
    """Brokers report, moves end, until the balance rests; how many moves it made."""
    for _ in range(looks):
        complete_all(machine)
        report(machine)
        look(machine, BUSY_LOOK_INTERVAL_MS)
        if status(machine).state not in (BalanceState.PLANNING, BalanceState.MOVING):
            return status(machine).moved_count
    raise AssertionError(f"it does not come to rest: {status(machine)}")


def test_so_many_moves_are_under_way_at_a_time_and_the_last_ends_the_balance(machine: Machine) -> None:
    assert balance(machine, moves=2).begun_count == 2
    assert len(under_way(machine)) == 2
    look(machine, BUSY_LOOK_INTERVAL_MS)
    assert len(under_way(machine)) == 2
    complete(machine, under_way(machine)[0])
    look(machine, BUSY_LOOK_INTERVAL_MS)
    assert len(under_way(machine)) == 2
    assert (status(machine).state, status(machine).moved_count, status(machine).planned_count) == (
        "moving",
        1,
        3,
    )
    complete_all(machine)
    look(machine, BUSY_LOOK_INTERVAL_MS)
    assert machine.timers[0].due_ms - machine.now_ms == LOOK_INTERVAL_MS
    assert (status(machine).state, counts(machine)) == ("ended", [3, 3, 3, 3])
    assert told(machine) == [
        ("balance-begun", "an operator asked for it; 3 partitions are to move, copying 3.0 MB"),
        ("balance-ended", "3 partitions have moved, 3.0 MB were copied"),
    ]


def test_without_a_number_as_many_moves_are_under_way_as_is_configured() -> None:
    machine = uneven(BrokerConfig(balancer_moves_max=1))
    assert balance(machine, moves=-1).begun_count == 1


def test_the_first_replicas_lead_what_has_moved() -> None:
    machine = cluster(3)
    create(machine, *[(1, 2)] * 6)
    for broker_id, (count, led) in {1: (6, 6), 2: (6, 0), 3: (0, 0)}.items():
        machine.heartbeat(broker_id, load=LoadReport(1_000, 0, 900 * MB, count * MB, count, led))
    balance(machine, moves=100)
    go_on(machine)
    partitions = machine.image.topics["orders"].partitions
    assert {each.replicas[0] for each in partitions} == {1, 2, 3}
    assert all(each.leader_id == each.replicas[0] for each in partitions)


def test_nothing_to_move_is_no_event_and_no_balance(machine: Machine) -> None:
    balance(machine)
    go_on(machine)
    count = len(machine.records)
    assert balance(machine).moves == ()
    assert (status(machine).state, len(told(machine)), len(machine.records)) == ("ended", 2, count)


def test_no_move_begins_beside_an_operators_reassignment_and_a_new_plan_goes_on(machine: Machine) -> None:
    balance(machine, moves=1)
    mine = under_way(machine)
    other = next(
        each for each in range(COUNT) if each not in mine and machine.partition(number=each).replicas == (1,)
    )
    reassign(machine, (2,), number=other)
    complete(machine, mine[0])
    look(machine, BUSY_LOOK_INTERVAL_MS)
    assert (under_way(machine), status(machine).waits_for) == (
        [other],
        f"the reassignment of orders-{other} is under way",
    )
    report(machine)  # so soon after the move that it may have been measured before
    complete(machine, other)
    for _ in range(3):
        look(machine, REPLAN_MS)
        assert under_way(machine) == []
        assert "have not reported what they hold since the last move" in status(machine).waits_for
    go_on(machine)
    assert counts(machine) == [3, 3, 3, 3]


def test_a_move_that_an_operator_changes_makes_a_new_plan(machine: Machine) -> None:
    balance(machine, moves=1)
    (moving,) = under_way(machine)
    reassign(machine, (1 + moving % 3, 4), number=moving)
    look(machine, BUSY_LOOK_INTERVAL_MS)
    assert status(machine).state == "planning"
    assert machine.partition(number=moving).target_replicas == (1 + moving % 3, 4)


def test_a_move_that_an_operator_cancels_ends_the_balance(machine: Machine) -> None:
    balance(machine, moves=1)
    reassign(machine, None, number=under_way(machine)[0])
    look(machine, BUSY_LOOK_INTERVAL_MS)
    assert (status(machine).state, under_way(machine)) == ("cancelled", [])
    assert told(machine)[-1] == ("balance-cancelled", "an operator cancelled it after 0 of 3 moves")


def test_a_move_that_the_log_did_not_take_cancels_nothing(machine: Machine) -> None:
    balance(machine, moves=1)
    complete_all(machine)
    begin_in_vain(machine)
    assert under_way(machine) == []
    go_on(machine)
    assert counts(machine) == [3, 3, 3, 3]
    assert told(machine)[-1][0] == "balance-ended"


def test_a_cancelled_balance_takes_back_what_is_under_way(machine: Machine) -> None:
    balance(machine, moves=2)
    complete(machine, under_way(machine)[0])
    assert cancel(machine)
    assert (under_way(machine), sum(counts(machine)[:3]), status(machine).state) == (
        [],
        COUNT - 1,
        "cancelled",
    )
    assert not cancel(machine)
    for _ in range(3):
        look(machine, REPLAN_MS)
    assert under_way(machine) == []


def test_a_broker_that_ends_is_no_target_any_more_and_what_moves_to_it_is_waited_for(
    machine: Machine,
) -> None:
    balance(machine, moves=1)
    (moving,) = under_way(machine)
    fence(machine, 4)
    look(machine, REPLAN_MS)
    assert (under_way(machine), status(machine).waits_for) == ([moving], "brokers [4] are away")
    machine.heartbeat(4)
    go_on(machine)
    assert counts(machine) == [3, 3, 3, 3]


def test_a_balance_asked_for_while_a_broker_is_away_waits_for_it(machine: Machine) -> None:
    fence(machine, 3)
    balance(machine, moves=1)
    assert under_way(machine) == []
    look(machine, BUSY_LOOK_INTERVAL_MS)
    assert (under_way(machine), status(machine).waits_for) == ([], "brokers [3] are away")
    machine.heartbeat(3)
    go_on(machine)
    assert counts(machine) == [3, 3, 3, 3]


def test_moves_give_way_to_a_machine_that_drains_but_those_off_it() -> None:
    """They would fill the bound, and share the rate, until it has gone."""
    machine = uneven(BrokerConfig(balancer_moves_max=3))
    balance(machine, moves=3)
    moving = under_way(machine)
    off_first = [each for each in moving if 1 in machine.partition(number=each).replicas]
    assert len(moving) == 3
    assert len(off_first) == 1
    drain(machine, 1)
    look(machine, BUSY_LOOK_INTERVAL_MS)
    assert (under_way(machine), status(machine).waits_for) == (
        off_first,
        "brokers [1] are on machines that Ray drains",
    )
    for _ in range(3):
        complete_all(machine)
        report(machine)
        look(machine, REPLAN_MS)
        assert all(1 not in machine.partition(number=each).target_replicas for each in under_way(machine))
    drain(machine, 1, deadline=None)
    go_on(machine)
    assert counts(machine) == [3, 3, 3, 3]
    assert [kind for kind, _ in told(machine)] == ["balance-begun", "drain-moves", "balance-ended"]


def test_a_machine_that_drains_is_looked_at_at_once_for_its_active_controller_resigns_soon(
    machine: Machine,
) -> None:
    drain(machine, 1)
    assert [(each.key, each.due_ms) for each in machine.timers] == [("look", machine.now_ms)]
    drain(machine, 1, deadline=None)
    balance(machine, moves=1)
    drain(machine, 1)
    assert [(each.key, each.due_ms) for each in machine.timers] == [("look", machine.now_ms)]


def test_nothing_moves_to_a_machine_that_drains_since(machine: Machine) -> None:
    balance(machine, moves=1)
    assert under_way(machine)
    drain(machine, 4)
    look(machine, BUSY_LOOK_INTERVAL_MS)
    assert under_way(machine) == []
    assert status(machine).state == "planning"


def test_a_balance_asked_for_while_a_machine_drains_waits_until_it_has_gone_or_stays(
    machine: Machine,
) -> None:
    drain(machine, 3)
    balance(machine, moves=1)
    assert under_way(machine) == []
    look(machine, BUSY_LOOK_INTERVAL_MS)
    assert all(3 not in machine.partition(number=each).target_replicas for each in under_way(machine))
    assert status(machine).waits_for == "brokers [3] are on machines that Ray drains"
    drain(machine, 3, deadline=None)
    go_on(machine)
    assert counts(machine) == [3, 3, 3, 3]


def test_a_partition_that_no_broker_leads_stays_and_holds_up_no_other() -> None:
    """From it nothing can be copied: a plan that moved it could never be carried out."""
    machine = Machine()
    machine.start(1, directories=(directory(1), directory(11)))
    machine.start(2, 3, 4)
    create(machine, *((1 + number % 3,) for number in range(COUNT)))
    report(machine)
    machine.heartbeat(1, offline_directory_ids=(machine.partition().directories[0],))
    held = machine.image.topics["orders"].partitions
    lost = [number for number, each in enumerate(held) if not each.has_leader]
    assert len(lost) == 2
    report(machine)
    balance(machine)
    go_on(machine)
    assert counts(machine) == [2 + len(lost), 3, 3, 2]
    assert all(machine.partition(number=each).replicas == (1,) for each in lost)


def test_healing_goes_first_and_both_together_keep_to_the_bound() -> None:
    machine = uneven(BrokerConfig(balancer_moves_max=2), replicas=2)
    balance(machine, moves=2)
    assert len(under_way(machine)) == 2
    assert lose(machine, 3) == 0
    complete(machine, under_way(machine)[0])
    assert look(machine, BUSY_LOOK_INTERVAL_MS) == 1
    assert len(under_way(machine)) == 2


def test_healing_takes_the_place_of_moves_that_wait_for_a_broker_that_is_gone() -> None:
    """Else they would fill the bound for ever: neither could end."""
    machine = uneven(BrokerConfig(balancer_moves_max=2), replicas=2)
    balance(machine, moves=2)
    moving = under_way(machine)
    assert all(4 in machine.partition(number=each).adding_replicas for each in moving)
    assert lose(machine, 4) == 2
    assert under_way(machine) == moving
    assert not any(4 in machine.partition(number=each).replicas for each in moving)


def test_healing_does_not_wait_for_moves_of_partitions_that_no_broker_leads_any_more() -> None:
    machine = uneven(BrokerConfig(balancer_moves_max=1))
    balance(machine, moves=1)
    (moving,) = under_way(machine)
    source = machine.partition(number=moving).leader_id
    create(machine, (4, source), name="clicks")
    assert lose(machine, source) == 1
    assert machine.partition("clicks").is_reassigned


def test_a_deleted_topic_ends_its_moves(machine: Machine) -> None:
    balance(machine, moves=1)
    machine.handle(DeleteTopicsRequest(("orders",)))
    for _ in range(4):
        look(machine, REPLAN_MS)
        for broker_id in (1, 2, 3, 4):
            machine.heartbeat(broker_id, load=LoadReport(1_000, 0, 900 * MB))
    assert status(machine).state == "ended"


def test_a_new_controller_goes_on_when_everything_under_way_has_ended(machine: Machine) -> None:
    balance(machine, moves=1)
    (moving,) = under_way(machine)
    machine.change_controller()
    look(machine, REPLAN_MS)
    assert (status(machine).state, status(machine).waits_for) == (
        "planning",
        f"the reassignment of orders-{moving} is under way",
    )
    complete(machine, moving)
    look(machine, REPLAN_MS)
    assert "have not reported their load" in status(machine).waits_for
    go_on(machine)
    assert counts(machine) == [3, 3, 3, 3]
    assert [kind for kind, _ in told(machine)] == ["balance-begun", "balance-ended"]


def test_a_new_controller_goes_on_with_a_balance_after_a_thousand_other_events(machine: Machine) -> None:
    balance(machine, moves=1)
    for number in range(3 * EVENTS_MAX):
        machine.handle(
            RecordEventRequest(number, "process-ended", ("broker-9",), "it crashes again and again")
        )
        if number % 100 == 0:
            look(machine, 250)
    machine.change_controller()
    assert status(machine).state == "planning"


def test_a_cluster_without_events_balances_too_and_a_new_controller_leaves_it_at_that() -> None:
    machine = Machine(records=WITHOUT_ELR)
    machine.start(1, 2, 3, 4)
    create(machine, *((1 + number % 3,) for number in range(COUNT)))
    report(machine)
    balance(machine, moves=1)
    complete_all(machine)
    machine.change_controller()
    look(machine, REPLAN_MS)
    assert status(machine).state == "none"
    report(machine)
    balance(machine)
    go_on(machine)
    assert counts(machine) == [3, 3, 3, 3]


# ---- By itself -------------------------------------------------------------------------------------------------------


def settle(machine: Machine, ms: int = SETTLE_MS) -> None:
    """Looks go on for so long."""
    for _ in range(ms // LOOK_INTERVAL_MS + 1):
        report(machine)
        look(machine, LOOK_INTERVAL_MS)


def test_an_empty_broker_is_filled_by_itself_after_a_while(machine: Machine) -> None:
    settle(machine, SETTLE_MS - 2 * LOOK_INTERVAL_MS)
    assert told(machine) == []
    settle(machine, LOOK_INTERVAL_MS)
    assert told(machine) == [
        (
            "balance-begun",
            "of 3 replicas on average broker 4 holds 0; 3 partitions are to move, copying 3.0 MB",
        )
    ]
    assert go_on(machine) == 3
    settle(machine, 2 * REPEAT_MS)
    assert [kind for kind, _ in told(machine)] == ["balance-begun", "balance-ended"]


def test_what_is_badly_off_has_to_be_so_for_the_whole_time_when_another_broker_joins_it(
    machine: Machine,
) -> None:
    settle(machine, SETTLE_MS - 2 * LOOK_INTERVAL_MS)
    machine.start(5)
    settle(machine, SETTLE_MS - LOOK_INTERVAL_MS)
    assert told(machine) == []
    settle(machine, LOOK_INTERVAL_MS)
    ((_, reason),) = told(machine)
    assert reason.startswith("of 2 replicas on average broker 4 holds 0, broker 5 holds 0;")


@pytest.mark.parametrize("is_forgotten", [True, False])
def test_a_broker_that_was_forgotten_and_comes_empty_again_is_filled_at_once(
    machine: Machine, is_forgotten: bool
) -> None:
    """For a broker that stays, and is emptied again, a balance does not begin again so soon."""
    settle(machine)
    assert go_on(machine) == 3
    machine.handle(DeleteTopicsRequest(("orders",)))
    if is_forgotten:
        fence(machine, 4)
        machine.handle(UnregisterBrokerRequest(4))
        machine.start(4)
    create(machine, *((1 + number % 3,) for number in range(COUNT)))
    settle(machine)
    assert told(machine)[-1][0] == ("balance-begun" if is_forgotten else "balance-ended")


def test_a_disk_above_80_percent_is_relieved_by_itself_and_nothing_else_moves() -> None:
    machine = Machine()
    for broker_id in (1, 2, 3):
        machine.start(broker_id, host=f"m{broker_id}")
    create(machine, *[(1,)] * 6, *[(2,)] * 2, *[(3,)] * 1)

    def say() -> None:
        for broker_id in (1, 2, 3):
            count = sum(
                broker_id in each.target_replicas for each in machine.image.topics["orders"].partitions
            )
            load = LoadReport(1_000, 0, (7 - count) * MB, count * MB, count, count)
            machine.heartbeat(broker_id, load=load)

    for _ in range(14):
        say()
        look(machine, LOOK_INTERVAL_MS)
    ((kind, reason),) = told(machine)
    assert (kind, reason) == (
        "balance-begun",
        "disks are above 80%: broker 1 at 86%; 1 partitions are to move, copying 1.0 MB",
    )
    assert len(under_way(machine)) == 1
    machine.change_controller()
    complete_all(machine)
    for _ in range(4):
        say()
        look(machine, REPLAN_MS)
    assert (under_way(machine), status(machine).state) == ([], "ended")


def test_a_cordoned_broker_is_not_filled(machine: Machine) -> None:
    machine.handle(cordon(4))
    settle(machine, 2 * SETTLE_MS)
    assert told(machine) == []


def test_a_coordinator_holds_nothing_of_users_and_is_not_badly_off() -> None:
    machine = cluster(3)
    machine.start(4, roles=(Role.COORDINATOR,))
    create(machine, *((1 + number % 3,) for number in range(COUNT)))
    settle(machine, 2 * SETTLE_MS)
    assert status(machine).state == "none"


def test_a_broker_that_flaps_begins_nothing(machine: Machine) -> None:
    for _ in range(10):
        settle(machine, SETTLE_MS // 2)
        fence(machine, 4)
        look(machine, LOOK_INTERVAL_MS)
        machine.heartbeat(4)
    assert told(machine) == []


def test_while_a_broker_is_away_nothing_begins_by_itself(machine: Machine) -> None:
    fence(machine, 3)
    settle(machine, 2 * SETTLE_MS)
    assert told(machine) == []


def test_what_an_operator_cancelled_does_not_begin_again_by_itself(machine: Machine) -> None:
    settle(machine)
    assert cancel(machine)
    settle(machine, 3 * REPEAT_MS)
    machine.change_controller()
    settle(machine, 2 * SETTLE_MS)
    assert [kind for kind, _ in told(machine)] == ["balance-begun", "balance-cancelled"]
    machine.start(5)
    settle(machine, 2 * SETTLE_MS)
    assert told(machine)[-1][0] == "balance-begun"


def test_balancing_by_itself_can_be_switched_off_while_it_runs(machine: Machine) -> None:
    set_for_all(machine, "balancer.enable", "false")
    settle(machine, 2 * SETTLE_MS)
    assert told(machine) == []
    set_for_all(machine, "balancer.enable", "true")
    set_for_all(machine, "balancer.settle.ms", "1000")
    settle(machine, LOOK_INTERVAL_MS)
    assert len(told(machine)) == 1


def test_switching_it_off_ends_the_balance_that_began_by_itself_and_none_that_was_asked_for(
    machine: Machine,
) -> None:
    settle(machine)
    assert under_way(machine)
    set_for_all(machine, "balancer.enable", "false")
    look(machine, LOOK_INTERVAL_MS)
    assert (under_way(machine), counts(machine)) == ([], [4, 4, 4, 0])
    assert told(machine)[1:] == [("balance-ended", "balancer.enable is false, after 0 of 3 moves")]
    settle(machine, 2 * SETTLE_MS)
    assert (len(told(machine)), status(machine).state) == (2, "cancelled")
    set_for_all(machine, "balancer.enable", "true")
    settle(machine)
    assert told(machine)[-1][0] == "balance-begun"
    set_for_all(machine, "balancer.enable", "false")
    look(machine, LOOK_INTERVAL_MS)
    report(machine)
    balance(machine)
    go_on(machine)
    assert counts(machine) == [3, 3, 3, 3]


def test_internal_topics_do_not_make_a_broker_badly_off_for_ever() -> None:
    machine = cluster(2)
    topic = NewTopic("__consumer_offsets", assignments=((1,),) * 6)
    machine.handle(CreateTopicsRequest((topic,), 1, machine.image.brokers[1].broker_epoch))
    for _ in range(200):
        machine.heartbeat(1, load=LoadReport(1_000, 0, 900 * MB, 6 * MB, 6, 6))
        machine.heartbeat(2, load=LoadReport(1_000, 0, 900 * MB))
        look(machine, LOOK_INTERVAL_MS)
    assert told(machine) == []  # a plan without moves is no event


def test_time_in_the_loss_of_a_broker_is_healings() -> None:
    machine = uneven(replicas=2)
    assert lose(machine, 1, ms=TIMEOUT_MS) > 0
    assert [kind for kind, _ in told(machine)] == ["heal-begun"]


def cordon(broker_id: int) -> IncrementalAlterConfigsRequest:
    change = ConfigChange("cordoned.log.dirs", AlterConfigOp.SET, "*")
    return IncrementalAlterConfigsRequest((AlteredResource(ResourceType.BROKER, str(broker_id), (change,)),))
