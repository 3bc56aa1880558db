"""The sync `Admin`: checks arguments, runs `AsyncAdmin` on the IO thread. Kafka: Admin (A56, A57, B45 to B47, G11)."""

from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from functools import partial
from random import Random
from typing import Any, Literal, ParamSpec, TypeVar, Unpack
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
from rayka.client.admin.admin_configs import changes_of, resource_of
from rayka.client.admin.admin_group_results import GroupDescription, GroupListing, GroupOffset, OffsetReset
from rayka.client.admin.admin_groups import target_of
from rayka.client.admin.admin_load_results import (
    BalancePlan,
    BalanceStatus,
    ClusterLoad,
    DrainInfo,
    EventInfo,
)
from rayka.client.admin.admin_partition_results import (
    BrokerLogDirs,
    ConfigValue,
    ElectionOutcome,
    PartitionReassignment,
)
from rayka.client.admin.admin_results import ClusterSummary, QuorumInfo, TopicDescription
from rayka.client.admin.async_admin import AsyncAdmin
from rayka.client.arguments import Moment, int_of, partition_of, text_of
from rayka.client.bootstrap import DEFAULT_CLUSTER, ClusterHandle, resolve
from rayka.client.io_thread import SyncClient, wait_for
from rayka.config.client_config import AdminConfig
from rayka.config.topic_config import TopicConfig
from rayka.errors import (
    ClosedError,
    InvalidArgument,
    InvalidPartitions,
    InvalidReplicaAssignment,
    InvalidReplicationFactor,
)
from rayka.ids import TopicPartition
from rayka.options import AdminOptions
from rayka.protocol.events import EVENTS_MAX, NO_EVENT
from rayka.protocol.groups import GroupState
from rayka.protocol.load import MOVES_AS_CONFIGURED, MOVES_AT_ONCE_MAX
from rayka.protocol.topics import ElectionType, NewPartitions, NewTopic

P = ParamSpec("P")
ResultT = TypeVar("ResultT")


class SyncAdmin(SyncClient):
    """Runs methods of an `AsyncAdmin` for callers on other threads."""

    def __init__(self, async_admin: AsyncAdmin) -> None:
        self._async_admin = async_admin
        self._is_closed = False

    def __repr__(self) -> str:
        return f"<Admin cluster={self._async_admin.cluster_name}{' closed' * self._is_closed}>"

    def close(self) -> None:
        """Ends; closing again does nothing."""
        self._is_closed = True

    def _run(
        self, work: Callable[P, Coroutine[Any, Any, ResultT]], *arguments: P.args, **options: P.kwargs
    ) -> ResultT:
        """Returns the result of the work. Every public method ends in this call, because `rayka.aio` overrides it to
        return an awaitable instead.
        """
        self._check_open()
        return wait_for(partial(work, *arguments, **options), self._async_admin.timeout_ms, caller=self)

    def _check_open(self) -> None:
        if self._is_closed:
            raise ClosedError(f"{self!r}: make a new Admin")


