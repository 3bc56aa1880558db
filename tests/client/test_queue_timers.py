"""When a producer's partitions are to be looked at: timers in the order in which they are due, and others."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rayka.client.producer.drain_schedule import QueueTimers
from rayka.client.producer.partition_queue import NEVER, Limits, PartitionQueue

LIMITS = Limits(1_000, 1 << 20, linger_ms=0, delivery_timeout_ms=100)


@pytest.fixture
def queues() -> list[PartitionQueue]:
    return [PartitionQueue(partition, LIMITS) for partition in range(3)]


def add(timers: QueueTimers, queue: PartitionQueue, ms: float) -> None:
    queue.timer_ms = ms
    timers.add(queue, ms)


def popped(timers: QueueTimers, now_ms: float) -> list[int]:
    popped = []
    for queue in timers.pop_due(now_ms):
        queue.timer_ms = NEVER
        popped.append(queue.partition)
    return popped


def test_timers_are_due_in_the_order_of_their_moments(queues: list[PartitionQueue]):
    timers = QueueTimers()
    for queue, ms in zip(queues, (20, 10, 30), strict=True):
        add(timers, queue, ms)
    assert timers.next_ms() == 10
    assert popped(timers, 9) == []
    assert popped(timers, 20) == [1, 0]
    assert timers.next_ms() == 30


def test_a_timer_that_was_replaced_is_not_due(queues: list[PartitionQueue]):
    timers = QueueTimers()
    add(timers, queues[0], 20)
    add(timers, queues[0], 10)
    assert popped(timers, 15) == [0]
    assert timers.next_ms() == NEVER
    assert popped(timers, 20) == []


def test_timers_that_were_replaced_are_dropped(queues: list[PartitionQueue]):
    timers = QueueTimers()
    for ms in (40, 30, 20, 25):
        add(timers, queues[0], ms)
    add(timers, queues[1], 50)
    timers.drop_replaced()
    assert len(timers) == 2
    assert popped(timers, 100) == [0, 1]


@given(st.lists(st.tuples(st.integers(0, 4), st.integers(0, 50)), max_size=40), st.integers(0, 60))
def test_exactly_the_timers_that_count_are_due(given_timers: list[tuple[int, int]], now_ms: int):
    timers, queues = QueueTimers(), [PartitionQueue(partition, LIMITS) for partition in range(5)]
    for partition, ms in given_timers:
        add(timers, queues[partition], ms)
    last = dict(given_timers)
    assert timers.next_ms() == min(last.values(), default=NEVER)
    due = sorted(ms for ms in last.values() if ms <= now_ms)
    assert [last[each] for each in popped(timers, now_ms)] == due
