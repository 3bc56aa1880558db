"""Many records at once: Arrow batches and tables, lists of values and of records."""

from datetime import date
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from rayka import BatchMetadata, Producer, Record
from rayka.errors import InvalidRecord, RecordTooLarge, SerializationError, UnknownTopicOrPartition
from rayka.protocol.batch_decode import decode
from rayka.protocol.murmur2 import partition_for_key
from tests.client.support import QUICK, ScriptedCluster

WAIT_S = 60
HEADERS = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
RECORD = {
    "topic": "",
    "partition": 0,
    "offset": 0,
    "timestamp_ms": 5,
    "key": None,
    "value": b"v",
    "headers": (),
}
Rows = list[tuple[bytes | None, bytes | None, list[Any], int]]


def sent(data: Any, *, partitions: int = 1, **options: Any) -> tuple[ScriptedCluster, list[BatchMetadata]]:
    cluster = ScriptedCluster({"orders": partitions})
    with Producer(cluster, **{**QUICK, **options}) as producer:
        return cluster, producer.send_batch("orders", data).result(WAIT_S)


def rows(cluster: ScriptedCluster, partition: int = 0) -> Rows:
    """Key, value, headers and timestamp of each record of a partition, in order."""
    batches = map(decode, cluster.logs.get(("orders", partition), []))
    return [
        row
        for each in batches
        for row in zip(
            each.keys_list(),
            each.values_list(),
            each.headers_list(),
            each.timestamps_ms.tolist(),
            strict=True,
        )
    ]


def test_all_columns_of_a_batch_arrive():
    data = pa.record_batch(
        {
            "key": pa.array([b"k", None], pa.binary()),
            "value": pa.array([None, b"v"], pa.binary()),
            "headers": pa.array([[{"key": "a", "value": b"1"}, {"key": "a", "value": None}], None], HEADERS),
            "timestamp": pa.array([5_000_000, 6_000_999], pa.timestamp("us")),
            "partition": pa.array([0, 0], pa.int32()),
        }
    )
    cluster, runs = sent(data)
    assert runs == [BatchMetadata("orders", 0, 0, 2)]
    assert rows(cluster) == [(b"k", None, [("a", b"1"), ("a", None)], 5_000), (None, b"v", [], 6_000)]


@pytest.mark.parametrize(
    "timestamps",
    [
        pa.array([1_000, 2_000], pa.int64()),
        pa.array([1_000, 2_000], pa.timestamp("ms", tz="UTC")),
        pa.array([1, 2], pa.timestamp("s")),
        pa.array([1_000_000_000, 2_000_000_999], pa.timestamp("ns", tz="Europe/Berlin")),
    ],
    ids=lambda each: str(each.type),
)
def test_timestamps_of_any_unit_become_milliseconds(timestamps: pa.Array):
    cluster, _ = sent(pa.record_batch({"value": pa.array([b"a", b"b"]), "timestamp": timestamps}))
    assert [row[3] for row in rows(cluster)] == [1_000, 2_000]


@pytest.mark.parametrize(
    "kind",
    [
        pa.string(),
        pa.large_string(),
        pa.large_binary(),
        pa.binary_view(),
        pa.dictionary(pa.int8(), pa.string()),
    ],
    ids=str,
)
def test_text_and_every_kind_of_binary_is_bytes(kind: pa.DataType):
    column = (
        pa.array(["a", "ä"]).cast(kind)
        if "binary" in str(kind)
        else pa.array(["a", "ä"], pa.string()).cast(kind)
    )
    cluster, _ = sent(pa.record_batch({"value": column, "key": column}))
    assert [row[:2] for row in rows(cluster)] == [(b"a", b"a"), ("ä".encode(), "ä".encode())]


def test_slices_and_chunks_of_a_table_arrive_in_order():
    table = pa.table({"value": pa.chunked_array([[b"0", b"1"], [b"2"], [], [b"3", b"4"]])}).slice(1, 3)
    cluster, runs = sent(table)
    assert cluster.values("orders", 0) == [b"1", b"2", b"3"]
    assert [(each.base_offset, each.record_count) for each in runs] == [(0, 1), (1, 1), (2, 1)]


