"""Configuration of topics: the keys that a topic may set for itself; `broker_config` has their defaults."""

import re
from enum import StrEnum
from typing import Annotated, Any

from pydantic import BeforeValidator, Field

from rayka.config.config_model import ConfigModel

_INT32_MAX = 2**31 - 1
_INT64_MAX = 2**63 - 1


class MessageTimestampType(StrEnum):
    """Whether a record's timestamp is the producer's or the broker's."""

    CREATE_TIME = "CreateTime"
    LOG_APPEND_TIME = "LogAppendTime"


class FlushPolicy(StrEnum):
    """`batch`: a record is synced to disk before it is acknowledged; one sync serves all that wait for it."""

    NONE = "none"
    BATCH = "batch"


def _throttled_replicas(value: Any) -> Any:
    if isinstance(value, str) and not _THROTTLED_REPLICAS.fullmatch(value):
        raise ValueError("expected '*', or a list of partition:broker such as '0:1,0:2', or nothing")
    return value


_THROTTLED_REPLICAS = re.compile(r"\*|(\d+:\d+(,\d+:\d+)*)?")
_ThrottledReplicas = Annotated[str, BeforeValidator(_throttled_replicas)]


def _cleanup_policy(value: Any) -> Any:
    """`compact, delete` as `compact,delete`: in this order, without blanks."""
    policies = sorted({each.strip() for each in value.split(",")}) if isinstance(value, str) else [value]
    if not all(each in ("compact", "delete") for each in policies):
        raise ValueError("expected 'delete', 'compact' or 'compact,delete'")
    return ",".join(policies)


CleanupPolicy = Annotated[str, BeforeValidator(_cleanup_policy)]


class TopicConfig(ConfigModel):
    """Configuration of one topic; names, units and defaults are Kafka's, but for `flush`, which is rayka's own."""

    segment_bytes: int = Field(default=1 << 30, ge=1024, le=_INT32_MAX)
    """A segment of the log is closed when the next batch would make it larger than this."""

    segment_ms: int = Field(default=7 * 24 * 3600 * 1000, ge=1)
    """A segment is closed when its records are this much older than the newest, although it is not full."""

    segment_jitter_ms: int = Field(default=0, ge=0)
    """Segments are closed earlier than `segment.ms` by up to this, each by another time, so that not all of a broker
    are closed at once.
    """

    segment_index_bytes: int = Field(default=10 << 20, ge=96, le=_INT32_MAX)
    """How large the offset index and the time index of a segment may become."""

    index_interval_bytes: int = Field(default=4096, ge=0, le=_INT32_MAX)
    """The offset index has an entry for about every so many bytes of the log."""

    max_message_bytes: int = Field(default=1_048_588, ge=0, le=_INT32_MAX)
    """The largest batch of records that a broker accepts, as it is sent: after compression."""

    message_timestamp_type: MessageTimestampType = MessageTimestampType.CREATE_TIME
    """Whether a record keeps the timestamp of its producer, or gets that of its leader."""

    message_timestamp_before_max_ms: int = Field(default=_INT64_MAX, ge=0)
    """A record whose timestamp is older than now by more than this is refused."""

    message_timestamp_after_max_ms: int = Field(default=3_600_000, ge=0)
    """A record whose timestamp is later than now by more than this is refused."""

    min_insync_replicas: int = Field(default=1, ge=1)
    """With fewer replicas in sync, records with acks=all are refused."""

    unclean_leader_election_enable: bool = False
    """Whether a replica that may lack acknowledged records can become leader when no other is left."""

    leader_replication_throttled_replicas: _ThrottledReplicas = ""
    """Replicas that are bounded by `leader.replication.throttled.rate`: `*`, or partition:broker pairs."""

    follower_replication_throttled_replicas: _ThrottledReplicas = ""
    """Replicas that are bounded by `follower.replication.throttled.rate`: `*`, or partition:broker pairs."""

    flush: FlushPolicy = FlushPolicy.NONE
    """Rayka's own: `batch` syncs records to disk before they are acknowledged, one sync for all that wait."""

    flush_messages: int = Field(default=_INT64_MAX, ge=1)
    """The log is synced to disk after so many records."""

    flush_ms: int = Field(default=_INT64_MAX, ge=0)
    """The log is synced to disk when a record has waited for so long."""

    file_delete_delay_ms: int = Field(default=60_000, ge=0)
    """How long the files of a deleted topic, of a replica that moved away, or of segments that were deleted stay on the
    disk.
    """

    retention_ms: int = Field(default=7 * 24 * 3600 * 1000, ge=-1)
    """A segment is deleted when its newest record is older than this, by its timestamp; -1: none is. Not in a topic
    that is only compacted.
    """

    retention_bytes: int = Field(default=-1, ge=-1)
    """The oldest segments of a partition are deleted while it has this many bytes without them; -1: none is. Not in a
    topic that is only compacted.
    """

    cleanup_policy: CleanupPolicy = "delete"
    """`delete`, `compact` (of each key the newest record is kept), or both."""

    min_cleanable_dirty_ratio: float = Field(default=0.5, ge=0, le=1, allow_inf_nan=False)
    """A log is compacted when this share of it was not compacted yet."""

    min_compaction_lag_ms: int = Field(default=0, ge=0)
    """How long a record stays at least before compaction may remove it."""

    max_compaction_lag_ms: int = Field(default=_INT64_MAX, ge=1)
    """After so long a record is compacted although too little of the log is dirty."""

    delete_retention_ms: int = Field(default=24 * 3600 * 1000, ge=0)
    """How long the tombstone of a key stays in a compacted topic, so that readers see it."""

    @property
    def is_compacted(self) -> bool:
        """Whether of each key only the newest record has to be kept."""
        return "compact" in self.cleanup_policy

    @property
    def is_expiring(self) -> bool:
        """Whether records go by their age, or by the size of their partition."""
        return "delete" in self.cleanup_policy

    @property
    def segment_ms_max(self) -> int:
        """How old a segment's first record may get before it is sealed: what is in the active one is not compacted."""
        return min(self.segment_ms, self.max_compaction_lag_ms) if self.is_compacted else self.segment_ms
