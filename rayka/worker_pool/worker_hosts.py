"""Hosts of a pool's workers: each worker runs in a Ray actor or, for tests, in a thread of this process.

A host starts workers, asks for their statuses, and reports how they ended. Invariant: a worker that was killed, or
whose process or thread ended without a result, counts as ended, and another worker may take its place.
"""

import logging
import threading
import traceback
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, wait
from functools import partial
from typing import Any, NamedTuple, Protocol

import ray

from rayka.actors.ray_connection import connect
from rayka.client.bootstrap import ClusterHandle
from rayka.client.consumer.consumer import Consumer
from rayka.client.io_thread import fulfil
from rayka.config.client_config import ConsumerConfig, WorkersConfig
from rayka.errors import UnavailableError
from rayka.worker_pool.work_loop import Worker, WorkerStatus

# A worker as a Ray actor: it lives as long as the process that made it, and runs until it is told to drain. In tests
# it runs in a thread instead (`worker_hosts`).


class WorkerPlan(NamedTuple):
    """The common plan of all workers of a pool."""

    # A name for Ray actors; a cluster of this process for threads.
    cluster: str | ClusterHandle
    topics: tuple[str, ...]
    work: Callable[..., Any]
    config: WorkersConfig


class WorkerEnd(NamedTuple):
    """The end of a worker: drained, or an error as text, so that its class need not be imported."""

    error: str = ""
    traceback: str = ""
    # Another worker may succeed.
    may_pass: bool = False
    status: WorkerStatus | None = None


class WorkerActor:
    """A worker in a Ray actor. Methods run concurrently: `run` occupies one thread until the end."""

    def __init__(self, worker_id: int, plan: WorkerPlan) -> None:
        self._id = worker_id
        self._plan = plan
        self._draining = threading.Event()
        self._worker: Worker | None = None

    def run(self) -> WorkerEnd:
        """Returns when the worker was drained or failed for good."""
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
        """Makes `run` return soon."""
        self._draining.set()


def consumer_options(config: WorkersConfig) -> dict[str, Any]:
    """The options of a pool that are options of its consumers."""
    return {name: getattr(config, name) for name in ConsumerConfig.model_fields}


_METHODS_AT_ONCE = 4

logger = logging.getLogger(__name__)


class WorkerHandle(Protocol):
    """One worker that was started."""

    def drain(self) -> None:
        """Has the worker finish its batch and end; does not wait."""
        ...

    def kill(self) -> None:
        """Gives the worker up together with its batch."""
        ...

    def end(self) -> WorkerEnd:
        """Waits for the worker's end and returns it."""
        ...


class WorkerHost(Protocol):
    """Starts the workers of a pool. Used by the thread of the pool."""

    def start(self, worker_id: int) -> WorkerHandle:
        """Starts one more worker."""
        ...

    def ended(self, workers: Sequence[Any], timeout_s: float) -> list[int]:
        """The indexes of workers that have ended: as soon as one has, or after `timeout_s`."""
        ...

    def statuses(self, workers: Sequence[Any], timeout_s: float) -> Mapping[int, WorkerStatus]:
        """The statuses of the workers that answer in time, by their indexes."""
        ...


# ---- Ray actors ------------------------------------------------------------------------------------------------------


class _ActorHandle:
    def __init__(self, actor: Any) -> None:
        self.actor = actor
        self.result = actor.run.remote()

    def __repr__(self) -> str:
        return f"<worker {self.actor}>"

    def drain(self) -> None:
        self.actor.drain.remote()

    def kill(self) -> None:
        ray.kill(self.actor)

    def end(self) -> WorkerEnd:
        try:
            found: WorkerEnd = ray.get(self.result)
        except ray.exceptions.RayError as error:
            return WorkerEnd(f"its process ended: {error}", may_pass=True)
        return found


class ActorHost:
    """Ray actors. Ray places them by `ray_options`, and ends them with this process."""

    def __init__(self, plan: WorkerPlan) -> None:
        self._plan = plan
        options = {"num_cpus": 1, **plan.config.ray_options, "max_concurrency": _METHODS_AT_ONCE}
        self._make: Any = ray.remote(WorkerActor).options(**options)

    def __repr__(self) -> str:
        return f"<ActorHost of {self._plan.cluster}>"

    def start(self, worker_id: int) -> _ActorHandle:
        return _ActorHandle(self._make.remote(worker_id, self._plan))

    def ended(self, workers: Sequence[_ActorHandle], timeout_s: float) -> list[int]:
        done = _done([each.result for each in workers], 1, timeout_s)
        return [place for place, each in enumerate(workers) if each.result in done]

    def statuses(self, workers: Sequence[_ActorHandle], timeout_s: float) -> dict[int, WorkerStatus]:
        asked = [each.actor.status.remote() for each in workers]
        done, found = _done(asked, len(asked), timeout_s), dict[int, WorkerStatus]()
        for place, each in enumerate(asked):
            if each in done:
                try:
                    found[place] = ray.get(each)
                except ray.exceptions.RayError as error:
                    logger.debug("%r does not answer: %s", workers[place], error)
        return found


def _done(calls: list[Any], count: int, timeout_s: float) -> list[Any]:
    """The calls that have ended, once `count` have, or after timeout_s."""
    if not calls:
        return []
    ray.wait(calls, num_returns=count, timeout=timeout_s)
    return list(ray.wait(calls, num_returns=len(calls), timeout=0)[0])


# ---- Threads of this process -----------------------------------------------------------------------------------------


class _ThreadHandle:
    def __init__(self, worker_id: int, plan: WorkerPlan) -> None:
        self.worker = WorkerActor(worker_id, plan)
        self.result: Future[WorkerEnd] = Future()
        run = partial(fulfil, self.result, self.worker.run)
        threading.Thread(target=run, name=f"rayka-worker-{worker_id}", daemon=True).start()
        self.is_killed = False

    def __repr__(self) -> str:
        return f"<worker {self.worker} in a thread>"

    def drain(self) -> None:
        self.worker.drain()

    def kill(self) -> None:
        """A thread cannot be ended from outside: it is left alone, and ends after its batch."""
        self.is_killed = True
        self.worker.drain()

    def end(self) -> WorkerEnd:
        if not self.result.done():
            return WorkerEnd("it was given up", may_pass=True)
        error = self.result.exception()
        # Such as a SystemExit of the function.
        if error is not None:
            return WorkerEnd(f"its thread ended: {error!r}", may_pass=True)
        return self.result.result()


class ThreadHost:
    """Threads instead of actors, for a cluster of `rayka.testing`, which no other process can reach.

    The function is not pickled, so it may refer to objects of the test.
    """

    def __init__(self, plan: WorkerPlan) -> None:
        self._plan = plan

    def __repr__(self) -> str:
        return f"<ThreadHost of {self._plan.cluster}>"

    def start(self, worker_id: int) -> _ThreadHandle:
        return _ThreadHandle(worker_id, self._plan)

    def ended(self, workers: Sequence[_ThreadHandle], timeout_s: float) -> list[int]:
        if not any(each.is_killed for each in workers):
            wait([each.result for each in workers], timeout_s, FIRST_COMPLETED)
        return [place for place, each in enumerate(workers) if each.is_killed or each.result.done()]

    def statuses(self, workers: Sequence[_ThreadHandle], timeout_s: float) -> dict[int, WorkerStatus]:
        return {place: each.worker.status() for place, each in enumerate(workers)}
