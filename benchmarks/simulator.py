"""The simulator: how much simulated time one second of the processor's time gives, all checkers on.

A cluster of 3 voters and 3 brokers without faults, idle and under client operations; both phases of a run count. It is
measured in time of the processor, for it waits for nothing. The bars are what a night of some thousand seeds needs.
"""

import statistics
import time

from benchmarks.harness import Bar, Row
from rayka.sim.run_options import swarm
from rayka.sim.simulation import Simulation, Verdict

BAR = Bar(1.0)
IDLE_RATE = 50.0
BUSY_RATE = 15.0
OPERATIONS_PER_SECOND = 50.0
_SEED = 5


def run(*, quick: bool = False) -> list[Row]:
    seconds, rounds = (10.0, 1) if quick else (60.0, 5)
    return [
        _row("idle", 0.0, IDLE_RATE, seconds, rounds),
        _row(
            f"{OPERATIONS_PER_SECOND:g} operations a second",
            OPERATIONS_PER_SECOND,
            BUSY_RATE,
            seconds,
            rounds,
        ),
    ]


def _row(load: str, ops_per_second: float, wanted: float, seconds: float, rounds: int) -> Row:
    value = statistics.median(_rate(ops_per_second, seconds) for _ in range(rounds))
    return Row(
        what=f"simulated time, {load}",
        settings="3 voters, 3 brokers, all checkers",
        value=value,
        unit="s/s",
        limit=wanted,
        limit_what="what is wanted, of one processor",
        share=value / wanted,
        bar=BAR,
    )


def _rate(ops_per_second: float, seconds: float) -> float:
    """Simulated seconds for each second of this process on a processor."""
    options = swarm(
        _SEED, seconds=seconds, voters=3, brokers=3, ops_per_second=ops_per_second, faults_per_minute=0.0
    )
    simulation = Simulation(options)
    began = time.process_time()
    outcome = simulation.run()
    taken_s = time.process_time() - began
    assert outcome.verdict is Verdict.OK, outcome
    return outcome.simulated_ms / 1000 / taken_s
