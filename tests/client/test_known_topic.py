"""What a client keeps of a topic when metadata and refusals tell of its leaders (G18, KIP-951)."""

from uuid import UUID

from rayka.client.metadata import KnownTopic
from rayka.errors import ErrorCode
from rayka.ids import NO_NODE
from rayka.protocol.membership import MetadataPartition, MetadataTopic
from rayka.protocol.produce import ProducePartitionResult

ORDERS, OTHER = UUID(int=1), UUID(int=2)
Leader = tuple[int, int]


def topic(*leaders: Leader, topic_id: UUID = ORDERS) -> MetadataTopic:
    partitions = (
        MetadataPartition(number, *leader, (1, 2, 3), (1, 2)) for number, leader in enumerate(leaders)
    )
    return MetadataTopic("orders", topic_id, tuple(partitions))


def known(*leaders: Leader) -> KnownTopic:
    return KnownTopic(topic(*leaders), fetched_at_s=0.0, metadata_offset=10)


def refusal(partition: int, leader_id: int, leader_epoch: int) -> ProducePartitionResult:
    code = ErrorCode.NOT_LEADER_OR_FOLLOWER
    return ProducePartitionResult(ORDERS, partition, code, leader_id=leader_id, leader_epoch=leader_epoch)


def led(known: KnownTopic, *refusals: ProducePartitionResult) -> KnownTopic:
    return known.led_by(known.later_leaders(refusals))


def leaders(of: KnownTopic) -> list[Leader]:
    return [(each.leader_id, each.leader_epoch) for each in of.topic.partitions]


def test_a_named_leader_of_a_later_epoch_is_taken_over() -> None:
    latest = led(known((1, 5), (1, 5)), refusal(1, 2, 6), refusal(1, 3, 7))
    assert leaders(latest) == [(1, 5), (3, 7)]
    assert (latest.topic.partitions[1].replicas, latest.topic.partitions[1].isr) == ((1, 2, 3), (1, 2))


def test_a_named_leader_that_is_no_news_changes_nothing() -> None:
    first = led(known((1, 5)), refusal(0, 2, 6))
    for partition, leader_id, leader_epoch in [(0, 3, 6), (0, 3, 5), (0, NO_NODE, 7), (1, 3, 7), (-1, 3, 7)]:
        assert not first.later_leaders([refusal(partition, leader_id, leader_epoch)])


def test_a_partition_without_a_leader_has_one_when_it_is_named() -> None:
    none = KnownTopic(
        MetadataTopic(
            "orders", ORDERS, (MetadataPartition(0, NO_NODE, 5, (1,), (1,), ErrorCode.LEADER_NOT_AVAILABLE),)
        ),
        fetched_at_s=0.0,
        metadata_offset=10,
    )
    (partition,) = led(none, refusal(0, 2, 6)).topic.partitions
    assert (partition.leader_id, partition.error_code) == (2, ErrorCode.NONE)


def test_metadata_that_do_not_know_of_a_named_leader_leave_it() -> None:
    named = led(known((1, 5), (1, 5)), refusal(1, 2, 6))
    same = named.updated(topic((3, 6), (1, 5)), at_s=1.0, metadata_offset=11)
    assert leaders(same) == [(3, 6), (2, 6)]
    caught_up = same.updated(topic((3, 6), (2, 6)), at_s=2.0, metadata_offset=12)
    assert leaders(caught_up) == [(3, 6), (2, 6)]
    assert not caught_up.named
    later = caught_up.updated(topic((3, 6), (1, 7), (1, 0)), at_s=3.0, metadata_offset=13)
    assert leaders(later) == [(3, 6), (1, 7), (1, 0)]


def test_what_was_named_of_a_topic_is_nothing_for_one_of_its_name() -> None:
    named = led(known((1, 5)), refusal(0, 2, 6))
    again = named.updated(topic((1, 0), topic_id=OTHER), at_s=1.0, metadata_offset=11)
    assert leaders(again) == [(1, 0)]
