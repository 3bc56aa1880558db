"""Which topics there are for a member of a group, how many partitions they have, and in which racks.

A pattern matches whole names, as Kafka's does, and no internal topic. What is newer than the member's subscription, a
partition that was added or a topic that has come to match, is known as such: all its records are newer, too. Kafka:
ConsumerMetadata (E8).
"""

import logging
import re
from collections.abc import Iterable
from uuid import UUID

from rayka.client.metadata import ClusterMetadata, last_partitions
from rayka.coordinator.assignors.assignor import PartitionRacks
from rayka.errors import ErrorCode, UnknownTopicOrPartition
from rayka.ids import ZERO_ID, TopicPartition, is_internal
from rayka.protocol.membership import MetadataRequest, MetadataTopic

logger = logging.getLogger(__name__)


class TopicWatch:
    """See the module. Belongs to the loop; asks when it is called, and raises RaykaError where no node can say."""

    def __init__(self, metadata: ClusterMetadata, timeout_ms: int) -> None:
        self._metadata = metadata
        self._timeout_ms = timeout_ms
        # By topic: its id, and how many partitions it had when the member subscribed to it, none if it came later.
        self._begun: dict[str, tuple[UUID, int]] = {}

    def __repr__(self) -> str:
        return f"<TopicWatch {self._metadata!r}>"

    async def named(self, names: Iterable[str]) -> list[MetadataTopic]:
        """The topics of these names. Raises UnknownTopicOrPartition of one that does not exist."""
        return [await self._metadata.topic(name, self._timeout_ms) for name in names]

    async def matching(self, pattern: re.Pattern[str]) -> list[MetadataTopic]:
        """The topics that match now, by name."""
        response = await self._metadata.nodes.ask_any_broker(MetadataRequest())
        found = (each for each in response.topics if each.error_code is ErrorCode.NONE)
        matching = (each for each in found if pattern.fullmatch(each.name) and not is_internal(each.name))
        return sorted(matching, key=lambda each: each.name)

    def subscribe(self, topics: Iterable[MetadataTopic]) -> None:
        """The member reads these from now on, and no others."""
        begun, self._begun = self._begun, {}
        for each in topics:
            self._begun[each.name] = begun.get(each.name, (each.topic_id, len(each.partitions)))

    def match(self, topics: Iterable[MetadataTopic]) -> None:
        """These match the member's pattern now; those that did not before are newer than its subscription."""
        for each in topics:
            self._begun.setdefault(each.name, (each.topic_id, 0))

    def is_newer(self, topic_partition: TopicPartition) -> bool:
        """Whether the partition is newer than the member's subscription. One of a topic that was deleted and created
        again is not: what is read of that is another rule's.
        """
        topic_id, count = self._begun.get(topic_partition.topic, (ZERO_ID, 0))
        topic = self._metadata.cached(topic_partition.topic)
        return topic is not None and topic.topic_id == topic_id and topic_partition.partition >= count

    async def partitions(self, topics: Iterable[str], *, has_racks: bool) -> dict[str, PartitionRacks]:
        """The partitions that each topic has now, none for one that is not there: as `racks_of` says."""
        names = tuple(topics)
        problem = await self._metadata.refresh(names)
        if problem is not None:
            raise problem
        known = {name: self._metadata.cached(name) for name in names}
        return {
            name: self.racks_of(topic, has_racks=has_racks) if topic else () for name, topic in known.items()
        }

    def racks_of(self, topic: MetadataTopic, *, has_racks: bool) -> PartitionRacks:
        """By partition: the racks of its replicas. Without `has_racks` all are empty, and only their number counts."""
        if not has_racks:
            return ((),) * len(topic.partitions)
        rack_of = {each.node_id: each.rack for each in self._metadata.nodes.brokers if each.rack}
        racks_of = {
            replicas: tuple(sorted({rack_of[each] for each in replicas if each in rack_of}))
            for replicas in dict.fromkeys(each.replicas for each in topic.partitions)
        }
        return tuple(racks_of[each.replicas] for each in topic.partitions)

    async def learn(
        self, partitions: tuple[TopicPartition, ...], group_id: str
    ) -> tuple[TopicPartition, ...]:
        """Those of an assignment, once their topics are known here; without those whose topic is gone by now: the
        leader of the group will assign anew.
        """
        for name, partition in last_partitions(partitions).items():
            try:
                await self._metadata.topic_with(name, partition, self._timeout_ms)
            except UnknownTopicOrPartition as error:
                logger.warning("group %r was assigned partitions of %r: %s", group_id, name, error)
        return self.existing(partitions)

    def existing(self, partitions: Iterable[TopicPartition]) -> tuple[TopicPartition, ...]:
        """Those that there are, by the newest metadata."""
        return tuple(each for each in partitions if self._metadata.partition(each.topic, each.partition))
