"""Configuration of clients: admin, producer, consumer, and the workers that consume."""

from collections.abc import Mapping
from typing import Annotated, Any, Literal, Self

from pydantic import AfterValidator, BeforeValidator, Field, ValidationInfo, field_validator

from rayka.config.config_model import ConfigModel
from rayka.errors import ConfigError

IDEMPOTENT_IN_FLIGHT_MAX = 5  # as many batches of a producer as a broker recognises
_INT32_MAX = 2**31 - 1


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
    """How long one request may take before it is repeated."""

    retry_backoff_ms: int = Field(default=100, ge=1)
    """The first pause before a request is repeated; each following one is twice as long."""

    retry_backoff_max_ms: int = Field(default=1_000, ge=1)
    """The longest pause before a request is repeated."""

    metadata_max_age_ms: int = Field(default=300_000, ge=1)
    """After so long a client asks for its topics and their leaders again, although nothing went wrong."""

    metadata_max_idle_ms: int = Field(default=300_000, ge=1)
    """A client forgets a topic that it has not used for so long, and asks for it when it is used again."""

    transport: Literal["auto", "ray"] = "auto"
    """Rayka's own: with `ray` every call is a remote method of an actor, and no socket is opened."""

    @classmethod
    def given(cls, config: Mapping[str, Any] | None, options: Mapping[str, Any], *, what: str) -> Self:
        """The configuration from a dict of dotted names and keyword arguments. Raises ConfigError as `parse`."""
        if config is not None and not isinstance(config, Mapping):
            raise ConfigError(f"{what}: config: expected a mapping, found {type(config).__name__}")
        return cls.parse({**(config or {}), **options}, what=what)


class AdminConfig(_ClientConfig):
    """Configuration of an `Admin`."""

    default_api_timeout_ms: int = Field(default=60_000, ge=1)
    """How long a call may take with all its retries."""


class ProducerConfig(_ClientConfig):
    """Configuration of a `Producer`; names are Kafka's. `batch_size` is larger than Kafka's: a call to an
    actor costs more.
    """

    acks: Annotated[Literal[-1, 0, 1], BeforeValidator(_acks)] = -1
    """Which replicas have a record when it is acknowledged: all in sync (`all`), the leader (1), or perhaps none (0).
    """

    linger_ms: float = Field(default=5, ge=0, allow_inf_nan=False)
    """How long a batch waits for more records. Other batches on their way may make it wait longer."""

    batch_size: int = Field(default=1 << 20, ge=0)
    """How many bytes of records a batch takes. Kafka's default is 16384: a call to an actor costs more than one to a
    socket.
    """

    buffer_memory: int = Field(default=128 << 20, ge=1 << 16)
    """How many bytes of records may wait in the producer before `send` waits, too."""

    max_block_ms: int = Field(default=60_000, ge=0)
    """How long `send` waits for memory or for metadata before it raises."""

    max_request_size: int = Field(default=1 << 20, ge=1)
    """The largest record that `send` takes, and the largest batch."""

    delivery_timeout_ms: int = Field(default=120_000, ge=1, validate_default=True)
    """A record that is not acknowledged after so long fails with DeliveryTimeout."""

    max_in_flight_requests_per_connection: int = Field(default=5, ge=1)
    """How many requests to one broker may be on their way at once, and with idempotence how many batches of one
    partition.
    """

    enable_idempotence: bool | None = Field(default=None, validate_default=True)
    """Whether a retry puts no record into the log twice. Not given: yes, where `acks` and the key above allow it."""

    compression_type: Annotated[Literal["none", "gzip", "lz4", "zstd"], BeforeValidator(_compression)] = (
        "none"
    )
    """How batches are compressed."""

    key_serializer: Any = None
    """What makes bytes of keys: `bytes`, `string`, `json`, `msgpack`, a pydantic model, a callable."""

    value_serializer: Any = None
    """What makes bytes of values, as for keys."""

    partitioner: Any = None
    """A function of (key, partitions, partitions with a leader) that chooses one, or None to leave it to the producer.
    """

    interceptors: Any = ()
    """Objects with `on_send(record)`, `on_acknowledgement(metadata, error)` or both."""

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


def _assignors(value: Any) -> Any:
    return value.replace(" ", "").split(",") if isinstance(value, str) else value


Assignors = Annotated[
    tuple[Literal["range", "roundrobin", "sticky", "cooperative-sticky"], ...],
    BeforeValidator(_assignors),
    Field(min_length=1),
]


