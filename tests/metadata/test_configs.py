"""Which configuration is in force: a topic's own, a broker's, that of all brokers, the node's, the default."""

import pytest

from rayka.config.broker_config import BrokerConfig
from rayka.errors import ConfigError
from rayka.metadata.delta import MetadataDelta
from rayka.metadata.image import MetadataImage, broker_config, topic_config
from rayka.metadata.metadata_records import ConfigRecord
from rayka.protocol.configs import ResourceType
from tests.metadata.support import image_of, topic


def of_topic(key: str, value: str) -> ConfigRecord:
    return ConfigRecord(resource_type=ResourceType.TOPIC, resource_name="orders", name=key, value=value)


def of_broker(name: str, key: str, value: str) -> ConfigRecord:
    return ConfigRecord(resource_type=ResourceType.BROKER, resource_name=name, name=key, value=value)


LAYERS = [
    of_broker("", "log.segment.bytes", "3000"),
    of_broker("1", "log.segment.bytes", "4000"),
    of_topic("segment.bytes", "5000"),
]


@pytest.mark.parametrize(
    ("count", "on_1", "on_2"), [(0, 2000, 2000), (1, 3000, 3000), (2, 4000, 3000), (3, 5000, 5000)]
)
def test_the_nearest_layer_counts(count: int, on_1: int, on_2: int) -> None:
    image, static = image_of([topic(), *LAYERS[:count]]), BrokerConfig(log_segment_bytes=2000)
    assert [topic_config(image, static, "orders", broker).segment_bytes for broker in (1, 2)] == [on_1, on_2]


@pytest.mark.parametrize(
    ("topic", "own", "expected"),
    [
        ("__consumer_offsets", str(100 << 20), 4 << 20),  # as earlier releases made it
        ("__consumer_offsets", str(50 << 20), 50 << 20),
        ("orders", str(100 << 20), 100 << 20),
    ],
)
def test_an_older_clusters_topic_of_offsets_gets_the_segments_of_today(
    topic: str, own: str, expected: int
) -> None:  # decision 084
    record = ConfigRecord(
        resource_type=ResourceType.TOPIC, resource_name=topic, name="segment.bytes", value=own
    )
    assert topic_config(image_of([record]), BrokerConfig(), topic).segment_bytes == expected


def test_a_key_that_was_not_set_has_its_default() -> None:
    assert topic_config(MetadataImage(), BrokerConfig(), "orders").segment_bytes == 1 << 30


def test_a_value_that_was_set_later_leaves_the_other_values_of_the_start() -> None:
    image = image_of([of_broker("", "min.insync.replicas", "2")])
    config = broker_config(image, BrokerConfig(num_partitions=7), 1)
    assert (config.num_partitions, config.min_insync_replicas) == (7, 2)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("log.cleaner.io.max.bytes.per.second", "1e-310"),
        ("num.partitions", "3"),
        ("key.of.a.later.release", "1"),
    ],
)
def test_a_value_of_another_release_counts_as_not_set_and_is_named(
    key: str, value: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Or each node would end with it, at each start."""
    image = image_of([of_broker("", key, value), of_broker("", "log.cleaner.threads", "3")])
    assert broker_config(image, BrokerConfig(), 1) == BrokerConfig(log_cleaner_threads=3)
    assert f"{key}={value}, which counts as not set" in caplog.text


def test_a_topics_value_of_another_release_counts_as_not_set(caplog: pytest.LogCaptureFixture) -> None:
    image = image_of([topic(), of_topic("segment.bytes", "5"), of_topic("segment.ms", "7")])
    config = topic_config(image, BrokerConfig(), "orders", 1)
    assert (config.segment_bytes, config.segment_ms) == (1 << 30, 7)
    assert "segment.bytes=5" in caplog.text


def test_a_key_that_needs_a_restart_is_refused() -> None:
    with pytest.raises(
        ConfigError, match=r"'num.partitions' takes effect when a node starts; set it in the cluster's"
    ):
        BrokerConfig().with_dynamic({"num.partitions": "3"})


@pytest.mark.parametrize(
    ("name", "expected"), [("", [True, True]), ("1", [True, False]), ("11", [False, False])]
)
def test_a_delta_says_whose_configuration_was_written(name: str, expected: list[bool]) -> None:
    delta = MetadataDelta(MetadataImage())
    delta.replay(of_broker(name, "min.insync.replicas", "2"))
    assert [delta.is_reconfigured(broker_id) for broker_id in (1, 2)] == expected


def test_a_topics_configuration_does_not_count_for_a_broker() -> None:
    delta = MetadataDelta(image_of([topic()]))
    delta.replay(of_topic("segment.bytes", "5000"))
    assert not delta.is_reconfigured(1)
