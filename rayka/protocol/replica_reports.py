"""What brokers tell the controller about replicas: the ISR, their directories, and which process has ended.

Kafka: AlterPartitionRequest/AlterPartitionResponse (B11-B13), AssignReplicasToDirsRequest. `ReportExit` is
rayka's own (design §4).
"""

from enum import IntEnum
from uuid import UUID

from rayka.ids import NO_EPOCH, NO_NODE, NO_OFFSET, ZERO_ID
from rayka.ports import Message, Request
from rayka.protocol.of_partition import OfPartition, PartitionAnswer
from rayka.protocol.request_checks import check_each_once, require


class LeaderRecoveryState(IntEnum):
    """Whether the leader was elected cleanly, or has yet to say that it has recovered (B41)."""

    RECOVERED = 0
    RECOVERING = 1


class IsrMember(Message, frozen=True, array_like=True, gc=False):
    """A replica in sync, and the broker epoch in which the leader has seen it fetch; -1 is not checked."""

    broker_id: int
    broker_epoch: int = NO_EPOCH


class AlterPartitionItem(OfPartition, frozen=True, array_like=True, gc=False):
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


class AssignedReplica(OfPartition, frozen=True, array_like=True, gc=False):
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
