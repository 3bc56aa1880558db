"""The consumer without a group, and bounded reads, on the real nodes in this process (G3, G4, G12, G16)."""

import math
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, date, datetime, timedelta, timezone
from functools import partial
from itertools import count, islice
from pathlib import Path
from types import SimpleNamespace

import pyarrow as pa
import pytest

import rayka
import rayka.testing
from rayka import Consumer, Producer, TopicPartition
from rayka.client import io_thread
from rayka.errors import (
    ClosedError,
    ConfigError,
    CorruptRecord,
    OffsetOutOfRange,
    UnavailableError,
    UnknownTopicOrPartition,
)
from rayka.protocol.fetch import FetchRequest
from rayka.testing import InProcessCluster
from tests.testing.waiting import WAIT_S, wait_until

_numbers = count()


@pytest.fixture(scope="module")
def cluster() -> Iterator[InProcessCluster]:
    with rayka.testing.cluster(config={"log.retention.ms": -1}) as running:
        yield running


@pytest.fixture
def topic(cluster: InProcessCluster) -> str:
    name = f"flights-{next(_numbers)}"
    with rayka.Admin(cluster=cluster) as admin:
        admin.create_topic(name, partitions=3)
    return name


def send(
    cluster: InProcessCluster, topic: str, values: list[bytes], partition: int = 0, **options: object
) -> None:
    with Producer(cluster=cluster, **options) as producer:
        for value in values:
            producer.send(topic, value, partition=partition)


def poll_all(consumer: Consumer, record_count: int) -> list[rayka.Record]:
    records: list[rayka.Record] = []
    while len(records) < record_count:
        polled = consumer.poll(timeout_ms=5_000)
        assert polled, f"{len(records)} of {record_count} records"
        records += polled
    return records


# ---- What is read --------------------------------------------------------------------------------


def test_all_partitions_of_a_topic_are_read_in_order(cluster, topic):
    for partition in range(3):
        send(cluster, topic, [b"%d" % n for n in range(100)], partition)
    with Consumer(topic, cluster=cluster, auto_offset_reset="earliest") as consumer:
        records = poll_all(consumer, 300)
    for partition in range(3):
        mine = [record for record in records if record.partition == partition]
        assert [record.offset for record in mine] == list(range(100))
        assert [record.value for record in mine] == [b"%d" % n for n in range(100)]


def test_latest_begins_behind_what_is_there(cluster, topic):
    send(cluster, topic, [b"before"])
    with Consumer(topic, cluster=cluster) as consumer:
        assert consumer.position(TopicPartition(topic, 0)) == 1
        send(cluster, topic, [b"after"])
        assert [record.value for record in poll_all(consumer, 1)] == [b"after"]


def test_without_a_reset_policy_a_position_is_needed(cluster, topic):
    with Consumer(topic, cluster=cluster, auto_offset_reset="none") as consumer:
        with pytest.raises(OffsetOutOfRange, match="seek first"):
            consumer.poll(5_000)


def test_an_offset_outside_the_log_is_an_error_without_a_reset_policy(cluster, topic):  # G3
    tp = TopicPartition(topic, 0)
    with Consumer(cluster=cluster, auto_offset_reset="none") as consumer:
        consumer.assign([tp])
        consumer.seek(tp, 1_000)
        with pytest.raises(OffsetOutOfRange):
            consumer.poll(5_000)


def test_an_offset_outside_the_log_is_reset_by_policy(cluster, topic):
    send(cluster, topic, [b"a", b"b"])
    tp = TopicPartition(topic, 0)
    with Consumer(cluster=cluster, auto_offset_reset="earliest") as consumer:
        consumer.assign([tp])
        consumer.seek(tp, 1_000)
        assert [record.value for record in poll_all(consumer, 2)] == [b"a", b"b"]


