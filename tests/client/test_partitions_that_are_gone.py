"""Topics that are made anew with fewer partitions while a producer has records for those that are gone."""

from collections import defaultdict
from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

from rayka import Producer
from rayka.client.producer.delivery_future import DeliveryFuture
from rayka.client.producer.partition_queue import Limits
from rayka.client.producer.producer_batch import ProducerBatch
from rayka.client.producer.record_columns import KEYED_OVERHEAD_BYTES, Moment, PreparedRecord
from rayka.errors import ErrorCode, RequestTimedOut, UnknownTopicOrPartition
from rayka.protocol.batch_decode import decode
from rayka.protocol.batch_format import Codec, RecordBatch
from rayka.protocol.murmur2 import partition_for_key
from rayka.protocol.produce import (
    ProducePartitionResult,
    ProduceRequest,
    ProduceResponse,
    RecordError,
)
from tests.client.support import QUICK, ScriptedCluster, new_accumulator, start_batch

WAIT_S = 60.0
VALUES = [b"%0100d" % number for number in range(20)]


class ShrinkingCluster(ScriptedCluster):
    """The producer learns, before it has the answer to its nth produce request, that `orders` has one partition."""

    def __init__(self, at: int, partition_count: int = 1) -> None:
        super().__init__({"orders": 3})
        self.batch_bytes_max = 1_000
        self.learn: Callable[[], Any] | None = None
        self.refuses_record: int | None = None
        self._at = at
        self._partition_count = partition_count
        self._count = 0

    async def call(self, node_id: int, request: Any, timeout_ms: int) -> Any:
        response = await super().call(node_id, request, timeout_ms)
        if isinstance(request, ProduceRequest) and self.learn is not None:
            self._count += 1
            if self._count == self._at:
                if self._partition_count:
                    self.topics["orders"] = self._partition_count
                else:
                    del self.topics["orders"]
                self.metadata_offset += 1
                await self.learn()
        return response

    def learns(self, producer: Producer) -> None:
        """From the next produce request on requests are counted."""
        metadata = producer._core.sender.metadata

        async def learn() -> None:
            await metadata.refresh_leaders(("orders",))

        self.learn = learn

    def everything(self) -> list[bytes | None]:
        return [value for name in self.logs for value in self.values(*name)]


def check_delivered(cluster: ScriptedCluster, sent: dict[bytes, DeliveryFuture]) -> None:
    """Each record is where its future says."""
    for value, future in sent.items():
        found = future.result(WAIT_S)
        assert cluster.values("orders", found.partition)[found.offset] == value


@pytest.mark.parametrize("key", [None, b"key"])
@pytest.mark.parametrize("at", range(1, 6))
def test_no_part_of_a_split_batch_is_acknowledged_unsent_when_its_partition_goes(at: int, key: bytes | None):
    cluster = ShrinkingCluster(at)
    with Producer(cluster, **{**QUICK, "linger_ms": 60_000}) as producer:
        producer._core.accumulator.topics.hash_of[b"key"] = 2
        producer.send("orders", b"first", partition=2)
        producer.flush(WAIT_S)
        cluster.learns(producer)
        sent = {value: producer.send("orders", value, key=key) for value in VALUES}
        producer.flush(WAIT_S)
        check_delivered(cluster, sent)
    assert sorted(filter(None, cluster.everything())) == sorted([*VALUES, b"first"])


@pytest.mark.parametrize("at", range(1, 6))
def test_parts_that_a_deleted_topic_has_not_taken_fail_with_that(at: int):
    cluster = ShrinkingCluster(at, partition_count=0)
    with Producer(cluster, **{**QUICK, "linger_ms": 60_000}) as producer:
        producer.send("orders", b"first")
        producer.flush(WAIT_S)
        cluster.learns(producer)
        sent = {value: producer.send("orders", value) for value in VALUES}
        producer.flush(WAIT_S)
        errors = {value: future.exception(WAIT_S) for value, future in sent.items()}
    taken = cluster.everything()
    for value, error in errors.items():
        assert (error is None) == (value in taken)
        assert error is None or isinstance(error, UnknownTopicOrPartition)


