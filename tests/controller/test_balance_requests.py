"""Balances asked of the controller: plans from the image and the reports, and their first moves begun."""

import pytest

from rayka.errors import BrokerNotAvailable, InvalidRequest
from rayka.protocol.load import BalanceRequest, BalanceResponse, LoadReport, PartitionLoad
from rayka.protocol.topics import CreateTopicsRequest, NewTopic
from tests.controller.admin_support import cluster, create, fence
from tests.controller.support import Machine
from tests.controller.test_healing import reassign

MB = 1_000_000


@pytest.fixture
def machine() -> Machine:
    """Four brokers, and a topic of twelve partitions on the first three, of one megabyte each."""
    machine = cluster(4)
    create(machine, *((1 + number % 3,) for number in range(12)))
    for broker_id in (1, 2, 3):
        machine.heartbeat(broker_id, load=LoadReport(1_000, 0, 90 * MB, 4 * MB, 4, 4))
    machine.heartbeat(4, load=LoadReport(1_000, free_bytes=90 * MB))
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


def test_beside_a_reassignment_nothing_begins_and_its_name_is_told(machine: Machine) -> None:
    reassign(machine, (4,), number=5)
    with pytest.raises(InvalidRequest, match=r"reassignment of orders-5 is under way"):
        balance(machine, moves=1)
    assert len(balance(machine).moves) == 2  # a plan alone counts on its end


def test_a_balance_asked_for_again_is_the_one_under_way(machine: Machine) -> None:
    first = balance(machine, moves=2)
    count = len(machine.records)
    again = balance(machine, moves=2)
    assert (first.is_joined, first.begun_count, again.is_joined, again.begun_count) == (False, 2, True, 2)
    assert (again.moves, len(machine.records)) == (first.moves, count)


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
