"""The entrance of a node: order, bounds, versions, and an answer whatever happens."""

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

import msgspec
import numpy as np
import pytest

from rayka.config.broker_config import BrokerConfig
from rayka.errors import (
    InvalidRequest,
    KafkaStorageError,
    NetworkException,
    RequestTimedOut,
    StorageError,
    TooManyRequests,
    UnknownServerError,
    UnknownTopicOrPartition,
    UnsupportedVersion,
)
from rayka.ids import METADATA_TOPIC_ID, ZERO_ID
from rayka.node.inbox import Inbox
from rayka.node.settings import NodeSettings
from rayka.ports import Request
from rayka.protocol.apis import API_BY_NAME, ServedBy
from rayka.protocol.caller import Answer, Call, Caller
from rayka.protocol.fetch import FetchRequest, FetchResponse
from rayka.protocol.membership import (
    HeartbeatRequest,
    HeartbeatResponse,
    MetadataRequest,
    MetadataResponse,
    NodeState,
    StatusRequest,
    StatusResponse,
)
from rayka.protocol.produce import ProducePartition, ProduceRequest, ProduceResponse
from rayka.protocol.wire import CallNumber, Failure, RequestHeader, decode, encode
from rayka.testing import MemoryDisk
from tests.node.controller_support import Crashes, settings

ResultT = TypeVar("ResultT")


ANSWERS = {
    FetchRequest: FetchResponse(()),
    ProduceRequest: ProduceResponse(()),
    HeartbeatRequest: HeartbeatResponse(True, False, False),
}


class RecordingNode:
    """Writes down the topics of Metadata requests in the order in which they start; holds other requests back."""

    serves = ServedBy.BROKER | ServedBy.CONTROLLER

    def __init__(self, config: BrokerConfig | None = None) -> None:
        self.crashes = Crashes()
        config = config or BrokerConfig(max_parked_requests=2)
        self.settings: NodeSettings = settings(MemoryDisk(), node_id=1, crash=self.crashes, config=config)
        self.started: list[tuple[str, ...] | None] = []
        self.may_answer = asyncio.Event()
        self.error: Exception | None = None

    async def handle(self, request: Any) -> Any:
        match request:
            case StatusRequest():
                return StatusResponse(1, (), NodeState.RUNNING, 0, "", ())
            case MetadataRequest():
                return await self._metadata(request)
        await self.may_answer.wait()
        return ANSWERS[type(request)]

    async def _metadata(self, request: MetadataRequest) -> MetadataResponse:
        self.started.append(request.topics)
        await asyncio.sleep(0)
        if self.error is not None:
            raise self.error
        return MetadataResponse("cluster", 3001, (), (), 0)


class Lane:
    """A caller of one node, over a lane whose calls a test delivers."""

    def __init__(self, node: RecordingNode) -> None:
        self.inbox = Inbox(node)
        self.caller = Caller(METADATA_TOPIC_ID)

    async def call(self, request: Request[ResultT], timeout_ms: int = 60_000) -> ResultT:
        return await self.caller.call(1, request, timeout_ms, self.deliver)

    def encoded(self, request: Request[Any]) -> Call:
        return self.caller.encode_call(1, request, 60_000)

    async def deliver(self, call: Call) -> Answer:
        return await self.inbox.handle(call.api.name, call.header, call.request.body, call.request.payload())

    async def answer(self, call: Call) -> Any:
        return self.caller.decode_answer(call, await self.deliver(call))


def about(topic: str) -> MetadataRequest:
    return MetadataRequest((topic,))


def produced(size_bytes: int) -> ProduceRequest:
    return ProduceRequest(-1, 0, (ProducePartition(ZERO_ID, 0, np.zeros(size_bytes, dtype=np.uint8)),))


def run(coroutine: Coroutine[Any, Any, None]) -> None:
    asyncio.run(coroutine)


# ---- Order ----


