"""Results of `Admin` about topics, the cluster and the quorum: frozen values with designed reprs, and `to_dict`."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from enum import StrEnum
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Self
from uuid import UUID

from rayka.ids import BROKER_ONLY, NO_EPOCH, NO_NODE, Role, TopicPartition
from rayka.ports import Message
from rayka.protocol.membership import MetadataBroker, MetadataPartition, MetadataResponse, MetadataTopic
from rayka.protocol.quorum_messages import DescribeQuorumResponse, QuorumReplica
from rayka.protocol.topics import DEFAULT_COUNT, NewTopic

if TYPE_CHECKING:
    from rayka.client.admin.admin_partition_results import LogDir, ReplicaLogInfo


@dataclass(frozen=True)
class AdminResult:
    """The base of all results of `Admin`: frozen, with plain values for programs."""

    def to_dict(self) -> dict[str, Any]:
        """Plain values, fit for JSON; ids are text, and a partition is its topic and its number."""
        plain: dict[str, Any] = {}
        for each in fields(self):
            value = getattr(self, each.name)
            is_partition = isinstance(value, TopicPartition)
            plain |= _plain(value) if is_partition else {each.name: _plain(value)}
        return plain

    @classmethod
    def taken_from(cls, message: Message, **others: Any) -> Self:
        """Copies the fields of the same names from the message; `others` are given by the caller."""
        names = [each.name for each in fields(cls) if each.name not in others]
        return cls(**{each: getattr(message, each) for each in names}, **others)


def _plain(value: Any) -> Any:
    match value:
        case AdminResult():
            return value.to_dict()
        case TopicPartition():
            return {"topic": value.topic, "partition": value.partition}
        case tuple():
            return tuple(map(_plain, value))
        case dict():
            return dict(value)
    return str(value) if isinstance(value, UUID) else value


# The directory and the log of each replica as its broker reports them, by topic id, partition and broker.
Held = Mapping[tuple[UUID, int, int], "tuple[LogDir, ReplicaLogInfo]"]


@dataclass(frozen=True)
class PartitionDescription(AdminResult):
    """One partition: its leader and replicas by node id, and the state of the replicas' logs.

    Equality leaves out the fields that brokers report, because they differ from one request to the next.
    """

    partition: int
    # -1: no leader.
    leader_id: int
    leader_epoch: int
    # The preferred leader first; during a reassignment with the adding and the removing replicas.
    replicas: tuple[int, ...]
    isr: tuple[int, ...]
    # Replicas outside the ISR that may be elected without loss.
    eligible_leader_replicas: tuple[int, ...] = ()
    adding_replicas: tuple[int, ...] = ()
    removing_replicas: tuple[int, ...] = ()
    # Records that each of `replicas` lacks of the leader's log; None: the broker or the leader did not answer, or was
    # not asked.
    lags: tuple[int | None, ...] = field(default=(), compare=False)
    # The log of each of `replicas`; None: unknown.
    logs: "tuple[ReplicaLogInfo | None, ...]" = field(default=(), compare=False, repr=False)
    # Replicas on a full disk: they serve reads and take no records until there is room.
    full_replicas: tuple[int, ...] = field(default=(), compare=False)
    # Replicas whose disk has failed.
    offline_replicas: tuple[int, ...] = field(default=(), compare=False)

    @property
    def is_under_replicated(self) -> bool:
        """Whether a replica that is not being added is missing in the ISR."""
        return any(each not in self.isr for each in self.replicas if each not in self.adding_replicas)

    @property
    def is_offline(self) -> bool:
        """Whether the partition has no leader and can be neither read nor written."""
        return self.leader_id == NO_NODE

    @property
    def leader_log(self) -> "ReplicaLogInfo | None":
        """The leader's log; None: unknown."""
        return self.log_of(self.leader_id)

    def log_of(self, broker_id: int) -> "ReplicaLogInfo | None":
        """The broker's log of the partition; None: unknown, or no replica."""
        return dict(zip(self.replicas, self.logs, strict=False)).get(broker_id)

    def to_dict(self) -> dict[str, Any]:
        """Plain values, fit for JSON."""
        return {**super().to_dict(), "is_under_replicated": self.is_under_replicated}

    @classmethod
    def of(cls, topic_id: UUID, partition: MetadataPartition, held: Held) -> Self:
        keys = {each: (topic_id, partition.partition, each) for each in partition.replicas}
        known = {each: held[key] for each, key in keys.items() if key in held}
        ends = {each: log.log_end_offset for each, (_, log) in known.items()}
        end = ends.get(partition.leader_id)
        bad = {
            each: directory for each, (directory, _) in known.items() if directory.is_full or directory.error
        }
        return cls.taken_from(
            partition,
            # Never below 0: a replica that answers later than its leader may report a higher end.
            lags=tuple(
                None if end is None or each not in ends else max(0, end - ends[each])
                for each in partition.replicas
            ),
            logs=tuple(known[each][1] if each in known else None for each in partition.replicas),
            full_replicas=tuple(each for each, directory in bad.items() if directory.is_full),
            offline_replicas=tuple(each for each, directory in bad.items() if not directory.is_full),
        )


