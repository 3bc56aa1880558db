"""A snapshot of the metadata: loading it and replaying what follows is replaying everything (A45, H9)."""

from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rayka.ids import TopicIdPartition
from rayka.metadata.delta import MetadataDelta
from rayka.metadata.image import MetadataImage
from rayka.metadata.image_snapshot import image_of, image_records
from rayka.metadata.metadata_records import (
    BrokerRegistrationChangeRecord,
    ConfigRecord,
    MetadataRecord,
    PartitionChangeRecord,
    RegisterBrokerRecord,
    RemoveTopicRecord,
    UnregisterBrokerRecord,
    decode_record,
    encode_record,
)
from rayka.protocol.configs import ResourceType
from tests.metadata.strategies import record_runs
from tests.metadata.support import ORDERS, delta_between, directory, partition, registered, topic, unfenced

PAYMENTS = UUID(int=200)


def replayed(
    records: list[MetadataRecord], base: MetadataImage | None = None, group: int = 3
) -> MetadataImage:
    """The image after these records, which come in groups of this size."""
    image = base or MetadataImage()
    for begin in range(0, len(records), group):
        delta, some = MetadataDelta(image), records[begin : begin + group]
        for record in some:
            delta.replay(record)
        image = delta.apply(image.next_offset + len(some))
    return image


def loaded(image: MetadataImage) -> MetadataImage:
    """The image out of its snapshot."""
    values = [encode_record(record) for record in image_records(image)]
    return image_of(map(decode_record, values), image.next_offset)


def orders(image: MetadataImage) -> list[object]:
    """The order of every map but that of the configurations, which depends on how records were grouped."""
    inner = [list(image.configs.get(each, {}).items()) for each in sorted(image.configs, key=repr)]
    return [list(image.topics), list(image.topics_by_id), list(image.brokers), list(image.features), inner]


def config(name: str, value: str | None, topic_name: str = "orders") -> ConfigRecord:
    return ConfigRecord(resource_type=ResourceType.TOPIC, resource_name=topic_name, name=name, value=value)


@given(record_runs(), st.integers(0, 18), st.integers(1, 7), st.integers(1, 7))
def test_the_log_is_the_snapshot_and_the_tail(
    records: list[MetadataRecord], end: int, group: int, other_group: int
) -> None:  # A45, H9
    whole = replayed(records, group=group)
    snapshot = loaded(replayed(records[:end], group=other_group))
    after = replayed(records[end:], snapshot, group=other_group)
    assert after == whole
    assert orders(after) == orders(whole)


@given(record_runs(), st.integers(1, 7), st.integers(1, 7))
def test_a_snapshot_does_not_depend_on_how_the_records_came(
    records: list[MetadataRecord], group: int, other_group: int
) -> None:
    one, other = (replayed(records, group=each) for each in (group, other_group))
    assert list(image_records(one)) == list(image_records(other)) == list(image_records(loaded(one)))


@given(record_runs(), st.integers(0, 18))
def test_the_delta_between_two_images_leads_from_one_to_the_other(
    records: list[MetadataRecord], end: int
) -> None:  # H9
    old, new = replayed(records[:end]), replayed(records)
    delta = delta_between(old, new)
    assert delta.apply(new.next_offset) == new
    assert orders(delta.apply(new.next_offset)) == orders(new)
    assert set(delta.deleted_topics()) == set(old.topics_by_id) - set(new.topics_by_id)
    changed = {key for key, state in new.partitions() if old.partition(key) != state}
    assert set(delta.changed_partitions()) == changed
    assert delta_between(new, new).is_empty


def test_between_two_images_a_topic_was_deleted_another_changed_and_one_of_an_old_name_made() -> None:
    old = image_of(
        [
            registered(1),
            topic(),
            partition(0),
            config("retention.ms", "1"),
            topic("payments", PAYMENTS),
            partition(0, topic_id=PAYMENTS),
            partition(1, topic_id=PAYMENTS),
            config("retention.ms", "5", "payments"),
        ],
        8,
    )
    again = UUID(int=300)
    new = replayed(
        [
            unfenced(1),
            RemoveTopicRecord(topic_id=ORDERS),
            topic("orders", again),
            partition(0, topic_id=again),
            config("cleanup.policy", "compact"),
            PartitionChangeRecord(topic_id=PAYMENTS, partition=1, leader_id=-1),
            config("retention.ms", None, "payments"),
        ],
        old,
    )
    delta = delta_between(old, new)
    assert delta.deleted_topics() == [ORDERS]
    assert delta.changed_partitions() == [TopicIdPartition(PAYMENTS, 1), TopicIdPartition(again, 0)]
    assert sorted(delta.reconfigured_topics()) == ["orders", "payments"]
    assert delta.apply(new.next_offset) == new


@pytest.mark.parametrize("group", [1, 2, 3, 4])
def test_a_broker_that_was_unregistered_and_is_back_is_where_it_was(group: int) -> None:
    gone = UnregisterBrokerRecord(broker_id=1, broker_epoch=1)
    image = replayed([registered(2), registered(1), gone, registered(1, epoch=3)], group=group)
    assert [each.broker_id for each in image_records(image) if isinstance(each, RegisterBrokerRecord)] == [
        1,
        2,
    ]


def test_a_broker_that_is_not_registered_does_not_change() -> None:
    gone = UnregisterBrokerRecord(broker_id=1, broker_epoch=1)
    with pytest.raises(AssertionError, match="expected broker 1 in epoch 1, found none"):
        replayed([registered(1), gone, unfenced(1)])


@pytest.mark.parametrize("fencing", [{}, {"is_fenced": True}], ids=["alone", "and fenced"])
def test_a_snapshot_says_which_directories_are_offline(fencing: dict[str, bool]) -> None:  # H3, A45
    failed = directory(1, 1).directory_id
    offline = BrokerRegistrationChangeRecord(
        broker_id=1, broker_epoch=1, offline_directories=(failed,), **fencing
    )
    image = replayed([registered(1, directory_count=2, is_fenced=False), offline])
    assert loaded(image).brokers == image.brokers
    assert loaded(image).brokers[1].offline_directories == (failed,)


def test_an_empty_image_has_no_records() -> None:
    assert list(image_records(MetadataImage())) == []
    assert image_of([], 0) == MetadataImage()
