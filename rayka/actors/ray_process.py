"""A Ray that outlives the command that starts it: started, remembered, and ended by its process id, which ends no other
Ray.

Invariants: the process leads a session of its own, so that Ctrl-C at the terminal does not reach it. The record names
the process by id and start time, so that a process which got the same id later is never signalled. One Ray is
remembered per home directory, in `~/.rayka/ray.json`.
"""

import fcntl
import logging
import math
import os
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import msgspec

from rayka.actors import local_rays, ray_internals
from rayka.actors.node_logs import keep_logs_of_ended_ray
from rayka.errors import UnavailableError

START_TIMEOUT_S = 90.0
# Ray itself gives its processes 30 s.
STOP_TIMEOUT_S = 45.0
_POLL_S = 0.05
_LEFT_TIMEOUT_S = 5.0
# Ray puts sockets below the directory, and the kernel limits their paths.
_TEMP_DIR_MAX = 42
# Fields of /proc/<pid>/stat: the session of the process, and its start time.
_SESSION, _START_TIME = 6, 22
_MEMORY_FILE = Path("~/.rayka/ray.json")
logger = logging.getLogger(__name__)
_RAY = (sys.executable, "-m", "ray.scripts.scripts")


class RayProcess(msgspec.Struct, frozen=True):
    """One Ray head started by rayka."""

    pid: int
    # The kernel's start time of the process, in clock ticks since boot.
    started: int
    address: str
    temp_dir: str

    def is_alive(self) -> bool:
        return _started(self.pid) == self.started

    def stop(self, timeout_s: float = STOP_TIMEOUT_S) -> None:
        """Ends this Ray with all its actors and removes its temporary directory. Does nothing if it has gone already.

        Raises UnavailableError when it does not end in time. It is not killed then, so that no process of it is
        orphaned.
        """
        with suppress(ProcessLookupError):
            watched = os.pidfd_open(self.pid)
            try:
                if self.is_alive():
                    os.kill(self.pid, signal.SIGTERM)
                    self._wait(watched, timeout_s)
            finally:
                os.close(watched)
        self.remove_traces()

    def remove_traces(self) -> None:
        """Removes the remains of a Ray that has ended: its temporary directory, and its address where `auto` looks."""
        local_rays.forget(self.address)
        shutil.rmtree(self.temp_dir, ignore_errors=True)

    def _wait(self, watched: int, timeout_s: float) -> None:
        poll = select.poll()
        poll.register(watched, select.POLLIN)
        if not poll.poll(timeout_s * 1000):
            raise UnavailableError(
                f"the Ray with process id {self.pid} did not end within {timeout_s:g} s after SIGTERM; "
                f"see {self.temp_dir}/session_latest/logs, then end it with: kill -KILL {self.pid}"
            )
        with suppress(ChildProcessError):
            os.waitpid(self.pid, os.WNOHANG)


def cpus(of_nodes: float) -> int:
    """Returns the CPUs that a Ray started by rayka declares: those of the machine, which the user's own tasks may take
    whole, plus those that the nodes of a cluster ask for.
    """
    return (os.cpu_count() or 1) + math.ceil(of_nodes)


