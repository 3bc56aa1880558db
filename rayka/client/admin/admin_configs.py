"""The part of an `Admin`'s brain that is about configurations. Asked of the active controller.

Kafka: KafkaAdminClient's describeConfigs, incrementalAlterConfigs.
"""

from collections.abc import Mapping
from typing import Any

from rayka.client.admin.admin_partition_results import ConfigValue
from rayka.client.metadata import ClusterMetadata
from rayka.client.refusal import refusal
from rayka.config import BrokerConfig, TopicConfig, dotted
from rayka.errors import ConfigError, ErrorCode
from rayka.protocol.configs import (
    AlterConfigOp,
    AlteredResource,
    ConfigChange,
    ConfigResourceName,
    DescribeConfigsRequest,
    IncrementalAlterConfigsRequest,
    ResourceType,
)

ALL_BROKERS = "all"


class AsyncConfigAdmin:
    """See the module."""

    def __init__(self, metadata: ClusterMetadata) -> None:
        self._metadata = metadata
        self._nodes = metadata.nodes

    def __repr__(self) -> str:
        return f"<AsyncConfigAdmin of {self._nodes.cluster_name}>"

    async def describe(self, resource: ConfigResourceName, timeout_ms: int) -> dict[str, ConfigValue]:
        """The keys in force, sorted. Raises UnknownTopicOrPartition, BrokerIdNotRegistered."""
        response = await self._nodes.call_controller(DescribeConfigsRequest((resource,)), timeout_ms)
        (described,) = response.resources
        await self._check(resource, described.error_code, described.error_message, timeout_ms)
        entries = sorted(described.entries, key=lambda each: each.name)
        return {each.name: ConfigValue.of(each) for each in entries}

    async def alter(
        self, resource: ConfigResourceName, changes: tuple[ConfigChange, ...], timeout_ms: int
    ) -> None:
        """Makes all changes or none; returns when every broker has them."""
        altered = AlteredResource(resource.resource_type, resource.resource_name, changes)
        request = IncrementalAlterConfigsRequest((altered,))
        response = await self._nodes.call_controller(request, timeout_ms)
        (result,) = response.resources
        await self._check(resource, result.error_code, result.error_message, timeout_ms)
        await self._nodes.wait_until_applied(response.metadata_offset, timeout_ms)

    async def _check(
        self, resource: ConfigResourceName, code: ErrorCode, message: str, timeout_ms: int
    ) -> None:
        if code is ErrorCode.NONE:
            return
        if code is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
            raise await self._metadata.no_such_topic(resource.resource_name, timeout_ms)
        raise refusal(code, message, subject=_what(resource), cluster_name=self._nodes.cluster_name)


def resource_of(topic: str | None, broker: int | str | None) -> ConfigResourceName:
    """The resource that `topic=` or `broker=` names. Raises TypeError unless exactly one of them does."""
    if (topic is None) == (broker is None):
        raise TypeError("expected either topic= or broker=")
    if topic is not None:
        if not isinstance(topic, str):
            raise TypeError(f"topic: expected str, found {type(topic).__name__}")
        return ConfigResourceName(ResourceType.TOPIC, topic)
    if broker == ALL_BROKERS:
        return ConfigResourceName(ResourceType.BROKER, "")
    if not isinstance(broker, int) or isinstance(broker, bool):
        raise TypeError(f"broker: expected its id, or {ALL_BROKERS!r}, found {broker!r}")
    return ConfigResourceName(ResourceType.BROKER, str(broker))


def changes_of(resource: ConfigResourceName, configs: Mapping[str, Any]) -> tuple[ConfigChange, ...]:
    """The changes, by key; None deletes. Raises ConfigError for an unknown key, a wrong value, or no change."""
    kind = TopicConfig if resource.resource_type is ResourceType.TOPIC else BrokerConfig
    what = _what(resource)
    if not configs:
        raise ConfigError(f"{what}: expected at least one key to set or delete")
    deleted = [dotted(kind.field_of(str(key), what=what)) for key, value in configs.items() if value is None]
    wanted = kind.parse({key: value for key, value in configs.items() if value is not None}, what=what)
    texts = wanted.overrides()
    for name in deleted:
        if name in texts:
            raise ConfigError(f"{what}: {name} is both set and deleted; keep one")
    changes = [ConfigChange(name, AlterConfigOp.SET, text) for name, text in texts.items()]
    return (*changes, *(ConfigChange(name, AlterConfigOp.DELETE) for name in dict.fromkeys(deleted)))


def _what(resource: ConfigResourceName) -> str:
    if resource.resource_type is ResourceType.TOPIC:
        return f"topic {resource.resource_name!r}"
    return f"broker {resource.resource_name}" if resource.resource_name else "all brokers"
