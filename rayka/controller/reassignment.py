"""Reassignments of partitions to other replicas (B45).

A reassignment begins with one record: new replicas join the old ones, and the record names the adding and the removing
replicas. `PartitionChangeBuilder` ends the reassignment in the change that brings the last adding replica into the ISR.
A second reassignment may replace the first one. A cancel always restores `replicas` without the adding ones. So the
second reassignment drops at once the replicas that only the first one was adding, and is refused if only these are in
sync.

Kafka: `ReplicationControlManager.alterPartitionReassignments`, `PartitionReassignmentReplicas`,
`PartitionReassignmentRevert`. Kafka keeps the adding replicas of a replaced reassignment until the new one ends,
and a cancel leaves them; here a cancel restores the original replicas.
"""

from typing import NamedTuple

from rayka.controller.request_context import RequestContext
from rayka.errors import ApiError, InvalidReplicaAssignment, NoReassignmentInProgress
from rayka.ids import TopicIdPartition, TopicPartition, is_internal
from rayka.metadata.image import PartitionImage, named_partition, topic_config
from rayka.metadata.metadata_records import MetadataRecord, PartitionChangeRecord
from rayka.protocol.membership import LeaderRecoveryState
from rayka.protocol.topics import (
    AlterPartitionReassignmentsRequest,
    AlterPartitionReassignmentsResponse,
    ListPartitionReassignmentsRequest,
    ListPartitionReassignmentsResponse,
    OngoingReassignment,
    PartitionResult,
    Reassignment,
)
from rayka.shard.shard import Result, Steps


def alter_reassignments(
    context: RequestContext, request: AlterPartitionReassignmentsRequest
) -> Steps[MetadataRecord, AlterPartitionReassignmentsResponse]:
    """Begins, replaces or cancels reassignments. Each partition has its own result or error in the response."""
    reassigning = Reassigning(context)
    results = []
    for wanted in request.partitions:
        record, result = reassigning.try_alter(wanted)
        results.append(result)
        yield record
    next_offset = yield None
    return Result((), AlterPartitionReassignmentsResponse(tuple(results), next_offset))


def list_reassignments(
    context: RequestContext, request: ListPartitionReassignmentsRequest
) -> Steps[MetadataRecord, ListPartitionReassignmentsResponse]:
    """Lists reassignments under way, by topic and partition. Leaves out partitions that do not exist."""
    topics = context.image.topics
    ongoing: list[OngoingReassignment] = []
    wanted = None if request.partitions is None else set(request.partitions)
    for name in sorted(topics):
        for number, partition in enumerate(topics[name].partitions):
            if partition.is_reassigned and (wanted is None or TopicPartition(name, number) in wanted):
                ongoing.append(_ongoing(name, number, partition))
            yield None
    return Result((), ListPartitionReassignmentsResponse(tuple(ongoing)))


def _ongoing(name: str, number: int, partition: PartitionImage) -> OngoingReassignment:
    return OngoingReassignment(
        name, number, partition.replicas, partition.adding_replicas, partition.removing_replicas
    )


class _Target(NamedTuple):
    """The partition right after the record, with adding and removing replicas."""

    # All replicas: the adding and the removing ones are among them.
    replicas: tuple[int, ...]
    adding: tuple[int, ...]
    removing: tuple[int, ...]
    isr: tuple[int, ...]
    # Whether the ISR may lack committed records.
    is_unclean: bool = False


class Reassigning:
    """Reassigns the partitions of one request; each choice of a directory counts the earlier ones."""

    def __init__(self, context: RequestContext) -> None:
        self._context = context
        self._elections = context.elections()
        self._placer = context.placer()

    def try_alter(self, wanted: Reassignment) -> tuple[PartitionChangeRecord | None, PartitionResult]:
        try:
            record = self._alter(wanted)
        except ApiError as refusal:
            return None, PartitionResult(wanted.topic, wanted.partition, refusal.code, str(refusal))
        return record, PartitionResult(wanted.topic, wanted.partition)

    def move(self, name: TopicPartition, replicas: tuple[int, ...] | None) -> PartitionChangeRecord | None:
        """The record of a reassignment to these replicas, or of a cancel (None); None if refused or useless."""
        return self.try_alter(Reassignment(name.topic, name.partition, replicas))[0]

    def _alter(self, wanted: Reassignment) -> PartitionChangeRecord | None:
        name = TopicPartition(wanted.topic, wanted.partition)
        key, partition = named_partition(self._context.image, name)
        if wanted.replicas is None:
            target = self._cancelled(name, partition)
        else:
            self._placer.check_brokers(wanted.replicas, is_internal=is_internal(wanted.topic))
            target = _begun(name, partition, wanted.replicas)
        return self._record(key, partition, target)

    def _cancelled(self, name: TopicPartition, partition: PartitionImage) -> _Target:
        if not partition.is_reassigned:
            raise NoReassignmentInProgress(f"{name!r} has no reassignment under way to cancel")
        original = partition.original_replicas
        isr = tuple(each for each in partition.isr if each in original)
        whole = _whole(partition)
        if not whole or any(each in original for each in whole):
            return _Target(original, (), (), isr)
        if not topic_config(
            self._context.image, self._context.config, name.topic
        ).unclean_leader_election_enable:
            raise InvalidReplicaAssignment(
                f"{name!r}: only replicas that the reassignment adds, {list(whole)}, hold all records; wait until one "
                f"of {list(original)} is in sync, or enable unclean.leader.election.enable, which loses records"
            )
        running = (each for each in original if self._elections.is_electable(partition, each))
        return _Target(original, (), (), (next(running, original[0]),), is_unclean=True)

    def _record(
        self, key: TopicIdPartition, partition: PartitionImage, target: _Target
    ) -> PartitionChangeRecord | None:
        directories = tuple(
            partition.directory_of(each) or self._placer.directory_on(each) for each in target.replicas
        )
        change = (
            self._elections.change(key).target_replicas(target.replicas, directories).target_isr(target.isr)
        )
        if target.is_unclean:
            change = change.leader_recovery_state(LeaderRecoveryState.RECOVERING)
        return change.adding_replicas(target.adding).removing_replicas(target.removing).build()


def _begun(name: TopicPartition, partition: PartitionImage, wanted: tuple[int, ...]) -> _Target:
    original = partition.original_replicas
    removing = tuple(each for each in original if each not in wanted)
    replicas = (*wanted, *removing)
    whole = _whole(partition)
    if whole and not any(each in replicas for each in whole):
        raise InvalidReplicaAssignment(
            f"{name!r}: only replicas {list(whole)} hold all its records, which the reassignment under way adds; name "
            f"one of them among the replicas, or wait until one of {list(replicas)} is in sync"
        )
    return _Target(
        replicas,
        adding=tuple(each for each in wanted if each not in original),
        removing=removing,
        isr=tuple(each for each in partition.isr if each in replicas),
    )


def _whole(partition: PartitionImage) -> tuple[int, ...]:
    """Replicas that hold all records: the ISR, or with an empty ISR the eligible leader replicas."""
    return partition.isr or partition.eligible_leader_replicas
