"""The metadata image and its deltas."""

import itertools
from collections.abc import Iterator
from dataclasses import replace
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rayka.errors import ErrorCode
from rayka.ids import TopicIdPartition
from rayka.metadata.delta import MetadataDelta
from rayka.metadata.image import MetadataImage, TopicImage, metadata_steps
from rayka.metadata.metadata_records import (
    BrokerRegistrationChangeRecord,
    ClearElrRecord,
    ConfigRecord,
    FeatureLevelRecord,
    MetadataRecord,
    PartitionChangeRecord,
    RemoveTopicRecord,
)
from rayka.protocol.configs import ResourceType
from rayka.protocol.membership import MetadataRequest, MetadataResponse
from tests.metadata.support import ORDERS, directory, image_of, partition, registered, topic, unfenced

PAYMENTS = UUID(int=200)


def config(name: str, value: str | None, topic_name: str = "orders") -> ConfigRecord:
    return ConfigRecord(resource_type=ResourceType.TOPIC, resource_name=topic_name, name=name, value=value)


def test_a_partition_change_keeps_what_it_does_not_name() -> None:  # H12
    image = image_of(
        [topic(), partition(0, (1, 2, 3)), PartitionChangeRecord(topic_id=ORDERS, partition=0, isr=(1,))]
    )
    assert repr(image.topics["orders"].partitions[0]) == (
        "<PartitionImage leader=1 epoch=0 isr=[1] replicas=[1, 2, 3] partition_epoch=1>"
    )


@pytest.mark.parametrize("leader_id", [1, 2, -1])
def test_naming_a_leader_raises_the_leader_epoch_even_if_it_is_the_same(leader_id: int) -> None:  # H12
    change = PartitionChangeRecord(topic_id=ORDERS, partition=0, leader_id=leader_id)
    changed = image_of([topic(), partition(0, (1, 2)), change]).topics["orders"].partitions[0]
    assert (changed.leader_id, changed.leader_epoch, changed.partition_epoch) == (leader_id, 1, 1)


def test_what_did_not_change_is_shared() -> None:
    before = image_of([topic(), partition(0), partition(1), topic("payments", PAYMENTS), registered(1)])
    after = image_of([PartitionChangeRecord(topic_id=ORDERS, partition=1, isr=(1,))], before)
    assert after.topics["orders"].partitions[0] is before.topics["orders"].partitions[0]
    assert after.topics["payments"] is before.topics["payments"]
    assert after.brokers is before.brokers
    assert after.configs is before.configs


def test_an_image_never_changes() -> None:
    before = image_of([topic(), partition(0), registered(1)])
    image_of([RemoveTopicRecord(topic_id=ORDERS), unfenced(1)], before)
    assert (len(before.topics), before.brokers[1].is_fenced) == (1, True)


def test_a_topic_made_again_in_one_delta_is_another_topic() -> None:
    before = image_of([topic(), partition(0), config("segment.bytes", "2000")])
    delta = MetadataDelta(before)
    remade = [topic("orders", PAYMENTS), partition(0, topic_id=PAYMENTS), config("flush", "batch")]
    for record in [RemoveTopicRecord(topic_id=ORDERS), *remade]:
        delta.replay(record)
    after = delta.apply(9)
    assert delta.deleted_topics() == [ORDERS]
    assert delta.changed_partitions() == [TopicIdPartition(PAYMENTS, 0)]
    assert after.topics["orders"].topic_id == PAYMENTS
    assert after.topic_configs("orders") == {"flush": "batch"}
    assert list(after.topics_by_id) == [PAYMENTS]


def test_a_delta_says_what_changed() -> None:
    before = image_of([topic(), partition(0), partition(1), registered(1)])
    delta = MetadataDelta(before)
    assert delta.is_empty
    for record in (
        PartitionChangeRecord(topic_id=ORDERS, partition=1, isr=(1,)),
        config("flush", "batch"),
        unfenced(1),
    ):
        delta.replay(record)
    assert delta.changed_partitions() == [TopicIdPartition(ORDERS, 1)]
    assert delta.reconfigured_topics() == ["orders"]
    assert delta.deleted_topics() == []


def test_a_config_can_be_unset() -> None:
    image = image_of([topic(), config("flush", "batch"), config("flush", None)])
    assert dict(image.topic_configs("orders")) == {}
    assert not image.configs


def test_a_broker_that_registers_again_has_its_directories_back() -> None:
    failed = directory(1).directory_id
    offline = BrokerRegistrationChangeRecord(broker_id=1, broker_epoch=1, offline_directories=(failed,))
    image = image_of([registered(1, directory_count=2), offline])
    assert image.brokers[1].online_directories == (directory(1, 1).directory_id,)
    assert image_of([registered(1, epoch=7)], image).brokers[1].online_directories == (failed,)


