"""Load of brokers, room on their disks, and requests to balance. Rayka's own.

**Load.** A broker reports its load with a heartbeat; the active controller tells the load of all brokers. A report
names the partitions that load the broker most and has sums over all of them, so it takes some hundred bytes for
thousands of partitions. Rates are per second. Kafka's brokers publish metrics, which Cruise Control collects by a
topic.

**Room.** One rule for balances, healing and drains. The disks of a broker stay below 80 % of their capacity, which is
the sum of their used and free bytes. On a machine with several brokers the capacity is unknown, because the brokers
may share a disk: there no broker takes more than the free bytes, and bytes planned for one of them count for all. A
broker that has not reported its disks counts as having room.

**Balance.** A balance moves replicas until all brokers have their share.
"""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

import msgspec

from rayka.ids import NO_NODE, NO_OFFSET
from rayka.ports import Message, Request
from rayka.protocol.request_parts import NamedPartitionMessage, PartitionMessage, check_each_once, require

REPORTED_PARTITIONS_MAX = 8
# Of bytes, or of records a second. Sums over all brokers fit into 64 bits.
AMOUNT_MAX = 1 << 60
_AMOUNTS = ("size_bytes", "bytes_in", "records_in", "bytes_out", "records_out")
# The share of its disks' capacity that a broker may use.
DISK_USE_MAX = 0.8
UNKNOWN_BYTES = float("inf")
MOVES_AT_ONCE_MAX = 100
MOVES_AS_CONFIGURED = -1


class PartitionLoad(PartitionMessage, frozen=True, array_like=True, gc=False):
    """One replica on the reporting broker: the size of its log, and the traffic of clients in a second."""

    is_leader: bool
    size_bytes: int
    bytes_in: int = 0
    records_in: int = 0
    bytes_out: int = 0
    records_out: int = 0


class LoadReport(Message, frozen=True, array_like=True):
    """A broker's load over the last `interval_ms`."""

    interval_ms: int
    # Thousandths of one core that the broker's process took.
    processor_permille: int = 0
    # Of all its disks; a disk counts once.
    free_bytes: int = 0
    size_bytes: int = 0
    partition_count: int = 0
    leader_count: int = 0
    bytes_in: int = 0
    records_in: int = 0
    bytes_out: int = 0
    records_out: int = 0
    replication_bytes_in: int = 0
    replication_bytes_out: int = 0
    # Partitions with the largest logs and the most traffic.
    partitions: tuple[PartitionLoad, ...] = ()


# Rates, processor time and leaders: 0 for a stopped broker.
_AT_REST = {
    each: 0
    for each in LoadReport.__struct_fields__
    if each.startswith(("bytes_", "records_", "replication_"))
    or each in ("processor_permille", "leader_count")
}


def at_rest(report: LoadReport) -> LoadReport:
    """The report of the same broker when stopped: sizes and counts of replicas stay, all else is 0."""
    return msgspec.structs.replace(report, **_AT_REST)


def is_plausible(report: LoadReport) -> bool:
    """Whether a broker may have made the report: no amount is negative or beyond all disks and networks, and no
    partition occurs twice. The controller ignores an implausible report; the heartbeat with it counts.
    """
    amounts = [getattr(report, name) for name in LoadReport.__struct_fields__ if name != "partitions"]
    amounts += [getattr(each, name) for each in report.partitions for name in _AMOUNTS]
    keys = {(each.topic_id, each.partition) for each in report.partitions}
    return (
        all(0 <= each <= AMOUNT_MAX for each in amounts)
        and report.interval_ms > 0
        and len(keys) == len(report.partitions) <= REPORTED_PARTITIONS_MAX
    )


class BrokerLoad(Message, frozen=True, array_like=True):
    """One broker's load, as the controller knows it."""

    broker_id: int
    # Since the newest report; -1: the broker has not reported to this controller.
    age_ms: int
    # The time over which rates are means; -1 as above.
    window_ms: int
    # Rates over the window, sizes and counts of the newest report. Of a fenced broker: `at_rest`.
    report: LoadReport
    is_fenced: bool = False


class NamedPartitionLoad(NamedPartitionMessage, frozen=True, array_like=True, gc=False):
    """A partition that a broker named in its newest report."""

    broker_id: int = NO_NODE
    is_leader: bool = False
    size_bytes: int = 0
    bytes_in: int = 0
    records_in: int = 0
    bytes_out: int = 0
    records_out: int = 0


class DescribeLoadResponse(Message, frozen=True, array_like=True):
    """Every registered broker, by id, and the partitions that brokers named, by topic, partition and broker."""

    brokers: tuple[BrokerLoad, ...]
    partitions: tuple[NamedPartitionLoad, ...]


class DescribeLoadRequest(Request[DescribeLoadResponse], frozen=True, array_like=True):
    """Asks for the load of the brokers."""

    # The response names only partitions of these topics; None: of all.
    topics: tuple[str, ...] | None = None

    def check(self) -> None:
        check_each_once("topics", self.topics or ())
        require(self.topics is None or len(self.topics) > 0, "topics", "one or more, or none named", "()")


# ---- Room on disks -------------------------------------------------------------------------------------------------


def capacities(reports: Mapping[int, LoadReport], hosts: Mapping[int, str]) -> dict[int, int]:
    """The capacity of each broker's disks in bytes; `hosts` are the machines of the brokers. 0: unknown, because the
    broker has not reported, or its machine has several brokers, which may share a disk.
    """
    counts = Counter(hosts.values())
    return {
        broker_id: report.size_bytes + report.free_bytes if report is not None and counts[host] == 1 else 0
        for broker_id, host in hosts.items()
        for report in (reports.get(broker_id),)
    }


