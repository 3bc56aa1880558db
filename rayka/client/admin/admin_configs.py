"""Configurations of topics and brokers, described and altered by the active controller.

Kafka: KafkaAdminClient's describeConfigs, incrementalAlterConfigs.
"""

from collections.abc import Mapping
from typing import Any

from rayka.client.admin.admin_part import AdminPart
from rayka.client.admin.admin_partition_results import ConfigValue
from rayka.client.arguments import is_int, text_of
from rayka.config.broker_config import BrokerConfig
from rayka.config.config_model import dotted
from rayka.config.topic_config import TopicConfig
from rayka.errors import ConfigError, InvalidArgument
from rayka.protocol.configs import (
    LEAVING,
    AlterConfigOp,
    AlteredResource,
    ConfigChange,
    ConfigResourceName,
    ConfigSource,
    DescribeConfigsRequest,
    DescribedConfig,
    IncrementalAlterConfigsRequest,
    ResourceType,
)

ALL_BROKERS = "all"


class AsyncConfigAdmin(AdminPart):
    """The methods of `Admin` about configurations, with checked arguments."""

    async def describe(self, resource: ConfigResourceName) -> dict[str, ConfigValue]:
        """The keys in force, sorted. Raises UnknownTopicOrPartition, BrokerIdNotRegistered."""
        (described,) = (await self._ask(DescribeConfigsRequest((resource,)))).resources
        name, code, message = resource.resource_name, described.error_code, described.error_message
        await self._check(_what(resource), name, code, message)
        entries = sorted(described.entries, key=lambda each: each.name)
        return {each.name: ConfigValue.taken_from(each) for each in entries}

    async def alter(self, resource: ConfigResourceName, changes: tuple[ConfigChange, ...]) -> None:
        """Makes all changes or none; returns when every broker has them."""
        altered = AlteredResource(resource.resource_type, resource.resource_name, changes)
        response = await self._ask(IncrementalAlterConfigsRequest((altered,)))
        (result,) = response.resources
        name, code, message = resource.resource_name, result.error_code, result.error_message
        await self._check(_what(resource), name, code, message)
        await self._until_applied(response.metadata_offset)


def is_leaving(described: DescribedConfig) -> bool:
    """Whether the broker itself is marked as leaving: scaling in empties it."""
    return _own_value(described, LEAVING) == "true"


def _own_value(described: DescribedConfig, name: str) -> str | None:
    own = ConfigSource.DYNAMIC_BROKER
    return next((each.value for each in described.entries if (each.name, each.source) == (name, own)), None)


def resource_of(topic: str | None, broker: int | str | None) -> ConfigResourceName:
    """The resource that `topic=` or `broker=` names.

    Raises TypeError unless exactly one of them is given, InvalidArgument for another word than `all`.
    """
    if (topic is None) == (broker is None):
        raise TypeError("expected either topic= or broker=")
    if topic is not None:
        return ConfigResourceName(ResourceType.TOPIC, text_of(topic, "topic"))
    if broker == ALL_BROKERS:
        return ConfigResourceName(ResourceType.BROKER, "")
    if not is_int(broker):
        kind = InvalidArgument if isinstance(broker, str) else TypeError
        raise kind(f"broker: expected its id, or {ALL_BROKERS!r}, found {broker!r}")
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
