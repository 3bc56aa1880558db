"""`rayka sim`: runs seeds, shows what came of them, and shrinks what failed to the command that replays it.

Exit codes: 0 all well, 1 a crash, 2 a safety violation, 3 a liveness violation; of several runs the first failure's.
"""

import math
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import click
import msgspec

from rayka.sim.results import append_result, read_results, run_seeds
from rayka.sim.run_options import SimOptions, swarm, with_faults
from rayka.sim.simulation import Outcome, Simulation, Verdict
from rayka.sim.world.faults import draw_faults

# Finds the fewest faults with which a failing run still fails in the same way, by leaving parts of them out.
#
# A run with a subset of its faults is another run, whose random draws fall differently, so this is a search with a
# budget, not a proof: what it gives has been seen to fail. (Zeller's ddmin.)


RUNS_MAX = 80


class Shrunk(msgspec.Struct, frozen=True):
    """The result of shrinking: the faults that are needed, the run with them, and the number of runs."""

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


class _Amount(click.FloatRange):
    """A number within bounds, which "nan" is not, whatever it is compared with."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        number = super().convert(value, param, ctx)
        if math.isnan(number):
            self.fail(f"expected a number, found {value!r}", param, ctx)
        return number


def _numbers(_: click.Context, __: click.Parameter, value: str | None) -> tuple[int, ...] | None:
    if value is None:
        return None
    try:
        return tuple(int(each) for each in value.split(",") if each.strip())
    except ValueError:
        raise click.BadParameter(f"expected numbers such as 3,7,12, found {value!r}") from None


def _range(_: click.Context, __: click.Parameter, value: str | None) -> range | None:
    if value is None:
        return None
    first, dash, last = value.partition("-")
    if not (dash and first.isdigit() and last.isdigit() and int(first) <= int(last)):
        raise click.BadParameter(f"expected first and last, such as 1-3000, found {value!r}")
    return range(int(first), int(last) + 1)


@click.command("sim")
@click.option("--seed", type=int, help="The run to make; everything in it follows from this number.")
@click.option("--seeds", callback=_range, metavar="A-B", help="Many runs.")
@click.option(
    "--seconds", type=_Amount(1, 100_000), default=60.0, show_default=True, help="Simulated time with faults."
)
@click.option("--voters", type=click.IntRange(1, 9), help="Controllers; drawn from the seed otherwise.")
@click.option("--brokers", type=click.IntRange(1, 9), help="Brokers; drawn from the seed otherwise.")
@click.option(
    "--coordinators", type=click.IntRange(0, 9), help="Coordinators; drawn from the seed otherwise."
)
@click.option(
    "--comers", type=click.IntRange(0, 6), help="Brokers that come, while others go; drawn otherwise."
)
@click.option(
    "--members", type=click.IntRange(0, 9), help="Of a group that reads all topics; drawn otherwise."
)
@click.option("--compacts", is_flag=True, default=None, help="Compacted topics; drawn otherwise.")
@click.option(
    "--expires",
    is_flag=True,
    default=None,
    help="Topics that lose what is old; drawn otherwise.",
)
@click.option(
    "--ops", "ops_per_second", type=_Amount(0, 10_000), help="Client operations a simulated second."
)
@click.option(
    "--faults", "faults_per_minute", type=_Amount(0, 10_000), help="Faults a simulated minute; 0 for none."
)
@click.option("--only-faults", callback=_numbers, metavar="N,N", help="Only these of the run's faults.")
@click.option("--trace", is_flag=True, help="Print a line for each event.")
@click.option("--no-checks", is_flag=True, help="Without checkers, to see what they cost.")
@click.option("--no-shrink", is_flag=True, help="Leave a failing run as it is.")
@click.option("--jobs", type=click.IntRange(1), default=1, show_default=True, help="Processes for --seeds.")
@click.option(
    "--results",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Where outcomes are kept; goes on from there.",
)
def sim(
    seed: int | None, seeds: range | None, seconds: float, trace: bool, no_checks: bool, no_shrink: bool,
    jobs: int, results: Path | None, **chosen: Any,
) -> int:  # fmt: skip
    """Run a cluster on virtual time under faults, and check what must never break."""
    if (seed is None) == (seeds is None):
        raise click.UsageError("expected one of --seed and --seeds")
    chosen = {name: value for name, value in chosen.items() if value is not None} | {"seconds": seconds}
    if seeds is not None:
        return _run_many(seeds, chosen, jobs, results)
    assert seed is not None
    options = swarm(seed, checks=not no_checks, **chosen)
    return _run_one(options, chosen, is_traced=trace, shrinks=not no_shrink)


# ---- One run -------------------------------------------------------------------------------------------------------


def _run_one(options: SimOptions, chosen: dict[str, Any], *, is_traced: bool, shrinks: bool) -> int:
    begin_s = time.monotonic()
    simulation = Simulation(options, write=click.echo if is_traced else None)
    outcome = simulation.run()
    elapsed_s = time.monotonic() - begin_s
    if not is_traced:
        _describe(options, outcome, elapsed_s)
    if outcome.violation is not None:
        click.echo(f"FAILED  {outcome.violation}", err=True)
        if not is_traced:
            for line in list(simulation.trace.last)[-25:]:
                click.echo(line, err=True)
        if shrinks:
            _report_shrunk(shrink_and_show(options, outcome), chosen)
    click.echo(f"trace hash {outcome.trace_hash}")
    return outcome.verdict


def _describe(options: SimOptions, outcome: Outcome, elapsed_s: float) -> None:
    operations = ", ".join(f"{count} {name}" for name, count in outcome.operations.items() if count)
    simulated_s = outcome.simulated_ms / 1000
    nodes = f"{options.voters} voters, {options.brokers} brokers{', combined' * options.combined}"
    nodes += f", {options.comers} that come" * bool(options.comers)
    nodes += f", {options.coordinators} coordinators" * bool(options.coordinators)
    members = f", {options.members} members of a group" * bool(options.members)
    members += ", whose offsets are compacted" * bool(options.members and options.compacts_offsets)
    click.echo(f"seed {options.seed}: {nodes}, {options.clients} clients{members}")
    click.echo(f"faults      {outcome.fault_count}")
    click.echo(f"operations  {operations or 'none'}")
    if options.topics:
        loses = " and ".join(["compacted"] * options.compacts + ["expiring"] * options.expires)
        click.echo(f"topics      {len(options.topics)}{', ' * bool(loses)}{loses}")
        sends = ", ".join(f"{count} {name}" for name, count in outcome.sends.items() if count)
        click.echo(f"records     {sends or 'none'}; {outcome.polled_count} read")
        click.echo(f"losses      in {outcome.loss_count} partitions, all of them legal")
    if options.lanes.share:
        lanes = ", ".join(f"{count} {name}" for name, count in outcome.lanes.items())
        click.echo(f"lanes       {lanes}")
    click.echo(f"committed   up to offset {outcome.committed_end}")
    click.echo(f"events      {outcome.event_count}")
    click.echo(
        f"time        {simulated_s:.1f} s simulated in {elapsed_s:.1f} s, {simulated_s / elapsed_s:.0f} a second"
    )


def shrink_and_show(options: SimOptions, outcome: Outcome) -> Shrunk:
    """Shrinks a failing run, with a bar on a terminal."""
    with click.progressbar(length=80, label="shrinking", file=sys.stderr, show_eta=False) as bar:
        return shrink(options, outcome, on_run=lambda _: bar.update(1))


def _report_shrunk(shrunk: Shrunk, chosen: dict[str, Any]) -> None:
    count = len(shrunk.faults)
    click.echo(f"it fails with {count} faults; replay it with", err=True)
    click.echo(f"  {replay_command(shrunk.outcome.seed, {**chosen, 'only_faults': shrunk.faults})}", err=True)


def replay_command(seed: int, chosen: dict[str, Any]) -> str:
    """The command line of a run."""
    options = {"ops_per_second": "ops", "faults_per_minute": "faults"}
    words = [f"rayka sim --seed {seed}"]
    for name, value in chosen.items():
        option = f"--{options.get(name, name).replace('_', '-')}"
        text = ",".join(map(str, value)) if isinstance(value, tuple) else f"{value:g}"
        words.append(option if value is True else f"{option} {text or ','}")
    return " ".join(words)


# ---- Many runs -----------------------------------------------------------------------------------------------------


def _run_many(seeds: range, chosen: dict[str, Any], jobs: int, results: Path | None) -> int:
    known = read_results(results) if results is not None else {}
    outcomes = [known[seed] for seed in seeds if seed in known]
    left = [seed for seed in seeds if seed not in known]
    with click.progressbar(length=len(seeds), label="seeds", file=sys.stderr) as bar:
        bar.update(len(outcomes))
        for outcome in run_seeds(left, chosen, jobs):
            outcomes.append(outcome)
            if results is not None:
                append_result(results, outcome)
            if outcome.violation is not None:
                click.echo(f"\n{outcome}\n  {replay_command(outcome.seed, chosen)}", err=True)
            bar.update(1)
    return _summarise(outcomes)


def _summarise(outcomes: list[Outcome]) -> int:
    failed = sorted((each for each in outcomes if each.verdict is not Verdict.OK), key=lambda each: each.seed)
    click.echo(f"seeds       {len(outcomes)}, {len(failed)} failed")
    click.echo(f"faults      {sum(each.fault_count for each in outcomes)}")
    click.echo(f"events      {sum(each.event_count for each in outcomes)}")
    click.echo(f"simulated   {sum(each.simulated_ms for each in outcomes) / 3_600_000:.2f} hours")
    for each in failed:
        checker = each.violation.checker if each.violation is not None else ""
        click.echo(f"failed      {each.seed} {checker}")
    return failed[0].verdict if failed else Verdict.OK
