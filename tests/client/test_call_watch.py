"""Which nodes count as silent, how often that is told, and which calls are given up; in virtual time."""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from rayka.client.call_watch import CallWatch, SilenceLimits
from rayka.errors import NetworkException
from rayka.sim.loop import VirtualLoop

A, B = 1, 2
SILENCE_LIMITS = SilenceLimits(least_s=0.1, most_s=1.0)


class Caller:
    """Makes calls that are answered after a time, or never; notes when it was told of which node, in milliseconds."""

    def __init__(self) -> None:
        self.told: list[tuple[int, int]] = []
        self.watch = CallWatch[str](SILENCE_LIMITS, self._on_silent)
        self.tasks: list[asyncio.Task[str]] = []
        self._began_s = asyncio.get_running_loop().time()

    def call(self, node_id: int, subject: str, answered_after_s: float | None = None) -> "asyncio.Task[str]":
        async def answer() -> str:
            if answered_after_s is None:
                await asyncio.Event().wait()
            else:
                await asyncio.sleep(answered_after_s)
            return subject

        task = asyncio.ensure_future(self.watch.answer(node_id, subject, answer()))
        self.tasks.append(task)
        return task

    def _on_silent(self, node_id: int, subjects: list[str]) -> None:
        assert subjects, "a node that owes nothing"
        now_s = asyncio.get_running_loop().time()
        self.told.append((node_id, round((now_s - self._began_s) * 1000)))


def in_virtual_time(play: Callable[[Caller], Coroutine[Any, Any, None]]) -> Caller:
    loop = VirtualLoop()

    async def main() -> Caller:
        caller = Caller()
        await play(caller)
        return caller

    try:
        caller: Caller = loop.run_until_complete(main())
    finally:
        loop.cancel_all()
    return caller


# ---- Which nodes are silent ----


def test_of_a_node_that_answers_nothing_is_told() -> None:
    async def play(caller: Caller) -> None:
        for _ in range(1_000):
            caller.call(A, "", answered_after_s=0.05)
            await asyncio.sleep(0.005)

    assert in_virtual_time(play).told == []


def test_a_silence_is_told_often_at_first_and_then_each_second() -> None:
    async def play(caller: Caller) -> None:
        caller.call(A, "")
        await asyncio.sleep(5)

    told = [at_ms for _, at_ms in in_virtual_time(play).told]
    assert told == [*range(100, 2_000, 100), 2_000, 3_000, 4_000]


def test_a_silence_begins_with_the_last_answer() -> None:
    async def play(caller: Caller) -> None:
        caller.call(A, "early", answered_after_s=0.08)
        caller.call(A, "never")
        await asyncio.sleep(0.25)

    assert in_virtual_time(play).told == [(A, 180)]


def test_a_node_that_is_always_slow_is_told_only_until_that_is_known() -> None:
    async def play(caller: Caller) -> None:
        for _ in range(50):
            await caller.call(A, "", answered_after_s=0.2)

    assert max(at_ms for _, at_ms in in_virtual_time(play).told) < 5 * 200


def test_however_slow_a_node_is_a_second_without_answer_is_told() -> None:
    async def play(caller: Caller) -> None:
        for _ in range(50):
            await caller.call(A, "", answered_after_s=0.9)
        caller.told.clear()
        caller.call(A, "")
        await asyncio.sleep(1.05)

    assert in_virtual_time(play).told == [(A, 50 * 900 + 1_000)]


def test_a_call_that_alone_stays_without_answer_is_told_each_second() -> None:
    async def play(caller: Caller) -> None:
        caller.call(A, "never")
        for _ in range(800):
            caller.call(A, "", answered_after_s=0.001)
            await asyncio.sleep(0.005)

    told = [at_ms for _, at_ms in in_virtual_time(play).told]
    assert [at_ms // 1_000 for at_ms in told] == [1, 2, 3]


def test_each_node_is_silent_for_itself() -> None:
    async def play(caller: Caller) -> None:
        caller.call(A, "")
        for _ in range(60):
            caller.call(B, "", answered_after_s=0.002)
            await asyncio.sleep(0.005)

    assert {node_id for node_id, _ in in_virtual_time(play).told} == {A}


# ---- What is given up ----


def test_all_calls_to_a_silent_node_that_are_in_vain_are_given_up_at_once() -> None:
    async def play(caller: Caller) -> None:
        vain = [caller.call(A, "vain"), caller.call(A, "vain")]
        others = [caller.call(A, "of use"), caller.call(B, "vain", answered_after_s=0.29)]
        await asyncio.sleep(0.1)
        vain.append(caller.call(A, "vain"))  # it has only begun, but the node is silent
        await asyncio.sleep(0.01)
        caller.watch.give_up(lambda node_id, subject: node_id == A and subject == "vain")
        await asyncio.sleep(0.001)
        for each in vain:
            with pytest.raises(NetworkException, match="broker-1 did not answer"):
                each.result()
        assert not any(each.done() for each in others)

    in_virtual_time(play)


def test_of_a_node_that_talks_only_what_takes_long_is_given_up() -> None:
    async def play(caller: Caller) -> None:
        long = caller.call(A, "long")
        for _ in range(100):
            caller.call(A, "", answered_after_s=0.001)
            await asyncio.sleep(0.01)
        short = caller.call(A, "short")
        caller.watch.give_up(lambda *_: True)
        await asyncio.sleep(0.001)
        assert isinstance(long.exception(), NetworkException)
        assert not short.done()

    in_virtual_time(play)


def test_the_answer_of_a_call_that_was_given_up_is_not_waited_for() -> None:
    ended: list[str] = []

    async def answer() -> str:
        try:
            await asyncio.sleep(0.5)
            return "late"
        finally:
            ended.append("ended")

    async def play(caller: Caller) -> None:
        task = asyncio.ensure_future(caller.watch.answer(A, "", answer()))
        await asyncio.sleep(0.15)
        caller.watch.give_up(lambda *_: True)
        with pytest.raises(NetworkException):
            await task
        await asyncio.sleep(0)
        assert ended == ["ended"]

    in_virtual_time(play)


def test_an_answer_that_comes_with_the_end_counts_once() -> None:
    """Given up in the very step in which the answer arrives: the one or the other, and never both."""

    async def play(caller: Caller) -> None:
        arriving: asyncio.Future[str] = asyncio.get_running_loop().create_future()

        async def answer() -> str:
            return await arriving

        task = asyncio.ensure_future(caller.watch.answer(A, "", answer()))
        await asyncio.sleep(0.15)
        arriving.set_result("late")
        caller.watch.give_up(lambda *_: True)
        (done,) = await asyncio.gather(task, return_exceptions=True)
        assert done == "late" or isinstance(done, NetworkException)
        assert repr(caller.watch) == "<CallWatch open={}>"

    in_virtual_time(play)


# ---- What it costs ----


def test_calls_that_are_answered_share_one_timer() -> None:
    async def play(caller: Caller) -> None:
        loop: Any = asyncio.get_running_loop()
        before = loop._timer_count
        for _ in range(1_000):
            await caller.watch.answer(A, "", asyncio.sleep(0, "at once"))
        assert loop._timer_count == before + 1

    in_virtual_time(play)


def test_no_timer_is_left_when_no_call_is_out() -> None:
    loop = VirtualLoop()

    async def main() -> None:
        await Caller().call(A, "", answered_after_s=0.3)

    loop.run_until_complete(main())
    loop.run_until(loop.now_us + 1_000_000)
    assert repr(loop).endswith("ready=0 timers=0>")
