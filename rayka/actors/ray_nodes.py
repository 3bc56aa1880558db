"""Small jobs on the machine of a Ray node, beside the actors: looking at directories, formatting, removing, waiting
for ends.

On the caller's own Ray node they run in the caller: a task there would cost the start of a process and see the same
files. Not every Ray node can run them: another one's image may lack rayka, or it has no worker to spare. They run with
this process's interpreter, and with whatever environment Ray gives its workers.
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
_CLOCKS_DIFFER_S = 60.0  # at most, between machines
# `ray start --labels rayka.io/host=NAME`: which machine, and so which disk, this is.
HOST_LABEL = "rayka.io/host"
P = ParamSpec("P")
ResultT = TypeVar("ResultT")
_hanging: list[Future[Any]] = []  # jobs of this process that have outlasted their time


@dataclass(frozen=True, slots=True)
class Answers(Generic[ResultT]):
    """What Ray nodes made of a job: results, and why there is none."""

    results: dict[str, ResultT]
    failures: dict[str, str]

    def add(self, ray_node_id: str, answer: Callable[[], ResultT]) -> bool:
        """Whether the Ray node ran the job; what it raised is why it did not."""
        try:
            self.results[ray_node_id] = answer()
        except (TimeoutError, ray.exceptions.GetTimeoutError):
            self.failures[ray_node_id] = "did not answer in time: it has no free worker, or its disk hangs"
        except Exception as error:  # whatever the image of a foreign Ray node makes of the job
            self.failures[ray_node_id] = _reason(error)
        return ray_node_id in self.results


def own_ray_node_id() -> str:
    """The Ray node that this process belongs to."""
    node_id: str = ray.get_runtime_context().get_node_id()
    return node_id


def live_ray_nodes() -> dict[str, dict[str, float]]:
    """The resources of all live Ray nodes by node id; this process's own first, then by id."""
    own = own_ray_node_id()
    alive = {node["NodeID"]: node["Resources"] for node in ray.nodes() if node["Alive"]}
    return {node_id: alive[node_id] for node_id in sorted(alive, key=lambda each: (each != own, each))}


def open_ray_nodes() -> dict[str, dict[str, float]]:
    """Those of them that Ray does not drain: where a node may be made."""
    draining = draining_ray_nodes()
    return {each: resources for each, resources in live_ray_nodes().items() if each not in draining}


def host_label(ray_node_id: str) -> str | None:
    """The name that the Ray node's label gives its machine, if no other live Ray node has the same one."""
    labels = {node["NodeID"]: node["Labels"].get(HOST_LABEL) for node in ray.nodes() if node["Alive"]}
    own = labels.get(ray_node_id)
    return own if own is not None and list(labels.values()).count(own) == 1 else None


def run_on(ray_node_id: str, job: Callable[P, ResultT], *args: P.args, **kwargs: P.kwargs) -> ResultT:
    """The job's result. Raises what the job raises of RaykaError, and UnavailableError when the Ray node does not run
    it.
    """
    if ray_node_id == own_ray_node_id():
        return job(*args, **kwargs)
    errand = _Errand(ray_node_id, partial(job, *args, **kwargs), JOB_TIMEOUT_S)
    _await_all([errand], JOB_TIMEOUT_S)
    try:
        return errand.result()
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
) -> Answers[ResultT]:
    """The job on all of these at once: one that does not run it holds up no other.

    All have that time together. Once another machine has answered, the rest have a quarter of it: a start that is slow
    on every machine is over by then.
    """
    own, deadline_s = own_ray_node_id(), time.monotonic() + timeout_s
    run = partial(job, *args, **kwargs)
    errands = {each: _Errand(each, run, timeout_s) for each in ray_node_ids if each != own}
    here = _in_thread(run) if own in ray_node_ids else None
    _await_all(errands.values(), timeout_s)
    answers: Answers[ResultT] = Answers({}, {})
    if (
        here is not None
        and not answers.add(own, partial(here.result, _left_s(deadline_s)))
        and not here.done()
    ):
        _hanging.append(here)
    for ray_node_id, errand in errands.items():
        answers.add(ray_node_id, errand.result)
    return answers


