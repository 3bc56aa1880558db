"""A coordinator whose groups have committed the same offsets again and again: `__consumer_offsets` is compacted, so it
loads as fast as after one commit of each.
"""

import os
import signal
import statistics
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import rayka
from benchmarks import group_offsets
from benchmarks.harness import Bar, Row
from benchmarks.stage import pid_of, running_cluster
from rayka.coordinator.group_shard import OFFSETS_TOPIC

KEYS, COMMITS_OF_EACH = 1_000, 1_000
# What is in the newest segment is not compacted.
CONFIG = {
    "offsets.topic.num.partitions": 1,
    "offsets.topic.segment.bytes": 1 << 20,
    "log.cleaner.backoff.ms": 100,
}
_COMPACTED_S = 120.0


def rows(directory: Path, *, quick: bool = False) -> Iterator[Row]:
    commits, rounds = (20, 1) if quick else (COMMITS_OF_EACH, 5)
    with running_cluster(directory, config=CONFIG) as cluster:
        fill = partial(group_offsets.rayka_fill, cluster, groups=1, partitions=KEYS)
        fill()
        once = statistics.median(_loaded_s(cluster) for _ in range(rounds))
        for _ in range(commits - 1):
            fill()
        left = _records_left(cluster, KEYS * commits // 5)
        often = statistics.median(_loaded_s(cluster) for _ in range(rounds))
        yield Row(
            what="kill -9 of the broker until the group's offsets are answered",
            settings=f"{KEYS * commits:,} commits of {KEYS:,} keys, one broker",
            value=often,
            unit="s",
            limit=once,
            limit_what="one commit of each key",
            share=often / once,
            bar=Bar(1.25, at_most=True),
            note=f"the restart included; the log held {left:,} records",
        )


def _loaded_s(cluster: rayka.Cluster) -> float:
    os.kill(pid_of(cluster), signal.SIGKILL)
    return group_offsets.rayka_loaded_s(cluster, groups=1)


def _records_left(cluster: rayka.Cluster, count_max: int) -> int:
    """How many records the log holds, once it is compacted."""
    deadline = time.monotonic() + _COMPACTED_S
    while (count := sum(1 for _ in rayka.read(OFFSETS_TOPIC, cluster=cluster))) > count_max:
        if time.monotonic() > deadline:
            raise TimeoutError(
                f"{count:,} records were left after {_COMPACTED_S:g} s; expected {count_max:,}"
            )
        time.sleep(0.5)
    return count