def test_seeking_goes_anywhere_and_back(cluster, topic):
    send(cluster, topic, [b"%d" % n for n in range(50)])
    tp = TopicPartition(topic, 0)
    with Consumer(cluster=cluster, auto_offset_reset="earliest") as consumer:
        consumer.assign([tp])
        assert len(poll_all(consumer, 50)) == 50
        consumer.seek(tp, 20)
        assert consumer.position(tp) == 20
        assert consumer.poll(5_000, max_records=1)[0].offset == 20
        consumer.seek_to_beginning()
        assert consumer.poll(5_000, max_records=1)[0].offset == 0
        consumer.seek_to_end(tp)
        assert consumer.position(tp) == 50
        assert consumer.poll(0) == []


def test_offsets_of_partitions(cluster, topic):  # G12
    send(cluster, topic, [b"x"] * 7, partition=1)
    with Consumer(cluster=cluster) as consumer:
        partitions = [TopicPartition(topic, n) for n in range(3)]
        assert list(consumer.beginning_offsets(partitions).values()) == [0, 0, 0]
        assert list(consumer.end_offsets(partitions).values()) == [0, 7, 0]


def test_poll_is_empty_after_its_timeout(cluster, topic):
    with Consumer(topic, cluster=cluster) as consumer:
        assert consumer.poll(timeout_ms=1) == []
        assert consumer.poll_arrow(timeout_ms=1) is None


def test_poll_limits_what_it_returns_and_goes_on_from_there(cluster, topic):
    send(cluster, topic, [b"x"] * 10)
    with Consumer(topic, cluster=cluster, auto_offset_reset="earliest") as consumer:
        offsets = [[record.offset for record in consumer.poll(5_000, max_records=4)] for _ in range(3)]
    assert offsets == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9]]


def test_a_loop_that_was_left_goes_on_where_it_was(cluster, topic):
    send(cluster, topic, [b"x"] * 10)
    with Consumer(topic, cluster=cluster, auto_offset_reset="earliest") as consumer:
        assert [record.offset for record in islice(consumer, 3)] == [0, 1, 2]
        assert consumer.position(TopicPartition(topic, 0)) == 3
        assert [record.offset for record in islice(consumer, 7)] == [3, 4, 5, 6, 7, 8, 9]


def test_a_seek_in_a_loop_holds_from_the_next_record_on(cluster, topic):
    send(cluster, topic, [b"x"] * 10)
    tp = TopicPartition(topic, 0)
    offsets = []
    with Consumer(topic, cluster=cluster, auto_offset_reset="earliest") as consumer:
        for record in consumer:
            offsets.append(record.offset)
            if len(offsets) == 3:
                consumer.seek(tp, 8)
            if record.offset == 9:
                break
    assert offsets == [0, 1, 2, 8, 9]


def test_a_loop_gives_nothing_of_partitions_that_are_not_assigned_any_more(cluster, topic):
    for partition in range(2):
        send(cluster, topic, [b"%d" % partition] * 10, partition)
    with Consumer(cluster=cluster, auto_offset_reset="earliest") as consumer:
        consumer.assign([TopicPartition(topic, 0)])
        loop = iter(consumer)
        assert next(loop).partition == 0
        consumer.assign([TopicPartition(topic, 1)])
        assert [record.value for record in islice(loop, 10)] == [b"1"] * 10


def test_a_loop_without_partitions_waits_until_another_thread_closes_its_consumer(cluster, topic):
    send(cluster, topic, [b"%d" % number for number in range(10)])
    consumer, values = Consumer(topic, cluster=cluster, auto_offset_reset="earliest"), []

    def read() -> None:
        for record in consumer:
            values.append(record.value)
            if len(values) == 3:
                consumer.assign([])

    with ThreadPoolExecutor(1) as pool:
        loop = pool.submit(read)
        wait_until(lambda: len(values) == 3)
        send(cluster, topic, [b"later"])
        assert len(list(rayka.read(topic, cluster=cluster))) == 11
        assert not loop.done()
        consumer.close()
        loop.result(WAIT_S)
    assert values == [b"0", b"1", b"2"]


