"""Which partitions a consumer reads, of which topics, and how both follow the metadata.

Invariants: a topic is known by its id: when the metadata show another id under its name, positions in the former topic
mean nothing in the new one. A bounded read ends with an error then; a consumer begins again where `auto_offset_reset`
says, and logs one warning. Records that were fetched before are still given, before those of the new topic. Topics that
are followed are read with all their partitions, and an added partition is read from its beginning: all its records are
newer than the subscription. An assignment never grows. Kafka: SubscriptionState, ConsumerMetadata (G16).
"""

import logging
from collections.abc import Iterable, Mapping, Sequence
from uuid import UUID

from rayka.client.consumer.fetch_state import FetchState
from rayka.client.metadata import topic_recreated
from rayka.ids import TopicPartition
from rayka.protocol.fetch import EARLIEST_TIMESTAMP
from rayka.protocol.membership import MetadataTopic

logger = logging.getLogger(__name__)


class Subscription:
    """See the module. `partitions` is replaced as a whole, so any thread may read it; the rest belongs to the loop."""

    def __init__(self, state: FetchState, cluster_name: str) -> None:
        self.partitions: Mapping[TopicPartition, None] = {}
        self.followed: dict[str, int] = {}  # the topics that are read with all their partitions, and how many
        self._state = state
        self._cluster_name = cluster_name
        self._topic_ids: dict[str, UUID] = {}
        self._is_bounded = False

    def __repr__(self) -> str:
        return f"<Subscription to {list(self._topic_ids)} partitions={len(self.partitions)}>"

    def assign(
        self, partitions: Sequence[TopicPartition], topic_ids: Mapping[str, UUID], *, is_bounded: bool
    ) -> None:
        """Reads exactly these. With `is_bounded`, a topic that has another id from then on is an error."""
        self._topic_ids, self.followed = dict(topic_ids), {}
        self._is_bounded = is_bounded
        self._set(partitions)

    def follow(self, topics: Sequence[MetadataTopic]) -> None:
        """Reads all partitions of these topics, and those that are added."""
        self._topic_ids = {each.name: each.topic_id for each in topics}
        self.followed = {each.name: len(each.partitions) for each in topics}
        self._is_bounded = False
        self._set([tp for each in topics for tp in _partitions(each)])

    def reads(self, topic: str) -> bool:
        """Whether the topic is followed, or a partition of it is read."""
        return topic in self._topic_ids

    def on_metadata(self, topic: MetadataTopic) -> bool:
        """Takes new metadata of a topic, before anything uses them; returns whether what is read has changed."""
        former_id = self._topic_ids.get(topic.name, topic.topic_id)
        if former_id != topic.topic_id:
            self._on_created_again(topic, former_id)
            return True
        count = len(topic.partitions)
        former_count = self.followed.get(topic.name, count)
        if former_count < count:
            self._on_added(topic, former_count)
        return former_count < count

    def _on_added(self, topic: MetadataTopic, former_count: int) -> None:
        added = _partitions(topic)[former_count:]
        self.followed[topic.name] = len(topic.partitions)
        self._set([*self.partitions, *added])
        for tp in added:
            self._state.seek_to_timestamp(tp, EARLIEST_TIMESTAMP)
        logger.info(
            "topic %r has %d partitions now, all of which are read", topic.name, len(topic.partitions)
        )

    def _on_created_again(self, topic: MetadataTopic, former_id: UUID) -> None:
        error = topic_recreated(topic, former_id, self._cluster_name)
        if self._is_bounded:
            for tp in self._state.by_topic.get(topic.name, ()):
                self._state.fail(tp, error)
            return
        self._topic_ids[topic.name] = topic.topic_id
        former = tuple(self._state.by_topic.get(topic.name, ()))
        if topic.name in self.followed:
            self.followed[topic.name] = len(topic.partitions)
            others = [tp for tp in self.partitions if tp.topic != topic.name]
            self._set([*others, *_partitions(topic)])
        for tp in former:
            if tp in self.partitions and not self._state.begin_again(tp):
                self._state.fail(tp, error)
        logger.warning(
            "topic %r of cluster %r was deleted and created again; reading goes on in the new one, at the offsets that"
            " auto_offset_reset names",
            topic.name,
            self._cluster_name,
        )

    def _set(self, partitions: Iterable[TopicPartition]) -> None:
        self.partitions = dict.fromkeys(partitions)
        self._state.assign(self.partitions)


def _partitions(topic: MetadataTopic) -> list[TopicPartition]:
    return [TopicPartition(topic.name, each.partition) for each in topic.partitions]
