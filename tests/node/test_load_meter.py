"""A broker measures its load: counters of replicas, sums and the largest, in a report of bounded size."""

import asyncio
from dataclasses import replace
from typing import cast

import msgspec
import pytest

from rayka.ids import ZERO_ID, TopicPartition
from rayka.log.log_directory import LogDirectory
from rayka.node.data_directories import DataDirectories
from rayka.node.load_meter import LoadMeter
from rayka.node.replica import Flusher, Replica
from rayka.partition.partition import Partition
from rayka.protocol.load import REPORTED_PARTITIONS_MAX, LoadReport, is_plausible
from rayka.testing.memory_disk import MemoryDisk
from tests.node.replica_support import Others, run, settings_of
from tests.partition.support import append, new_partition

MANY = 5_000
FREE_BYTES = 1 << 40


class Held:
    """Replicas of one topic, all with the log of the first."""

    def __init__(self, count: int) -> None:
        self.first = new_partition()
        self.replicas = [self._replica(number) for number in range(count)]

    def _replica(self, number: int) -> Replica:
        partition = Partition(
            TopicPartition("orders", number), ZERO_ID, 1, self.first.log, self.first.config,
            brokers=lambda _: None, replica_lag_time_max_ms=1_000,
        )  # fmt: skip
        return Replica(partition, cast(LogDirectory, None), cast(Flusher, None))


async def meter_of(held: Held, processor_s: "list[float] | None" = None) -> LoadMeter:
    disk = MemoryDisk()
    settings = settings_of(disk, Others(), ("/data/one", "/data/two"))
    await DataDirectories.format(settings)
    seconds = iter(processor_s or [0.0] * 10)
    measured = replace(settings, processor_seconds=lambda: next(seconds))
    directories = await DataDirectories.open(measured)
    disk.fill_up(after_bytes=FREE_BYTES)
    return LoadMeter(measured, directories, held)


def measured(held: Held, processor_s: "list[float] | None" = None, *, after_s: float = 2.0) -> LoadReport:
    """What the meter says two seconds after it was made."""
    found: list[LoadReport] = []

    async def main() -> None:
        meter = await meter_of(held, processor_s)
        await asyncio.sleep(after_s)
        found.append(await meter.measure())

    run(main)
    return found[0]


def test_what_was_counted_is_reported_as_rates_once() -> None:
    held = Held(3)
    traffic = held.replicas[1].partition.traffic
    traffic.bytes_in, traffic.records_in, traffic.bytes_out, traffic.replication_bytes_out = 2_000, 20, 400, 6
    report = measured(held, [1.0, 1.5])
    assert (report.interval_ms, report.processor_permille, report.partition_count) == (2_000, 250, 3)
    assert (report.bytes_in, report.records_in, report.bytes_out) == (1_000, 10, 200)
    assert report.replication_bytes_out == 3
    (only,) = report.partitions
    assert (only.partition, only.bytes_in, only.bytes_out) == (1, 1_000, 200)
    assert measured(held).bytes_in == 0


def test_free_space_of_one_disk_counts_once_for_several_directories() -> None:
    assert measured(Held(1)).free_bytes == FREE_BYTES


def test_a_report_of_thousands_of_partitions_takes_some_hundred_bytes() -> None:
    held = Held(MANY)
    append(held.first, b"x" * 1_000)
    for number, replica in enumerate(held.replicas):
        replica.partition.traffic.bytes_in = 1_000_000_000_000 + number
    report = measured(held)
    assert (report.partition_count, len(report.partitions)) == (MANY, REPORTED_PARTITIONS_MAX)
    assert max(each.partition for each in report.partitions) == MANY - 1
    assert report.size_bytes == MANY * held.first.log.segments.size_bytes
    assert is_plausible(report)
    assert len(msgspec.msgpack.encode(report)) <= 700


@pytest.mark.parametrize("interval_s", [0.0, 1_800.0])
def test_any_time_between_two_measurements_gives_a_plausible_report(interval_s: float) -> None:
    held = Held(2)
    held.replicas[0].partition.traffic.bytes_in = 10**12
    assert is_plausible(measured(held, after_s=interval_s))
