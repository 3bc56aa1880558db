"""Which offsets a query reads: bounds, data loss, and how ranges are cut into tasks."""

from itertools import pairwise
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rayka.errors import ConfigError, OffsetOutOfRange, UnknownTopicOrPartition
from rayka.ids import TopicPartition
from rayka.spark.plan import AvailableRange, OffsetRange, plan_ranges, split_ranges
from rayka.spark.source_options import Bound, ReadOptions

TOPIC_ID = UUID(int=7)
AVAILABLE = {
    TopicPartition("a", 0): AvailableRange(TOPIC_ID, 10, 100),
    TopicPartition("a", 1): AvailableRange(TOPIC_ID, 0, 0),
    TopicPartition("a", 2): AvailableRange(TOPIC_ID, 0, 5),
}


def planned(*, starting=Bound.EARLIEST, ending=Bound.LATEST, fail_on_data_loss=True):
    options = ReadOptions(
        ("a",), starting_offsets=starting, ending_offsets=ending, fail_on_data_loss=fail_on_data_loss
    )
    ranges = plan_ranges(options, AVAILABLE)
    return {each.topic_partition.partition: (each.start_offset, each.end_offset) for each in ranges}


def test_earliest_to_latest_is_what_is_there_now_and_empty_partitions_make_no_task():
    assert planned() == {0: (10, 100), 2: (0, 5)}


def test_offsets_and_bounds_may_be_mixed_by_partition():
    assert planned(starting={"a": {0: 40, 1: -2, 2: 3}}, ending={"a": {0: -1, 1: -1, 2: 4}}) == {
        0: (40, 100),
        2: (3, 4),
    }


@pytest.mark.parametrize(
    ("starting", "ending", "asked"),
    [
        ({"a": {0: 5, 1: -2, 2: -2}}, Bound.LATEST, "[5, 100)"),
        ({"a": {0: 101, 1: -2, 2: -2}}, Bound.LATEST, "[101, 100)"),
        (Bound.EARLIEST, {"a": {0: 101, 1: -1, 2: -1}}, "[10, 101)"),
    ],
)
def test_a_range_that_is_not_there_fails_naming_partition_and_both_ranges(starting, ending, asked):
    with pytest.raises(OffsetOutOfRange) as refused:
        planned(starting=starting, ending=ending)
    assert f"a-0 of cluster 'rayka': offsets {asked} were asked for, [10, 100) are available" in str(
        refused.value
    )


def test_without_fail_on_data_loss_what_is_there_is_read_with_a_warning(caplog):
    ranges = planned(
        starting={"a": {0: 5, 1: 3, 2: 9}}, ending={"a": {0: 200, 1: 4, 2: -1}}, fail_on_data_loss=False
    )
    assert ranges == {0: (10, 100)}
    assert [record.getMessage().split(" of ")[0] for record in caplog.records] == ["a-0", "a-1", "a-2"]


def test_an_end_before_the_start_is_a_contradiction():
    with pytest.raises(ConfigError, match="startingOffsets 50 lies after endingOffsets 40"):
        planned(starting={"a": {0: 50, 1: -2, 2: -2}}, ending={"a": {0: 40, 1: -1, 2: -1}})


def test_every_partition_must_be_named_and_exist():
    with pytest.raises(ConfigError, match="leaves out a-2"):
        planned(starting={"a": {0: 10, 1: -2}})
    with pytest.raises(UnknownTopicOrPartition, match="names a-3, which does not exist"):
        planned(ending={"a": {0: -1, 1: -1, 2: -1, 3: -1}})


def test_without_fail_on_data_loss_a_partition_that_is_gone_is_left_out_with_a_warning(caplog):
    starting = {"a": {0: 10, 1: -2, 2: -2, 3: 7}}
    assert planned(starting=starting, fail_on_data_loss=False) == {0: (10, 100), 2: (0, 5)}
    assert "'startingOffsets' names a-3, which does not exist" in caplog.text


def ranges_of(counts):
    return [
        OffsetRange(TopicPartition("a", index), TOPIC_ID, 7, 7 + count) for index, count in enumerate(counts)
    ]


def test_small_topics_are_not_cut_unless_asked_to():
    assert len(split_ranges(ranges_of([20_000, 10]), min_partitions=0, slot_count=8)) == 2
    assert len(split_ranges(ranges_of([20_000, 10]), min_partitions=8, slot_count=1)) == 9


def test_one_large_partition_gives_every_core_work():
    pieces = split_ranges(ranges_of([5_000_000]), min_partitions=0, slot_count=2)
    assert len(pieces) >= 2
    assert max(each.offset_count for each in pieces) - min(each.offset_count for each in pieces) <= 1


@given(
    counts=st.lists(st.integers(1, 10**7), max_size=8),
    min_partitions=st.integers(0, 50),
    slot_count=st.integers(1, 16),
)
def test_pieces_cover_their_ranges_in_order_without_hole_or_overlap(counts, min_partitions, slot_count):
    ranges = ranges_of(counts)
    pieces = split_ranges(ranges, min_partitions=min_partitions, slot_count=slot_count)
    assert all(each.offset_count > 0 for each in pieces)
    for whole in ranges:
        own = [each for each in pieces if each.topic_partition == whole.topic_partition]
        edges = [(each.start_offset, each.end_offset) for each in own]
        assert [edges[0][0], edges[-1][1]] == [whole.start_offset, whole.end_offset]
        assert all(left[1] == right[0] for left, right in pairwise(edges))
