"""A producer of many partitions: few requests, each of bounded length, and batches that fill while brokers are busy."""

import gc
import threading

from rayka import Producer
from rayka.client import io_thread
from rayka.client.producer.accumulator import Accumulator
from rayka.client.producer.drain_schedule import APPENDING_MS, LEADER_BATCHES_MAX, REQUEST_BATCHES_MAX
from rayka.client.producer.partition_queue import Limits
from rayka.client.producer.record_columns import Moment, PreparedRecord, Row
from rayka.protocol.membership import MetadataPartition
from tests.client.support import QUICK, OneLeader, ScriptedCluster, new_accumulator

WAIT_S = 60


def test_a_request_holds_a_bounded_number_of_batches():
    count = 2 * REQUEST_BATCHES_MAX + 1
    cluster = ScriptedCluster({"orders": count})
    with Producer(cluster, **{**QUICK, "linger_ms": 60_000}) as producer:
        for partition in range(count):
            producer.send("orders", b"%d" % partition, partition=partition)
        producer.flush(WAIT_S)
    assert max(len(each.partitions) for each in cluster.requests) == REQUEST_BATCHES_MAX
    assert [cluster.values("orders", each) for each in range(count)] == [
        [b"%d" % each] for each in range(count)
    ]


def test_batches_fill_while_their_leader_takes_no_more_requests():
    cluster = ScriptedCluster({"orders": 3})
    options = {**QUICK, "linger_ms": 0, "max_in_flight_requests_per_connection": 1}
    with Producer(cluster, **options) as producer:
        producer.send("orders", b"first", partition=0).result(WAIT_S)
        cluster.hold()
        producer.send("orders", b"held", partition=0)
        cluster.wait_until_held()
        for partition in (1, 2, 1, 2):
            producer.send("orders", b"waits", partition=partition)
        cluster.release()
        producer.flush(WAIT_S)
    assert [len(cluster.logs["orders", partition]) for partition in (1, 2)] == [1, 1]
    assert [len(cluster.values("orders", partition)) for partition in (1, 2)] == [2, 2]


def test_a_leader_has_a_bounded_number_of_batches_and_the_others_fill_meanwhile():
    cluster = ScriptedCluster({"orders": LEADER_BATCHES_MAX + 1})
    with Producer(cluster, **{**QUICK, "linger_ms": 60_000}) as producer:
        first = producer.send("orders", b"first", partition=0)
        producer.flush(WAIT_S)
        assert first.done()  # the producer has its id
        cluster.hold()
        for partition in range(LEADER_BATCHES_MAX + 1):
            producer.send("orders", b"early", partition=partition)
        flushing = threading.Thread(target=producer.flush, args=(WAIT_S,))
        flushing.start()
        cluster.wait_until_held()
        io_thread.wait_for_turn(WAIT_S)
        assert sum(len(each.partitions) for each in cluster.requests[1:]) == LEADER_BATCHES_MAX
        producer.send("orders", b"late", partition=LEADER_BATCHES_MAX)
        cluster.release()
        flushing.join(WAIT_S)
    assert [len(each) for each in cluster.logs.values()].count(1) == LEADER_BATCHES_MAX
    assert cluster.values("orders", LEADER_BATCHES_MAX) == [b"early", b"late"]


def test_large_batches_are_not_in_more_requests_than_may_be_in_flight():
    count, value = 40, bytes(900_000)  # four fit into one request
    cluster = ScriptedCluster({"orders": count})
    options = {**QUICK, "linger_ms": 60_000, "max_in_flight_requests_per_connection": 5}
    with Producer(cluster, **options) as producer:
        producer.send("orders", b"first", partition=0)
        producer.flush(WAIT_S)  # the producer has its id
        cluster.hold()
        for partition in range(count):
            producer.send("orders", value, partition=partition)
        flushing = threading.Thread(target=producer.flush, args=(WAIT_S,))
        flushing.start()
        cluster.wait_until_held()
        io_thread.wait_for_turn(WAIT_S)
        in_flight = [len(each.partitions) for each in cluster.requests[1:]]
        cluster.release()
        flushing.join(WAIT_S)
    assert in_flight == [4] * 5
    assert all(cluster.values("orders", partition)[-1] == value for partition in range(count))


