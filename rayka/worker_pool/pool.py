"""A pool of workers: starts, watches, replaces and drains them.

One thread of this process asks the workers once a second. The workers are the members of one group: the cluster
assigns partitions to them, and takes the partitions of a dead worker away after its session. The pool only decides the
number of workers (`scaling`). Workers that keep their partitions continue while others join and leave
(cooperative-sticky). When this process ends, Ray ends the workers, and their uncommitted records are delivered again.
"""

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from itertools import count
from typing import Any, NamedTuple, Self, Unpack

from rayka.client.arguments import topic_names
from rayka.client.bootstrap import DEFAULT_CLUSTER, ClusterHandle, resolve
from rayka.cluster import Cluster
from rayka.config.client_config import WorkersConfig
from rayka.errors import ApiError, ConfigError, RaykaError, UnavailableError, WorkFailed
from rayka.options import WorkersOptions
from rayka.worker_pool.scaling import GroupLag, Look, WorkerScaling
from rayka.worker_pool.work_loop import WorkerStatus
from rayka.worker_pool.worker_hosts import (
    ActorHost,
    ThreadHost,
    WorkerEnd,
    WorkerHandle,
    WorkerHost,
    WorkerPlan,
)

_LOOK_S = 1.0
_ANSWER_S = 10.0
_REPLACE_PAUSE_S = 1.0
_STOP_S = 60.0
_SPEED_LOOKS = 5

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class PoolStatus:
    """The state of a pool. `lag_seconds`: the time for the waiting records at the speed of the last seconds, infinite
    at speed 0.
    """

    workers: tuple[WorkerStatus, ...]
    wanted: int
    lag_records: int
    lag_seconds: float
    records: int
    poison: int
    replaced: int


@dataclass(slots=True)
class _Running:
    """A worker that was requested, and its last status."""

    worker: WorkerHandle
    status: WorkerStatus
    has_begun: bool = False  # it has answered: Ray had a place for it
    is_draining: bool = False


class _Progress(NamedTuple):
    """The progress of all workers at one time."""

    at_s: float
    records: int
    busy_s: float


