"""One task's rows: which come, in which columns, from files that are as planned and from files that are not."""

import datetime
import os
from uuid import UUID

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from rayka.errors import CorruptRecord
from rayka.ids import TopicPartition
from rayka.log.partition_directories import PARTITION_METADATA_FILE, encode_partition_metadata
from rayka.protocol.batch_decode import decode
from rayka.protocol.batch_encode import encode_batch
from rayka.protocol.batch_format import RecordBatch
from rayka.protocol.fetch import FileRange
from rayka.spark.partition_reader import coalesce, read_range
from rayka.spark.plan import OffsetRange
from rayka.spark.schema import COLUMNS, arrow_schema, spark_batch
from rayka.spark.source_options import ReadOptions

A0 = TopicPartition("a", 0)
TOPIC_ID = UUID(int=1)
ALL_COLUMNS = (*COLUMNS, "headers")


def batch(base_offset, values, **columns):
    encoded = encode_batch(values, **{"timestamps_ms": 1_000, **columns})
    return b"".join(
        bytes(part) for part in RecordBatch(encoded).stamped(base_offset=base_offset, leader_epoch=0)
    )


def segment(path, batches):
    """A file of batches, and the range that covers it."""
    path.write_bytes(b"".join(batches))
    path.with_name(PARTITION_METADATA_FILE).write_bytes(encode_partition_metadata(TOPIC_ID))
    status = os.stat(path)
    base_offset = RecordBatch(batches[0]).base_offset
    return FileRange(str(path), status.st_dev, status.st_ino, 0, status.st_size, base_offset)


def no_connection():
    raise ConnectionError("the broker was asked")


def rows(start, end, *file_ranges, columns=("offset", "value"), connect=no_connection):
    options = ReadOptions(("a",), columns=columns)
    batches = read_range(options, OffsetRange(A0, TOPIC_ID, start, end), file_ranges, connect)
    return [row for each in batches for row in each.to_pylist()]


def test_the_arrow_schema_is_the_one_that_spark_derives():
    header = StructType([StructField("key", StringType()), StructField("value", BinaryType())])
    kinds = [
        BinaryType(),
        BinaryType(),
        StringType(),
        IntegerType(),
        LongType(),
        TimestampType(),
        IntegerType(),
    ]
    fields = zip(ALL_COLUMNS, [*kinds, ArrayType(header)], strict=True)
    schema = StructType([StructField(name, kind) for name, kind in fields])
    assert arrow_schema(ALL_COLUMNS).equals(to_arrow_schema(schema, timezone="UTC"))


def test_a_row_has_the_columns_of_the_kafka_connector():
    encoded = batch(
        5,
        [b"v", None],
        keys=[None, b"k"],
        timestamps_ms=[1_000, 2_500],
        headers=[[("h", b"1"), ("h", None)], []],
    )
    built = spark_batch(ALL_COLUMNS, decode(RecordBatch(encoded)), TopicPartition("a", 3), 0, 100)
    built.validate(full=True)
    second = datetime.datetime(1970, 1, 1, 0, 0, 1, tzinfo=datetime.UTC)
    headers = [{"key": "h", "value": b"1"}, {"key": "h", "value": None}]
    common = {"topic": "a", "partition": 3, "timestampType": 0}
    later = second + datetime.timedelta(seconds=1.5)
    assert built.to_pylist() == [
        {"key": None, "value": b"v", "offset": 5, "timestamp": second, "headers": headers, **common},
        {"key": b"k", "value": None, "offset": 6, "timestamp": later, "headers": None, **common},
    ]


def test_rows_outside_the_range_are_cut_off_within_a_batch(tmp_path):
    file_range = segment(
        tmp_path / "0.log", [batch(0, [b"0", b"1", b"2"]), batch(3, [b"3", b"4"]), batch(5, [b"5"])]
    )
    assert rows(1, 4, file_range) == [
        {"offset": 1, "value": b"1"},
        {"offset": 2, "value": b"2"},
        {"offset": 3, "value": b"3"},
    ]


def test_a_range_goes_on_in_the_next_segment(tmp_path):
    first = segment(tmp_path / "0.log", [batch(0, [b"0", b"1"])])
    second = segment(tmp_path / "2.log", [batch(2, [b"2"])])
    assert [row["offset"] for row in rows(0, 3, first, second)] == [0, 1, 2]


@pytest.mark.parametrize("change", ["gone", "replaced", "shorter", "of another topic"])
def test_a_file_that_is_not_the_one_planned_sends_the_task_to_the_broker(tmp_path, change):
    path = tmp_path / "0.log"
    file_range = segment(path, [batch(0, [b"0", b"1"])])
    if change == "gone":
        path.unlink()
    elif change == "replaced":
        aside = tmp_path / "aside"
        aside.write_bytes(path.read_bytes())
        aside.rename(path)
    elif (
        change == "of another topic"
    ):  # deleted and created again, under an inode number that was given away again
        path.with_name(PARTITION_METADATA_FILE).write_bytes(encode_partition_metadata(UUID(int=2)))
    else:
        path.write_bytes(path.read_bytes()[:-8])
    with pytest.raises(ConnectionError, match="the broker was asked"):
        rows(0, 2, file_range)


def test_a_bit_flip_in_a_file_is_an_error_not_a_row(tmp_path):
    path = tmp_path / "0.log"
    file_range = segment(path, [batch(0, [b"0" * 100])])
    content = bytearray(path.read_bytes())
    content[-20] ^= 1
    path.write_bytes(content)
    with pytest.raises(CorruptRecord, match="a-0: batch at offset 0: CRC-32C expected"):
        rows(0, 1, file_range)


def test_the_broker_is_not_asked_while_the_files_do(tmp_path):
    file_range = segment(tmp_path / "0.log", [batch(0, [b"0"]), batch(1, [b"1"])])
    assert len(rows(0, 2, file_range)) == 2
    with pytest.raises(ConnectionError):
        rows(0, 3, file_range)


@given(sizes=st.lists(st.integers(0, 6_000), max_size=30))
def test_coalescing_keeps_rows_and_order_and_leaves_one_small_batch_at_most(sizes):
    offsets = iter(range(sum(sizes)))
    batches = [
        pa.record_batch([pa.array([next(offsets) for _ in range(size)], pa.int64())], ["o"]) for size in sizes
    ]
    together = list(coalesce(iter(batches)))
    assert [value for each in together for value in each["o"].to_pylist()] == list(range(sum(sizes)))
    assert all(each.num_rows >= 4_096 for each in together[:-1])
