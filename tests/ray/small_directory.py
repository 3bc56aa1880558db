"""Writes for a long time what is kept for seconds only, into a directory that is small: does it ever fill up?

    python -m tests.ray.small_directory --minutes 60 --megabytes 200 --megabytes-per-second 2

Three topics: one whose records expire by time, one that is kept at its bytes, and one that is compacted and expires.
Retention is accelerated so that many times the directory passes through it. A record is refused, the directory is
larger than it may be, or what has to be kept is gone: exit code 1.
"""

import argparse
import os
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import cycle
from pathlib import Path
from typing import Any

os.environ.setdefault("RAY_AUTH_MODE", "disabled")

import rayka
from rayka.cluster import Cluster
from tests.rays import connected_ray

CONFIG = {
    "log.retention.check.interval.ms": 100,
    "log.cleaner.backoff.ms": 50,
    "log.segment.delete.delay.ms": 100,
}
_RECORDS, _VALUE_BYTES, _KEYS = 100, 1000, 20
_WAIT_S = 120


@dataclass
class Passed:
    """What went through the directory."""

    written_bytes: int = 0
    largest_bytes: int = 0
    waits: int = 0  # for retention, because half of the directory was in use

    def __str__(self) -> str:
        written, largest = (f"{each / 2**20:,.0f} MiB" for each in (self.written_bytes, self.largest_bytes))
        return f"{written} were written; waited {self.waits} times for retention; the directory held {largest} at most"


class Pace:
    """Goes on for so many seconds, at no more than this rate."""

    def __init__(self, seconds: float, megabytes_per_second: float) -> None:
        self._begin_s = time.monotonic()
        self._end_s = self._begin_s + seconds
        self._bytes_per_s = megabytes_per_second * 2**20

    def __repr__(self) -> str:
        return f"<Pace {self._bytes_per_s:.0f} bytes/s>"

    def goes_on(self, passed: Passed) -> bool:
        due_s = self._begin_s + passed.written_bytes / self._bytes_per_s
        time.sleep(max(0.0, due_s - time.monotonic()))
        return time.monotonic() < self._end_s


def topics(limit_bytes: int) -> dict[str, dict[str, Any]]:
    """Of one partition each; together they keep less than half of the directory."""
    segment = {
        "segment.bytes": limit_bytes // 50,
        "file.delete.delay.ms": 100,
        "min.cleanable.dirty.ratio": 0.01,
    }
    kept = {**segment, "retention.bytes": limit_bytes // 20}
    return {
        "by-time": {**segment, "retention.ms": 1_000},
        "by-bytes": kept,
        "table": {**kept, "cleanup.policy": "compact,delete"},
    }


def write_while(
    goes_on: Callable[[Passed], bool], cluster: Cluster, directory: Path, limit_bytes: int
) -> Passed:
    """Creates the topics and writes to all in turn; waits where half of the directory is in use. Raises TimeoutError
    when that does not get less, and what a refused record fails with.
    """
    passed, names = Passed(), list(topics(limit_bytes))
    with rayka.Admin(cluster=cluster) as admin:
        for name, configs in topics(limit_bytes).items():
            admin.create_topic(name, partitions=1, configs=configs)
    with rayka.Producer(cluster=cluster, acks="all", batch_size=20_000) as producer:
        for name, values in zip(cycle(names), _values(), strict=False):
            if not goes_on(passed):
                return passed
            sent = [producer.send(name, value, key=b"k%d" % (n % _KEYS)) for n, value in enumerate(values)]
            for future in sent:
                future.result(timeout=_WAIT_S)
            passed.written_bytes += sum(map(len, values))
            _await_room(directory, limit_bytes, passed)
    raise AssertionError("values never end")


def check_kept(cluster: Cluster, limit_bytes: int) -> None:
    """What is kept at its bytes has them, and the table has all keys."""
    kept = sum(len(each.value or b"") for each in _records(cluster, "by-bytes"))
    least = limit_bytes // 20 - limit_bytes // 50
    assert kept >= least, f"{kept} bytes are left of by-bytes, expected {least} at least"
    keys = {each.key for each in _records(cluster, "table")}
    assert len(keys) == _KEYS, f"{len(keys)} keys are left of the table, expected {_KEYS}"


def _records(cluster: Cluster, topic: str) -> Iterator[rayka.Record]:
    """What is left; more may expire meanwhile."""
    return iter(rayka.read(topic, cluster=cluster, auto_offset_reset="earliest"))


def _values() -> Iterator[list[bytes]]:
    while True:
        yield [os.urandom(_VALUE_BYTES) for _ in range(_RECORDS)]


def _await_room(directory: Path, limit_bytes: int, passed: Passed) -> None:
    used_bytes = bytes_in(directory)
    passed.largest_bytes = max(passed.largest_bytes, used_bytes)
    deadline_s = time.monotonic() + _WAIT_S
    passed.waits += used_bytes > limit_bytes // 2
    while used_bytes > limit_bytes // 2:
        if time.monotonic() > deadline_s:
            raise TimeoutError(
                f"{used_bytes} bytes are in {directory}, of {limit_bytes}; retention frees none"
            )
        time.sleep(0.05)
        used_bytes = bytes_in(directory)


def bytes_in(directory: Path) -> int:
    """Of all files; one may go while this looks."""
    return sum(_blocks(f"{path}/{name}") for path, _, names in os.walk(directory) for name in names)


def _blocks(path: str) -> int:
    try:
        return os.lstat(path).st_blocks * 512
    except FileNotFoundError:
        return 0


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--minutes", type=float, default=60)
    parser.add_argument("--megabytes", type=int, default=200)
    parser.add_argument("--megabytes-per-second", type=float, default=float("inf"))
    given = parser.parse_args()
    limit_bytes = given.megabytes << 20
    with tempfile.TemporaryDirectory(prefix="rayka-small-") as name, connected_ray(head_cpus=4):
        with Cluster.start(name="small-directory", data_dir=name, config=CONFIG) as cluster:
            pace = Pace(given.minutes * 60, given.megabytes_per_second)
            passed = write_while(pace.goes_on, cluster, Path(name), limit_bytes)
            print(f"{passed} of {given.megabytes} MiB", flush=True)
            check_kept(cluster, limit_bytes)
    return int(passed.largest_bytes > limit_bytes)


if __name__ == "__main__":
    sys.exit(main())
