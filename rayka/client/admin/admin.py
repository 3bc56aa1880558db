"""A cluster managed: the sync face of `AsyncAdmin`. Kafka: Admin (A56, A57, B45 to B47, G11)."""

from collections.abc import Iterable, Mapping, Sequence
from random import Random
from typing import Any, Unpack
from uuid import UUID

from rayka.client.admin.admin_arguments import (
    Assignments,
    assignment_of,
    assignments_of,
    count_of,
    count_or_default,
    names_of,
    offsets_of,
    partitions_of,
    paths_of,
)
from rayka.client.admin.admin_brain import AsyncAdmin
from rayka.client.admin.admin_configs import changes_of, resource_of
from rayka.client.admin.admin_group_part import GroupAdmin
from rayka.client.admin.admin_load_part import LoadAdmin
from rayka.client.admin.admin_partition_results import (
    BrokerLogDirs,
    ConfigValue,
    ElectionOutcome,
    PartitionReassignment,
)
from rayka.client.admin.admin_results import ClusterSummary, QuorumInfo, TopicDescription
from rayka.client.arguments import int_of, text_of
from rayka.client.bootstrap import DEFAULT_CLUSTER, ClusterHandle, resolve
from rayka.config.client_config import AdminConfig
from rayka.config.topic_config import TopicConfig
from rayka.errors import InvalidPartitions, InvalidReplicaAssignment, InvalidReplicationFactor
from rayka.ids import TopicPartition
from rayka.options import AdminOptions
from rayka.protocol.topics import ElectionType, NewPartitions, NewTopic