def test_records_without_key_go_round_the_partitions_in_large_runs():
    values = [b"%06d" % number for number in range(10_000)]
    cluster, runs = sent(pa.record_batch({"value": pa.array(values)}), partitions=3, batch_size=50_000)
    assert [each.partition for each in runs] == [0, 1, 2, 0]
    arrived = [value for each in runs for value in in_log(cluster, each)]
    assert arrived == values


def in_log(cluster: ScriptedCluster, run: BatchMetadata) -> list[bytes | None]:
    return cluster.values("orders", run.partition)[run.base_offset : run.base_offset + run.record_count]


def test_small_batches_without_key_stay_together():
    cluster = ScriptedCluster({"orders": 3})
    with Producer(cluster, linger_ms=60_000) as producer:
        futures = [producer.send_batch("orders", [b"a", b"b"]) for _ in range(10)]
        producer.flush(WAIT_S)
        assert [each.result(0) for each in futures] == [
            [BatchMetadata("orders", 0, 2 * number, 2)] for number in range(10)
        ]
    assert len(cluster.logs["orders", 0]) == 1


def test_keys_go_where_kafka_would_put_them_in_order():
    keys = [b"%d" % (number % 100) for number in range(5_000)]
    values = [b"%d" % number for number in range(5_000)]
    data = pa.record_batch({"key": pa.array(keys), "value": pa.array(values)})
    cluster, runs = sent(data, partitions=4, batch_size=10_000)
    assert sum(each.record_count for each in runs) == 5_000
    for partition in range(4):
        expected = [
            value for key, value in zip(keys, values, strict=True) if partition_for_key(key, 4) == partition
        ]
        assert cluster.values("orders", partition) == expected


def test_a_partition_goes_before_the_key_and_null_keys_go_anywhere():
    data = pa.record_batch(
        {
            "key": pa.array([b"a", b"a", None, None]),
            "value": pa.array([b"0", b"1", b"2", b"3"]),
            "partition": pa.array([2, None, None, 1], pa.int64()),
        }
    )
    cluster, runs = sent(data, partitions=3)
    by_key = partition_for_key(b"a", 3)
    assert b"0" in cluster.values("orders", 2)
    assert b"1" in cluster.values("orders", by_key)
    assert b"3" in cluster.values("orders", 1)
    assert sum(each.record_count for each in runs) == 4


def test_order_holds_between_send_and_send_batch():
    cluster = ScriptedCluster({"orders": 1})
    with Producer(cluster, linger_ms=60_000) as producer:
        producer.send("orders", b"0")
        producer.send_batch("orders", [b"1", b"2"])
        producer.send("orders", b"3")
        producer.send("orders", b"4", partition=0)
        producer.send_batch(
            "orders", pa.record_batch({"value": pa.array([b"5"]), "partition": pa.array([0])})
        )
    assert cluster.values("orders", 0) == [b"%d" % number for number in range(6)]


BYTES_TYPES = [
    pa.string(), pa.binary(), pa.large_string(), pa.large_binary(), pa.string_view(), pa.binary_view(),
]  # fmt: skip


def columns_of_every_type(values: list[str | None]) -> list[pa.Array]:
    """The same text in every type that a program may hand it over in: plain, large, views, dictionaries of each."""
    plain = [pa.array(values, pa.string()).cast(each) for each in BYTES_TYPES]
    distinct = [each for each in dict.fromkeys(values) if each is not None]
    indices = pa.array([None if each is None else distinct.index(each) for each in values], pa.int8())
    dictionaries = [
        pa.DictionaryArray.from_arrays(indices, pa.array(distinct, pa.string()).cast(each))
        for each in BYTES_TYPES
    ]
    slices = [pa.array(["other", *values], pa.string()).cast(each)[1:] for each in BYTES_TYPES]
    return [*plain, *dictionaries, *slices]


