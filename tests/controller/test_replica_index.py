"""Which partitions each broker holds, leads and is to lead, kept up to date delta by delta."""

from collections import Counter
from uuid import UUID

from hypothesis import given
from hypothesis import strategies as st

from rayka.controller.replica_index import ReplicaIndex
from rayka.ids import NO_NODE
from rayka.metadata.delta import MetadataDelta
from rayka.metadata.image import MetadataImage
from rayka.metadata.image_snapshot import image_of, image_records
from rayka.metadata.metadata_records import MetadataRecord, PartitionChangeRecord, RemoveTopicRecord
from tests.metadata.strategies import BROKERS, record_runs
from tests.metadata.support import ORDERS, active, directory, partition, topic


def check(index: ReplicaIndex, image: MetadataImage) -> None:
    """It says of each broker what the image does, and which partitions are being reassigned."""
    assert set(index.reassigned) == {
        key for key, each in image.partitions() if each.adding_replicas or each.removing_replicas
    }
    for broker_id in BROKERS:
        of = index.of(broker_id)
        held = {key: each for key, each in image.partitions() if broker_id in each.replicas}
        preferred = {key: each for key, each in held.items() if each.replicas[0] == broker_id}
        led_by_others = {
            key: each for key, each in preferred.items() if each.leader_id not in (broker_id, NO_NODE)
        }
        leaderless = {key for key, each in preferred.items() if not each.has_leader}
        homes = Counter(each.directory_of(broker_id) for each in held.values())
        assert set(of.held) == set(held)
        assert of.directories.total() == len(held)
        assert all(of.directories[home] == count for home, count in homes.items() if home)
        assert (of.led_count > 0) == any(each.leader_id == broker_id for _, each in image.partitions())
        assert of.preferred_count == len(preferred)
        assert of.led_by_others_count == len(led_by_others)
        assert set(of.reclaimable) == {key for key, each in led_by_others.items() if broker_id in each.isr}
        assert set(of.leaderless) == leaderless
        assert of.leaderless_count == len(leaderless)


@given(record_runs(), st.integers(1, 5))
def test_the_index_says_what_looking_at_every_partition_says(
    records: list[MetadataRecord], group: int
) -> None:
    index, image = ReplicaIndex(), MetadataImage()
    for begin in range(0, len(records), group):
        delta, some = MetadataDelta(image), records[begin : begin + group]
        for record in some:
            delta.replay(record)
        image = delta.apply(image.next_offset + len(some))
        index.update(delta, image)
    check(index, image)


@given(record_runs())
def test_an_index_begun_with_a_snapshot_is_the_same(records: list[MetadataRecord]) -> None:
    image = image_of(records, len(records))
    delta = MetadataDelta(MetadataImage())
    for record in image_records(image):
        delta.replay(record)
    index = ReplicaIndex()
    index.update(delta, delta.apply(len(records)))
    check(index, image)


def test_each_step_of_a_partitions_way_from_broker_to_broker_is_followed() -> None:
    other = UUID(int=77)
    steps: list[MetadataRecord] = [
        *active(*BROKERS),
        topic(),
        partition(0, (1, 2)),
        partition(1, (1, 2)),
        topic("payments", other),
        partition(0, (1, 3), topic_id=other),
        partition(1, (3, 1), topic_id=other),
        PartitionChangeRecord(topic_id=ORDERS, partition=0, leader_id=NO_NODE),
        PartitionChangeRecord(
            topic_id=ORDERS,
            partition=0,
            replicas=(3, 2),
            directories=(directory(3).directory_id, directory(2).directory_id),
        ),
        PartitionChangeRecord(topic_id=ORDERS, partition=1, leader_id=2),
        PartitionChangeRecord(
            topic_id=ORDERS,
            partition=1,
            replicas=(2, 3),
            directories=(directory(2).directory_id, directory(3).directory_id),
        ),
        RemoveTopicRecord(topic_id=other),
    ]
    index, image = ReplicaIndex(), MetadataImage()
    for step in steps:
        delta = MetadataDelta(image)
        delta.replay(step)
        image = delta.apply(image.next_offset + 1)
        index.update(delta, image)
        check(index, image)
        for broker_id in BROKERS:
            homes = index.of(broker_id).directories
            assert homes.total() == homes[directory(broker_id).directory_id]


def test_a_replica_that_moves_to_another_directory_of_its_broker_is_counted_there() -> None:
    first, second = directory(1, 0).directory_id, directory(1, 1).directory_id
    moved = PartitionChangeRecord(
        topic_id=ORDERS, partition=0, directories=(second, directory(2).directory_id)
    )
    index, image = ReplicaIndex(), MetadataImage()
    for step in (*active(1, 2), topic(), partition(0, (1, 2)), moved):
        delta = MetadataDelta(image)
        delta.replay(step)
        image = delta.apply(image.next_offset + 1)
        index.update(delta, image)
    check(index, image)
    homes = index.of(1).directories
    assert (homes[first], homes[second], homes.total()) == (0, 1, 1)
