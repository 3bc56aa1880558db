"""`rayka doctor`: checks whether this machine is fit for rayka; one line for each check, with advice."""

import os
import platform
import shutil
import tempfile
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from enum import StrEnum
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING

import click

from rayka.cli.output import Style, print_json, print_table, size, working
from rayka.cli.shared_options import json_option, quiet_option
from rayka.ids import Role

if TYPE_CHECKING:
    from rayka.actors.cluster_description import ClusterDescription

_DISK_LOW_BYTES = 5_000_000_000
# Ray spills no objects to a disk above it.
_RAY_DISK_FULL_PERCENT = 95
_MEMORY_LOW_BYTES = 4_000_000_000
_SHARED_MEMORY_LOW_BYTES = 500_000_000
_PACKAGES = ("rayka", "ray", "pyarrow", "numpy", "msgspec")
_SPARK_PACKAGES = ("pyspark", "raydp", "pandas")


class FindingVerdict(StrEnum):
    """The result of a check. `note`: rayka works, but not fully, or not for long."""

    GOOD = "ok"
    NOTE = "note"
    BAD = "bad"


@dataclass(frozen=True, slots=True)
class Finding:
    """One check: its subject, verdict and value, and the advice for the user."""

    what: str
    verdict: FindingVerdict
    found: str
    advice: str = ""


_STYLES = {FindingVerdict.GOOD: Style.GOOD, FindingVerdict.NOTE: Style.NOTE, FindingVerdict.BAD: Style.BAD}


@click.command()
@click.option(
    "--data-dir",
    type=click.Path(path_type=Path),
    default="~/.rayka",
    show_default=True,
    help="Where the data is, or will be.",
)
@click.option("--cluster", "name", default="rayka", show_default=True, help="The cluster to look for.")
@click.option(
    "--address", default="auto", show_default=True, metavar="HOST:PORT", help="The Ray to look for."
)
@quiet_option
@json_option
def doctor(data_dir: Path, name: str, address: str, as_json: bool) -> int:
    """Check this machine: Java, versions, disk, memory, Ray. The exit code is 0 only if nothing is bad."""
    with working("Looking …"):
        findings = [
            *(_python(), *_packages(), _java(), _data_disk(data_dir.expanduser()), _ray_disk()),
            *(_memory(), _shared_memory(), _ray(name, address), *_quorum(name)),
        ]
    if as_json:
        print_json([asdict(each) for each in findings])
    else:
        rows = [(each.what, each.verdict.value, each.found, each.advice) for each in findings]
        styles = [_STYLES[each.verdict] for each in findings]
        print_table("Doctor", ("what", "verdict", "found", "what to do"), rows, styles)
    return 1 if any(each.verdict is FindingVerdict.BAD for each in findings) else 0


def _python() -> Finding:
    found = f"{platform.python_version()} on {platform.system()} {platform.machine()}, {os.cpu_count()} CPUs"
    is_other = platform.system() != "Linux"
    return _noted_if(is_other, "Python", found, "rayka is made for and tested on Linux")


def _packages() -> Iterator[Finding]:
    yield _installed("packages", _PACKAGES, FindingVerdict.BAD, "pip install rayka")
    yield _installed(
        "Spark packages", _SPARK_PACKAGES, FindingVerdict.NOTE, "for Spark: pip install 'rayka[spark]'"
    )


def _installed(what: str, names: tuple[str, ...], otherwise: FindingVerdict, advice: str) -> Finding:
    found, missing = [], []
    for name in names:
        try:
            found.append(f"{name} {version(name)}")
        except PackageNotFoundError:
            missing.append(name)
    if missing:
        return Finding(what, otherwise, f"missing: {', '.join(missing)}", advice)
    return Finding(what, FindingVerdict.GOOD, ", ".join(found))


def _java() -> Finding:
    from rayka.errors import UnavailableError
    from rayka.spark.java import HOW_TO_GET_JAVA, require_java

    try:
        return Finding("Java", FindingVerdict.GOOD, str(require_java()))
    except UnavailableError as error:
        return Finding(
            "Java", FindingVerdict.NOTE, str(error).partition(";")[0], f"for Spark: {HOW_TO_GET_JAVA}"
        )


def _data_disk(directory: Path) -> Finding:
    there = next(each for each in (directory, *directory.parents) if each.exists())
    free_bytes = shutil.disk_usage(there).free
    found = f"{size(free_bytes)} free at {directory}"
    if not os.access(there, os.W_OK):
        return Finding("data disk", FindingVerdict.BAD, f"{there} is not writable", "choose another data_dir")
    is_low = free_bytes < _DISK_LOW_BYTES
    return _noted_if(is_low, "data disk", found, "free some space, or choose another data_dir")


