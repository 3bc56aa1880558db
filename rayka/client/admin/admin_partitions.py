"""The part of an `Admin`'s brain that is about partitions: their replicas, leaders, logs and lags.

What moves replicas or leaders goes to the active controller; what is about logs goes to the brokers that have them,
all at once. Kafka: KafkaAdminClient's alterPartitionReassignments, electLeaders, deleteRecords, describeLogDirs (B45,
B46, G11).
"""

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any
from uuid import UUID

from rayka.client.admin.admin_partition_results import (
    BrokerLogDirs,
    ElectionOutcome,
    LogDir,
    PartitionReassignment,
    ReplicaLogInfo,
)
from rayka.client.admin.admin_results import Looks, ReplicaLook
from rayka.client.leader_calls import LeaderCalls, LeaderRequest
from rayka.client.metadata import ClusterMetadata, check_partition
from rayka.client.refusal import refusal
from rayka.errors import (
    ApiError,
    BrokerIdNotRegistered,
    ErrorCode,
)
from rayka.ids import TopicPartition, node_name
from rayka.protocol.membership import MetadataPartition, MetadataTopic
from rayka.protocol.partition_admin import (
    AlterPartitionReassignmentsRequest,
    DeleteRecordsPartition,
    DeleteRecordsRequest,
    DeleteRecordsResult,
    DescribeLogDirsRequest,
    ElectionType,
    ElectLeadersRequest,
    ListPartitionReassignmentsRequest,
    PartitionResult,
    Reassignment,
)

Assignment = Mapping[TopicPartition, tuple[int, ...] | None]
_Held = Mapping[tuple[UUID, int, int], tuple[LogDir, ReplicaLogInfo]]  # by topic id, partition and broker
_NODE_TIMEOUT_MS = 3_000  # one that hangs must not hold up what the others say


class AsyncPartitionAdmin:
    """See the module."""

    def __init__(self, metadata: ClusterMetadata) -> None:
        self._metadata = metadata
        self._nodes = metadata.nodes

    def __repr__(self) -> str:
        return f"<AsyncPartitionAdmin of {self._nodes.cluster_name}>"

    # ---- Replicas and leaders --------------------------------------------------------------------------------------

    async def list_reassignments(
        self, partitions: tuple[TopicPartition, ...] | None, timeout_ms: int
    ) -> list[PartitionReassignment]:
        """Those under way, by topic and partition."""
        request = ListPartitionReassignmentsRequest(partitions)
        response = await self._nodes.call_controller(request, timeout_ms)
        return [PartitionReassignment.of(each) for each in response.reassignments]

    async def alter_reassignments(self, assignment: Assignment, timeout_ms: int) -> None:
        """Begins or cancels them. A cancellation whose answer was lost finds nothing to cancel: it has been done."""
        wanted = tuple(Reassignment(tp.topic, tp.partition, to) for tp, to in sorted(assignment.items()))
        request = AlterPartitionReassignmentsRequest(wanted)
        response, may_have_run = await self._nodes.call_controller_again(request, timeout_ms)
        refused = []
        for asked, result in zip(wanted, response.partitions, strict=True):
            is_gone = result.error_code is ErrorCode.NO_REASSIGNMENT_IN_PROGRESS
            if result.error_code is not ErrorCode.NONE and not (may_have_run and is_gone):
                assert (asked.topic, asked.partition) == (result.topic, result.partition), result
                refused.append(result)
        if refused:
            raise self._refusal(refused, len(wanted))
        await self._nodes.wait_until_applied(response.metadata_offset, timeout_ms)

    async def elect_leaders(
        self, election: ElectionType, partitions: tuple[TopicPartition, ...] | None, timeout_ms: int
    ) -> list[ElectionOutcome]:
        """One outcome for each partition asked for, or for each that had another leader than the wanted one."""
        response = await self._nodes.call_controller(ElectLeadersRequest(election, partitions), timeout_ms)
        await self._nodes.wait_until_applied(response.metadata_offset, timeout_ms)
        return [self._outcome(each) for each in response.partitions]

    def _outcome(self, result: PartitionResult) -> ElectionOutcome:
        tp = TopicPartition(result.topic, result.partition)
        if result.error_code is ErrorCode.NONE:
            return ElectionOutcome(tp, None)
        said, name = result.error_message, self._nodes.cluster_name
        return ElectionOutcome(tp, refusal(result.error_code, said, subject=repr(tp), cluster_name=name))

    def _refusal(self, refused: Sequence[PartitionResult], asked_count: int) -> ApiError:
        """The first one's error, and whether there are others."""
        first = refused[0]
        rest = f"; {len(refused)} of {asked_count} partitions were refused, the others are under way"
        said = (first.error_message or first.error_code.name) + rest * (asked_count > 1)
        subject = repr(TopicPartition(first.topic, first.partition))
        return refusal(first.error_code, said, subject=subject, cluster_name=self._nodes.cluster_name)

    # ---- Logs ------------------------------------------------------------------------------------------------------

    async def log_dirs(
        self, broker_ids: Sequence[int] | None, topics: tuple[str, ...] | None, timeout_ms: int
    ) -> list[BrokerLogDirs]:
        """What these brokers, or all that are registered, have on their disks; asked all at once."""
        response = await self._nodes.describe((), timeout_ms)
        registered = [each.node_id for each in response.brokers]
        for broker_id in broker_ids or ():
            check_broker(broker_id, self._nodes.cluster_name, registered)
        asked = registered if broker_ids is None else broker_ids
        return await self._ask_log_dirs(asked, topics, timeout_ms)

    async def look_at_replicas(self, topics: Sequence[MetadataTopic], timeout_ms: int) -> Looks:
        """How far each replica is behind its leader's log end, None for one that is not known (see the results), and
        which of them are on a disk that is full or has failed.
        """
        holders = {
            broker_id: None
            for topic in topics
            for partition in topic.partitions
            for broker_id in partition.replicas
        }
        names = tuple(each.name for each in topics)
        held = {
            (log.topic_id, log.partition, answer.broker_id): (directory, log)
            for answer in await self._ask_log_dirs(tuple(holders), names, timeout_ms)
            for directory in answer.directories
            for log in directory.replicas
        }
        return {
            TopicPartition(topic.name, partition.partition): _look(held, topic.topic_id, partition)
            for topic in topics
            for partition in topic.partitions
        }

    async def _ask_log_dirs(
        self, broker_ids: Sequence[int], topics: tuple[str, ...] | None, timeout_ms: int
    ) -> list[BrokerLogDirs]:
        asking = (self._log_dirs_of(each, topics, min(timeout_ms, _NODE_TIMEOUT_MS)) for each in broker_ids)
        return list(await asyncio.gather(*asking))

    async def _log_dirs_of(
        self, broker_id: int, topics: tuple[str, ...] | None, timeout_ms: int
    ) -> BrokerLogDirs:
        try:
            response = await self._nodes.network.call(broker_id, DescribeLogDirsRequest(topics), timeout_ms)
        except ApiError as error:
            return BrokerLogDirs(broker_id, (), str(error))
        return BrokerLogDirs(broker_id, tuple(LogDir.of(each) for each in response.directories))

    async def delete_records(
        self, offsets: Mapping[TopicPartition, int], timeout_ms: int
    ) -> dict[TopicPartition, int]:
        """The lowest log start offset of each partition afterwards. Raises as `Admin.delete_records`."""
        names = tuple(dict.fromkeys(tp.topic for tp in offsets))
        topics = {each.name: each for each in (await self._metadata.renew(names, timeout_ms)).topics}
        for tp in offsets:
            if topics[tp.topic].error_code is not ErrorCode.NONE:
                raise await self._metadata.no_such_topic(tp.topic, timeout_ms)
            check_partition(topics[tp.topic], tp.partition)
        leaders = LeaderCalls(self._nodes.network, self._metadata)
        found = await leaders.call(_DeleteRecords(), offsets, timeout_ms)
        return {tp: found[tp].low_watermark for tp in offsets}


