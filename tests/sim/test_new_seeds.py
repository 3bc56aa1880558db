"""Seeds of this very code, for half a minute on two cores: every change of the code is searched at new
places, and what one run finds the next one of the same code finds, too.

A dozen seeds show that the code under test still runs under faults, and add up over many changes. The search that a
change of a core or a node needs is of hundreds of seeds, takes an hour, and is a command (`python -m rayka.sim`).
"""

import hashlib
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random

import pytest

import rayka
from rayka.sim.command import replay_command
from rayka.sim.results import run_seeds
from rayka.sim.simulation import Verdict

SECONDS = 20.0
BUDGET_S = 30.0
SEEDS_MIN = 12  # also where a busy machine needs longer for them


def code_hash() -> str:
    """Of all sources of the package."""
    package = Path(rayka.__file__).parent
    digest = hashlib.sha256()
    for path in sorted(package.rglob("*.py")):
        digest.update(str(path.relative_to(package)).encode() + path.read_bytes())
    return digest.hexdigest()


def new_seeds(until_s: float, at_least: int = 0) -> Iterator[int]:
    """Until that time, and so many at least."""
    random = Random(code_hash())
    begun = 0
    while begun < at_least or time.monotonic() < until_s:
        begun += 1
        yield random.randrange(1 << 31)


@pytest.mark.sim
@pytest.mark.timeout(900)
def test_new_seeds_find_nothing(record_property: Callable[[str, object], None]) -> None:
    begin_s = time.monotonic()
    outcomes = list(run_seeds(new_seeds(begin_s + BUDGET_S, SEEDS_MIN), {"seconds": SECONDS}, jobs=2))
    failed = [each for each in outcomes if each.verdict is not Verdict.OK]
    events, faults = sum(each.event_count for each in outcomes), sum(each.fault_count for each in outcomes)
    took_s = time.monotonic() - begin_s
    record_property("says", f"{len(outcomes)} new seeds, {faults} faults, {events} events, {took_s:.0f} s")
    assert failed == [], "\n".join(
        f"{each}\n  {replay_command(each.seed, {'seconds': SECONDS})}" for each in failed
    )
