"""A worker as a Ray actor: it lives as long as the process that made it, and runs until it is told to drain. In tests
it runs in a thread instead (`worker_hosts`).
"""

import threading
import traceback
from collections.abc import Callable
from typing import Any, NamedTuple

from rayka.actors.ray_connection import connect
from rayka.client.bootstrap import ClusterHandle
from rayka.client.consumer.consumer import Consumer
from rayka.config.client_config import ConsumerConfig, WorkersConfig
from rayka.errors import UnavailableError
from rayka.worker_pool.work_loop import Worker, WorkerStatus


class WorkerPlan(NamedTuple):
    """What all workers of a pool do."""

    # A name for Ray actors; a cluster of this process for threads.
    cluster: str | ClusterHandle
    topics: tuple[str, ...]
    work: Callable[..., Any]
    config: WorkersConfig


class WorkerEnd(NamedTuple):
    """How a worker ended: by being drained, or with an error, in words that need none of its classes."""

    error: str = ""
    traceback: str = ""
    may_pass: bool = False  # another worker may fare better
    status: WorkerStatus | None = None


class WorkerActor:
    """Its methods run beside each other: `run` in one thread, until the end."""

    def __init__(self, worker_id: int, plan: WorkerPlan) -> None:
        self._id = worker_id
        self._plan = plan
        self._draining = threading.Event()
        self._worker: Worker | None = None

    def run(self) -> WorkerEnd:
        """Returns when it was drained, or cannot go on."""
        try:
            self._make().run()
        except Exception as error:
            may_pass = isinstance(error, UnavailableError)
            said = f"{type(error).__name__}: {error}"
            return WorkerEnd(said, traceback.format_exc(), may_pass, self.status())
        return WorkerEnd(status=self.status())

    def _make(self) -> Worker:
        plan = self._plan
        if isinstance(plan.cluster, str):
            connect()
        work = plan.work() if isinstance(plan.work, type) else plan.work
        consumer = Consumer(*plan.topics, cluster=plan.cluster, config=consumer_options(plan.config))
        self._worker = Worker(self._id, consumer, work, plan.config, self._draining)
        return self._worker

    def status(self) -> WorkerStatus:
        worker = self._worker
        return worker.status() if worker is not None else WorkerStatus(self._id, is_ready=False)

    def drain(self) -> None:
        """`run` returns soon."""
        self._draining.set()


def consumer_options(config: WorkersConfig) -> dict[str, Any]:
    """What of a pool's configuration is that of its consumers."""
    return {name: getattr(config, name) for name in ConsumerConfig.model_fields}
