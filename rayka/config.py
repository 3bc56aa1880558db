"""What people write: configuration of topics, nodes, clients and the cluster, checked where it enters.

Keys are Kafka's dotted names (`min.insync.replicas`) in YAML, dicts and on the command line, and the same in snake_case
as keyword arguments. An unknown key is a ConfigError that names the nearest known one; nothing is accepted and ignored.
How keys are read is in `config_model`, the keys of topics are in `config_topics`; no other module imports pydantic.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, Self

import yaml
from pydantic import (
    AfterValidator,
    BeforeValidator,
    Field,
    ValidationInfo,
    field_validator,
)

from rayka.config_model import ConfigModel, dotted, snake
from rayka.config_topics import CleanupPolicy, FlushPolicy, MessageTimestampType, TopicConfig
from rayka.errors import ConfigError
from rayka.ids import (
    FIRST_BROKER_ID,
    FIRST_CONTROLLER_ID,
    FIRST_COORDINATOR_ID,
    Role,
    is_combined,
    role_of,
)

# What others import from here and what is defined elsewhere.
__all__ = ["FlushPolicy", "MessageTimestampType", "TopicConfig"]

IDEMPOTENT_IN_FLIGHT_MAX = 5  # as many batches of a producer as a broker recognises
_INT32_MAX = 2**31 - 1
_INT64_MAX = 2**63 - 1


# ---- Nodes ---------------------------------------------------------------------------------------------------------


class BrokerConfig(ConfigModel):
    """Configuration of brokers and controllers, under Kafka's broker names; topic defaults among them."""

    num_partitions: int = Field(default=1, ge=1)
    default_replication_factor: int = Field(default=1, ge=1)
    broker_session_timeout_ms: int = Field(default=9_000, ge=100)
    broker_heartbeat_interval_ms: int = Field(default=2_000, ge=10)
    initial_broker_registration_timeout_ms: int = Field(default=60_000, ge=100)
    controlled_shutdown_timeout_ms: int = Field(default=10_000, ge=100)
    fetch_max_bytes: int = Field(default=57_671_680, ge=1024)
    fetch_max_wait_ms: int = Field(default=500, ge=0)
    max_parked_requests: int = Field(default=10_000, ge=1)
    queued_max_request_bytes: int = Field(default=256 << 20, ge=1)
    replica_lag_time_max_ms: int = Field(default=30_000, ge=10)
    replica_fetch_max_bytes: int = Field(default=1 << 20, ge=0, le=_INT32_MAX)
    replica_fetch_response_max_bytes: int = Field(default=10 << 20, ge=0, le=_INT32_MAX)
    replica_fetch_min_bytes: int = Field(default=1, ge=0)
    replica_fetch_wait_max_ms: int = Field(default=500, ge=0)
    replica_fetch_backoff_ms: int = Field(default=1_000, ge=0)
    replica_socket_timeout_ms: int = Field(default=30_000, ge=10)
    max_incremental_fetch_session_cache_slots: int = Field(default=1_000, ge=0)
    auto_leader_rebalance_enable: bool = True
    leader_imbalance_check_interval_seconds: int = Field(default=300, ge=1)
    leader_imbalance_per_broker_percentage: int = Field(default=10, ge=0)
    unclean_leader_election_enable: bool = False
    leader_replication_throttled_rate: int = Field(default=_INT64_MAX, ge=0)
    follower_replication_throttled_rate: int = Field(default=_INT64_MAX, ge=0)
    group_initial_rebalance_delay_ms: int = Field(default=3_000, ge=0)
    group_min_session_timeout_ms: int = Field(default=6_000, ge=1)
    group_max_session_timeout_ms: int = Field(default=1_800_000, ge=1)
    group_max_size: int = Field(default=_INT32_MAX, ge=1)
    offset_metadata_max_bytes: int = Field(default=4_096, ge=0)
    offsets_retention_minutes: int = Field(default=7 * 24 * 60, ge=1)
    offsets_retention_check_interval_ms: int = Field(default=600_000, ge=1)
    offsets_topic_num_partitions: int = Field(default=50, ge=1)
    offsets_topic_replication_factor: int = Field(default=-1, ge=-1)
    replica_high_watermark_checkpoint_interval_ms: int = Field(default=5_000, ge=10)
    log_flush_offset_checkpoint_interval_ms: int = Field(default=60_000, ge=10)
    producer_id_expiration_ms: int = Field(default=86_400_000, ge=1)
    producer_id_expiration_check_interval_ms: int = Field(default=600_000, ge=1)

    controller_quorum_election_timeout_ms: int = Field(default=1_000, ge=10)
    controller_quorum_fetch_timeout_ms: int = Field(default=2_000, ge=10)
    controller_quorum_election_backoff_max_ms: int = Field(default=1_000, ge=0)
    controller_quorum_request_timeout_ms: int = Field(default=2_000, ge=10)
    controller_quorum_retry_backoff_ms: int = Field(default=20, ge=0)
    controller_quorum_auto_join_enable: bool = False
    metadata_log_max_record_bytes_between_snapshots: int = Field(default=20 << 20, ge=1)
    metadata_log_max_snapshot_interval_ms: int = Field(default=3_600_000, ge=0)
    metadata_max_retention_bytes: int = Field(default=100 << 20, ge=-1)
    metadata_max_retention_ms: int = Field(default=7 * 24 * 3_600_000, ge=-1)
    metadata_max_idle_interval_ms: int = Field(default=500, ge=0)

    log_segment_bytes: int = Field(default=1 << 30, ge=1024, le=_INT32_MAX)
    log_roll_ms: int = Field(default=7 * 24 * 3600 * 1000, ge=1)
    log_index_size_max_bytes: int = Field(default=10 << 20, ge=96, le=_INT32_MAX)
    log_index_interval_bytes: int = Field(default=4096, ge=0, le=_INT32_MAX)
    message_max_bytes: int = Field(default=1_048_588, ge=0, le=_INT32_MAX)
    log_message_timestamp_type: MessageTimestampType = MessageTimestampType.CREATE_TIME
    log_message_timestamp_before_max_ms: int = Field(default=_INT64_MAX, ge=0)
    log_message_timestamp_after_max_ms: int = Field(default=3_600_000, ge=0)
    min_insync_replicas: int = Field(default=1, ge=1)
    log_flush_interval_messages: int = Field(default=_INT64_MAX, ge=1)
    log_flush_interval_ms: int = Field(default=_INT64_MAX, ge=0)
    log_segment_delete_delay_ms: int = Field(default=60_000, ge=0)
    log_cleanup_policy: CleanupPolicy = "delete"
    log_cleaner_min_cleanable_ratio: float = Field(default=0.5, ge=0, le=1, allow_inf_nan=False)
    log_cleaner_min_compaction_lag_ms: int = Field(default=0, ge=0)
    log_cleaner_max_compaction_lag_ms: int = Field(default=_INT64_MAX, ge=1)
    log_cleaner_delete_retention_ms: int = Field(default=24 * 3600 * 1000, ge=0)
    log_cleaner_enable: bool = True
    log_cleaner_threads: int = Field(default=1, ge=0)
    log_cleaner_backoff_ms: int = Field(default=15_000, ge=0)
    log_cleaner_dedupe_buffer_size: int = Field(default=128 << 20, ge=1 << 10)
    log_cleaner_io_max_bytes_per_second: float = Field(default=float(_INT64_MAX), gt=0, allow_inf_nan=False)

    def topic_defaults(self) -> dict[str, Any]:
        """What a topic has where its own configuration says nothing: those of the broker's synonyms that were set."""
        chosen = self.model_fields_set
        return {topic: getattr(self, broker) for topic, broker in BROKER_SYNONYMS.items() if broker in chosen}

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


