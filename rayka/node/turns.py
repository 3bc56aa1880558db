"""Work on very many items that leaves others their turn of the event loop."""

import asyncio
from collections.abc import AsyncIterator, Iterable
from typing import TypeVar

ItemT = TypeVar("ItemT")
ITEMS_PER_TURN = 1_000  # of what costs a few microseconds each


async def in_turns(items: Iterable[ItemT], count: int = ITEMS_PER_TURN) -> AsyncIterator[ItemT]:
    """The items; after so many of them others have their turn."""
    for number, item in enumerate(items, 1):
        yield item
        if number % count == 0:
            await asyncio.sleep(0)
