"""The base of the sync `Admin` and its parts: its `AsyncAdmin`, its close, and the way to the IO thread."""

from collections.abc import Callable, Coroutine
from functools import partial
from typing import Any, ParamSpec, TypeVar

from rayka.client.admin.admin_brain import AsyncAdmin
from rayka.client.io_thread import SyncClient, wait_for
from rayka.errors import ClosedError

P = ParamSpec("P")
ResultT = TypeVar("ResultT")


class AdminFace(SyncClient):
    """Runs methods of an `AsyncAdmin` for callers on other threads."""

    def __init__(self, brain: AsyncAdmin) -> None:
        self._brain = brain
        self._is_closed = False

    def __repr__(self) -> str:
        return f"<Admin cluster={self._brain.cluster_name}{' closed' * self._is_closed}>"

    def close(self) -> None:
        """Ends; closing again does nothing."""
        self._is_closed = True

    def _run(
        self, work: Callable[P, Coroutine[Any, Any, ResultT]], *arguments: P.args, **options: P.kwargs
    ) -> ResultT:
        """Returns the result of the work. Every public method ends in this call, because `rayka.aio` overrides it to
        return an awaitable instead.
        """
        self._check_open()
        return wait_for(partial(work, *arguments, **options), self._brain.timeout_ms, caller=self)

    def _check_open(self) -> None:
        if self._is_closed:
            raise ClosedError(f"{self!r}: make a new Admin")
