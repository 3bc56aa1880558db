"""What a consumer is about to fetch (G16)."""

import numpy as np
import pytest

from rayka.client.consumer.fetch_state import FetchStart, FetchState, FetchTicket
from rayka.config.client_config import ConsumerConfig
from rayka.errors import LogTruncation, OffsetOutOfRange
from rayka.ids import NO_EPOCH, OffsetAndEpoch, TopicPartition

FIRST, SECOND = TopicPartition("flights", 0), TopicPartition("flights", 1)
BYTES = np.zeros(64, dtype=np.uint8)
EPOCH = 3


def state(
    *, reset: str = "earliest", partition_bytes_max: int = 100, total_bytes_max: int = 1_000
) -> FetchState:
    options = {"max_partition_fetch_bytes": partition_bytes_max, "fetch_max_bytes": total_bytes_max}
    made = FetchState(ConsumerConfig.parse({"auto_offset_reset": reset, **options}, what="consumer"))
    made.assign([FIRST, SECOND])
    return made


def ticket_of(fetching: FetchState, topic_partition: TopicPartition) -> FetchTicket:
    ticket = fetching.ticket(topic_partition)
    assert ticket is not None, topic_partition
    return ticket


def start_of(fetching: FetchState, topic_partition: TopicPartition) -> FetchStart:
    position = fetching.position(topic_partition)
    assert isinstance(position, FetchStart), position
    return position


def wanted(fetching: FetchState) -> list[TopicPartition]:
    return [each for each in (FIRST, SECOND) if fetching.ticket(each) is not None]


def test_a_partition_without_offset_is_looked_up_by_the_reset_policy():
    for reset, timestamp_ms in (("earliest", -2), ("latest", -1), ("none", None)):
        starts = state(reset=reset).without_offset()
        assert [(each.topic_partition, each.timestamp_ms) for each in starts] == [
            (FIRST, timestamp_ms),
            (SECOND, timestamp_ms),
        ]


def test_only_what_has_changed_is_to_be_looked_at() -> None:  # G14
    fetching = state()
    fetching.changed.take()
    assert fetching.changed.take() == []
    fetching.seek(FIRST, 5)
    assert fetching.changed.take() == [FIRST]
    fetching.on_fetched(ticket_of(fetching, FIRST), (BYTES,), 17, EPOCH)
    assert fetching.changed.take() == [FIRST]
    fetching.buffer.take()
    assert fetching.changed.take() == []
    fetching.assign([SECOND])
    assert fetching.changed.take() == [FIRST]


def test_a_second_answer_to_the_same_question_brings_nothing() -> None:  # G14
    fetching = state()
    fetching.seek(FIRST, 5)
    ticket = ticket_of(fetching, FIRST)
    fetching.on_fetched(ticket, (BYTES,), 17, EPOCH)
    fetching.on_fetched(ticket, (BYTES,), 17, EPOCH)
    assert len(fetching.buffer.take()) == 1


def test_a_partition_that_rests_is_asked_for_again_afterwards():
    fetching = state()
    fetching.seek(FIRST, 5)
    ticket = ticket_of(fetching, FIRST)
    fetching.rest(ticket)
    assert wanted(fetching) == []
    fetching.changed.take()
    fetching.end_rest(ticket)
    assert (wanted(fetching), fetching.changed.take()) == ([FIRST], [FIRST])


def test_a_rest_ends_with_the_position_that_it_began_at():
    fetching = state()
    fetching.seek(FIRST, 5)
    ticket = ticket_of(fetching, FIRST)
    fetching.rest(ticket)
    fetching.on_fetched(ticket, (BYTES,), 17, EPOCH)
    fetching.end_rest(ticket)
    assert wanted(fetching) == [FIRST]


def test_a_seek_ends_a_rest():
    fetching = state()
    fetching.seek(FIRST, 5)
    fetching.rest(ticket_of(fetching, FIRST))
    fetching.seek(FIRST, 6)
    assert wanted(fetching) == [FIRST]


@pytest.mark.parametrize("moved_to", [5, 6], ids=["back to the same offset", "elsewhere"])
def test_the_end_of_a_fetch_from_before_a_seek_says_nothing_of_the_one_after_it(moved_to: int) -> None:  # G16
    fetching = state()
    fetching.seek(FIRST, 5)
    before = ticket_of(fetching, FIRST)
    fetching.seek(FIRST, moved_to)
    after = ticket_of(fetching, FIRST)
    fetching.rest(before)
    assert wanted(fetching) == [FIRST]
    fetching.rest(after)
    fetching.end_rest(before)
    assert wanted(fetching) == []
    fetching.end_rest(after)
    assert wanted(fetching) == [FIRST]


