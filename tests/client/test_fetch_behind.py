"""A broker that does not know the leader epoch of one partition yet, and answers for another (B24, G18)."""

from collections.abc import Sequence
from random import Random
from typing import Any

from rayka.client.call_watch import CallWatch, SilenceLimits
from rayka.client.consumer.fetch_exchange import FetchExchange
from rayka.client.consumer.fetch_plan import NodeFetches
from rayka.client.consumer.fetch_state import FetchState
from rayka.client.metadata import ClusterMetadata
from rayka.client.retry import SOON_MAX
from rayka.config.client_config import ConsumerConfig
from rayka.errors import ErrorCode
from rayka.ids import ZERO_ID, TopicPartition
from rayka.protocol.fetch import FetchPartition, FetchPartitionResult, FetchResponse
from rayka.sim.loop import VirtualLoop
from tests.client.offset_support import SMALL_FETCHES
from tests.client.support import BROKER

LATE, OTHER = TopicPartition("orders", 0), TopicPartition("orders", 1)
BEHIND = FetchPartitionResult(ZERO_ID, 0, ErrorCode.UNKNOWN_LEADER_EPOCH, "not known yet")


class OneBroker:
    """Gives the next answer."""

    def __init__(self) -> None:
        self.answers: list[FetchResponse] = []

    async def node_ids(self) -> Sequence[int]:
        return [BROKER]

    async def call(self, node_id: int, request: Any, timeout_ms: int) -> Any:
        return self.answers.pop(0)


def test_the_pauses_of_a_partition_grow_whatever_the_broker_answers_for_others() -> None:
    counts: list[int] = []
    at_length: list[ErrorCode] = []

    async def main() -> None:
        config, network = ConsumerConfig(local_reads=False), OneBroker()
        state = FetchState(SMALL_FETCHES)
        state.assign([LATE, OTHER])
        for each in (LATE, OTHER):
            state.seek(each, 0)
        metadata = ClusterMetadata(network, "scripted", config, Random(1))
        watch = CallWatch[NodeFetches](SilenceLimits(1, 5), lambda *_: None)
        exchange, node = FetchExchange(network, config, metadata, state, watch), NodeFetches(BROKER)
        for results in 5 * ((BEHIND,), ()):
            for number, each in enumerate((LATE, OTHER)):
                ticket = state.ticket(each)
                assert ticket is not None
                node.want(FetchPartition(ZERO_ID, number, 0, 100, 5), ticket)
            network.answers.append(FetchResponse(results, session_id=7))
            number, session = node.begin()
            response = await exchange.begin(node, session)
            errors = exchange.finish(node, number, response)
            counts.extend([errors.behind_count] if errors.behind else [])
            at_length.extend(error.code for _, error in errors.partitions)

    VirtualLoop().run_until_complete(main())
    assert counts == list(range(1, SOON_MAX + 1))
    assert at_length == [ErrorCode.UNKNOWN_LEADER_EPOCH], "a pause as for any other error"
