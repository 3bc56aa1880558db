"""The options of the data source: what is accepted, and what every refusal says."""

import pytest

from rayka.errors import ConfigError
from rayka.spark.schema import COLUMNS
from rayka.spark.source_options import Bound, ReadOptions


def test_subscribe_alone_reads_everything_there_is_without_headers():
    options = ReadOptions.parse({"subscribe": "a, b"})
    assert options == ReadOptions(topics=("a", "b"), cluster="rayka", columns=COLUMNS)
    assert (options.starting_offsets, options.ending_offsets) == (Bound.EARLIEST, Bound.LATEST)
    assert options.fail_on_data_loss


def test_names_of_options_have_no_case_because_spark_lowers_them():
    options = ReadOptions.parse(
        {"SUBSCRIBE": "a", "includeheaders": "True", "failondataloss": "false", "rayaddress": "x:1"}
        | {"transport": "RAY"}
    )
    assert options.columns == (*COLUMNS, "headers")
    assert not options.fail_on_data_loss
    assert options.ray_address == "x:1"
    assert options.transport == "ray"


def test_offsets_may_be_given_by_partition_as_json():
    options = ReadOptions.parse(
        {
            "subscribe": "a",
            "startingOffsets": '{"a":{"0":12,"1":-2}}',
            "endingOffsets": '{"a":{"0":20,"1":-1}}',
        }
    )
    assert options.starting_offsets == {"a": {0: 12, 1: -2}}
    assert options.ending_offsets == {"a": {0: 20, 1: -1}}


def test_columns_come_in_the_order_asked_for():
    options = ReadOptions.parse({"subscribe": "a", "columns": "offset, VALUE,timestamptype"})
    assert options.columns == ("offset", "value", "timestampType")


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({}, '"subscribe" is missing'),
        ({"subscribe": " ,"}, '"subscribe" is missing'),
        ({"subscribe": "a,a"}, "names something twice"),
        (
            {"subscribe": "a", "startOffset": "1"},
            'unknown option "startOffset"; the nearest known option is "startingOffsets"',
        ),
        ({"subscribe": "a", "zzz": "1"}, "known options: cluster, rayAddress"),
        ({"subscribepattern": "a.*"}, '"subscribePattern" is not supported yet'),
        ({"assign": '{"a":[0]}'}, '"assign" is not supported yet'),
        ({"subscribe": "a", "groupid": "g"}, '"groupId" is not supported yet'),
        ({"subscribe": "a", "kafka.bootstrap.servers": "h:9092"}, 'name a cluster with "cluster"'),
        ({"subscribe": "a", "columns": "value,wert"}, "unknown column 'wert'; there are key, value"),
        ({"subscribe": "a", "columns": "headers"}, 'needs the option "includeHeaders"'),
        ({"subscribe": "a", "columns": ""}, '"columns" is empty'),
        ({"subscribe": "a", "includeHeaders": "yes"}, '"true" or "false", found \'yes\''),
        ({"subscribe": "a", "minPartitions": "0"}, "at least 1, found '0'"),
        ({"subscribe": "a", "transport": "tcp"}, '"auto" or "ray", found \'tcp\''),
        ({"subscribe": "a", "startingOffsets": "latest"}, "it would read nothing"),
        ({"subscribe": "a", "endingOffsets": "earliest"}, "it would read nothing"),
        ({"subscribe": "a", "startingOffsets": "12"}, 'JSON such as {"a":{"0":12,"1":-2}}, found \'12\''),
        ({"subscribe": "a", "startingOffsets": '{"a":{"x":1}}'}, "partition 'x' with offset 1"),
        ({"subscribe": "a", "startingOffsets": '{"a":{"0":1.5}}'}, "partition '0' with offset 1.5"),
        ({"subscribe": "a", "startingOffsets": '{"b":{"0":1}}'}, "expected a, found b"),
        ({"subscribe": "a", "startingOffsets": '{"a":{"0":-1}}'}, "a-0 cannot be -1; -2 stands for earliest"),
        ({"subscribe": "a", "endingOffsets": '{"a":{"0":-2}}'}, "a-0 cannot be -2; -1 stands for latest"),
    ],
)
def test_what_makes_no_sense_is_refused_by_name(given, message):
    with pytest.raises(ConfigError) as refused:
        ReadOptions.parse(given)
    assert message in str(refused.value)
