"""What is read of topics that change, as the metadata show them (G16)."""

import logging
from uuid import UUID

import numpy as np
import pytest

from rayka.client.consumer.fetch_state import FetchStart, FetchState, Subscription
from rayka.config.client_config import ConsumerConfig
from rayka.errors import InconsistentTopicId, RaykaError
from rayka.ids import TopicPartition
from rayka.protocol.fetch import EARLIEST_TIMESTAMP, LATEST_TIMESTAMP
from rayka.protocol.membership import MetadataPartition, MetadataTopic

OLD_ID, NEW_ID = UUID(int=1), UUID(int=2)
FIRST, SECOND, THIRD = (TopicPartition("orders", number) for number in range(3))
OTHER = TopicPartition("flights", 0)
BYTES = np.zeros(64, dtype=np.uint8)


class Reading:
    """A subscription and the state that it changes; `errors`: the errors that wait for the application."""

    def __init__(self, reset: str = "latest") -> None:
        self.state = FetchState(ConsumerConfig.parse({"auto_offset_reset": reset}, what="consumer"))
        self.subscription = Subscription(self.state, "scripted")

    def assign(self, *, is_bounded: bool = False) -> None:
        self.subscription.assign([FIRST, OTHER], {"orders": OLD_ID, "flights": OLD_ID}, is_bounded=is_bounded)

    def starts(self) -> dict[TopicPartition, int | None]:
        return {each.topic_partition: each.timestamp_ms for each in self.state.without_offset()}

    @property
    def errors(self) -> dict[TopicPartition, RaykaError]:
        errors = {tp: self.state.buffer.error(tp) for tp in (FIRST, SECOND, THIRD, OTHER)}
        return {tp: error for tp, error in errors.items() if error is not None}

    def fetch(self, topic_partition: TopicPartition) -> None:
        self.state.seek(topic_partition, 5)
        ticket = self.state.ticket(topic_partition)
        assert ticket is not None
        self.state.on_fetched(ticket, (BYTES,), 9, 0)


def topic(partition_count: int, topic_id: UUID = OLD_ID, name: str = "orders") -> MetadataTopic:
    partitions = (MetadataPartition(number, 1, 1, (1,), (1,)) for number in range(partition_count))
    return MetadataTopic(name, topic_id, tuple(partitions))


def test_a_partition_that_is_added_to_a_followed_topic_is_read_from_its_beginning() -> None:
    reading = Reading(reset="latest")
    reading.subscription.follow([topic(1), topic(1, name="flights")])
    reading.state.seek(FIRST, 5)
    assert reading.subscription.on_metadata(topic(3))
    assert list(reading.subscription.partitions) == [FIRST, OTHER, SECOND, THIRD]
    assert reading.starts() == {
        OTHER: LATEST_TIMESTAMP,
        SECOND: EARLIEST_TIMESTAMP,
        THIRD: EARLIEST_TIMESTAMP,
    }


def test_metadata_that_tell_nothing_new_change_nothing() -> None:
    reading = Reading()
    reading.subscription.follow([topic(2)])
    before = reading.state.position(FIRST).position_version
    for each in (topic(2), topic(9, name="not read")):
        assert not reading.subscription.on_metadata(each)
    assert list(reading.subscription.partitions) == [FIRST, SECOND]
    assert reading.state.position(FIRST).position_version == before


def test_what_was_assigned_gets_no_partition_that_is_added() -> None:
    reading = Reading()
    reading.assign()
    assert not reading.subscription.on_metadata(topic(3))
    assert list(reading.subscription.partitions) == [FIRST, OTHER]


def test_an_offset_in_a_topic_that_was_created_again_is_reset_and_no_other(
    caplog: pytest.LogCaptureFixture,
) -> None:
    reading = Reading(reset="earliest")
    reading.assign()
    reading.state.seek(FIRST, 5)
    reading.state.seek(OTHER, 7)
    with caplog.at_level(logging.WARNING):
        for _ in range(2):
            reading.subscription.on_metadata(topic(1, NEW_ID))
    assert reading.starts() == {FIRST: EARLIEST_TIMESTAMP}
    assert reading.errors == {}
    assert len(caplog.records) == 1


def test_what_was_fetched_of_a_topic_that_was_created_again_is_still_given() -> None:
    reading = Reading()
    reading.assign()
    reading.fetch(FIRST)
    reading.subscription.on_metadata(topic(1, NEW_ID))
    assert [each.next_offset for each in reading.state.buffer.take()] == [9]


def test_an_answer_of_the_former_topic_that_comes_late_changes_no_position() -> None:
    reading = Reading()
    reading.assign()
    reading.state.seek(FIRST, 5)
    ticket = reading.state.ticket(FIRST)
    assert ticket is not None
    reading.subscription.on_metadata(topic(1, NEW_ID))
    reading.state.on_fetched(ticket, (BYTES,), 9, 0)
    reading.state.on_offset(FetchStart(FIRST, ticket.position_version, None), 3)
    assert reading.state.buffer.take() == ()
    assert reading.starts()[FIRST] == LATEST_TIMESTAMP


def test_a_start_that_was_sought_and_not_looked_up_yet_holds_for_the_new_topic() -> None:
    reading = Reading(reset="none")
    reading.assign()
    reading.state.seek_to_timestamp(FIRST, EARLIEST_TIMESTAMP)
    reading.subscription.on_metadata(topic(1, NEW_ID))
    assert reading.starts()[FIRST] == EARLIEST_TIMESTAMP
    assert reading.errors == {}


def test_without_a_reset_policy_a_topic_that_was_created_again_is_an_error_for_the_application() -> None:
    reading = Reading(reset="none")
    reading.assign()
    reading.state.seek(FIRST, 5)
    reading.subscription.on_metadata(topic(1, NEW_ID))
    assert [(tp, type(error).__mro__[1]) for tp, error in reading.errors.items()] == [
        (FIRST, InconsistentTopicId)
    ]


def test_what_is_bounded_ends_with_its_topic() -> None:
    reading = Reading(reset="earliest")
    reading.assign(is_bounded=True)
    reading.fetch(FIRST)
    for _ in range(2):
        reading.subscription.on_metadata(topic(1, NEW_ID))
    assert list(reading.errors) == [FIRST]
    assert FIRST not in reading.starts()


def test_a_followed_topic_that_was_created_again_is_read_with_the_partitions_that_it_has() -> None:
    reading = Reading(reset="earliest")
    reading.subscription.follow([topic(3)])
    reading.subscription.on_metadata(topic(1, NEW_ID))
    assert list(reading.subscription.partitions) == [FIRST]
    assert reading.subscription.on_metadata(topic(2, NEW_ID))
    assert list(reading.subscription.partitions) == [FIRST, SECOND]
