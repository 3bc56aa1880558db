"""Configuration of brokers and controllers, the defaults of topics among it, and which keys can change as they run."""

import posixpath
from collections.abc import Mapping
from enum import Enum
from typing import Annotated, Any, Self

from pydantic import Field

from rayka.config.config_model import ConfigModel, dotted, snake
from rayka.config.topic_config import CleanupPolicy, MessageTimestampType, TopicConfig
from rayka.errors import ConfigError

_INT32_MAX = 2**31 - 1
_INT64_MAX = 2**63 - 1
_TOPIC_KEY = "topic_key"


class Effect(Enum):
    """How a key takes effect, where that is not the start of any node: a mark in the annotation of its row."""

    DYNAMIC = "dynamic"
    UNIFORM = "uniform"
    CONTROLLERS = "controllers"
    BROKERS = "brokers"


DYNAMIC, UNIFORM, CONTROLLERS, BROKERS = Effect


def _of_topics(key: str, **others: Any) -> Any:
    """The row of a default of topics: the topics' own row, unless others say otherwise."""
    field = TopicConfig.model_fields[key]
    bounds = {
        name: getattr(each, name) for each in field.metadata for name in ("ge", "le") if hasattr(each, name)
    }
    return Field(**{"default": field.default, **bounds, **others}, json_schema_extra={_TOPIC_KEY: key})


