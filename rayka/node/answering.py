"""What a handler gives: its response where it need not wait, else what is to be awaited for it.

A request that can be answered at once so needs no task, and what it did is done when the handler returns.
"""

from collections.abc import Coroutine
from typing import Any

from rayka.ports import Message

Response = Message | Coroutine[Any, Any, Any]


async def completed(response: Response) -> Any:
    """The response, awaited where it has to be."""
    return response if isinstance(response, Message) else await response
