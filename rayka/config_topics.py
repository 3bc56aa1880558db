"""Configuration of topics: the keys that each topic may have of its own; `rayka.config` has the brokers' defaults."""

import re
from enum import StrEnum
from typing import Annotated, Any

from pydantic import BeforeValidator, Field

from rayka.config_model import ConfigModel

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
    segment_ms: int = Field(default=7 * 24 * 3600 * 1000, ge=1)
    segment_index_bytes: int = Field(default=10 << 20, ge=96, le=_INT32_MAX)
    index_interval_bytes: int = Field(default=4096, ge=0, le=_INT32_MAX)
    max_message_bytes: int = Field(default=1_048_588, ge=0, le=_INT32_MAX)
    message_timestamp_type: MessageTimestampType = MessageTimestampType.CREATE_TIME
    message_timestamp_before_max_ms: int = Field(default=_INT64_MAX, ge=0)
    message_timestamp_after_max_ms: int = Field(default=3_600_000, ge=0)
    min_insync_replicas: int = Field(default=1, ge=1)
    unclean_leader_election_enable: bool = False
    leader_replication_throttled_replicas: _ThrottledReplicas = ""
    follower_replication_throttled_replicas: _ThrottledReplicas = ""
    flush: FlushPolicy = FlushPolicy.NONE
    flush_messages: int = Field(default=_INT64_MAX, ge=1)
    flush_ms: int = Field(default=_INT64_MAX, ge=0)
    file_delete_delay_ms: int = Field(default=60_000, ge=0)
    cleanup_policy: CleanupPolicy = "delete"
    min_cleanable_dirty_ratio: float = Field(default=0.5, ge=0, le=1, allow_inf_nan=False)
    min_compaction_lag_ms: int = Field(default=0, ge=0)
    max_compaction_lag_ms: int = Field(default=_INT64_MAX, ge=1)
    delete_retention_ms: int = Field(default=24 * 3600 * 1000, ge=0)

    @property
    def is_compacted(self) -> bool:
        """Whether of each key only the newest record has to be kept."""
        return "compact" in self.cleanup_policy