def test_what_was_fetched_of_a_topic_is_not_given_once_another_one_is_subscribed_to(cluster, topic):
    other = f"{topic}-other"
    with rayka.Admin(cluster=cluster) as admin:
        admin.create_topic(other)
    send(cluster, topic, [b"old"] * 5)
    send(cluster, other, [b"new"])
    with Consumer(topic, cluster=cluster, auto_offset_reset="earliest") as consumer:
        assert [each.value for each in consumer.poll(5_000, max_records=1)] == [b"old"]
        consumer.subscribe(other)
        assert [each.value for each in poll_all(consumer, 1)] == [b"new"]


def test_a_loop_ends_when_its_consumer_is_closed_in_it(cluster, topic):
    send(cluster, topic, [b"x"] * 10)
    consumer = Consumer(topic, cluster=cluster, auto_offset_reset="earliest")
    offsets = []
    for record in consumer:
        offsets.append(record.offset)
        consumer.close()
    assert offsets == [0]
    with pytest.raises(ClosedError):
        next(iter(consumer))


def test_a_loop_and_a_poll_that_wait_end_when_another_thread_closes_the_consumer(cluster, topic):
    for wait in (list, lambda consumer: consumer.poll(timeout_ms=60_000)):
        consumer = Consumer(topic, cluster=cluster)
        with ThreadPoolExecutor(1) as pool:
            waiting = pool.submit(wait, consumer)
            wait_until(consumer._core.guard.locked)
            consumer.close()
            error = waiting.exception(WAIT_S)
            assert error is None or isinstance(error, ClosedError)


@pytest.mark.parametrize("local_reads", [True, False])
def test_arrow_batches_have_the_columns_of_the_reference(cluster, topic, local_reads):
    with Producer(cluster=cluster) as producer:
        producer.send(
            topic, b"v", key=b"k", headers=[("source", b"faa")], partition=2, timestamp_ms=1_357_034_400_000
        )
    with Consumer(topic, cluster=cluster, auto_offset_reset="earliest", local_reads=local_reads) as consumer:
        batch = consumer.poll_arrow(5_000)
    assert isinstance(batch, pa.RecordBatch)
    (row,) = batch.to_pylist()
    assert row.pop("timestamp").timestamp() == 1_357_034_400
    assert row == {
        "topic": topic,
        "partition": 2,
        "offset": 0,
        "timestamp_type": 0,
        "key": b"k",
        "value": b"v",
        "headers": [{"key": "source", "value": b"faa"}],
    }


def test_arrow_batches_have_at_most_so_many_records_and_the_next_poll_goes_on_there(cluster, topic):
    with Producer(cluster=cluster) as producer:
        producer.send_batch(topic, [b"%d" % number for number in range(5)])
    found: list[object] = []
    with Consumer(topic, cluster=cluster, auto_offset_reset="earliest") as consumer:
        while len(found) < 4:
            batch = consumer.poll_arrow(5_000, max_records=2)
            assert batch is not None
            found += batch["value"].to_pylist()
        found += [each.value for each in consumer.poll(5_000)]
    assert found == [b"0", b"1", b"2", b"3", b"4"]


@pytest.mark.parametrize("codec", ["gzip", "lz4", "zstd"])
def test_compressed_batches_are_read(cluster, topic, codec):
    send(cluster, topic, [b"value" * 100] * 20, compression_type=codec)
    records = list(rayka.read(topic, cluster=cluster))
    assert [record.value for record in records] == [b"value" * 100] * 20


def test_values_are_deserialized(cluster, topic):
    with Producer(cluster=cluster, value_serializer="json", key_serializer="string") as producer:
        producer.send(topic, {"delay": 3}, key="UA")
        producer.send(topic, None, key="UA")
    records = rayka.read(topic, cluster=cluster, value_deserializer="json", key_deserializer="string")
    assert [(record.key, record.value) for record in records] == [("UA", {"delay": 3}), ("UA", None)]


