"""What rayka costs while it does nothing: to start, to keep running, and to ask for help."""

import subprocess
import sys
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import psutil

import rayka
from benchmarks.harness import Row, compare
from benchmarks.limits import NoopActor, seconds
from benchmarks.stage import local_ray, pid_of, running_cluster

NODES = 2  # one controller, one broker


def run(*, quick: bool = False) -> Iterator[Row]:
    rounds = 2 if quick else 5
    with local_ray() as directory:
        yield _starts(directory, rounds)
        with running_cluster(directory) as cluster:
            yield from _idle(cluster, seconds_long=3 if quick else 20)
    yield _help(rounds)


def _starts(directory: Path, rounds: int) -> Row:
    measured = compare(partial(_cluster_start_s, directory), _bare_start_s, rounds=rounds)
    settings, limit = "a new cluster: 1 controller, 1 broker", f"{NODES} bare actors, one after the other"
    return measured.row("Cluster.start", settings, "s", limit, note="formats, elects, registers")


def _cluster_start_s(directory: Path) -> float:
    started = time.perf_counter()
    cluster = rayka.Cluster.start(name="start", data_dir=str(directory / "start"))
    taken_s = time.perf_counter() - started
    cluster.stop(delete_data=True)
    return taken_s


def _bare_start_s() -> float:
    actors = [NoopActor() for _ in range(NODES)]
    for actor in actors:
        actor.close()
    return sum(actor.start_s for actor in actors)


def _idle(cluster: rayka.Cluster, *, seconds_long: float) -> list[Row]:
    process, bare = psutil.Process(pid_of(cluster)), NoopActor()
    rss = Row(
        what="RSS of an idle broker",
        settings="no topics",
        value=process.memory_info().rss,
        unit="B",
        limit=psutil.Process(bare.pid).memory_info().rss,
        limit_what="a bare actor",
        share=process.memory_info().rss / psutil.Process(bare.pid).memory_info().rss,
    )
    process.cpu_percent()
    time.sleep(seconds_long)
    cpu = Row(
        what="CPU of an idle broker",
        settings=f"{seconds_long:g} s",
        value=process.cpu_percent(),
        unit="% of a core",
    )
    bare.close()
    return [rss, cpu]


def _help(rounds: int) -> Row:
    rayka_help = partial(_command_s, str(Path(sys.executable).with_name("rayka")), "--help")
    python = partial(_command_s, sys.executable, "-c", "pass")
    note = "the program of the installed package, from start to end"
    measured = compare(rayka_help, python, rounds=rounds * 2)
    return measured.row("rayka --help", "a new process", "s", "python -c pass", note=note)


def _command_s(*command: str) -> float:
    return seconds(lambda: subprocess.run(command, capture_output=True, check=True))
