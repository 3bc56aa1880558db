"""What a request to fetch comes to: an answer, none, or one that a later request has overtaken (G2, G14, G15)."""

from collections import deque
from collections.abc import Callable, Coroutine
from random import Random
from typing import Any

import pytest

from rayka.client.call_watch import CallWatch, SilenceLimits
from rayka.client.consumer.fetch_exchange import FetchErrors, FetchExchange
from rayka.client.consumer.fetch_plan import NodeFetches
from rayka.client.consumer.fetch_state import FetchState, FetchTicket
from rayka.client.metadata import ClusterMetadata
from rayka.config.client_config import ConsumerConfig
from rayka.errors import ApiError, CorruptRecord, ErrorCode, InvalidRequest, NetworkException
from rayka.ids import ZERO_ID, TopicPartition
from rayka.protocol.fetch import (
    FINAL_SESSION_EPOCH,
    FetchPartition,
    FetchPartitionResult,
    FetchRequest,
    FetchResponse,
)
from rayka.protocol.later import Later
from rayka.sim.loop import VirtualLoop
from tests.client.offset_support import SMALL_FETCHES

ORDERS = TopicPartition("orders", 0)
SESSION, FOLLOWER, OFFSET = 77, 2, 10
ANSWERED = FetchResponse((), session_id=SESSION)
LOST_SESSION = FetchResponse((), ErrorCode.FETCH_SESSION_ID_NOT_FOUND, "it is not known here")


class Exchanged:
    """One consumer of one partition, which stands at offset 10, and the network under it."""

    def __init__(self) -> None:
        self.answers: deque[FetchResponse | ApiError] = deque()
        self.sent: list[tuple[int, FetchRequest]] = []
        config = ConsumerConfig(local_reads=False)
        self.state = FetchState(SMALL_FETCHES)
        self.state.assign([ORDERS])
        self.state.seek(ORDERS, OFFSET)
        metadata = ClusterMetadata(self, "scripted", config, Random(1))
        calls = CallWatch[NodeFetches](SilenceLimits(1, 5), lambda node_id, subjects: None)
        self.exchange = FetchExchange(self, config, metadata, self.state, calls)

    async def node_ids(self) -> list[int]:
        return [1]

    async def call(self, node_id: int, request: Any, timeout_ms: int) -> Any:
        self.sent.append((node_id, request))
        answer = self.answers.popleft() if self.answers else NetworkException("no node answers")
        if isinstance(answer, ApiError):
            raise answer
        return answer

    def ticket(self) -> FetchTicket:
        ticket = self.state.ticket(ORDERS)
        assert ticket is not None
        return ticket

    def node(self, node_id: int = 1) -> NodeFetches:
        """A broker that is asked for the partition, without a session yet."""
        node = NodeFetches(node_id)
        node.want(FetchPartition(ZERO_ID, 0, OFFSET, 100), self.ticket())
        return node

    async def in_session(self, node_id: int = 1) -> NodeFetches:
        node = self.node(node_id)
        self.answers.append(ANSWERED)
        assert await self.send(node) == FetchErrors()
        return node

    async def send(self, node: NodeFetches) -> FetchErrors:
        number, session = node.begin()
        return self.exchange.finish(node, number, await outcome_of(self.exchange.begin(node, session)))


async def outcome_of(answer: Later[FetchResponse]) -> FetchResponse | BaseException:
    try:
        return await answer
    except ApiError as error:
        return error


def play(scene: Callable[[Exchanged], Coroutine[Any, Any, None]]) -> None:
    async def main() -> None:
        await scene(Exchanged())

    loop = VirtualLoop()
    try:
        loop.run_until_complete(main())
    finally:
        loop.cancel_all()


@pytest.mark.parametrize("error", [InvalidRequest("a bug"), NetworkException("gone")])
def test_the_end_of_a_request_that_was_overtaken_is_ignored(error: ApiError) -> None:  # G14
    async def scene(exchanged: Exchanged) -> None:
        node = await exchanged.in_session()
        exchanged.state.read_from(exchanged.ticket(), FOLLOWER, 1_000_000)
        number, session = node.begin()
        node.want(FetchPartition(ZERO_ID, 0, OFFSET, 200), exchanged.ticket())
        node.begin()
        exchanged.answers.append(error)
        overtaken = exchanged.exchange.begin(node, session)
        assert exchanged.exchange.finish(node, number, await outcome_of(overtaken)) == FetchErrors()
        assert not exchanged.state.buffer.has_news()
        assert exchanged.state.read_replicas.node_id(ORDERS, 0) == FOLLOWER

    play(scene)


def test_the_end_of_the_newest_request_is_an_error_and_the_leader_is_asked_next() -> None:  # G15
    async def scene(exchanged: Exchanged) -> None:
        node = await exchanged.in_session()
        exchanged.state.read_from(exchanged.ticket(), FOLLOWER, 1_000_000)
        error = InvalidRequest("a bug")
        exchanged.answers.append(error)
        assert await exchanged.send(node) == FetchErrors(error)
        assert exchanged.state.read_replicas.node_id(ORDERS, 0) is None
        with pytest.raises(InvalidRequest):
            exchanged.state.buffer.take()

    play(scene)


def test_a_session_that_the_broker_has_dropped_is_begun_again_without_a_pause() -> None:  # G14
    async def scene(exchanged: Exchanged) -> None:
        node = await exchanged.in_session()
        exchanged.answers.append(LOST_SESSION)
        assert await exchanged.send(node) == FetchErrors()

    play(scene)


def test_a_session_that_cannot_be_begun_is_an_error_of_the_whole_broker() -> None:  # G14
    async def scene(exchanged: Exchanged) -> None:
        exchanged.answers.append(LOST_SESSION)
        errors = await exchanged.send(exchanged.node())
        assert errors.node_error is not None
        assert errors.node_error.code is ErrorCode.FETCH_SESSION_ID_NOT_FOUND

    play(scene)


def test_a_close_is_sent_only_to_brokers_that_keep_a_session_and_answer() -> None:  # G14
    async def scene(exchanged: Exchanged) -> None:
        alive, paused, without = (
            await exchanged.in_session(1),
            await exchanged.in_session(2),
            exchanged.node(3),
        )
        paused.is_paused = True
        exchanged.sent.clear()
        await exchanged.exchange.close([paused, without, alive])
        ended = [(node_id, each.session_id, each.session_epoch) for node_id, each in exchanged.sent]
        assert ended == [(1, SESSION, FINAL_SESSION_EPOCH)]

    play(scene)


def test_a_damaged_batch_of_the_leader_is_an_error_for_the_application() -> None:  # G16
    async def scene(exchanged: Exchanged) -> None:
        damaged = FetchPartitionResult(ZERO_ID, 0, ErrorCode.CORRUPT_MESSAGE, "offset 10")
        assert exchanged.exchange.take(exchanged.ticket(), damaged) is None
        with pytest.raises(CorruptRecord, match="orders-0: offset 10"):
            exchanged.state.buffer.take()

    play(scene)


def test_a_damaged_batch_of_a_follower_is_asked_of_the_leader() -> None:  # G15
    async def scene(exchanged: Exchanged) -> None:
        exchanged.state.read_from(exchanged.ticket(), FOLLOWER, 1_000_000)
        damaged = FetchPartitionResult(ZERO_ID, 0, ErrorCode.CORRUPT_MESSAGE, "offset 10")
        error = exchanged.exchange.take(exchanged.ticket(), damaged)
        assert (type(error), exchanged.state.buffer.has_news()) == (CorruptRecord, False)
        assert exchanged.state.read_replicas.node_id(ORDERS, 0) is None

    play(scene)
