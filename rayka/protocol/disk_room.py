"""How much more the disks of a broker may take: one rule for balances, healing and drains. Rayka's own."""

from collections import Counter
from collections.abc import Mapping

from rayka.protocol.load import LoadReport

DISK_USE_MAX = 0.8  # of what disks can hold


def capacities(reports: Mapping[int, LoadReport], hosts: Mapping[int, str]) -> dict[int, int]:
    """How many bytes the disks of each broker hold and have free, given the machine of each. 0 where that is not known:
    before its first report, and on a machine with several brokers, for they may share a disk.
    """
    counts = Counter(hosts.values())
    return {
        broker_id: report.size_bytes + report.free_bytes if report is not None and counts[host] == 1 else 0
        for broker_id, host in hosts.items()
        for report in (reports.get(broker_id),)
    }


def room_bytes(capacity_bytes: int, size_bytes: int, use_max: float = DISK_USE_MAX) -> float:
    """How many bytes disks of that capacity may take beside those that they hold."""
    return capacity_bytes * use_max - size_bytes if capacity_bytes else float("inf")
