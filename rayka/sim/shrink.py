"""Finds the fewest faults with which a failing run still fails in the same way, by leaving parts of them out.

A run with a subset of its faults is another run, whose random draws fall differently, so this is a search with a
budget, not a proof: what it gives has been seen to fail. (Zeller's ddmin.)
"""

from collections.abc import Callable, Sequence

import msgspec

from rayka.sim.run_options import SimOptions, with_faults
from rayka.sim.simulation import Outcome, Simulation
from rayka.sim.world.faults import draw_faults

RUNS_MAX = 80


class Shrunk(msgspec.Struct, frozen=True):
    """What is left: the faults that are needed, the run with them, and how many runs that took."""

    faults: tuple[int, ...]
    outcome: Outcome
    run_count: int


def shrink(options: SimOptions, failed: Outcome, *, on_run: Callable[[int], None] = lambda _: None) -> Shrunk:
    """The smallest failing subset found. `on_run` is called with how many faults were tried."""
    violation = failed.violation
    assert violation is not None, f"{failed} did not fail"
    search = _Search(options, violation.checker, on_run)
    needed = search.minimise([each.number for each in draw_faults(options)])
    return Shrunk(tuple(needed), search.outcome or failed, search.run_count)


class _Search:
    def __init__(self, options: SimOptions, checker: str, on_run: Callable[[int], None]) -> None:
        self._options = options
        self._checker = checker
        self._on_run = on_run
        self.run_count = 0
        self.outcome: Outcome | None = None

    def minimise(self, faults: list[int]) -> list[int]:
        if self._fails([]):
            return []
        parts = 2
        while len(faults) > 1 and self.run_count < RUNS_MAX:
            smaller = self._smaller(faults, parts)
            if smaller is not None:
                faults, parts = smaller, max(2, parts - 1)
            elif parts < len(faults):
                parts = min(len(faults), 2 * parts)
            else:
                break
        return faults

    def _smaller(self, faults: list[int], parts: int) -> list[int] | None:
        """One part alone, or all but one part, if that still fails."""
        size = -(-len(faults) // parts)
        chunks = [faults[begin : begin + size] for begin in range(0, len(faults), size)]
        without = [[each for each in faults if each not in chunk] for chunk in chunks]
        for candidate in (*chunks, *without):
            if len(candidate) < len(faults) and self._fails(candidate):
                return candidate
        return None

    def _fails(self, faults: Sequence[int]) -> bool:
        if self.run_count >= RUNS_MAX:
            return False
        self.run_count += 1
        self._on_run(len(faults))
        outcome = Simulation(with_faults(self._options, faults)).run()
        fails = outcome.violation is not None and outcome.violation.checker == self._checker
        if fails:
            self.outcome = outcome
        return fails
