"""Leaders are put right from time to time (B46, A68), and soon where a broker is back (decision 027)."""

import pytest

from rayka.config.broker_config import BrokerConfig
from rayka.controller.controller_timers import ElectPreferredLeaders, ElectReturnedLeaders
from rayka.controller.preferred_leaders import ELECTIONS_PER_RUN_MAX
from rayka.metadata.metadata_records import (
    BrokerRegistrationChangeRecord,
    MetadataRecord,
    PartitionChangeRecord,
    PartitionRecord,
    UnregisterBrokerRecord,
)
from rayka.protocol.membership import LeaderRecoveryState
from tests.controller.support import WITH_ELR, Machine
from tests.metadata.support import ORDERS, active, partition, registered, topic, unfenced

INTERVAL_MS = 300_000


def machine(*records: MetadataRecord, config: BrokerConfig | None = None) -> Machine:
    return Machine(config, [*WITH_ELR, *active(1, 2), topic(), *records])


def moved(number: int, leader_id: int = 2) -> PartitionRecord:
    """Broker 1 is preferred, another one leads."""
    return partition(number, (1, 2), leader_id=leader_id)


def elected(number: int) -> PartitionChangeRecord:
    return PartitionChangeRecord(topic_id=ORDERS, partition=number, leader_id=1)


def test_the_preferred_replica_takes_its_lead_back() -> None:  # B46
    controller = machine(moved(0), partition(1, (2, 1)), partition(2, (1, 2)))
    assert controller.written_by(ElectPreferredLeaders(1)) == [elected(0)]
    assert controller.written_by(ElectPreferredLeaders(1)) == []
    assert controller.written_by(ElectPreferredLeaders(2)) == []


@pytest.mark.parametrize(("moved_count", "is_balanced"), [(2, False), (3, True)])
def test_some_leads_may_be_with_others(moved_count: int, is_balanced: bool) -> None:
    config = BrokerConfig(leader_imbalance_per_broker_percentage=20)
    partitions = [moved(number, 2 if number < moved_count else 1) for number in range(10)]
    written = machine(*partitions, config=config).written_by(ElectPreferredLeaders(1))
    assert written == ([elected(number) for number in range(moved_count)] if is_balanced else [])


def test_a_preferred_replica_that_is_not_in_sync_or_does_not_run_takes_nothing_back() -> None:  # B46
    behind = partition(0, (1, 2), isr=(2,), leader_id=2)
    fenced = [registered(3), partition(1, (3, 2), isr=(3, 2), leader_id=2)]
    controller = machine(behind, *fenced)
    assert controller.written_by(ElectPreferredLeaders(1)) == []
    assert controller.written_by(ElectPreferredLeaders(3)) == []


def test_the_operator_may_want_leads_to_stay() -> None:
    config = BrokerConfig(auto_leader_rebalance_enable=False)
    assert machine(moved(0), config=config).written_by(ElectPreferredLeaders(1)) == []


