"""How much a broker has to do: what it reports with a heartbeat, and what the active controller knows of all brokers.

A report names the partitions that take most of the broker and has sums of all of them, so it takes some hundred bytes
for thousands of partitions. Rates are per second. Rayka's own; Kafka's brokers publish metrics, which Cruise Control
collects by a topic.
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
AMOUNT_MAX = 1 << 60  # of bytes, or of records a second; sums over all brokers still fit into 64 bits
_AMOUNTS = ("size_bytes", "bytes_in", "records_in", "bytes_out", "records_out")


class PartitionLoad(PartitionMessage, frozen=True, array_like=True, gc=False):
    """One replica on the broker that reports: its log, and what clients send to and read from it in a second."""

    is_leader: bool
    size_bytes: int
    bytes_in: int = 0
    records_in: int = 0
    bytes_out: int = 0
    records_out: int = 0


class LoadReport(Message, frozen=True, array_like=True):
    """A broker over the last `interval_ms`. `processor_permille`: thousandths of one core that its process took.

    `free_bytes` is of its disks, each counted once. `partitions` are those of the largest logs and of the most traffic.
    """

    interval_ms: int
    processor_permille: int = 0
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
    partitions: tuple[PartitionLoad, ...] = ()


_AT_REST = {
    each: 0
    for each in LoadReport.__struct_fields__
    if each.startswith(("bytes_", "records_", "replication_"))
    or each in ("processor_permille", "leader_count")
}


def at_rest(report: LoadReport) -> LoadReport:
    """The report without all that a stopped broker does not do: sizes and counts of replicas are left."""
    return msgspec.structs.replace(report, **_AT_REST)


def is_plausible(report: LoadReport) -> bool:
    """Whether a broker can be meant by it: nothing negative, nothing beyond all disks and networks, no partition twice.
    A report that is not is left out; its heartbeat counts.
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
    """What is known of one broker: means over `window_ms`, sizes and counts of the newest report, `age_ms` ago. Both
    are -1 for a broker that has not reported to this controller yet. The report of a fenced broker is `at_rest`.
    """

    broker_id: int
    age_ms: int
    window_ms: int
    report: LoadReport
    is_fenced: bool = False


class NamedPartitionLoad(NamedPartitionMessage, frozen=True, array_like=True, gc=False):
    """One of the partitions that a broker has named in its newest report."""

    broker_id: int = NO_NODE
    is_leader: bool = False
    size_bytes: int = 0
    bytes_in: int = 0
    records_in: int = 0
    bytes_out: int = 0
    records_out: int = 0


class DescribeLoadResponse(Message, frozen=True, array_like=True):
    """Every registered broker, by id, and the partitions that they have named, by topic, partition and broker."""

    brokers: tuple[BrokerLoad, ...]
    partitions: tuple[NamedPartitionLoad, ...]


class DescribeLoadRequest(Request[DescribeLoadResponse], frozen=True, array_like=True):
    """How much the brokers have to do; with `topics`, only partitions of these."""

    topics: tuple[str, ...] | None = None

    def check(self) -> None:
        check_each_once("topics", self.topics or ())
        require(self.topics is None or len(self.topics) > 0, "topics", "one or more, or none named", "()")


# How much more the disks of a broker may take: one rule for balances, healing and drains. Rayka's own.
#
# A broker's disks stay below 80 % of their capacity, the sum of what they hold and have free. On a machine with several
# brokers the capacity is not known, because they may share a disk: there no broker takes more than is free, and bytes
# given to one of them count for all. A broker that has not reported its disks counts as having room.


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


# A balance asked for: what should move so that all brokers have their share, and the first of it. Rayka's own.


MOVES_AT_ONCE_MAX = 100
MOVES_AS_CONFIGURED = -1


class BalanceMove(NamedPartitionMessage, frozen=True, array_like=True, gc=False):
    """A partition's replicas, the preferred leader first, as they are and as they are to be; what is copied for that,
    and the goal that it is for.
    """

    replicas: tuple[int, ...]
    new_replicas: tuple[int, ...]
    copied_bytes: int
    goal: str


class BalanceShare(Message, frozen=True, array_like=True, gc=False):
    """What a broker holds, by the sizes that are known or estimated: of how many partitions it is the preferred leader,
    and the traffic of all its replicas, in bytes a second.
    """

    broker_id: int
    size_bytes: int
    replica_count: int
    leader_count: int
    bytes_in: int
    bytes_out: int


class BalanceResponse(Message, frozen=True, array_like=True):
    """The plan: moves in their order, of which the first `begun_count` have begun, and shares before and after all of
    them. `is_whole`: more would not improve it. Metadata from before `metadata_offset` are older. `is_joined`: a
    balance was under way already, and this is its plan, without moves where it is yet to be made.
    """

    moves: tuple[BalanceMove, ...]
    before: tuple[BalanceShare, ...]
    after: tuple[BalanceShare, ...]
    is_whole: bool
    begun_count: int = 0
    metadata_offset: int = NO_OFFSET
    is_joined: bool = False


class BalanceRequest(Request[BalanceResponse], frozen=True, array_like=True):
    """Plans a balance, and begins it with so many moves at a time, -1: as configured; with 0 it only plans."""

    moves: int = 0

    def check(self) -> None:
        is_bounded = MOVES_AS_CONFIGURED <= self.moves <= MOVES_AT_ONCE_MAX
        require(is_bounded, "moves", f"-1 to {MOVES_AT_ONCE_MAX}", self.moves)


class BalanceState(StrEnum):
    """How far the balance is that is under way, or what became of the last one."""

    NONE = "none"
    PLANNING = "planning"
    MOVING = "moving"
    ENDED = "ended"
    CANCELLED = "cancelled"


class DescribeBalanceResponse(Message, frozen=True, array_like=True):
    """A balance: why it began or what came of it, why no move begins now (or nothing), how many moves are planned, have
    been made and are under way, and how many bytes were copied.
    """

    state: BalanceState
    reason: str
    waits_for: str
    planned_count: int
    moved_count: int
    under_way_count: int
    moved_bytes: int


class DescribeBalanceRequest(Request[DescribeBalanceResponse], frozen=True, array_like=True):
    """How far the balance is; a new active controller knows of the last one only if it is under way."""


class CancelBalanceResponse(Message, frozen=True, array_like=True):
    """Whether one was under way. Metadata from before `metadata_offset` are older."""

    is_cancelled: bool
    metadata_offset: int = NO_OFFSET


class CancelBalanceRequest(Request[CancelBalanceResponse], frozen=True, array_like=True):
    """Ends the balance that is under way; what its moves have not done goes back."""