class RefusingCluster(ShrinkingCluster):
    """Refuses the first record of the first batch after `learn`, and takes the others."""

    async def call(self, node_id: int, request: Any, timeout_ms: int) -> Any:
        is_refused = isinstance(request, ProduceRequest) and self.learn is not None and not self._count
        if not is_refused:
            return await super().call(node_id, request, timeout_ms)
        (part,) = request.partitions
        self.answers.append(ErrorCode.INVALID_RECORD)
        await super().call(node_id, request, timeout_ms)
        error = RecordError(0, ErrorCode.INVALID_RECORD, "no")
        refusal = ProducePartitionResult(
            part.topic_id, part.partition, ErrorCode.INVALID_RECORD, "no", record_errors=(error,)
        )
        return ProduceResponse((refusal,))


@pytest.mark.parametrize("partition_count", [0, 1])
def test_records_beside_a_refused_one_do_not_fail_with_its_error_when_their_partition_goes(
    partition_count: int,
):
    cluster = RefusingCluster(1, partition_count)
    cluster.batch_bytes_max = 1 << 20
    with Producer(cluster, **{**QUICK, "linger_ms": 60_000}) as producer:
        producer.send("orders", b"first", partition=2)
        producer.flush(WAIT_S)
        cluster.learns(producer)
        sent = [producer.send("orders", value) for value in VALUES]
        producer.flush(WAIT_S)
        errors = [each.exception(WAIT_S) for each in sent]
    assert type(errors[0]).__name__ == "InvalidRecord"
    if partition_count:
        assert errors[1:] == [None] * 19
    else:
        assert all(isinstance(each, UnknownTopicOrPartition) for each in errors[1:])


# ---- Records with keys ----


def test_a_keyed_record_whose_partition_is_gone_goes_to_the_one_that_its_key_has_now():
    cluster = ScriptedCluster({"orders": 5})
    keys = [b"%d" % number for number in range(40)]
    with Producer(cluster, **QUICK) as producer:
        for partition in range(5):
            producer.send("orders", b"first", partition=partition).result(WAIT_S)
        cluster.hold()
        sent = {}
        for number in range(10):
            for key in keys:
                value = b"%s:%d" % (key, number)
                sent[value] = producer.send("orders", value, key=key)
        cluster.wait_until_held()
        cluster.topics["orders"] = 2
        cluster.metadata_offset += 1
        cluster.release()
        producer.flush(WAIT_S)
        check_delivered(cluster, sent)
    for key in keys:
        before, now = partition_for_key(key, 5), partition_for_key(key, 2)
        taken = cluster.values("orders", before if before < 2 else now)
        assert [value for value in taken if value and value.startswith(key + b":")] == [
            b"%s:%d" % (key, number) for number in range(10)
        ]


@pytest.mark.parametrize("options", [{}, {"enable_idempotence": False}], ids=str)
@pytest.mark.parametrize("refusal", [ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION])
def test_send_batch_says_where_its_keyed_rows_are_though_their_partition_went(refusal: Any, options: Any):
    cluster = ScriptedCluster({"orders": 3})
    keys = [b"%d" % number for number in range(60)]
    with Producer(cluster, **QUICK, **options) as producer:
        for partition in range(3):
            producer.send("orders", b"first", partition=partition).result(WAIT_S)
        cluster.topics["orders"] = 2
        cluster.metadata_offset += 1
        cluster.answers += [refusal] * 3
        runs = producer.send_batch("orders", pa.record_batch({"value": keys, "key": keys})).result(WAIT_S)
    rows: list[bytes | None] = []
    for each in runs:
        values = cluster.values("orders", each.partition)
        rows += values[each.base_offset : each.base_offset + each.record_count]
    assert sorted(filter(None, rows)) == sorted(keys)
    for key in keys:
        before, now = partition_for_key(key, 3), partition_for_key(key, 2)
        assert key in cluster.values("orders", before if before < 2 else now)