@dataclass(slots=True)
class Disks:
    """The disks of one broker, as reported and as planned."""

    machine: str
    # 0: unknown.
    capacity_bytes: int = 0
    # Used bytes by the report.
    reported_bytes: int = 0
    free_bytes: float = UNKNOWN_BYTES
    # Used bytes once the plan is carried out.
    planned_bytes: int = 0


class DiskRoom:
    """The room of all brokers while a plan is made. The planner keeps each `planned_bytes` up to date."""

    def __init__(self, disks: Mapping[int, Disks]) -> None:
        self.disks = disks
        # The disks of the other brokers of the same machine, by broker.
        self._neighbours = {
            broker_id: [
                other for other in disks.values() if other is not own and other.machine == own.machine
            ]
            for broker_id, own in disks.items()
        }

    @classmethod
    def reported(cls, reports: Mapping[int, LoadReport], hosts: Mapping[int, str]) -> "DiskRoom":
        """The room by the brokers' reports, without a plan. `hosts`: the machine of each broker."""
        known = capacities(reports, hosts)
        found = {}
        for broker_id, host in hosts.items():
            report = reports.get(broker_id)
            size_bytes = 0 if report is None else report.size_bytes
            free_bytes = UNKNOWN_BYTES if report is None else report.free_bytes
            found[broker_id] = Disks(host, known[broker_id], size_bytes, free_bytes, size_bytes)
        return cls(found)

    def left_bytes(self, broker_id: int, use_max: float = DISK_USE_MAX) -> float:
        """The bytes that the broker may take without using more than `use_max` of its disks."""
        own = self.disks[broker_id]
        if own.capacity_bytes:
            return own.capacity_bytes * use_max - own.planned_bytes
        return self.free_bytes(broker_id)

    def free_bytes(self, broker_id: int) -> float:
        """The bytes that are free on the broker's disks once the plan is carried out. Bytes that leave other brokers of
        the machine do not count as free: those brokers may have other disks.
        """
        own = self.disks[broker_id]
        coming_bytes = sum(
            max(0, each.planned_bytes - each.reported_bytes) for each in self._neighbours[broker_id]
        )
        return own.reported_bytes + own.free_bytes - own.planned_bytes - coming_bytes


# ---- Balances ------------------------------------------------------------------------------------------------------


class BalanceMove(NamedPartitionMessage, frozen=True, array_like=True, gc=False):
    """A planned change of a partition's replicas."""

    # The preferred leader first.
    replicas: tuple[int, ...]
    new_replicas: tuple[int, ...]
    # The bytes that the move copies.
    copied_bytes: int
    # The goal of the balance that the move serves.
    goal: str


class BalanceShare(Message, frozen=True, array_like=True, gc=False):
    """A broker's share of the cluster, by sizes that are known or estimated."""

    broker_id: int
    size_bytes: int
    replica_count: int
    # Partitions whose preferred leader is the broker.
    leader_count: int
    # Traffic of all replicas on the broker, in bytes a second.
    bytes_in: int
    bytes_out: int


class BalanceResponse(Message, frozen=True, array_like=True):
    """The plan of a balance."""

    # In the order in which they begin. Empty while the plan is being made.
    moves: tuple[BalanceMove, ...]
    # The brokers' shares before the first move and after the last.
    before: tuple[BalanceShare, ...]
    after: tuple[BalanceShare, ...]
    # More moves would not improve the balance.
    is_whole: bool
    # So many of the first moves have begun.
    begun_count: int = 0
    # Metadata below this offset are older than the response.
    metadata_offset: int = NO_OFFSET
    # The balance had begun before the request.
    is_joined: bool = False


class BalanceRequest(Request[BalanceResponse], frozen=True, array_like=True):
    """Plans a balance, and begins it."""

    # The number of moves at a time; 0: only plans, MOVES_AS_CONFIGURED: as configured.
    moves: int = 0

    def check(self) -> None:
        is_bounded = MOVES_AS_CONFIGURED <= self.moves <= MOVES_AT_ONCE_MAX
        require(is_bounded, "moves", f"-1 to {MOVES_AT_ONCE_MAX}", self.moves)


class BalanceState(StrEnum):
    """The state of the current balance, or the outcome of the last one."""

    NONE = "none"
    PLANNING = "planning"
    MOVING = "moving"
    ENDED = "ended"
    CANCELLED = "cancelled"


class DescribeBalanceResponse(Message, frozen=True, array_like=True):
    """The progress of a balance."""

    state: BalanceState
    # The cause of a current balance, or the outcome of the last one.
    reason: str
    # The reason why no move begins now; may be empty.
    waits_for: str
    planned_count: int
    moved_count: int
    under_way_count: int
    # Bytes that the moves have copied.
    moved_bytes: int


class DescribeBalanceRequest(Request[DescribeBalanceResponse], frozen=True, array_like=True):
    """Asks for the progress of the balance. A new active controller knows an earlier balance only if it is current."""


class CancelBalanceResponse(Message, frozen=True, array_like=True):
    """Confirms the end of a balance."""

    # False: there was no current balance.
    is_cancelled: bool
    # Metadata below this offset are older than the response.
    metadata_offset: int = NO_OFFSET


class CancelBalanceRequest(Request[CancelBalanceResponse], frozen=True, array_like=True):
    """Ends the current balance. Its unfinished moves go back."""
