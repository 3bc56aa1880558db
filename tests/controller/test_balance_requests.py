"""Balances asked of the controller: plans from the image and the reports, and their first moves begun."""

import pytest

from rayka.errors import BrokerNotAvailable, InvalidRequest
from rayka.protocol.balance import BalanceRequest, BalanceResponse
from rayka.protocol.load import LoadReport, PartitionLoad
from rayka.protocol.topics import CreateTopicsRequest, NewTopic
from tests.controller.admin_support import cluster, create, fence, report_isr
from tests.controller.support import Machine

MB = 1_000_000


@pytest.fixture
def machine() -> Machine:
    """Four brokers, and a topic of twelve partitions on the first three, of one megabyte each."""
    machine = cluster(4)
    create(machine, *((1 + number % 3,) for number in range(12)))
    for broker_id in (1, 2, 3):
        machine.heartbeat(broker_id, load=LoadReport(1_000, 0, 0, 4 * MB, 4, 4))
    machine.heartbeat(4, load=LoadReport(1_000))
    return machine


def balance(machine: Machine, moves: int = 0) -> BalanceResponse:
    response: BalanceResponse = machine.handle(BalanceRequest(moves))
    return response


def test_a_plan_alone_writes_nothing(machine: Machine) -> None:
    count = len(machine.records)
    plan = balance(machine)
    assert [(each.new_replicas, each.copied_bytes, each.goal) for each in plan.moves] == [
        ((4,), MB, "size")
    ] * 3
    assert [each.size_bytes for each in plan.before] == [4 * MB, 4 * MB, 4 * MB, 0]
    assert [each.size_bytes for each in plan.after] == [3 * MB] * 4
    assert (plan.begun_count, len(machine.records)) == (0, count)


def test_so_many_moves_begin_and_the_next_balance_goes_on(machine: Machine) -> None:
    first = balance(machine, moves=2)
    assert first.begun_count == 2
    for each in first.moves[:2]:
        partition = machine.partition(number=each.partition)
        assert (partition.adding_replicas, partition.removing_replicas) == ((4,), each.replicas)
        report_isr(machine, *partition.replicas, number=each.partition)
    held = machine.controller.image(len(machine.records)).topics["orders"].partitions
    for broker_id in (1, 2, 3, 4):
        count = sum(each.replicas == (broker_id,) for each in held)
        machine.heartbeat(broker_id, load=LoadReport(1_000, 0, 0, count * MB, count, count))
    assert balance(machine, moves=2).begun_count == 1


def test_beside_a_reassignment_nothing_begins_and_its_name_is_told(machine: Machine) -> None:
    begun = balance(machine, moves=1).moves[0]
    with pytest.raises(
        InvalidRequest, match=rf"reassignment of orders-{begun.partition} to \[4\] is under way"
    ):
        balance(machine, moves=1)
    assert len(balance(machine).moves) == 2  # a plan alone counts on its end


def test_brokers_that_are_fenced_or_cordoned_get_nothing(machine: Machine) -> None:
    fence(machine, 4)
    assert balance(machine).moves == ()


def test_a_broker_that_has_not_reported_is_waited_for(machine: Machine) -> None:
    machine.restart(4)
    machine.heartbeat(4)
    with pytest.raises(BrokerNotAvailable, match=r"brokers \[4\] have not reported"):
        balance(machine)


def test_partitions_that_brokers_name_count_by_what_they_say(machine: Machine) -> None:
    topic_id = machine.image.topics["orders"].topic_id
    large = PartitionLoad(topic_id, 0, True, 97 * MB)
    machine.heartbeat(1, load=LoadReport(1_000, 0, 0, 100 * MB, 4, 4, partitions=(large,)))
    assert balance(machine).before[0].size_bytes == 100 * MB


def test_internal_topics_stay() -> None:
    machine = cluster(2)
    internal = NewTopic("__consumer_offsets", assignments=((1,),) * 6)
    epoch = machine.image.brokers[1].broker_epoch
    machine.handle(CreateTopicsRequest((internal,), broker_id=1, broker_epoch=epoch))
    assert len(machine.image.topics["__consumer_offsets"].partitions) == 6
    machine.heartbeat(1, load=LoadReport(1_000, 0, 0, 6 * MB, 6, 6))
    machine.heartbeat(2, load=LoadReport(1_000))
    assert balance(machine).moves == ()
