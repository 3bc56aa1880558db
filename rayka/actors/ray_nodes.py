"""Ray nodes, and small jobs on their machines beside the actors: looking at directories, formatting, removing, waiting
for ends.

On the caller's own Ray node a job runs in the caller: a task there would cost the start of a process and see the same
files. Not every Ray node can run jobs: another one's image may lack rayka, or it has no worker to spare. Jobs run with
this process's interpreter, and with the environment that Ray gives its workers.

An actor or job that names its interpreter to Ray gets a process of its own, and Ray starts another process first to
read the name. Without a name it gets a process that Ray has in stock. A raylet keeps its Python as long as it lives, so
an actor that is pinned to a raylet's id is restarted with the same Python. So the interpreter is named only where
workers are not known to run this process's Python.
"""

import os
import sys
import threading
import time
from collections.abc import Callable, Collection
from concurrent.futures import Future
from dataclasses import dataclass
from functools import partial
from typing import Any, Generic, ParamSpec, TypeVar

import ray
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from rayka.actors import local_rays
from rayka.actors.ray_records import draining_ray_nodes
from rayka.errors import RaykaError, UnavailableError

JOB_TIMEOUT_S = 60.0
# The largest difference between the clocks of two machines.
_CLOCKS_DIFFER_S = 60.0
# A label, as in `ray start --labels rayka.io/host=NAME`, names the machine, and so the disk.
HOST_LABEL = "rayka.io/host"
P = ParamSpec("P")
ResultT = TypeVar("ResultT")
# Jobs of this process that have outlasted their time.
_hanging: list[Future[Any]] = []
# Ray nodes whose workers are known to run this process's Python.
_matching = set[str]()


@dataclass(frozen=True, slots=True)
class JobAnswers(Generic[ResultT]):
    """The answers of Ray nodes to a job."""

    results: dict[str, ResultT]
    # Why there is no result.
    failures: dict[str, str]

    def add(self, ray_node_id: str, answer: Callable[[], ResultT]) -> bool:
        """Adds the answer of a Ray node, or the reason of its failure. Whether the Ray node ran the job."""
        try:
            self.results[ray_node_id] = answer()
        except (TimeoutError, ray.exceptions.GetTimeoutError):
            self.failures[ray_node_id] = "did not answer in time: it has no free worker, or its disk hangs"
        except Exception as error:
            # Any error: the image of a foreign Ray node may lack what the job needs.
            self.failures[ray_node_id] = _reason(error)
        return ray_node_id in self.results


def own_ray_node_id() -> str:
    """Returns the Ray node that this process belongs to."""
    node_id: str = ray.get_runtime_context().get_node_id()
    return node_id


def live_ray_nodes() -> dict[str, dict[str, float]]:
    """Returns the resources of all live Ray nodes by node id; this process's own first, then by id."""
    own = own_ray_node_id()
    alive = {node["NodeID"]: node["Resources"] for node in ray.nodes() if node["Alive"]}
    return {node_id: alive[node_id] for node_id in sorted(alive, key=lambda each: (each != own, each))}


def open_ray_nodes() -> dict[str, dict[str, float]]:
    """Returns the live Ray nodes that may get a node, with their resources: all that Ray does not drain."""
    draining = draining_ray_nodes()
    return {each: resources for each, resources in live_ray_nodes().items() if each not in draining}


def host_label(ray_node_id: str) -> str | None:
    """Returns the name that the Ray node's label gives its machine, if no other live Ray node has the same one."""
    labels = {node["NodeID"]: node["Labels"].get(HOST_LABEL) for node in ray.nodes() if node["Alive"]}
    own = labels.get(ray_node_id)
    return own if own is not None and list(labels.values()).count(own) == 1 else None


def run_on(ray_node_id: str, job: Callable[P, ResultT], *args: P.args, **kwargs: P.kwargs) -> ResultT:
    """Runs the job on the Ray node and returns its result. Raises the job's RaykaError, and UnavailableError if the Ray
    node does not run the job.
    """
    if ray_node_id == own_ray_node_id():
        return job(*args, **kwargs)
    remote_job = _RemoteJob(ray_node_id, partial(job, *args, **kwargs), JOB_TIMEOUT_S)
    _await_all([remote_job], JOB_TIMEOUT_S)
    try:
        return remote_job.result()
    except ray.exceptions.RayError as error:
        cause = getattr(error, "cause", None)
        if isinstance(cause, RaykaError):
            raise cause from None
        raise UnavailableError(
            f"Ray node {ray_node_id} did not run {job.__name__}: {_reason(error)}"
        ) from error


def run_on_all(
    ray_node_ids: Collection[str],
    timeout_s: float,
    job: Callable[P, ResultT],
    *args: P.args,
    **kwargs: P.kwargs,
) -> JobAnswers[ResultT]:
    """Runs the job on all these Ray nodes at once, so that a Ray node that does not run it holds up no other.

    All have that time together. Once another machine has answered, the rest have a quarter of it: a start of workers
    that is slow on every machine has ended then.
    """
    own, deadline_s = own_ray_node_id(), time.monotonic() + timeout_s
    run = partial(job, *args, **kwargs)
    jobs = {each: _RemoteJob(each, run, timeout_s) for each in ray_node_ids if each != own}
    here = _in_thread(run) if own in ray_node_ids else None
    _await_all(jobs.values(), timeout_s)
    answers: JobAnswers[ResultT] = JobAnswers({}, {})
    if (
        here is not None
        and not answers.add(own, partial(here.result, _left_s(deadline_s)))
        and not here.done()
    ):
        _hanging.append(here)
    for ray_node_id, remote_job in jobs.items():
        answers.add(ray_node_id, remote_job.result)
    return answers


