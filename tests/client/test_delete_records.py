"""How an Admin deletes records when a leader does not get it done, in virtual time (G11)."""

import asyncio
from random import Random
from typing import Any

import pytest

from rayka.client.admin.admin_partitions import AsyncPartitionAdmin
from rayka.client.metadata import ClusterMetadata
from rayka.config.client_config import AdminConfig
from rayka.errors import ErrorCode, RequestTimedOut
from rayka.protocol.topics import DeleteRecordsRequest, DeleteRecordsResponse, DeleteRecordsResult
from rayka.sim.loop import VirtualLoop
from tests.client.offset_support import AT_A, AT_B, A, Brokers, now_ms


class WaitingLeader(Brokers):
    """Broker A waits for a replica until the time of the request is over."""

    async def call(self, node_id: int, request: Any, timeout_ms: int) -> Any:
        if not isinstance(request, DeleteRecordsRequest):
            return await super().call(node_id, request, timeout_ms)
        self.asked.append((node_id, now_ms()))
        results = [
            DeleteRecordsResult(each.topic_id, each.partition, low_watermark=5) for each in request.partitions
        ]
        if node_id == A:
            await asyncio.sleep(request.timeout_ms / 1000)
            (done,) = results
            code, said = ErrorCode.REQUEST_TIMED_OUT, "orders-0: not on broker-2"
            results = [DeleteRecordsResult(done.topic_id, done.partition, code, said)]
        return DeleteRecordsResponse(tuple(results))


def test_a_leader_that_has_waited_for_a_replica_is_not_asked_again() -> None:  # G11
    brokers = WaitingLeader()

    async def main() -> int:
        config, began_ms = AdminConfig(request_timeout_ms=2_000), now_ms()
        metadata = ClusterMetadata(brokers, "scripted", config, Random(1))
        admin = AsyncPartitionAdmin(metadata, 60_000)
        with pytest.raises(RequestTimedOut, match="broker-1: orders-0: not on broker-2"):
            await admin.delete_records({AT_A: 5, AT_B: 5})
        return now_ms() - began_ms

    assert VirtualLoop().run_until_complete(main()) == 2_000
    assert [node_id for node_id, _ in brokers.asked].count(A) == 1