@pytest.mark.parametrize(
    "column", columns_of_every_type(["a", None, "b", "a"]), ids=lambda each: str(each.type)
)
def test_values_and_keys_come_in_every_type_of_text_and_bytes(column: pa.Array):
    cluster, _ = sent(pa.record_batch({"key": column, "value": column, "partition": pa.array([0, 0, 0, 0])}))
    expected = [b"a", None, b"b", b"a"]
    assert [(key, value) for key, value, _, _ in rows(cluster)] == list(zip(expected, expected, strict=True))


def header_columns_of_every_type() -> list[pa.Array]:
    """Two records: one with ("k", "v") and ("l", null), one with none; in every type of list, key and value."""
    texts = zip(columns_of_every_type(["k", "l"]), columns_of_every_type(["v", None]), strict=True)
    columns = []
    for keys, values in texts:
        pairs = pa.StructArray.from_arrays([keys, values], ["key", "value"])
        columns.append(pa.ListArray.from_arrays(pa.array([0, 2, 2], pa.int32()), pairs))
    offsets, sizes = pa.array([0, 0], pa.int32()), pa.array([2, 0], pa.int32())
    keys, values = pa.array(["k", "l"]), pa.array([b"v", None])
    pairs = pa.StructArray.from_arrays([keys, values], ["key", "value"])
    return [
        *columns,
        pa.LargeListArray.from_arrays(pa.array([0, 2, 2], pa.int64()), pairs),
        pa.ListViewArray.from_arrays(offsets, sizes, pairs),
        pa.LargeListViewArray.from_arrays(offsets.cast(pa.int64()), sizes.cast(pa.int64()), pairs),
        pa.FixedSizeListArray.from_arrays(pa.concat_arrays([pairs, pairs]), 2, mask=pa.array([False, True])),
        pa.MapArray.from_arrays(pa.array([0, 2, 2], pa.int32()), keys, values),
    ]


@pytest.mark.parametrize("column", header_columns_of_every_type(), ids=lambda each: str(each.type))
def test_headers_come_in_every_type_of_list_and_map(column: pa.Array):
    for table in (column, pa.chunked_array([column[:1], column[1:]])):
        cluster, _ = sent(pa.table({"value": pa.array([b"1", b"2"]), "headers": table}))
        assert [headers for _, _, headers, _ in rows(cluster)] == [[("k", b"v"), ("l", None)], []]


def test_headers_of_which_none_has_a_value_are_sent():
    column = pa.array(
        [[{"key": "k", "value": None}], [{"key": "k", "value": None}]]
    )  # values are of type null
    cluster, _ = sent(pa.table({"value": pa.array([b"1", b"2"]), "headers": column}))
    assert [headers for _, _, headers, _ in rows(cluster)] == [[("k", None)], [("k", None)]]


def test_a_column_of_null_headers_is_a_column_without_headers():
    cluster, _ = sent(pa.table({"value": pa.array([b"1", b"2"]), "headers": pa.nulls(2)}))
    assert [headers for _, _, headers, _ in rows(cluster)] == [[], []]


def test_dates_are_midnight_of_the_day():
    days = pa.array([date(1970, 1, 2), None, date(2026, 11, 28)])
    for column in (days, days.cast(pa.date64())):
        cluster, _ = sent(pa.record_batch({"value": pa.array([b"a", b"b", b"c"]), "timestamp": column}))
        first, now, last = (timestamp_ms for _, _, _, timestamp_ms in rows(cluster))
        assert (first, last) == (86_400_000, 1_795_824_000_000)
        assert now > last - 86_400_000 * 400


@pytest.mark.parametrize(
    "data",
    [
        pa.record_batch({"value": pa.array([b"v"]), "timestamp": pa.array([1_795_824_000])}),
        [Record(**{**RECORD, "timestamp_ms": 1_795_824_000})],
    ],
    ids=["arrow", "records"],
)
def test_numbers_that_look_like_seconds_are_said(data: Any):
    with pytest.warns(UserWarning, match="if it is a time in seconds, multiply it by 1000") as caught:
        cluster, _ = sent(data)
    assert [warning.filename for warning in caught] == [__file__]
    assert rows(cluster) == [(None, b"v", [], 1_795_824_000)]


