"""A coordinator that has taken many commits of few keys loads few records: `__consumer_offsets` is compacted."""

from collections.abc import Callable
from functools import partial
from pathlib import Path
from random import Random
from typing import Any

import pytest

import rayka
from rayka.client import io_thread
from rayka.client.cluster_nodes import ClusterNodes
from rayka.client.coordinator_calls import CoordinatorCalls
from rayka.cluster import Cluster
from rayka.config.client_config import ConsumerConfig
from rayka.coordinator.group_shard import OFFSETS_TOPIC
from rayka.errors import ErrorCode
from rayka.protocol.groups import CommittedOffset, OffsetCommitRequest, OffsetFetchRequest
from tests.ray.support import broker_pid, kill, wait_until

pytestmark = pytest.mark.ray
KEYS, COMMITS_OF_EACH = 1_000, 100
# What is compact, as much again at most that is not worth a cleaning yet, and the segment that grows.
RECORDS_MAX = 3 * KEYS
TIMEOUT_MS = 60_000
CONFIG = {
    "offsets.topic.num.partitions": 1,
    "offsets.topic.segment.bytes": 60_000,  # one commit of all keys
    "log.cleaner.backoff.ms": 20,
}


def test_a_hundred_thousand_commits_of_a_thousand_keys_load_as_few_records(
    start: Callable[..., Cluster], tmp_path: Path
) -> None:  # E17, F22
    """What a coordinator loads is what its log holds: by the number of keys, not of commits."""
    cluster = start(data_dir=str(tmp_path), config=CONFIG)
    network = cluster.network()
    calls = CoordinatorCalls(ClusterNodes(network, cluster.name, ConsumerConfig(), Random(1)))

    def ask(request: Any) -> Any:
        return io_thread.run(partial(calls.call, "g", request, TIMEOUT_MS), TIMEOUT_MS / 1000 + 10)

    for offset in range(COMMITS_OF_EACH):
        given = tuple(CommittedOffset("orders", partition, offset) for partition in range(KEYS))
        answers = ask(OffsetCommitRequest("g", given)).partitions
        assert {each.error_code for each in answers} == {ErrorCode.NONE}
    wait_until(lambda: len(_records(cluster)) <= RECORDS_MAX)

    kill(broker_pid(cluster))
    committed = ask(OffsetFetchRequest("g")).partitions
    assert {each.partition: each.offset for each in committed} == dict.fromkeys(range(KEYS), offset)


def _records(cluster: Cluster) -> list[rayka.Record]:
    return list(rayka.read(OFFSETS_TOPIC, cluster=cluster))
