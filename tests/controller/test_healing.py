"""Brokers and directories that are gone for long: what they held is made anew on others, by itself."""

from collections.abc import Callable
from uuid import UUID

import pytest

from rayka.config.broker_config import BrokerConfig
from rayka.controller.controller_timers import (
    BUSY_LOOK_INTERVAL_MS,
    LOOK_INTERVAL_MS,
    LookAfterReplicas,
)
from rayka.controller.healing_state import REPLAN_INTERVAL_MS, UNPLANNED_INTERVAL_MS
from rayka.ids import Role
from rayka.metadata.metadata_records import ConfigRecord, PartitionChangeRecord
from rayka.protocol.configs import (
    AlterConfigOp,
    AlteredResource,
    ConfigChange,
    IncrementalAlterConfigsRequest,
    ResourceType,
)
from rayka.protocol.load import LoadReport
from rayka.protocol.membership import AssignedReplica, AssignReplicasToDirsRequest
from rayka.protocol.topics import (
    AlterPartitionReassignmentsRequest,
    CreateTopicsRequest,
    DeleteTopicsRequest,
    NewTopic,
    Reassignment,
)
from rayka.shard.shard import Result
from tests.controller.admin_support import cluster, create, fence, report_isr
from tests.controller.support import Machine
from tests.metadata.support import directory

TIMEOUT_MS = 900_000
GB = 1_000_000_000


def look(machine: Machine, after_ms: int, *, late_ms: int = 0) -> int:
    """So much later; how many moves began."""
    machine.now_ms += after_ms
    begun: int = machine.handle(LookAfterReplicas(machine.now_ms - late_ms))
    return begun


def lose(machine: Machine, *broker_ids: int, ms: int = TIMEOUT_MS) -> int:
    """They are fenced, are looked at, and again so much later; how many moves began then."""
    fence(machine, *broker_ids)
    assert look(machine, 0) == 0
    return look(machine, ms)


def begin_in_vain(machine: Machine) -> None:
    """A look of which the log takes nothing."""
    outcome = machine.controller.handle(
        LookAfterReplicas(machine.now_ms), now_ms=machine.now_ms, next_offset=len(machine.records)
    )
    assert not isinstance(outcome, Result)
    for step in outcome:
        if isinstance(step, PartitionChangeRecord):
            break


def complete(machine: Machine, number: int = 0, name: str = "orders") -> None:
    """The added replicas come into sync."""
    partition = machine.partition(name, number)
    report_isr(machine, *partition.isr, *partition.adding_replicas, name=name, number=number)


def set_for_all(machine: Machine, key: str, value: str) -> None:
    machine.replay(ConfigRecord(resource_type=ResourceType.BROKER, resource_name="", name=key, value=value))


def reassign(
    machine: Machine, replicas: tuple[int, ...] | None, number: int = 0, name: str = "orders"
) -> None:
    machine.handle(AlterPartitionReassignmentsRequest((Reassignment(name, number, replicas),)))


def test_a_replica_of_a_broker_that_is_gone_is_made_anew_and_keeps_its_place() -> None:
    machine = cluster(4)
    create(machine, (1, 2, 3))
    assert lose(machine, 2, ms=TIMEOUT_MS - 1) == 0
    assert look(machine, 1) == 1
    partition = machine.partition()
    assert (partition.replicas, partition.adding_replicas, partition.removing_replicas) == (
        (1, 4, 3, 2), (4,), (2,),
    )  # fmt: skip
    complete(machine)
    assert (machine.partition().replicas, machine.partition().isr) == ((1, 4, 3), (1, 3, 4))
    assert look(machine, LOOK_INTERVAL_MS) == 0


@pytest.mark.parametrize("back", [Machine.restart, Machine.heartbeat])
def test_a_broker_that_comes_back_in_time_keeps_what_it_has(back: Callable[[Machine, int], object]) -> None:
    machine = cluster(4)
    create(machine, (1, 2, 3))
    lose(machine, 2, ms=TIMEOUT_MS - 1)
    back(machine, 2)
    machine.heartbeat(2)
    assert look(machine, TIMEOUT_MS) == 0
    fence(machine, 2)  # and its time begins anew when it goes again
    assert look(machine, TIMEOUT_MS - 1) == 0
    assert machine.partition().adding_replicas == ()


def test_a_broker_that_was_back_between_two_looks_was_back() -> None:
    machine = cluster(4)
    create(machine, (1, 2, 3))
    lose(machine, 2, ms=TIMEOUT_MS - 1)
    machine.heartbeat(2)
    fence(machine, 2)
    assert look(machine, 60_000) == 0
    assert look(machine, TIMEOUT_MS) == 1


