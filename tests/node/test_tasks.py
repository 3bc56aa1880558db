"""A node's background tasks: watched, and ended together."""

import asyncio

from rayka.node.tasks import Tasks


async def forever(ended: list[str], name: str) -> None:
    try:
        await asyncio.Event().wait()
    finally:
        ended.append(name)


async def fail(error: Exception) -> None:
    raise error


def test_an_unexpected_exception_is_reported_once_whatever_follows() -> None:
    crashes: list[BaseException] = []
    first = ZeroDivisionError("a bug")

    async def main() -> None:
        tasks = Tasks(crashes.append)
        for error in (first, ValueError("what follows from it")):
            await asyncio.wait_for(
                asyncio.gather(tasks.start("task", fail(error)), return_exceptions=True), 1
            )
        tasks.crash(KeyError("and a third"))

    asyncio.run(main())
    assert crashes == [first]


def test_stop_ends_all_in_the_order_in_which_they_began() -> None:
    crashes: list[BaseException] = []
    ended: list[str] = []

    async def main() -> str:
        tasks = Tasks(crashes.append)
        for name in ("a", "b", "c"):
            tasks.start(name, forever(ended, name))
        await asyncio.sleep(0)
        shown = repr(tasks)
        await tasks.stop()
        assert repr(tasks) == "<Tasks []>"
        return shown

    assert asyncio.run(main()) == "<Tasks ['a', 'b', 'c']>"
    assert (ended, crashes) == (["a", "b", "c"], [])


def test_a_task_may_stop_the_others() -> None:
    ended: list[str] = []

    async def main() -> None:
        tasks = Tasks(lambda error: None)
        tasks.start("a", forever(ended, "a"))
        await asyncio.sleep(0)
        await tasks.start("stopper", tasks.stop())

    asyncio.run(main())
    assert ended == ["a"]


def test_what_abandoned_tasks_still_raise_is_ignored() -> None:
    crashes: list[BaseException] = []

    async def stubborn() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            raise ValueError("while ending")

    async def main() -> None:
        tasks = Tasks(crashes.append)
        task = tasks.start("stubborn", stubborn())
        await asyncio.sleep(0)
        tasks.abandon()
        await asyncio.gather(task, return_exceptions=True)

    asyncio.run(main())
    assert crashes == []
