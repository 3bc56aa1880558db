"""Leaders elected because a caller asks (B46)."""

import pytest

from rayka.errors import ErrorCode
from rayka.ids import TopicPartition
from rayka.protocol.membership import LeaderRecoveryState
from rayka.protocol.topics import ElectionType, ElectLeadersRequest
from tests.controller.admin_support import cluster, create, fence, outcomes, report_isr
from tests.controller.support import Machine

ORDERS_0 = TopicPartition("orders", 0)


@pytest.fixture
def machine() -> Machine:
    """Three brokers; a partition that 2 leads though 1 is preferred, and 1 runs again but is not in sync."""
    machine = cluster(3)
    create(machine, (1, 2, 3))
    fence(machine, 1)
    machine.heartbeat(1)
    return machine


def elect(machine: Machine, kind: ElectionType, *partitions: TopicPartition) -> list[ErrorCode]:
    return outcomes(machine.handle(ElectLeadersRequest(kind, partitions)).partitions)


def refusal(machine: Machine, kind: ElectionType) -> str:
    """What is said of the partition."""
    (result,) = machine.handle(ElectLeadersRequest(kind, (ORDERS_0,))).partitions
    assert (result.topic, result.partition) == ("orders", 0)
    message: str = result.error_message
    return message


def test_the_preferred_replica_leads_again_once_it_is_in_sync(machine: Machine) -> None:  # B46
    report_isr(machine, 2, 3, 1)
    epoch = machine.partition().leader_epoch
    assert elect(machine, ElectionType.PREFERRED, ORDERS_0) == [ErrorCode.NONE]
    assert (machine.partition().leader_id, machine.partition().leader_epoch) == (1, epoch + 1)


def test_a_preferred_replica_that_is_not_in_sync_is_not_available(machine: Machine) -> None:  # B46
    assert elect(machine, ElectionType.PREFERRED, ORDERS_0) == [ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE]
    assert machine.partition().leader_id == 2
    assert (
        refusal(machine, ElectionType.PREFERRED)
        == "orders-0: its preferred replica, broker 1, is not in sync"
    )
    fence(machine, 1)
    assert (
        refusal(machine, ElectionType.PREFERRED) == "orders-0: its preferred replica, broker 1, does not run"
    )


def test_a_preferred_replica_that_leads_needs_no_election(machine: Machine) -> None:  # B46
    create(machine, (3,), name="payments")
    codes = elect(machine, ElectionType.PREFERRED, TopicPartition("payments", 0))
    assert codes == [ErrorCode.ELECTION_NOT_NEEDED]


@pytest.mark.parametrize("name", [TopicPartition("absent", 0), TopicPartition("orders", 1)])
def test_a_partition_that_is_not_there_is_refused_and_the_others_go_on(
    machine: Machine, name: TopicPartition
) -> None:
    report_isr(machine, 2, 3, 1)
    codes = elect(machine, ElectionType.PREFERRED, name, ORDERS_0)
    assert codes == [ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.NONE]


def test_of_all_partitions_those_that_are_led_as_wanted_have_no_result(machine: Machine) -> None:  # B46
    create(machine, (3,), name="payments")
    create(machine, (3, 1), (1, 3), name="clicks")
    fence(machine, 3)
    machine.heartbeat(3)
    report_isr(machine, 1, 3, name="clicks", number=0)
    response = machine.handle(ElectLeadersRequest(ElectionType.PREFERRED))
    assert [(each.topic, each.partition, each.error_code) for each in response.partitions] == [
        ("clicks", 0, ErrorCode.NONE),
        ("orders", 0, ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE),
    ]
    assert response.metadata_offset == len(machine.records)


def test_an_unclean_election_takes_any_replica_that_runs(machine: Machine) -> None:  # B41, B46
    fence(machine, 2, 3)
    assert not machine.partition().has_leader
    assert elect(machine, ElectionType.UNCLEAN, ORDERS_0) == [ErrorCode.NONE]
    partition = machine.partition()
    assert (partition.leader_id, partition.isr) == (1, (1,))
    assert partition.leader_recovery_state is LeaderRecoveryState.RECOVERING


def test_where_no_replica_runs_there_is_no_unclean_election_either(machine: Machine) -> None:  # B46
    fence(machine, 1, 2, 3)
    codes = elect(machine, ElectionType.UNCLEAN, ORDERS_0)
    assert codes == [ErrorCode.ELIGIBLE_LEADERS_NOT_AVAILABLE]
    assert refusal(machine, ElectionType.UNCLEAN) == (
        "orders-0: none of its replicas [1, 2, 3] runs with the directory that holds it; start one that does, or"
        " delete the topic if what they held is lost"
    )


def test_a_partition_that_is_led_needs_no_unclean_election(machine: Machine) -> None:  # B46
    assert elect(machine, ElectionType.UNCLEAN, ORDERS_0) == [ErrorCode.ELECTION_NOT_NEEDED]