def test_a_broker_that_sends_heartbeats_recovers_and_is_not_gone() -> None:
    machine = cluster(4)
    create(machine, (1, 2, 3))
    lose(machine, 2, ms=TIMEOUT_MS - 1)
    machine.now_ms += 10_000
    machine.heartbeat(2, want_fence=True)
    assert look(machine, 0) == 0
    assert look(machine, 10_000) == 1


def test_a_broker_that_starts_again_and_again_and_never_serves_is_gone() -> None:
    machine = cluster(4)
    create(machine, (1, 2, 3))
    fence(machine, 2)
    look(machine, 0)
    for number in range(3):
        machine.restart(2, incarnation_id=UUID(int=50 + number))
        for other in (1, 3, 4):
            machine.heartbeat(other)
        machine.sweep()
        look(machine, TIMEOUT_MS // 3)
    assert machine.partition().adding_replicas == (4,)


def test_time_in_which_the_controller_stood_still_counts_for_no_broker() -> None:
    machine = cluster(4)
    create(machine, (1, 2, 3))
    fence(machine, 2)
    look(machine, 0)
    assert look(machine, TIMEOUT_MS, late_ms=TIMEOUT_MS - LOOK_INTERVAL_MS) == 0
    assert look(machine, TIMEOUT_MS - LOOK_INTERVAL_MS) == 1


def test_a_new_active_controller_waits_for_the_whole_time_again() -> None:
    machine = cluster(4)
    create(machine, (1, 2, 3))
    lose(machine, 2, ms=TIMEOUT_MS - 1)
    machine.change_controller()
    assert look(machine, LOOK_INTERVAL_MS) == 0
    assert look(machine, TIMEOUT_MS - 1) == 0
    assert look(machine, 1) == 1


def test_a_directory_that_stays_offline_is_made_anew_on_another_broker() -> None:
    machine = cluster(3)
    two = (directory(4, 0), directory(4, 1))
    machine.start(4, directories=two)
    create(machine, (4, 1), (4, 2))
    homes = [machine.partition(number=number).directory_of(4) for number in (0, 1)]
    machine.heartbeat(4, offline_directory_ids=(homes[0],))
    assert look(machine, 0) == 0
    for _ in range(2):
        machine.heartbeat(4, offline_directory_ids=(homes[0],))
        begun_count = look(machine, TIMEOUT_MS // 2)
    assert begun_count == homes.count(homes[0])
    assert (machine.partition().removing_replicas, machine.partition().adding_replicas) in (
        ((4,), (2,)),
        ((4,), (3,)),
    )


def test_a_replica_that_is_in_another_directory_before_its_move_has_begun_stays() -> None:
    machine = cluster(3, BrokerConfig(balancer_moves_max=1))
    two = (directory(4, 0), directory(4, 1))
    machine.start(4, directories=two)
    create(machine, *[(1, 4)] * 4)
    lost = two[0].directory_id
    here = [number for number in range(4) if machine.partition(number=number).directory_of(4) == lost]
    assert len(here) == 2
    machine.heartbeat(4, offline_directory_ids=(lost,))
    assert look(machine, 0) == 0
    machine.heartbeat(4, offline_directory_ids=(lost,))
    assert look(machine, TIMEOUT_MS) == 1
    (waiting,) = (each for each in here if not machine.partition(number=each).is_reassigned)
    (begun,) = (each for each in here if each != waiting)
    replica = AssignedReplica(machine.image.topics["orders"].topic_id, waiting, two[1].directory_id)
    epoch = machine.image.brokers[4].broker_epoch
    machine.handle(AssignReplicasToDirsRequest(4, epoch, (replica,)))
    complete(machine, begun)
    assert look(machine, BUSY_LOOK_INTERVAL_MS) == 0
    assert machine.partition(number=waiting).replicas == (1, 4)


def test_a_directory_that_recovers_in_time_keeps_what_it_has() -> None:
    machine = cluster(3)
    create(machine, (1, 2))
    home = directory(1).directory_id
    machine.heartbeat(1, offline_directory_ids=(home,))
    look(machine, 0)
    machine.heartbeat(1, recovered_directory_ids=(home,))
    assert look(machine, TIMEOUT_MS) == 0


def test_without_another_broker_the_replicas_stay_as_they_are_until_one_comes() -> None:
    machine = cluster(3)
    create(machine, (1, 2, 3))
    assert lose(machine, 2) == 0
    assert machine.partition().replicas == (1, 2, 3)
    assert look(machine, REPLAN_INTERVAL_MS) == 0
    machine.start(4)
    assert look(machine, 0) == 1


def test_brokers_that_come_one_after_another_are_waited_for_as_long_as_a_plan_holds() -> None:
    machine = cluster(3)
    create(machine, (1, 2, 3))
    assert lose(machine, 2) == 0
    machine.start(4)
    assert look(machine, LOOK_INTERVAL_MS) == 0
    assert look(machine, REPLAN_INTERVAL_MS - LOOK_INTERVAL_MS) == 1


def test_of_two_lost_replicas_one_is_replaced_where_one_broker_is_left() -> None:
    machine = cluster(4)
    create(machine, (1, 2, 3))
    assert lose(machine, 2, 3) == 1
    assert machine.partition().replicas == (1, 2, 4, 3)
    complete(machine)
    assert machine.partition().replicas == (1, 2, 4)


def test_where_no_replica_leads_nothing_is_begun() -> None:
    machine = cluster(4)
    create(machine, (1,))
    create(machine, (2, 1), name="payments")
    assert lose(machine, 1) == 1
    assert machine.partition().adding_replicas == ()
    assert machine.partition("payments").adding_replicas != ()


def test_the_new_replica_goes_to_another_rack_and_another_machine() -> None:
    machine = Machine()
    for broker_id, rack, host in (
        (1, "a", "m1"),
        (2, "b", "m2"),
        (3, "a", "m1"),
        (4, "a", "m3"),
        (5, "b", "m2"),
    ):
        machine.start(broker_id, rack=rack, host=host)
    create(machine, (1, 2), (2, 4), (5, 2))
    assert lose(machine, 2) == 3
    assert machine.partition().adding_replicas == (5,)
    assert machine.partition(number=1).adding_replicas == (5,)
    assert machine.partition(number=2).adding_replicas != (5,)


def test_no_disk_is_filled_above_80_percent() -> None:
    machine = Machine()
    for broker_id in (1, 2, 3, 4):
        machine.start(broker_id, host=f"m{broker_id}")
    create(machine, (1, 2), (1, 2), (1, 2))
    machine.heartbeat(1, load=LoadReport(1_000, free_bytes=90 * GB, size_bytes=90 * GB, partition_count=3))
    machine.heartbeat(3, load=LoadReport(1_000, free_bytes=70 * GB))
    machine.heartbeat(4, load=LoadReport(1_000, free_bytes=10 * GB))
    assert lose(machine, 2) == 1
    assert {machine.partition(number=number).adding_replicas for number in range(3)} == {(3,), ()}


def test_a_disk_that_has_room_again_is_found_after_a_while() -> None:
    machine = Machine()
    for broker_id in (1, 2, 3):
        machine.start(broker_id, host=f"m{broker_id}")
    create(machine, (1, 2))
    machine.heartbeat(1, load=LoadReport(1_000, free_bytes=90 * GB, size_bytes=30 * GB, partition_count=1))
    machine.heartbeat(3, load=LoadReport(1_000, free_bytes=10 * GB))
    assert lose(machine, 2) == 0
    machine.heartbeat(3, load=LoadReport(1_000, free_bytes=90 * GB))
    assert look(machine, REPLAN_INTERVAL_MS) == 0
    assert look(machine, UNPLANNED_INTERVAL_MS - REPLAN_INTERVAL_MS) == 1


def test_so_many_moves_are_under_way_at_a_time_and_the_next_begin_as_they_end() -> None:
    machine = cluster(4, BrokerConfig(balancer_moves_max=2))
    create(machine, *[(1, 2)] * 5)
    begun = [lose(machine, 2)]
    assert look(machine, BUSY_LOOK_INTERVAL_MS) == 0
    for ended in ((0,), (1, 2), (3,)):
        for number in ended:
            complete(machine, number)
        begun.append(look(machine, BUSY_LOOK_INTERVAL_MS))
        under_way = [number for number in range(5) if machine.partition(number=number).is_reassigned]
        assert len(under_way) <= 2
    assert begun == [2, 1, 2, 0]


def test_partitions_with_the_fewest_replicas_in_sync_come_first() -> None:
    machine = cluster(5, BrokerConfig(balancer_moves_max=1))
    create(machine, (1, 2, 3), (1, 2, 3))
    report_isr(machine, 1, 2, number=1)
    assert lose(machine, 2) == 1
    assert machine.partition(number=1).is_reassigned


def test_what_a_broker_brings_back_before_its_move_has_begun_stays() -> None:
    machine = cluster(4, BrokerConfig(balancer_moves_max=1))
    create(machine, (1, 2), (1, 2))
    assert lose(machine, 2) == 1
    machine.heartbeat(2)
    complete(machine)
    assert look(machine, BUSY_LOOK_INTERVAL_MS) == 0
    assert machine.partition(number=1).replicas == (1, 2)


def test_a_reassignment_that_is_under_way_is_left_alone_unless_it_waits_for_what_is_gone() -> None:
    machine = cluster(5)
    create(machine, (1, 2), (1, 2))
    reassign(machine, (1, 3), 0)
    reassign(machine, (2, 4), 1)
    assert lose(machine, 2, 3) == 1
    assert machine.partition(number=0).target_replicas in ((1, 4), (1, 5))
    assert machine.partition(number=1).target_replicas == (2, 4)


def test_the_broker_that_is_left_goes_to_the_replica_that_a_reassignment_waits_for() -> None:  # B45
    """Brokers 3 and 5 are gone, 4 takes nothing: with 2 in the place of 5 the reassignment waits for 3 for ever."""
    machine = cluster(5)
    create(machine, (5, 2, 4))
    reassign(machine, (5, 1, 3))
    change = ConfigChange("cordoned.log.dirs", AlterConfigOp.SET, "*")
    machine.handle(IncrementalAlterConfigsRequest((AlteredResource(ResourceType.BROKER, "4", (change,)),)))
    assert lose(machine, 3, 5) == 1
    assert machine.partition().target_replicas == (5, 1, 2)
    report_isr(machine, 2, 4, 1)
    assert (machine.partition().replicas, machine.partition().is_reassigned) == ((5, 1, 2), False)


@pytest.mark.parametrize("kept", [(2,), (2, 3)])
def test_a_reassignment_to_fewer_replicas_waits_for_each_that_stays_and_goes_on_without_what_is_gone(
    kept: tuple[int, ...],
) -> None:  # B45
    machine = cluster(4)
    create(machine, (1, 2, 3))
    report_isr(machine, 1)
    reassign(machine, kept)
    assert machine.partition().is_reassigned
    assert lose(machine, 2) == 1
    assert machine.partition().target_replicas == (1, *kept[1:])
    report_isr(machine, *machine.partition().target_replicas)
    assert (machine.partition().replicas, machine.partition().is_reassigned) == ((1, *kept[1:]), False)


def test_a_move_whose_target_is_gone_goes_elsewhere_even_where_no_other_may_begin() -> None:
    machine = cluster(5, BrokerConfig(balancer_moves_max=1))
    create(machine, (1, 2), (1, 2))
    assert lose(machine, 2) == 1
    (first,) = (number for number in (0, 1) if machine.partition(number=number).is_reassigned)
    (target,) = machine.partition(number=first).adding_replicas
    assert lose(machine, target) == 1
    assert machine.partition(number=first).adding_replicas not in ((target,), ())
    assert not machine.partition(number=1 - first).is_reassigned


def test_moves_of_partitions_that_no_broker_leads_any_more_hold_up_no_other() -> None:
    """They copy nothing, and may never end."""
    machine = cluster(5, BrokerConfig(balancer_moves_max=1))
    create(machine, (1, 2), (3, 1), (3, 1))
    assert lose(machine, 2) == 1
    assert lose(machine, 1) == 1
    assert not machine.partition(number=0).has_leader
    assert [machine.partition(number=each).is_reassigned for each in range(3)] == [True, True, False]
    machine.change_controller()
    complete(machine, 1)
    look(machine, 0)
    assert look(machine, TIMEOUT_MS) == 1
    assert [machine.partition(number=each).is_reassigned for each in range(3)] == [True, False, True]


def test_after_a_change_of_the_controller_moves_under_way_count() -> None:
    machine = cluster(4, BrokerConfig(balancer_moves_max=2))
    create(machine, *[(1, 2)] * 5)
    assert lose(machine, 2) == 2
    machine.change_controller()
    look(machine, 0)
    assert look(machine, TIMEOUT_MS) == 0
    (first, _) = (number for number in range(5) if machine.partition(number=number).is_reassigned)
    complete(machine, first)
    assert look(machine, BUSY_LOOK_INTERVAL_MS) == 1


def test_a_move_that_an_operator_cancels_does_not_begin_again() -> None:
    machine = cluster(4)
    create(machine, (1, 2))
    assert lose(machine, 2) == 1
    reassign(machine, None)
    for _ in range(3):
        assert look(machine, UNPLANNED_INTERVAL_MS) == 0
    fence(machine, 3)
    look(machine, 0)
    assert look(machine, TIMEOUT_MS) == 1  # until something else is gone


def test_a_move_that_an_operator_changes_to_what_is_gone_goes_elsewhere() -> None:
    machine = cluster(4)
    create(machine, (2, 1))
    assert lose(machine, 2) == 1
    reassign(machine, (2,))  # instead of 3 or 4, and 1
    assert machine.partition().target_replicas == (2,)
    assert look(machine, UNPLANNED_INTERVAL_MS) == 1
    assert machine.partition().target_replicas in ((1,), (3,), (4,))
    assert machine.partition().has_leader


def test_moves_that_the_log_did_not_take_begin_again() -> None:
    machine = cluster(4)
    create(machine, (1, 2))
    fence(machine, 2)
    look(machine, 0)
    machine.now_ms += TIMEOUT_MS
    begin_in_vain(machine)
    assert not machine.partition().is_reassigned
    assert look(machine, REPLAN_INTERVAL_MS) == 1
    assert machine.partition().is_reassigned


def test_what_an_operator_moves_to_a_broker_that_is_gone_is_made_anew_afterwards() -> None:
    machine = cluster(5)
    create(machine, (2, 1))
    assert lose(machine, 2) == 1
    reassign(machine, (2, 5))  # instead of 3, 4 or 5, and 1
    assert look(machine, UNPLANNED_INTERVAL_MS) == 0
    complete(machine)
    assert (machine.partition().replicas, machine.partition().is_reassigned) == ((2, 5), False)
    assert look(machine, UNPLANNED_INTERVAL_MS) == 1
    assert 2 not in machine.partition().target_replicas


def test_healing_can_be_switched_off_while_it_runs() -> None:
    machine = cluster(4, BrokerConfig(balancer_moves_max=1))
    create(machine, (1, 2), (1, 2))
    assert lose(machine, 2) == 1
    set_for_all(machine, "self.healing.enable", "false")
    complete(machine, 0 if machine.partition().is_reassigned else 1)
    assert look(machine, TIMEOUT_MS) == 0
    set_for_all(machine, "self.healing.enable", "true")
    assert look(machine, BUSY_LOOK_INTERVAL_MS) == 1


def test_the_next_look_comes_soon_while_moves_are_under_way() -> None:
    machine = cluster(4)
    create(machine, (1, 2))
    look(machine, 0)
    assert machine.timers[0].due_ms - machine.now_ms == LOOK_INTERVAL_MS
    lose(machine, 2)
    assert machine.timers[0].due_ms - machine.now_ms == BUSY_LOOK_INTERVAL_MS


def test_replicas_of_internal_topics_are_made_anew_on_nodes_of_the_same_role() -> None:
    machine = cluster(3)
    machine.start(8, 9, roles=(Role.COORDINATOR,))
    topic = NewTopic("__consumer_offsets", 1, 2)
    machine.handle(CreateTopicsRequest((topic,), 1, machine.image.brokers[1].broker_epoch))
    reassign(machine, (8, 1), name="__consumer_offsets")
    complete(machine, name="__consumer_offsets")
    assert machine.partition("__consumer_offsets").replicas == (8, 1)
    assert lose(machine, 8) == 1
    assert machine.partition("__consumer_offsets").adding_replicas == (9,)
    complete(machine, name="__consumer_offsets")
    assert lose(machine, 1) == 1
    assert machine.partition("__consumer_offsets").adding_replicas in ((2,), (3,))


def test_a_coordinator_gets_no_partition_of_users() -> None:
    machine = cluster(2)
    machine.start(8, roles=(Role.COORDINATOR,))
    create(machine, (1, 2))
    assert lose(machine, 2) == 0


def test_the_topics_of_moves_that_wait_may_be_deleted() -> None:
    machine = cluster(4, BrokerConfig(balancer_moves_max=1))
    create(machine, (1, 2), (1, 2))
    assert lose(machine, 2) == 1
    machine.handle(DeleteTopicsRequest(("orders",)))
    assert look(machine, BUSY_LOOK_INTERVAL_MS) == 0
    assert machine.timers[0].due_ms - machine.now_ms == LOOK_INTERVAL_MS
