"""What one process of a run does all the time, in tasks: an operator, a supervisor."""

import asyncio
import traceback
from collections.abc import Coroutine
from contextvars import Context
from typing import Any

from rayka.sim.checks.checkers import Checkers
from rayka.sim.loop import VirtualLoop
from rayka.sim.process import PROCESS, Process


class Acting:
    """Its tasks run as the process's own. One that raises ends the run as a crash of that process."""

    def __init__(self, loop: VirtualLoop, checkers: Checkers, process: Process) -> None:
        self._loop = loop
        self._checkers = checkers
        self._process = process
        self._context = Context()
        self._context.run(PROCESS.set, process)
        self._tasks: list[asyncio.Task[None]] = []

    def __repr__(self) -> str:
        return f"<Acting {self._process!r} tasks={len(self._tasks)}>"

    @property
    def is_over(self) -> bool:
        """Whether everything has come to its end."""
        return all(each.done() for each in self._tasks)

    def begin(self, name: str, *coroutines: Coroutine[Any, Any, None]) -> None:
        for each in coroutines:
            task = self._loop.create_task(each, name=name, context=self._context)
            task.add_done_callback(self._on_done, context=Context())
            self._tasks.append(task)

    def _on_done(self, task: "asyncio.Task[None]") -> None:
        error = None if task.cancelled() else task.exception()
        if error is not None:
            where = "".join(traceback.format_tb(error.__traceback__)[-4:])
            self._checkers.report("crash", self._process.node_id, f"{error!r}; {where}")
