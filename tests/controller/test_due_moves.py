"""A planned move begins only while its partition is as it was planned, and the brokers that it goes to run."""

from collections.abc import Callable

import pytest

from rayka.controller.move_queue import still_due
from rayka.controller.planning.balance_plan import Goal, Move
from rayka.ids import TopicPartition
from rayka.protocol.topics import AlterPartitionReassignmentsRequest, DeleteTopicsRequest, Reassignment
from tests.controller.admin_support import cluster, create, fence, report_isr
from tests.controller.support import Machine

MOVE = Move(TopicPartition("orders", 0), (1, 2), (1, 3), 0, Goal.SIZE)


@pytest.fixture
def machine() -> Machine:
    machine = cluster(4)
    create(machine, (1, 2))
    return machine


def reassign(machine: Machine, *replicas: int) -> None:
    machine.handle(AlterPartitionReassignmentsRequest((Reassignment("orders", 0, replicas),)))


def delete(machine: Machine) -> None:
    machine.handle(DeleteTopicsRequest(("orders",)))


def lose_leader(machine: Machine) -> None:
    report_isr(machine, 1)
    fence(machine, 1)
    assert not machine.partition().has_leader


def shut_down(machine: Machine) -> None:
    """Broker 3, under control: it leads something, so that it takes a while."""
    create(machine, (3,), name="clicks")
    machine.heartbeat(3, want_shut_down=True)
    assert machine.image.brokers[3].is_in_controlled_shutdown


def test_a_move_is_due_while_all_is_as_it_was(machine: Machine) -> None:
    due = still_due(machine.image, MOVE)
    assert due is not None
    assert (due.key.partition, due.move, due.partition) == (0, MOVE, machine.partition())
    fence(machine, 2)
    assert still_due(machine.image, MOVE) is not None, "the one that is replaced need not run"


@pytest.mark.parametrize(
    "happens",
    [
        delete,
        lose_leader,
        lambda machine: reassign(machine, 1, 4),
        lambda machine: reassign(machine, 2, 1),
        lambda machine: fence(machine, 3),
        shut_down,
    ],
)
def test_a_move_is_due_no_more_once_its_partition_or_target_is_another(
    machine: Machine, happens: Callable[[Machine], object]
) -> None:
    happens(machine)
    assert still_due(machine.image, MOVE) is None


def test_a_move_to_a_broker_that_is_not_known_is_not_due(machine: Machine) -> None:
    assert still_due(machine.image, MOVE._replace(after=(1, 9))) is None