class _Errand(Generic[ResultT]):
    """A job on its way to another Ray node.

    It goes to a worker as Ray starts one there by itself. One whose interpreter was named costs twice as much to start,
    since Ray starts another process first to read the name, and Ray has none in stock. So the interpreter is named only
    when the worker has turned out to run another one than this process, or one without rayka.

    A job for which there is no worker in time does not begin when there is one. It is not cancelled: a task that ends
    at that moment ends the caller's process (Ray 2.60: "Tried to complete task that was not pending").
    """

    def __init__(self, ray_node_id: str, job: Callable[[], ResultT], timeout_s: float) -> None:
        self._ray_node_id = ray_node_id
        self._job = job
        self._not_after_s = time.time() + timeout_s + _CLOCKS_DIFFER_S
        # A task inherits what is named for this process: `uv run` may do so, and an actor's process has its own named.
        self._is_named = bool(ray.get_runtime_context().runtime_env.get("py_executable"))
        self.task = self._send()

    def has_ended(self) -> bool:
        """Of a task that is done: False where the job is sent once more, as another task."""
        try:
            ray.get(self.task, timeout=0)
            if not self._is_named:
                remember_match(self._ray_node_id)
        except ray.exceptions.RayTaskError as error:
            if not self._is_named and not isinstance(error.cause, RaykaError):
                self._is_named = True
                self.task = self._send()
                return False
        except ray.exceptions.RayError:
            pass  # it is the job's end, which `result` raises
        return True

    def result(self) -> ResultT:
        """What the job gave. Raises what Ray raises, a GetTimeoutError too: nothing is waited for."""
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
    """Runs in the worker; `prefix` is where the interpreter is that it has to have, if that matters. By the wall clock
    in seconds it begins no later than `not_after_s`.
    """
    if time.time() > not_after_s:
        raise TimeoutError("the job's time was over before there was a worker for it")
    if prefix not in (None, sys.prefix):
        raise OSError(f"the worker runs the Python in {sys.prefix}, expected that in {prefix}")
    return job()


def _await_all(errands: Collection[_Errand[Any]], timeout_s: float) -> None:
    """Waits until all have ended, or that time is over; it is a quarter once one of them has ended."""
    deadline_s = time.monotonic() + timeout_s
    waiting = {each.task: each for each in errands}
    while waiting:
        done, _ = ray.wait(list(waiting), timeout=_left_s(deadline_s))
        if not done:
            return
        errand = waiting.pop(done[0])
        if errand.has_ended():
            deadline_s = min(deadline_s, time.monotonic() + timeout_s / 4)
        else:
            waiting[errand.task] = errand


def _left_s(deadline_s: float) -> float:
    return max(0.0, deadline_s - time.monotonic())


def _in_thread(job: Callable[[], ResultT]) -> Future[ResultT]:
    """The job in a thread of its own, which a disk that hangs may hold for ever. While one hangs no other is begun."""
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
    """What made the job fail, in one line: where Ray wraps it into its own words and a trace, the last of them."""
    cause = getattr(error, "cause", None) or error
    lines = str(cause).strip().splitlines()
    return lines[-1] if lines else type(cause).__name__


# Which Ray nodes start their workers with this process's Python, so that it need not be named to Ray for an actor.
#
# An actor whose interpreter is named gets a process of its own, and Ray starts another one first to read the name. An
# actor without a name gets a process that Ray has in stock. A raylet keeps its Python as long as it lives, so an actor
# that is pinned to one by its id is restarted with the same. A Python that is not known to be this process's is named.


_matching = set[str]()  # Ray nodes


def remember_match(ray_node_id: str) -> None:
    """A worker there, as Ray starts them by itself, has run with this process's Python."""
    _matching.add(ray_node_id)


def environment(ray_node_ids: Collection[str]) -> dict[str, str]:
    """The `runtime_env` of an actor that may be on any of these Ray nodes."""
    context = ray.get_runtime_context()
    own = context.get_node_id()
    if own in ray_node_ids and own not in _matching and _runs_here(own):
        _matching.add(own)
    # What is set for the whole process may bring a Python of its own: `uv run`, or packages for the job.
    is_named = bool(context.runtime_env) or not _matching.issuperset(ray_node_ids)
    return {"py_executable": sys.executable} if is_named else {}


def _runs_here(own_ray_node_id: str) -> bool:
    """Whether the raylet of this process's Ray node starts workers with it; False where that raylet is not seen."""
    sockets = [each["RayletSocketName"] for each in ray.nodes() if each["NodeID"] == own_ray_node_id]
    workers = "--python_worker_command="
    return any(
        os.path.dirname(each.removeprefix(workers)) == os.path.dirname(sys.executable)
        for arguments in local_rays.raylets()
        if any(f"--raylet_socket_name={socket}" in arguments for socket in sockets)
        for each in arguments
        if each.startswith(workers)
    )