class _DeleteRecords(LeaderRequest[int, DeleteRecordsResult]):
    grace_ms = _NODE_TIMEOUT_MS
    final_codes = (ErrorCode.REQUEST_TIMED_OUT,)  # its leader has waited already, and has deleted the records

    def part(self, topic: MetadataTopic, partition: MetadataPartition, wanted: int) -> DeleteRecordsPartition:
        return DeleteRecordsPartition(topic.topic_id, partition.partition, wanted)

    def request(self, parts: tuple[Any, ...], timeout_ms: int) -> DeleteRecordsRequest:
        return DeleteRecordsRequest(timeout_ms, parts)

    def refusal(self, where: TopicPartition, node_id: int, message: str, cluster_name: str) -> str:
        return f"{where!r} of cluster {cluster_name!r}: {node_name(node_id)}: {message}"


def check_broker(broker_id: int, cluster_name: str, registered: Sequence[int]) -> None:
    """Raises BrokerIdNotRegistered, naming those that there are."""
    if broker_id not in registered:
        known = ", ".join(map(str, registered)) or "none"
        raise BrokerIdNotRegistered(f"cluster {cluster_name!r} has no broker {broker_id}; it has {known}")


def _look(held: _Held, topic_id: UUID, partition: MetadataPartition) -> ReplicaLook:
    found = [held.get((topic_id, partition.partition, each)) for each in partition.replicas]
    ends = [None if each is None else each[1].log_end_offset for each in found]
    leader_end = dict(zip(partition.replicas, ends, strict=True)).get(partition.leader_id)
    known = [(each, there[0]) for each, there in zip(partition.replicas, found, strict=True) if there]
    return ReplicaLook(
        lags=tuple(_lag(leader_end, each) for each in ends),
        full_replicas=tuple(each for each, directory in known if directory.is_full),
        offline_replicas=tuple(
            each for each, directory in known if directory.error and not directory.is_full
        ),
    )


def _lag(leader_end: int | None, replica_end: int | None) -> int | None:
    """Never below 0: the replica may have answered later than its leader."""
    return None if leader_end is None or replica_end is None else max(0, leader_end - replica_end)