def test_a_list_of_records_keeps_key_value_headers_and_timestamp():
    records = [
        Record("elsewhere", 7, 70, 1_000, b"k", b"v", [("a", b"1")]),
        Record("elsewhere", 7, 71, 2_000, None, None, []),
    ]
    cluster, _ = sent(records)
    assert rows(cluster) == [(b"k", b"v", [("a", b"1")], 1_000), (None, None, [], 2_000)]


def test_a_list_is_serialized_and_arrow_is_not():
    cluster, _ = sent([{"a": 1}, None], value_serializer="json")
    assert cluster.values("orders", 0) == [b'{"a":1}', None]
    cluster, _ = sent(pa.record_batch({"value": pa.array([b"raw"])}), value_serializer="json")
    assert cluster.values("orders", 0) == [b"raw"]


@pytest.mark.parametrize("data", [[], pa.table({"value": pa.array([], pa.binary())})], ids=["list", "table"])
def test_nothing_is_done_for_nothing(data: Any):
    cluster, runs = sent(data)
    assert (runs, cluster.requests) == ([], [])


def test_memory_drains_while_a_large_table_is_sent():
    values = pa.array([b"%d" % number * 100 for number in range(3_000)])
    options = {"buffer_memory": 1 << 16, "batch_size": 1 << 14}
    cluster, runs = sent(pa.table({"value": values}), partitions=2, **options)
    assert sum(each.record_count for each in runs) == 3_000
    assert max(each.size_bytes for log in cluster.logs.values() for each in log) <= 1 << 14


def test_the_future_fails_with_the_error_of_any_run():
    cluster = ScriptedCluster({"orders": 1})
    received: list[object] = []
    with Producer(cluster, **QUICK, batch_size=1_000) as producer:
        cluster.answers.extend([InvalidRecord("no")])
        future = producer.send_batch("orders", [bytes(300)] * 5)
        future.add_done_callback(received.append)
        assert isinstance(future.exception(WAIT_S), InvalidRecord)
        with pytest.raises(InvalidRecord):
            future.result(WAIT_S)
        producer.flush(WAIT_S)
    assert received == [future]
    assert future.done()


# ---- Bad input ----


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ({"value": pa.array([1])}, "column 'value': expected binary or string, found int64"),
        ({"key": pa.array([b"k"])}, "expected a column 'value', found key"),
        (
            {"value": pa.array([b"v"]), "keys": pa.array([b"k"])},
            "column 'keys' is not a part of a record: did you mean 'key'",
        ),
        (
            {"value": pa.array([b"v"]), "timestamp": pa.array(["now"])},
            "column 'timestamp': expected timestamp, date or int64",
        ),
        (
            {"value": pa.array([b"v"]), "partition": pa.array([1.0])},
            "column 'partition': expected integers, found double",
        ),
        (
            {"value": pa.array([b"v"]), "partition": pa.array([-1])},
            "column 'partition': expected 0 or more, found -1",
        ),
        ({"value": pa.array([b"v"]), "headers": pa.array([["a"]])}, "column 'headers': expected list<struct"),
        ({"value": pa.array([[b"v"]])}, "column 'value': expected binary or string, found list"),
        ({"value": pa.array([{"binary": 1}])}, "column 'value': expected binary or string, found struct"),
        (
            {"value": pa.array([b"v"]), "timestamp": pa.array([2**62], pa.timestamp("s"))},
            "column 'timestamp': expected milliseconds of 64 bits",
        ),
        (
            {"value": pa.array([b"v"]), "timestamp": pa.array([-5])},
            "column 'timestamp': expected milliseconds since 1970, found -5",
        ),
        (
            {"value": pa.array([b"v"]), "partition": pa.array([2**63], pa.uint64())},
            "column 'partition': expected 0 or more, found 9223372036854775808",
        ),
        (
            {"value": pa.array([b"v"]), "headers": pa.array([[{"key": "a", "value": 1}]])},
            "column 'headers': expected list<struct",
        ),
        (
            {"value": pa.array([b"v"]), "headers": pa.array([[{"key": None, "value": b"1"}]], HEADERS)},
            "column 'headers': expected a key in every header, found null",
        ),
        (
            {"value": pa.array([b"v"]), "headers": pa.array([[None]], HEADERS)},
            "column 'headers': expected a key in every header, found null",
        ),
    ],
)
def test_a_wrong_column_is_named(columns: dict[str, pa.Array], message: str):
    with Producer(ScriptedCluster(), **QUICK) as producer, pytest.raises(SerializationError, match=message):
        producer.send_batch("orders", pa.record_batch(columns))