class Admin(GroupAdmin, LoadAdmin):
    """Manages topics, partitions, brokers, groups and the quorum. `with` closes it; thread-safe.

    Options are Kafka's, as keywords or dotted in the dict `config`; an unknown one is a ConfigError that names the
    nearest:

        default_api_timeout_ms: int = 60000
        request_timeout_ms: int = 30000
        retry_backoff_ms: int = 100
        retry_backoff_max_ms: int = 1000
        metadata_max_age_ms: int = 300000
        metadata_max_idle_ms: int = 300000
        transport: "auto" | "ray" = "auto"

    `default_api_timeout_ms` bounds every call.
    Every call raises UnavailableError when no controller answers in time, and ClosedError; an argument of a wrong type
    is a TypeError. What changes something returns when every usable broker knows it. Raises ConfigError,
    ClusterNotFound. Kafka: Admin.
    """

    def __init__(
        self,
        cluster: str | ClusterHandle = DEFAULT_CLUSTER,
        *,
        config: Mapping[str, Any] | None = None,
        **options: Unpack[AdminOptions],
    ) -> None:
        parsed = AdminConfig.given(config, options, what="admin")
        super().__init__(AsyncAdmin(resolve(cluster), parsed, Random()))

    # ---- Topics ----

    def create_topic(
        self,
        name: str,
        *,
        partitions: int | None = None,
        replication_factor: int | None = None,
        assignments: Assignments | None = None,
        configs: Mapping[str, Any] | None = None,
        if_not_exists: bool = False,
    ) -> TopicDescription:
        """Creates the topic and returns it, once every broker knows it. Counts default to the cluster's.

        `assignments`, instead of the counts, names the replicas of each partition in order, the preferred leader first:
        `[[1, 2], [2, 3]]`. Else they are placed over racks and brokers. When an answer was lost and the repeated
        request finds a topic that is as it was asked for, that is the one it created.

        With `if_not_exists` a topic that exists is returned as it is; a warning in the log says where it is not what
        was asked for. Then it does not matter which of several callers creates it.

        Raises TopicAlreadyExists, InvalidTopic, InvalidPartitions, InvalidReplicationFactor (also with too few
        brokers), InvalidReplicaAssignment, and ConfigError for a key that topics do not have.
        """
        placed = assignments_of(assignments)
        if placed is not None and (partitions is not None or replication_factor is not None):
            raise InvalidReplicaAssignment("expected either assignments or counts, found both")
        topic = NewTopic(
            text_of(name, "name"),
            count_or_default(partitions, "partitions", InvalidPartitions),
            count_or_default(replication_factor, "replication_factor", InvalidReplicationFactor),
            TopicConfig.parse({} if configs is None else configs, what=f"topic {name!r}").overrides(),
            placed,
        )
        return self._run(self._brain.create_topic, topic, if_not_exists=bool(if_not_exists))

    def delete_topic(self, name: str) -> None:
        """Deletes the topic with all its records; returns when every broker has dropped it.

        Raises UnknownTopicOrPartition.
        """
        return self._run(self._brain.delete_topic, text_of(name, "name"))

    def list_topics(self) -> list[str]:
        """The names of all topics, sorted."""
        return self._run(self._brain.list_topics)

    def describe_topic(self, name: str) -> TopicDescription:
        """The topic's id, explicit configuration and partitions: leader, replicas, ISR, how far each is behind, and the
        logs on the brokers' disks: bytes, segments, oldest record, and how compaction stands.

        The brokers are asked for that, each for up to 3 s; of one that does not answer it is unknown (None).
        Raises UnknownTopicOrPartition.
        """
        return self._run(self._brain.describe_topic, text_of(name, "name"))

    def describe_topics(self, names: Iterable[str] | None = None) -> list[TopicDescription]:
        """As `describe_topic`, of several topics or, with None, of all, sorted by name."""
        return self._run(self._brain.describe_topics, names_of(names))

    def create_partitions(
        self, name: str, partitions: int, *, assignments: Assignments | None = None
    ) -> TopicDescription:
        """Adds partitions, so that the topic has `partitions` in all; returns it, once every broker knows them.

        Keys go to other partitions from then on. `assignments` names the replicas of each new one. Raises
        UnknownTopicOrPartition, InvalidPartitions (no more than it has), InvalidReplicaAssignment. Kafka:
        CreatePartitionsRequest.
        """
        count = count_of(partitions, "partitions", InvalidPartitions)
        placed = assignments_of(assignments)
        return self._run(self._brain.create_partitions, NewPartitions(text_of(name, "name"), count, placed))

    def delete_records(self, offsets: Mapping[TopicPartition, int]) -> dict[TopicPartition, int]:
        """Deletes the records below an offset of each partition; -1 is the high watermark: all that are committed.

        Returns the low watermark of each: the lowest log start offset of its live replicas, at or above what was asked
        for. Raises OffsetOutOfRange above the high watermark, UnknownTopicOrPartition, PolicyViolation, and
        the last retriable error when the leaders did not get it done in time; what was deleted stays deleted.
        """
        return self._run(self._brain.partitions.delete_records, offsets_of(offsets))

    # ---- Configuration ----

    def describe_configs(
        self, *, topic: str | None = None, broker: int | str | None = None
    ) -> dict[str, ConfigValue]:
        """The configuration in force, by Kafka's dotted names, and where each value comes from.

        Of a topic; of a broker by its id; or, with `broker="all"`, what was set for all brokers. Raises
        UnknownTopicOrPartition, BrokerIdNotRegistered. Kafka: DescribeConfigsRequest.
        """
        return self._run(self._brain.configs.describe, resource_of(topic, broker))

    def alter_configs(
        self,
        configs: Mapping[str, Any],
        *,
        topic: str | None = None,
        broker: int | str | None = None,
    ) -> None:
        """Sets these keys, and deletes those with the value None, so that the default counts again; others stay.

        All of them or none. The resource as in `describe_configs`. Raises ConfigError for an unknown key or a wrong
        value, UnknownTopicOrPartition, and InvalidConfig or InvalidRequest for what cannot be altered while
        nodes run. Kafka: IncrementalAlterConfigsRequest.
        """
        resource = resource_of(topic, broker)
        changes = changes_of(resource, configs)
        return self._run(self._brain.configs.alter, resource, changes)

    # ---- Replicas and leaders ----

    def alter_partition_reassignments(
        self, reassignments: Mapping[TopicPartition, Sequence[int] | None]
    ) -> None:
        """Gives each partition other replicas, by broker id and the preferred leader first; None cancels.

        Returns when the new replicas are known; they catch up in the background, and when they are in sync the old ones
        go. Each partition on its own: the first that is refused is raised when the others are under way. Raises
        UnknownTopicOrPartition, InvalidReplicaAssignment (unknown brokers, none), NoReassignmentInProgress (nothing to
        cancel). Kafka: AlterPartitionReassignmentsRequest.
        """
        return self._run(self._brain.partitions.alter_reassignments, assignment_of(reassignments))

    def drain_broker(self, broker_id: int, *, dry_run: bool = False) -> dict[TopicPartition, tuple[int, ...]]:
        """Gives every replica on the broker to others; returns the new replicas of each partition, nothing when it had
        none. With `dry_run` it returns them and changes nothing.

        The broker is cordoned first (`cordoned.log.dirs=*`): it gets no replica of a new topic, and no balance fills it
        again; `alter_configs({"cordoned.log.dirs": None}, broker=broker_id)` takes that back. Each replica goes to an
        active broker that is not cordoned and has none of the partition, whose disks stay below 80 % with it, in a rack
        that has none if there is one, with the fewest replicas by then. Returns when the new replicas are known;
        `list_partition_reassignments` says which still catch up. Raises BrokerIdNotRegistered; InvalidReplicationFactor
        that names the topics for which too few brokers remain; NoDiskRoom.
        """
        return self._run(self._brain.drain_broker, int_of(broker_id, "node_id"), dry_run=dry_run)

    def list_partition_reassignments(
        self, partitions: Iterable[TopicPartition] | None = None
    ) -> list[PartitionReassignment]:
        """The reassignments under way, of these partitions or of all."""
        return self._run(self._brain.partitions.list_reassignments, partitions_of(partitions))

    def elect_leaders(
        self, partitions: Iterable[TopicPartition] | None = None, *, unclean: bool = False
    ) -> list[ElectionOutcome]:
        """Makes the preferred replica the leader of each partition; with None, of all that have another one.

        With `unclean`: of a partition without a leader any live replica, which loses what only others have.
        Each outcome is its own: ElectionNotNeeded, PreferredLeaderNotAvailable, EligibleLeadersNotAvailable,
        UnknownTopicOrPartition. Kafka: ElectLeadersRequest.
        """
        election = ElectionType.UNCLEAN if unclean else ElectionType.PREFERRED
        return self._run(self._brain.partitions.elect_leaders, election, partitions_of(partitions))

    # ---- The cluster ----

    def describe_cluster(self) -> ClusterSummary:
        """The cluster's id, active controller and registered brokers: their state, rack, replicas and leaders."""
        return self._run(self._brain.describe_cluster)

    def log_dirs(
        self, brokers: Iterable[int] | None = None, *, topics: Iterable[str] | None = None
    ) -> list[BrokerLogDirs]:
        """What these brokers, or all, have in their data directories, of these topics or of all; sizes in bytes.

        Of a broker that does not answer within 3 s, `error` says so. Raises BrokerIdNotRegistered. Kafka:
        DescribeLogDirsRequest.
        """
        ids = None if brokers is None else tuple(int_of(each, "node_id") for each in brokers)
        return self._run(self._brain.partitions.log_dirs, ids, names_of(topics))

    def alter_replica_log_dirs(self, broker_id: int, replicas: Mapping[TopicPartition, str]) -> None:
        """Moves replicas of the broker to other data directories of its own, by their paths as `log_dirs` has them.

        Returns when the moves have begun: each replica is copied while it serves, and then the copy takes its place.
        `log_dirs` has the copy meanwhile, as a future replica with its lag, then the replica in its new place.
        A move that ends early (that directory is full, or fails) is among the broker's problems in `rayka status`, and
        the replica stays where it is; so it does when it is asked for in its own directory. Raises LogDirNotFound,
        InvalidReplicaAssignment (that directory is cordoned), ReplicaNotAvailable (the broker has no such replica),
        KafkaStorageError (that directory is offline),
        UnknownTopicOrPartition, BrokerIdNotRegistered; the first refusal when the others are under way. Kafka:
        AlterReplicaLogDirsRequest.
        """
        return self._run(
            self._brain.partitions.alter_log_dirs, int_of(broker_id, "node_id"), paths_of(replicas)
        )

    def unregister_broker(self, broker_id: int) -> None:
        """Forgets a broker that was stopped for good, and its configuration.

        Raises BrokerIdNotRegistered, and InvalidRequest while it runs, or holds replicas (`drain_broker` moves
        them). Kafka: UnregisterBrokerRequest, which does not look.
        """
        return self._run(self._brain.unregister_broker, int_of(broker_id, "node_id"))

    def describe_quorum(self) -> QuorumInfo:
        """The leader of the metadata quorum, its voters and observers, and how far each is.

        Without a leader UnavailableError says what each controller answered.
        """
        return self._run(self._brain.quorum.describe)

    def add_raft_voter(self, node_id: int, directory_id: UUID | None = None) -> None:
        """Makes a controller that follows the metadata a voter; returns when that is committed.

        Without `directory_id` it is the directory that the node follows with. Raises InvalidRequest when the node is no
        controller, DuplicateVoter when a replica of it votes already, RequestTimedOut when it has not caught up or
        another change is under way, and UnavailableError when the node does not follow, or the answer was lost and the
        change may have been made.
        """
        return self._run(self._brain.quorum.add_voter, int_of(node_id, "node_id"), directory_id)

    def remove_raft_voter(self, node_id: int, directory_id: UUID | None = None) -> None:
        """Takes the vote from a controller; returns when that is committed. It goes on following.

        Raises VoterNotFound, also for the last voter, RequestTimedOut while another change is under way, and
        UnavailableError when the answer was lost and the change may have been made.
        """
        return self._run(self._brain.quorum.remove_voter, int_of(node_id, "node_id"), directory_id)
