"""What a consumer is about to fetch (G16)."""

import numpy as np
import pytest

from rayka.client.fetch_state import FetchState
from rayka.errors import OffsetOutOfRange
from rayka.ids import TopicPartition

FIRST, SECOND = TopicPartition("flights", 0), TopicPartition("flights", 1)
BYTES = np.zeros(64, dtype=np.uint8)


def state(
    *, reset: str = "earliest", partition_bytes_max: int = 100, total_bytes_max: int = 1_000
) -> FetchState:
    made = FetchState(
        auto_offset_reset=reset, partition_bytes_max=partition_bytes_max, total_bytes_max=total_bytes_max
    )
    made.assign([FIRST, SECOND])
    return made


def test_a_partition_without_offset_is_looked_up_by_the_reset_policy():
    assert state().without_offset() == [(FIRST, -2), (SECOND, -2)]
    assert state(reset="latest").without_offset() == [(FIRST, -1), (SECOND, -1)]
    assert state(reset="none").without_offset() == [(FIRST, None), (SECOND, None)]


def test_a_partition_is_in_one_fetch_at_a_time():
    fetching = state()
    fetching.seek(FIRST, 5)
    assert fetching.fetchable() == [FIRST]
    ticket = fetching.begin_fetch(FIRST)
    assert fetching.fetchable() == []
    fetching.end_fetch(ticket)
    assert fetching.fetchable() == [FIRST]


def test_the_next_fetch_begins_at_the_brokers_next_offset():  # G16: not at "last record + 1"
    fetching = state()
    fetching.seek(FIRST, 5)
    ticket = fetching.begin_fetch(FIRST)
    fetching.on_fetched(ticket, (BYTES,), 17)
    fetching.end_fetch(ticket)
    assert fetching.begin_fetch(FIRST).fetch_offset == 17


def test_what_was_fetched_before_a_seek_is_dropped():
    fetching = state()
    fetching.seek(FIRST, 0)
    early = fetching.begin_fetch(FIRST)
    fetching.on_fetched(early, (BYTES,), 10)
    late = fetching.begin_fetch(FIRST) if FIRST in fetching.fetchable() else early
    fetching.seek(FIRST, 100)
    fetching.on_fetched(late, (BYTES,), 20)
    assert fetching.take() == ()
    assert fetching.begin_fetch(FIRST).fetch_offset == 100


def test_a_partition_assigned_anew_takes_no_result_of_its_former_self():
    fetching = state()
    fetching.seek(FIRST, 0)
    ticket = fetching.begin_fetch(FIRST)
    fetching.assign([SECOND])
    fetching.assign([FIRST, SECOND])
    fetching.on_fetched(ticket, (BYTES,), 10)
    assert fetching.take() == ()


def test_fetching_stops_while_a_partition_holds_its_share():
    fetching = state(partition_bytes_max=60)
    fetching.seek(FIRST, 0)
    fetching.seek(SECOND, 0)
    ticket = fetching.begin_fetch(FIRST)
    fetching.on_fetched(ticket, (BYTES,), 10)
    fetching.end_fetch(ticket)
    assert fetching.fetchable() == [SECOND]
    assert [each.next_offset for each in fetching.take()] == [10]
    assert fetching.fetchable() == [FIRST, SECOND]


def test_fetching_stops_at_the_total():
    fetching = state(total_bytes_max=64)
    fetching.seek(FIRST, 0)
    fetching.seek(SECOND, 0)
    fetching.on_fetched(fetching.begin_fetch(FIRST), (BYTES,), 10)
    assert fetching.fetchable() == []


def test_an_error_is_heard_once_and_after_the_data_before_it():
    fetching = state()
    fetching.seek(FIRST, 0)
    ticket = fetching.begin_fetch(FIRST)
    fetching.on_fetched(ticket, (BYTES,), 10)
    fetching.on_error(ticket, OffsetOutOfRange("gone"))
    assert len(fetching.take()) == 1
    with pytest.raises(OffsetOutOfRange, match="gone"):
        fetching.take()
    assert fetching.take() == ()


def test_an_out_of_range_offset_is_reset_only_with_a_policy():
    for policy, expected in (("earliest", True), ("none", False)):
        fetching = state(reset=policy)
        fetching.seek(FIRST, 1_000)
        assert fetching.reset(fetching.begin_fetch(FIRST)) is expected


def test_a_late_lookup_does_not_undo_a_seek():
    fetching = state()
    generation = fetching.generation(FIRST)
    fetching.seek(FIRST, 42)
    fetching.on_offset(FIRST, generation, 0)
    assert fetching.begin_fetch(FIRST).fetch_offset == 42