# ---- Bounded reads --------------------------------------------------------------------------------


def test_a_bounded_read_ends_where_the_log_ended_when_it_began(cluster, topic):
    send(cluster, topic, [b"x"] * 5)
    reader = rayka.read(topic, cluster=cluster)
    send(cluster, topic, [b"late"] * 5)
    assert len(reader) == 5
    assert [record.value for record in reader] == [b"x"] * 5
    assert sum(batch.num_rows for batch in reader.arrow_batches()) == 5


def test_a_bounded_read_of_an_empty_topic_ends_at_once(cluster, topic):
    assert list(rayka.read(topic, cluster=cluster)) == []


def test_a_bounded_read_takes_offsets_and_times(cluster, topic):
    tp = TopicPartition(topic, 0)
    with Producer(cluster=cluster) as producer:
        for n in range(10):
            producer.send(topic, b"%d" % n, partition=0, timestamp_ms=1_000 + n)
    by_offset = rayka.read(topic, cluster=cluster, start={tp: 3}, end={tp: 6})
    assert [record.offset for record in by_offset] == [3, 4, 5]
    by_time = rayka.read(topic, cluster=cluster, start=1_004, end=1_008)
    assert [record.timestamp_ms for record in by_time] == [1_004, 1_005, 1_006, 1_007]
    assert list(rayka.read(topic, cluster=cluster, start=9_999)) == []


def test_a_bounded_read_takes_moments(cluster, topic):
    noon = datetime(2013, 1, 1, 12, tzinfo=UTC)
    with Producer(cluster=cluster) as producer:
        for n in range(5):
            moment = noon + timedelta(milliseconds=n)
            producer.send(topic, b"%d" % n, partition=0, timestamp_ms=round(moment.timestamp() * 1000))
    elsewhere = noon.astimezone(timezone(timedelta(hours=-5)))
    local = noon.astimezone().replace(tzinfo=None)  # without a time zone: local time
    for start in (noon, elsewhere, local):
        assert [record.value for record in rayka.read(topic, cluster=cluster, start=start)] == [
            b"0",
            b"1",
            b"2",
            b"3",
            b"4",
        ]
    between = rayka.read(
        topic, cluster=cluster, start=noon + timedelta(microseconds=1), end=noon + timedelta(milliseconds=3)
    )
    assert [record.value for record in between] == [b"1", b"2"]


@pytest.mark.parametrize(
    "bound", [datetime(1969, 7, 20, tzinfo=UTC), date(1969, 1, 1), 1.5, -1, True, "begin"]
)
def test_what_is_no_bound_is_shown_with_what_would_be(cluster, topic, bound):
    with pytest.raises(
        ConfigError, match=r"^read: end: .* a datetime, a timestamp in ms .*, found"
    ) as raised:
        rayka.read(topic, cluster=cluster, end=bound)
    assert repr(bound) in str(raised.value)


def test_a_bound_outside_the_log_is_refused(cluster, topic):
    with pytest.raises(OffsetOutOfRange, match=r"available: \[0, 0\]"):
        rayka.read(topic, cluster=cluster, end={TopicPartition(topic, 0): 5})
    with pytest.raises(ConfigError, match="earliest"):
        rayka.read(topic, cluster=cluster, start="begin")


# ---- Faults --------------------------------------------------------------------------------


def test_a_consumer_survives_a_restart_of_its_broker():
    with rayka.testing.cluster() as cluster:
        with rayka.Admin(cluster=cluster) as admin:
            admin.create_topic("flights", partitions=2)
        send(cluster, "flights", [b"before"])
        with Consumer("flights", cluster=cluster, auto_offset_reset="earliest") as consumer:
            assert [record.value for record in poll_all(consumer, 1)] == [b"before"]
            cluster.kill(1)
            cluster.restart(1)
            send(cluster, "flights", [b"after"])
            assert [record.value for record in poll_all(consumer, 1)] == [b"after"]