class _RemoteJob(Generic[ResultT]):
    """A job on its way to another Ray node.

    The job first goes to a worker as Ray starts one by itself. A worker with a named interpreter costs twice as much to
    start. So the job is sent again, with the interpreter named, only if the worker runs another Python, or one without
    rayka.

    A job that gets no worker in time does not begin later. It is not cancelled: a task that ends at that moment ends
    the caller's process (Ray 2.60: "Tried to complete task that was not pending").
    """

    def __init__(self, ray_node_id: str, job: Callable[[], ResultT], timeout_s: float) -> None:
        self._ray_node_id = ray_node_id
        self._job = job
        self._not_after_s = time.time() + timeout_s + _CLOCKS_DIFFER_S
        # A task inherits the interpreter that is named for this process: by `uv run`, or for an actor's process.
        self._is_named = bool(ray.get_runtime_context().runtime_env.get("py_executable"))
        self.task = self._send()

    def has_ended(self) -> bool:
        """Whether the job of a finished task has ended; False if the job was sent once more, as another task."""
        try:
            ray.get(self.task, timeout=0)
            if not self._is_named:
                _matching.add(self._ray_node_id)
        except ray.exceptions.RayTaskError as error:
            if not self._is_named and not isinstance(error.cause, RaykaError):
                self._is_named = True
                self.task = self._send()
                return False
        except ray.exceptions.RayError:
            # The job has ended; `result` raises the error.
            pass
        return True

    def result(self) -> ResultT:
        """Returns the job's result without waiting. Raises Ray's errors, GetTimeoutError if the job has not ended."""
        result: ResultT = ray.get(self.task, timeout=0)
        return result

    def _send(self) -> Any:
        options: dict[str, Any] = {"runtime_env": {"py_executable": sys.executable}} if self._is_named else {}
        remote = ray.remote(_run_with).options(
            num_cpus=0,
            max_retries=0,
            scheduling_strategy=NodeAffinitySchedulingStrategy(self._ray_node_id, soft=False),
            **options,
        )
        return remote.remote(None if self._is_named else sys.prefix, self._not_after_s, self._job)


def _run_with(prefix: str | None, not_after_s: float, job: Callable[[], ResultT]) -> ResultT:
    """Runs the job in the worker, if the wall clock is at most `not_after_s` and the interpreter is in `prefix`; None:
    any interpreter.
    """
    if time.time() > not_after_s:
        raise TimeoutError("the job's time was over before there was a worker for it")
    if prefix not in (None, sys.prefix):
        raise OSError(f"the worker runs the Python in {sys.prefix}, expected that in {prefix}")
    return job()


def _await_all(jobs: Collection[_RemoteJob[Any]], timeout_s: float) -> None:
    """Waits until all jobs have ended, or that time is over. Only a quarter of the time is left once one job
    has ended.
    """
    deadline_s = time.monotonic() + timeout_s
    waiting = {each.task: each for each in jobs}
    while waiting:
        done, _ = ray.wait(list(waiting), timeout=_left_s(deadline_s))
        if not done:
            return
        remote_job = waiting.pop(done[0])
        if remote_job.has_ended():
            deadline_s = min(deadline_s, time.monotonic() + timeout_s / 4)
        else:
            waiting[remote_job.task] = remote_job


def _left_s(deadline_s: float) -> float:
    return max(0.0, deadline_s - time.monotonic())


def _in_thread(job: Callable[[], ResultT]) -> Future[ResultT]:
    """Runs the job in a thread of its own, which a disk that hangs may hold for ever. Begins no job while another one
    hangs.
    """
    future: Future[ResultT] = Future()
    _hanging[:] = [each for each in _hanging if not each.done()]
    if _hanging:
        future.set_exception(TimeoutError())
        return future

    def run() -> None:
        try:
            future.set_result(job())
        except Exception as error:
            future.set_exception(error)

    threading.Thread(target=run, name="job-here", daemon=True).start()
    return future


def _reason(error: Exception) -> str:
    """Returns the job's error in one line; if Ray wrapped it in a traceback, the innermost error."""
    cause = getattr(error, "cause", None) or error
    lines = str(cause).strip().splitlines()
    return lines[-1] if lines else type(cause).__name__


def actor_environment(ray_node_ids: Collection[str]) -> dict[str, str]:
    """Returns the `runtime_env` of an actor that may be on any of these Ray nodes."""
    context = ray.get_runtime_context()
    own = context.get_node_id()
    if own in ray_node_ids and own not in _matching and _runs_here(own):
        _matching.add(own)
    # The environment of the whole process may bring another Python: by `uv run`, or with packages for the job.
    is_named = bool(context.runtime_env) or not _matching.issuperset(ray_node_ids)
    return {"py_executable": sys.executable} if is_named else {}


def _runs_here(own_ray_node_id: str) -> bool:
    """Whether the raylet of this process's Ray node starts workers with this process's Python. False if the raylet is
    not seen.
    """
    sockets = [each["RayletSocketName"] for each in ray.nodes() if each["NodeID"] == own_ray_node_id]
    workers = "--python_worker_command="
    return any(
        os.path.dirname(each.removeprefix(workers)) == os.path.dirname(sys.executable)
        for arguments in local_rays.raylets()
        if any(f"--raylet_socket_name={socket}" in arguments for socket in sockets)
        for each in arguments
        if each.startswith(workers)
    )