@pytest.mark.parametrize(
    "record",
    [partition(0), PartitionChangeRecord(topic_id=ORDERS, partition=0), RemoveTopicRecord(topic_id=ORDERS)],
)
def test_a_record_that_contradicts_the_image_is_a_bug(record: MetadataRecord) -> None:
    with pytest.raises(AssertionError, match="no such topic"):
        image_of([record])


def test_a_gap_in_partition_numbers_is_a_bug() -> None:
    with pytest.raises(AssertionError, match="none before it"):
        image_of([topic(), partition(1)])


def answer(image: MetadataImage, request: MetadataRequest) -> tuple[MetadataResponse, int]:
    """The answer, and how many steps it took."""
    steps = metadata_steps(image, request, cluster_id="c", controller_id=3001)
    for count in itertools.count(1):
        try:
            next(steps)
        except StopIteration as end:
            return end.value, count
    raise AssertionError("it does not end")


def test_the_response_has_an_error_for_what_is_unknown_or_has_no_leader() -> None:
    image = image_of([registered(1), topic(), partition(0), partition(1, leader_id=-1)])
    response, _ = answer(image, MetadataRequest(("orders", "absent")))
    known, unknown = response.topics
    assert [each.error_code for each in known.partitions] == [ErrorCode.NONE, ErrorCode.LEADER_NOT_AVAILABLE]
    assert unknown.error_code is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert (response.metadata_offset, response.brokers[0].is_fenced) == (4, True)


def test_the_response_without_names_has_all_topics_by_name() -> None:
    image = image_of([topic("zebra"), topic("apple", PAYMENTS)])
    response, _ = answer(image, MetadataRequest())
    assert [each.name for each in response.topics] == ["apple", "zebra"]


def test_the_response_is_made_in_steps_of_so_many_partitions_or_topics() -> None:
    large = [topic(), *(partition(each) for each in range(320))]
    small = [topic(f"t{each}", UUID(int=1_000 + each)) for each in range(320)]
    response, steps = answer(image_of([*large, *small]), MetadataRequest())
    assert (len(response.topics), len(response.topics[0].partitions)) == (321, 320)
    assert [each.partition for each in response.topics[0].partitions] == list(range(320))
    assert steps == 1 + 641 // 32


# ---- Deltas against a replay from scratch ----------------------------------------------------------------------------


class _Writer:
    """Draws records that a controller could write, keeping just enough of a model to stay legal."""

    def __init__(self, draw: st.DrawFn) -> None:
        self.draw = draw
        self.topics: dict[UUID, tuple[str, int]] = {}
        self.brokers: dict[int, int] = {}
        self.count = 0

    def next(self) -> MetadataRecord:
        self.count += 1
        kinds = [self.register, self.feature]
        kinds += [self.change_broker] * bool(self.brokers) + [self.add_topic] * (len(self.topics) < 4)
        if self.topics:
            kinds += [self.add_partition, self.add_partition, self.remove_topic, self.set_config]
        if any(partition_count for _, partition_count in self.topics.values()):
            kinds += [self.change_partition, self.change_partition]
        return self.draw(st.sampled_from(kinds))()

    def register(self) -> MetadataRecord:
        broker_id = self.draw(st.integers(1, 3))
        self.brokers[broker_id] = self.count
        return registered(broker_id, epoch=self.count, directory_count=self.draw(st.integers(1, 2)))

    def change_broker(self) -> MetadataRecord:
        broker_id = self.draw(st.sampled_from(sorted(self.brokers)))
        return BrokerRegistrationChangeRecord(
            broker_id=broker_id,
            broker_epoch=self.brokers[broker_id],
            is_fenced=self.draw(st.none() | st.booleans()),
            is_in_controlled_shutdown=self.draw(st.none() | st.just(True)),
            offline_directories=self.draw(st.none() | st.just((directory(broker_id).directory_id,))),
        )

    def feature(self) -> MetadataRecord:
        return FeatureLevelRecord(name="metadata.version", level=self.draw(st.integers(1, 3)))

    def add_topic(self) -> MetadataRecord:
        used = [name for name, _ in self.topics.values()]
        name = self.draw(st.sampled_from([name for name in "abcde" if name not in used]))
        topic_id = UUID(int=self.count)
        self.topics[topic_id] = (name, 0)
        return topic(name, topic_id)

    def remove_topic(self) -> MetadataRecord:
        topic_id = self.draw(st.sampled_from(sorted(self.topics)))
        del self.topics[topic_id]
        return RemoveTopicRecord(topic_id=topic_id)

    def add_partition(self) -> MetadataRecord:
        topic_id = self.draw(st.sampled_from(sorted(self.topics)))
        name, partition_count = self.topics[topic_id]
        self.topics[topic_id] = (name, partition_count + 1)
        return partition(
            partition_count, self.draw(st.sampled_from([(1,), (1, 2), (3, 1, 2)])), topic_id=topic_id
        )

    def change_partition(self) -> MetadataRecord:
        topic_id = self.draw(st.sampled_from(sorted(key for key, value in self.topics.items() if value[1])))
        return PartitionChangeRecord(
            topic_id=topic_id,
            partition=self.draw(st.integers(0, self.topics[topic_id][1] - 1)),
            isr=self.draw(st.none() | st.just((2,))),
            leader_id=self.draw(st.integers(-2, 3)),
            adding_replicas=self.draw(st.none() | st.just((3,))),
        )

    def set_config(self) -> MetadataRecord:
        name = self.draw(st.sampled_from(sorted(name for name, _ in self.topics.values())))
        return config(self.draw(st.sampled_from(["x", "y"])), self.draw(st.none() | st.just("1")), name)