class BrokerConfig(ConfigModel):
    """Configuration of brokers and controllers, under Kafka's broker names; topic defaults among them."""

    num_partitions: int = Field(default=1, ge=1)
    """How many partitions a topic has that is created without a number."""

    default_replication_factor: int = Field(default=1, ge=1)
    """How many replicas a topic has that is created without a number."""

    broker_session_timeout_ms: Annotated[int, CONTROLLERS] = Field(default=9_000, ge=100)
    """A broker is fenced when the controller has had no heartbeat of it for so long."""

    broker_heartbeat_interval_ms: int = Field(default=2_000, ge=10)
    """How often a broker sends heartbeats to the controller."""

    broker_load_report_interval_ms: Annotated[int, BROKERS] = Field(default=5_000, ge=10)
    """Rayka's own: how often a broker measures its load, which it reports with the next heartbeat; the controller
    remembers twelve reports.
    """

    initial_broker_registration_timeout_ms: Annotated[int, BROKERS] = Field(default=60_000, ge=100)
    """For so long a broker that starts tries to register with the controller."""

    controlled_shutdown_timeout_ms: Annotated[int, BROKERS] = Field(default=10_000, ge=100)
    """For so long a broker that stops waits for its leaderships to move away."""

    fetch_max_bytes: int = Field(default=57_671_680, ge=1024)
    """The largest answer to a fetch, whatever the fetch asks for."""

    fetch_max_wait_ms: int = Field(default=500, ge=0)
    """Rayka's own: how long a node's fetch of cluster metadata waits for news."""

    max_parked_requests: int = Field(default=10_000, ge=1)
    """Rayka's own: how many requests of one API may wait at a node; more are refused, and clients retry."""

    queued_max_request_bytes: int = Field(default=256 << 20, ge=1)
    """How many bytes the waiting requests of one API may hold at a node before more are refused."""

    replica_lag_time_max_ms: Annotated[int, BROKERS] = Field(default=30_000, ge=10)
    """A follower that has not caught up for so long leaves the ISR."""

    replica_fetch_max_bytes: Annotated[int, BROKERS] = Field(default=1 << 20, ge=0, le=_INT32_MAX)
    """How much of one partition a follower asks for in one fetch."""

    replica_fetch_response_max_bytes: Annotated[int, BROKERS] = Field(default=10 << 20, ge=0, le=_INT32_MAX)
    """How much a follower asks for in one fetch of all its partitions."""

    replica_fetch_min_bytes: Annotated[int, BROKERS] = Field(default=1, ge=0)
    """A leader waits for so many bytes before it answers the fetch of a follower."""

    replica_fetch_wait_max_ms: Annotated[int, BROKERS] = Field(default=500, ge=0)
    """A leader answers the fetch of a follower after so long, with whatever there is."""

    replica_fetch_backoff_ms: Annotated[int, BROKERS] = Field(default=1_000, ge=0)
    """How long a follower waits after a fetch that failed."""

    replica_socket_timeout_ms: Annotated[int, BROKERS] = Field(default=30_000, ge=10)
    """How long a follower waits for a leader's answer, beyond the wait that it asked for."""

    max_incremental_fetch_session_cache_slots: Annotated[int, BROKERS] = Field(default=1_000, ge=0)
    """How many fetch sessions a broker keeps; others send all their partitions each time."""

    auto_leader_rebalance_enable: Annotated[bool, CONTROLLERS] = True
    """Whether leadership goes back to the first replica of each partition by itself."""

    leader_imbalance_check_interval_seconds: Annotated[int, CONTROLLERS] = Field(default=300, ge=1)
    """How often the controller looks for leaders that are not the first replica."""

    leader_imbalance_per_broker_percentage: Annotated[int, CONTROLLERS] = Field(default=10, ge=0)
    """The share of a broker's partitions that others may lead before leadership goes back."""

    self_healing_enable: Annotated[bool, UNIFORM] = True
    """Rayka's own: whether the controller makes the replicas of a broker or directory that is gone anew on other
    brokers. It decides nothing else: replicas move off a broker that is drained or goes by the load, and another one
    comes where `scaling` says so.
    """

    broker_unavailable_timeout_ms: Annotated[int, UNIFORM] = Field(default=900_000, ge=1)
    """Rayka's own: a broker or directory counts as gone when it has been away for so long without a break; a change of
    the active controller begins that time anew.
    """

    balancer_moves_max: Annotated[int, UNIFORM] = Field(default=10, ge=1, le=1_000)
    """Rayka's own: how many partitions the controller by itself moves at a time."""

    balancer_enable: Annotated[bool, UNIFORM] = True
    """Rayka's own: whether the controller begins a balance by itself when a broker holds next to nothing or a disk is
    above 80 %.
    """

    balancer_settle_ms: Annotated[int, UNIFORM] = Field(default=60_000, ge=0)
    """Rayka's own: for so long a broker has to be badly off before such a balance begins."""

    leader_replication_throttled_rate: Annotated[int, DYNAMIC, BROKERS] = Field(default=_INT64_MAX, ge=0)
    """Bytes a second that a broker sends of the replicas that its topics name as throttled."""

    follower_replication_throttled_rate: Annotated[int, DYNAMIC, BROKERS] = Field(default=_INT64_MAX, ge=0)
    """Bytes a second that a broker fetches of the replicas that its topics name as throttled."""

    reassignment_replication_throttled_rate: Annotated[int, DYNAMIC, BROKERS] = Field(
        default=100_000_000, ge=0
    )
    """Rayka's own: bytes a second that a broker sends, that it fetches, and that leave it, of replicas that
    reassignments add: by hand, by a drain or a balance. Healing, and a machine that Ray drains, may send to several
    brokers at that rate.
    """

    group_initial_rebalance_delay_ms: Annotated[int, BROKERS] = Field(default=3_000, ge=0)
    """How long the first member of a group waits for others before partitions are assigned."""

    group_min_session_timeout_ms: Annotated[int, BROKERS] = Field(default=6_000, ge=1)
    """The shortest `session.timeout.ms` that a member may ask for."""

    group_max_session_timeout_ms: Annotated[int, BROKERS] = Field(default=1_800_000, ge=1)
    """The longest `session.timeout.ms` that a member may ask for."""

    group_max_size: Annotated[int, BROKERS] = Field(default=_INT32_MAX, ge=1)
    """How many members a group may have."""

    offset_metadata_max_bytes: Annotated[int, BROKERS] = Field(default=4_096, ge=0)
    """The longest metadata that may be committed with an offset."""

    offsets_retention_minutes: Annotated[int, BROKERS] = Field(default=7 * 24 * 60, ge=1)
    """How long committed offsets are kept after their group has lost its last member."""

    offsets_retention_check_interval_ms: Annotated[int, BROKERS] = Field(default=600_000, ge=1)
    """How often a coordinator looks for committed offsets that have expired."""

    offsets_topic_num_partitions: Annotated[int, BROKERS] = Field(default=50, ge=1)
    """How many partitions `__consumer_offsets` gets when the first group creates it."""

    offsets_topic_replication_factor: Annotated[int, BROKERS] = Field(default=-1, ge=-1)
    """How many replicas `__consumer_offsets` gets; -1: as `default.replication.factor` says."""

    offsets_topic_segment_bytes: Annotated[int, BROKERS] = Field(default=4 << 20, ge=1024, le=_INT32_MAX)
    """`segment.bytes` of `__consumer_offsets`, set when the first group creates it. The newest segment is not
    compacted, so a coordinator reads all of it when it starts, some 7 MB/s of single commits. A topic that still has
    104857600, the default of earlier releases, follows this key from the start of a broker on.
    """

    replica_high_watermark_checkpoint_interval_ms: Annotated[int, BROKERS] = Field(default=5_000, ge=10)
    """How often high watermarks are saved. The shorter of this and the next key counts for both."""

    log_flush_offset_checkpoint_interval_ms: Annotated[int, BROKERS] = Field(default=60_000, ge=10)
    """How often recovery points and log start offsets are saved."""

    log_dir_hang_timeout_ms: int = Field(default=60_000, ge=1_000)
    """Rayka's own: a data directory goes offline when a sync, a copy or a removal has made no progress there for so
    long.
    """

    producer_id_expiration_ms: Annotated[int, BROKERS] = Field(default=86_400_000, ge=1)
    """How long a partition remembers a producer that has sent nothing."""

    producer_id_expiration_check_interval_ms: Annotated[int, BROKERS] = Field(default=600_000, ge=1)
    """How often a broker looks for producers to forget."""

    controller_quorum_election_timeout_ms: Annotated[int, CONTROLLERS] = Field(default=1_000, ge=10)
    """How long a candidate waits for votes before it gives up."""

    controller_quorum_fetch_timeout_ms: Annotated[int, CONTROLLERS] = Field(default=2_000, ge=10)
    """A voter that has received nothing from the leader for so long begins an election."""

    controller_quorum_election_backoff_max_ms: Annotated[int, CONTROLLERS] = Field(default=1_000, ge=0)
    """The longest pause of a candidate before it tries again."""

    controller_quorum_request_timeout_ms: int = Field(default=2_000, ge=10)
    """How long a request to a controller may take."""

    controller_quorum_retry_backoff_ms: Annotated[int, CONTROLLERS] = Field(default=20, ge=0)
    """How long a controller waits before it repeats a request that failed."""

    controller_quorum_auto_join_enable: Annotated[bool, CONTROLLERS] = False
    """Whether a new controller becomes a voter by itself."""

    metadata_log_max_record_bytes_between_snapshots: Annotated[int, CONTROLLERS] = Field(
        default=20 << 20, ge=1
    )
    """A controller writes a snapshot of the metadata after so many bytes of its log."""

    metadata_log_max_snapshot_interval_ms: Annotated[int, CONTROLLERS] = Field(default=3_600_000, ge=0)
    """A controller writes a snapshot after so long, if there is anything new; 0: never for the time."""

    metadata_max_retention_bytes: Annotated[int, CONTROLLERS] = Field(default=100 << 20, ge=-1)
    """Older snapshots and metadata segments go when all together are larger than this; -1: no bound."""

    metadata_max_retention_ms: Annotated[int, CONTROLLERS] = Field(default=7 * 24 * 3_600_000, ge=-1)
    """Older snapshots and metadata segments go when they are older than this; -1: no bound."""

    metadata_max_idle_interval_ms: Annotated[int, CONTROLLERS] = Field(default=500, ge=0)
    """An active controller that has nothing to write for so long writes a record that says nothing; 0: never."""

    log_segment_bytes: int = _of_topics("segment_bytes")
    log_roll_ms: int = _of_topics("segment_ms")
    log_roll_jitter_ms: int = _of_topics("segment_jitter_ms")
    log_index_size_max_bytes: int = _of_topics("segment_index_bytes")
    log_index_interval_bytes: int = _of_topics("index_interval_bytes")
    message_max_bytes: int = _of_topics("max_message_bytes")
    log_message_timestamp_type: MessageTimestampType = _of_topics("message_timestamp_type")
    log_message_timestamp_before_max_ms: int = _of_topics("message_timestamp_before_max_ms")
    log_message_timestamp_after_max_ms: int = _of_topics("message_timestamp_after_max_ms")
    min_insync_replicas: Annotated[int, UNIFORM] = _of_topics("min_insync_replicas")
    unclean_leader_election_enable: Annotated[bool, UNIFORM] = _of_topics("unclean_leader_election_enable")
    log_flush_interval_messages: int = _of_topics("flush_messages")
    log_flush_interval_ms: int = _of_topics("flush_ms")
    log_segment_delete_delay_ms: int = _of_topics("file_delete_delay_ms")
    log_cleanup_policy: CleanupPolicy = _of_topics("cleanup_policy")
    log_retention_ms: int | None = _of_topics("retention_ms", default=None)
    log_retention_minutes: Annotated[int | None, BROKERS] = Field(default=None, ge=-1)
    """The same in minutes, where `log.retention.ms` is not set."""

    log_retention_hours: Annotated[int, BROKERS] = Field(default=168, ge=-1)
    """The same in hours, where neither `log.retention.ms` nor `log.retention.minutes` is set."""

    log_retention_bytes: int = _of_topics("retention_bytes")
    log_retention_check_interval_ms: Annotated[int, DYNAMIC, BROKERS] = Field(default=300_000, ge=1)
    """How often a broker looks for segments to delete."""

    log_cleaner_min_cleanable_ratio: float = _of_topics("min_cleanable_dirty_ratio", allow_inf_nan=False)
    log_cleaner_min_compaction_lag_ms: int = _of_topics("min_compaction_lag_ms")
    log_cleaner_max_compaction_lag_ms: int = _of_topics("max_compaction_lag_ms")
    log_cleaner_delete_retention_ms: int = _of_topics("delete_retention_ms")
    log_cleaner_enable: Annotated[bool, BROKERS] = True
    """Whether brokers compact topics whose `cleanup.policy` says so."""

    log_cleaner_threads: Annotated[int, DYNAMIC, BROKERS] = Field(default=1, ge=0)
    """How many logs a broker compacts at once."""

    log_cleaner_backoff_ms: Annotated[int, DYNAMIC, BROKERS] = Field(default=15_000, ge=0)
    """How long a broker waits before it looks again when there was nothing to compact."""

    log_cleaner_dedupe_buffer_size: Annotated[int, DYNAMIC, BROKERS] = Field(default=128 << 20, ge=1 << 10)
    """How many bytes of memory a broker's map of keys takes while it compacts."""

    log_cleaner_io_max_bytes_per_second: Annotated[float, DYNAMIC, BROKERS] = Field(
        default=float(_INT64_MAX), ge=1, allow_inf_nan=False
    )
    """How many bytes a second compaction reads and writes together. A change takes effect within a second."""

    cordoned_log_dirs: Annotated[str, DYNAMIC] = ""
    """Data directories that take no new replicas, by their paths, separated by commas; `*`: all of the broker's. What
    is in them stays and serves.
    """

    broker_drain: Annotated[bool, DYNAMIC] = False
    """Set of one broker by `rayka broker drain`: its replicas move to other brokers until it holds none, whichever node
    ends meanwhile; then it is deleted. Deleted before: the drain ends, and moves under way go on.
    """

    scaling_leaving: Annotated[bool, DYNAMIC] = False
    """Set of one broker, by the supervisor only, while brokers between min and max shrink: it takes no new replicas, is
    emptied, then removed. Deleted: it stays. It is deleted of a broker from 1 to min, and where their number is fixed.
    """

    machine_drain_deadline_ms: Annotated[int, DYNAMIC] = Field(default=-1, ge=-1)
    """Set of one broker by the supervisor while Ray drains its machine: the wall clock, in ms, at which the machine
    goes, 0 where Ray does not say. The broker gets no new replicas, and leads only what no other replica in sync can.
    -1: its machine stays.
    """

    num_replica_alter_log_dirs_threads: Annotated[int, BROKERS] = Field(default=0, ge=0)
    """How many replicas a broker moves between its data directories at once; 0: as many as it has data directories."""

    replica_alter_log_dirs_io_max_bytes_per_second: Annotated[float, DYNAMIC, BROKERS] = Field(
        default=float(_INT64_MAX), ge=1, allow_inf_nan=False
    )
    """How many bytes a second a broker copies between its data directories, all moves together. A change takes effect
    within a second.
    """

    def is_cordoned(self, path: str) -> bool:
        """Whether the data directory with this path takes no new replicas."""
        return bool({"*", _normal(path)} & self.cordoned_paths)

    @property
    def cordoned_paths(self) -> frozenset[str]:
        """What `cordoned.log.dirs` names."""
        named = (each.strip() for each in self.cordoned_log_dirs.split(","))
        return frozenset(_normal(each) for each in named if each)

    def topic_defaults(self) -> dict[str, Any]:
        """What a topic has where its own configuration says nothing: those of the broker's synonyms that were set."""
        chosen = {each for each in self.model_fields_set if getattr(self, each) is not None}
        defaults = {
            topic: getattr(self, broker) for topic, broker in BROKER_SYNONYMS.items() if broker in chosen
        }
        coarser = [each for each in RETENTION_UNITS_MS if each in chosen]
        if coarser and "retention_ms" not in defaults:
            value = getattr(self, coarser[0])
            defaults["retention_ms"] = -1 if value == -1 else value * RETENTION_UNITS_MS[coarser[0]]
        return defaults

    def topic_config(self, overrides: Mapping[str, str]) -> TopicConfig:
        """A topic's effective configuration: its own keys, then the broker's, then Kafka's defaults."""
        own = {snake(key): value for key, value in overrides.items()}
        return TopicConfig.parse({**self.topic_defaults(), **own}, what="topic config")

    def with_dynamic(self, dynamic: Mapping[str, str], *, what: str = "broker config") -> Self:
        """This configuration with what was set in the running cluster on top of it.

        Raises ConfigError as `parse`, and for a key that takes effect at the start of a node only.
        """
        own = {snake(key) for key in dynamic}
        fixed = sorted(
            key for key in own if key in type(self).model_fields and key not in DYNAMIC_BROKER_KEYS
        )
        if fixed:
            raise ConfigError(
                f"{what}: {dotted(fixed[0])!r} takes effect when a node starts; set it in the cluster's specification"
            )
        static = {name: getattr(self, name) for name in self.model_fields_set if name not in own}
        return self.parse({**static, **dynamic}, what=what)


