"""Calls into an event loop from other threads: in order, with few wake-ups, and none is lost."""

import asyncio
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from rayka.client.other_loops import called, poster


def test_calls_are_made_in_order_in_the_loop_with_one_wake_up(monkeypatch: pytest.MonkeyPatch):
    async def work() -> None:
        loop, post = asyncio.get_running_loop(), poster()
        wakes: list[int] = []
        plain = loop.call_soon_threadsafe

        def counted(call, *arguments, **options):
            wakes.append(1)
            return plain(call, *arguments, **options)

        monkeypatch.setattr(loop, "call_soon_threadsafe", counted)
        made: list[tuple[int, int]] = []
        for number in range(500):
            post(lambda number=number: made.append((number, threading.get_ident())))
        await called(lambda end: end())
        assert made == [(number, threading.get_ident()) for number in range(500)]
        assert len(wakes) == 1

    asyncio.run(work())


def test_a_loop_has_its_turn_while_many_calls_wait():
    async def work() -> None:
        post, made = poster(), []
        for number in range(3_000):
            post(lambda number=number: made.append(number))
        seen = []
        while len(made) < 3_000:
            await asyncio.sleep(0)
            seen.append(len(made))
        assert len([each for each in seen if 0 < each < 3_000]) >= 2

    asyncio.run(work())


def test_calls_of_several_threads_are_all_made():
    async def work() -> None:
        post, made = poster(), []

        def post_many(first: int) -> None:
            for number in range(first, first + 2_000):
                post(lambda number=number: made.append(number))

        loop = asyncio.get_running_loop()
        with ThreadPoolExecutor(4) as threads:
            await asyncio.gather(
                *(loop.run_in_executor(threads, post_many, part * 2_000) for part in range(4))
            )
        await called(lambda end: end())
        assert sorted(made) == list(range(8_000))

    asyncio.run(work())


def test_a_call_that_raises_costs_the_others_nothing():
    def broken() -> None:
        raise LookupError("my own")

    async def work() -> None:
        raised: list[dict[str, object]] = []
        asyncio.get_running_loop().set_exception_handler(lambda _, context: raised.append(context))
        post = poster()
        post(broken)
        await called(lambda end: end())
        assert [type(each["exception"]) for each in raised] == [LookupError]

    asyncio.run(work())


def test_what_is_posted_to_a_closed_loop_is_dropped():
    async def work():
        return poster()

    post = asyncio.run(work())
    post(lambda: pytest.fail("no loop runs this"))
