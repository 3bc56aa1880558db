"""Requests that wait: no wake-up is lost, none is needed twice, and all end with the node (G9)."""

import asyncio
from collections.abc import Coroutine
from typing import Any

import pytest

from rayka.errors import BrokerNotAvailable
from rayka.node.parked import News, Parked

SOON_S, LATE_S = 0.005, 60.0


def run(coroutine: Coroutine[Any, Any, None]) -> None:
    asyncio.run(coroutine)


def deadline(after_s: float) -> float:
    return asyncio.get_running_loop().time() + after_s


def test_a_wake_up_between_look_and_wait_is_not_lost() -> None:  # G9
    async def main() -> None:
        parked: Parked[str] = Parked()
        with parked.watch(["a", "b"]) as watch:
            parked.wake("b")
            assert await watch.wait(deadline(LATE_S))

    run(main())


def test_news_by_a_listener_wake_the_others() -> None:
    async def main() -> None:
        parked: Parked[str] = Parked()
        with parked.watch(["a"]) as mine, parked.watch(["a"]) as other:
            parked.wake("a", by=mine)
            assert (mine.is_woken, other.is_woken) == (False, True)

    run(main())


def test_many_wake_ups_between_two_looks_are_one() -> None:  # G9
    async def main() -> None:
        parked: Parked[str] = Parked()
        with parked.watch(["a"]) as watch:
            parked.wake("a")
            parked.wake("a")
            assert await watch.wait(deadline(LATE_S))
            assert not await watch.wait(deadline(SOON_S))

    run(main())


def test_a_key_wakes_all_of_its_watches_and_no_others() -> None:  # G9
    async def wait(parked: Parked[str], key: str, after_s: float) -> bool:
        with parked.watch([key]) as watch:
            return await watch.wait(deadline(after_s))

    async def main() -> None:
        parked: Parked[str] = Parked()
        waits = asyncio.gather(
            wait(parked, "a", LATE_S), wait(parked, "a", LATE_S), wait(parked, "b", SOON_S)
        )
        await asyncio.sleep(0)
        parked.wake("a")
        assert await waits == [True, True, False]
        assert repr(parked) == "<Parked keys=0>"

    run(main())


def test_a_request_may_name_a_key_twice() -> None:
    async def main() -> None:
        parked: Parked[str] = Parked()
        with parked.watch(["a", "a"]) as watch:
            assert not await watch.wait(deadline(0))
        assert repr(parked) == "<Parked keys=0>"

    run(main())


def test_when_the_node_stops_all_waits_end_also_later_ones() -> None:
    async def wait(parked: Parked[str]) -> bool:
        with parked.watch(["a"]) as watch:
            return await watch.wait(deadline(LATE_S))

    async def main() -> None:
        parked: Parked[str] = Parked()
        waiting = asyncio.create_task(wait(parked))
        await asyncio.sleep(0)
        parked.close("broker-1 is shutting down")
        for each in (waiting, wait(parked)):
            with pytest.raises(BrokerNotAvailable, match="shutting down"):
                await each

    run(main())


def test_news_that_a_watch_sleeps_through_wake_it_not_and_what_is_committed_is_due_all_the_same() -> (
    None
):  # G9
    async def main() -> None:
        parked: Parked[str] = Parked()
        with (
            parked.watch(["a"], sleeps_through=News.APPENDED) as producer,
            parked.watch(["a"], sleeps_through=News.COMMITTED) as follower,
        ):
            parked.wake("a", News.COMMITTED)
            assert (producer.is_woken, follower.is_woken) == (True, False)
            assert list(follower.due) == ["a"]  # the next answer says how much is committed
            parked.wake("a", News.APPENDED)
            assert follower.is_woken
            assert await producer.wait(deadline(LATE_S))
            parked.wake("a", News.APPENDED)
            assert not producer.is_woken
            parked.wake("a")
            assert producer.is_woken
        assert (repr(parked), parked._of_appends) == ("<Parked keys=0>", {})

    run(main())
