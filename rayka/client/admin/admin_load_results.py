"""What an `Admin` answers about load, balance and events: frozen values, plain enough for JSON."""

from collections.abc import Collection
from dataclasses import dataclass
from typing import Self

from rayka.client.admin.admin_results import AdminResult
from rayka.protocol.load import BalanceState, BrokerLoad, DescribeLoadResponse


@dataclass(frozen=True)
class BrokerLoadInfo(AdminResult):
    """What a broker has to do. Bytes and records are per second and of clients; what followers fetch is apart.

    `is_known` is False, and the rest 0, for a broker that has not reported to this controller yet. Means are over the
    last `window_ms`, sizes and counts from the newest report, `age_ms` ago. `processor_share`: of one core, by its
    process. `is_fenced`: the broker has stopped, or is silent, so it does nothing for clients; what it holds is as it
    reported last.
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
    is_fenced: bool = False

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
            is_fenced=load.is_fenced,
        )


@dataclass(frozen=True)
class PartitionLoadInfo(AdminResult):
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
class ClusterLoad(AdminResult):
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


@dataclass(frozen=True)
class BalanceMoveInfo(AdminResult):
    """One partition of a plan: its replicas, the preferred leader first, and what is copied for the new ones. `goal`:
    `spread`, `capacity`, `size`, `leaders`, `bytes_in` or `bytes_out`.
    """

    topic: str
    partition: int
    replicas: tuple[int, ...]
    new_replicas: tuple[int, ...]
    copied_bytes: int
    goal: str


@dataclass(frozen=True)
class BrokerShareInfo(AdminResult):
    """What a broker holds before or after a plan; sizes of partitions that brokers have not named are estimated."""

    broker_id: int
    size_bytes: int
    replica_count: int
    leader_count: int
    bytes_in: int
    bytes_out: int


@dataclass(frozen=True)
class BalancePlan(AdminResult):
    """What should move, in this order; the first `begun_count` moves have begun. `before` and `after`: all brokers, by
    id. `is_whole`: more moves than these would not improve it. `is_joined`: this balance was under way already; its
    plan is empty while it is yet to be made.
    """

    moves: tuple[BalanceMoveInfo, ...]
    before: tuple[BrokerShareInfo, ...]
    after: tuple[BrokerShareInfo, ...]
    is_whole: bool
    begun_count: int
    is_joined: bool = False


@dataclass(frozen=True)
class BalanceStatus(AdminResult):
    """A balance: `none` that this controller knows of, `planning`, `moving`, `ended` or `cancelled`. `reason`: why it
    began, or what came of it; `waits_for`: why no move begins now, or nothing. The counts are of moves.
    """

    state: BalanceState
    reason: str
    waits_for: str
    planned_count: int
    moved_count: int
    under_way_count: int
    moved_bytes: int

    @property
    def is_under_way(self) -> bool:
        return self.state in (BalanceState.PLANNING, BalanceState.MOVING)


@dataclass(frozen=True)
class EventInfo(AdminResult):
    """What happened to the cluster, or what it decided by itself, and why. Later events have higher numbers;
    `timestamp_ms` is of the clock of the node that saw or decided it.

    `kind`: of brokers and coordinators `broker-started` (a process has registered), `-unfenced` (it serves),
    `-fenced`, `-stopped`, `-cordoned` (a drain begins so) and `-removed`; of their disks `disk-offline`, `disk-full`
    where no other replica stands in, and `disk-online`; of controllers `controller-leads` where another one became
    active, `voter-added` and `voter-removed`; of processes and machines `process-ended`, `machine-lost`,
    `node-missing`, `node-failed` (it does not start), `node-made` and `supervisor-began`.

    Of decisions: `heal-begun`, `heal-ended`, `heal-stopped` of replicas that are made anew; `balance-begun`,
    `balance-ended`, `balance-cancelled`, about the brokers that were badly off where it began by itself; `scale-out-`
    and `scale-in-` with `begun`, `ended`, `stopped` or `waits`, of nodes that come and go by the load; `drain-` of
    machines that Ray drains. `subjects` are the nodes (`broker-4`), topics or partitions (`orders-0`) that it is about,
    of many the first ones.
    """

    number: int
    timestamp_ms: int
    kind: str
    subjects: tuple[str, ...]
    reason: str
