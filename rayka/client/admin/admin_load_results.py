"""Results of `Admin` about load, balance and events: frozen values with `to_dict` for JSON."""

from collections.abc import Collection
from dataclasses import dataclass
from typing import Self

from rayka.client.admin.admin_results import AdminResult
from rayka.protocol.drains import DrainCause
from rayka.protocol.load import BalanceState, BrokerLoad, DescribeLoadResponse


@dataclass(frozen=True)
class BrokerLoadInfo(AdminResult):
    """The load of one broker: rates are means over `window_ms`, sizes and counts are of the newest report."""

    node_id: int
    # False: the broker has not reported to this controller yet, and all other figures are 0.
    is_known: bool
    # The age of the newest report.
    age_ms: int
    window_ms: int
    # Of one core, by the broker's process.
    processor_share: float
    size_bytes: int
    free_bytes: int
    partition_count: int
    leader_count: int
    # Per second, of clients; the fetches of followers are counted apart.
    bytes_in: int
    records_in: int
    bytes_out: int
    records_out: int
    replication_bytes_in: int
    replication_bytes_out: int
    # The broker has stopped or is silent: clients use it no more, and sizes are those of its last report.
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
    """A replica with much of its broker's load: the size of its log, and the traffic of clients a second."""

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
    """The load of all registered brokers, by id, and of the partitions they report, by topic, partition and broker."""

    brokers: tuple[BrokerLoadInfo, ...]
    partitions: tuple[PartitionLoadInfo, ...]

    @classmethod
    def of(cls, response: DescribeLoadResponse, names: Collection[str] | None = None) -> Self:
        """From a response; with `names` only the partitions of these topics."""
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
    """One partition of a plan of a balance."""

    topic: str
    partition: int
    # The current replicas and the planned ones, each with the preferred leader first.
    replicas: tuple[int, ...]
    new_replicas: tuple[int, ...]
    # Copied to the brokers that have no replica yet.
    copied_bytes: int
    # `spread`, `capacity`, `size`, `leaders`, `bytes_in` or `bytes_out`.
    goal: str


@dataclass(frozen=True)
class BrokerShareInfo(AdminResult):
    """A broker's share before or after a plan. Sizes of partitions that brokers do not report are estimated."""

    broker_id: int
    size_bytes: int
    replica_count: int
    leader_count: int
    bytes_in: int
    bytes_out: int


@dataclass(frozen=True)
class BalancePlan(AdminResult):
    """The moves of a balance, and the brokers' shares before and after them."""

    # In the order in which they are carried out.
    moves: tuple[BalanceMoveInfo, ...]
    # All brokers, by id.
    before: tuple[BrokerShareInfo, ...]
    after: tuple[BrokerShareInfo, ...]
    # Further moves would not improve the balance.
    is_whole: bool
    # The first `begun_count` moves have begun.
    begun_count: int
    # The balance was already under way; `moves` is empty until its plan is made.
    is_joined: bool = False


@dataclass(frozen=True)
class BalanceStatus(AdminResult):
    """The state and progress of a balance."""

    # `none` (this controller knows no balance), `planning`, `moving`, `ended` or `cancelled`.
    state: BalanceState
    # Why the balance began, or how it ended.
    reason: str
    # Why no move begins now; empty: nothing delays one.
    waits_for: str
    # Counts of moves.
    planned_count: int
    moved_count: int
    under_way_count: int
    moved_bytes: int

    @property
    def is_under_way(self) -> bool:
        return self.state in (BalanceState.PLANNING, BalanceState.MOVING)


@dataclass(frozen=True)
class DrainInfo(AdminResult):
    """A broker that is emptied. `cause`: `operator`, `scaling`, or `machine` where Ray drains its machine, which goes
    at `deadline_ms` of the wall clock, 0 where that is not known.

    `replica_count`: what the broker holds still; `moving_count` of these are on their way. `waits_for`: why the others
    stay, or nothing; `is_stuck`: no time helps.
    """

    broker_id: int
    cause: DrainCause
    deadline_ms: int
    replica_count: int
    moving_count: int
    waits_for: str
    is_stuck: bool


@dataclass(frozen=True)
class EventInfo(AdminResult):
    """A change of the cluster, or a decision of its own, with the cause.

    `kind`: of brokers and coordinators `broker-started` (a process has registered), `-unfenced` (it serves),
    `-fenced`, `-stopped`, `-cordoned` (a drain begins so) and `-removed`; of their disks `disk-offline`, `disk-full`
    where no other replica stands in, and `disk-online`; of controllers `controller-leads` where another one became
    active, `voter-added` and `voter-removed`; of processes and machines `process-ended`, `machine-lost`,
    `node-missing`, `node-failed` (it does not start), `node-made` and `supervisor-began`.

    Of decisions: `heal-begun`, `heal-ended`, `heal-stopped` of lost replicas that are replaced; `balance-begun`,
    `balance-ended`, `balance-cancelled`, naming the brokers that triggered an automatic balance; `scale-out-` and
    `scale-in-` with `begun`, `ended`, `stopped` or `waits`, of nodes added and removed by load; `drain-` of machines
    that Ray drains.
    """

    # Grows with each event.
    number: int
    # By the clock of the node that saw or decided it.
    timestamp_ms: int
    kind: str
    # The nodes (`broker-4`), topics or partitions (`orders-0`) concerned; of many the first ones.
    subjects: tuple[str, ...]
    reason: str
