"""Work on very many items that leaves others their turn of the event loop."""

import asyncio
from collections.abc import AsyncIterator, Callable, Generator, Iterable
from typing import Any, TypeVar

ItemT = TypeVar("ItemT")
ResultT = TypeVar("ResultT")
ITEMS_PER_TURN = 1_000  # of what costs a few microseconds each
STEPS_PER_TURN = 100  # of what costs a few tens of microseconds each


def _one(_: object) -> int:
    return 1


async def in_turns(
    items: Iterable[ItemT], count: int = ITEMS_PER_TURN, *, weigh: Callable[[ItemT], int] = _one
) -> AsyncIterator[ItemT]:
    """The items; after so many of them others have their turn. One may count as several, by its weight."""
    weight = 0
    for item in items:
        weight += weigh(item)
        yield item
        if weight >= count:
            weight = 0
            await asyncio.sleep(0)


async def result_in_turns(
    steps: Generator[None, Any, ResultT],
    count: int = STEPS_PER_TURN,
    *,
    check: Callable[[], object] = lambda: None,
) -> ResultT:
    """What comes of the steps; after so many of them others have their turn. `check` looks behind each turn whether the
    steps may go on, and raises where they may not.
    """
    try:
        while True:
            for _ in range(count):
                next(steps)
            await asyncio.sleep(0)
            check()
    except StopIteration as end:
        result: ResultT = end.value
        return result
