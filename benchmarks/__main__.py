"""`python -m benchmarks [NAMES…] [--quick] [--json FILE]`: runs the benchmarks, prints tables, writes JSON."""

import importlib
import os
import platform
import shlex
import sys
from collections.abc import Callable, Iterable, Iterator
from importlib.metadata import version
from pathlib import Path
from typing import Any

import click
from rich.console import Console

from benchmarks.harness import Row
from benchmarks.report import README, Report, print_table

NAMES = (
    "limits", "assignors", "balance", "batch", "cleaner", "recovery", "client", "direct_lane", "commands", "elastic",
    "footprint", "groups", "quorum", "record_calls", "replication", "retention", "scale", "simulator", "spark",
)  # fmt: skip
WITH_KAFKA = ("cleaner", "client", "direct_lane", "elastic", "groups", "replication")
PACKAGES = ("rayka", "ray", "pyarrow", "numpy", "msgspec", "pyspark", "raydp")


@click.command()
@click.argument("names", nargs=-1, type=click.Choice(NAMES))
@click.option(
    "--quick", is_flag=True, help="Fewer rounds and less data: to see that all works, not for figures."
)
@click.option(
    "--json", "json_path", type=click.Path(dir_okay=False, path_type=Path), help="Write the rows here too."
)
@click.option("--readme", is_flag=True, help="Put the tables into benchmarks/README.md.")
@click.option(
    "--kafka",
    "kafka_jars",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    help="A directory with Kafka's jars: cleaner, clients, lanes, elastic, groups and replication get Kafka as peer.",
)
def main(
    names: tuple[str, ...], quick: bool, json_path: Path | None, readme: bool, kafka_jars: Path | None
) -> None:
    """Measures rayka beside the limits of this machine. Without NAMES, all of them.

    NAMES: limits, assignors, balance, batch, cleaner, recovery, client, direct_lane, commands, elastic, footprint,
    groups, quorum, record_calls, replication, retention, scale, simulator, spark.
    """
    console = Console(width=None if os.isatty(1) else 160)
    about = _about()
    console.print(*(f"{key}: {value}" for key, value in about.items()), sep="\n")
    report = Report(about, json_path=json_path, readme=README if readme else None)
    for name in names or NAMES:
        options: dict[str, Any] = {"kafka_jars": kafka_jars} if name in WITH_KAFKA else {}
        with console.status(f"{name}…"):
            run = importlib.import_module(f"benchmarks.{name}").run
            report.take(name, _begun(run, quick=quick, **options))
        print_table(name, report.tables[name], console)
        if name in report.failures:
            console.print(f"{name} ended early: {report.failures[name]!r}", style="red")
    missed = [row.what for row in report.rows if row.is_met is False]
    if missed:
        console.print(f"below their bar: {', '.join(missed)}")
    sys.exit(1 if report.failures else 0)


def _begun(run: Callable[..., Iterable[Row]], **options: Any) -> Iterator[Row]:
    """Its rows; the call itself may measure, and fail, before there is one."""
    yield from run(**options)


def _about() -> dict[str, Any]:
    versions = ", ".join(f"{package} {version(package)}" for package in PACKAGES)
    return {
        "command": shlex.join(["python", "-m", "benchmarks", *sys.argv[1:]]),
        "machine": f"{_processor()}, {os.cpu_count()} cores, {_memory_gib()} GiB, {platform.system()}",
        "python": platform.python_version(),
        "versions": versions,
    }


def _processor() -> str:
    lines = Path("/proc/cpuinfo").read_text().split("\n")
    names = [line.partition(": ")[2] for line in lines if line.startswith("model name")]
    return names[0] if names else platform.machine()


def _memory_gib() -> int:
    return round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30)


if __name__ == "__main__":
    main()
