"""The actors that one caller has looked up by name, for as long as this process keeps one connection to Ray.

Invariants: a handle is used with the connection that it came from, because another one answers it with exceptions of
every kind, or not at all; a call that waits when its connection ends fails at once, not at its timeout; there is one
look-up of a name at a time, which all callers share, and one that fails leaves nothing behind.
"""

import asyncio
from collections.abc import Awaitable
from functools import partial
from typing import Any, TypeVar

import ray

from rayka.actors.names import NAMESPACE
from rayka.actors.ray_head import ConnectionId, check_head, while_head_answers
from rayka.errors import NetworkException

AnswerT = TypeVar("AnswerT")


class NamedActors:
    """See the module. Made and used on one event loop; look-ups block, so each has a thread."""

    def __init__(self, connection: ConnectionId | None, *, for_client: bool) -> None:
        self.connection = connection
        self._for_client = for_client
        self._handles: dict[str, Any] = {}
        self._look_ups: dict[str, asyncio.Future[Any]] = {}
        self._open_calls: dict[asyncio.Timeout, None] = {}

    def __repr__(self) -> str:
        return f"<NamedActors {sorted(self._handles)} open={len(self._open_calls)}>"

    def known(self, name: str) -> Any | None:
        """The handle of the actor, if it was looked up and has not failed since."""
        return self._handles.get(name)

    async def look_up(self, name: str) -> Any:
        """The handle of the actor that has this name now. Raises NetworkException, ValueError when there is none, and
        what Ray raises. It raises, too, when the head goes meanwhile; the look-up then ends by itself.
        """
        waiting = self._look_ups.get(name)
        if waiting is None:
            waiting = asyncio.get_running_loop().run_in_executor(None, self._find, name)
            self._look_ups[name] = waiting
            waiting.add_done_callback(partial(self._on_looked_up, name))
        return await while_head_answers(waiting, for_client=self._for_client)

    def forget(self, name: str, handle: Any) -> None:
        """The actor did not answer: its name is looked up again, unless that has been done since."""
        if self._handles.get(name) is handle:
            del self._handles[name]

    async def until_closed(self, answer: Awaitable[AnswerT]) -> AnswerT:
        """The answer of a call that was sent just now. Raises NetworkException when the connection ends before it."""
        scope = asyncio.timeout(None)
        self._open_calls[scope] = None
        try:
            async with scope:
                return await answer
        except TimeoutError:
            if not scope.expired():
                raise
            raise NetworkException("this process's connection to Ray ended before the answer") from None
        finally:
            self._open_calls.pop(scope, None)

    def close(self) -> None:
        """The connection has ended: what waits for an answer fails."""
        self._handles.clear()
        now_s = asyncio.get_running_loop().time()
        while self._open_calls:
            self._open_calls.popitem()[0].reschedule(now_s)

    def _find(self, name: str) -> Any:
        check_head(for_client=self._for_client)
        return ray.get_actor(name, NAMESPACE)

    def _on_looked_up(self, name: str, looked_up: "asyncio.Future[Any]") -> None:
        del self._look_ups[name]
        if not looked_up.cancelled() and looked_up.exception() is None:
            self._handles[name] = looked_up.result()
