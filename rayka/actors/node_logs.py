"""What the process of an actor logs, and where: each line and the process's title name the actor.

Ray gives each process two files for its output, on the machine of its Ray node; the one of the standard error stream is
the log. They stay when the process ends, as long as that Ray runs, so a node's last words are found after its restart.
"""

import logging
import os
import time
from collections import deque
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from rayka.actors import ray_internals, ray_records
from rayka.actors.names import NAMESPACE
from rayka.actors.on_ray_node import live_ray_nodes, run_on
from rayka.errors import UnavailableError

_RAYS_OWN = (b":job_id:", b":actor_name:", b":task_name:")  # lines by which Ray knows whose output follows
_PROCESSES_MAX = 2  # the one that runs, and the one before it
_CHUNK_BYTES = 1 << 20
_POLL_S = 0.5
_NEXT_PROCESS_POLL_S = 2.0  # all actors that Ray knows are read for it


class LogFile(NamedTuple):
    """The log of one process, on the machine of a Ray node."""

    path: str
    ray_node_id: str
    worker_id: str


def begin_log(name: str) -> None:
    """To be called once, in the process of the actor of that name."""
    logging.basicConfig(level=logging.INFO, format=f"%(asctime)s %(levelname)s {name} %(name)s: %(message)s")
    ray_internals.keep_title(f"ray::{name}")


def own_log_path() -> str:
    """The file that this process's standard error stream goes to; empty where that is no file."""
    try:
        path = os.readlink("/proc/self/fd/2")
    except OSError:
        return ""
    return path if os.path.isfile(path) else ""


def find_logs(name: str) -> list[LogFile]:
    """The logs of the last processes of the actor of that name, the newest last, on machines that Ray reaches.

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


def last_lines(files: Sequence[LogFile], count: int) -> tuple[list[tuple[LogFile, str]], int]:
    """The last lines of these logs, read as one, each with its file; and how far the newest was read."""
    lines: list[tuple[LogFile, str]] = []
    position = 0
    for each in files:
        text, position = run_on(each.ray_node_id, _tail, each.path, count)
        lines += [(each, line) for line in text]
    return (lines[-count:] if count else []), position


def follow(name: str, file: LogFile, position: int) -> Iterator[str]:
    """The lines that are written from now on, for ever, by this process and those that come after it.

    Between two looks it sleeps in the caller's thread.
    """
    rest = b""
    while True:
        has_ended = ray_records.has_left(file.worker_id)  # first: then what it wrote last is in what is read
        data, position = run_on(file.ray_node_id, _read_from, file.path, position)
        *lines, rest = (rest + data).split(b"\n")
        if has_ended and rest and not data:
            lines, rest = [rest], b""
        yield from (each.decode(errors="replace") for each in lines if not each.startswith(_RAYS_OWN))
        if data:
            continue
        successor = _after(file, find_logs(name)) if has_ended else None
        if successor is not None:
            file, position = successor, 0
        else:
            time.sleep(_NEXT_PROCESS_POLL_S if has_ended else _POLL_S)


def _after(file: LogFile, files: Sequence[LogFile]) -> LogFile | None:
    """The log of the process that came next, or of the oldest that is remembered; None while there is none."""
    later = files[files.index(file) + 1 :] if file in files else files
    return next(iter(later), None)


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
