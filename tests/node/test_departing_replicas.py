"""Which part of a broker's rate each of those has that take over from it (decision 078)."""

from hypothesis import given
from hypothesis import strategies as st

from rayka.ids import NO_NODE
from rayka.metadata.delta import MetadataDelta
from rayka.metadata.image import MetadataImage
from rayka.metadata.metadata_records import (
    BrokerRegistrationChangeRecord,
    ConfigRecord,
    MetadataRecord,
    PartitionChangeRecord,
    RemoveTopicRecord,
)
from rayka.node.follower_quotas import DepartingReplicas, departures
from rayka.protocol.configs import DRAIN_DEADLINE, ResourceType
from tests.metadata.strategies import BROKERS, record_runs
from tests.metadata.support import ORDERS, active, directory, partition, topic

RATE = 900
FIRST, SECOND, THIRD = 2, 3, 4


class Cluster:
    """Brokers 1 to 5. Each partition of a topic is on brokers 1 and 5, and moves from broker 1 to another one."""

    def __init__(self, *successor_ids: int) -> None:
        self.image = MetadataImage()
        self.views = {each: DepartingReplicas(each, RATE) for each in (FIRST, SECOND, THIRD)}
        self.apply(
            *active(1, 2, 3, 4, 5),
            topic(),
            *(partition(number, (1, 5)) for number in range(len(successor_ids))),
            *(moved(number, each) for number, each in enumerate(successor_ids)),
        )

    def apply(self, *records: MetadataRecord) -> None:
        delta = MetadataDelta(self.image)
        for each in records:
            delta.replay(each)
        self.image = delta.apply(self.image.next_offset + len(records))
        for view in self.views.values():
            update(view, delta, self.image)

    def rates(self, number: int, broker_id: int) -> list[int]:
        """What bounds the partition at that broker."""
        state = self.image.topics["orders"].partitions[number]
        return [each.bytes_per_second for each in self.views[broker_id].quotas(state)]


def update(view: DepartingReplicas, delta: MetadataDelta, image: MetadataImage) -> None:
    view.forget(delta.deleted_topics())
    for key in delta.changed_partitions():
        state = image.partition(key)
        if state is not None:
            view.put(key, state)
    view.share(image)


def moved(number: int, successor_id: int) -> PartitionChangeRecord:
    """From brokers 1 and 5 to that one and 5."""
    replicas = (1, 5, successor_id)
    return change(
        number,
        replicas=replicas,
        directories=tuple(directory(each).directory_id for each in replicas),
        adding_replicas=(successor_id,),
        removing_replicas=(1,),
    )


def change(number: int, **changes: object) -> PartitionChangeRecord:
    return PartitionChangeRecord(topic_id=ORDERS, partition=number, **changes)  # type: ignore[arg-type]


def test_those_that_take_over_from_one_broker_share_its_rate() -> None:
    cluster = Cluster(FIRST, SECOND, FIRST)
    assert cluster.rates(0, FIRST) == cluster.rates(2, FIRST) == cluster.rates(1, SECOND) == [RATE // 2]
    assert cluster.rates(0, SECOND) == cluster.rates(1, FIRST) == []  # another one takes that over


def test_one_that_has_copied_all_leaves_its_part_to_the_others() -> None:
    cluster = Cluster(FIRST, SECOND, THIRD)
    assert cluster.rates(0, FIRST) == [RATE // 3]
    cluster.apply(change(1, isr=(1, 5, SECOND)))
    assert cluster.rates(0, FIRST) == cluster.rates(2, THIRD) == [RATE // 2]
    assert cluster.rates(1, SECOND) == []


def test_one_that_does_not_run_has_no_part() -> None:
    cluster = Cluster(FIRST, SECOND)
    cluster.apply(BrokerRegistrationChangeRecord(broker_id=SECOND, broker_epoch=1, is_fenced=True))
    assert cluster.rates(0, FIRST) == [RATE]


def test_without_a_leader_nothing_can_be_copied() -> None:
    cluster = Cluster(FIRST, SECOND)
    cluster.apply(change(1, leader_id=NO_NODE))
    assert cluster.rates(0, FIRST) == [RATE]


def test_what_replaces_a_replica_that_is_not_in_sync_is_not_bounded() -> None:
    cluster = Cluster(FIRST, SECOND)
    cluster.apply(change(0, isr=(5,), leader_id=5))
    assert cluster.rates(0, FIRST) == []
    assert cluster.rates(1, SECOND) == [RATE]


def test_what_leaves_a_machine_that_drains_is_not_bounded() -> None:  # decision 073
    cluster = Cluster(FIRST, SECOND)
    for deadline, rates in (("0", []), (None, [RATE // 2])):
        mark = ConfigRecord(
            resource_type=ResourceType.BROKER, resource_name="1", name=DRAIN_DEADLINE, value=deadline
        )
        cluster.apply(mark)
        assert cluster.rates(0, FIRST) == rates


def test_a_deleted_topic_takes_no_part() -> None:
    cluster = Cluster(FIRST, SECOND)
    state = cluster.image.topics["orders"].partitions[0]
    cluster.apply(RemoveTopicRecord(topic_id=ORDERS))
    assert cluster.views[FIRST].quotas(state) == ()


def test_a_part_is_at_least_a_byte_of_a_rate_that_is_not_nothing() -> None:
    cluster = Cluster(FIRST, SECOND, THIRD)
    for rate, part in ((1, 1), (4, 2), (0, 0)):
        cluster.views[FIRST].bytes_per_second = rate
        cluster.apply()
        assert cluster.rates(0, FIRST) == [part]


def test_each_replica_that_is_removed_has_one_successor() -> None:
    """A partition that goes from two brokers to two others counts once for each of them."""
    two = change(
        0,
        replicas=(1, 5, FIRST, SECOND),
        directories=tuple(directory(each).directory_id for each in (1, 5, FIRST, SECOND)),
        adding_replicas=(FIRST, SECOND),
        removing_replicas=(1, 5),
    )
    cluster = Cluster(FIRST)
    cluster.apply(two)
    assert departures(cluster.image.topics["orders"].partitions[0]) == ((1, FIRST), (5, SECOND))
    assert cluster.rates(0, FIRST) == cluster.rates(0, SECOND) == [RATE]


@given(record_runs(), st.integers(1, 5))
def test_the_parts_are_what_looking_at_every_partition_gives(
    records: list[MetadataRecord], group: int
) -> None:
    image, views = MetadataImage(), [DepartingReplicas(each, RATE) for each in BROKERS]
    for begin in range(0, len(records), group):
        delta, some = MetadataDelta(image), records[begin : begin + group]
        for record in some:
            delta.replay(record)
        image = delta.apply(image.next_offset + len(some))
        for view in views:
            update(view, delta, image)
    for broker_id, view in zip(BROKERS, views, strict=True):
        new = DepartingReplicas(broker_id, RATE)
        for key, state in image.partitions():
            new.put(key, state)
        new.share(image)
        assert repr(view) == repr(new)