def test_a_column_given_twice_is_refused():
    data = pa.RecordBatch.from_arrays([pa.array([b"a"]), pa.array([b"b"])], names=["value", "value"])
    with (
        Producer(ScriptedCluster(), **QUICK) as producer,
        pytest.raises(SerializationError, match="a column is there twice: value, value"),
    ):
        producer.send_batch("orders", data)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"headers": 5}, "headers: expected"),
        ({"headers": (("a", "b"),)}, "headers: expected bytes or None for 'a', found str"),
        ({"timestamp_ms": 1.5}, "timestamp_ms: expected int, found float"),
    ],
)
def test_records_in_a_list_are_checked_as_those_of_send(wrong: dict[str, Any], message: str):
    record = Record(**{**RECORD, **wrong})
    with Producer(ScriptedCluster(), **QUICK) as producer, pytest.raises(TypeError, match=message):
        producer.send_batch("orders", [record])


def test_a_record_without_headers_and_timestamp_gets_none_and_now():
    cluster, _ = sent([Record(**{**RECORD, "headers": None, "timestamp_ms": None})])
    ((_, value, headers, timestamp_ms),) = rows(cluster)
    assert (value, headers) == (b"v", [])
    assert timestamp_ms > 1_700_000_000_000


def test_a_batch_may_be_larger_than_the_buffer():
    cluster, runs = sent([bytes(1_000)] * 500, buffer_memory=1 << 16)
    assert sum(run.record_count for run in runs) == 500
    assert len(rows(cluster)) == 500


@pytest.mark.parametrize("values", [["text"], [1], [b"a", "b"], [b"a", 1], [[b"a"]]], ids=str)
def test_a_list_holds_bytes_or_needs_a_serializer(values: list[Any]):
    with (
        Producer(ScriptedCluster(), **QUICK) as producer,
        pytest.raises(TypeError, match="value: expected bytes"),
    ):
        producer.send_batch("orders", values)


@pytest.mark.parametrize("data", [b"bytes", "text", 5, None, {"value": b"x"}, np.zeros(3)], ids=repr)
def test_data_of_another_kind_is_refused(data: Any):
    with (
        Producer(ScriptedCluster(), **QUICK) as producer,
        pytest.raises(TypeError, match="data: expected a pyarrow"),
    ):
        producer.send_batch("orders", data)


def test_a_partition_out_of_range_is_refused():
    data = pa.record_batch({"value": pa.array([b"a", b"b"]), "partition": pa.array([0, 3])})
    with pytest.raises(UnknownTopicOrPartition, match=r"partition 3 .* it has 3"):
        sent(data, partitions=3)


def test_one_record_too_large_refuses_all_and_names_its_row():
    cluster = ScriptedCluster({"orders": 1})
    with Producer(cluster, **QUICK, max_request_size=1_000) as producer:
        with pytest.raises(RecordTooLarge, match="row 2 takes 913 bytes"):
            producer.send_batch("orders", [b"a", b"b", bytes(900), b"c"])
    assert cluster.requests == []
