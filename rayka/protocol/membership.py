"""Membership of the cluster: metadata, registration and heartbeats of brokers, reports about replicas, status.

Kafka: MetadataRequest, BrokerRegistrationRequest, BrokerHeartbeatRequest (H1-H6), AlterPartitionRequest,
AlterPartitionResponse (B11-B13), AssignReplicasToDirsRequest. `ReportExit` is Rayka's own (decision 033).
"""

from enum import IntEnum, StrEnum
from uuid import UUID

from rayka.errors import ErrorCode
from rayka.ids import (
    BROKER_ONLY,
    FIRST_BROKER_ID,
    FIRST_CONTROLLER_ID,
    NO_EPOCH,
    NO_NODE,
    NO_OFFSET,
    ZERO_ID,
    Role,
)
from rayka.ports import Message, Request
from rayka.protocol.events import REASON_LENGTH_MAX
from rayka.protocol.load import LoadReport
from rayka.protocol.request_parts import PartitionAnswer, PartitionMessage, check_each_once, require

# Of the keys and values in `HeartbeatRequest.started_with`.
SETTINGS_LENGTH_MAX = 1 << 16


class RegisteredDirectory(Message, frozen=True, array_like=True):
    """A data directory of a broker."""

    directory_id: UUID
    # On the broker's machine.
    path: str


# ---- Metadata ------------------------------------------------------------------------------------------------------


class MetadataBroker(Message, frozen=True, array_like=True):
    """A registered broker or coordinator. `roles` are those of its registration."""

    node_id: int
    host: str
    is_fenced: bool
    directories: tuple[RegisteredDirectory, ...]
    rack: str = ""
    broker_epoch: int = NO_EPOCH
    incarnation_id: UUID = ZERO_ID
    is_in_controlled_shutdown: bool = False
    offline_directories: tuple[UUID, ...] = ()
    roles: tuple[Role, ...] = BROKER_ONLY


class MetadataPartition(Message, frozen=True, array_like=True, gc=False):
    """The replicas and leader of one partition. Not tracked by the garbage collector: a topic has thousands, and none
    is part of a cycle.
    """

    partition: int
    # NO_NODE beside the error LEADER_NOT_AVAILABLE.
    leader_id: int
    leader_epoch: int
    replicas: tuple[int, ...]
    isr: tuple[int, ...]
    error_code: ErrorCode = ErrorCode.NONE
    eligible_leader_replicas: tuple[int, ...] = ()
    adding_replicas: tuple[int, ...] = ()
    removing_replicas: tuple[int, ...] = ()


class MetadataTopic(Message, frozen=True, array_like=True):
    """One topic. UNKNOWN_TOPIC_OR_PARTITION: there is no topic of this name."""

    name: str
    topic_id: UUID = ZERO_ID
    partitions: tuple[MetadataPartition, ...] = ()
    configs: dict[str, str] = {}
    error_code: ErrorCode = ErrorCode.NONE


class MetadataResponse(Message, frozen=True, array_like=True):
    """The metadata image of the node that was asked."""

    cluster_id: str
    controller_id: int
    brokers: tuple[MetadataBroker, ...]
    topics: tuple[MetadataTopic, ...]
    # The lowest offset that the node has not applied.
    metadata_offset: int


class MetadataRequest(Request[MetadataResponse], frozen=True, array_like=True):
    """Asks for brokers and topics. A broker answers from its image, the active controller from the newest committed
    one.
    """

    # None: all topics.
    topics: tuple[str, ...] | None = None
    # The node answers after it has applied up to this offset.
    min_metadata_offset: int = NO_OFFSET


# ---- Broker registration and heartbeat -----------------------------------------------------------------------------


class RegisterBrokerResponse(Message, frozen=True, array_like=True):
    """Confirms a registration."""

    # The offset of the registration record (H3).
    broker_epoch: int
    # For the broker's meta.properties.
    cluster_id: str


