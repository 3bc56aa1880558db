"""Partitions moved to other replicas (B45)."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rayka.config.broker_config import BrokerConfig
from rayka.errors import ErrorCode
from rayka.ids import TopicPartition
from rayka.protocol.membership import LeaderRecoveryState
from rayka.protocol.topics import (
    AlterPartitionReassignmentsRequest,
    ListPartitionReassignmentsRequest,
    OngoingReassignment,
    Reassignment,
)
from tests.controller.admin_support import cluster, create, fence, outcomes, report_isr
from tests.controller.support import Machine
from tests.metadata.support import directory


@pytest.fixture
def machine() -> Machine:
    """Five brokers, and a partition on the first three of them."""
    machine = cluster()
    create(machine, (1, 2, 3))
    return machine


def reassign(machine: Machine, *replicas: int) -> ErrorCode:
    return alter(machine, Reassignment("orders", 0, replicas))


def cancel(machine: Machine) -> ErrorCode:
    return alter(machine, Reassignment("orders", 0, None))


def alter(machine: Machine, *wanted: Reassignment) -> ErrorCode:
    (code,) = outcomes(machine.handle(AlterPartitionReassignmentsRequest(wanted)).partitions)
    return code


def shape(machine: Machine) -> tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...], tuple[int, ...]]:
    """Replicas, those being added, those being removed, and the ISR."""
    partition = machine.partition()
    return partition.replicas, partition.adding_replicas, partition.removing_replicas, partition.isr


def test_the_new_replicas_join_the_old_ones_first(machine: Machine) -> None:  # B45
    reassign(machine, 4, 5, 1)
    assert shape(machine) == ((4, 5, 1, 2, 3), (4, 5), (2, 3), (1, 2, 3))
    assert machine.partition().leader_id == 1


def test_it_ends_once_all_added_replicas_are_in_sync(machine: Machine) -> None:  # B45
    reassign(machine, 4, 5, 1)
    report_isr(machine, 1, 2, 3, 4)
    assert machine.partition().removing_replicas == (2, 3)
    report_isr(machine, 1, 2, 3, 4, 5)
    assert shape(machine) == ((4, 5, 1), (), (), (1, 4, 5))


def test_a_leader_that_is_removed_hands_over_in_a_later_epoch(machine: Machine) -> None:  # B14, B45
    epoch = machine.partition().leader_epoch
    reassign(machine, 4, 5)
    report_isr(machine, 1, 2, 3, 4, 5)
    assert (machine.partition().leader_id, machine.partition().leader_epoch > epoch) == (4, True)


def test_fewer_replicas_are_left_at_once_when_those_are_in_sync(machine: Machine) -> None:  # B45
    reassign(machine, 1, 2)
    assert shape(machine) == ((1, 2), (), (), (1, 2))


def test_fewer_replicas_wait_until_all_that_stay_are_in_sync(machine: Machine) -> None:  # B45
    report_isr(machine, 1, 3)
    reassign(machine, 1, 2)
    assert shape(machine) == ((1, 2, 3), (), (3,), (1, 3))
    report_isr(machine, 1, 2, 3)
    assert machine.partition().replicas == (1, 2)


def test_another_order_is_another_preferred_leader_and_no_more(machine: Machine) -> None:  # B45
    reassign(machine, 3, 2, 1)
    assert shape(machine) == ((3, 2, 1), (), (), (1, 2, 3))
    assert machine.partition().leader_id == 1


def test_replicas_keep_their_directories_and_new_ones_get_one_on_their_broker() -> None:
    machine = cluster(3)
    machine.start(4, directories=(directory(4, 0), directory(4, 1)))
    create(machine, (4,), name="older")  # in the first of the two
    create(machine, (1, 2))
    reassign(machine, 4, 2)
    assert machine.partition().directories == tuple(
        each.directory_id for each in (directory(4, 1), directory(2), directory(1))
    )


@pytest.mark.parametrize("replicas", [(), (1, 1), (1, 9), (-1,)])
def test_replicas_that_cannot_be_are_refused(machine: Machine, replicas: tuple[int, ...]) -> None:
    before = shape(machine)
    assert reassign(machine, *replicas) is ErrorCode.INVALID_REPLICA_ASSIGNMENT
    assert shape(machine) == before


def test_a_new_replica_needs_a_directory_that_works_and_an_old_one_does_not(machine: Machine) -> None:
    for broker_id in (2, 4):
        machine.heartbeat(broker_id, offline_directory_ids=(directory(broker_id).directory_id,))
    assert reassign(machine, 1, 2, 4) is ErrorCode.INVALID_REPLICA_ASSIGNMENT
    assert reassign(machine, 1, 2, 5) is ErrorCode.NONE


@pytest.mark.parametrize(("topic", "number"), [("absent", 0), ("orders", 1), ("orders", -1)])
def test_a_partition_that_is_not_there_is_refused_and_the_others_go_on(
    machine: Machine, topic: str, number: int
) -> None:
    wanted = (Reassignment(topic, number, (1,)), Reassignment("orders", 0, (4,)))
    response = machine.handle(AlterPartitionReassignmentsRequest(wanted))
    assert outcomes(response.partitions) == [ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.NONE]
    assert (machine.partition().adding_replicas, response.metadata_offset) == ((4,), len(machine.records))


# ---- Cancelling and replacing ----------------------------------------------------------------------------------------


def test_cancelling_restores_the_original_replicas(machine: Machine) -> None:  # B45
    reassign(machine, 4, 5)
    report_isr(machine, 1, 2, 3, 4)
    assert cancel(machine) is ErrorCode.NONE
    assert shape(machine) == ((1, 2, 3), (), (), (1, 2, 3))


def test_a_leader_that_was_being_added_hands_over_when_it_is_cancelled(machine: Machine) -> None:  # B45
    reassign(machine, 4, 5)
    report_isr(machine, 1, 2, 4)
    fence(machine, 1, 2)
    assert machine.partition().leader_id == 4
    machine.heartbeat(2)
    report_isr(machine, 2, 4)
    cancel(machine)
    assert (machine.partition().leader_id, shape(machine)) == (2, ((1, 2, 3), (), (), (2,)))


def test_without_a_reassignment_there_is_nothing_to_cancel(machine: Machine) -> None:
    assert cancel(machine) is ErrorCode.NO_REASSIGNMENT_IN_PROGRESS


def only_4_in_sync(unclean: str) -> Machine:
    """A partition of 1 and 2 on its way to 4, of which 4 alone is in sync."""
    machine = cluster()
    create(machine, (1, 2), configs={"unclean.leader.election.enable": unclean})
    reassign(machine, 4, 5)
    report_isr(machine, 1, 4)
    fence(machine, 1, 2)
    return machine


@pytest.mark.parametrize("is_4_running", [True, False])
def test_cancelling_loses_no_record_unless_that_is_allowed(is_4_running: bool) -> None:  # B42, B45
    machine = only_4_in_sync("false")
    if not is_4_running:
        fence(machine, 4)
        assert (machine.partition().isr, machine.partition().eligible_leader_replicas) == ((), (4,))
    before = shape(machine)
    assert cancel(machine) is ErrorCode.INVALID_REPLICA_ASSIGNMENT
    assert shape(machine) == before


def test_where_unclean_elections_are_allowed_cancelling_takes_a_replica_that_runs() -> None:  # B41, B45
    machine = only_4_in_sync("true")
    machine.heartbeat(2)
    assert cancel(machine) is ErrorCode.NONE
    partition = machine.partition()
    assert (partition.leader_id, shape(machine)) == (2, ((1, 2), (), (), (2,)))
    assert partition.leader_recovery_state is LeaderRecoveryState.RECOVERING


def test_another_reassignment_replaces_the_one_under_way(machine: Machine) -> None:  # B45
    reassign(machine, 4, 2)
    report_isr(machine, 1, 2, 3, 4)
    assert shape(machine)[0] == (4, 2)
    reassign(machine, 4, 1, 5)
    reassign(machine, 4, 3)
    assert shape(machine) == ((4, 3, 2), (3,), (2,), (2, 4))
    cancel(machine)
    assert shape(machine) == ((4, 2), (), (), (2, 4))


def test_a_replica_in_sync_that_only_the_replaced_one_was_adding_leaves_the_isr(
    machine: Machine,
) -> None:  # B45
    reassign(machine, 4, 5)
    report_isr(machine, 1, 2, 3, 4)
    assert reassign(machine, 1, 5) is ErrorCode.NONE
    assert shape(machine) == ((1, 5, 2, 3), (5,), (2, 3), (1, 2, 3))


def test_naming_the_original_replicas_is_a_cancel(machine: Machine) -> None:  # B45
    reassign(machine, 4, 5)
    assert reassign(machine, 1, 2, 3) is ErrorCode.NONE
    assert shape(machine) == ((1, 2, 3), (), (), (1, 2, 3))


def test_a_replacement_keeps_a_replica_that_holds_all_records() -> None:  # B45
    machine = only_4_in_sync("false")
    before = shape(machine)
    assert reassign(machine, 1, 5) is ErrorCode.INVALID_REPLICA_ASSIGNMENT
    assert shape(machine) == before
    assert reassign(machine, 1, 4) is ErrorCode.NONE


# ---- Listing ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("asked", "found"),
    [
        (None, ["orders-0", "orders-2", "payments-0"]),
        ((("orders", 2), ("orders", 1), ("absent", 0)), ["orders-2"]),
        ((), []),
    ],
)
def test_those_under_way_are_listed(asked: tuple[tuple[str, int], ...] | None, found: list[str]) -> None:
    machine = cluster()
    create(machine, (1,), name="payments")
    create(machine, (1,), (1,), (1,))
    wanted = [
        Reassignment(topic, number, (2,)) for topic, number in [("payments", 0), ("orders", 0), ("orders", 2)]
    ]
    machine.handle(AlterPartitionReassignmentsRequest(tuple(wanted)))
    partitions = None if asked is None else tuple(TopicPartition(*each) for each in asked)
    response = machine.handle(ListPartitionReassignmentsRequest(partitions))
    assert [f"{each.topic}-{each.partition}" for each in response.reassignments] == found


def test_what_is_listed_says_where_it_comes_from_and_goes(machine: Machine) -> None:
    reassign(machine, 4, 2)
    response = machine.handle(ListPartitionReassignmentsRequest())
    assert response.reassignments == (OngoingReassignment("orders", 0, (4, 2, 1, 3), (4,), (1, 3)),)


# ---- Any history -----------------------------------------------------------------------------------------------------

BROKERS = st.integers(1, 5)
STEPS = st.one_of(
    st.tuples(st.just("reassign"), st.lists(BROKERS, min_size=1, max_size=4, unique=True)),
    st.tuples(st.just("cancel"), st.just([])),
    st.tuples(st.just("isr"), st.lists(BROKERS, max_size=5, unique=True)),
    st.tuples(st.sampled_from(["fence", "unfence"]), st.lists(BROKERS, min_size=1, max_size=2, unique=True)),
)


@settings(max_examples=300)
@given(st.lists(STEPS, max_size=25), st.booleans())
def test_whatever_is_asked_a_replica_that_holds_all_records_stays_and_a_cancel_goes_back(
    steps: list[tuple[str, list[int]]], unclean: bool
) -> None:  # B45
    machine = cluster(5, BrokerConfig(unclean_leader_election_enable=unclean))
    create(machine, (1, 2, 3))
    original = {1, 2, 3}
    for step, brokers in steps:
        before = machine.partition()
        whole = {*before.isr, *before.eligible_leader_replicas}
        if step == "reassign":
            reassign(machine, *brokers)
        elif step == "cancel" and cancel(machine) is ErrorCode.NONE:
            assert set(machine.partition().replicas) == original
        elif step == "isr" and before.has_leader:
            running = [each for each in before.replicas if machine.image.brokers[each].is_active]
            in_sync = [each for each in running if each in [*brokers, before.leader_id]]
            report_isr(machine, *in_sync)
            whole |= set(in_sync)
        elif step in ("fence", "unfence"):
            for each in brokers:
                machine.heartbeat(each, want_fence=step == "fence")
        after = machine.partition()
        if not (after.adding_replicas or after.removing_replicas):
            original = set(after.replicas)
        assert set(after.replicas) - set(after.adding_replicas) == original
        assert set(after.isr) <= set(after.replicas)
        assert len(set(after.replicas)) == len(after.replicas) == len(after.directories)
        assert unclean or whole & {*after.isr, *after.eligible_leader_replicas}
