"""Where a consumer stands, and where it goes: positions, seeks, and the offsets that there are.

The part of `Consumer` that says from where records are read. Kafka: KafkaConsumer, SubscriptionState (G12, G16).
"""

from collections.abc import Iterable

from rayka.client.arguments import int_of
from rayka.client.consumer.consumer_part import ConsumerPart, partitions_of
from rayka.client.list_offsets import LIST_OFFSETS
from rayka.ids import TopicPartition
from rayka.protocol.fetch import EARLIEST_TIMESTAMP, LATEST_TIMESTAMP


class ConsumerPositions(ConsumerPart):
    """See the module; its methods are those of `Consumer`."""

    def seek(self, topic_partition: TopicPartition, offset: int) -> None:
        """The next record of the partition is the first at or after offset.

        An offset outside the log is found out by the next poll: `auto_offset_reset` decides, "none" raises
        OffsetOutOfRange. Raises ValueError for a negative offset or a partition that is not assigned.
        """
        if not 0 <= int_of(offset, "offset") < 2**63:
            raise ValueError(
                f"offset: expected 0 or more, below 2**63, found {offset}; see seek_to_beginning and seek_to_end"
            )
        with self._exclusive():
            self._check_assigned([topic_partition])
            self._run(self._fetcher.seek({topic_partition: offset}))
            self._delivery.drop(topic_partition)

    def seek_to_beginning(self, *partitions: TopicPartition) -> None:
        """Goes to the first offset of the partitions, of all assigned ones if none is named."""
        self._seek_to_timestamp(partitions, EARLIEST_TIMESTAMP)

    def seek_to_end(self, *partitions: TopicPartition) -> None:
        """Goes behind the last committed record of the partitions, of all assigned ones if none is named."""
        self._seek_to_timestamp(partitions, LATEST_TIMESTAMP)

    def position(self, topic_partition: TopicPartition) -> int:
        """The offset of the next record that poll will give. Raises what the lookup of an unknown one raises."""
        with self._exclusive():
            self._check_assigned([topic_partition])
            waiting_offset = self._delivery.next_offset(topic_partition)
            if waiting_offset is not None:
                return waiting_offset
            read = self._delivery.read_up_to(topic_partition)
            timeout_ms = self._config.default_api_timeout_ms
            return int(self._run(self._fetcher.position(topic_partition, read, timeout_ms)))

    def beginning_offsets(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        """The first offset of each partition. Raises UnknownTopicOrPartition, UnavailableError."""
        return self._offsets(partitions, EARLIEST_TIMESTAMP)  # G12

    def end_offsets(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        """The high watermark of each partition: the offset after its last committed record."""
        return self._offsets(partitions, LATEST_TIMESTAMP)  # G12

    def _seek_to_timestamp(self, partitions: tuple[TopicPartition, ...], timestamp_ms: int) -> None:
        with self._exclusive():
            chosen = partitions or self.assignment()
            self._check_assigned(chosen)
            self._run(self._fetcher.seek_to_timestamp(chosen, timestamp_ms))
            for tp in chosen:
                self._delivery.drop(tp)

    def _offsets(self, partitions: Iterable[TopicPartition], timestamp_ms: int) -> dict[TopicPartition, int]:
        wanted = dict.fromkeys(partitions_of(partitions), timestamp_ms)
        self._check_open()
        timeout_ms = self._config.default_api_timeout_ms
        found = self._run(self._fetcher.leaders.call(LIST_OFFSETS, wanted, timeout_ms))
        return {tp: found[tp].offset for tp in wanted}
