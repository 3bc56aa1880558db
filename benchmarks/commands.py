"""The command line: how long a command on a running, idle Ray takes, and how much of that is ours.

Ray's part is what a process needs that does as little as can be done on a Ray: import it, connect, look up a named
actor, call it once, end. Its first call imports pydantic and pyarrow, because they are installed. The command and that
process run in turn; what the command takes longer is ours. Both find the bytecode of what they import, as after `pip
install`, also where the shell forbids Python to write it: without, a command compiles for a second what it imports.
"""

import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import rayka
from benchmarks.harness import Bar, Row
from benchmarks.limits import seconds
from benchmarks.stage import local_ray, running_cluster

TOTAL_MAX_S = 1.5
OURS_MAX_S = 0.3
_BAR = Bar(1.0, at_most=True)
_NAMESPACE = "commands"
_ACTOR = "noop"
_RunOne = Callable[[list[str]], str]
_RAYKA = (sys.executable, "-c", "from rayka.cli.main import main; main()")

_BARE = """
import json, logging, os, sys, time
began = time.perf_counter()
import ray
imported = time.perf_counter()
ray.init(address=sys.argv[1], logging_level=logging.ERROR, log_to_driver=False)
connected = time.perf_counter()
ray.get(ray.get_actor(sys.argv[2], sys.argv[3]).noop.remote(b""))
called = time.perf_counter()
print(json.dumps([imported - began, connected - imported, called - connected]), flush=True)
os._exit(0)
"""


def run(*, quick: bool = False) -> Iterator[Row]:
    rounds = 2 if quick else 9
    with tempfile.TemporaryDirectory(prefix="rayka-bytecode-") as bytecode:
        run_one = partial(_run, {"PYTHONDONTWRITEBYTECODE": "", "PYTHONPYCACHEPREFIX": bytecode})
        with local_ray() as directory:
            actor = _noop_actor()
            with running_cluster(directory) as cluster:
                yield from _topic_list(cluster, rounds, run_one)
            del actor
        yield _help(rounds, run_one)


def _noop_actor() -> Any:
    import ray

    class Noop:  # here, so that it travels by value and brings no import along
        async def noop(self, data: bytes) -> bytes:
            return data

    actor = ray.remote(Noop).options(name=_ACTOR, namespace=_NAMESPACE, num_cpus=0).remote()
    ray.get(actor.noop.remote(b""))
    return actor


def _topic_list(cluster: rayka.Cluster, rounds: int, run_one: _RunOne) -> list[Row]:
    command = [*_RAYKA, "topic", "list", "--cluster", cluster.name, "--address", cluster.ray_address]
    bare = [sys.executable, "-c", _BARE, cluster.ray_address, _ACTOR, _NAMESPACE]
    phases: list[list[float]] = []
    totals, ours = [], []
    run_one(command), run_one(bare)
    before_s = seconds(lambda: run_one(bare))
    for _ in range(rounds):
        totals.append(seconds(lambda: run_one(command)))
        after_s = seconds(lambda: phases.append(json.loads(run_one(bare))))
        ours.append(totals[-1] - (before_s + after_s) / 2)
        before_s = after_s
    importing, connecting, calling = (statistics.median(each) for each in zip(*phases, strict=True))
    return [
        _row("rayka topic list", statistics.median(totals), TOTAL_MAX_S),
        _row("of that ours", statistics.median(ours), OURS_MAX_S),
        Row(what="import ray", value=importing, unit="s"),
        Row(what="connect to Ray", value=connecting, unit="s"),
        Row(what="the first call to an actor", value=calling, unit="s"),
    ]


def _help(rounds: int, run_one: _RunOne) -> Row:
    command = [*_RAYKA, "--help"]
    run_one(command)
    taken = [seconds(lambda: run_one(command)) for _ in range(rounds)]
    return _row("rayka --help", statistics.median(taken), OURS_MAX_S)


def _row(what: str, value_s: float, max_s: float) -> Row:
    return Row(
        what=what,
        settings="1 broker, 1 controller, idle" if "help" not in what else "",
        value=value_s,
        unit="s",
        limit=max_s,
        limit_what="what we want",
        share=value_s / max_s,
        bar=_BAR,
    )


def _run(settings: Mapping[str, str], command: list[str]) -> str:
    return subprocess.run(
        command, check=True, capture_output=True, text=True, cwd=Path.home(), env={**os.environ, **settings}
    ).stdout