class WorkerPool:
    """A pool of workers, made by `rayka.workers`. `with` stops it at the end."""

    def __init__(self, plan: WorkerPlan, lag: GroupLag, host: WorkerHost) -> None:
        config = plan.config
        self._plan = plan
        self._scaling = WorkerScaling(config.min, config.max, config.target_lag_seconds)
        self._lag = lag
        self._host = host
        self._ids = count(1)
        self._running: dict[int, _Running] = {}
        self._wanted = config.min
        self._done_records = self._done_poison = self._replaced = 0
        self._done_busy_s = 0.0
        self._progress: deque[_Progress] = deque(maxlen=_SPEED_LOOKS + 1)
        self._failure: WorkerEnd | None = None
        self._status = PoolStatus((), config.min, 0, 0.0, 0, 0, 0)
        self._stopping, self._ended = threading.Event(), threading.Event()
        self._thread = threading.Thread(target=self._run, name=f"rayka-workers {plan.topics}", daemon=True)
        self._thread.start()

    def __repr__(self) -> str:
        return f"<WorkerPool of {list(self._plan.topics)} workers={len(self._running)}>"

    # ---- For users ---------------------------------------------------------------------------------------------------

    def status(self) -> PoolStatus:
        """The state at the last look, at most about a second ago."""
        return self._status

    def wait(self, timeout: float | None = None) -> bool:
        """Waits until the pool has ended, by `stop` in another thread or by itself; False after `timeout` seconds.

        Raises WorkFailed when a worker failed for good.
        """
        has_ended = self._ended.wait(timeout)
        if has_ended:
            self._raise_failure()
        return has_ended

    def stop(self, timeout: float = _STOP_S) -> None:
        """Drains the pool: each worker finishes and commits its batch, and leaves the group.

        Kills workers that have not ended after `timeout` seconds; their batches are delivered again. Stopping twice is
        fine. Raises WorkFailed when a worker failed for good.
        """
        self._stopping.set()
        deadline_s = time.monotonic() + timeout
        if not self._ended.wait(timeout):
            self._kill_all()
        self._ended.wait(max(0.0, deadline_s - time.monotonic()) + _ANSWER_S)
        self._raise_failure()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        try:
            self.stop()
        except WorkFailed:
            if kind is None:
                raise

    def _raise_failure(self) -> None:
        if self._failure is not None:
            raise WorkFailed(f"{self!r}: {self._failure.error}\n{self._failure.traceback}")

    # ---- The thread --------------------------------------------------------------------------------------------------

    def _run(self) -> None:
        try:
            while not self._stopping.is_set() and self._failure is None:
                self._reap()
                self._start_missing()
                self._look()
                self._stopping.wait(_LOOK_S)
            self._drain_all()
        except Exception as error:
            logger.exception("%r cannot go on", self)
            self._failure = self._failure or WorkerEnd(f"{type(error).__name__}: {error}")
            self._kill_all()
        finally:
            with suppress(RaykaError):
                self._lag.close()
            self._ended.set()

    def _start_missing(self) -> None:
        for _ in range(self._wanted - sum(not each.is_draining for each in self._running.values())):
            worker_id = next(self._ids)
            status = WorkerStatus(worker_id, is_ready=False)
            self._running[worker_id] = _Running(self._host.start(worker_id), status)

    def _reap(self, timeout_s: float = 0.0) -> None:
        """Removes workers that have ended; the first that failed for good ends the pool."""
        ids, workers = list(self._running), [each.worker for each in self._running.values()]
        for place in self._host.ended(workers, timeout_s):
            self._take_out(ids[place], workers[place].end())

    def _take_out(self, worker_id: int, end: WorkerEnd) -> None:
        last = end.status or self._running[worker_id].status
        del self._running[worker_id]
        self._done_records += last.records
        self._done_poison += last.poison
        self._done_busy_s += last.busy_s
        if not end.error:
            return
        if not end.may_pass:
            self._failure = self._failure or end
            return
        logger.warning("worker %d of %r: %s; another one takes its place", worker_id, self, end.error)
        self._replaced += 1
        self._stopping.wait(_REPLACE_PAUSE_S)

    def _look(self) -> None:
        """Asks all workers for their progress, reads the lag, and decides the number of workers."""
        self._ask_all()
        try:
            lag_records, partition_count = self._lag.look()
        except (ApiError, UnavailableError) as error:
            logger.warning("%r does not know what waits: %s", self, error)
            return
        look = self._look_at(lag_records)
        self._scale(self._scaling.wanted(look, partition_count), look)
        self._status = self._status_of(look)

    def _look_at(self, lag_records: int) -> Look:
        statuses = [each.status for each in self._running.values()]
        records = self._done_records + sum(each.records for each in statuses)
        busy_s = self._done_busy_s + sum(each.busy_s for each in statuses)
        self._progress.append(_Progress(time.monotonic(), records, busy_s))
        first, last = self._progress[0], self._progress[-1]
        elapsed_s = (last.at_s - first.at_s) or 1.0
        active = [each.status for each in self._running.values() if not each.is_draining]
        is_waiting = len(active) < len(statuses) or not all(each.partitions for each in active)
        return Look(
            last.at_s,
            len(active),
            lag_records,
            (last.records - first.records) / elapsed_s,
            (last.busy_s - first.busy_s) / elapsed_s,
            waits=is_waiting,
        )

    def _status_of(self, look: Look) -> PoolStatus:
        statuses = tuple(each.status for each in self._running.values())
        return PoolStatus(
            workers=statuses,
            wanted=self._wanted,
            lag_records=look.lag_records,
            lag_seconds=look.lag_s,
            records=self._progress[-1].records,
            poison=self._done_poison + sum(each.poison for each in statuses),
            replaced=self._replaced,
        )

    def _ask_all(self) -> None:
        running = list(self._running.values())
        for place, status in self._host.statuses([each.worker for each in running], _LOOK_S).items():
            running[place].status, running[place].has_begun = status, True

    def _scale(self, wanted: int, look: Look) -> None:
        if wanted == self._wanted:
            return
        logger.info("%r: %d workers instead of %d, lag %.1f s", self, wanted, self._wanted, look.lag_s)
        if wanted < self._wanted:
            stay = [worker_id for worker_id, each in self._running.items() if not each.is_draining]
            for youngest in stay[wanted:]:
                self._drain(youngest)
        self._wanted = wanted

    # ---- End ---------------------------------------------------------------------------------------------------------

    def _drain_all(self) -> None:
        self._ask_all()
        for worker_id in list(self._running):
            self._drain(worker_id)
        while self._running:
            self._reap(_LOOK_S)
            self._ask_all()
        self._look()

    def _drain(self, worker_id: int) -> None:
        """Drains the worker. A worker that has not begun is killed: it has no batch, and Ray may never place it."""
        worker = self._running[worker_id]
        if worker.has_begun:
            worker.is_draining = True
            worker.worker.drain()
        else:
            worker.worker.kill()
            del self._running[worker_id]

    def _kill_all(self) -> None:
        for each in list(self._running.values()):
            each.worker.kill()


