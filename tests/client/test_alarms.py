"""When a producer's partitions are to be looked at: alarms in the order in which they ring, and others."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rayka.client.producer.drain_schedule import Alarms
from rayka.client.producer.partition_queue import NEVER, Limits, PartitionQueue

LIMITS = Limits(1_000, 1 << 20, linger_ms=0, delivery_timeout_ms=100)


@pytest.fixture
def queues() -> list[PartitionQueue]:
    return [PartitionQueue(partition, LIMITS) for partition in range(3)]


def add(alarms: Alarms, queue: PartitionQueue, ms: float) -> None:
    queue.alarm_ms = ms
    alarms.add(queue, ms)


def rung(alarms: Alarms, now_ms: float) -> list[int]:
    rung = []
    for queue in alarms.ring(now_ms):
        queue.alarm_ms = NEVER
        rung.append(queue.partition)
    return rung


def test_alarms_ring_in_the_order_of_their_moments(queues: list[PartitionQueue]):
    alarms = Alarms()
    for queue, ms in zip(queues, (20, 10, 30), strict=True):
        add(alarms, queue, ms)
    assert alarms.next_ms() == 10
    assert rung(alarms, 9) == []
    assert rung(alarms, 20) == [1, 0]
    assert alarms.next_ms() == 30


def test_an_alarm_that_was_replaced_does_not_ring(queues: list[PartitionQueue]):
    alarms = Alarms()
    add(alarms, queues[0], 20)
    add(alarms, queues[0], 10)
    assert rung(alarms, 15) == [0]
    assert alarms.next_ms() == NEVER
    assert rung(alarms, 20) == []


def test_alarms_that_were_replaced_are_dropped(queues: list[PartitionQueue]):
    alarms = Alarms()
    for ms in (40, 30, 20, 25):
        add(alarms, queues[0], ms)
    add(alarms, queues[1], 50)
    alarms.drop_replaced()
    assert len(alarms) == 2
    assert rung(alarms, 100) == [0, 1]


@given(st.lists(st.tuples(st.integers(0, 4), st.integers(0, 50)), max_size=40), st.integers(0, 60))
def test_exactly_the_alarms_that_count_ring(given_alarms: list[tuple[int, int]], now_ms: int):
    alarms, queues = Alarms(), [PartitionQueue(partition, LIMITS) for partition in range(5)]
    for partition, ms in given_alarms:
        add(alarms, queues[partition], ms)
    last = dict(given_alarms)
    assert alarms.next_ms() == min(last.values(), default=NEVER)
    due = sorted(ms for ms in last.values() if ms <= now_ms)
    assert [last[each] for each in rung(alarms, now_ms)] == due