def _ray_disk() -> Finding:
    directory = tempfile.gettempdir()
    usage = shutil.disk_usage(directory)
    percent = round(100 * (1 - usage.free / usage.total))
    advice = "free some space: from 95 % on, Ray makes no object once its shared memory is full"
    is_full = percent >= _RAY_DISK_FULL_PERCENT
    return _noted_if(is_full, "Ray's disk", f"{directory} is {percent} % full", advice)


def _memory() -> Finding:
    fields = dict(line.split(":", 1) for line in _lines("/proc/meminfo"))
    if "MemAvailable" not in fields:
        return Finding("memory", FindingVerdict.NOTE, "unknown")
    available_bytes = int(fields["MemAvailable"].split()[0]) * 1024
    found, is_low = f"{size(available_bytes)} available", available_bytes < _MEMORY_LOW_BYTES
    return _noted_if(is_low, "memory", found, "4 GB are comfortable with Spark; end something large")


def _shared_memory() -> Finding:
    if not os.path.isdir("/dev/shm"):
        return Finding(
            "shared memory", FindingVerdict.NOTE, "no /dev/shm", "Ray uses files instead, which is slower"
        )
    free_bytes = shutil.disk_usage("/dev/shm").free
    found, is_low = f"{size(free_bytes)} free at /dev/shm", free_bytes < _SHARED_MEMORY_LOW_BYTES
    return _noted_if(is_low, "shared memory", found, "in a container, start it with --shm-size=2g")


def _ray(name: str, address: str) -> Finding:
    from rayka.actors.names import running_clusters
    from rayka.actors.ray_connection import TokenRefused, connect
    from rayka.errors import UnavailableError

    try:
        found = connect(address)
    except TokenRefused as error:
        said, _, advice = str(error).partition("; ")
        # A Ray that the user named must accept the token; a Ray that was merely found may be another user's.
        verdict = FindingVerdict.NOTE if error.is_found else FindingVerdict.BAD
        return Finding("Ray", verdict, said, advice)
    except UnavailableError as error:
        return Finding("Ray", FindingVerdict.NOTE, str(error).partition(";")[0], "`rayka start` starts one")
    clusters = running_clusters()
    if name not in clusters:
        others = f"clusters: {', '.join(clusters) or 'none'}"
        return Finding(
            "Ray", FindingVerdict.GOOD, f"{found}, {others}", f"`rayka start` starts cluster {name}"
        )
    return Finding("Ray", FindingVerdict.GOOD, f"{found}, clusters: {', '.join(clusters)}")


def _quorum(name: str) -> Iterator[Finding]:
    """Checks the quorum of the cluster, if the cluster runs on the Ray that was found."""
    import ray

    from rayka.actors.names import running_clusters
    from rayka.cluster import Cluster

    if ray.is_initialized() and name in running_clusters():
        yield quorum_finding(Cluster.connect(name).describe())


def quorum_finding(description: "ClusterDescription") -> Finding:
    """The finding about the quorum: the leader, and the lag of the other replicas."""
    from rayka.cli.cluster_commands import describe_role

    controllers = [each for each in description.nodes if Role.CONTROLLER in each.roles]
    said = ", ".join(f"{each.node_id} {describe_role(each) or each.state}" for each in controllers)
    if description.controller_id < 0:
        advice = "a majority of the voters has to run; `rayka status` says why one does not"
        return Finding("quorum", FindingVerdict.BAD, f"no active controller: {said}", advice)
    found = f"epoch {description.leader_epoch}: {said}"
    silent = [each for each in controllers if each.state != "running"]
    if silent:
        names = ", ".join(f"{each.actor_name} is {each.state}" for each in silent)
        return Finding(
            "quorum",
            FindingVerdict.NOTE,
            f"{found}; {names}",
            "`rayka quorum status --replication` shows more",
        )
    return Finding("quorum", FindingVerdict.GOOD, found)


def _noted_if(is_noted: bool, what: str, found: str, advice: str) -> Finding:
    """A note with the advice if `is_noted`, else a good finding."""
    return (
        Finding(what, FindingVerdict.NOTE, found, advice)
        if is_noted
        else Finding(what, FindingVerdict.GOOD, found)
    )


def _lines(path: str) -> list[str]:
    try:
        return Path(path).read_text().splitlines()
    except OSError:
        return []