def workers(
    function_or_class: Callable[[Any], object] | type,
    topic: str | Iterable[str],
    *,
    cluster: str | ClusterHandle = DEFAULT_CLUSTER,
    config: Mapping[str, Any] | None = None,
    **options: Unpack[WorkersOptions],
) -> WorkerPool:
    """Runs a function on the records of a topic in Ray actors, each a member of the consumer group `group_id`.

    The function is called with a list of `Record`, or with `batch="arrow"` with a pyarrow.RecordBatch as `poll_arrow`
    gives, of at most `max_records` records; of a class, each worker makes an instance, and calls that. Both travel to
    the workers by pickle. Returns at once: `pool.wait()` waits, `with` or `pool.stop()` drains, `pool.status()` tells.

        group_id: str
        min: int = 1
        max: int = 32
        target_lag_seconds: float | None = None
        batch: "records" | "arrow" = "records"
        max_records: int = 500
        retries: int = 3
        retry_backoff_ms: int = 100
        on_poison: "stop" | "skip" | a callable = "stop"
        ray_options: dict = {}, for the actors: num_cpus (1 by default), resources, runtime_env

    and the options of a `Consumer`, where `auto_offset_reset` is "earliest".

    Guarantee: every record is handled at least once. Offsets are committed after the function has returned; what a
    worker that died had in hand is given to another one, so the function should bear to see a record twice. A batch
    whose function raises is tried `retries` times more, `retry_backoff_ms` later, then twice as long, up to 10 s. If
    that does not help, with "stop" the pool ends with WorkFailed and commits nothing of it; with "skip" its records are
    tried one by one, and those that fail are passed over and counted. A callable is called, in the worker, with each
    of those (a `Record`, or a batch of one row; None where it could not be deserialized) and the error, to keep it
    elsewhere.

    There are `min` workers. With `target_lag_seconds` one is added when what waits takes longer than that at the speed
    of now, up to `max` or the number of partitions, and one is taken away when the others have time to spare; those
    that keep their partitions go on meanwhile. A worker whose process dies is replaced.

    With a cluster of `rayka.testing` the workers are threads of this process, for tests: `ray_options` has no effect
    then, and the function is not pickled.

    Raises ConfigError, ClusterNotFound, UnknownTopicOrPartition.
    """
    parsed = WorkersConfig.given(config, options, what="workers")
    if parsed.group_id is None:
        raise ConfigError(
            "workers: group_id: expected the name of the group that the workers are, found none"
        )
    if not callable(function_or_class):
        raise TypeError(f"expected a function or a class, found {type(function_or_class).__name__}")
    handle = resolve(cluster)
    on_ray = isinstance(handle, Cluster)
    topics = tuple(topic_names(topic))
    plan = WorkerPlan(handle.name if on_ray else handle, topics, function_or_class, parsed)
    begins_at_end = parsed.auto_offset_reset == "latest"
    lag = GroupLag(handle, parsed.group_id, topics, begins_at_end=begins_at_end)
    try:
        # Here, because an error of the workers is raised only by `wait` and `stop`.
        lag.check_topics()
    except BaseException:
        lag.close()
        raise
    if "max" in parsed.model_fields_set and parsed.max > parsed.min and parsed.target_lag_seconds is None:
        logger.warning(
            "workers of group %r: max=%d has no effect without target_lag_seconds: there are min=%d workers; name a"
            " target, or min=%d for so many from the beginning",
            parsed.group_id,
            parsed.max,
            parsed.min,
            parsed.max,
        )
    return WorkerPool(plan, lag, ActorHost(plan) if on_ray else ThreadHost(plan))
