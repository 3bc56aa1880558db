"""The caller's end of a call: its deadline. In virtual time."""

import asyncio
from collections.abc import Coroutine
from typing import Any

import pytest

from rayka.errors import RequestTimedOut
from rayka.ids import ZERO_ID
from rayka.protocol.caller import Answer, Call, Caller
from rayka.protocol.produce import InitProducerIdRequest, InitProducerIdResponse
from rayka.protocol.wire import encode
from rayka.sim.loop import VirtualLoop

NODE = 1


def in_virtual_time(play: Coroutine[Any, Any, None]) -> None:
    loop = VirtualLoop()
    try:
        loop.run_until_complete(play)
    finally:
        loop.cancel_all()


async def never(_: Call) -> Answer:
    await asyncio.Event().wait()
    raise AssertionError("it waits for ever")


async def at_once(_: Call) -> Answer:
    return encode(InitProducerIdResponse(1, 0)).body, b""


async def timed_out_after_ms(caller: Caller, timeout_ms: int) -> int:
    loop = asyncio.get_running_loop()
    began_s = loop.time()
    with pytest.raises(RequestTimedOut, match=f"within {timeout_ms} ms"):
        await caller.call(NODE, InitProducerIdRequest(), timeout_ms, never)
    return round((loop.time() - began_s) * 1000)


def test_each_call_ends_at_its_own_deadline_whatever_the_order_in_which_they_begin() -> None:
    async def play() -> None:
        caller, timeouts_ms = Caller(ZERO_ID), (900, 300, 500, 300, 1_200)
        waited = await asyncio.gather(*(timed_out_after_ms(caller, each) for each in timeouts_ms))
        assert tuple(waited) == timeouts_ms
        assert await timed_out_after_ms(caller, 40) == 40

    in_virtual_time(play())


def test_a_call_that_was_answered_or_given_up_leaves_the_deadlines_of_others_alone() -> None:
    async def play() -> None:
        caller = Caller(ZERO_ID)
        given_up = asyncio.ensure_future(caller.call(NODE, InitProducerIdRequest(), 100, never))
        late = asyncio.ensure_future(timed_out_after_ms(caller, 200))
        await asyncio.sleep(0.05)
        await caller.call(NODE, InitProducerIdRequest(), 60, at_once)
        given_up.cancel()
        assert await late == 200
        assert given_up.cancelled()

    in_virtual_time(play())


def test_calls_that_are_answered_share_one_timer_which_is_not_set_again() -> None:
    async def play() -> None:
        loop: Any = asyncio.get_running_loop()
        caller, before = Caller(ZERO_ID), loop._timer_count
        for _ in range(1_000):
            await caller.call(NODE, InitProducerIdRequest(), 30_000, at_once)
        assert loop._timer_count == before + 1
        await asyncio.sleep(31)
        assert repr(loop).endswith("timers=0>")

    in_virtual_time(play())