@st.composite
def histories(draw: st.DrawFn) -> list[list[MetadataRecord]]:
    writer = _Writer(draw)
    sizes = draw(st.lists(st.integers(0, 8), min_size=1, max_size=8))
    return [[writer.next() for _ in range(size)] for size in sizes]


@given(histories())
def test_an_image_built_by_deltas_is_the_image_replayed_from_scratch(
    history: list[list[MetadataRecord]],
) -> None:  # H9
    by_deltas = MetadataImage()
    for records in history:
        by_deltas = image_of(records, by_deltas)
    from_scratch = image_of([record for records in history for record in records])
    assert by_deltas == from_scratch
    assert {each.topic_id: each for each in by_deltas.topics.values()} == dict(by_deltas.topics_by_id)


@given(histories())
def test_a_delta_names_every_partition_that_differs(history: list[list[MetadataRecord]]) -> None:
    before = image_of([record for records in history[:-1] for record in records])
    delta = MetadataDelta(before)
    for record in history[-1]:
        delta.replay(record)
    after = delta.apply(before.next_offset + len(history[-1]))
    changed = [key for key, found in after.partitions() if found != before.partition(key)]
    assert set(changed) <= set(delta.changed_partitions())
    assert set(delta.deleted_topics()) == set(before.topics_by_id) - set(after.topics_by_id)


@pytest.mark.parametrize("name", ["orders", ""])
def test_eligible_leader_replicas_are_forgotten_except_where_no_replica_is_in_sync(name: str) -> None:  # B42
    changes = [
        PartitionChangeRecord(
            topic_id=ORDERS, partition=number, isr=isr, eligible_leader_replicas=(2,), last_known_elr=(3,)
        )
        for number, isr in enumerate([(1,), ()])
    ]
    records = [
        topic(),
        partition(0, (1, 2, 3)),
        partition(1, (1, 2, 3)),
        *changes,
        ClearElrRecord(topic_name=name),
    ]
    partitions = image_of(records).topics["orders"].partitions
    assert [(each.eligible_leader_replicas, each.last_known_elr) for each in partitions] == [
        ((), ()),
        ((2,), (3,)),
    ]
    assert [(each.leader_epoch, each.partition_epoch) for each in partitions] == [(0, 2), (0, 2)]


class _WithoutWalks(dict[UUID, TopicImage]):
    """Topics that may be looked up, and not gone through."""

    def __iter__(self) -> Iterator[UUID]:
        raise AssertionError("all topics are gone through")

    values = __iter__  # type: ignore[assignment]


def test_to_forget_the_eligible_leader_replicas_of_one_topic_costs_nothing_for_the_others() -> None:  # B42
    known = image_of([topic(), partition(0, (1, 2, 3))])
    delta = MetadataDelta(replace(known, topics_by_id=_WithoutWalks(known.topics_by_id)))
    delta.replay(topic("payments", PAYMENTS))
    for name in ("orders", "payments", "unknown"):
        delta.replay(ClearElrRecord(topic_name=name))
    assert delta.changed_partitions() == [TopicIdPartition(ORDERS, 0)]


@pytest.mark.parametrize("name", ["orders", ""])
def test_eligible_leader_replicas_are_forgotten_of_the_topic_that_has_the_name_now(name: str) -> None:  # B42
    before = image_of([topic(), partition(0, (1, 2, 3))])
    delta = MetadataDelta(before)
    for record in (
        RemoveTopicRecord(topic_id=ORDERS),
        topic("orders", PAYMENTS),
        partition(0, (1, 2, 3), topic_id=PAYMENTS),
        ClearElrRecord(topic_name=name),
    ):
        delta.replay(record)
    after = delta.apply(before.next_offset + 4)
    assert [each.partition_epoch for each in after.topics["orders"].partitions] == [1]
