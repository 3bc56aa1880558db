"""Leaders are put right from time to time (B46, A68)."""

import pytest

from rayka.config import BrokerConfig
from rayka.controller.balancing import ELECTIONS_PER_RUN_MAX
from rayka.controller.controller import BalanceLeaders
from rayka.metadata.records import MetadataRecord, PartitionChangeRecord, PartitionRecord
from rayka.protocol.replication import LeaderRecoveryState
from tests.controller.support import WITH_ELR, Machine
from tests.metadata.support import ORDERS, active, partition, registered, topic


def machine(*records: MetadataRecord, config: BrokerConfig | None = None) -> Machine:
    return Machine(config, [*WITH_ELR, *active(1, 2), topic(), *records])


def moved(number: int, leader_id: int = 2) -> PartitionRecord:
    """Broker 1 is preferred, another one leads."""
    return partition(number, (1, 2), leader_id=leader_id)


def elected(number: int) -> PartitionChangeRecord:
    return PartitionChangeRecord(topic_id=ORDERS, partition=number, leader_id=1)


def test_the_preferred_replica_takes_its_lead_back() -> None:  # B46
    controller = machine(moved(0), partition(1, (2, 1)), partition(2, (1, 2)))
    assert controller.written_by(BalanceLeaders(1)) == [elected(0)]
    assert controller.written_by(BalanceLeaders(1)) == []
    assert controller.written_by(BalanceLeaders(2)) == []


@pytest.mark.parametrize(("moved_count", "is_balanced"), [(2, False), (3, True)])
def test_some_leads_may_be_with_others(moved_count: int, is_balanced: bool) -> None:
    config = BrokerConfig(leader_imbalance_per_broker_percentage=20)
    partitions = [moved(number, 2 if number < moved_count else 1) for number in range(10)]
    written = machine(*partitions, config=config).written_by(BalanceLeaders(1))
    assert written == ([elected(number) for number in range(moved_count)] if is_balanced else [])


def test_a_preferred_replica_that_is_not_in_sync_or_does_not_run_takes_nothing_back() -> None:  # B46
    behind = partition(0, (1, 2), isr=(2,), leader_id=2)
    fenced = [registered(3), partition(1, (3, 2), isr=(3, 2), leader_id=2)]
    controller = machine(behind, *fenced)
    assert controller.written_by(BalanceLeaders(1)) == []
    assert controller.written_by(BalanceLeaders(3)) == []


def test_the_operator_may_want_leads_to_stay() -> None:
    config = BrokerConfig(auto_leader_rebalance_enable=False)
    assert machine(moved(0), config=config).written_by(BalanceLeaders(1)) == []


@pytest.mark.parametrize("is_rebalanced", [True, False])
def test_a_partition_without_a_leader_gets_one_when_unclean_elections_become_allowed(
    is_rebalanced: bool,
) -> None:  # B40, A68
    config = BrokerConfig(auto_leader_rebalance_enable=is_rebalanced)
    controller = machine(partition(0, (1, 3), isr=(3,), leader_id=-1), config=config)
    assert controller.written_by(BalanceLeaders(1)) == []
    controller.configure("orders", "unclean.leader.election.enable", "true")
    assert controller.written_by(BalanceLeaders(1)) == [
        PartitionChangeRecord(
            topic_id=ORDERS,
            partition=0,
            leader_id=1,
            isr=(1,),
            leader_recovery_state=LeaderRecoveryState.RECOVERING,
        )
    ]


def test_one_run_writes_a_bounded_number_of_records() -> None:  # A68
    controller = machine(*(moved(number) for number in range(ELECTIONS_PER_RUN_MAX + 1)))
    first = len(controller.written_by(BalanceLeaders(1)))
    assert first == ELECTIONS_PER_RUN_MAX
    # One of a thousand is few enough to stay where it is.
    assert controller.handle(BalanceLeaders(1)) is False


def test_there_is_more_to_do_while_too_many_are_left() -> None:  # A68
    config = BrokerConfig(leader_imbalance_per_broker_percentage=0)
    controller = machine(*(moved(number) for number in range(ELECTIONS_PER_RUN_MAX + 1)), config=config)
    assert [controller.handle(BalanceLeaders(1)) for _ in range(3)] == [True, False, False]
    assert {each.leader_id for each in controller.image.topics["orders"].partitions} == {1}