def test_a_busy_leader_that_lost_its_partitions_holds_nothing_back():
    """What waits for a place at a leader goes to the next one as soon as that is known."""
    cluster = ScriptedCluster({"orders": 2})
    options = {**QUICK, "linger_ms": 0, "max_in_flight_requests_per_connection": 1}
    with Producer(cluster, **options) as producer:
        producer.send("orders", b"first", partition=0).result(WAIT_S)
        cluster.hung.append(1)
        held = producer.send("orders", b"held", partition=0)
        cluster.wait_until_held()
        waits = producer.send("orders", b"waits", partition=1)
        cluster.move_leaders(2)
        assert held.result(WAIT_S).partition == 0
        assert waits.result(WAIT_S).partition == 1
    assert set(cluster.asked[1:]) == {2}


BACKLOG = 5 * LEADER_BATCHES_MAX
REQUEST_MS = 100
FILLS_MS = (
    REQUEST_MS * (BACKLOG - LEADER_BATCHES_MAX) / LEADER_BATCHES_MAX
)  # what the leader takes for the others


def backlog() -> tuple[Accumulator, OneLeader]:
    """A record for each partition at 0 ms; the leader takes as many as it can, and answers the first request at 100."""
    limits = Limits(1 << 20, 1 << 30, linger_ms=0, delivery_timeout_ms=120_000)
    accumulator, leader = new_accumulator(limits, partitions=BACKLOG), OneLeader()
    for partition in range(BACKLOG):
        append(accumulator, partition, 0)
    first, _ = leader.drain(accumulator, 0)[0]
    leader.answer(accumulator, first, REQUEST_MS)
    return accumulator, leader


def append(accumulator: Accumulator, partition: int, now_ms: float) -> None:
    assert (
        accumulator.try_append(PreparedRecord("orders", partition, b"value", 50), Moment(now_ms, 1_000))
        is not None
    )


def test_a_backlog_fills_while_records_come_as_long_as_the_leader_takes_for_it():
    accumulator, leader = backlog()
    append(accumulator, BACKLOG - 1, 100)
    assert leader.drain(accumulator, 100) == ([], 100 + APPENDING_MS)
    append(accumulator, BACKLOG - 1, FILLS_MS - 1)
    assert leader.drain(accumulator, FILLS_MS - 1) == ([], FILLS_MS)
    (request,), _ = leader.drain(accumulator, FILLS_MS)
    assert [each.partition for each in request] == list(range(600, 900))


def test_a_backlog_goes_on_when_no_more_records_come():
    accumulator, leader = backlog()
    append(accumulator, BACKLOG - 1, 100)
    assert leader.drain(accumulator, 100 + APPENDING_MS)[0] != []


def test_a_backlog_that_a_caller_waits_for_goes_on():
    accumulator, leader = backlog()
    append(accumulator, BACKLOG - 1, 100)
    accumulator.end_linger()
    assert leader.drain(accumulator, 100)[0] != []


def test_few_batches_that_wait_for_a_busy_leader_go_as_soon_as_it_takes_them():
    limits = Limits(1 << 20, 1 << 30, linger_ms=0, delivery_timeout_ms=120_000)
    accumulator, leader = new_accumulator(limits, partitions=BACKLOG), OneLeader()
    for partition in range(LEADER_BATCHES_MAX + 1):
        append(accumulator, partition, 0)
    first, _ = leader.drain(accumulator, 0)[0]
    leader.answer(accumulator, first, REQUEST_MS)
    append(accumulator, LEADER_BATCHES_MAX, 100)
    (request,), _ = leader.drain(accumulator, 100)
    assert [len(each) for each in request] == [2]


def test_a_waiting_batch_is_two_objects_to_the_garbage_collector():
    """With thousands of them each pass goes over all their containers: that was a quarter of a small batch's cost."""
    limits = Limits(1 << 20, 1 << 30, linger_ms=5, delivery_timeout_ms=120_000)
    accumulator = new_accumulator(limits, partitions=1_000)
    gc.collect()
    before = len(gc.get_objects())
    for partition in range(1_000):
        accumulator.try_append(
            PreparedRecord("orders", partition, Row(b"value", b"key"), 50), Moment(0, 1_000)
        )
    gc.collect()  # the first pass also finds the tuples that need not be tracked
    assert (len(gc.get_objects()) - before) / 1_000 < 2.5  # the batch and its list


def test_the_garbage_collector_does_not_count_the_partitions_of_a_topic():
    """Each refresh of the metadata makes all of them anew, which would bring about a pass over everything."""
    assert not gc.is_tracked(MetadataPartition(0, 1, 1, (1,), (1,)))