class LoadAdmin(SyncAdmin):
    """The methods of `Admin` about load, balance, drains and events. Rayka's own."""

    def describe_load(self, topics: Iterable[str] | None = None) -> ClusterLoad:
        """Returns the load of every broker (bytes and records in and out a second, processor, disk) and the partitions
        with the most load, of these topics or of all.

        Brokers report every `broker.load.report.interval.ms` (5 s) to the active controller, which answers with means
        over up to twelve reports; after a change of controller the load of a broker is unknown until its next report.
        Each broker names up to eight partitions. Raises UnknownTopicOrPartition.
        """
        return self._run(self._async_admin.describe_load, names_of(topics))

    def balance(self, *, dry_run: bool = False, moves: int | None = None) -> BalancePlan:
        """Plans moves of replicas and preferred leaders that give every broker its share, and begins the plan.

        `moves` partitions move at a time (1 to 100; None: `balancer.moves.max`). With `dry_run` nothing is changed.
        Goals in their order: replicas on distinct racks and machines, no disk above 80 %, evenness of bytes, of
        leaders, of traffic. A cluster that is even to within 10 % has an empty plan. Internal topics stay where they
        are.

        Returns when the first moves have begun, or the balance that is already under way. The active controller carries
        out the plan, and its successor continues it. `describe_balance` shows the progress, `cancel_balance` ends it.
        Raises InvalidRequest while another reassignment is under way, naming it; UnavailableError when not all brokers
        have reported their load in time.
        """
        if moves is not None and not 1 <= int_of(moves, "moves") <= MOVES_AT_ONCE_MAX:
            raise InvalidArgument(f"moves: expected 1 to {MOVES_AT_ONCE_MAX}, found {moves}")
        return self._run(self._async_admin.balance, 0 if dry_run else moves or MOVES_AS_CONFIGURED)

    def describe_balance(self) -> BalanceStatus:
        """Returns the progress of the balance under way, or the outcome of the last one."""
        return self._run(self._async_admin.describe_balance)

    def cancel_balance(self) -> bool:
        """Cancels the balance under way, requested or automatic; returns whether there was one.

        No further move begins, and moves under way are reverted.
        """
        return self._run(self._async_admin.cancel_balance)

    def describe_drains(self) -> list[DrainInfo]:
        """The brokers and coordinators that are emptied, for whichever cause, and how far each is; a drain that is
        over is not among them.
        """
        return self._run(self._async_admin.describe_drains)

    def cancel_drain(self, broker_id: int) -> bool:
        """Ends the drain that `drain_broker` began: partitions on their way go back where they can, and the broker
        takes replicas again. Returns whether there was one. Raises BrokerIdNotRegistered.
        """
        return self._run(self._async_admin.cancel_drain, int_of(broker_id, "node_id"))

    def events(self, *, since: int | None = None, count: int = EVENTS_MAX) -> list[EventInfo]:
        """Returns the newest `count` events, the oldest first: changes of the cluster and its decisions, with causes.

        `since`: the number of an event; only later events are returned. The cluster keeps the newest 1,000 events over
        changes of the active controller and restarts; a cluster of an earlier version of Rayka has none. A broker
        answers when no active controller has answered for 2 s.
        """
        after = NO_EVENT if since is None else int_of(since, "since")
        if after < NO_EVENT:
            raise InvalidArgument(f"since: expected the number of an event, found {since}")
        if not 1 <= int_of(count, "count") <= EVENTS_MAX:
            raise InvalidArgument(f"count: expected 1 to {EVENTS_MAX}, found {count}")
        return self._run(self._async_admin.events, after, count)


class GroupAdmin(SyncAdmin):
    """The methods of `Admin` about groups and their committed offsets. Kafka: Admin (E10)."""

    def list_groups(self, states: Iterable[str] | None = None) -> list[GroupListing]:
        """Returns all groups, or the groups in these states (such as "Empty" or "Stable"), sorted by id.

        Asks every broker in use. Raises ValueError for a state that groups do not have.
        """
        wanted = None if states is None else tuple(_state(each) for each in names_of(states) or ())
        return self._run(self._async_admin.groups.list_groups, wanted)

    def describe_group(self, group_id: str) -> GroupDescription:
        """Returns the group's state and its members with their assigned partitions.

        Raises GroupIdNotFound, InvalidGroupId.
        """
        return self._run(self._async_admin.groups.describe, text_of(group_id, "group_id"))

    def delete_group(self, group_id: str) -> None:
        """Forgets the group and its committed offsets.

        Raises NonEmptyGroup while the group has members, GroupIdNotFound, InvalidGroupId.
        """
        return self._run(self._async_admin.groups.delete, text_of(group_id, "group_id"))

    def group_offsets(self, group_id: str) -> list[GroupOffset]:
        """Returns the group's committed offsets and lags, sorted by partition; empty for an unknown group.

        Leaders have up to 3 s to name the end offsets. Raises InvalidGroupId.
        """
        return self._run(self._async_admin.groups.offsets, text_of(group_id, "group_id"))

    def reset_group_offsets(
        self,
        group_id: str,
        *,
        to: Literal["earliest", "latest"] | int | Mapping[TopicPartition, int] | None = None,
        timestamp: Moment | None = None,
        shift_by: int | None = None,
        scope: Iterable[str | TopicPartition] | None = None,
        dry_run: bool = False,
    ) -> list[OffsetReset]:
        """Commits other offsets for a group without members; returns them, sorted by partition.

        Takes exactly one target. `to`: the earliest or latest offset, an offset, or an offset by partition.
        `timestamp`: the first record at or after this moment (see `Consumer.seek_to_timestamp`; or in ms), else the
        log's end. `shift_by`: this many records after the committed offset. An offset outside a log becomes the nearest
        end of the log. `scope` names topics and partitions; it defaults to the partitions that `to` names, else to
        those with committed offsets. With `dry_run` nothing is committed.

        Raises NonEmptyGroup while the group has members, GroupIdNotFound when nothing is committed and no scope named,
        UnknownTopicOrPartition, InvalidRequest for a partition without a target offset, InvalidGroupId.
        """
        target = target_of(to, timestamp, shift_by)
        named = None if scope is None else _scope(scope)
        name = text_of(group_id, "group_id")
        return self._run(self._async_admin.groups.reset_offsets, name, target, named, dry_run=bool(dry_run))


