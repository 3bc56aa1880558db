"""The logs of actors' processes: where they are, and how they are read and kept. Each line and the process's title name
the actor.

Ray gives each process two files for its output, on the machine of its Ray node. The file of the standard error stream
is the log. It stays when the process ends, as long as that Ray runs, so a node's last lines are found after its
restart.

At the end of a cluster, or of a start that failed, the logs of the last runs are copied to `logs` beside the nodes'
directories, because the Ray of `rayka start` ends with its files. Nodes do not write them there in the first place: a
disk that hangs would hold up the node at its next message.
"""

import logging
import os
import re
import time
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

import ray

from rayka.actors import ray_internals, ray_records
from rayka.actors.names import NAMESPACE
from rayka.actors.ray_nodes import live_ray_nodes, run_on
from rayka.errors import RaykaError, UnavailableError

# Lines by which Ray knows whose output follows.
_RAYS_OWN = (b":job_id:", b":actor_name:", b":task_name:")
# The process that runs, and the one before it.
_PROCESSES_MAX = 2
_CHUNK_BYTES = 1 << 20
_POLL_S = 0.5
# Longer, because all actors that Ray knows are read for it.
_NEXT_PROCESS_POLL_S = 2.0
# Bounds of the kept logs: runs of each node, bytes of each process.
_KEPT_RUNS_MAX = 5
_KEPT_BYTES_MAX = 16 << 20
# The actor's name in a line of a node or supervisor, as `begin_log` puts it behind time and level.
_OWNER = re.compile(
    rb"^\S+ \S+ [A-Z]+ (\S+/(?:(?:broker|controller|coordinator)-\d+|supervisor)) rayka\.", re.MULTILINE
)
_logger = logging.getLogger(__name__)


class LogFile(NamedTuple):
    """The log of one process, on the machine of a Ray node."""

    path: str
    ray_node_id: str
    worker_id: str


def begin_log(name: str) -> None:
    """Sets up the log of this process, for the actor of that name. Called once."""
    logging.basicConfig(level=logging.INFO, format=f"%(asctime)s %(levelname)s {name} %(name)s: %(message)s")
    ray_internals.keep_title(f"ray::{name}")


def own_log_path() -> str:
    """Returns the file of this process's standard error stream; empty if the stream is no file."""
    try:
        path = os.readlink("/proc/self/fd/2")
    except OSError:
        return ""
    return path if os.path.isfile(path) else ""


def find_logs(name: str) -> list[LogFile]:
    """Returns the logs of the actor's last processes, the newest last, on machines that Ray reaches.

    Raises UnavailableError when none is found.
    """
    place = ray_records.last_places(NAMESPACE, [name]).get(name)
    directories, live = ray_records.log_directories(), live_ray_nodes()
    processes = place.processes[-_PROCESSES_MAX:] if place is not None else ()
    found = []
    for each in processes:
        if each.ray_node_id in live:
            paths = run_on(each.ray_node_id, _paths_of, directories[each.ray_node_id], each.worker_id)
            found += [LogFile(path, each.ray_node_id, each.worker_id) for path in paths]
    if not found:
        where = ", ".join(
            directories[each.ray_node_id] for each in processes if each.ray_node_id in directories
        )
        raise UnavailableError(
            f"{name} has no log on a machine that Ray reaches" + (f"; it was in {where}" if where else "")
        )
    return found


def keep_logs(directories: Mapping[str, str]) -> None:
    """Copies the logs of the last processes of these actors to `logs` on their machines, beside the directory of each
    actor. Removes the oldest runs beyond five. Logs a failure and does not raise it, so that the cluster ends all the
    same.
    """
    try:
        _keep_logs(directories)
    except (RaykaError, ray.exceptions.RayError, OSError) as error:
        _logger.warning("the logs of the nodes were not kept: %s", error)


def _keep_logs(directories: Mapping[str, str]) -> None:
    places = ray_records.last_places(NAMESPACE, directories)
    sources, live = ray_records.log_directories(), live_ray_nodes()
    # By Ray node and target file, the workers whose logs the file gets.
    wanted: dict[str, dict[str, list[str]]] = {}
    for name, directory in directories.items():
        target = os.path.join(kept_logs(directory), name.rpartition("/")[2])
        for each in places[name].processes[-_PROCESSES_MAX:] if name in places else ():
            if each.ray_node_id in live:
                wanted.setdefault(each.ray_node_id, {}).setdefault(target, []).append(each.worker_id)
    for ray_node_id, targets in wanted.items():
        try:
            run_on(ray_node_id, _keep, sources[ray_node_id], targets)
        except (RaykaError, OSError) as error:
            _logger.warning("the logs of Ray node %s were not kept: %s", ray_node_id, error)
    if wanted:
        kept = dict.fromkeys(os.path.dirname(target) for targets in wanted.values() for target in targets)
        _logger.info("kept the logs of the nodes in %s", ", ".join(kept))


