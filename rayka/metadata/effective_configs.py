"""Which configuration is in force: one answer for brokers, controllers and callers that ask to see it.

A topic's key is its own, or else what the broker has under the synonym; a broker's key is its own, or else that of all
brokers, or else what the node was started with, or else the default. One exception: `segment.bytes` of
`__consumer_offsets` that is the default of earlier releases counts as the broker's (decision 084). Kafka:
`KafkaConfigSchema`, `ConfigurationsImage`.
"""

from collections.abc import Mapping
from functools import lru_cache

from rayka.config import BrokerConfig, TopicConfig
from rayka.ids import is_internal
from rayka.metadata.image import MetadataImage

# A frozen model of pydantic's is hashable, which pyright does not know.
_CACHED_MAX = 1024  # topics configured differently that are remembered: the others are parsed each time

_SEGMENT_BYTES, _EARLIER_DEFAULT = "segment.bytes", str(100 << 20)

_Items = tuple[tuple[str, str], ...]


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
    return static.with_dynamic(dict(dynamic))


@lru_cache(_CACHED_MAX)
def _topic_config(config: BrokerConfig, own: _Items) -> TopicConfig:
    return config.topic_config(dict(own))
