"""The target of a reset of a group's offsets. Kafka: ConsumerGroupCommand's `--reset-offsets`."""

from collections.abc import Mapping
from typing import Any, NamedTuple

from rayka.client.admin.admin_arguments import offsets_of
from rayka.client.arguments import given_timestamp_ms, int_of
from rayka.errors import InvalidArgument, InvalidRequest
from rayka.ids import TopicPartition


class ResetTarget(NamedTuple):
    """The target of a reset. At most one field is set; without any the target is the end of each log."""

    is_earliest: bool = False
    offset: int | None = None
    offsets: Mapping[TopicPartition, int] | None = None
    timestamp_ms: int | None = None
    shift_by: int | None = None

    def offset_of(
        self, topic_partition: TopicPartition, before: int | None, *, first: int, end: int, by_time: int
    ) -> int:
        """The target offset of one partition, whose log goes from `first` to `end`.

        `before` is the committed offset, `by_time` the offset at `timestamp_ms`. The result may lie outside the log.
        Raises InvalidRequest when the target names no offset for the partition.
        """
        if self.shift_by is not None:
            if before is None:
                raise InvalidRequest(
                    f"{topic_partition} has no committed offset to shift; name another target for it"
                )
            return before + self.shift_by
        if self.offsets is not None:
            if topic_partition not in self.offsets:
                raise InvalidRequest(
                    f"{topic_partition}: expected an offset in `to`, found none; name one, or leave the partition out"
                    " of `scope`"
                )
            return self.offsets[topic_partition]
        if self.offset is not None:
            return self.offset
        if self.timestamp_ms is not None:
            return by_time
        return first if self.is_earliest else end


def target_of(to: Any, timestamp: Any, shift_by: Any) -> ResetTarget:
    """The target from the arguments of a caller. Raises TypeError, and InvalidArgument unless exactly one is given."""
    given = [each for each in (to, timestamp, shift_by) if each is not None]
    if len(given) != 1:
        raise InvalidArgument(f"expected one of to, timestamp and shift_by, found {len(given)}")
    if shift_by is not None:
        return ResetTarget(shift_by=int_of(shift_by, "shift_by"))
    if timestamp is not None:
        return ResetTarget(timestamp_ms=given_timestamp_ms(timestamp, "timestamp"))
    if isinstance(to, str):
        if to not in ("earliest", "latest"):
            raise InvalidArgument(f"to: expected 'earliest', 'latest', an offset or offsets, found {to!r}")
        return ResetTarget(is_earliest=to == "earliest")
    if isinstance(to, Mapping):
        return ResetTarget(offsets=offsets_of(to))
    return ResetTarget(offset=int_of(to, "to"))
