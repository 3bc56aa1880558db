"""The base of a process that acts all the time, in tasks: a client, an operator, a supervisor."""

import asyncio
from collections.abc import Coroutine
from contextvars import Context
from typing import Any

from rayka.sim.loop import Process
from rayka.sim.world.machines import SimCluster


class Acting:
    """Its tasks run as the process's own. One that raises ends the run as a crash of that process."""

    def __init__(self, cluster: SimCluster, node_id: int) -> None:
        self.cluster = cluster
        self.loop = cluster.loop
        self.options = cluster.options
        self.process = Process(node_id, 1)
        self.tasks: list[asyncio.Task[None]] = []

    def begin(self, name: str, coroutine: Coroutine[Any, Any, None]) -> "asyncio.Task[None]":
        """A task of the process."""
        task = self.loop.create_task(coroutine, name=name, context=self.process.context)
        task.add_done_callback(self._on_done, context=Context())
        self.tasks.append(task)
        return task

    def _on_done(self, task: "asyncio.Task[None]") -> None:
        error = None if task.cancelled() else task.exception()
        if error is not None:
            self.cluster.on_bug(self.process.node_id, error)

    def tell(self, event: str, what: str) -> None:
        """A line in the trace."""
        self.cluster.trace.add(self.process.node_id, event, what)

    def waiting(self) -> list[str]:
        """Whether everything has come to its end."""
        return [] if all(each.done() for each in self.tasks) else [f"{self!r} goes on"]
