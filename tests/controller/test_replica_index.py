"""Which partitions each broker holds, kept up to date delta by delta."""

from hypothesis import given
from hypothesis import strategies as st

from rayka.controller.replica_index import ReplicaIndex
from rayka.metadata.delta import MetadataDelta
from rayka.metadata.image import MetadataImage
from rayka.metadata.records import MetadataRecord
from rayka.metadata.snapshot import image_of, image_records
from tests.metadata.strategies import BROKERS, record_runs


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
    for broker_id in BROKERS:
        held = {key for key, partition in image.partitions() if broker_id in partition.replicas}
        assert set(index.of(broker_id)) == held


@given(record_runs())
def test_an_index_begun_with_a_snapshot_is_the_same(records: list[MetadataRecord]) -> None:
    image = image_of(records, len(records))
    delta = MetadataDelta(MetadataImage())
    for record in image_records(image):
        delta.replay(record)
    index = ReplicaIndex()
    index.update(delta, delta.apply(len(records)))
    for broker_id in BROKERS:
        held = {key for key, partition in image.partitions() if broker_id in partition.replicas}
        assert set(index.of(broker_id)) == held