class RegisterBrokerRequest(Request[RegisterBrokerResponse], frozen=True, array_like=True):
    """Registers a broker process (H2). The process holds the locks of the directories that it names."""

    broker_id: int
    # Empty for directories that were formatted and never registered.
    cluster_id: str
    incarnation_id: UUID
    host: str
    directories: tuple[RegisteredDirectory, ...]
    # The last epoch since which the disk has lost nothing: after a clean shutdown, or under the same kernel boot id.
    previous_broker_epoch: int = NO_EPOCH
    rack: str = ""
    min_metadata_version: int = 1
    max_metadata_version: int = 1
    # The last epoch that the disk knows, whatever was lost since. This process began after that epoch.
    known_broker_epoch: int = NO_EPOCH
    # A broker takes partitions of users' topics. A coordinator takes partitions of internal topics, before brokers do.
    roles: tuple[Role, ...] = BROKER_ONLY

    def check(self) -> None:
        is_broker_id = FIRST_BROKER_ID <= self.broker_id < FIRST_CONTROLLER_ID
        require(is_broker_id, "broker_id", f"{FIRST_BROKER_ID} to {FIRST_CONTROLLER_ID - 1}", self.broker_id)
        require(self.incarnation_id != ZERO_ID, "incarnation_id", "that of a process", self.incarnation_id)
        ids = [directory.directory_id for directory in self.directories]
        require(bool(ids) and ZERO_ID not in ids, "directories", "one or more, each with an id", ids)
        check_each_once("directories", map(str, ids))
        versions = (self.min_metadata_version, self.max_metadata_version)
        require(0 < versions[0] <= versions[1], "metadata versions", "a range above 0", versions)
        is_for_partitions = bool(self.roles) and Role.CONTROLLER not in self.roles
        require(is_for_partitions, "roles", "broker, coordinator or both", self.roles)
        check_each_once("roles", self.roles)


class HeartbeatResponse(Message, frozen=True, array_like=True):
    """The controller's view of the broker (H5)."""

    is_caught_up: bool
    is_fenced: bool
    should_shut_down: bool


class HeartbeatRequest(Request[HeartbeatResponse], frozen=True, array_like=True):
    """Tells that a broker is alive, and its state (H4)."""

    broker_id: int
    broker_epoch: int
    # The last offset that the broker has applied.
    current_metadata_offset: int
    want_fence: bool
    want_shut_down: bool
    offline_directory_ids: tuple[UUID, ...] = ()
    # Directories that were full, and are online again.
    recovered_directory_ids: tuple[UUID, ...] = ()
    # Rises with each heartbeat of a process: the controller ignores a late heartbeat, which tells an old state.
    number: int = 0
    # Sizes of the replicas in each directory, in the order of the registration; empty while unknown.
    directory_size_bytes: tuple[int, ...] = ()
    # None if the broker has not measured its load since a controller last answered.
    load: LoadReport | None = None
    # Reasons in the order of `offline_directory_ids`; empty from a broker of an earlier version.
    offline_reasons: tuple[str, ...] = ()
    # Beside a load: settings with which the broker was started and which only brokers read, by dotted key.
    started_with: dict[str, str] = {}

    def check(self) -> None:
        require(self.broker_id >= 0, "broker_id", "0 or more", self.broker_id)
        length = sum(len(key) + len(value) for key, value in self.started_with.items())
        require(
            length <= SETTINGS_LENGTH_MAX, "started_with", f"{SETTINGS_LENGTH_MAX} characters at most", length
        )
        require(self.broker_epoch >= 0, "broker_epoch", "that of the registration", self.broker_epoch)
        check_each_once("offline_directory_ids", map(str, self.offline_directory_ids))
        require(self.number >= 0, "number", "0 or more", self.number)
        sizes = self.directory_size_bytes
        require(min(sizes, default=0) >= 0, "directory_size_bytes", "0 or more each", sizes)
        longest = max(map(len, self.offline_reasons), default=0)
        require(
            longest <= REASON_LENGTH_MAX,
            "offline_reasons",
            f"{REASON_LENGTH_MAX} characters or less each",
            longest,
        )


# ---- Status --------------------------------------------------------------------------------------------------------


class NodeState(StrEnum):
    """A node's place in its life cycle: Kafka's BrokerState, and FAILED for a node that could not start."""

    STARTING = "starting"
    RECOVERY = "recovery"
    RUNNING = "running"
    SHUTTING_DOWN = "shutting-down"
    FAILED = "failed"