@dataclass(frozen=True)
class TopicDescription(AdminResult):
    """One topic and its partitions."""

    name: str
    topic_id: UUID
    partitions: tuple[PartitionDescription, ...]
    # The keys set explicitly, by Kafka's dotted names.
    configs: dict[str, str]

    def __repr__(self) -> str:
        return f"<TopicDescription {self.name} partitions={len(self.partitions)} configs={self.configs}>"

    def is_as_asked(self, topic: NewTopic) -> bool:
        """Whether the topic is as a request for `topic` would have created it."""
        return self.configs == topic.configs and not self.difference(topic)

    def difference(self, topic: NewTopic) -> str:
        """Differences from the requested topic, such as `3 instead of 6 partitions`; empty if there are none."""
        replicas = tuple(each.replicas for each in self.partitions)
        differences = []
        if topic.assignments is not None and topic.assignments != replicas:
            differences.append(
                f"replicas {[*map(list, replicas)]} instead of {[*map(list, topic.assignments)]}"
            )
        if topic.partition_count not in (DEFAULT_COUNT, len(replicas)):
            differences.append(f"{len(replicas)} instead of {topic.partition_count} partitions")
        if topic.replication_factor not in (DEFAULT_COUNT, len(replicas[0])):
            differences.append(f"replication factor {len(replicas[0])} instead of {topic.replication_factor}")
        for key, value in topic.configs.items():
            if self.configs.get(key) != value:
                differences.append(f"{key}={self.configs.get(key, '(the default)')} instead of {value}")
        return ", ".join(differences)

    @classmethod
    def of(cls, topic: MetadataTopic, held: Held = MappingProxyType({})) -> Self:
        """From the controller's metadata; without `held` lags and logs are unknown."""
        partitions = tuple(PartitionDescription.of(topic.topic_id, each, held) for each in topic.partitions)
        return cls(topic.name, topic.topic_id, partitions, dict(topic.configs))


class BrokerState(StrEnum):
    """The state of a broker by the controller. A fenced broker leads no partition and is in no ISR."""

    ACTIVE = "active"
    FENCED = "fenced"
    SHUTTING_DOWN = "shutting-down"


@dataclass(frozen=True)
class BrokerDescription(AdminResult):
    """One registered broker or coordinator, with the counts of its replicas and of the partitions it leads."""

    node_id: int
    host: str
    is_fenced: bool
    # Paths on the node's machine.
    data_dirs: tuple[str, ...]
    state: BrokerState = BrokerState.ACTIVE
    # Empty: the broker has no rack.
    rack: str = ""
    # Tells registrations of the same id apart.
    broker_epoch: int = NO_EPOCH
    # The failed ones of `data_dirs`.
    offline_data_dirs: tuple[str, ...] = ()
    replica_count: int = 0
    leader_count: int = 0
    # A broker, a coordinator (which holds internal partitions only), or both.
    roles: tuple[Role, ...] = BROKER_ONLY

    @classmethod
    def of(cls, broker: MetadataBroker, topics: Sequence[MetadataTopic]) -> Self:
        partitions = [partition for topic in topics for partition in topic.partitions]
        offline = broker.offline_directories
        return cls.taken_from(
            broker,
            data_dirs=tuple(each.path for each in broker.directories),
            state=_state_of(broker),
            offline_data_dirs=tuple(each.path for each in broker.directories if each.directory_id in offline),
            replica_count=sum(broker.node_id in each.replicas for each in partitions),
            leader_count=sum(broker.node_id == each.leader_id for each in partitions),
        )


def _state_of(broker: MetadataBroker) -> BrokerState:
    if broker.is_fenced:
        return BrokerState.FENCED
    return BrokerState.SHUTTING_DOWN if broker.is_in_controlled_shutdown else BrokerState.ACTIVE


@dataclass(frozen=True)
class ClusterSummary(AdminResult):
    """The cluster as its active controller sees it."""

    name: str
    cluster_id: str
    controller_id: int
    brokers: tuple[BrokerDescription, ...]
    topic_count: int

    def __repr__(self) -> str:
        brokers = [each.node_id for each in self.brokers]
        return f"<ClusterSummary {self.name} controller={self.controller_id} brokers={brokers}>"

    @classmethod
    def of(cls, name: str, response: MetadataResponse) -> Self:
        brokers = tuple(BrokerDescription.of(each, response.topics) for each in response.brokers)
        return cls.taken_from(response, name=name, brokers=brokers, topic_count=len(response.topics))


@dataclass(frozen=True)
class ReplicaState(AdminResult):
    """One replica of the metadata log as the quorum's leader knows it; -1 stands for an unknown figure."""

    node_id: int
    directory_id: UUID
    log_end_offset: int
    # Records between `log_end_offset` and the leader's log end.
    lag: int
    last_fetch_ago_ms: int
    last_caught_up_ago_ms: int

    @classmethod
    def of(cls, replica: QuorumReplica, leader_log_end_offset: int) -> Self:
        end_offset, key = replica.log_end_offset, replica.replica
        lag = max(0, leader_log_end_offset - end_offset) if end_offset >= 0 else -1
        return cls.taken_from(replica, node_id=key.node_id, directory_id=key.directory_id, lag=lag)


@dataclass(frozen=True)
class QuorumInfo(AdminResult):
    """The metadata quorum as its leader, the active controller, sees it. Kafka: QuorumInfo."""

    leader_id: int
    leader_epoch: int
    high_watermark: int
    voters: tuple[ReplicaState, ...]
    observers: tuple[ReplicaState, ...]

    def __repr__(self) -> str:
        voters = [each.node_id for each in self.voters]
        leader = f"leader={self.leader_id} epoch={self.leader_epoch}"
        return f"<QuorumInfo {leader} hw={self.high_watermark} voters={voters}>"

    @classmethod
    def of(cls, response: DescribeQuorumResponse) -> Self:
        replicas = (*response.voters, *response.observers)
        # A leader that removed its own vote is in neither list.
        known = [each.log_end_offset for each in replicas if each.replica.node_id == response.leader_id]
        end_offset = max(known or [each.log_end_offset for each in replicas], default=response.high_watermark)
        return cls.taken_from(
            response,
            voters=tuple(ReplicaState.of(each, end_offset) for each in response.voters),
            observers=tuple(ReplicaState.of(each, end_offset) for each in response.observers),
        )