def _normal(path: str) -> str:
    return path if path == "*" else posixpath.normpath(path)


RETENTION_UNITS_MS = {"log_retention_minutes": 60_000, "log_retention_hours": 3_600_000}
"""Keys of brokers that say what `log.retention.ms` says, the finer unit first, and how many ms their unit has."""

BROKER_SYNONYMS: dict[str, str] = {
    str(field.json_schema_extra[_TOPIC_KEY]): name
    for name, field in BrokerConfig.model_fields.items()
    if isinstance(field.json_schema_extra, dict)
}
"""Keys of topics, and the brokers' keys that hold their defaults."""


def _marked(*marks: Effect) -> tuple[str, ...]:
    fields = BrokerConfig.model_fields.items()
    return tuple(name for name, field in fields if any(each in marks for each in field.metadata))


DYNAMIC_BROKER_KEYS = (*BROKER_SYNONYMS.values(), *RETENTION_UNITS_MS, *_marked(DYNAMIC, UNIFORM))
"""Keys of brokers that can be set while they run; Kafka's `DynamicBrokerConfig.AllDynamicConfigs`."""

UNIFORM_BROKER_KEYS = _marked(UNIFORM)
"""Those of them that the controller goes by too, so that no broker has its own."""

CONTROLLER_KEYS = _marked(CONTROLLERS)
"""Keys that only controllers read, so that a change of one restarts no broker."""

BROKER_KEYS = (
    *(each for each in BROKER_SYNONYMS.values() if each not in UNIFORM_BROKER_KEYS),
    *_marked(BROKERS),
)
"""Keys that only brokers and coordinators read, so that a change of one restarts no controller. Controllers describe
them as brokers have reported them.
"""