class KeyedOrderModel(RuleBasedStateMachine):
    """A topic that loses partitions again and again: each keyed record is taken once, those of one key in order. Only a
    key whose partition stays, and that belongs to another one now, begins a new order, as where partitions are added.
    """

    @initialize()
    def begin(self) -> None:
        limits = Limits(600, 1 << 20, linger_ms=0, delivery_timeout_ms=10**9)
        self.partition_count = 7
        self.accumulator = new_accumulator(limits, partitions=self.partition_count)
        self.now_ms = 0.0
        # By key: how often its order has begun anew.
        self.orders = dict.fromkeys(range(10), 0)
        self.sent: dict[bytes, list[bytes]] = defaultdict(list)
        self.taken: dict[bytes, list[bytes]] = defaultdict(list)
        self.futures: list[DeliveryFuture] = []
        self.in_flight: list[ProducerBatch] = []

    @rule(key=st.integers(0, 9), count=st.integers(1, 5))
    def append(self, key: int, count: int) -> None:
        name = b"%d" % key
        for _ in range(count):
            order = b"%s:%d" % (name, self.orders[key])
            value = b"%s:%d" % (order, len(self.sent[order]))
            size_bytes = len(value) + len(name) + KEYED_OVERHEAD_BYTES
            future = self.accumulator.try_append(
                PreparedRecord("orders", None, value, size_bytes, name), Moment(self.now_ms, 1)
            )
            assert future is not None
            self.sent[order].append(value)
            self.futures.append(future)

    @rule()
    def start_what_is_ready(self) -> None:
        self.now_ms += 5
        assert not self.accumulator.topics.move_departing()
        for batch in self.accumulator.ready(self.now_ms):
            start_batch(self.accumulator, batch)
            self.in_flight.append(batch)

    @precondition(lambda self: self.in_flight)
    @rule(data=st.data())
    def take(self, data: st.DataObject) -> None:
        """The answer of a request comes: the log had the partition when the batch came."""
        self.acknowledge(self.in_flight.pop(data.draw(st.integers(0, len(self.in_flight) - 1))))

    def acknowledge(self, batch: ProducerBatch) -> None:
        decoded = decode(RecordBatch(batch.encode(Codec.NONE, 1 << 30)))
        for value in filter(None, decoded.values_list()):
            self.taken[value.rpartition(b":")[0]].append(value)
        self.accumulator.finish((batch,), is_acknowledged=True)
        batch.acknowledge(0, -1)

    @precondition(lambda self: self.in_flight)
    @rule(data=st.data())
    def refuse(self, data: st.DataObject) -> None:
        batch = self.in_flight.pop(data.draw(st.integers(0, len(self.in_flight) - 1)))
        batch.encode(Codec.NONE, 1 << 30)
        assert self.accumulator.defer(batch, RequestTimedOut("lost"), self.now_ms + 3)

    @precondition(lambda self: self.partition_count > 1)
    @rule(data=st.data())
    def shrink(self, data: st.DataObject) -> None:
        before, now = self.partition_count, data.draw(st.integers(1, self.partition_count - 1))
        for key in self.orders:
            was = partition_for_key(b"%d" % key, before)
            self.orders[key] += was < now and was != partition_for_key(b"%d" % key, now)
        self.partition_count = now
        self.accumulator.set_topic("orders", self.partition_count, 1 << 20)

    def teardown(self) -> None:
        for _ in range(200):
            while self.in_flight:
                self.acknowledge(self.in_flight.pop())
            self.start_what_is_ready()
        assert dict(self.taken) == dict(self.sent)
        assert all(each.done() and each.exception(0) is None for each in self.futures)
        assert self.accumulator.topics.pool.used_bytes == 0


KeyedOrderModel.TestCase.settings = settings(max_examples=100, stateful_step_count=40, deadline=None)
TestKeyedOrder = KeyedOrderModel.TestCase
