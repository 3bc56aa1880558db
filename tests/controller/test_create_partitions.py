"""More partitions for topics that exist."""

import pytest

from rayka.controller.topic_control import TOPIC_PARTITIONS_MAX
from rayka.errors import ErrorCode
from rayka.metadata.metadata_records import PartitionRecord
from rayka.protocol.topics import (
    AlterPartitionReassignmentsRequest,
    CreatePartitionsRequest,
    NewPartitions,
    Reassignment,
)
from rayka.shard.shard import RECORDS_PER_BATCH_MAX
from tests.controller.admin_support import cluster, create, fence
from tests.controller.support import Machine


@pytest.fixture
def machine() -> Machine:
    """Three brokers, and a topic of two partitions with two replicas."""
    machine = cluster(3)
    create(machine, (1, 2), (2, 3))
    return machine


def extend(machine: Machine, *topics: NewPartitions) -> list[ErrorCode]:
    response = machine.handle(CreatePartitionsRequest(topics))
    for each in response.topics:
        assert (each.error_message == "") == (each.error_code is ErrorCode.NONE)
    return [each.error_code for each in response.topics]


def test_new_partitions_follow_the_old_ones_with_as_many_replicas(machine: Machine) -> None:
    written = machine.written_by(CreatePartitionsRequest((NewPartitions("orders", 5),)))
    assert [(type(each), each.partition, len(each.replicas)) for each in written] == [  # type: ignore[union-attr]
        (PartitionRecord, number, 2) for number in (2, 3, 4)
    ]
    assert all(each.isr == each.replicas for each in machine.image.topics["orders"].partitions)


def test_the_response_says_from_which_offset_on_brokers_know_them(machine: Machine) -> None:
    response = machine.handle(CreatePartitionsRequest((NewPartitions("orders", 3),)))
    assert response.metadata_offset == len(machine.records)
    assert response.topics[0].topic_id == machine.image.topics["orders"].topic_id


@pytest.mark.parametrize("count", [2, 1, 0, -1, TOPIC_PARTITIONS_MAX + 1])
def test_partitions_are_only_added(machine: Machine, count: int) -> None:
    assert extend(machine, NewPartitions("orders", count)) == [ErrorCode.INVALID_PARTITIONS]


def test_brokers_may_be_named(machine: Machine) -> None:
    assert extend(machine, NewPartitions("orders", 4, ((3, 1), (2, 1)))) == [ErrorCode.NONE]
    partitions = machine.image.topics["orders"].partitions
    assert [(each.replicas, each.leader_id) for each in partitions[2:]] == [((3, 1), 3), ((2, 1), 2)]


@pytest.mark.parametrize("assignments", [((3, 1),), ((3, 1), (2,)), ((3, 1), (2, 9)), ((3, 1), (2, 2)), ()])
def test_brokers_that_cannot_be_are_refused(
    machine: Machine, assignments: tuple[tuple[int, ...], ...]
) -> None:
    assert extend(machine, NewPartitions("orders", 4, assignments)) == [ErrorCode.INVALID_REPLICA_ASSIGNMENT]
    assert len(machine.image.topics["orders"].partitions) == 2


def test_brokers_that_are_not_known_are_named_with_those_that_are(machine: Machine) -> None:
    wanted = NewPartitions("orders", 4, ((3, 1), (9, 8)))
    (result,) = machine.handle(CreatePartitionsRequest((wanted,))).topics
    assert result.name == "orders"
    assert "brokers [8, 9] are not registered; expected some of [1, 2, 3]" in result.error_message


def test_of_the_replicas_named_one_must_be_able_to_lead(machine: Machine) -> None:
    fence(machine, 3)
    assert extend(machine, NewPartitions("orders", 3, ((3, 1),))) == [ErrorCode.NONE]
    assert (machine.partition(number=2).leader_id, machine.partition(number=2).isr) == (1, (1,))
    fence(machine, 1)
    assert extend(machine, NewPartitions("orders", 4, ((3, 1),))) == [ErrorCode.INVALID_REPLICA_ASSIGNMENT]


def test_a_reassignment_under_way_does_not_count_what_it_removes(machine: Machine) -> None:
    request = AlterPartitionReassignmentsRequest((Reassignment("orders", 0, (1, 3)),))
    machine.handle(request)
    assert len(machine.partition().replicas) == 3
    extend(machine, NewPartitions("orders", 3))
    assert len(machine.partition(number=2).replicas) == 2


def test_a_topic_that_is_refused_does_not_stop_the_others(machine: Machine) -> None:
    create(machine, (1,), name="payments")
    codes = extend(
        machine, NewPartitions("absent", 2), NewPartitions("orders", 1), NewPartitions("payments", 2)
    )
    assert codes == [ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.INVALID_PARTITIONS, ErrorCode.NONE]
    assert len(machine.image.topics["payments"].partitions) == 2


def test_what_one_request_adds_is_bounded_by_the_records_of_a_batch(machine: Machine) -> None:  # A68
    create(machine, (1,), name="payments")
    codes = extend(machine, NewPartitions("orders", 2 + RECORDS_PER_BATCH_MAX), NewPartitions("payments", 2))
    assert codes == [ErrorCode.NONE, ErrorCode.INVALID_PARTITIONS]
