"""The loop on virtual time."""

import asyncio
import contextlib
import time
from contextvars import Context

import pytest

from rayka.sim.loop import PROCESS, START_US, Deadlock, Escape, Livelock, Process, VirtualLoop


async def sleep_and_note(notes: list[str], name: str, seconds: float) -> None:
    await asyncio.sleep(seconds)
    notes.append(name)


def test_an_hour_passes_in_no_time() -> None:
    loop, begin_s = VirtualLoop(), time.monotonic()
    loop.run_until_complete(asyncio.sleep(3600))
    assert loop.now_us == START_US + 3600 * 1_000_000
    assert time.monotonic() - begin_s < 60


def test_timers_of_one_instant_run_in_the_order_in_which_they_were_made() -> None:
    loop, notes = VirtualLoop(), list[str]()

    async def all_at_once() -> None:
        await asyncio.gather(
            *(sleep_and_note(notes, name, 0.5) for name in "cab"), sleep_and_note(notes, "d", 0.4)
        )

    loop.run_until_complete(all_at_once())
    assert notes == ["d", "c", "a", "b"]


def test_a_timeout_ends_on_time() -> None:
    loop = VirtualLoop()

    async def wait() -> None:
        async with asyncio.timeout(0.25):
            await loop.create_future()

    with pytest.raises(TimeoutError):
        loop.run_until_complete(wait())
    assert 0 <= loop.now_us - (START_US + 250_000) <= 1  # never before


def test_what_is_left_of_many_tasks_is_cancelled() -> None:
    loop, notes = VirtualLoop(), list[str]()

    async def wait(name: str) -> None:
        try:
            await loop.create_future()
        finally:
            notes.append(name)

    loop.create_task(wait("first"))
    for _ in range(2_500):
        loop.run_until_complete(asyncio.sleep(0))
    loop.create_task(wait("last"))
    loop.run_until(loop.now_us)
    loop.cancel_all()
    assert notes == ["first", "last"]


@pytest.mark.parametrize("wait_ms", [1, 3, 7, 57, 251, 333, 1_001, 57_003])
def test_a_task_that_waits_until_a_moment_finds_that_it_has_come(wait_ms: int) -> None:
    """Deadlines are computed as floats and looked at as whole milliseconds: rounding must wake no waiter early."""
    loop = VirtualLoop()

    async def wait() -> None:
        deadline_s = loop.time() + wait_ms / 1000
        deadline_ms = int(loop.time() * 1000) + wait_ms
        woken = loop.create_future()
        loop.call_at(deadline_s, woken.set_result, None)
        await woken
        assert loop.time() >= deadline_s
        assert int(loop.time() * 1000) >= deadline_ms

    for _ in range(50):
        loop.run_until_complete(wait())


def test_waiting_for_nothing_is_a_deadlock() -> None:
    loop = VirtualLoop()
    with pytest.raises(Deadlock, match="waits"):
        loop.run_until_complete(loop.create_future())


def test_time_that_stands_still_is_a_livelock() -> None:
    loop = VirtualLoop()

    def spin() -> None:
        loop.call_soon(spin)

    spin()
    with pytest.raises(Livelock):
        loop.run_until(START_US + 1)


def test_a_thread_is_refused() -> None:
    loop = VirtualLoop()

    async def escape() -> None:
        await asyncio.to_thread(int)

    with pytest.raises(Escape, match="thread"):
        loop.run_until_complete(escape())


def test_a_paused_process_runs_later_and_in_its_order() -> None:
    loop, notes, process = VirtualLoop(), list[str](), Process(1, 1)
    context = Context()
    context.run(PROCESS.set, process)
    for name, seconds in (("a", 0.1), ("b", 0.2), ("c", 0.9)):
        loop.create_task(sleep_and_note(notes, name, seconds), context=context)
    loop.run_until(START_US + 50_000)
    process.is_paused = True
    loop.run_until(START_US + 500_000)
    assert notes == []
    loop.resume(process)
    loop.run_until(START_US + 500_000)
    assert notes == ["a", "b"]
    loop.run_until(START_US + 1_000_000)
    assert notes == ["a", "b", "c"]


def test_cancelled_timers_do_not_pile_up() -> None:
    loop = VirtualLoop()

    async def cancel_many() -> None:
        for _ in range(20_000):
            loop.call_later(1_000, int).cancel()

    loop.run_until_complete(cancel_many())
    assert len(loop._timers) < 11_000


def test_cancel_all_ends_what_is_left() -> None:
    loop, notes = VirtualLoop(), list[str]()

    async def wait() -> None:
        with contextlib.suppress(asyncio.CancelledError):
            await loop.create_future()
        notes.append("ended")

    loop.create_task(wait(), context=Context())
    loop.run_until(START_US)
    loop.cancel_all()
    assert notes == ["ended"]
