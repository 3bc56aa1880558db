"""A coordinator that comes later gets its share of internal partitions (decision 049)."""

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rayka.controller.controller_timers import ElectPreferredLeaders, ShareWithCoordinators
from rayka.controller.coordinator_shares import shared
from rayka.errors import ErrorCode
from rayka.ids import Role
from rayka.metadata.image import PartitionImage
from rayka.protocol.configs import (
    AlterConfigOp,
    AlteredResource,
    ConfigChange,
    IncrementalAlterConfigsRequest,
    ResourceType,
)
from rayka.protocol.topics import (
    AlterPartitionReassignmentsRequest,
    CreateTopicsRequest,
    NewTopic,
    Reassignment,
)
from tests.controller.admin_support import outcomes, report_isr
from tests.controller.support import Machine

OFFSETS = "__consumer_offsets"
COORDINATOR = (Role.COORDINATOR,)
A, B, C = 1001, 1002, 1003


# ---- The shares ------------------------------------------------------------------------------------------------------


def test_the_first_coordinator_takes_a_place_of_every_partition_and_leads_all() -> None:
    assert shared([(1, 2, 3), (2, 3, 1)], [A], [A]) == [(A, 1, 2), (A, 2, 3)]


def test_a_second_one_leads_half() -> None:
    assert shared([(A, 1, 2)] * 4, [A, B], [B]) == [(B, A, 1), (B, A, 1), (A, B, 1), (A, B, 1)]


def test_one_more_than_there_are_replicas_takes_a_part_of_each_other_ones() -> None:
    wanted = shared([(A, B), (B, A)] * 6, [A, B, C], [C])
    assert Counter(each for replicas in wanted for each in replicas) == {A: 8, B: 8, C: 8}
    assert Counter(replicas[0] for replicas in wanted) == {A: 4, B: 4, C: 4}


@given(st.integers(1, 30), st.integers(1, 3), st.integers(0, 4), st.integers(1, 4))
def test_shares_are_even_and_as_few_replicas_move_as_that_takes(
    partition_count: int, factor: int, old_count: int, new_count: int
) -> None:
    old = list(range(A, A + old_count))
    newcomers = list(range(A + old_count, A + old_count + new_count))
    brokers = [1, 2, 3]
    first: list[tuple[int, ...]] = [tuple(brokers[:factor])] * partition_count
    before = shared(first, old, old) if old else first
    after = shared(before, [*old, *newcomers], newcomers)
    held = Counter(each for replicas in after for each in replicas if each >= A)
    counts = [held[each] for each in (*old, *newcomers)]
    assert max(counts) - min(counts) <= 1
    assert all(len(set(replicas)) == factor for replicas in after)
    assert all(replicas[0] >= A for replicas in after)
    moved = sum(len(set(now) - set(then)) for then, now in zip(before, after, strict=True))
    assert moved == sum(held[each] for each in newcomers)


# ---- When they are given ---------------------------------------------------------------------------------------------


@pytest.fixture
def machine() -> Machine:
    """Three brokers with an internal topic."""
    made = Machine()
    made.start(1, 2, 3)
    request = CreateTopicsRequest((NewTopic(OFFSETS, 4, 3),), 1, made.image.brokers[1].broker_epoch)
    assert made.handle(request).topics[0].error_code is ErrorCode.NONE
    return made


def partitions(machine: Machine) -> tuple[PartitionImage, ...]:
    return machine.image.topics[OFFSETS].partitions


def bring_in_sync(machine: Machine, *added: int) -> None:
    for number, partition in enumerate(partitions(machine)):
        report_isr(
            machine,
            *partition.isr,
            *(each for each in added if each in partition.replicas),
            name=OFFSETS,
            number=number,
        )


def test_a_new_coordinator_takes_over_the_leads_once_it_is_in_sync(machine: Machine) -> None:
    machine.start(A, roles=COORDINATOR)
    assert machine.handle(ShareWithCoordinators()) == [A]
    assert all(each.adding_replicas == (A,) and each.leader_id != A for each in partitions(machine))
    bring_in_sync(machine, A)
    machine.handle(ElectPreferredLeaders(A))
    assert all(each.leader_id == A and len(each.replicas) == 3 for each in partitions(machine))


def test_its_unfencing_sets_the_timer_and_that_of_a_broker_does_not() -> None:
    machine = Machine()
    for node_id, roles in ((A, COORDINATOR), (1, (Role.BROKER,))):
        machine.start(node_id, roles=roles)
        assert [each.request for each in machine.timers] == [ShareWithCoordinators()] * (node_id == A)


def test_a_new_controller_looks_for_coordinators_without_a_share(machine: Machine) -> None:
    machine.start(A, roles=COORDINATOR)
    timers = machine.controller.on_active(now_ms=0, next_offset=len(machine.records))
    assert ShareWithCoordinators() in [each.request for each in timers]


def test_one_that_holds_something_is_left_as_it_is(machine: Machine) -> None:
    machine.start(A, roles=COORDINATOR)
    wanted = (Reassignment(OFFSETS, 0, (1, 2, A)),)
    machine.handle(AlterPartitionReassignmentsRequest(wanted))
    assert machine.written_by(ShareWithCoordinators()) == []


def test_one_that_does_not_run_gets_nothing(machine: Machine) -> None:
    machine.register(A, roles=COORDINATOR)
    assert machine.written_by(ShareWithCoordinators()) == []


def test_one_that_is_being_emptied_gets_nothing_and_another_one_its_share(machine: Machine) -> None:
    for each in (A, B):
        machine.start(each, roles=COORDINATOR)
    change = ConfigChange("cordoned.log.dirs", AlterConfigOp.SET, "*")
    altered = AlteredResource(ResourceType.BROKER, str(A), (change,))
    machine.handle(IncrementalAlterConfigsRequest((altered,)))
    assert machine.handle(ShareWithCoordinators()) == [B]
    assert all(each.adding_replicas == (B,) for each in partitions(machine))


def test_a_topic_of_a_user_cannot_be_moved_to_a_coordinator(machine: Machine) -> None:
    machine.start(A, roles=COORDINATOR)
    machine.create(NewTopic("orders", 1, 1))
    wanted = (Reassignment("orders", 0, (A,)), Reassignment(OFFSETS, 0, (A, 1, 2)))
    response = machine.handle(AlterPartitionReassignmentsRequest(wanted))
    assert outcomes(response.partitions) == [ErrorCode.INVALID_REPLICA_ASSIGNMENT, ErrorCode.NONE]
    assert "1001" in response.partitions[0].error_message


def test_a_topic_of_a_user_cannot_be_created_on_a_coordinator(machine: Machine) -> None:
    machine.start(A, roles=COORDINATOR)
    (result,) = machine.create(NewTopic("orders", assignments=((A,),))).topics
    assert result.error_code is ErrorCode.INVALID_REPLICA_ASSIGNMENT
    assert "expected some of [1, 2, 3]" in result.error_message
