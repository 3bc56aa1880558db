"""What the tests of metadata share: ids that read well, and images built from records."""

from collections.abc import Iterable
from uuid import UUID

from rayka.ids import BROKER_ONLY, Role
from rayka.metadata.delta import MetadataDelta
from rayka.metadata.image import MetadataImage
from rayka.metadata.image_snapshot import difference
from rayka.metadata.metadata_records import (
    BrokerRegistrationChangeRecord,
    MetadataRecord,
    PartitionRecord,
    RegisterBrokerRecord,
    TopicRecord,
)
from rayka.protocol.membership import RegisteredDirectory

ORDERS = UUID(int=100)


def directory(broker_id: int, number: int = 0) -> RegisteredDirectory:
    """The numbered directory of a broker."""
    return RegisteredDirectory(UUID(int=broker_id * 10 + number), f"/data/broker-{broker_id}/{number}")


def registered(
    broker_id: int,
    *,
    epoch: int = 1,
    directory_count: int = 1,
    rack: str = "",
    is_fenced: bool = True,
    roles: tuple[Role, ...] = BROKER_ONLY,
) -> RegisterBrokerRecord:
    return RegisterBrokerRecord(
        broker_id=broker_id,
        broker_epoch=epoch,
        incarnation_id=UUID(int=1000 + broker_id),
        host="localhost",
        directories=tuple(directory(broker_id, number) for number in range(directory_count)),
        rack=rack,
        is_fenced=is_fenced,
        roles=roles,
    )


def unfenced(broker_id: int, *, epoch: int = 1) -> BrokerRegistrationChangeRecord:
    return BrokerRegistrationChangeRecord(broker_id=broker_id, broker_epoch=epoch, is_fenced=False)


def active(*broker_ids: int, **options: object) -> list[MetadataRecord]:
    """Brokers registered and unfenced."""
    return [registered(broker_id, is_fenced=False, **options) for broker_id in broker_ids]  # type: ignore[arg-type]


def topic(name: str = "orders", topic_id: UUID = ORDERS) -> TopicRecord:
    return TopicRecord(name=name, topic_id=topic_id)


def partition(
    number: int = 0,
    replicas: tuple[int, ...] = (1,),
    *,
    isr: tuple[int, ...] | None = None,
    leader_id: int | None = None,
    topic_id: UUID = ORDERS,
) -> PartitionRecord:
    """A partition with its replicas in each broker's first directory, led by the first of them."""
    return PartitionRecord(
        topic_id=topic_id,
        partition=number,
        replicas=replicas,
        directories=tuple(directory(broker_id).directory_id for broker_id in replicas),
        isr=replicas if isr is None else isr,
        leader_id=replicas[0] if leader_id is None else leader_id,
    )


def image_of(records: Iterable[MetadataRecord], base: MetadataImage | None = None) -> MetadataImage:
    """The image after these records, one offset each."""
    delta = MetadataDelta(base or MetadataImage())
    count = delta.image.next_offset
    for record in records:
        delta.replay(record)
        count += 1
    return delta.apply(count)


def delta_between(old: MetadataImage, new: MetadataImage) -> MetadataDelta:
    """What changed between two images of one cluster."""
    delta = MetadataDelta(old)
    for record in difference(old, new):
        delta.replay(record)
    return delta