def test_calls_start_in_the_order_in_which_they_were_made() -> None:
    async def main() -> None:
        node = RecordingNode()
        lane = Lane(node)
        made = [lane.encoded(about(name)) for name in "abcde"]
        arriving = [asyncio.create_task(lane.answer(made[place])) for place in (4, 2, 1, 0, 3)]
        await asyncio.gather(*arriving)
        assert node.started == [("a",), ("b",), ("c",), ("d",), ("e",)]

    run(main())


def test_a_gap_that_is_not_filled_closes_the_connection_and_the_next_one_works() -> None:
    async def main() -> None:
        node = RecordingNode()
        lane = Lane(node)
        lane.inbox = Inbox(node, gap_timeout_s=0.01)
        lost, held = lane.encoded(about("lost")), lane.encoded(about("held"))
        with pytest.raises(NetworkException, match="a call before this one was lost"):
            await lane.answer(held)
        with pytest.raises(NetworkException, match="late or repeated"):
            await lane.answer(lost)
        await lane.call(about("next"))
        assert node.started == [("next",)]

    run(main())


def test_a_repeated_call_is_refused() -> None:
    async def main() -> None:
        node = RecordingNode()
        lane = Lane(node)
        made = lane.encoded(about("a"))
        await lane.deliver(made)
        with pytest.raises(NetworkException, match="late or repeated"):
            await lane.answer(made)
        assert node.started == [("a",)]

    run(main())


def test_when_a_caller_reconnects_what_it_had_held_is_refused() -> None:
    async def main() -> None:
        node = RecordingNode()
        lane = Lane(node)
        lost, held = lane.encoded(about("lost")), lane.encoded(about("held"))
        waiting = asyncio.create_task(lane.answer(held))
        await asyncio.sleep(0)
        lane.caller.on_failure(lost)
        await lane.call(about("next"))
        with pytest.raises(NetworkException):
            await waiting
        assert node.started == [("next",)]

    run(main())


def test_a_held_call_that_is_cancelled_takes_its_connection_with_it() -> None:
    async def main() -> None:
        lane = Lane(RecordingNode())
        first, held, last = (lane.encoded(about(name)) for name in "abc")
        waiting = [asyncio.create_task(lane.answer(each)) for each in (held, last)]
        await asyncio.sleep(0)
        waiting[0].cancel()
        with pytest.raises(NetworkException):
            await waiting[1]
        with pytest.raises(NetworkException):
            await lane.answer(first)

    run(main())


def test_a_restarted_node_is_called_without_waiting_for_calls_that_were_answered() -> None:
    async def main() -> None:
        node = RecordingNode()
        lane = Lane(node)
        await lane.call(about("a"))
        lane.inbox = Inbox(node)
        await lane.call(about("b"))
        assert node.started == [("a",), ("b",)]

    run(main())


def test_a_call_that_times_out_opens_a_new_connection() -> None:
    async def main() -> None:
        node = RecordingNode()
        lane = Lane(node)
        with pytest.raises(RequestTimedOut, match="broker-1 did not answer fetch within 5 ms"):
            await lane.call(FetchRequest(0, 0, 0, ()), timeout_ms=5)
        await lane.call(about("a"))
        assert node.started == [("a",)]

    run(main())


# ---- Bounds ----


def test_waiting_requests_are_bounded_by_api_and_what_keeps_the_cluster_alive_is_not() -> None:
    async def main() -> None:
        node = RecordingNode()
        lane = Lane(node)
        consumer, follower = FetchRequest(0, 0, 0, ()), FetchRequest(0, 0, 0, (), replica_id=2)
        heartbeat = HeartbeatRequest(1, 2, 3, True, False)
        waiting = [asyncio.create_task(lane.call(each)) for each in (consumer, consumer)]
        await asyncio.sleep(0)
        with pytest.raises(TooManyRequests, match="broker-1 has 2 waiting fetch requests"):
            await lane.call(consumer)
        admitted = [follower, follower, heartbeat, heartbeat, heartbeat]
        waiting += [asyncio.create_task(lane.call(each)) for each in admitted]
        assert (await lane.call(StatusRequest())).state is NodeState.RUNNING
        await lane.call(about("another api"))
        node.may_answer.set()
        await asyncio.gather(*waiting)
        await lane.call(consumer)

    run(main())