class ConsumerConfig(_ClientConfig):
    """Configuration of a `Consumer`; names and defaults are Kafka's. Without a group nothing is committed.

    `local_reads` is rayka's own: segments on this machine are mapped instead of being sent. `client_rack` is where the
    consumer is, so that it may read from a replica there; with local reads, where nothing is said, the rack of a broker
    on this machine.
    """

    group_id: str | None = Field(default=None, min_length=1)
    """The group that the consumer shares partitions and keeps positions with; without one nothing is committed."""

    group_instance_id: str | None = Field(default=None, min_length=1)
    """The name of a static member: its partitions wait for it until its session ends."""

    client_id: str = "rayka"
    """What the group calls this member in its lists."""

    enable_auto_commit: bool = True
    """Whether positions are committed by `poll`, in loops, before partitions move, and by `close`."""

    auto_commit_interval_ms: int = Field(default=5_000, ge=1)
    """How often positions are committed automatically."""

    max_poll_interval_ms: int = Field(default=300_000, ge=1, le=_INT32_MAX)
    """A member that asks for no records for so long leaves its group."""

    session_timeout_ms: int = Field(default=45_000, ge=1, le=_INT32_MAX)
    """A member that sends the coordinator no heartbeat for so long has left its group."""

    heartbeat_interval_ms: int = Field(default=3_000, ge=1)
    """How often a member sends heartbeats; less than `session_timeout_ms`."""

    partition_assignment_strategy: Assignors = ("range", "cooperative-sticky")
    """The assignors, best first: `range`, `roundrobin`, `sticky`, `cooperative-sticky`."""

    default_api_timeout_ms: int = Field(default=60_000, ge=1)
    """How long a call may take; with silent nodes also how long before `poll` raises UnavailableError."""

    auto_offset_reset: Literal["earliest", "latest", "none"] = "latest"
    """Where reading begins without a position, or with one outside the log; `none` raises."""

    fetch_min_bytes: int = Field(default=1, ge=0)
    """A broker waits for so many bytes before it answers a fetch."""

    fetch_max_wait_ms: int = Field(default=500, ge=0)
    """A broker answers a fetch after so long, with whatever there is."""

    fetch_max_bytes: int = Field(default=50 << 20, ge=1)
    """The largest answer to a fetch; a larger first batch comes all the same."""

    max_partition_fetch_bytes: int = Field(default=1 << 20, ge=1)
    """How much of one partition comes with one answer; a larger first batch comes all the same."""

    max_poll_records: int = Field(default=500, ge=1)
    """How many records `poll` gives at most."""

    check_crcs: bool = True
    """Whether the checksum of each batch is looked at."""

    local_reads: bool = True
    """Rayka's own: segments on this machine are mapped instead of being sent."""

    client_rack: str = ""
    """Where the consumer is: a replica in this rack is read, if it is in sync, and a group prefers to give its member
    partitions with a replica there.
    """

    key_deserializer: Any = None
    """What makes keys of bytes: `bytes`, `string`, `json`, `msgpack`, a pydantic model, a callable."""

    value_deserializer: Any = None
    """What makes values of bytes, as for keys."""

    interceptors: Any = ()
    """Objects with `on_consume(records)`, `on_commit(offsets)` or both."""

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
    """Where a group begins that has committed nothing."""

    enable_auto_commit: bool = False
    """Not for workers: offsets are committed when the function has returned."""

    partition_assignment_strategy: Assignors = ("cooperative-sticky",)
    """The assignors, best first."""

    min: int = Field(default=1, ge=1)
    """The fewest workers."""

    max: int = Field(default=32, ge=1)
    """The most workers; never more than there are partitions."""

    target_lag_seconds: float | None = Field(default=None, gt=0, allow_inf_nan=False)
    """Workers are added while what waits takes longer than this; without it there are `min` of them."""

    batch: Literal["records", "arrow"] = "records"
    """What the function gets: a list of records, or a pyarrow.RecordBatch."""

    max_records: int = Field(default=500, ge=1)
    """How many records a batch of `records` has at most."""

    retries: int = Field(default=3, ge=0)
    """How often a batch that fails is tried again."""

    on_poison: Annotated[Any, AfterValidator(_callable_or_word)] = "stop"
    """What happens to a batch that always fails: `stop`, `skip`, or a callable of (record, error)."""

    ray_options: dict[str, Any] = Field(default={})
    """Options of the Ray actors, such as num_cpus."""

    @field_validator("enable_auto_commit")
    @classmethod
    def _never(cls, value: bool) -> bool:
        if value:
            raise ValueError("expected false: workers commit what their function has returned from")
        return value

    @field_validator("group_instance_id")
    @classmethod
    def _not_shared(cls, value: str | None) -> str | None:
        if value is not None:
            raise ValueError("expected none: workers are several members, and an instance is one of them")
        return value

    @field_validator("max")
    @classmethod
    def _not_below_min(cls, value: int, info: ValidationInfo) -> int:
        if value < info.data.get("min", value):
            raise ValueError(f"expected min={info.data['min']} or more")
        return value
