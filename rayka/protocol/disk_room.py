"""How much more the disks of a broker may take: one rule for balances, healing and drains. Rayka's own.

A broker's disks stay below 80 % of their capacity, the sum of what they hold and have free. On a machine with several
brokers the capacity is not known, because they may share a disk: there no broker takes more than is free, and bytes
given to one of them count for all. A broker that has not reported its disks counts as having room.
"""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

from rayka.protocol.load import LoadReport

DISK_USE_MAX = 0.8  # of what disks can hold
UNKNOWN_BYTES = float("inf")


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


@dataclass(slots=True)
class Disks:
    """The disks of one broker, as reported, and the bytes that they will hold by the plan."""

    machine: str
    # 0: not known.
    capacity_bytes: int = 0
    reported_bytes: int = 0
    free_bytes: float = UNKNOWN_BYTES
    planned_bytes: int = 0


class DiskRoom:
    """The room of all brokers while a plan is made. The planner keeps each `planned_bytes` up to date."""

    def __init__(self, disks: Mapping[int, Disks]) -> None:
        self.disks = disks
        self._beside = {
            broker_id: [
                other for other in disks.values() if other is not own and other.machine == own.machine
            ]
            for broker_id, own in disks.items()
        }

    @classmethod
    def reported(cls, reports: Mapping[int, LoadReport], hosts: Mapping[int, str]) -> "DiskRoom":
        """The room as brokers have reported it, before anything is planned. `hosts`: the machine of each broker."""
        known = capacities(reports, hosts)
        found = {}
        for broker_id, host in hosts.items():
            report = reports.get(broker_id)
            size_bytes = 0 if report is None else report.size_bytes
            free_bytes = UNKNOWN_BYTES if report is None else report.free_bytes
            found[broker_id] = Disks(host, known[broker_id], size_bytes, free_bytes, size_bytes)
        return cls(found)

    def left_bytes(self, broker_id: int, use_max: float = DISK_USE_MAX) -> float:
        """The bytes that the broker may be given without using more than that share of its disks."""
        own = self.disks[broker_id]
        if own.capacity_bytes:
            return own.capacity_bytes * use_max - own.planned_bytes
        return self.free_bytes(broker_id)

    def free_bytes(self, broker_id: int) -> float:
        """The bytes that are free on the broker's disks once the plan is carried out. Bytes that other brokers of the
        machine lose do not count: their disks may be others.
        """
        own = self.disks[broker_id]
        coming_bytes = sum(
            max(0, each.planned_bytes - each.reported_bytes) for each in self._beside[broker_id]
        )
        return own.reported_bytes + own.free_bytes - own.planned_bytes - coming_bytes