def test_requests_that_are_always_admitted_take_no_place_of_others() -> None:
    """Followers' fetches wait all the time: with a small bound no consumer would be given anything."""

    async def main() -> None:
        node = RecordingNode(BrokerConfig(max_parked_requests=1, queued_max_request_bytes=1))
        lane = Lane(node)
        follower = FetchRequest(0, 0, 0, (), replica_id=2)
        waiting = [asyncio.create_task(lane.call(each)) for each in (follower, follower)]
        await asyncio.sleep(0)
        waiting.append(asyncio.create_task(lane.call(FetchRequest(0, 0, 0, ()))))
        await asyncio.sleep(0)
        node.may_answer.set()
        await asyncio.gather(*waiting)

    run(main())


def test_the_bytes_of_waiting_requests_are_bounded_by_api() -> None:
    """Together with those of the request that reaches the bound: a large one waits no longer than a small one."""

    async def main() -> None:
        node = RecordingNode(BrokerConfig(queued_max_request_bytes=100))
        lane = Lane(node)
        small, large = produced(30), produced(500)
        waiting = [asyncio.create_task(lane.call(each)) for each in (small, large)]
        await asyncio.sleep(0)
        for refused in (small, large):
            with pytest.raises(
                TooManyRequests, match=r"broker-1 has \d{3} bytes in waiting produce requests"
            ):
                await lane.call(refused)
        other_apis = [FetchRequest(0, 0, 0, ()), FetchRequest(0, 0, 0, (), replica_id=2)]
        waiting += [asyncio.create_task(lane.call(each)) for each in other_apis]
        node.may_answer.set()
        await asyncio.gather(*waiting)
        await lane.call(large)  # nothing else waits

    run(main())


# ---- Answers ----


@pytest.mark.parametrize(
    ("error", "answered"),
    [
        (UnknownTopicOrPartition("no such topic"), UnknownTopicOrPartition),
        (StorageError("cannot read /data: Input/output error"), KafkaStorageError),
    ],
)
def test_an_expected_error_is_answered_and_the_node_lives(
    error: Exception, answered: type[Exception]
) -> None:
    async def main() -> None:
        node = RecordingNode()
        node.error = error
        with pytest.raises(answered, match=str(error)):
            await Lane(node).call(about("a"))
        assert node.crashes.errors == []

    run(main())


def test_an_unexpected_exception_ends_the_node() -> None:
    async def main() -> None:
        node = RecordingNode()
        node.error = ZeroDivisionError("a bug")
        with pytest.raises(UnknownServerError, match="a bug"):
            await Lane(node).call(about("a"))
        assert node.crashes.errors == [node.error]

    run(main())


def test_an_api_that_the_node_does_not_serve_is_an_invalid_request() -> None:
    async def main() -> None:
        lane = Lane(RecordingNode())
        made = lane.encoded(about("a"))
        body, payload = await lane.inbox.handle("no_such_api", made.header, made.request.body, b"")
        assert payload is None
        with pytest.raises(InvalidRequest, match="does not serve 'no_such_api'; it serves produce, fetch, "):
            raise decode(Failure, body).error()

    run(main())


def test_a_request_that_no_state_could_make_right_does_not_reach_the_node() -> None:
    async def main() -> None:
        node = RecordingNode()
        node.may_answer.set()
        with pytest.raises(InvalidRequest, match="broker_id: expected 0 or more, found -1"):
            await Lane(node).call(HeartbeatRequest(-1, 2, 3, True, False))

    run(main())


