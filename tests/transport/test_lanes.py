"""The lanes of one event loop: opened beside the calls, shared, and tried again after a pause when they fail."""

import asyncio

import pytest

from rayka.errors import NetworkException
from rayka.protocol.caller import Answer
from rayka.protocol.later import Later
from rayka.transport import lane as lanes_module
from rayka.transport.greeting import LaneOffer
from rayka.transport.lane import Lane, Lanes, NodeKey, OpenedLane, lanes_of_this_loop
from rayka.transport.lane_server import LaneServer
from tests.transport.lane_support import NODE_ID, call, offer, run, served, until

RAY, NODE = "one connection to Ray", NodeKey("rayka", NODE_ID)


class Asked:
    """What a node answers that is asked for its lane, and how often it was."""

    def __init__(self, server: LaneServer | None) -> None:
        self.server = server
        self.times = 0

    async def __call__(self) -> LaneOffer:
        self.times += 1
        if self.server is None:
            raise NetworkException("broker-1 cannot be reached just now")
        return offer(self.server)


async def opened(lanes: Lanes, asked: Asked) -> Lane:
    await until(lambda: lanes.get(RAY, NODE, asked) is not None)
    lane = lanes.get(RAY, NODE, asked)
    assert lane is not None
    return lane


def test_all_callers_share_one_lane_that_is_opened_beside_their_calls() -> None:
    async def body() -> None:
        async with served() as server:
            lanes, asked = Lanes(), Asked(server)
            assert [lanes.get(RAY, NODE, asked) for _ in range(3)] == [None] * 3
            lane = await opened(lanes, asked)
            assert asked.times == 1
            assert (await lane.send(call()))[0]
            lanes.close()

    run(body())


def test_a_lane_that_breaks_is_opened_again() -> None:
    async def body() -> None:
        async with served() as server:
            lanes, asked = Lanes(), Asked(server)
            first = await opened(lanes, asked)
            first.close()
            assert lanes.get(RAY, NODE, asked) is None
            second = await opened(lanes, asked)
            assert second is not first
            assert asked.times == 2
            lanes.close()

    run(body())


def test_lanes_end_with_the_connection_to_ray_that_they_came_from() -> None:
    async def body() -> None:
        async with served() as server:
            lanes, asked = Lanes(), Asked(server)
            first = await opened(lanes, asked)
            assert lanes.get("another connection to Ray", NODE, asked) is None
            assert not first.is_open
            lanes.close()

    run(body())


def test_a_call_that_a_lanes_end_breaks_may_be_followed_by_another_one_at_once() -> None:
    """A producer has other batches ready: the step that tells it of the break asks for the next lane."""

    async def body() -> None:
        parked: Later[Answer] = Later()
        async with served(lambda *_: parked) as server:
            lanes, asked = Lanes(), Asked(server)
            lane = await opened(lanes, asked)
            found: list[OpenedLane | None] = []
            lane.send(call()).then(lambda _: found.append(lanes.get("another connection", NODE, asked)))
            assert lanes.get("another connection", NODE, asked) is None
            assert found == [None]
            await until(lambda: lanes.get("another connection", NODE, asked) is not None)
            assert asked.times == 2
            lanes.close()

    run(body())


def test_a_node_that_cannot_be_reached_is_asked_again_after_a_growing_pause(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(lanes_module, "_PAUSE_FIRST_S", 0.01)

    async def body() -> None:
        lanes, asked = Lanes(), Asked(None)
        loop = asyncio.get_running_loop()
        begin_s = loop.time()
        while asked.times < 5:
            assert lanes.get(RAY, NODE, asked) is None
            await asyncio.sleep(0)
        assert loop.time() - begin_s >= 0.01 + 0.02 + 0.04 + 0.08
        lanes.close()

    with caplog.at_level("INFO", logger="rayka.transport"):
        run(body())
    assert [each.message for each in caplog.records] == [
        "calls go by Ray, not directly: broker-1 cannot be reached just now"
    ]


def test_after_a_lane_that_opened_a_failure_is_said_again(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(lanes_module, "_PAUSE_FIRST_S", 0.001)

    async def body() -> None:
        async with served() as server:
            lanes, asked = Lanes(), Asked(None)
            for _ in range(2):
                asked.server, tries = None, asked.times + 3
                await until(lambda tries=tries: lanes.get(RAY, NODE, asked) is None and asked.times >= tries)  # type: ignore[misc]
                asked.server = server
                (await opened(lanes, asked)).close()
            lanes.close()

    with caplog.at_level("INFO", logger="rayka.transport"):
        run(body())
    assert len(caplog.records) == 2


def test_a_node_that_serves_no_lane_is_asked_again_without_a_word(caplog: pytest.LogCaptureFixture) -> None:
    async def none() -> LaneOffer:
        return LaneOffer("", "", 0, b"")

    async def body() -> None:
        lanes = Lanes()
        assert lanes.get(RAY, NODE, none) is None
        await until(lambda: "opening=0" in repr(lanes))
        assert lanes.get(RAY, NODE, none) is None
        assert "opening=0" in repr(lanes)

    with caplog.at_level("INFO", logger="rayka.transport"):
        run(body())
    assert not caplog.records


def test_lanes_belong_to_one_event_loop() -> None:
    async def mine() -> Lanes:
        assert lanes_of_this_loop() is lanes_of_this_loop()
        return lanes_of_this_loop()

    assert asyncio.run(mine()) is not asyncio.run(mine())
