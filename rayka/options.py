"""The options of clients and the fields of a cluster, as type checkers and editors see them.

Nothing here checks anything: the models of `rayka.config` check the options when a program runs, and hold the
defaults. tests/test_options.py compares the two.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, Protocol, TypedDict

Acks = Literal["all", -1, 0, 1, "-1", "0", "1"]
CompressionType = Literal["none", "gzip", "lz4", "zstd"]
AutoOffsetReset = Literal["earliest", "latest", "none"]
Transport = Literal["auto", "ray"]
AssignorName = Literal["range", "roundrobin", "sticky", "cooperative-sticky"]
SerializerName = Literal["bytes", "string", "json", "msgpack"]


class WritableModel(Protocol):
    """An instance of a pydantic model, as far as a serializer uses it."""

    def model_dump_json(self) -> str: ...


class ReadableModel(Protocol):
    """A class of pydantic models, as far as a deserializer uses it."""

    def model_validate_json(self, json_data: bytes, /) -> Any: ...


class PlacedSerializer(Protocol):
    """A serializer that is told where the data goes, as kafka-python's are."""

    def serialize(self, topic: str, headers: Any, data: Any, /) -> bytes | None: ...


class PlacedDeserializer(Protocol):
    """A deserializer that is told where the data comes from."""

    def deserialize(self, topic: str, headers: Any, data: Any, /) -> Any: ...


Serializer = SerializerName | type[WritableModel] | PlacedSerializer | Callable[[Any], bytes]
Deserializer = SerializerName | ReadableModel | PlacedDeserializer | Callable[[bytes], Any]


Partitioner = Callable[[bytes | None, Sequence[int], Sequence[int]], int | None]
OnPoison = Literal["stop", "skip"] | Callable[[Any, Exception], object]


class ClientOptions(TypedDict, total=False):
    """What all clients have."""

    request_timeout_ms: int
    retry_backoff_ms: int
    retry_backoff_max_ms: int
    metadata_max_age_ms: int
    metadata_max_idle_ms: int
    transport: Transport


class AdminOptions(ClientOptions, total=False):
    """Options of an `Admin`."""

    default_api_timeout_ms: int


class ProducerOptions(ClientOptions, total=False):
    """Options of a `Producer`."""

    acks: Acks
    linger_ms: float
    batch_size: int
    buffer_memory: int
    max_block_ms: int
    max_request_size: int
    delivery_timeout_ms: int
    max_in_flight_requests_per_connection: int
    enable_idempotence: bool | None
    compression_type: CompressionType | None
    key_serializer: Serializer | None
    value_serializer: Serializer | None
    partitioner: Partitioner | None
    interceptors: Sequence[object]


class ConsumerOptions(ClientOptions, total=False):
    """Options of a `Consumer` and of `read`."""

    group_id: str | None
    group_instance_id: str | None
    client_id: str
    enable_auto_commit: bool
    auto_commit_interval_ms: int
    max_poll_interval_ms: int
    session_timeout_ms: int
    heartbeat_interval_ms: int
    partition_assignment_strategy: AssignorName | Sequence[AssignorName]
    default_api_timeout_ms: int
    auto_offset_reset: AutoOffsetReset
    fetch_min_bytes: int
    fetch_max_wait_ms: int
    fetch_max_bytes: int
    max_partition_fetch_bytes: int
    max_poll_records: int
    check_crcs: bool
    local_reads: bool
    client_rack: str
    key_deserializer: Deserializer | None
    value_deserializer: Deserializer | None
    interceptors: Sequence[object]


class WorkersOptions(ConsumerOptions, total=False):
    """Options of `rayka.workers`."""

    min: int
    max: int
    target_lag_seconds: float | None
    batch: Literal["records", "arrow"]
    max_records: int
    retries: int
    on_poison: OnPoison
    ray_options: Mapping[str, Any]


class ClusterFields(TypedDict, total=False):
    """Fields of a cluster's specification."""

    name: str
    controllers: int
    brokers: int | Mapping[str, int]
    scaling: Mapping[str, Any] | None
    coordinators: int | Mapping[str, int]
    nodes: Sequence[Mapping[str, Any]] | None
    data_dir: str | list[str]
    ray: Mapping[str, Any]
    resources: Mapping[str, Any]
    transport: Transport
    transport_ports: Sequence[int] | None
    config: Mapping[str, Any]
