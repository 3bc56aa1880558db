"""The offsets of a read: fixed once, when Spark plans the query, so that a second read gives the same rows.

Pure functions over what the options ask for and what the partitions hold. Offsets that no longer exist are an error
that names partition, asked and available range, or (failOnDataLoss=false) a warning and the part that is there, which
is nothing of a topic that was deleted. A topic counts as deleted, not as misspelled, if it was there when the query was
made, or if the query names offsets of it. Ranges are half open. Kafka: KafkaOffsetRangeCalculator of Spark's connector,
for the proportional split.
"""

import logging
from collections.abc import Mapping, Sequence
from itertools import pairwise
from uuid import UUID

import msgspec

from rayka.errors import (
    ApiError,
    ConfigError,
    InconsistentTopicId,
    OffsetOutOfRange,
    UnknownTopicOrPartition,
)
from rayka.ids import TopicPartition
from rayka.spark.source_options import Bound, Offsets, ReadOptions

TASKS_PER_SLOT = 3  # partitions differ in size: with a few tasks for each core, all cores finish together
RECORDS_WORTH_A_TASK = 50_000

logger = logging.getLogger(__name__)


class AvailableRange(msgspec.Struct, frozen=True):
    """The offsets of one partition now: from its log start up to its high watermark."""

    topic_id: UUID
    start_offset: int
    end_offset: int


class OffsetRange(msgspec.Struct, frozen=True):
    """Offsets [start_offset, end_offset) of one partition of one incarnation of a topic."""

    topic_partition: TopicPartition
    topic_id: UUID
    start_offset: int
    end_offset: int

    def __repr__(self) -> str:
        return f"<OffsetRange {self.topic_partition!r} [{self.start_offset}, {self.end_offset})>"

    @property
    def offset_count(self) -> int:
        return self.end_offset - self.start_offset


def plan_ranges(
    options: ReadOptions, available: Mapping[TopicPartition, AvailableRange]
) -> list[OffsetRange]:
    """The ranges to read, in the order given, without empty ones.

    Raises OffsetOutOfRange and UnknownTopicOrPartition (failOnDataLoss), or ConfigError when the options leave a
    partition out or end before they start.
    """
    _check_partitions(options, "startingOffsets", options.starting_offsets, available)
    _check_partitions(options, "endingOffsets", options.ending_offsets, available)
    ranges = [_plan_partition(options, partition, there) for partition, there in available.items()]
    return [each for each in ranges if each.offset_count > 0]


def split_ranges(ranges: Sequence[OffsetRange], *, min_partitions: int, slot_count: int) -> list[OffsetRange]:
    """The ranges cut so that there are about `min_partitions`, larger ones into more pieces.

    Without a minimum (0) there are a few tasks for each of `slot_count` cores, as far as the records are worth it.
    """
    total = sum(each.offset_count for each in ranges)
    wanted = min_partitions or min(slot_count * TASKS_PER_SLOT, total // RECORDS_WORTH_A_TASK)
    if wanted <= len(ranges):
        wanted = min_partitions and len(ranges)
    return [
        piece for each in ranges for piece in _cut(each, max(1, round(wanted * each.offset_count / total)))
    ]


def available_part(
    options: ReadOptions, partition: TopicPartition, asked: tuple[int, int], there: AvailableRange
) -> tuple[int, int]:
    """The remaining part of a range [start, end) whose records are partly gone, after a warning.

    Raises OffsetOutOfRange instead with failOnDataLoss.
    """
    message = (
        f"{partition!r} of cluster {options.cluster!r}: offsets [{asked[0]}, {asked[1]}) were asked for,"
        f" [{there.start_offset}, {there.end_offset}) are available"
    )
    if options.fail_on_data_loss:
        raise OffsetOutOfRange(
            f'{message}; ask for what is there, or set the option "failOnDataLoss" to "false"'
        )
    logger.warning("%s; reading what is there", message)
    start = min(max(asked[0], there.start_offset), there.end_offset)
    return start, max(start, min(asked[1], there.end_offset))


def is_topic_lost(error: ApiError) -> bool:
    """Whether the topic was deleted, or created again, so that no retry helps."""
    return isinstance(error, (UnknownTopicOrPartition, InconsistentTopicId)) and not error.retriable


def on_topic_lost(options: ReadOptions, error: ApiError) -> None:
    """Warns that a topic was deleted; the caller goes on without its records.

    Raises the error instead with failOnDataLoss, with advice how to go on in spite of the loss.
    """
    if options.fail_on_data_loss:
        raise type(error)(
            f'{error}; run the query again, or set the option "failOnDataLoss" to "false"'
        ) from error
    logger.warning("%s; reading nothing of it", error)


def are_offsets_named(options: ReadOptions, topic: str) -> bool:
    """Whether the query names an offset of the topic, which therefore existed once."""
    return any(
        offset >= 0
        for offsets in (options.starting_offsets, options.ending_offsets)
        if not isinstance(offsets, Bound)
        for offset in offsets[topic].values()
    )


def _cut(whole: OffsetRange, count: int) -> list[OffsetRange]:
    count = min(count, whole.offset_count)
    edges = [whole.start_offset + whole.offset_count * index // count for index in range(count + 1)]
    return [OffsetRange(whole.topic_partition, whole.topic_id, start, end) for start, end in pairwise(edges)]


def _plan_partition(options: ReadOptions, partition: TopicPartition, there: AvailableRange) -> OffsetRange:
    asked = (_asked(options.starting_offsets, partition), _asked(options.ending_offsets, partition))
    if asked[0] > asked[1] >= 0:
        raise ConfigError(
            f"rayka source: {partition!r}: startingOffsets {asked[0]} lies after endingOffsets {asked[1]}"
        )
    start = there.start_offset if asked[0] == Bound.EARLIEST else asked[0]
    end = there.end_offset if asked[1] == Bound.LATEST else asked[1]
    if not there.start_offset <= start <= end <= there.end_offset:
        start, end = available_part(options, partition, (start, end), there)
    return OffsetRange(partition, there.topic_id, start, end)


def _asked(offsets: Offsets, partition: TopicPartition) -> int:
    return offsets if isinstance(offsets, Bound) else offsets[partition.topic][partition.partition]


def _check_partitions(
    options: ReadOptions,
    option: str,
    offsets: Offsets,
    available: Mapping[TopicPartition, AvailableRange],
) -> None:
    if isinstance(offsets, Bound):
        return
    given = [TopicPartition(topic, partition) for topic in offsets for partition in offsets[topic]]
    for partition in given:
        if partition not in available:
            message = f"rayka source: option {option!r} names {partition!r}, which does not exist"
            if options.fail_on_data_loss:
                raise UnknownTopicOrPartition(message)
            logger.warning("%s; reading nothing of it", message)
    for partition in available:
        if partition not in given:
            raise ConfigError(
                f"rayka source: option {option!r} leaves out {partition!r}; give every partition of a topic,"
                f" {Bound.EARLIEST.value} for earliest, {Bound.LATEST.value} for latest"
            )
