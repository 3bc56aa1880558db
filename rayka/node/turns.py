"""Work on very many items that leaves others their turn of the event loop."""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable
from typing import TypeVar

ItemT = TypeVar("ItemT")
ITEMS_PER_TURN = 1_000  # of what costs a few microseconds each


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
