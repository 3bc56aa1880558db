"""Who leads a partition, and what changes of partitions follow when a broker comes, goes or loses a
directory.

A broker is electable for a partition while it is active and the directory of its replica works. Unclean
elections do not exist: a partition whose ISR has nobody electable has no leader and keeps its ISR. Kafka:
`PartitionChangeBuilder`, `ReplicationControlManager.generateLeaderAndIsrUpdates` (B40, B43, B44).
"""

from collections.abc import Mapping

from rayka.ids import TopicIdPartition
from rayka.metadata.image import BrokerImage, MetadataImage, PartitionImage
from rayka.metadata.records import NO_LEADER, NO_LEADER_CHANGE, PartitionChangeRecord


def elect(partition: PartitionImage, isr: tuple[int, ...], brokers: Mapping[int, BrokerImage]) -> int:
    """The leader while it may stay, else the first electable replica in the ISR, in replica order, else -1
    (B40).
    """
    order = [partition.leader_id, *partition.replicas]
    electable = (each for each in order if each in isr and _is_electable(partition, brokers.get(each)))
    return next(electable, NO_LEADER)


def changes_after(image: MetadataImage, broker: BrokerImage) -> list[PartitionChangeRecord]:
    """What follows for partitions when a broker becomes as given: fenced or not, shutting down, a directory
    offline.

    Where it is not electable any more it leaves the ISR, unless it is the last member (B43), and the lead;
    where nobody leads and it is electable now it takes the lead (B44).
    """
    brokers = {**image.brokers, broker.broker_id: broker}
    changes = [
        _change(key, partition, _isr_after(partition, broker), brokers)
        for key, partition in image.partitions()
        if broker.broker_id in partition.isr
    ]
    return [change for change in changes if change is not None]


def leads_any(image: MetadataImage, broker_id: int) -> bool:
    """Whether some partition is led by the broker."""
    return any(partition.leader_id == broker_id for _, partition in image.partitions())


def _isr_after(partition: PartitionImage, broker: BrokerImage) -> tuple[int, ...]:
    if _is_electable(partition, broker):
        return partition.isr
    return tuple(each for each in partition.isr if each != broker.broker_id) or partition.isr


def _is_electable(partition: PartitionImage, broker: BrokerImage | None) -> bool:
    if broker is None or not broker.is_active:
        return False
    return partition.directory_of(broker.broker_id) in broker.online_directories


def _change(
    key: TopicIdPartition, partition: PartitionImage, isr: tuple[int, ...], brokers: Mapping[int, BrokerImage]
) -> PartitionChangeRecord | None:
    leader_id = elect(partition, isr, brokers)
    if isr == partition.isr and leader_id == partition.leader_id:
        return None
    return PartitionChangeRecord(
        topic_id=key.topic_id,
        partition=key.partition,
        isr=None if isr == partition.isr else isr,
        leader_id=NO_LEADER_CHANGE if leader_id == partition.leader_id else leader_id,
    )