BROKER_SYNONYMS = {
    "segment_bytes": "log_segment_bytes",
    "segment_ms": "log_roll_ms",
    "segment_index_bytes": "log_index_size_max_bytes",
    "index_interval_bytes": "log_index_interval_bytes",
    "max_message_bytes": "message_max_bytes",
    "message_timestamp_type": "log_message_timestamp_type",
    "message_timestamp_before_max_ms": "log_message_timestamp_before_max_ms",
    "message_timestamp_after_max_ms": "log_message_timestamp_after_max_ms",
    "min_insync_replicas": "min_insync_replicas",
    "unclean_leader_election_enable": "unclean_leader_election_enable",
    "flush_messages": "log_flush_interval_messages",
    "flush_ms": "log_flush_interval_ms",
    "file_delete_delay_ms": "log_segment_delete_delay_ms",
    "cleanup_policy": "log_cleanup_policy",
    "min_cleanable_dirty_ratio": "log_cleaner_min_cleanable_ratio",
    "min_compaction_lag_ms": "log_cleaner_min_compaction_lag_ms",
    "max_compaction_lag_ms": "log_cleaner_max_compaction_lag_ms",
    "delete_retention_ms": "log_cleaner_delete_retention_ms",
}
"""Keys of topics, and the brokers' keys that hold their defaults."""

