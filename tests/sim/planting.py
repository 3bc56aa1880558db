"""How a bug is planted in the real code, and searched for."""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from typing import Any

from rayka.shard.runtime import STEPS_PER_TURN
from rayka.sim.run_options import NO_LANES, SimOptions, swarm
from rayka.sim.simulation import Outcome, Simulation

SECONDS = 20.0
SHORT = 6.0  # where a bug shows soon, and a run without it, or until all is well, would only be longer
PLAIN: dict[str, Any] = {
    "topics": (),
    "combined": False,
    "steps_per_turn": STEPS_PER_TURN,
    "registers": 0,
    "lanes": NO_LANES,
    "members": 0,
    "comers": 0,
    "compacts": False,
    "expires": False,
    "compacts_offsets": False,
}
SEARCHED_MAX = 60


@dataclass(frozen=True)
class PlantedBug:
    """`plant` changes the code for as long as its context lasts; `chosen` are options that are not drawn; `simulate`
    makes a run of options.
    """

    name: str
    checker: str
    plant: Callable[[], AbstractContextManager[None]]
    seed: int
    chosen: dict[str, Any] = field(default_factory=dict)
    seconds: float = SECONDS
    simulate: Callable[[SimOptions], Outcome] = lambda options: Simulation(options).run()

    def run(self, seed: int) -> Outcome:
        """One run of a cluster with the bug."""
        with self.plant():
            return self.run_without(seed)

    def run_without(self, seed: int) -> Outcome:
        """The same run of the code as it is."""
        return self.simulate(self.options(seed))

    def options(self, seed: int) -> SimOptions:
        """Those of its run with that seed."""
        return swarm(seed, seconds=self.seconds, **{**PLAIN, **self.chosen})


@contextmanager
def replaced(owner: Any, name: str, make: Callable[[Any], Any]) -> Iterator[None]:
    """An attribute replaced by what `make` makes of it."""
    original = owner[name] if isinstance(owner, dict) else owner.__dict__[name]
    put = owner.__setitem__ if isinstance(owner, dict) else lambda key, value: setattr(owner, key, value)
    put(name, make(original))
    try:
        yield
    finally:
        put(name, original)


def planted(owner: Any, name: str, make: Callable[[Any], Any]) -> Callable[[], AbstractContextManager[None]]:
    return lambda: replaced(owner, name, make)


def always(value: Any) -> Callable[[Any], property]:
    return lambda _: property(lambda self: value)


def search(bug: PlantedBug, last_seed: int = SEARCHED_MAX) -> tuple[int, dict[str, int]]:
    """The first seed whose run the bug's checker ends, 0 if there is none, and which others ended runs before."""
    others: dict[str, int] = {}
    for seed in range(1, last_seed + 1):
        violation = bug.run(seed).violation
        if violation is not None and violation.checker == bug.checker:
            return seed, others
        if violation is not None:
            others[f"{violation.checker}: {violation.evidence[-160:]}"] = seed
    return 0, others
