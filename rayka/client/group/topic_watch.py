"""Which topics there are for a member of a group, how many partitions they have, and in which racks.

A pattern matches whole names, as Kafka's does, and no internal topic. Kafka: ConsumerMetadata (E8).
"""

import logging
import re
from collections.abc import Iterable

from rayka.client.metadata import ClusterMetadata
from rayka.coordinator.assignors.assignor import PartitionRacks
from rayka.errors import ErrorCode, UnknownTopicOrPartition
from rayka.ids import TopicPartition, is_internal
from rayka.protocol.membership import MetadataRequest, MetadataTopic

logger = logging.getLogger(__name__)


class TopicWatch:
    """See the module. Belongs to the loop; asks when it is called, and raises RaykaError where no node can say."""

    def __init__(self, metadata: ClusterMetadata, timeout_ms: int) -> None:
        self._metadata = metadata
        self._timeout_ms = timeout_ms

    def __repr__(self) -> str:
        return f"<TopicWatch {self._metadata!r}>"

    async def check(self, topics: Iterable[str]) -> None:
        """Raises UnknownTopicOrPartition of one that does not exist."""
        for name in topics:
            await self._metadata.topic(name, self._timeout_ms)

    async def matching(self, pattern: re.Pattern[str]) -> tuple[str, ...]:
        """The names of the topics that match now."""
        response = await self._metadata.nodes.ask_any_broker(MetadataRequest())
        names = (each.name for each in response.topics if each.error_code is ErrorCode.NONE)
        return tuple(sorted(name for name in names if pattern.fullmatch(name) and not is_internal(name)))

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
        last: dict[str, int] = {}
        for tp in partitions:
            last[tp.topic] = max(tp.partition, last.get(tp.topic, 0))
        for name, partition in last.items():
            try:
                await self._metadata.topic_with(name, partition, self._timeout_ms)
            except UnknownTopicOrPartition as error:
                logger.warning("group %r was assigned partitions of %r: %s", group_id, name, error)
        return self.existing(partitions)

    def existing(self, partitions: Iterable[TopicPartition]) -> tuple[TopicPartition, ...]:
        """Those that there are, as last heard of."""
        return tuple(each for each in partitions if self._metadata.partition(each.topic, each.partition))