DYNAMIC_BROKER_KEYS = (
    *BROKER_SYNONYMS.values(),
    "leader_replication_throttled_rate",
    "follower_replication_throttled_rate",
    "log_cleaner_threads",
    "log_cleaner_backoff_ms",
    "log_cleaner_dedupe_buffer_size",
    "log_cleaner_io_max_bytes_per_second",
)
"""Keys of brokers that can be set while they run; Kafka's `DynamicBrokerConfig.AllDynamicConfigs`."""

UNIFORM_BROKER_KEYS = ("min_insync_replicas", "unclean_leader_election_enable")
"""Those of them that the controller goes by too, so that no broker has its own."""


# ---- Clients -------------------------------------------------------------------------------------------------------


_ACKS = {"all": -1, "-1": -1, "0": 0, "1": 1}


def _acks(value: Any) -> int:
    is_bool = isinstance(value, bool)  # True equals 1 in Python, but is no number of acknowledgements
    known = None if is_bool else _ACKS.get(str(value))
    if known is None:
        raise ValueError("expected 'all', 1 or 0")
    return known


def _compression(value: Any) -> Any:
    return "none" if value is None else value


class _ClientConfig(ConfigModel):
    """What all clients have. `transport` is rayka's own: with `ray` a client takes no direct lane."""

    request_timeout_ms: int = Field(default=30_000, ge=1)
    retry_backoff_ms: int = Field(default=100, ge=1)
    retry_backoff_max_ms: int = Field(default=1_000, ge=1)
    metadata_max_age_ms: int = Field(default=300_000, ge=1)
    transport: Literal["auto", "ray"] = "auto"

    @classmethod
    def given(cls, config: Mapping[str, Any] | None, options: Mapping[str, Any], *, what: str) -> Self:
        """The configuration from a dict of dotted names and keyword arguments. Raises ConfigError as `parse`."""
        if config is not None and not isinstance(config, Mapping):
            raise ConfigError(f"{what}: config: expected a mapping, found {type(config).__name__}")
        return cls.parse({**(config or {}), **options}, what=what)


class AdminConfig(_ClientConfig):
    """Configuration of an `Admin`."""

    default_api_timeout_ms: int = Field(default=60_000, ge=1)


class ProducerConfig(_ClientConfig):
    """Configuration of a `Producer`; names are Kafka's. `batch_size` is larger than Kafka's: a call to an
    actor costs more.
    """

    acks: Annotated[Literal[-1, 0, 1], BeforeValidator(_acks)] = -1
    linger_ms: float = Field(default=5, ge=0, allow_inf_nan=False)
    batch_size: int = Field(default=1 << 20, ge=0)
    buffer_memory: int = Field(default=128 << 20, ge=1 << 16)
    max_block_ms: int = Field(default=60_000, ge=0)
    max_request_size: int = Field(default=1 << 20, ge=1)
    delivery_timeout_ms: int = Field(default=120_000, ge=1, validate_default=True)
    max_in_flight_requests_per_connection: int = Field(default=5, ge=1)
    enable_idempotence: bool | None = Field(default=None, validate_default=True)
    compression_type: Annotated[Literal["none", "gzip", "lz4", "zstd"], BeforeValidator(_compression)] = (
        "none"
    )
    key_serializer: Any = None
    value_serializer: Any = None
    partitioner: Any = None
    interceptors: Any = ()

    @field_validator("delivery_timeout_ms")
    @classmethod
    def _outlasts_linger(cls, value: int, info: ValidationInfo) -> int:
        linger_ms = info.data.get("linger_ms", 0)
        if value <= linger_ms:
            raise ValueError(f"expected more than linger_ms={linger_ms:g}, or no record would ever be sent")
        return value

    @field_validator("enable_idempotence")
    @classmethod
    def _idempotence(cls, value: bool | None, info: ValidationInfo) -> bool:
        """Not said: as far as the other keys allow it (C7, and Kafka's `ProducerConfig`)."""
        acks, in_flight = (info.data.get(key, 0) for key in ("acks", "max_in_flight_requests_per_connection"))
        if value and acks != -1:
            raise ValueError("expected False with this acks: idempotence needs acks='all'")
        if value and in_flight > IDEMPOTENT_IN_FLIGHT_MAX:
            raise ValueError(
                f"expected False, or max_in_flight_requests_per_connection={IDEMPOTENT_IN_FLIGHT_MAX} or less"
            )
        is_possible = acks == -1 and in_flight <= IDEMPOTENT_IN_FLIGHT_MAX
        return is_possible if value is None else value