class StatusResponse(Message, frozen=True, array_like=True):
    """A node's status."""

    node_id: int
    roles: tuple[Role, ...]
    state: NodeState
    pid: int | None
    host: str
    data_dirs: tuple[str, ...]
    cluster_id: str = ""
    incarnation_id: UUID = ZERO_ID
    # The reason of FAILED, or the directories that are offline or full.
    detail: str = ""
    leader_id: int = NO_NODE
    leader_epoch: int = NO_EPOCH
    log_end_offset: int = NO_OFFSET
    high_watermark: int = NO_OFFSET
    partition_count: int = 0
    size_bytes: int = 0
    # Paths.
    offline_data_dirs: tuple[str, ...] = ()
    full_data_dirs: tuple[str, ...] = ()
    # The file on the node's machine to which the process logs; empty if the process logs elsewhere.
    log_path: str = ""


class StatusRequest(Request[StatusResponse], frozen=True, array_like=True):
    """Asks any node for its status. A node that failed to start answers too."""


# ---- Reports about replicas ----------------------------------------------------------------------------------------


class LeaderRecoveryState(IntEnum):
    """The recovery of a partition after an unclean election (B41)."""

    # The leader was elected cleanly, or has reported its recovery.
    RECOVERED = 0
    RECOVERING = 1


class IsrMember(Message, frozen=True, array_like=True, gc=False):
    """A replica in sync."""

    broker_id: int
    # The epoch in which the leader has seen the broker fetch. NO_EPOCH is not checked.
    broker_epoch: int = NO_EPOCH


class AlterPartitionItem(PartitionMessage, frozen=True, array_like=True, gc=False):
    """A leader's proposal for one partition."""

    leader_epoch: int
    # The epoch to which the proposal applies.
    partition_epoch: int
    isr: tuple[IsrMember, ...]
    leader_recovery_state: LeaderRecoveryState = LeaderRecoveryState.RECOVERED


class AlterPartitionResult(PartitionAnswer, frozen=True, array_like=True, gc=False):
    """The result of one proposal: an error, or the partition as now committed."""

    leader_id: int = NO_NODE
    leader_epoch: int = NO_EPOCH
    isr: tuple[int, ...] = ()
    leader_recovery_state: LeaderRecoveryState = LeaderRecoveryState.RECOVERED
    partition_epoch: int = NO_EPOCH


class AlterPartitionResponse(Message, frozen=True, array_like=True):
    """One result for each partition of the request, in its order."""

    partitions: tuple[AlterPartitionResult, ...]


class AlterPartitionRequest(Request[AlterPartitionResponse], frozen=True, array_like=True):
    """Proposes ISRs for partitions that a broker leads. A stale broker epoch refuses all proposals (B13)."""

    broker_id: int
    broker_epoch: int
    partitions: tuple[AlterPartitionItem, ...]

    def check(self) -> None:
        require(self.broker_id >= 0, "broker_id", "0 or more", self.broker_id)
        check_each_once("partitions", [f"{each.topic_id}-{each.partition}" for each in self.partitions])


class AssignedReplica(PartitionMessage, frozen=True, array_like=True, gc=False):
    """A replica's place on the broker."""

    # The directory that has the replica, or will have it soon.
    directory_id: UUID


class AssignedReplicaResult(PartitionAnswer, frozen=True, array_like=True, gc=False):
    """The result of one assignment."""


class AssignReplicasToDirsResponse(Message, frozen=True, array_like=True):
    """One result for each replica of the request, in its order."""

    replicas: tuple[AssignedReplicaResult, ...]
    # Metadata below this offset are older than the response.
    metadata_offset: int = NO_OFFSET


class AssignReplicasToDirsRequest(Request[AssignReplicasToDirsResponse], frozen=True, array_like=True):
    """Reports the directories of a broker's replicas. A stale broker epoch refuses all of them."""

    broker_id: int
    broker_epoch: int
    replicas: tuple[AssignedReplica, ...]

    def check(self) -> None:
        require(self.broker_id >= 0, "broker_id", "0 or more", self.broker_id)
        check_each_once("replicas", [f"{each.topic_id}-{each.partition}" for each in self.replicas])


class ReportExitResponse(Message, frozen=True, array_like=True):
    """Confirms a report."""

    # The broker is fenced now. False: another incarnation is registered, which may live.
    is_fenced: bool


class ReportExitRequest(Request[ReportExitResponse], frozen=True, array_like=True):
    """Reports that an incarnation is dead: Ray has recorded the exit of its process while its raylet lives.

    Failed calls and health checks are no evidence and are never reported (decision 033).
    """

    broker_id: int
    incarnation_id: UUID

    def check(self) -> None:
        require(self.incarnation_id != ZERO_ID, "incarnation_id", "that of a process", self.incarnation_id)
