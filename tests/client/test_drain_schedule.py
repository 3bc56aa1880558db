"""Which partitions of a producer are looked at, and when."""

import pytest

from rayka.client.producer.drain_schedule import DrainSchedule
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


def hold(schedule: DrainSchedule, queue: PartitionQueue, created_ms: float = 0) -> None:
    schedule.add(queue)
    schedule.hold(queue, filled(queue, created_ms), 1, now_ms=0)


def test_only_what_changed_or_is_due_is_looked_at(queues: list[PartitionQueue]):
    schedule = DrainSchedule(wake=lambda: None)
    schedule.set_timer(queues[0], 20)
    schedule.set_timer(queues[1], 10)
    schedule.add(queues[2])
    assert schedule.pending(9) == [queues[2]]
    schedule.reschedule(9)
    assert schedule.pending(10) == [queues[1]]
    assert schedule.reschedule(10) == 20
    assert schedule.pending(20) == [queues[0]]
    assert schedule.reschedule(20) == NEVER


def test_a_timer_is_set_forward_and_never_back(queues: list[PartitionQueue]):
    schedule = DrainSchedule(wake=lambda: None)
    for ms in (20, 10, 30):
        schedule.set_timer(queues[0], ms)
    assert schedule.pending(10) == queues[:1]
    schedule.reschedule(10)
    assert schedule.pending(100) == []


def test_timers_that_no_longer_count_do_not_pile_up(queues: list[PartitionQueue]):
    schedule = DrainSchedule(wake=lambda: None)
    for ms in range(100_000, 0, -1):
        schedule.set_timer(queues[ms % 4], ms)
    assert len(schedule._timers) < 2_000
    assert schedule.pending(1) == [queues[1]]


def test_what_a_busy_leader_holds_returns_in_order_before_what_came_later(
    queues: list[PartitionQueue],
):
    schedule = DrainSchedule(wake=lambda: None)
    for queue in queues[:3]:
        hold(schedule, queue)
    schedule.add(queues[3])
    assert schedule.pending(0) == [queues[3]]
    schedule.release(leader_id=1, count_max=2)
    assert schedule.pending(0) == [queues[0], queues[1], queues[3]]
    assert schedule.busy_leaders == [1]
    schedule.release_all()
    assert schedule.pending(0) == [queues[2], queues[0], queues[1], queues[3]]
    assert schedule.busy_leaders == []


def test_a_partition_that_is_gone_is_never_looked_at(queues: list[PartitionQueue]):
    schedule = DrainSchedule(wake=lambda: None)
    schedule.add(queues[0])
    schedule.set_timer(queues[1], 10)
    hold(schedule, queues[2])
    for queue in queues:
        schedule.forget(queue)
    schedule.release_all()
    assert schedule.pending(1_000) == []
    assert schedule.reschedule(1_000) == NEVER


def test_what_is_held_is_looked_at_when_its_time_comes(queues: list[PartitionQueue]):
    schedule = DrainSchedule(wake=lambda: None)
    for queue, created_ms in zip(queues, (0, 20, -10), strict=False):
        hold(schedule, queue, created_ms)
    schedule.set_timer(queues[3], 95)
    assert schedule.reschedule(0) == 90
    assert schedule.pending(95) == [queues[3], queues[2]]
    queues[2].batches.clear()
    assert schedule.reschedule(95) == 100


def test_the_soonest_moment_is_known_without_a_search(queues: list[PartitionQueue]):
    schedule = DrainSchedule(wake=lambda: None)
    schedule.set_timer(queues[0], 20)
    hold(schedule, queues[1], created_ms=-90)
    assert schedule.next_look_ms == 10
    assert schedule.pending(10) == [queues[1]]
    assert schedule.next_look_ms == -1
    queues[1].batches.clear()
    schedule.reschedule(10)
    assert schedule.next_look_ms == 20
