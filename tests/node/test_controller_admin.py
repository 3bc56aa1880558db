"""The APIs of administration on a controller node: each is checked, decided, committed and answered."""

import asyncio
from collections.abc import Coroutine
from random import Random
from typing import Any

import pytest

from rayka.config.broker_config import BrokerConfig
from rayka.errors import ErrorCode
from rayka.ids import TopicPartition
from rayka.protocol.configs import (
    AlterConfigOp,
    AlteredResource,
    ConfigChange,
    ConfigResourceName,
    DescribeConfigsRequest,
    IncrementalAlterConfigsRequest,
    ResourceType,
)
from rayka.protocol.topics import (
    CreatePartitionsRequest,
    ElectionType,
    ElectLeadersRequest,
    ListPartitionReassignmentsRequest,
    NewPartitions,
)
from rayka.testing.memory_disk import MemoryDisk
from tests.node.controller_support import new_cluster, new_topic, started

ORDERS = ConfigResourceName(ResourceType.TOPIC, "orders")
ORDERS_0 = TopicPartition("orders", 0)
FLUSH = ConfigChange("flush", AlterConfigOp.SET, "batch")
PATIENCE_S = 60


def run(scenario: Coroutine[Any, Any, None]) -> None:
    asyncio.run(asyncio.wait_for(scenario, PATIENCE_S))


def altered(*changes: ConfigChange) -> AlteredResource:
    return AlteredResource(ResourceType.TOPIC, "orders", changes)


def test_what_was_answered_is_committed_and_survives_a_power_cut() -> None:
    async def scenario() -> None:
        disk = MemoryDisk()
        node = await new_cluster(disk)
        await node.handle(new_topic("orders"))
        await node.handle(IncrementalAlterConfigsRequest((altered(FLUSH),)))
        await node.handle(CreatePartitionsRequest((NewPartitions("orders", 4),)))
        node.kill()
        disk.power_loss(Random(1))
        node = await started(disk)
        (described,) = (await node.handle(DescribeConfigsRequest((ORDERS,)))).resources
        assert "batch" in [entry.value for entry in described.entries if entry.name == "flush"]
        elected = await node.handle(
            ElectLeadersRequest(ElectionType.PREFERRED, (TopicPartition("orders", 3),))
        )
        assert [each.error_code for each in elected.partitions] == [ErrorCode.ELECTION_NOT_NEEDED]
        listed = await node.handle(ListPartitionReassignmentsRequest())
        assert listed.reassignments == ()

    run(scenario())


@pytest.mark.parametrize(("min_isr", "is_told"), [(1, False), (2, True)])
def test_another_min_isr_in_the_specification_is_not_in_force_and_that_is_said(
    min_isr: int, is_told: bool, caplog: pytest.LogCaptureFixture
) -> None:  # B42
    async def scenario() -> None:
        disk = MemoryDisk()
        await (await new_cluster(disk)).stop()
        config = BrokerConfig(metadata_max_idle_interval_ms=0, min_insync_replicas=min_isr)
        await started(disk, config=config)
        assert (
            "says min.insync.replicas 2, which counts when a cluster is created" in caplog.text
        ) is is_told

    run(scenario())
