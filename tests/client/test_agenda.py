"""Which partitions of a producer are looked at, and when."""

import pytest

from rayka.client.producer.drain_schedule import Agenda
from rayka.client.producer.partition_queue import NEVER, Limits, PartitionQueue
from rayka.client.producer.producer_batch import ProducerBatch

LIMITS = Limits(1_000, 1 << 20, linger_ms=0, delivery_timeout_ms=100)


@pytest.fixture
def queues() -> list[PartitionQueue]:
    return [PartitionQueue(partition, LIMITS) for partition in range(4)]


def filled(queue: PartitionQueue, created_ms: float = 0) -> ProducerBatch:
    """A closed batch with something in it, of which the partition has no other."""
    batch = ProducerBatch("orders", queue.partition, created_ms)
    batch.count = 1
    batch.close()
    queue.batches.append(batch)
    return batch


def hold_back(agenda: Agenda, queue: PartitionQueue, created_ms: float = 0) -> None:
    agenda.look_at(queue)
    agenda.hold_back(queue, filled(queue, created_ms), 1, now_ms=0)


def test_only_what_changed_or_is_due_is_looked_at(queues: list[PartitionQueue]):
    agenda = Agenda()
    agenda.set_alarm(queues[0], 20)
    agenda.set_alarm(queues[1], 10)
    agenda.look_at(queues[2])
    assert agenda.pending(9) == [queues[2]]
    agenda.tick(9)
    assert agenda.pending(10) == [queues[1]]
    assert agenda.tick(10) == 20
    assert agenda.pending(20) == [queues[0]]
    assert agenda.tick(20) == NEVER


def test_an_alarm_is_set_forward_and_never_back(queues: list[PartitionQueue]):
    agenda = Agenda()
    for ms in (20, 10, 30):
        agenda.set_alarm(queues[0], ms)
    assert agenda.pending(10) == queues[:1]
    agenda.tick(10)
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
        hold_back(agenda, queue)
    agenda.look_at(queues[3])
    assert agenda.pending(0) == [queues[3]]
    agenda.bring_back(leader_id=1, count_max=2)
    assert agenda.pending(0) == [queues[0], queues[1], queues[3]]
    assert agenda.busy_leaders == [1]
    agenda.bring_all_back()
    assert agenda.pending(0) == [queues[2], queues[0], queues[1], queues[3]]
    assert agenda.busy_leaders == []


def test_a_partition_that_is_gone_is_never_looked_at(queues: list[PartitionQueue]):
    agenda = Agenda()
    agenda.look_at(queues[0])
    agenda.set_alarm(queues[1], 10)
    hold_back(agenda, queues[2])
    for queue in queues:
        agenda.forget(queue)
    agenda.bring_all_back()
    assert agenda.pending(1_000) == []
    assert agenda.tick(1_000) == NEVER


def test_what_is_held_back_is_looked_at_when_its_time_comes(queues: list[PartitionQueue]):
    agenda = Agenda()
    for queue, created_ms in zip(queues, (0, 20, -10), strict=False):
        hold_back(agenda, queue, created_ms)
    agenda.set_alarm(queues[3], 95)
    assert agenda.tick(0) == 90
    assert agenda.pending(95) == [queues[3], queues[2]]
    queues[2].batches.clear()
    assert agenda.tick(95) == 100


def test_the_soonest_moment_is_known_without_a_search(queues: list[PartitionQueue]):
    agenda = Agenda()
    agenda.set_alarm(queues[0], 20)
    hold_back(agenda, queues[1], created_ms=-90)
    assert agenda.soonest_ms == 10
    assert agenda.pending(10) == [queues[1]]
    assert agenda.soonest_ms == -1
    queues[1].batches.clear()
    agenda.tick(10)
    assert agenda.soonest_ms == 20
