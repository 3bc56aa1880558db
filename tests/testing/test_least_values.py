"""Every rate and size of brokers at its least value: a slow cluster, in which no broker ends and nothing is lost."""

from typing import Any

import pytest

from rayka.config.broker_config import BrokerConfig
from tests.testing.virtual import VirtualConsumer, VirtualProducer, virtual_cluster

_AMOUNTS = ("_bytes", "_size", "_rate", "_per_second")
_BATCH_BYTES = 200  # the least for the largest batch, so that one record goes through


def least_values() -> list[Any]:
    found = [
        pytest.param(name, _BATCH_BYTES if name == "message_max_bytes" else bounds[0], id=name)
        for name, field in BrokerConfig.model_fields.items()
        if name.endswith(_AMOUNTS) and (bounds := [each.ge for each in field.metadata if hasattr(each, "ge")])
    ]
    assert len(found) > 15
    return found


@pytest.mark.parametrize(("key", "least"), least_values())
def test_with_the_least_value_everything_is_written_and_read(key: str, least: float) -> None:
    with virtual_cluster(**{"log_segment_bytes": 1_024, key: least}) as cluster:
        producer = VirtualProducer(cluster, pause_ms=20)
        consumer = VirtualConsumer(cluster)
        cluster.go_on(3_000)
        producer.end()
        cluster.until(lambda: len(consumer.values) == producer.count)