def test_the_next_fetch_begins_at_the_brokers_next_offset():  # G16: not at "last record + 1"
    fetching = state()
    fetching.seek(FIRST, 5)
    ticket = ticket_of(fetching, FIRST)
    fetching.on_fetched(ticket, (BYTES,), 17, EPOCH)
    assert ticket_of(fetching, FIRST).fetch_offset == 17


def test_what_was_fetched_before_a_seek_is_dropped():
    fetching = state()
    fetching.seek(FIRST, 0)
    early = ticket_of(fetching, FIRST)
    fetching.on_fetched(early, (BYTES,), 10, EPOCH)
    late = ticket_of(fetching, FIRST)
    fetching.seek(FIRST, 100)
    fetching.on_fetched(late, (BYTES,), 20, EPOCH)
    assert fetching.buffer.take() == ()
    assert ticket_of(fetching, FIRST).fetch_offset == 100


def test_a_partition_assigned_anew_takes_no_result_of_its_former_self():
    fetching = state()
    fetching.seek(FIRST, 0)
    ticket = ticket_of(fetching, FIRST)
    fetching.assign([SECOND])
    fetching.assign([FIRST, SECOND])
    fetching.on_fetched(ticket, (BYTES,), 10, EPOCH)
    assert fetching.buffer.take() == ()


def test_fetching_stops_while_a_partition_holds_its_share():
    fetching = state(partition_bytes_max=60)
    fetching.seek(FIRST, 0)
    fetching.seek(SECOND, 0)
    fetching.on_fetched(ticket_of(fetching, FIRST), (BYTES,), 10, EPOCH)
    assert wanted(fetching) == [SECOND]
    fetching.changed.take()
    assert [each.next_offset for each in fetching.buffer.take()] == [10]
    assert (wanted(fetching), fetching.changed.take()) == ([FIRST, SECOND], [FIRST])


def test_fetching_stops_at_the_total():
    fetching = state(total_bytes_max=64)
    fetching.seek(FIRST, 0)
    assert fetching.buffer.has_room
    fetching.on_fetched(ticket_of(fetching, FIRST), (BYTES,), 10, EPOCH)
    assert not fetching.buffer.has_room
    fetching.seek(FIRST, 0)
    assert fetching.buffer.has_room


def test_an_error_is_raised_once_and_after_the_data_before_it():
    fetching = state()
    fetching.seek(FIRST, 0)
    ticket = ticket_of(fetching, FIRST)
    fetching.on_fetched(ticket, (BYTES,), 10, EPOCH)
    fetching.on_error(ticket_of(fetching, FIRST), OffsetOutOfRange("gone"))
    assert len(fetching.buffer.take()) == 1
    with pytest.raises(OffsetOutOfRange, match="gone"):
        fetching.buffer.take()
    assert fetching.buffer.take() == ()


def test_a_partition_whose_error_was_raised_is_planned_again():
    fetching = state()
    fetching.seek(FIRST, 0)
    fetching.on_error(ticket_of(fetching, FIRST), OffsetOutOfRange("gone"))
    fetching.changed.take()
    with pytest.raises(OffsetOutOfRange, match="gone"):
        fetching.buffer.take()
    assert fetching.changed.take() == [FIRST]
    assert fetching.ticket(FIRST) is not None


def test_what_was_fetched_of_a_former_topic_counts_for_the_share_of_the_new_one():
    fetching = state(partition_bytes_max=60)
    fetching.seek(FIRST, 0)
    fetching.on_fetched(ticket_of(fetching, FIRST), (BYTES,), 10, EPOCH)
    fetching.begin_again(FIRST)
    fetching.on_offset(start_of(fetching, FIRST), 0)
    assert fetching.ticket(FIRST) is None
    fetching.buffer.take()
    assert fetching.ticket(FIRST) is not None


def test_an_out_of_range_offset_is_reset_only_with_a_policy():
    for policy, expected in (("earliest", True), ("none", False)):
        fetching = state(reset=policy)
        fetching.seek(FIRST, 1_000)
        assert fetching.reset(ticket_of(fetching, FIRST)) is expected


