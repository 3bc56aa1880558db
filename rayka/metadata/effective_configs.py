"""Which configuration is in force: one answer for brokers, controllers and callers that ask to see it.

A topic's key is its own, or else what the broker has under the synonym; a broker's key is its own, or else that of all
brokers, or else what the node was started with, or else the default. One exception: `segment.bytes` of
`__consumer_offsets` that is the default of earlier releases counts as the broker's (decision 084). A value in the
metadata that this release does not take counts as not set, and is named in the log: another release wrote it, and a
node that ended because of it would end at each start. Kafka: `KafkaConfigSchema`, `ConfigurationsImage`.
"""

import logging
from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Any, TypeVar

from rayka.config.broker_config import BrokerConfig
from rayka.config.topic_config import TopicConfig
from rayka.errors import ConfigError
from rayka.ids import is_internal
from rayka.metadata.image import MetadataImage

# A frozen model of pydantic's is hashable, which pyright does not know.
_CACHED_MAX = 1024  # topics configured differently that are remembered: the others are parsed each time

_SEGMENT_BYTES, _EARLIER_DEFAULT = "segment.bytes", str(100 << 20)

_Items = tuple[tuple[str, str], ...]
ConfigT = TypeVar("ConfigT")
_logger = logging.getLogger(__name__)


def broker_config(image: MetadataImage, static: BrokerConfig, broker_id: int | None = None) -> BrokerConfig:
    """What is in force on this broker, or with None on those of which nothing special was said."""
    own = {} if broker_id is None else image.broker_configs(broker_id)
    dynamic = {**image.broker_configs(None), **own}
    return _with_dynamic(static, _items(dynamic)) if dynamic else static  # pyright: ignore[reportArgumentType]


def topic_config(
    image: MetadataImage, static: BrokerConfig, name: str, broker_id: int | None = None
) -> TopicConfig:
    """What is in force for this topic on this broker, or with None where nothing special was said of the broker."""
    config = broker_config(image, static, broker_id)
    own = image.topic_configs(name)
    if is_internal(name) and own.get(_SEGMENT_BYTES) == _EARLIER_DEFAULT:
        own = {**own, _SEGMENT_BYTES: str(config.offsets_topic_segment_bytes)}
    return _topic_config(config, _items(own))  # pyright: ignore[reportArgumentType]


def _items(values: Mapping[str, str]) -> _Items:
    return tuple(sorted(values.items()))


@lru_cache(_CACHED_MAX)
def _with_dynamic(static: BrokerConfig, dynamic: _Items) -> BrokerConfig:
    return _with_valid(static.with_dynamic, dynamic)


@lru_cache(_CACHED_MAX)
def _topic_config(config: BrokerConfig, own: _Items) -> TopicConfig:
    return _with_valid(config.topic_config, own)


def _with_valid(make: Callable[[Mapping[str, Any]], ConfigT], items: _Items) -> ConfigT:
    """The configuration with those of the values that are valid."""
    try:
        return make(dict(items))
    except ConfigError:
        return make({key: value for key, value in items if _is_valid(make, key, value)})


def _is_valid(make: Callable[[Mapping[str, Any]], object], key: str, value: str) -> bool:
    try:
        make({key: value})
    except ConfigError as error:
        _logger.warning(
            "the metadata have %s=%s, which counts as not set: %s; set it anew", key, value, error
        )
        return False
    return True
