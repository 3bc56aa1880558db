"""Many runs: in several processes, with a file of what they came to, so that a long search can go on where it stopped.

The file has one JSON object a line. A seed that is in it is not run again; a line that was cut off counts as none.
"""

from collections.abc import Iterable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from itertools import islice
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import msgspec

from rayka.sim.options import swarm
from rayka.sim.simulation import Outcome, Simulation

_RUNS_PER_PROCESS = 200


def read_results(path: Path) -> dict[int, Outcome]:
    """The outcomes in the file, by seed; none if there is no file."""
    found = {}
    for line in path.read_text().splitlines() if path.exists() else ():
        try:
            outcome = msgspec.json.decode(line, type=Outcome)
        except msgspec.MsgspecError:
            continue
        found[outcome.seed] = outcome
    return found


def append_result(path: Path, outcome: Outcome) -> None:
    """Adds one outcome."""
    with path.open("ab") as file:
        file.write(msgspec.json.encode(outcome) + b"\n")


def run_seed(seed: int, chosen: dict[str, Any]) -> Outcome:
    """One run; what is `chosen` is not drawn from the seed."""
    return Simulation(swarm(seed, **chosen)).run()


def run_seeds(seeds: Iterable[int], chosen: dict[str, Any], jobs: int) -> Iterator[Outcome]:
    """The outcomes of all runs as they come, from so many processes. Ends early when the caller stops asking."""
    if jobs == 1:
        yield from (run_seed(seed, chosen) for seed in seeds)
        return
    remaining = iter(seeds)
    pool = ProcessPoolExecutor(jobs, mp_context=get_context("spawn"), max_tasks_per_child=_RUNS_PER_PROCESS)
    running: set[Future[Outcome]] = set()
    try:
        while True:
            running |= {
                pool.submit(run_seed, seed, chosen) for seed in islice(remaining, 2 * jobs - len(running))
            }
            if not running:
                return
            done, running = wait(running, return_when=FIRST_COMPLETED)
            yield from (each.result() for each in done)
    finally:
        pool.shutdown(wait=True, cancel_futures=True)