Assignors = tuple[Literal["range", "roundrobin", "sticky", "cooperative-sticky"], ...]


def _assignors(value: Any) -> Any:
    return value.replace(" ", "").split(",") if isinstance(value, str) else value


class ConsumerConfig(_ClientConfig):
    """Configuration of a `Consumer`; names and defaults are Kafka's. Without a group nothing is committed.

    `local_reads` is rayka's own: segments on this machine are mapped instead of being sent. `client_rack` is where the
    consumer is, so that it may read from a replica there; with local reads, where nothing is said, the rack of a broker
    on this machine.
    """

    group_id: str | None = Field(default=None, min_length=1)
    group_instance_id: str | None = Field(default=None, min_length=1)
    client_id: str = "rayka"
    enable_auto_commit: bool = True
    auto_commit_interval_ms: int = Field(default=5_000, ge=1)
    max_poll_interval_ms: int = Field(default=300_000, ge=1, le=_INT32_MAX)
    session_timeout_ms: int = Field(default=45_000, ge=1, le=_INT32_MAX)
    heartbeat_interval_ms: int = Field(default=3_000, ge=1)
    partition_assignment_strategy: Annotated[Assignors, BeforeValidator(_assignors), Field(min_length=1)] = (
        "range",
        "cooperative-sticky",
    )
    default_api_timeout_ms: int = Field(default=60_000, ge=1)
    auto_offset_reset: Literal["earliest", "latest", "none"] = "latest"
    fetch_min_bytes: int = Field(default=1, ge=0)
    fetch_max_wait_ms: int = Field(default=500, ge=0)
    fetch_max_bytes: int = Field(default=50 << 20, ge=1)
    max_partition_fetch_bytes: int = Field(default=1 << 20, ge=1)
    max_poll_records: int = Field(default=500, ge=1)
    check_crcs: bool = True
    local_reads: bool = True
    client_rack: str = ""
    key_deserializer: Any = None
    value_deserializer: Any = None
    interceptors: Any = ()

    @field_validator("group_instance_id", "enable_auto_commit")  # those that were given
    @classmethod
    def _needs_group(cls, value: Any, info: ValidationInfo) -> Any:
        if value and info.data.get("group_id", "") is None:
            raise ValueError("expected with group_id only: there is no group that it could be for")
        return value

    @field_validator("heartbeat_interval_ms")
    @classmethod
    def _within_session(cls, value: int, info: ValidationInfo) -> int:
        session_ms = info.data.get("session_timeout_ms", value + 1)
        if value >= session_ms:
            raise ValueError(f"expected less than session_timeout_ms={session_ms}, or each session would end")
        return value


def _callable_or_word(value: Any) -> Any:
    if value not in ("stop", "skip") and not callable(value):
        raise ValueError("expected 'stop', 'skip' or a callable")
    return value


class WorkersConfig(ConsumerConfig):
    """Configuration of `rayka.workers`: of the pool, and of the consumers in it."""

    auto_offset_reset: Literal["earliest", "latest", "none"] = "earliest"
    enable_auto_commit: bool = False
    partition_assignment_strategy: Annotated[Assignors, BeforeValidator(_assignors), Field(min_length=1)] = (
        "cooperative-sticky",
    )
    min: int = Field(default=1, ge=1)
    max: int = Field(default=32, ge=1)
    target_lag_seconds: float | None = Field(default=None, gt=0, allow_inf_nan=False)
    batch: Literal["records", "arrow"] = "records"
    max_records: int = Field(default=500, ge=1)
    retries: int = Field(default=3, ge=0)
    on_poison: Annotated[Any, AfterValidator(_callable_or_word)] = "stop"
    ray_options: dict[str, Any] = {}

    @field_validator("enable_auto_commit")
    @classmethod
    def _never(cls, value: bool) -> bool:
        if value:
            raise ValueError("expected false: workers commit what their function has returned from")
        return value

    @field_validator("max")
    @classmethod
    def _not_below_min(cls, value: int, info: ValidationInfo) -> int:
        if value < info.data.get("min", value):
            raise ValueError(f"expected min={info.data['min']} or more")
        return value