def kept_logs(directory: str) -> str:
    """Returns the directory with the logs of earlier runs of the node that has this data directory."""
    return os.path.join(os.path.dirname(directory), "logs")


def remove_kept_logs(directory: str) -> None:
    """Removes the kept logs of the node whose data directory is being removed. Runs on its machine."""
    kept = Path(kept_logs(directory))
    for each in kept.glob(f"{os.path.basename(directory)}-*.log"):
        each.unlink(missing_ok=True)
    # The supervisor has no data directory: its logs go with those of the last node.
    if all(each.name.startswith("supervisor-") for each in kept.glob("*")):
        for each in kept.glob("*"):
            each.unlink(missing_ok=True)
    # The directory may be missing, or have logs of other nodes.
    with suppress(OSError):
        kept.rmdir()


def _keep(source: str, targets: Mapping[str, Sequence[str]]) -> None:
    """Copies the logs of the workers of each target file into it. Runs on their machine."""
    for target, worker_ids in targets.items():
        _keep_files([path for each in worker_ids for path in _paths_of(source, each)], target)


def keep_logs_of_ended_ray(temp_dir: str, root: str) -> None:
    """Copies the logs of the last node processes of a Ray that was killed on this machine to `<root>/<cluster>/logs`,
    because their data directories are no longer known. The caller removes `temp_dir` afterwards.
    """
    found: dict[str, list[str]] = {}
    logs = Path(temp_dir).glob("session_[0-9]*/logs/worker-*.err")
    for path in sorted(logs, key=os.path.getmtime):
        with path.open("rb") as file:
            matched = _OWNER.search(file.read(_CHUNK_BYTES))
        if matched is not None:
            found.setdefault(matched[1].decode(), []).append(str(path))
    for name, paths in found.items():
        cluster_name, _, node = name.rpartition("/")
        _keep_files(paths[-_PROCESSES_MAX:], os.path.join(root, cluster_name, "logs", node))
    if found:
        _logger.info("kept the logs of %s below %s", ", ".join(found), root)


def _keep_files(paths: Sequence[str], target: str) -> None:
    if not paths:
        return
    os.makedirs(os.path.dirname(target), exist_ok=True)
    stamp = time.strftime("%Y-%m-%dT%H-%M-%S", time.gmtime())
    with open(f"{target}-{stamp}.log", "ab") as kept:
        for path in paths:
            with open(path, "rb") as file:
                file.seek(max(0, os.path.getsize(path) - _KEPT_BYTES_MAX))
                kept.writelines(line for line in file if not line.startswith(_RAYS_OWN))
    directory, name = os.path.split(target)
    for each in sorted(Path(directory).glob(f"{name}-[0-9]*-*.log"))[:-_KEPT_RUNS_MAX]:
        each.unlink(missing_ok=True)


def last_lines(files: Sequence[LogFile], count: int) -> tuple[list[tuple[LogFile, str]], int]:
    """Returns the last lines of these logs, read as one, each with its file; and the position up to which the newest
    was read.
    """
    lines: list[tuple[LogFile, str]] = []
    position = 0
    for each in files:
        text, position = run_on(each.ray_node_id, _tail, each.path, count)
        lines += [(each, line) for line in text]
    return (lines[-count:] if count else []), position


def follow(name: str, file: LogFile, position: int) -> Iterator[str]:
    """Yields the lines that are written from now on, for ever, by this process and its successors. Sleeps in the
    caller's thread between two looks.
    """
    rest = b""
    while True:
        # Asked before reading: so the last lines of a process that has ended are read.
        has_ended = ray_records.has_left(file.worker_id)
        data, position = run_on(file.ray_node_id, _read_from, file.path, position)
        *lines, rest = (rest + data).split(b"\n")
        if has_ended and rest and not data:
            lines, rest = [rest], b""
        yield from (each.decode(errors="replace") for each in lines if not each.startswith(_RAYS_OWN))
        if data:
            continue
        if has_ended:
            found = find_logs(name)
            # The process that came next, or the oldest that is remembered.
            later = found[found.index(file) + 1 :] if file in found else found
            if later:
                file, position = later[0], 0
                continue
        time.sleep(_NEXT_PROCESS_POLL_S if has_ended else _POLL_S)


def _paths_of(directory: str, worker_id: str) -> list[str]:
    return sorted(str(each) for each in Path(directory).glob(f"worker-{worker_id}-*.err"))


def _tail(path: str, count: int) -> tuple[list[str], int]:
    with open(path, "rb") as file:
        last = deque((line for line in file if not line.startswith(_RAYS_OWN)), maxlen=count)
        return [each.decode(errors="replace").rstrip("\n") for each in last], file.tell()


def _read_from(path: str, position: int) -> tuple[bytes, int]:
    with open(path, "rb") as file:
        file.seek(position)
        data = file.read(_CHUNK_BYTES)
    return data, position + len(data)
