"""Brokers whose machine is about to go: others lead, and nothing new is placed there (decision 073)."""

import pytest

from rayka.controller.controller_timers import ElectPreferredLeaders, ElectReturnedLeaders
from rayka.errors import ErrorCode
from rayka.ids import TopicPartition
from rayka.metadata.metadata_records import ConfigRecord
from rayka.protocol.configs import (
    DRAIN_DEADLINE,
    AlterConfigOp,
    AlteredResource,
    ConfigChange,
    IncrementalAlterConfigsRequest,
    ResourceType,
)
from rayka.protocol.topics import (
    AlterPartitionReassignmentsRequest,
    ElectionType,
    ElectLeadersRequest,
    NewTopic,
    Reassignment,
)
from tests.controller.admin_support import cluster, create, fence, report_isr
from tests.controller.support import Machine

NOT_KNOWN = "0"  # when the machine goes


@pytest.fixture
def machine() -> Machine:
    """Three brokers, and two partitions that broker 1 leads."""
    machine = cluster(3)
    create(machine, (1, 2, 3), (1, 3, 2))
    return machine


def drain(machine: Machine, *broker_ids: int, deadline: str | None = NOT_KNOWN) -> None:
    op = AlterConfigOp.DELETE if deadline is None else AlterConfigOp.SET
    change = ConfigChange(DRAIN_DEADLINE, op, deadline or "")
    altered = tuple(AlteredResource(ResourceType.BROKER, str(each), (change,)) for each in broker_ids)
    results = machine.handle(IncrementalAlterConfigsRequest(altered)).resources
    assert [each.error_code for each in results] == [ErrorCode.NONE] * len(broker_ids)


def leaders(machine: Machine, name: str = "orders") -> list[int]:
    return [each.leader_id for each in machine.image.topics[name].partitions]


def test_others_in_sync_lead_at_once_and_the_replica_stays_in_sync(machine: Machine) -> None:
    epoch = machine.partition().leader_epoch
    drain(machine, 1)
    assert leaders(machine) == [2, 3]
    assert machine.partition().leader_epoch == epoch + 1
    assert machine.partition().isr == (1, 2, 3)


def test_of_two_machines_that_go_neither_leads(machine: Machine) -> None:
    count = len(machine.records)
    drain(machine, 1, 2)
    assert leaders(machine) == [3, 3]
    assert len(machine.records) - count == 4, "no lead goes from one to the other on the way"


def test_where_no_other_replica_is_in_sync_it_leads_on_until_one_is(machine: Machine) -> None:
    report_isr(machine, 1)
    drain(machine, 1)
    assert leaders(machine) == [1, 3]
    report_isr(machine, 1, 2)
    assert leaders(machine) == [2, 3]


def test_it_is_not_elected_again_while_another_can_be(machine: Machine) -> None:
    drain(machine, 1)
    fence(machine, 2)
    assert leaders(machine) == [3, 3]
    fence(machine, 3)
    assert leaders(machine) == [1, 1], "the only one that runs"


def test_an_operator_cannot_have_it_lead(machine: Machine) -> None:
    drain(machine, 1)
    response = machine.handle(ElectLeadersRequest(ElectionType.PREFERRED, (TopicPartition("orders", 0),)))
    (result,) = response.partitions
    assert result.error_code is ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE
    assert result.error_message.endswith("its preferred replica, broker 1, is on a machine that drains")
    assert machine.handle(ElectPreferredLeaders(1)) is False
    assert leaders(machine) == [2, 3]


def test_what_a_controller_that_died_has_left_is_done_when_it_is_said_again(machine: Machine) -> None:
    machine.replay(
        ConfigRecord(
            resource_type=ResourceType.BROKER, resource_name="1", name=DRAIN_DEADLINE, value=NOT_KNOWN
        )
    )
    machine.change_controller()
    assert leaders(machine) == [1, 1]
    drain(machine, 1)
    assert leaders(machine) == [2, 3]


def test_a_machine_that_stays_after_all_gets_its_leads_back(machine: Machine) -> None:
    machine.controller.on_active(now_ms=0, next_offset=len(machine.records))
    assert machine.handle(ElectReturnedLeaders()) == []
    drain(machine, 1)
    machine.now_ms += 1_000_000
    assert machine.handle(ElectReturnedLeaders()) == []
    drain(machine, 1, deadline=None)
    assert machine.handle(ElectReturnedLeaders()) == [1]
    machine.handle(ElectPreferredLeaders(1))
    assert leaders(machine) == [1, 1]


def test_a_broker_that_starts_on_a_machine_that_goes_takes_no_leads_back(machine: Machine) -> None:
    drain(machine, 1)
    fence(machine, 1)
    machine.heartbeat(1)
    report_isr(machine, 2, 3, 1)
    assert machine.handle(ElectReturnedLeaders()) == []


def test_no_new_replica_is_placed_there(machine: Machine) -> None:
    machine.start(4)
    drain(machine, 1)
    machine.create(NewTopic("clicks", partition_count=6, replication_factor=3))
    assert all(each.replicas for each in machine.image.topics["clicks"].partitions)
    assert all(1 not in each.replicas for each in machine.image.topics["clicks"].partitions)
    wanted = (Reassignment("clicks", 0, (1, 2, 3)),)
    (result,) = machine.handle(AlterPartitionReassignmentsRequest(wanted)).partitions
    assert result.error_code is ErrorCode.INVALID_REPLICA_ASSIGNMENT


def test_what_is_said_of_all_brokers_is_said_of_none(machine: Machine) -> None:
    change = ConfigChange(DRAIN_DEADLINE, AlterConfigOp.SET, NOT_KNOWN)
    machine.handle(IncrementalAlterConfigsRequest((AlteredResource(ResourceType.BROKER, "", (change,)),)))
    assert leaders(machine) == [1, 1]
