"""When a broker's process is looked at: soon when its lane ends, and from time to time in any case."""

import asyncio

from rayka.actors.exit_watch import LaneWatch
from rayka.errors import NetworkException
from rayka.transport.lane import Lane, open_lane
from tests.transport.lane_support import NODE_ID, offer, run, served

_LONG_S = 3600.0  # longer than `run` gives a test
_SHORT_S = 0.001


def test_the_end_of_the_lane_ends_the_wait_and_what_follows_is_short() -> None:
    async def body() -> None:
        async with served() as server:

            async def open_one() -> Lane:
                return await open_lane(NODE_ID, offer(server))

            watch = LaneWatch(open_one)
            await watch.until_look(_SHORT_S)
            waiting = asyncio.create_task(watch.until_look(_LONG_S))
            await asyncio.sleep(0.01)
            assert not waiting.done()
            server.close()
            await waiting
            await watch.until_look(_LONG_S)  # Ray may not have it on record yet
            watch.close()

    run(body())


def test_a_lane_that_ended_with_a_process_that_lives_is_opened_again() -> None:
    opened: list[Lane] = []

    async def body() -> None:
        async with served() as server:

            async def open_one() -> Lane:
                opened.append(await open_lane(NODE_ID, offer(server)))
                return opened[-1]

            watch = LaneWatch(open_one, soon_for_s=0.0, open_again_s=0.0)
            await watch.until_look(_SHORT_S)
            opened[0].close()
            await watch.until_look(_LONG_S)  # at once
            await watch.until_look(_SHORT_S)
            assert [each.is_open for each in opened] == [False, True]
            watch.close()
            assert not opened[1].is_open

    run(body())


def test_without_a_lane_only_time_passes() -> None:
    async def none() -> None:
        return None

    async def refused() -> Lane:
        raise NetworkException("no answer in time")

    async def body() -> None:
        for open_one in (none, refused):
            watch = LaneWatch(open_one)
            waiting = asyncio.create_task(watch.until_look(_LONG_S))
            await asyncio.sleep(0.01)
            assert not waiting.done()
            waiting.cancel()
            await watch.until_look(_SHORT_S)

    run(body())
