"""The cluster itself: metadata, broker registration and heartbeats, a node's status.

Kafka: MetadataRequest, BrokerRegistrationRequest, BrokerHeartbeatRequest (H1-H6).
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

SETTINGS_LENGTH_MAX = 1 << 16


class RegisteredDirectory(Message, frozen=True, array_like=True):
    """A data directory of a broker: its id, and its path on the broker's machine."""

    directory_id: UUID
    path: str


# ---- Metadata ------------------------------------------------------------------------------------------------------


class MetadataBroker(Message, frozen=True, array_like=True):
    """A registered broker, or coordinator: `roles` says which partitions it is for, as in its registration."""

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
    """The replicas and leader of one partition; `leader_id` is -1 and the error LEADER_NOT_AVAILABLE without one.

    Part of no cycle, so the garbage collector need not count it: a topic has thousands.
    """

    partition: int
    leader_id: int
    leader_epoch: int
    replicas: tuple[int, ...]
    isr: tuple[int, ...]
    error_code: ErrorCode = ErrorCode.NONE
    eligible_leader_replicas: tuple[int, ...] = ()
    adding_replicas: tuple[int, ...] = ()
    removing_replicas: tuple[int, ...] = ()


class MetadataTopic(Message, frozen=True, array_like=True):
    """One topic; UNKNOWN_TOPIC_OR_PARTITION, with name and no partitions, when it does not exist."""

    name: str
    topic_id: UUID = ZERO_ID
    partitions: tuple[MetadataPartition, ...] = ()
    configs: dict[str, str] = {}
    error_code: ErrorCode = ErrorCode.NONE


class MetadataResponse(Message, frozen=True, array_like=True):
    """The image of the node that was asked, as of `metadata_offset` (the first offset it has not applied)."""

    cluster_id: str
    controller_id: int
    brokers: tuple[MetadataBroker, ...]
    topics: tuple[MetadataTopic, ...]
    metadata_offset: int


class MetadataRequest(Request[MetadataResponse], frozen=True, array_like=True):
    """Brokers and topics. `topics` None: all of them. Waits until the node has applied up to `min_metadata_offset`.

    Brokers answer from the image they follow; the active controller answers with the newest committed one.
    """

    topics: tuple[str, ...] | None = None
    min_metadata_offset: int = NO_OFFSET


# ---- Broker registration and heartbeat -----------------------------------------------------------------------------


class RegisterBrokerResponse(Message, frozen=True, array_like=True):
    """The broker's epoch (the offset of its registration record, H3) and the cluster's id, for its meta.properties."""

    broker_epoch: int
    cluster_id: str


class RegisterBrokerRequest(Request[RegisterBrokerResponse], frozen=True, array_like=True):
    """A broker process announces itself (H2). It holds the locks of the directories it names (design §4).

    `cluster_id` is empty for a directory formatted but never registered. `previous_broker_epoch` is the last one this
    disk knows and has lost nothing since: after a clean shutdown, or under the same kernel boot id; otherwise -1.
    `known_broker_epoch` is the last one that it knows, whatever was lost since: this process began after that one.
    `roles`: a broker takes partitions of users' topics, a coordinator those of internal ones before brokers do.
    """

    broker_id: int
    cluster_id: str
    incarnation_id: UUID
    host: str
    directories: tuple[RegisteredDirectory, ...]
    previous_broker_epoch: int = NO_EPOCH
    rack: str = ""
    min_metadata_version: int = 1
    max_metadata_version: int = 1
    known_broker_epoch: int = NO_EPOCH
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
    """What the controller makes of the broker now (H5)."""

    is_caught_up: bool
    is_fenced: bool
    should_shut_down: bool


class HeartbeatRequest(Request[HeartbeatResponse], frozen=True, array_like=True):
    """A broker is alive and says what it wants (H4). `current_metadata_offset`: the last offset it has applied;
    `recovered_directory_ids`: directories that were full, and are not offline any more; `number`: rises with each
    heartbeat of a process, for one that comes late would say what was so before; `directory_size_bytes`: of the
    replicas in each directory, in the order of the registration, or nothing while that is not known; `load`: how much
    the broker has to do, if it has measured that since a controller last answered; `offline_reasons`: why directories
    are offline, in the order of their ids, nothing from a broker of an earlier version; `started_with`: beside a load,
    the settings that only brokers read and that it was started with, by dotted key, where they were set.
    """

    broker_id: int
    broker_epoch: int
    current_metadata_offset: int
    want_fence: bool
    want_shut_down: bool
    offline_directory_ids: tuple[UUID, ...] = ()
    recovered_directory_ids: tuple[UUID, ...] = ()
    number: int = 0
    directory_size_bytes: tuple[int, ...] = ()
    load: LoadReport | None = None
    offline_reasons: tuple[str, ...] = ()
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
    """Where a node is in its life; Kafka's BrokerState, and FAILED for one that could not start."""

    STARTING = "starting"
    RECOVERY = "recovery"
    RUNNING = "running"
    SHUTTING_DOWN = "shutting-down"
    FAILED = "failed"