def test_a_read_that_gets_nothing_is_an_error_and_not_a_hang():
    with rayka.testing.cluster() as cluster:
        with rayka.Admin(cluster=cluster) as admin:
            admin.create_topic("flights")
        send(cluster, "flights", [b"x"])
        reader = rayka.read("flights", cluster=cluster, default_api_timeout_ms=300)
        cluster.kill(1)
        with pytest.raises(UnavailableError, match="flights-0 at 0 of 1"):
            list(reader)


def test_the_deletion_of_a_topic_is_an_error_for_its_reader(cluster, topic):
    with Consumer(topic, cluster=cluster, auto_offset_reset="earliest") as consumer:
        consumer.poll(1)
        with rayka.Admin(cluster=cluster) as admin:
            admin.delete_topic(topic)
        with pytest.raises(UnknownTopicOrPartition, match=topic):
            consumer.poll(10_000)


@pytest.mark.parametrize("local_reads", [True, False])
def test_a_bit_flip_on_the_disk_is_an_error_that_says_where(tmp_path: Path, local_reads: bool):
    with rayka.testing.cluster(data_dir=str(tmp_path)) as cluster:
        with rayka.Admin(cluster=cluster) as admin:
            admin.create_topic("flights")
        send(cluster, "flights", [b"good"])
        send(cluster, "flights", [b"to be damaged"])
        send(cluster, "flights", [b"good again"])
        (segment,) = tmp_path.glob("broker-1/flights-0/*.log")
        data = segment.read_bytes().replace(b"damaged", b"dAmaged")
        with segment.open("r+b") as file:
            file.write(data)
        tp = TopicPartition("flights", 0)
        with Consumer(cluster=cluster, auto_offset_reset="earliest", local_reads=local_reads) as consumer:
            consumer.assign([tp])
            assert consumer.poll(5_000, max_records=1)[0].value == b"good"
            with pytest.raises(CorruptRecord, match=r"flights-0.*seek to 2"):
                consumer.poll(5_000)
            consumer.seek(tp, 2)
            assert consumer.poll(5_000)[0].value == b"good again"


# ---- Bad input --------------------------------------------------------------------------------


def test_what_does_not_exist_is_named(cluster, topic):
    with pytest.raises(UnknownTopicOrPartition, match="nearest name"):
        Consumer(topic + "x", cluster=cluster)
    with Consumer(cluster=cluster) as consumer:
        with pytest.raises(UnknownTopicOrPartition, match="partitions 0 to 2, found 3"):
            consumer.assign([TopicPartition(topic, 3)])


def test_unknown_options_are_refused(cluster, topic):
    with pytest.raises(ConfigError, match="auto_offset_reset"):
        Consumer(topic, cluster=cluster, auto_ofset_reset="earliest")
    with pytest.raises(ConfigError, match="a bounded range is read without a group"):
        rayka.read(topic, cluster=cluster, group_id="delays")
    with pytest.raises(ConfigError, match=r"auto\.offset\.reset"):
        Consumer(topic, cluster=cluster, config={"auto.offset.reset": "newest"})


def test_wrong_types_are_refused(cluster, topic):
    with pytest.raises(TypeError, match="int"):
        Consumer(5, cluster=cluster)  # type: ignore[arg-type]
    with Consumer(topic, cluster=cluster) as consumer:
        with pytest.raises(TypeError, match="TopicPartition"):
            consumer.assign([(topic, 0)])  # type: ignore[list-item]
        with pytest.raises(ValueError, match="0 or more"):
            consumer.seek(TopicPartition(topic, 0), -5)
        with pytest.raises(TypeError, match="str"):
            consumer.seek(TopicPartition(topic, 0), "0")  # type: ignore[arg-type]
        with pytest.raises(ValueError, match="not assigned"):
            consumer.seek(TopicPartition(topic, 9), 0)
        for poll in (consumer.poll, consumer.poll_arrow):
            with pytest.raises(ValueError, match="max_records"):
                poll(max_records=0)


