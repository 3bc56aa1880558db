"""Where a consumer stands, and where it goes: positions, seeks, and the offsets that there are.

The part of `Consumer` that says from where records are read. Kafka: KafkaConsumer, SubscriptionState (G12, G16).
"""

from collections.abc import Iterable, Mapping

from rayka.client.arguments import int_of, mapping_of, partition_of
from rayka.client.consumer.consumer_part import ConsumerPart, in_any_turn, in_turn, partitions_of
from rayka.client.group.offset_values import OffsetAndTimestamp
from rayka.client.list_offsets import LIST_OFFSETS
from rayka.client.timestamps import Moment, given_timestamp_ms
from rayka.errors import InvalidArgument
from rayka.ids import NO_OFFSET, TopicPartition
from rayka.protocol.fetch import EARLIEST_TIMESTAMP, LATEST_TIMESTAMP, ListOffsetsPartitionResult


class ConsumerPositions(ConsumerPart):
    """See the module; its methods are those of `Consumer`."""

    @in_turn
    def seek(self, topic_partition: TopicPartition, offset: int) -> None:
        """The next record of the partition is the first at or after offset.

        An offset outside the log is found out by the next poll: `auto_offset_reset` decides, "none" raises
        OffsetOutOfRange. Raises ValueError for a negative offset or a partition that is not assigned.
        """
        if not 0 <= int_of(offset, "offset") < 2**63:
            raise InvalidArgument(
                f"offset: expected 0 or more, below 2**63, found {offset}; see seek_to_beginning and seek_to_end"
            )
        self._check_assigned([topic_partition])
        self._run(self._fetcher.seek, {topic_partition: offset})
        self._delivery.drop(topic_partition)

    def seek_to_beginning(self, *partitions: TopicPartition) -> None:
        """Goes to the first offset of the partitions, of all assigned ones if none is named."""
        self._seek_to_timestamp(partitions, EARLIEST_TIMESTAMP)

    def seek_to_end(self, *partitions: TopicPartition) -> None:
        """Goes behind the last committed record of the partitions, of all assigned ones if none is named."""
        self._seek_to_timestamp(partitions, LATEST_TIMESTAMP)

    def seek_to_timestamp(self, timestamp: Moment, *partitions: TopicPartition) -> None:
        """Goes to the first record at or after a moment, or a timestamp in ms, and behind the last record where there
        is none; of all assigned partitions if none is named. A moment is a `datetime` (also of pandas), a `date`, or a
        text as "2026-01-31T12:00"; without a time zone it is local time. Raises TypeError, and ValueError for what is
        no moment since 1970.
        """
        self._seek_to_timestamp(partitions, given_timestamp_ms(timestamp, "timestamp"))

    # ---- Pausing ---------------------------------------------------------------------------------------------------

    @in_turn
    def pause(self, *partitions: TopicPartition) -> None:
        """Gives no more records of these partitions until `resume`, also in a loop that is under way; positions stay.

        What was fetched of them is kept. A partition that is assigned anew is not paused. Raises ValueError for one
        that is not assigned.
        """
        self._check_assigned(partitions)
        # First: if an interruption comes next, `paused` already names the partitions.
        for tp in partitions:
            self._delivery.pause(tp)
        self._run(self._fetcher.pause, partitions)

    @in_turn
    def resume(self, *partitions: TopicPartition) -> None:
        """Goes on giving records of these partitions. Raises ValueError for one that is not assigned."""
        self._check_assigned(partitions)
        # First: if an interruption comes next, `paused` still names the partitions.
        self._run(self._fetcher.resume, partitions)
        for tp in partitions:
            self._delivery.resume(tp)

    def paused(self) -> tuple[TopicPartition, ...]:
        """The partitions that are paused."""
        self._check_open()
        return self._delivery.paused()

    # ---- Offsets ---------------------------------------------------------------------------------------------------

    @in_any_turn
    def position(self, topic_partition: TopicPartition) -> int:
        """The offset of the next record that poll will give. Raises what the lookup of an unknown one raises."""
        self._check_assigned([topic_partition])
        waiting_offset = self._delivery.next_offset(topic_partition)
        if waiting_offset is not None:
            return waiting_offset
        read = self._delivery.read_up_to(topic_partition)
        timeout_ms = self._config.default_api_timeout_ms
        return int(self._run(self._fetcher.position, topic_partition, read, timeout_ms))

    def beginning_offsets(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        """The first offset of each partition. Raises UnknownTopicOrPartition, UnavailableError."""
        return self._offsets(partitions, EARLIEST_TIMESTAMP)  # G12

    def end_offsets(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        """The high watermark of each partition: the offset after its last committed record."""
        return self._offsets(partitions, LATEST_TIMESTAMP)  # G12

    def offsets_for_times(
        self, timestamps: Mapping[TopicPartition, Moment]
    ) -> dict[TopicPartition, OffsetAndTimestamp | None]:
        """The first record of each partition at or after its moment, or timestamp in ms; None where there is none.

        Moments as of `seek_to_timestamp`. Raises UnknownTopicOrPartition, UnavailableError, TypeError, ValueError for
        what is no moment since 1970.
        """
        given = mapping_of(timestamps, "timestamps").items()
        found = self._look_up({partition_of(tp): given_timestamp_ms(each, f"{tp}") for tp, each in given})
        return {
            tp: None
            if each.offset == NO_OFFSET
            else OffsetAndTimestamp(each.offset, each.timestamp_ms, each.leader_epoch)
            for tp, each in found.items()
        }

    def lag(self, *partitions: TopicPartition) -> dict[TopicPartition, int]:
        """How many offsets each partition's end is ahead of its position, of all assigned ones if none is named.

        Raises what `position` and `end_offsets` raise.
        """
        chosen = partitions or self.assignment()
        ends = self.end_offsets(chosen)
        return {tp: max(0, ends[tp] - self.position(tp)) for tp in chosen}

    @in_turn
    def _seek_to_timestamp(self, partitions: tuple[TopicPartition, ...], timestamp_ms: int) -> None:
        chosen = partitions or self.assignment()
        self._check_assigned(chosen)
        self._run(self._fetcher.seek_to_timestamp, chosen, timestamp_ms)
        for tp in chosen:
            self._delivery.drop(tp)

    def _offsets(self, partitions: Iterable[TopicPartition], timestamp_ms: int) -> dict[TopicPartition, int]:
        found = self._look_up(dict.fromkeys(partitions_of(partitions), timestamp_ms))
        return {tp: each.offset for tp, each in found.items()}

    def _look_up(
        self, wanted: Mapping[TopicPartition, int]
    ) -> dict[TopicPartition, ListOffsetsPartitionResult]:
        """In the order of those wanted."""
        self._check_open()
        timeout_ms = self._config.default_api_timeout_ms
        found = self._run(self._fetcher.leaders.call, LIST_OFFSETS, wanted, timeout_ms)
        return {tp: found[tp] for tp in wanted}
