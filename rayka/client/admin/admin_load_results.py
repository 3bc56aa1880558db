"""What an `Admin` answers about load: frozen values, plain enough for JSON."""

from collections.abc import Collection
from dataclasses import dataclass
from typing import Self

from rayka.client.admin.admin_results import Result
from rayka.protocol.load import BrokerLoad, DescribeLoadResponse


@dataclass(frozen=True)
class BrokerLoadInfo(Result):
    """What a broker has to do. Bytes and records are per second and of clients; what followers fetch is apart.

    `is_known` is False, and the rest 0, for a broker that has not reported to this controller yet. Means are over the
    last `window_ms`, sizes and counts from the newest report, `age_ms` ago. `processor_share`: of one core, by its
    process.
    """

    node_id: int
    is_known: bool
    age_ms: int
    window_ms: int
    processor_share: float
    size_bytes: int
    free_bytes: int
    partition_count: int
    leader_count: int
    bytes_in: int
    records_in: int
    bytes_out: int
    records_out: int
    replication_bytes_in: int
    replication_bytes_out: int

    @classmethod
    def of(cls, load: BrokerLoad) -> Self:
        is_known = load.age_ms >= 0
        return cls.taken_from(
            load.report,
            node_id=load.broker_id,
            is_known=is_known,
            age_ms=load.age_ms if is_known else 0,
            window_ms=load.window_ms if is_known else 0,
            processor_share=load.report.processor_permille / 1000,
        )


@dataclass(frozen=True)
class PartitionLoadInfo(Result):
    """A replica that takes much of its broker: the size of its log, and what clients send to and read from it there a
    second.
    """

    topic: str
    partition: int
    broker_id: int
    is_leader: bool
    size_bytes: int
    bytes_in: int
    records_in: int
    bytes_out: int
    records_out: int


@dataclass(frozen=True)
class ClusterLoad(Result):
    """All registered brokers, by id, and the partitions that they have named, by topic, partition and broker."""

    brokers: tuple[BrokerLoadInfo, ...]
    partitions: tuple[PartitionLoadInfo, ...]

    @classmethod
    def of(cls, response: DescribeLoadResponse, names: Collection[str] | None = None) -> Self:
        """With names, only partitions of these topics."""
        return cls(
            tuple(map(BrokerLoadInfo.of, response.brokers)),
            tuple(
                PartitionLoadInfo.taken_from(each)
                for each in response.partitions
                if names is None or each.topic in names
            ),
        )