def test_a_closed_consumer_says_so(cluster, topic):
    consumer = Consumer(topic, cluster=cluster)
    consumer.close()
    consumer.close()
    with pytest.raises(ClosedError):
        consumer.poll()


def test_two_threads_at_once_are_refused(cluster, topic):
    with Consumer(topic, cluster=cluster) as consumer:
        polled = threading.Event()

        def poll_long() -> None:
            polled.set()
            consumer.poll(700)

        thread = threading.Thread(target=poll_long)
        thread.start()
        polled.wait()
        refused = False
        while thread.is_alive() and not refused:
            try:
                consumer.poll(0)
            except RuntimeError as error:
                refused = "two threads" in str(error)
        thread.join()
        assert refused


def test_a_consumer_that_was_not_closed_warns(cluster, topic):
    consumer = Consumer(topic, cluster=cluster)
    with pytest.warns(ResourceWarning, match="not closed"):
        consumer.__del__()
    consumer.close()


# ---- Bad input -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "call",
    [
        lambda consumer, tp: consumer.assign(tp),
        lambda consumer, tp: consumer.assign([TopicPartition(tp.topic, "0")]),
        lambda consumer, tp: consumer.end_offsets([TopicPartition(5, 0)]),
        lambda consumer, tp: consumer.seek(tp, True),
        lambda consumer, tp: consumer.poll(timeout_ms="1"),
        lambda consumer, tp: consumer.poll(max_records=1.5),
        lambda consumer, tp: consumer.subscribe(tp.topic, on_assign=5),
        lambda consumer, tp: consumer.commit_async({tp: 1}, callback=5),
        lambda consumer, tp: rayka.read(tp.topic.encode(), cluster="none"),
        lambda consumer, tp: rayka.Consumer(5, cluster="none"),
    ],
)
def test_a_wrong_type_is_a_type_error_at_once(cluster, topic, call):
    with Consumer(topic, cluster=cluster) as consumer, pytest.raises(TypeError, match=r"expected .*, found "):
        call(consumer, TopicPartition(topic, 0))


@pytest.mark.parametrize("timeout_ms", [math.nan, math.inf, 1e300])
def test_a_time_that_does_not_end_is_refused(cluster, topic, timeout_ms):
    with Consumer(topic, cluster=cluster) as consumer:
        for poll in (consumer.poll, consumer.poll_arrow):
            with pytest.raises(ValueError, match="timeout_ms: expected a time that ends, found"):
                poll(timeout_ms)


def test_a_partition_named_twice_is_assigned_once(cluster, topic):
    tp = TopicPartition(topic, 0)
    with Consumer(cluster=cluster) as consumer:
        consumer.assign([tp, tp])
        assert consumer.assignment() == (tp,)


def test_offsets_of_a_bounded_read_are_numbers_that_exist(cluster, topic):
    tp = TopicPartition(topic, 0)
    with pytest.raises(TypeError, match=f"start offset of {tp}: expected int, found str"):
        rayka.read(topic, cluster=cluster, start={tp: "0"})
    with pytest.raises(OffsetOutOfRange, match=rf"end offset -1 of {tp} does not exist; available: \[0, 0\]"):
        rayka.read(topic, cluster=cluster, end={tp: -1})


# ---- What happens meanwhile ----------------------------------------------------------------------


def test_a_bounded_read_begins_while_records_arrive(cluster, topic):
    is_over = threading.Event()

    def produce() -> None:
        with Producer(cluster=cluster, linger_ms=0) as producer:
            while not is_over.is_set():
                producer.send(topic, b"x").result(60)

    producing = threading.Thread(target=produce)
    producing.start()
    try:
        for _ in range(50):
            reader = rayka.read(topic, cluster=cluster, start=0)
            assert len(list(reader)) == len(reader)
    finally:
        is_over.set()
        producing.join()


