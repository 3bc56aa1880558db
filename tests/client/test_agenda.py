"""Which partitions of a producer are looked at, and when."""

import pytest

from rayka.client.producer.agenda import Agenda
from rayka.client.producer.partition_queue import NEVER, PartitionQueue


@pytest.fixture
def queues() -> list[PartitionQueue]:
    return [PartitionQueue(partition, 5) for partition in range(4)]


def test_only_what_changed_or_is_due_is_looked_at(queues: list[PartitionQueue]):
    agenda = Agenda()
    agenda.set_alarm(queues[0], 20)
    agenda.set_alarm(queues[1], 10)
    agenda.look_at(queues[2])
    assert agenda.pending(9) == [queues[2]]
    agenda.done(queues[2])
    assert agenda.pending(10) == [queues[1]]
    agenda.done(queues[1])
    assert agenda.next_ms() == 20
    assert agenda.pending(20) == [queues[0]]
    assert agenda.next_ms() == NEVER


def test_an_alarm_is_set_forward_and_never_back(queues: list[PartitionQueue]):
    agenda = Agenda()
    for ms in (20, 10, 30):
        agenda.set_alarm(queues[0], ms)
    assert agenda.pending(10) == queues[:1]
    agenda.done(queues[0])
    assert agenda.pending(100) == []


def test_alarms_that_no_longer_count_do_not_pile_up(queues: list[PartitionQueue]):
    agenda = Agenda()
    for ms in range(100_000, 0, -1):
        agenda.set_alarm(queues[ms % 4], ms)
    assert len(agenda._alarms) < 2_000
    assert agenda.pending(1) == [queues[1]]


def test_what_a_busy_leader_holds_back_returns_in_order_before_what_came_later(
    queues: list[PartitionQueue],
):
    agenda = Agenda()
    for queue in queues[:3]:
        agenda.look_at(queue)
        agenda.hold_back(queue, leader_id=1, until_ms=NEVER)
    agenda.look_at(queues[3])
    assert agenda.pending(0) == [queues[3]]
    agenda.bring_back(leader_id=1, count_max=2)
    assert agenda.pending(0) == [queues[0], queues[1], queues[3]]
    assert agenda.waits_for(1)
    agenda.bring_all_back()
    assert agenda.pending(0) == [queues[2], queues[0], queues[1], queues[3]]
    assert not agenda.waits_for(1)


def test_a_partition_that_is_gone_is_never_looked_at(queues: list[PartitionQueue]):
    agenda = Agenda()
    agenda.look_at(queues[0])
    agenda.set_alarm(queues[1], 10)
    agenda.hold_back(queues[2], leader_id=1, until_ms=NEVER)
    for queue in queues:
        agenda.forget(queue)
    agenda.bring_all_back()
    assert agenda.pending(1_000) == []
    assert agenda.next_ms() == NEVER


def test_what_is_held_back_is_looked_at_when_its_time_comes(queues: list[PartitionQueue]):
    agenda = Agenda()
    for queue, until_ms in zip(queues, (100, NEVER, 90), strict=False):
        agenda.hold_back(queue, leader_id=1, until_ms=until_ms)
    agenda.set_alarm(queues[3], 95)
    assert agenda.next_ms() == 90
    assert agenda.pending(95) == [queues[3], queues[2]]
    assert agenda.next_ms() == 100


def test_the_soonest_alarm_is_known_without_a_search(queues: list[PartitionQueue]):
    agenda = Agenda()
    agenda.set_alarm(queues[0], 20)
    agenda.hold_back(queues[1], leader_id=1, until_ms=10)
    assert agenda.soonest_ms == 10
    agenda.pending(10)
    agenda.next_ms()
    assert agenda.soonest_ms == 20
