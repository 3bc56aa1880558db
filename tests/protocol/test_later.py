"""A future that hands its result over in the step that brings it."""

import asyncio
import gc
import weakref
from collections.abc import Coroutine
from functools import partial
from typing import Any

import pytest

from rayka.errors import NetworkException
from rayka.protocol.later import Later, later_of

GONE = NetworkException("gone")


def run(play: Coroutine[Any, Any, None]) -> None:
    asyncio.run(play)


def test_the_callback_is_called_once_in_the_step_that_ends_the_future() -> None:
    async def play() -> None:
        told: list[object] = []
        later: Later[str] = Later()
        later.then(told.append)
        later.end("answer")
        later.end("another")
        assert (told, later.done()) == (["answer"], True)

    run(play())


def test_a_callback_that_is_set_after_the_end_is_called_at_once() -> None:
    async def play() -> None:
        told: list[object] = []
        for outcome in ("answer", GONE):
            later: Later[str] = Later()
            later.end(outcome)
            later.then(told.append)
        assert told == ["answer", GONE]

    run(play())


def test_a_coroutine_awaits_a_later_as_any_other_future() -> None:
    async def play() -> None:
        answered: Later[str] = Later()
        asyncio.get_running_loop().call_soon(answered.end, "answer")
        assert await answered == "answer"
        failed: Later[str] = Later()
        asyncio.get_running_loop().call_soon(failed.end, GONE)
        with pytest.raises(NetworkException, match="gone"):
            await failed

    run(play())


def test_a_cancelled_task_gives_up_the_later_that_it_awaits() -> None:
    async def play() -> None:
        told: list[str] = []
        later: Later[str] = Later(lambda: told.append("given up"))
        waiting = asyncio.ensure_future(_awaited(later))
        await asyncio.sleep(0)
        waiting.cancel()
        await asyncio.wait([waiting])
        later.end("late")
        assert (told, later.cancelled()) == (["given up"], True)

    run(play())


async def _awaited(later: Later[str]) -> str:
    return await later


def note(told: list[object], name: str, outcome: object) -> None:
    told.append((name, outcome))


def test_observers_are_called_before_the_callback() -> None:
    async def play() -> None:
        for outcome in ("answer", GONE):
            told: list[object] = []
            later: Later[str] = Later()
            later.then(partial(note, told, "waits"))
            later.observe(partial(note, told, "first"))
            later.observe(partial(note, told, "second"))
            later.end(outcome)
            later.observe(partial(note, told, "late"))
            assert told[:3] == [("first", outcome), ("second", outcome), ("waits", outcome)]
            later.cancel()
            assert len(told) == 4

    run(play())


def test_observers_are_called_when_the_future_is_given_up() -> None:
    async def play() -> None:
        told: list[object] = []
        later: Later[str] = Later(lambda: told.append("given up"))
        later.then(told.append)
        later.observe(told.append)
        later.cancel()
        later.end("late")
        assert (told[0], type(told[1]), len(told)) == ("given up", asyncio.CancelledError, 2)

    run(play())


def test_a_failed_later_gives_its_exception_to_waiting_code() -> None:
    async def play() -> None:
        told: list[object] = []
        later: Later[str] = Later(lambda: told.append("given up"))
        later.then(told.append)
        later.fail(GONE)
        later.fail(NetworkException("again"))
        assert told == ["given up", GONE]

    run(play())


def test_the_later_of_a_coroutine_ends_and_is_cancelled_with_it() -> None:
    async def answer(outcome: str | Exception) -> str:
        await asyncio.sleep(0)
        if isinstance(outcome, Exception):
            raise outcome
        return outcome

    async def play() -> None:
        assert await later_of(answer("answer")) == "answer"
        with pytest.raises(NetworkException, match="gone"):
            await later_of(answer(GONE))
        given_up = later_of(answer("never"))
        given_up.cancel()
        await asyncio.sleep(0)
        assert len(asyncio.all_tasks()) == 1
        assert later_of(given_up) is given_up

    run(play())


def test_an_ended_later_is_freed_without_a_pass_of_the_garbage_collector() -> None:
    class Asked:
        """As a call, which its answer's giving up leads back to."""

        def __init__(self) -> None:
            self.answer: Later[str] = Later(self.forget)

        def forget(self) -> None:
            """Nothing."""

    async def play() -> None:
        gc.disable()
        try:
            asked = Asked()
            freed = weakref.ref(asked)
            asked.answer.then(lambda _: None)
            asked.answer.end("answer")
            del asked
            assert freed() is None
        finally:
            gc.enable()

    run(play())
