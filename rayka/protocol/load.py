"""How much a broker has to do: what it reports with a heartbeat, and what the active controller knows of all brokers.

A report names the partitions that take most of the broker and has sums of all of them, so it takes some hundred bytes
for thousands of partitions. Rates are per second. Rayka's own; Kafka's brokers publish metrics, which Cruise Control
collects by a topic.
"""

import msgspec

from rayka.ids import NO_NODE
from rayka.ports import Message, Request
from rayka.protocol.of_partition import OfNamedPartition, OfPartition
from rayka.protocol.request_checks import check_each_once, require

REPORTED_PARTITIONS_MAX = 8
AMOUNT_MAX = 1 << 60  # of bytes, or of records a second; sums over all brokers still fit into 64 bits
_AMOUNTS = ("size_bytes", "bytes_in", "records_in", "bytes_out", "records_out")


class PartitionLoad(OfPartition, frozen=True, array_like=True, gc=False):
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


class NamedPartitionLoad(OfNamedPartition, frozen=True, array_like=True, gc=False):
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
