"""Many runs: in several processes, with a file of what they came to, so that a long search can go on where it stopped.

The file has one JSON object a line. A seed that is in it is not run again; a line that was cut off counts as none.
"""

import subprocess
import sys
from collections.abc import Iterable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from pathlib import Path
from typing import Any

import msgspec

from rayka.sim.run_options import swarm
from rayka.sim.simulation import Outcome, Simulation


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
    """Adds one outcome, on a line of its own also when the one before was cut off."""
    with path.open("a+b") as file:
        size_bytes = file.seek(0, 2)
        file.seek(max(0, size_bytes - 1))
        separator = b"" if file.read(1) in (b"", b"\n") else b"\n"
        file.write(separator + msgspec.json.encode(outcome) + b"\n")


def run_seed(seed: int, chosen: dict[str, Any]) -> Outcome:
    """One run; what is `chosen` is not drawn from the seed."""
    return Simulation(swarm(seed, **chosen)).run()


def run_seeds(seeds: Iterable[int], chosen: dict[str, Any], jobs: int) -> Iterator[Outcome]:
    """The outcomes of all runs as they come, from so many processes. Ends early when the caller stops asking."""
    if jobs == 1:
        yield from (run_seed(seed, chosen) for seed in seeds)
        return
    workers = [_Worker(chosen) for _ in range(jobs)]
    try:
        with ThreadPoolExecutor(jobs) as pool:
            yield from _spread(iter(seeds), workers, pool)
    finally:
        for worker in workers:
            worker.close()


def _spread(seeds: Iterator[int], workers: list["_Worker"], pool: ThreadPoolExecutor) -> Iterator[Outcome]:
    """A worker that has ended a run gets the next seed."""
    running: dict[Future[Outcome], _Worker] = {}
    idle = list(workers)
    while True:
        running |= {pool.submit(worker.run, seed): worker for worker, seed in zip(idle, seeds, strict=False)}
        if not running:
            return
        done = wait(running, return_when=FIRST_COMPLETED).done
        idle = [running.pop(each) for each in done]
        yield from (each.result() for each in done)


class _Worker:
    """Another process that runs one seed after another (`rayka.sim.results`)."""

    def __init__(self, chosen: dict[str, Any]) -> None:
        options = msgspec.json.encode(chosen).decode()
        command = [sys.executable, "-m", "rayka.sim.results", options]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)

    def run(self, seed: int) -> Outcome:
        sent, received = self._process.stdin, self._process.stdout
        assert sent is not None
        assert received is not None
        sent.write(f"{seed}\n".encode())
        sent.flush()
        line = received.readline()
        if not line:
            raise RuntimeError(f"the process that ran seed {seed} has ended, with {self._process.wait()}")
        return msgspec.json.decode(line, type=Outcome)

    def close(self) -> None:
        self._process.kill()
        self._process.communicate()


# One of the processes of `rayka sim --jobs`: seeds come in, a line each, and outcomes go out, a line of JSON each.


def main() -> None:
    chosen = msgspec.json.decode(sys.argv[1])
    for line in sys.stdin:
        outcome = run_seed(int(line), chosen)
        sys.stdout.write(msgspec.json.encode(outcome).decode() + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