class StatusResponse(Message, frozen=True, array_like=True):
    """One node about itself. `detail` says why it is FAILED, or which directory is offline or full;
    `offline_data_dirs` and `full_data_dirs` are their paths. `log_path` is where its process writes what it logs, on
    its machine, empty where that is no file.
    """

    node_id: int
    roles: tuple[Role, ...]
    state: NodeState
    pid: int | None
    host: str
    data_dirs: tuple[str, ...]
    cluster_id: str = ""
    incarnation_id: UUID = ZERO_ID
    detail: str = ""
    leader_id: int = NO_NODE
    leader_epoch: int = NO_EPOCH
    log_end_offset: int = NO_OFFSET
    high_watermark: int = NO_OFFSET
    partition_count: int = 0
    size_bytes: int = 0
    offline_data_dirs: tuple[str, ...] = ()
    full_data_dirs: tuple[str, ...] = ()
    log_path: str = ""


class StatusRequest(Request[StatusResponse], frozen=True, array_like=True):
    """Asks any node, also one that failed to start, how it is."""


# What brokers tell the controller about replicas: the ISR, their directories, and which process has ended.
#
# Kafka: AlterPartitionRequest/AlterPartitionResponse (B11-B13), AssignReplicasToDirsRequest. `ReportExit` is
# rayka's own (design §4).


class LeaderRecoveryState(IntEnum):
    """Whether the leader was elected cleanly, or has yet to say that it has recovered (B41)."""

    RECOVERED = 0
    RECOVERING = 1


class IsrMember(Message, frozen=True, array_like=True, gc=False):
    """A replica in sync, and the broker epoch in which the leader has seen it fetch; -1 is not checked."""

    broker_id: int
    broker_epoch: int = NO_EPOCH


class AlterPartitionItem(PartitionMessage, frozen=True, array_like=True, gc=False):
    """What a leader proposes for one partition, on top of the partition epoch that it knows."""

    leader_epoch: int
    partition_epoch: int
    isr: tuple[IsrMember, ...]
    leader_recovery_state: LeaderRecoveryState = LeaderRecoveryState.RECOVERED


class AlterPartitionResult(PartitionAnswer, frozen=True, array_like=True, gc=False):
    """What became of one proposal: an error, or the partition as it is committed now."""

    leader_id: int = NO_NODE
    leader_epoch: int = NO_EPOCH
    isr: tuple[int, ...] = ()
    leader_recovery_state: LeaderRecoveryState = LeaderRecoveryState.RECOVERED
    partition_epoch: int = NO_EPOCH


class AlterPartitionResponse(Message, frozen=True, array_like=True):
    """One result for each partition of the request, in its order."""

    partitions: tuple[AlterPartitionResult, ...]


class AlterPartitionRequest(Request[AlterPartitionResponse], frozen=True, array_like=True):
    """A broker proposes other ISRs for partitions that it leads. StaleBrokerEpoch refuses all of them (B13)."""

    broker_id: int
    broker_epoch: int
    partitions: tuple[AlterPartitionItem, ...]

    def check(self) -> None:
        require(self.broker_id >= 0, "broker_id", "0 or more", self.broker_id)
        check_each_once("partitions", [f"{each.topic_id}-{each.partition}" for each in self.partitions])


class AssignedReplica(PartitionMessage, frozen=True, array_like=True, gc=False):
    """The broker's replica of this partition is, or is about to be, in this directory of its own."""

    directory_id: UUID


class AssignedReplicaResult(PartitionAnswer, frozen=True, array_like=True, gc=False):
    """What became of one assignment."""


class AssignReplicasToDirsResponse(Message, frozen=True, array_like=True):
    """One result for each replica of the request, in its order; metadata from before `metadata_offset` are older."""

    replicas: tuple[AssignedReplicaResult, ...]
    metadata_offset: int = NO_OFFSET


class AssignReplicasToDirsRequest(Request[AssignReplicasToDirsResponse], frozen=True, array_like=True):
    """A broker says in which of its directories replicas are. StaleBrokerEpoch refuses all of them."""

    broker_id: int
    broker_epoch: int
    replicas: tuple[AssignedReplica, ...]

    def check(self) -> None:
        require(self.broker_id >= 0, "broker_id", "0 or more", self.broker_id)
        check_each_once("replicas", [f"{each.topic_id}-{each.partition}" for each in self.replicas])


class ReportExitResponse(Message, frozen=True, array_like=True):
    """Whether the broker is fenced now; False when another incarnation is registered, which lives on."""

    is_fenced: bool


class ReportExitRequest(Request[ReportExitResponse], frozen=True, array_like=True):
    """Ray has recorded the exit of this process while its raylet lives: the incarnation is dead (design §4).

    Failed calls and health checks are no evidence and are never reported.
    """

    broker_id: int
    incarnation_id: UUID

    def check(self) -> None:
        require(self.incarnation_id != ZERO_ID, "incarnation_id", "that of a process", self.incarnation_id)