def _state(name: str) -> GroupState:
    try:
        return GroupState(name)
    except ValueError:
        known = ", ".join(repr(each.value) for each in GroupState)
        raise InvalidArgument(f"states: expected some of {known}, found {name!r}") from None


def _scope(given: Any) -> list[str | TopicPartition]:
    if isinstance(given, (str, TopicPartition)) or not isinstance(given, Iterable):
        raise TypeError(f"scope: expected a list of topics and partitions, found {given!r}")
    return [each if isinstance(each, str) else partition_of(each) for each in given]


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

    `default_api_timeout_ms` bounds every call. Every call raises UnavailableError when no controller answers in time,
    ClosedError after `close`, and TypeError for an argument of a wrong type. A call that changes something returns when
    every usable broker knows the change. The constructor raises ConfigError, ClusterNotFound. Kafka: Admin.
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
        `[[1, 2], [2, 3]]`. Without `assignments` replicas are placed over racks and brokers. When an answer was lost
        and the repeated request finds a topic equal to the request, that topic counts as created by this call.

        With `if_not_exists` an existing topic is returned unchanged, so several callers may create the same topic; a
        warning in the log names each difference from the request.

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
        return self._run(self._async_admin.create_topic, topic, if_not_exists=bool(if_not_exists))

    def delete_topic(self, name: str) -> None:
        """Deletes the topic with all its records; returns when every broker has dropped it.

        Raises UnknownTopicOrPartition.
        """
        return self._run(self._async_admin.delete_topic, text_of(name, "name"))

    def list_topics(self) -> list[str]:
        """The names of all topics, sorted."""
        return self._run(self._async_admin.list_topics)

    def describe_topic(self, name: str) -> TopicDescription:
        """Returns the topic's id, explicit configuration and partitions: leader, replicas, ISR, lag of each replica,
        and the logs on the brokers' disks: bytes, segments, oldest record, and how compaction stands.

        Each broker has up to 3 s to report its logs; the logs of a broker that does not answer are None. Raises
        UnknownTopicOrPartition.
        """
        return self._run(self._async_admin.describe_topic, text_of(name, "name"))

    def describe_topics(self, names: Iterable[str] | None = None) -> list[TopicDescription]:
        """Describes several topics, or with None all, sorted by name. See `describe_topic`."""
        return self._run(self._async_admin.describe_topics, names_of(names))

    def create_partitions(
        self, name: str, partitions: int, *, assignments: Assignments | None = None
    ) -> TopicDescription:
        """Adds partitions until the topic has `partitions` in all; returns the topic, once every broker knows them.

        Afterwards keys map to other partitions. `assignments` names the replicas of each new partition. Raises
        UnknownTopicOrPartition, InvalidPartitions (the topic has as many already), InvalidReplicaAssignment. Kafka:
        CreatePartitionsRequest.
        """
        count = count_of(partitions, "partitions", InvalidPartitions)
        placed = assignments_of(assignments)
        return self._run(
            self._async_admin.create_partitions, NewPartitions(text_of(name, "name"), count, placed)
        )

    def delete_records(self, offsets: Mapping[TopicPartition, int]) -> dict[TopicPartition, int]:
        """Deletes the records below an offset of each partition; -1 is the high watermark: all committed records.

        Returns the low watermark of each partition: the lowest log start offset of its live replicas, at or above the
        requested offset. Raises OffsetOutOfRange for an offset above the high watermark, UnknownTopicOrPartition,
        PolicyViolation, and the last retriable error when leaders did not finish in time; deleted records stay deleted.
        """
        return self._run(self._async_admin.partitions.delete_records, offsets_of(offsets))

    # ---- Configuration ----

    def describe_configs(
        self, *, topic: str | None = None, broker: int | str | None = None
    ) -> dict[str, ConfigValue]:
        """Returns the configuration in force, by Kafka's dotted names, and the source of each value.

        The resource is a topic, a broker by its id, or with `broker="all"` the settings for all brokers. Raises
        UnknownTopicOrPartition, BrokerIdNotRegistered. Kafka: DescribeConfigsRequest.
        """
        return self._run(self._async_admin.configs.describe, resource_of(topic, broker))

    def alter_configs(
        self,
        configs: Mapping[str, Any],
        *,
        topic: str | None = None,
        broker: int | str | None = None,
    ) -> None:
        """Sets these keys, and deletes keys with the value None, so that their default counts again. Other keys stay.

        Makes all changes or none. Names the resource like `describe_configs`. Raises ConfigError for an unknown key or
        a wrong value, UnknownTopicOrPartition, and InvalidConfig or InvalidRequest for a key that cannot be altered
        while nodes run. Kafka: IncrementalAlterConfigsRequest.
        """
        resource = resource_of(topic, broker)
        changes = changes_of(resource, configs)
        return self._run(self._async_admin.configs.alter, resource, changes)

    # ---- Replicas and leaders ----

    def alter_partition_reassignments(
        self, reassignments: Mapping[TopicPartition, Sequence[int] | None]
    ) -> None:
        """Gives each partition other replicas, by broker id and the preferred leader first; None cancels.

        Returns when the new replicas are known. The new replicas catch up in the background; once they are in sync the
        old replicas are removed. Each partition is changed on its own: the first refusal is raised after the other
        changes have begun. Raises UnknownTopicOrPartition, InvalidReplicaAssignment (unknown brokers, no brokers),
        NoReassignmentInProgress (nothing to cancel). Kafka: AlterPartitionReassignmentsRequest.
        """
        return self._run(self._async_admin.partitions.alter_reassignments, assignment_of(reassignments))

    def drain_broker(self, broker_id: int, *, dry_run: bool = False) -> dict[TopicPartition, tuple[int, ...]]:
        """Moves every replica of the broker to other brokers; returns the new replicas of each partition, empty for a
        broker without replicas. With `dry_run` returns the plan and changes nothing.

        Cordons the broker first (`cordoned.log.dirs=*`): a cordoned broker gets no replica of a new topic, and no
        balance fills it again; `alter_configs({"cordoned.log.dirs": None}, broker=broker_id)` takes that back. The
        target of a replica is an active broker that is not cordoned, has no replica of the partition, and whose disks
        stay below 80 % with the replica; preferred are a rack without a replica of the partition, then the fewest
        replicas. Returns when the new replicas are known; `list_partition_reassignments` shows which still catch up.
        The cluster goes on with the drain until the broker holds nothing, whichever node ends; `describe_drains` says
        how far the drain is, `cancel_drain` ends it. Raises BrokerIdNotRegistered; InvalidReplicationFactor naming the
        topics for which too few brokers remain; NoDiskRoom.
        """
        return self._run(self._async_admin.drain_broker, int_of(broker_id, "node_id"), dry_run=dry_run)

    def list_partition_reassignments(
        self, partitions: Iterable[TopicPartition] | None = None
    ) -> list[PartitionReassignment]:
        """Returns the reassignments under way, of these partitions or of all."""
        return self._run(self._async_admin.partitions.list_reassignments, partitions_of(partitions))

    def elect_leaders(
        self, partitions: Iterable[TopicPartition] | None = None, *, unclean: bool = False
    ) -> list[ElectionOutcome]:
        """Elects the preferred replica of each partition; with None, of every partition that another replica leads.

        With `unclean`: elects any live replica of a partition without a leader, and loses the records that only other
        replicas have. Each partition has its own outcome: ElectionNotNeeded, PreferredLeaderNotAvailable,
        EligibleLeadersNotAvailable, UnknownTopicOrPartition. Kafka: ElectLeadersRequest.
        """
        election = ElectionType.UNCLEAN if unclean else ElectionType.PREFERRED
        return self._run(self._async_admin.partitions.elect_leaders, election, partitions_of(partitions))

    # ---- The cluster ----

    def describe_cluster(self) -> ClusterSummary:
        """Returns the cluster's id, active controller and registered brokers: state, rack, replicas and leaders."""
        return self._run(self._async_admin.describe_cluster)

    def log_dirs(
        self, brokers: Iterable[int] | None = None, *, topics: Iterable[str] | None = None
    ) -> list[BrokerLogDirs]:
        """Returns the data directories of these brokers, or of all, with their replicas of these topics, or of all.

        Sizes are in bytes. `error` of a broker that does not answer within 3 s says so. Raises BrokerIdNotRegistered.
        Kafka: DescribeLogDirsRequest.
        """
        ids = None if brokers is None else tuple(int_of(each, "node_id") for each in brokers)
        return self._run(self._async_admin.partitions.log_dirs, ids, names_of(topics))

    def alter_replica_log_dirs(self, broker_id: int, replicas: Mapping[TopicPartition, str]) -> None:
        """Moves replicas of the broker to other data directories of the broker, by the paths that `log_dirs` shows.

        Returns when the moves have begun. A replica is copied while it serves, then the copy takes its place. During
        the move `log_dirs` shows the copy as a future replica with its lag. A move that fails (the target directory is
        full, or goes offline) leaves the replica in its place and is listed among the broker's problems in
        `rayka status`. A replica already in the named directory stays there.

        Raises LogDirNotFound, InvalidReplicaAssignment (the directory is cordoned), ReplicaNotAvailable (the broker has
        no such replica), KafkaStorageError (the directory is offline), UnknownTopicOrPartition, BrokerIdNotRegistered;
        the first refusal is raised after the other moves have begun. Kafka: AlterReplicaLogDirsRequest.
        """
        return self._run(
            self._async_admin.partitions.alter_log_dirs, int_of(broker_id, "node_id"), paths_of(replicas)
        )

    def unregister_broker(self, broker_id: int) -> None:
        """Forgets a broker that was stopped for good, and its configuration.

        Raises BrokerIdNotRegistered, and InvalidRequest for a broker that runs or holds replicas (`drain_broker` moves
        them). Kafka: UnregisterBrokerRequest, which checks neither.
        """
        return self._run(self._async_admin.unregister_broker, int_of(broker_id, "node_id"))

    def describe_quorum(self) -> QuorumInfo:
        """Returns the leader of the metadata quorum, its voters and observers, and the lag of each.

        Raises UnavailableError with the answer of each controller while there is no leader.
        """
        return self._run(self._async_admin.quorum.describe)

    def add_raft_voter(self, node_id: int, directory_id: UUID | None = None) -> None:
        """Makes a controller that follows the metadata a voter; returns when the change is committed.

        `directory_id` defaults to the directory that the node follows with. Raises InvalidRequest when the node is no
        controller, DuplicateVoter when a replica of the node votes already, RequestTimedOut when the node has not
        caught up or another change is under way, and UnavailableError when the node does not follow, or when the answer
        was lost and the change may have been made.
        """
        return self._run(self._async_admin.quorum.add_voter, int_of(node_id, "node_id"), directory_id)

    def remove_raft_voter(self, node_id: int, directory_id: UUID | None = None) -> None:
        """Takes the vote from a controller; returns when the change is committed. The controller goes on following.

        Raises VoterNotFound, also for the last voter, RequestTimedOut while another change is under way, and
        UnavailableError when the answer was lost and the change may have been made.
        """
        return self._run(self._async_admin.quorum.remove_voter, int_of(node_id, "node_id"), directory_id)
