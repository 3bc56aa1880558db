"""What the active controller keeps of the brokers' reports, and what it answers."""

from uuid import UUID

import pytest

from rayka.controller.broker_loads import REPORTS_MAX
from rayka.protocol.load import (
    BrokerLoad,
    DescribeLoadRequest,
    DescribeLoadResponse,
    LoadReport,
    PartitionLoad,
)
from rayka.protocol.topics import UnregisterBrokerRequest
from tests.controller.admin_support import cluster, create, fence
from tests.controller.support import Machine


@pytest.fixture
def machine() -> Machine:
    """Three brokers, and a topic of one partition on the first two."""
    machine = cluster(3)
    create(machine, (1, 2))
    return machine


def described(machine: Machine, *topics: str) -> DescribeLoadResponse:
    response: DescribeLoadResponse = machine.handle(DescribeLoadRequest(topics or None))
    return response


def load(machine: Machine, broker_id: int = 1) -> BrokerLoad:
    return described(machine).brokers[broker_id - 1]


def of_orders(machine: Machine, number: int = 0) -> PartitionLoad:
    return PartitionLoad(machine.image.topics["orders"].topic_id, number, True, 700, 10, 1)


def test_a_broker_that_has_not_reported_is_unknown(machine: Machine) -> None:
    assert load(machine) == BrokerLoad(1, -1, -1, LoadReport(0))


def test_rates_are_means_over_the_time_and_sizes_are_the_newest(machine: Machine) -> None:
    machine.heartbeat(1, number=1, load=LoadReport(3_000, bytes_in=400, size_bytes=5))
    machine.now_ms = 1_000
    machine.heartbeat(1, number=2, load=LoadReport(1_000, bytes_in=800, size_bytes=9))
    machine.now_ms = 1_250
    found = load(machine)
    assert (found.age_ms, found.window_ms) == (250, 4_000)
    assert (found.report.bytes_in, found.report.size_bytes) == (500, 9)


def test_the_window_is_bounded(machine: Machine) -> None:
    for number in range(REPORTS_MAX * 3):
        machine.heartbeat(1, number=number, load=LoadReport(1_000))
    assert load(machine).window_ms == REPORTS_MAX * 1_000


def test_a_fenced_broker_does_nothing_for_clients_and_holds_what_it_held(machine: Machine) -> None:
    amounts = {each: 7 for each in LoadReport.__struct_fields__ if each not in ("interval_ms", "partitions")}
    machine.heartbeat(1, load=LoadReport(1_000, partitions=(of_orders(machine),), **amounts))
    assert not load(machine).is_fenced
    fence(machine, 1)
    found = load(machine)
    left = {each for each in amounts if getattr(found.report, each)}
    assert (found.is_fenced, left) == (True, {"free_bytes", "size_bytes", "partition_count"})
    (partition,) = described(machine).partitions
    assert (partition.size_bytes, partition.is_leader, partition.bytes_in, partition.records_in) == (
        700,
        False,
        0,
        0,
    )
    machine.heartbeat(1)
    assert load(machine).report.bytes_in == 7


def test_reports_are_in_no_record(machine: Machine) -> None:
    count = len(machine.records)
    machine.heartbeat(1, load=LoadReport(1_000, bytes_in=1))
    assert len(machine.records) == count
    machine.change_controller()
    assert load(machine).age_ms == -1


def test_a_report_of_a_former_process_or_one_that_comes_late_does_not_count(machine: Machine) -> None:
    machine.heartbeat(1, number=5, load=LoadReport(1_000, bytes_in=1))
    machine.heartbeat(1, number=4, load=LoadReport(1_000, bytes_in=99))
    assert load(machine).report.bytes_in == 1
    machine.restart(1)
    assert load(machine).age_ms == -1


def test_partitions_that_are_not_there_or_not_the_brokers_are_left_out(machine: Machine) -> None:
    nowhere = PartitionLoad(UUID(int=77), 0, True, 700)
    beyond = of_orders(machine, number=5)
    machine.heartbeat(1, load=LoadReport(1_000, partitions=(nowhere, beyond, of_orders(machine))))
    machine.heartbeat(3, load=LoadReport(1_000, partitions=(of_orders(machine),)))
    named = described(machine).partitions
    assert [(each.topic, each.partition, each.broker_id, each.size_bytes) for each in named] == [
        ("orders", 0, 1, 700)
    ]
    assert described(machine, "others").partitions == ()


@pytest.mark.parametrize(
    "bad", [LoadReport(1_000, bytes_in=-1), LoadReport(0), LoadReport(1_000, size_bytes=2**63)]
)
def test_a_report_that_cannot_be_is_left_out_and_its_heartbeat_counts(
    machine: Machine, bad: LoadReport
) -> None:
    machine.heartbeat(1, number=1, load=LoadReport(1_000, bytes_in=5))
    machine.now_ms = 100
    assert not machine.heartbeat(1, number=2, load=bad).is_fenced
    assert (load(machine).report.bytes_in, load(machine).age_ms) == (5, 100)


def test_a_broker_that_is_forgotten_is_forgotten_here_too(machine: Machine) -> None:
    machine.heartbeat(3, load=LoadReport(1_000))
    machine.heartbeat(3, want_fence=True)
    machine.handle(UnregisterBrokerRequest(3))
    machine.heartbeat(1, load=LoadReport(1_000))
    assert "[1]" in repr(machine.controller._context.loads)