def test_a_topic_made_anew_with_fewer_partitions_loses_only_those(cluster, topic):
    with (
        rayka.Admin(cluster=cluster) as admin,
        Consumer(cluster=cluster, auto_offset_reset="earliest", metadata_max_age_ms=1) as consumer,
    ):
        consumer.assign([TopicPartition(topic, number) for number in range(3)])
        assert consumer.poll(timeout_ms=10) == []
        admin.delete_topic(topic)
        admin.create_topic(topic, partitions=1)
        send(cluster, topic, [b"anew"])
        errors, records = [], []
        while len(errors) < 2 or not records:
            try:
                records += consumer.poll(timeout_ms=5_000)
            except UnknownTopicOrPartition as error:
                errors.append(error)
        assert [record.value for record in records] == [b"anew"]


def test_what_was_fetched_for_a_poll_that_was_interrupted_comes_with_the_next(cluster, topic):
    send(cluster, topic, [b"kept"])
    with Consumer(topic, cluster=cluster, auto_offset_reset="earliest") as consumer:
        poll = partial(consumer._core.fetcher.poll, 5_000, consumer._core.delivery.add)
        io_thread.run(poll, None)  # Ctrl-C: what it returns is not used
        assert [record.value for record in consumer.poll(timeout_ms=0)] == [b"kept"]


class OnceUnavailable:
    """A cluster whose first answer to a fetch is an error that is not expected there."""

    def __init__(self, cluster: InProcessCluster) -> None:
        self.name = cluster.name
        self._cluster = cluster
        self._failures = [UnavailableError("not now")]

    def network(self, transport="auto"):
        network = self._cluster.network()

        async def call(node_id, request, timeout_ms):
            if isinstance(request, FetchRequest) and self._failures:
                raise self._failures.pop()
            return await network.call(node_id, request, timeout_ms)

        return SimpleNamespace(call=call, node_ids=network.node_ids)


def test_after_an_unexpected_error_a_consumer_goes_on(cluster, topic):
    send(cluster, topic, [b"there"])
    with Consumer(topic, cluster=OnceUnavailable(cluster), auto_offset_reset="earliest") as consumer:
        consumer.assign([TopicPartition(topic, 0)])
        with pytest.raises(UnavailableError, match="not now"):
            consumer.poll(timeout_ms=5_000)
        assert [record.value for record in consumer.poll(timeout_ms=5_000)] == [b"there"]


def test_without_its_broker_the_offsets_of_a_partition_are_unavailable():
    with rayka.testing.cluster() as cluster, rayka.Admin(cluster=cluster) as admin:
        admin.create_topic("orders", partitions=1)
        cluster.kill(1)
        with pytest.raises(UnavailableError, match="broker-1 cannot be reached"):
            rayka.read("orders", cluster=cluster, default_api_timeout_ms=300)


@pytest.mark.parametrize("local_reads", [True, False])
@pytest.mark.parametrize("byte", [0, 16])  # of a batch's base offset, outside its CRC, and of its magic
def test_a_damaged_header_in_the_middle_is_an_error_and_skips_nothing(tmp_path, local_reads, byte):
    data_dir = str(tmp_path)
    with rayka.testing.cluster(data_dir=data_dir) as cluster, rayka.Admin(cluster=cluster) as admin:
        admin.create_topic("orders", partitions=1, configs={"segment.bytes": 1024})
        send(cluster, "orders", [b"%d" % n for n in range(50)], linger_ms=0, batch_size=0)
    path = next((tmp_path / "broker-1" / "orders-0").glob("*00.log"))
    damaged = bytearray(path.read_bytes())
    size_bytes = 12 + int.from_bytes(damaged[8:12], "big")
    damaged[2 * size_bytes + byte] ^= 0x55
    path.write_bytes(damaged)
    with rayka.testing.cluster(data_dir=data_dir) as cluster:
        values = []
        with pytest.raises(CorruptRecord, match="orders-0"):
            values.extend(
                record.value for record in rayka.read("orders", cluster=cluster, local_reads=local_reads)
            )
    assert values in ([b"0", b"1"], [])
