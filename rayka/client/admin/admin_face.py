"""What all parts of an `Admin` have: its brain, its end, and how its methods reach the IO thread."""

from collections.abc import Callable, Coroutine
from functools import partial
from typing import Any, ParamSpec, TypeVar

from rayka.client.admin.admin_brain import AsyncAdmin
from rayka.client.io_thread import SyncClient, wait_for
from rayka.errors import ClosedError

P = ParamSpec("P")
ResultT = TypeVar("ResultT")


class AdminFace(SyncClient):
    """See the module; its methods are those of `Admin`."""

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
        """What the work comes to. The last thing that a method does: the async admin awaits here."""
        self._check_open()
        return wait_for(partial(work, *arguments, **options), self._brain.timeout_ms, caller=self)

    def _check_open(self) -> None:
        if self._is_closed:
            raise ClosedError(f"{self!r}: make a new Admin")