# ---- The cluster ---------------------------------------------------------------------------------------------------


class RaySpec(ConfigModel):
    """Which Ray to use: `auto` is the running one, or a local one is started."""

    address: str = "auto"


class RoleResources(ConfigModel):
    """What Ray sets aside for one node; never zero, so that Ray's autoscaler sees it as demand."""

    num_cpus: float = Field(default=0.05, gt=0, allow_inf_nan=False)
    memory: int | None = Field(default=None, gt=0)
    resources: dict[str, float] = {}


class Resources(ConfigModel):
    """Resources by role."""

    broker: RoleResources = RoleResources(num_cpus=0.05)
    controller: RoleResources = RoleResources(num_cpus=0.02)
    coordinator: RoleResources = RoleResources(num_cpus=0.02)


def _data_dir(value: Any) -> Any:
    paths = value if isinstance(value, list) else [value]
    if not paths or not all(isinstance(each, str) and each for each in paths) or len(set(paths)) < len(paths):
        raise ValueError("expected a directory, or a list of different ones")
    # Relative to where the spec is read: the nodes have other working directories. A home is each machine's own.
    absolute = [each if each.startswith("~") else str(Path(each).absolute()) for each in paths]
    return absolute if isinstance(value, list) else absolute[0]


NODES_MAX = FIRST_COORDINATOR_ID - FIRST_BROKER_ID  # of one role
_COUNTS = ("controllers", "brokers", "coordinators")


class NodeSpec(ConfigModel):
    """One node and what it does: one role, or several in one actor (Kafka's `process.roles`)."""

    id: int = Field(ge=1, strict=True)
    roles: tuple[Role, ...] = Field(min_length=1)

    @field_validator("roles")
    @classmethod
    def _in_order(cls, roles: tuple[Role, ...], info: ValidationInfo) -> tuple[Role, ...]:
        in_order = tuple(each for each in Role if each in roles)
        node_id = info.data.get("id")
        if len(in_order) < len(roles):
            raise ValueError("expected each role once")
        if node_id is not None and role_of(node_id) is not in_order[0]:
            raise ValueError(
                f"node {node_id} has the id of a {role_of(node_id)}; expected brokers from {FIRST_BROKER_ID}, "
                f"coordinators from {FIRST_COORDINATOR_ID}, controllers from {FIRST_CONTROLLER_ID}, a node that is "
                "several with the id of the first of these roles"
            )
        return in_order


def _check_nodes(nodes: tuple[NodeSpec, ...]) -> tuple[NodeSpec, ...]:
    """In the order of ids. Raises ValueError that says why these nodes are no cluster.

    Controllers are all alone or all combined, so the ids of a cluster's nodes say which to ask for the active one
    (decision 032).
    """
    if len({each.id for each in nodes}) < len(nodes):
        raise ValueError("expected each id once")
    for role in (Role.BROKER, Role.CONTROLLER):
        if not any(role in each.roles for each in nodes):
            raise ValueError(f"expected at least one {role}")
    combined = [each.id for each in nodes if is_combined(each.roles)]
    if combined and any(each.roles == (Role.CONTROLLER,) for each in nodes):
        raise ValueError(
            f"expected controllers that are all brokers or coordinators too, or none that is: {combined} are"
        )
    _check_controllers(sum(Role.CONTROLLER in each.roles for each in nodes))
    return tuple(sorted(nodes, key=lambda each: each.id))


def _check_controllers(count: int) -> int:
    """An odd number, as Kafka's documentation advises. Raises ValueError that says why."""
    if count % 2 == 0:
        raise ValueError(
            f"expected an odd number of controllers: {count} survive no more losses than {count - 1}, and each change "
            "waits for one more of them"
        )
    return count


def _check_ports(ports: tuple[int, int]) -> tuple[int, int]:
    first, last = ports
    if not 0 < first <= last < 1 << 16:
        raise ValueError("expected the first and the last port, between 1 and 65535")
    return ports