def test_a_newer_version_of_a_request_is_refused() -> None:
    async def main() -> None:
        lane = Lane(RecordingNode())
        header = encode(RequestHeader(version=1, call=CallNumber(ZERO_ID, 0, 0))).body
        body, _ = await lane.inbox.handle("metadata", header, encode(about("a")).body, b"")
        with pytest.raises(UnsupportedVersion, match="metadata up to version 0, found 1"):
            raise decode(Failure, body).error()

    run(main())


@pytest.mark.parametrize("body", [b"", b"\xc1", msgspec.msgpack.encode([3])])
def test_a_request_that_does_not_decode_is_invalid_and_takes_its_turn(body: bytes) -> None:
    async def main() -> None:
        node = RecordingNode()
        lane = Lane(node)
        made = lane.encoded(about("a"))
        answer = await lane.inbox.handle("metadata", made.header, body, b"")
        with pytest.raises(InvalidRequest, match="expected a MetadataRequest"):
            lane.caller.decode_answer(made, answer)
        await lane.call(about("b"))
        assert node.started == [("b",)]

    run(main())


def test_a_header_that_does_not_decode_is_an_invalid_request() -> None:
    async def main() -> None:
        body, _ = await Lane(RecordingNode()).inbox.handle("metadata", b"\xc1", b"", b"")
        with pytest.raises(InvalidRequest, match="expected a RequestHeader"):
            raise decode(Failure, body).error()

    run(main())


def test_a_call_whose_response_is_there_at_once_is_answered_without_a_wait() -> None:
    node = RecordingNode()
    node.handle = lambda _: MetadataResponse("cluster", 3001, (), (), 0)  # type: ignore[assignment,method-assign]
    lane = Lane(node)
    made = lane.encoded(about("a"))
    answer = lane.inbox.start(made.api.name, made.header, made.request.body, b"")
    assert isinstance(answer, tuple)
    assert lane.caller.decode_answer(made, answer).cluster_id == "cluster"
    assert repr(lane.inbox) == "<Inbox of broker-1 waiting={} held=0>"


def test_a_call_that_comes_before_its_turn_is_started_by_the_one_before_it_however_soon_that_comes() -> None:
    async def main() -> None:
        node = RecordingNode()
        lane = Lane(node)
        first, second = lane.encoded(about("a")), lane.encoded(about("b"))
        answers = [
            lane.inbox.start(each.api.name, each.header, each.request.body, b"") for each in (second, first)
        ]
        await asyncio.gather(*(each for each in answers if not isinstance(each, tuple)))
        assert node.started == [("a",), ("b",)]
        assert repr(lane.inbox) == "<Inbox of broker-1 waiting={} held=0>"

    run(main())


def test_a_held_call_is_woken_once_by_several_calls_before_it() -> None:
    """A connection of the direct lane hands over all that has arrived before it awaits any of it: a call that is
    refused at once runs before one that waits has begun to.
    """

    async def main() -> None:
        node = RecordingNode()
        lane = Lane(node)
        first, refused, held, last = (lane.encoded(about(name)) for name in "abcd")

        def arrive(call: Call) -> None:
            answer = lane.inbox.start(call.api.name, call.header, call.request.body, b"")
            if not isinstance(answer, tuple):
                waiting.append(asyncio.ensure_future(answer))

        waiting: list[asyncio.Future[Answer]] = []
        for each in (held, last):
            arrive(each)
            await asyncio.sleep(0)
        for each in (first, refused._replace(api=API_BY_NAME["vote"])):
            arrive(each)
        answers = await asyncio.gather(*waiting)
        assert [payload is None for _, payload in answers] == [False, False, False]
        assert node.started == [("a",), ("c",), ("d",)]
        assert repr(lane.inbox) == "<Inbox of broker-1 waiting={} held=0>"

    run(main())