def test_a_late_lookup_does_not_undo_a_seek():
    fetching = state()
    start = start_of(fetching, FIRST)
    fetching.seek(FIRST, 42)
    fetching.on_offset(start, 0)
    assert ticket_of(fetching, FIRST).fetch_offset == 42


# ---- Epochs of positions ----


def test_a_position_knows_the_epoch_of_what_was_read_before_it():  # G2
    fetching = state()
    fetching.on_offset(start_of(fetching, FIRST), 5, EPOCH)
    first = ticket_of(fetching, FIRST)
    fetching.on_fetched(first, (BYTES,), 17, EPOCH + 1)
    assert (first.last_fetched_epoch, ticket_of(fetching, FIRST).last_fetched_epoch) == (EPOCH, EPOCH + 1)


def test_a_fetch_that_brings_nothing_keeps_the_epoch():  # G2
    fetching = state()
    fetching.on_offset(start_of(fetching, FIRST), 5, EPOCH)
    ticket = ticket_of(fetching, FIRST)
    fetching.on_fetched(ticket, (), 5, NO_EPOCH)
    assert ticket_of(fetching, FIRST).last_fetched_epoch == EPOCH


def test_after_a_seek_no_epoch_is_known():  # G2
    fetching = state()
    fetching.on_offset(start_of(fetching, FIRST), 5, EPOCH)
    fetching.seek(FIRST, 3)
    assert ticket_of(fetching, FIRST).last_fetched_epoch == NO_EPOCH


def test_after_a_truncation_the_first_offset_that_differs_is_read_next():  # G16
    fetching = state()
    fetching.on_offset(start_of(fetching, FIRST), 9, EPOCH)
    ticket = ticket_of(fetching, FIRST)
    fetching.on_diverging(ticket, OffsetAndEpoch(6, EPOCH - 1))
    again = ticket_of(fetching, FIRST)
    assert (again.fetch_offset, again.last_fetched_epoch) == (6, EPOCH - 1)
    assert again.position_version != ticket.position_version


def test_without_a_reset_policy_a_truncation_is_raised_with_its_offset():  # G16
    fetching = state(reset="none")
    fetching.on_offset(start_of(fetching, FIRST), 9, EPOCH)
    fetching.on_diverging(ticket_of(fetching, FIRST), OffsetAndEpoch(6, EPOCH - 1))
    with pytest.raises(LogTruncation, match="records from offset 6 on") as caught:
        fetching.buffer.take()
    assert caught.value.divergent_offsets == {FIRST: 6}


def test_a_truncation_that_is_reported_after_a_seek_changes_nothing():  # G16
    fetching = state()
    fetching.seek(FIRST, 9)
    ticket = ticket_of(fetching, FIRST)
    fetching.seek(FIRST, 4)
    fetching.on_diverging(ticket, OffsetAndEpoch(6, EPOCH))
    assert ticket_of(fetching, FIRST).fetch_offset == 4


# ---- Which broker to ask ----


def test_a_read_replica_is_used_until_its_time_is_over():  # G15
    fetching = state()
    fetching.seek(FIRST, 0)
    fetching.read_from(ticket_of(fetching, FIRST), 2, until_ms=100)
    assert [fetching.read_replicas.node_id(FIRST, now_ms) for now_ms in (0, 99, 100)] == [2, 2, None]
    assert fetching.read_replicas.node_id(SECOND, 0) is None


def test_the_leader_is_asked_again_when_something_was_wrong():  # G15
    fetching = state()
    fetching.seek(FIRST, 0)
    fetching.read_from(ticket_of(fetching, FIRST), 2, until_ms=100)
    fetching.read_replicas.read_from_leader(FIRST)
    assert fetching.read_replicas.node_id(FIRST, 0) is None


def test_a_read_replica_whose_time_is_over_changes_which_broker_is_asked():  # G15
    fetching = state()
    fetching.seek(FIRST, 0)
    fetching.read_from(ticket_of(fetching, FIRST), 2, until_ms=100)
    fetching.changed.take()
    fetching.read_replicas.update(99, have_brokers_changed=False)
    assert fetching.changed.take() == []
    fetching.read_replicas.update(99, have_brokers_changed=True)
    assert fetching.changed.take() == [FIRST]
    fetching.read_replicas.update(100, have_brokers_changed=False)
    assert fetching.changed.take() == [FIRST]