@pytest.mark.parametrize("is_rebalanced", [True, False])
def test_a_partition_without_a_leader_gets_one_when_unclean_elections_become_allowed(
    is_rebalanced: bool,
) -> None:  # B40, A68
    config = BrokerConfig(auto_leader_rebalance_enable=is_rebalanced)
    controller = machine(partition(0, (1, 3), isr=(3,), leader_id=-1), config=config)
    assert controller.written_by(ElectPreferredLeaders(1)) == []
    controller.configure("orders", "unclean.leader.election.enable", "true")
    assert controller.written_by(ElectPreferredLeaders(1)) == [
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
    first = len(controller.written_by(ElectPreferredLeaders(1)))
    assert first == ELECTIONS_PER_RUN_MAX
    # One of a thousand is few enough to stay where it is.
    assert controller.handle(ElectPreferredLeaders(1)) is False


def test_there_is_more_to_do_while_too_many_are_left() -> None:  # A68
    config = BrokerConfig(leader_imbalance_per_broker_percentage=0)
    controller = machine(*(moved(number) for number in range(ELECTIONS_PER_RUN_MAX + 1)), config=config)
    assert [controller.handle(ElectPreferredLeaders(1)) for _ in range(3)] == [True, False, False]
    assert {each.leader_id for each in controller.image.topics["orders"].partitions} == {1}


# ---- Brokers that are back ----


class Returns:
    """Broker 1 is preferred for `count` partitions that are led by broker 2, and has just been unfenced."""

    def __init__(
        self, count: int = 10, isr: tuple[int, ...] = (1, 2), config: BrokerConfig | None = None
    ) -> None:
        partitions = [partition(each, (1, 2), isr=isr, leader_id=2) for each in range(count)]
        records = [*WITH_ELR, registered(1), *active(2), topic(), *partitions, unfenced(1)]
        self.machine = Machine(config, records)

    def at(self, now_ms: int) -> int:
        """How many leads the brokers that are back take then."""
        machine = self.machine
        machine.now_ms = now_ms
        ids = machine.handle(ElectReturnedLeaders())
        return sum(len(machine.written_by(ElectPreferredLeaders(broker_id))) for broker_id in ids)

    def join(self, *numbers: int) -> None:
        """Broker 1 is in sync for these."""
        for number in numbers:
            self.machine.replay(PartitionChangeRecord(topic_id=ORDERS, partition=number, isr=(1, 2)))

    def leave_and_return(self) -> None:
        """Broker 2 leads all, until broker 1 is in sync again, which is at once."""
        count = len(self.machine.image.topics["orders"].partitions)
        for number in range(count):
            change = PartitionChangeRecord(topic_id=ORDERS, partition=number, leader_id=2, isr=(2,))
            self.machine.replay(change)
        fenced = BrokerRegistrationChangeRecord(broker_id=1, broker_epoch=1, is_fenced=True)
        self.machine.replay(fenced, unfenced(1))
        self.join(*range(count))


def test_a_broker_that_is_back_and_in_sync_takes_its_leads_at_once() -> None:
    returns = Returns()
    assert returns.at(0) == 10
    assert returns.at(1_000) == 0


def test_a_broker_that_is_back_takes_each_lead_when_it_is_in_sync_for_it() -> None:
    returns = Returns(isr=(2,))
    assert returns.at(0) == 0
    returns.join(3, 4, 5)
    assert returns.at(1_000) == 3
    returns.join(0, 1, 2, 6, 7)
    assert returns.at(2_000) == 5


def test_a_broker_that_leads_enough_is_back_no_more() -> None:
    config = BrokerConfig(leader_imbalance_per_broker_percentage=20)
    returns = Returns(isr=(2,), config=config)
    returns.join(*range(8))
    assert returns.at(0) == 8
    returns.join(8, 9)
    assert returns.at(1_000) == 0


def test_a_broker_that_has_all_its_leads_takes_none_that_are_moved_later() -> None:
    returns = Returns()
    assert [returns.at(0), returns.at(1_000)] == [10, 0]
    for number in range(10):
        returns.machine.replay(PartitionChangeRecord(topic_id=ORDERS, partition=number, leader_id=2))
    assert returns.at(2_000) == 0


def test_a_broker_that_goes_and_comes_again_waits_for_the_timer() -> None:
    returns = Returns()
    assert returns.at(0) == 10
    returns.leave_and_return()
    assert [returns.at(now_ms) for now_ms in (1_000, INTERVAL_MS - 1, INTERVAL_MS)] == [0, 0, 0]
    assert len(returns.machine.written_by(ElectPreferredLeaders(1))) == 10


def test_an_interval_later_a_broker_that_is_back_waits_no_more() -> None:
    returns = Returns()
    assert returns.at(0) == 10
    returns.leave_and_return()
    assert returns.at(INTERVAL_MS) == 10


def test_a_broker_that_was_forgotten_is_another_one_when_it_comes_and_waits_for_no_timer() -> None:
    returns = Returns()
    assert returns.at(0) == 10
    returns.leave_and_return()
    returns.machine.replay(UnregisterBrokerRecord(broker_id=1, broker_epoch=1), registered(1), unfenced(1))
    assert returns.at(1_000) == 10


def test_a_broker_that_left_before_it_took_anything_may_take_its_leads_when_it_is_back() -> None:
    returns = Returns(isr=(2,))
    assert returns.at(0) == 0
    returns.leave_and_return()
    assert returns.at(1_000) == 10


def test_a_broker_that_is_long_in_coming_into_sync_waits_for_the_timer() -> None:
    returns = Returns(isr=(2,))
    assert [returns.at(now_ms) for now_ms in (0, INTERVAL_MS)] == [0, 0]
    returns.join(*range(10))
    assert returns.at(INTERVAL_MS + 1) == 0


def test_a_broker_that_shuts_down_takes_nothing() -> None:  # H5
    returns = Returns()
    returns.machine.replay(
        BrokerRegistrationChangeRecord(broker_id=1, broker_epoch=1, is_in_controlled_shutdown=True)
    )
    assert returns.at(0) == 0


def test_partitions_without_a_leader_yet_keep_a_broker_waiting() -> None:
    """As when a whole cluster starts, and the only replica in sync has yet to come."""
    returns = Returns(count=0)
    returns.machine.replay(partition(0, (1, 3), isr=(3,), leader_id=-1))
    assert returns.at(0) == 0
    returns.machine.replay(*active(3), PartitionChangeRecord(topic_id=ORDERS, partition=0, leader_id=3))
    returns.machine.replay(PartitionChangeRecord(topic_id=ORDERS, partition=0, isr=(1, 3)))
    assert returns.at(1_000) == 1


def test_for_a_new_controller_all_brokers_may_be_back() -> None:  # A67
    returns = Returns(isr=(2,))
    assert returns.at(0) == 0
    returns.machine.change_controller()
    returns.join(*range(10))
    assert returns.at(INTERVAL_MS) == 10
