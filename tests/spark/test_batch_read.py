"""Batch reads on a real Spark, through RayDP, of topics of a cluster on a real Ray."""

import json

import pytest

import rayka
from rayka_demo.delays import query
from rayka_demo.flights import checksum, delays_by_carrier, flight_records, table_checksum

pytestmark = pytest.mark.spark

TIMESTAMP_MS = 86_400_000


@pytest.fixture(scope="session")
def small(admin, produce):
    """A topic of two partitions with ten records each, in five batches of four codecs."""
    admin.create_topic("small", partitions=2, configs={"retention.ms": -1})
    for index, codec in enumerate(("none", "lz4", "zstd", "gzip", "none")):
        numbers = [2 * index, 2 * index + 1]
        records = [record(partition, number) for partition in (0, 1) for number in numbers]
        produce("small", records, compression_type=codec)
    return "small"


def record(partition, number):
    return {
        "partition": partition,
        "key": None if number % 3 == 0 else b"k%d" % number,
        "value": None if number % 4 == 0 else b"v%d" % number,
        "timestamp_ms": TIMESTAMP_MS + number,
        "headers": [("n", b"%d" % number), ("none", None)] if number % 2 else [],
    }


def offsets(frame):
    return sorted((row.partition, row.offset) for row in frame.select("partition", "offset").collect())


def failure_of(action):
    with pytest.raises(Exception) as failed:  # noqa: PT011 - Spark wraps ours; what counts is that its text is in it
        action()
    return str(failed.value)


def test_sparks_table_of_delays_is_the_one_computed_from_the_csv(spark, cluster, flights):
    assert query(spark, cluster.name, "flights") == delays_by_carrier(flights)


def test_every_flight_comes_out_of_spark_as_it_went_in(read, flights):
    frame = read("flights").selectExpr("key", "value", "unix_millis(timestamp) AS timestamp_ms")
    table = frame.toArrow()
    rows = zip(*(table[name].to_pylist() for name in ("key", "value", "timestamp_ms")), strict=True)
    assert checksum(rows) == table_checksum(flight_records(flights))


def test_spark_sees_the_records_that_python_sees(read, cluster, small):
    seen = [
        (row.topic, row.partition, row.offset, row.ms, row.timestampType, row.key, row.value, row.headers)
        for row in read(small, includeHeaders="true")
        .selectExpr("*", "unix_millis(timestamp) AS ms")
        .collect()
    ]
    sent = [
        (each.topic, each.partition, each.offset, each.timestamp_ms, 0, each.key, each.value, each.headers)
        for each in rayka.read(small, cluster=cluster)
    ]
    assert len(sent) == 20
    assert sorted((*row[:7], [tuple(each) for each in row[7] or ()]) for row in seen) == sorted(
        (*row[:7], list(row[7])) for row in sent
    )


def test_offsets_say_where_a_read_starts_and_ends(read, small):
    frame = read(small, startingOffsets='{"small":{"0":3,"1":-2}}', endingOffsets='{"small":{"0":-1,"1":2}}')
    assert offsets(frame) == [(0, offset) for offset in range(3, 10)] + [(1, 0), (1, 1)]


def test_columns_are_only_those_asked_for(read, small):
    frame = read(small, columns="offset,value")
    assert frame.schema.simpleString() == "struct<offset:bigint,value:binary>"
    assert frame.count() == 20


def test_a_partition_is_cut_into_as_many_tasks_as_asked_for(read, small):
    frame = read(small, minPartitions="8")
    assert frame.rdd.getNumPartitions() == 8
    assert offsets(frame) == [(partition, offset) for partition in (0, 1) for offset in range(10)]


def test_an_empty_topic_is_an_empty_frame(read, admin):
    admin.create_topic("empty", partitions=2)
    assert read("empty").collect() == []


def test_a_frame_keeps_the_offsets_it_was_planned_with(read, admin, produce):
    admin.create_topic("growing", partitions=1)
    produce("growing", [{"value": b"first"}])
    frame = read("growing", columns="value")
    assert [row.value for row in frame.collect()] == [b"first"]
    produce("growing", [{"value": b"second"}])
    assert [row.value for row in frame.collect()] == [b"first"]
    assert len(read("growing").collect()) == 2


def test_a_range_that_does_not_exist_is_an_error_that_names_it(read, small):
    text = failure_of(read(small, endingOffsets='{"small":{"0":11,"1":-1}}').collect)
    assert "OffsetOutOfRange: small-0 of cluster 'shared'" in text
    assert "offsets [0, 11) were asked for, [0, 10) are available" in text


def test_without_fail_on_data_loss_what_is_there_is_read(read, small):
    frame = read(small, endingOffsets='{"small":{"0":11,"1":0}}', failOnDataLoss="false")
    assert offsets(frame) == [(0, offset) for offset in range(10)]


def test_an_unknown_topic_is_an_error_with_the_nearest_name(read, small):
    text = failure_of(read("smal").collect)
    assert "cluster 'shared' has no topic 'smal'" in text
    assert "'small'" in text


def test_an_unknown_cluster_is_an_error_that_names_it(spark, small):
    frame = spark.read.format("rayka").options(cluster="nowhere", subscribe=small)
    assert "ClusterNotFound" in (text := failure_of(lambda: frame.load().collect()))
    assert "nowhere" in text


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"startingOffset": "earliest"},
            'unknown option "startingoffset"; the nearest known option is "startingOffsets"',
        ),
        ({"groupId": "g"}, 'option "groupId" is not supported yet'),
        ({"columns": "wert"}, "option \"columns\": unknown column 'wert'"),
    ],
)
def test_a_wrong_option_is_an_error_when_the_frame_is_made(read, small, options, message):
    assert f"ConfigError: rayka source: {message}" in failure_of(lambda: read(small, **options))


def test_a_topic_made_anew_after_planning_is_an_error(read, admin, produce):
    admin.create_topic("reborn", partitions=1)
    produce("reborn", [{"value": b"old"}])
    frame = read("reborn")
    assert [row.value for row in frame.collect()] == [b"old"]
    admin.delete_topic("reborn")
    admin.create_topic("reborn", partitions=1)
    produce("reborn", [{"value": b"new"}])
    assert "TopicRecreated: topic 'reborn' of cluster 'shared'" in failure_of(frame.collect)
    assert [row.value for row in read("reborn").collect()] == [b"new"]


def test_the_source_can_be_registered_on_any_session_with_the_ray_named(spark, read, cluster, small):
    spark.dataSource.register(rayka.spark.RaykaDataSource)
    try:
        assert read(small, rayAddress=cluster.ray_address).count() == 20
    finally:
        rayka.spark.register(spark, ray_address=cluster.ray_address, slot_count=2)


def test_a_json_of_all_partitions_is_asked_for(read, small):
    text = failure_of(read(small, startingOffsets=json.dumps({"small": {"0": 1}})).collect)
    assert "leaves out small-1" in text
