"""What a handler gives: its response where it need not wait, else what brings it.

A request that can be answered at once so needs no task, and what it did is done when the handler returns. Nor does one
that waits for news of partitions (`Later`): what its handler does then is done in the turn that brings the news.
"""

from collections.abc import Coroutine
from typing import Any

from rayka.ports import Message
from rayka.protocol.later import Later

Response = Message | Later[Any] | Coroutine[Any, Any, Any]


async def completed(response: Response) -> Any:
    """The response, awaited where it has to be."""
    return response if isinstance(response, Message) else await response