class ClusterSpec(ConfigModel):
    """The whole cluster, declared: what `cluster.yaml` holds.

    Coordinators lead internal partitions, groups among them; where there are none, brokers do.

    With the transport `auto` the nodes serve hot calls over sockets of their own, on a port of `transport_ports` (the
    first and the last one, by default any that is free); with `ray` nothing listens, and every call is a remote method.
    """

    name: str = Field(default="rayka", pattern=r"^[A-Za-z0-9_-][A-Za-z0-9._-]{0,99}$")
    controllers: Annotated[int, AfterValidator(_check_controllers)] = Field(
        default=1, ge=1, le=NODES_MAX, strict=True
    )
    brokers: int = Field(default=1, ge=1, le=NODES_MAX, strict=True)
    coordinators: int = Field(default=0, ge=0, le=NODES_MAX, strict=True)
    nodes: Annotated[tuple[NodeSpec, ...], AfterValidator(_check_nodes)] | None = None
    data_dir: Annotated[str | list[str], BeforeValidator(_data_dir)] = "~/.rayka"
    ray: RaySpec = RaySpec()
    resources: Resources = Resources()
    transport: Literal["auto", "ray"] = "auto"
    transport_ports: Annotated[tuple[int, int], AfterValidator(_check_ports)] | None = None
    config: BrokerConfig = BrokerConfig()

    @field_validator("config")
    @classmethod
    def _has_brokers_enough(cls, config: BrokerConfig, info: ValidationInfo) -> BrokerConfig:
        """Else no topic could be created without a count of its own."""
        nodes, count = info.data.get("nodes"), info.data.get("brokers", NODES_MAX)
        broker_count = sum(Role.BROKER in each.roles for each in nodes) if nodes else count
        factor = config.default_replication_factor
        if factor > broker_count:
            raise ValueError(
                f"expected a default.replication.factor of {broker_count} at most, or more brokers than that, "
                f"found {factor}"
            )
        return config

    @property
    def roles(self) -> dict[int, tuple[Role, ...]]:
        """What each node does, by id, ascending; the roles of a node in the order of `Role`."""
        if self.nodes is not None:
            return {each.id: each.roles for each in self.nodes}
        brokers = range(FIRST_BROKER_ID, FIRST_BROKER_ID + self.brokers)
        coordinators = range(FIRST_COORDINATOR_ID, FIRST_COORDINATOR_ID + self.coordinators)
        controllers = range(FIRST_CONTROLLER_ID, FIRST_CONTROLLER_ID + self.controllers)
        return {
            **dict.fromkeys(brokers, (Role.BROKER,)),
            **dict.fromkeys(coordinators, (Role.COORDINATOR,)),
            **dict.fromkeys(controllers, (Role.CONTROLLER,)),
        }

    @classmethod
    def load(cls, path: str | Path) -> Self:
        """The spec in a YAML file. Raises ConfigError naming the file and the key."""
        try:
            values = yaml.safe_load(Path(path).read_text())
        except FileNotFoundError:
            raise ConfigError(
                f"{path}: there is no such file; `rayka init {path}` writes one to start from"
            ) from None
        except OSError as error:
            raise ConfigError(
                f"{path}: {error.strerror}; expected a cluster specification in YAML"
            ) from error
        except (yaml.YAMLError, UnicodeDecodeError) as error:
            raise ConfigError(f"{path}: not YAML: {error}") from error
        if not isinstance(values, dict):
            raise ConfigError(
                f"{path}: expected a mapping such as 'name: rayka', found {type(values).__name__}"
            )
        return cls.of(values, what=str(path))

    @classmethod
    def of(cls, values: Mapping[str, Any], *, what: str = "cluster spec") -> Self:
        """The spec from plain values, its sections parsed with their own keys."""
        sections: dict[str, Any] = dict(values)
        for key, section in (("config", BrokerConfig), ("ray", RaySpec)):
            if isinstance(sections.get(key), Mapping):
                sections[key] = section.parse(sections[key], what=f"{what}, {key}")
        if sections.get("nodes") is not None and any(sections.get(each) is not None for each in _COUNTS):
            raise ConfigError(
                f"{what}: expected either nodes or the counts ({', '.join(_COUNTS)}), found both"
            )
        return cls.parse(sections, what=what)

    @property
    def data_dirs(self) -> tuple[str, ...]:
        """The data directories, expanded."""
        given = [self.data_dir] if isinstance(self.data_dir, str) else self.data_dir
        return tuple(str(Path(each).expanduser().absolute()) for each in given)