def start(cpus_of_nodes: float = 0) -> RayProcess:
    """Starts a Ray head that outlives this process, and that `ray.init("auto")` and `ray status` find as the one
    started last. Takes about 5 s. Raises UnavailableError with Ray's own last words.
    """
    if os.environ.get("RAY_AUTH_MODE", "").lower() == "token":
        # `ray start` refuses to start with token authentication but no token; `ray.init` would make one.
        logging.getLogger("ray").setLevel(logging.ERROR)
        ray_internals.make_token()
    logger.info("no Ray runs on this machine: starting one")
    temp_dir = make_temp_dir()
    log = Path(temp_dir, "ray-start.log")
    command = [
        *_RAY,
        "start",
        "--head",
        "--block",
        "--port=0",
        f"--num-cpus={cpus(cpus_of_nodes)}",
        "--include-dashboard=false",
    ]
    with log.open("wb") as output:
        process = subprocess.Popen(
            [*command, "--disable-usage-stats", "--temp-dir", temp_dir],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    try:
        address = _await_address(process, Path(temp_dir, "ray_current_cluster"), log)
        local_rays.record(address)
        return RayProcess(process.pid, _started(process.pid), address, temp_dir)
    except BaseException:
        process.terminate()
        process.wait()
        _remove_after(process.pid, temp_dir)
        raise


def _remove_after(session: int, temp_dir: str) -> None:
    """Ends the processes of the session, which write into the directory as long as they live, then removes the
    directory.
    """
    for _ in range(int(_LEFT_TIMEOUT_S / _POLL_S)):
        left = [
            each
            for each in map(int, filter(str.isdigit, os.listdir("/proc")))
            if _stat(each, _SESSION) == session
        ]
        for each in left:
            with suppress(ProcessLookupError):
                os.kill(each, signal.SIGKILL)
        if not left:
            break
        time.sleep(_POLL_S)
    shutil.rmtree(temp_dir, ignore_errors=True)


def make_temp_dir() -> str:
    """Makes a directory with a path that is short enough for Ray's sockets."""
    directory = tempfile.gettempdir()
    fits = len(directory) + len("/rayka-12345678") <= _TEMP_DIR_MAX
    return tempfile.mkdtemp(prefix="rayka-", dir=directory if fits else "/tmp")


def remember(process: RayProcess) -> None:
    """Records the process for later commands."""
    path = _MEMORY_FILE.expanduser()
    path.parent.mkdir(parents=True, exist_ok=True)
    aside = path.with_suffix(f".{os.getpid()}.tmp")
    aside.write_bytes(msgspec.json.encode(process))
    aside.rename(path)


def remembered() -> RayProcess | None:
    """Returns the Ray that an earlier command left running; None if there is none, or it has ended."""
    process = _recorded()
    return process if process is not None and process.is_alive() else None


def forget() -> None:
    """Removes the record of the process; does not end it."""
    _MEMORY_FILE.expanduser().unlink(missing_ok=True)


def sweep() -> None:
    """Removes the remains of a recorded process that was killed, or whose `stop` was interrupted."""
    process = _recorded()
    if process is not None and not process.is_alive():
        try:
            keep_logs_of_ended_ray(process.temp_dir, str(_MEMORY_FILE.expanduser().parent))
        except OSError as error:
            logger.warning("the logs in %s were not kept: %s", process.temp_dir, error)
        process.remove_traces()
        forget()


@contextmanager
def locked() -> Iterator[None]:
    """Lets one process of this home directory at a time start a Ray that is remembered; others wait."""
    path = _MEMORY_FILE.expanduser().parent
    path.mkdir(parents=True, exist_ok=True)
    directory = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        # Held until the directory is closed.
        fcntl.flock(directory, fcntl.LOCK_EX)
        yield
    finally:
        os.close(directory)


def _recorded() -> RayProcess | None:
    try:
        return msgspec.json.decode(_MEMORY_FILE.expanduser().read_bytes(), type=RayProcess)
    except (FileNotFoundError, msgspec.MsgspecError):
        return None


def _await_address(process: subprocess.Popen[bytes], address_file: Path, log: Path) -> str:
    for _ in range(int(START_TIMEOUT_S / _POLL_S)):
        with suppress(subprocess.TimeoutExpired):
            process.wait(_POLL_S)
            raise UnavailableError(f"`ray start` ended with code {process.returncode}: {_last_words(log)}")
        if "Ray runtime started" in log.read_text(errors="replace"):
            # Ray says so shortly before it writes the file.
            with suppress(FileNotFoundError):
                return address_file.read_text().strip()
    raise UnavailableError(f"`ray start` was not ready within {START_TIMEOUT_S:g} s: {_last_words(log)}")


def _last_words(log: Path) -> str:
    lines = [line.strip() for line in log.read_text(errors="replace").splitlines() if line.strip()]
    return " | ".join(lines[-3:]) or "it said nothing"


def _started(pid: int) -> int:
    """Returns the start time of the process; -1 if there is no such process, or only its remains."""
    return _stat(pid, _START_TIME)


def _stat(pid: int, field: int) -> int:
    try:
        after_name = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return -1
    return -1 if after_name[0] == "Z" else int(after_name[field - 3])
