"""Partitions: their replicas, leaders, logs and lags.

Requests that move replicas or leaders go to the active controller. Requests about logs go to the brokers that hold the
logs, to all at once. Kafka: KafkaAdminClient's alterPartitionReassignments, electLeaders, deleteRecords,
describeLogDirs, alterReplicaLogDirs (B45, B46, G11).
"""

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any

from rayka.client.admin.admin_part import NODE_TIMEOUT_MS, AdminPart
from rayka.client.admin.admin_partition_results import (
    BrokerLogDirs,
    ElectionOutcome,
    LogDir,
    PartitionReassignment,
)
from rayka.client.admin.admin_results import Held
from rayka.client.leader_calls import LeaderCalls, LeaderRequest
from rayka.client.metadata import check_partition
from rayka.errors import ApiError, ErrorCode
from rayka.ids import TopicPartition, node_name
from rayka.protocol.membership import MetadataPartition, MetadataTopic
from rayka.protocol.topics import (
    AlterPartitionReassignmentsRequest,
    AlterReplicaLogDirsRequest,
    DeleteRecordsPartition,
    DeleteRecordsRequest,
    DeleteRecordsResult,
    DescribeLogDirsRequest,
    ElectionType,
    ElectLeadersRequest,
    ListPartitionReassignmentsRequest,
    PartitionResult,
    Reassignment,
    ReplicaLogDir,
)

# What the replicas of partitions become.
Plan = dict[TopicPartition, tuple[int, ...]]
Assignment = Mapping[TopicPartition, tuple[int, ...] | None]


class AsyncPartitionAdmin(AdminPart):
    """The methods of `Admin` about partitions and data directories, with checked arguments."""

    # ---- Replicas and leaders --------------------------------------------------------------------------------------

    async def list_reassignments(
        self, partitions: tuple[TopicPartition, ...] | None
    ) -> list[PartitionReassignment]:
        """The reassignments under way, by topic and partition."""
        response = await self._ask(ListPartitionReassignmentsRequest(partitions))
        return [PartitionReassignment.of(each) for each in response.reassignments]

    async def alter_reassignments(self, assignment: Assignment) -> None:
        """Begins or cancels reassignments. Raises the first refusal, after the others have begun.

        A repeated cancellation that finds no reassignment has succeeded: its first answer was lost.
        """
        wanted = tuple(Reassignment(tp.topic, tp.partition, to) for tp, to in sorted(assignment.items()))
        request = AlterPartitionReassignmentsRequest(wanted)
        response, may_have_run = await self._nodes.call_controller_again(request, self.timeout_ms)
        assert len(response.partitions) == len(wanted), response
        done = ErrorCode.NO_REASSIGNMENT_IN_PROGRESS if may_have_run else ErrorCode.NONE
        self._check_all(response.partitions, "partitions", passing=(ErrorCode.NONE, done))
        await self._until_applied(response.metadata_offset)

    async def elect_leaders(
        self, election: ElectionType, partitions: tuple[TopicPartition, ...] | None
    ) -> list[ElectionOutcome]:
        """One outcome for each partition named, or with None for each that another replica led."""
        response = await self._ask(ElectLeadersRequest(election, partitions))
        await self._until_applied(response.metadata_offset)
        return [
            ElectionOutcome(
                TopicPartition(each.topic, each.partition),
                self._refused(each) if each.error_code is not ErrorCode.NONE else None,
            )
            for each in response.partitions
        ]

    def _check_all(
        self,
        results: Sequence[PartitionResult],
        what: str,
        passing: tuple[ErrorCode, ...] = (ErrorCode.NONE,),
    ) -> None:
        """Raises the first refusal; the other partitions are being changed."""
        refused = [each for each in results if each.error_code not in passing]
        if refused:
            rest = f"; {len(refused)} of {len(results)} {what} were refused, the others are under way"
            raise self._refused(refused[0], rest * (len(results) > 1))

    def _refused(self, result: PartitionResult, rest: str = "") -> ApiError:
        said = (result.error_message or result.error_code.name) + rest
        return self._refusal(repr(TopicPartition(result.topic, result.partition)), result.error_code, said)

    # ---- Logs ------------------------------------------------------------------------------------------------------

    async def log_dirs(
        self, broker_ids: Sequence[int] | None, topics: tuple[str, ...] | None
    ) -> list[BrokerLogDirs]:
        """The data directories of these brokers, or of all registered ones, asked for at once."""
        return await self._ask_log_dirs(await self._registered(broker_ids), topics)

    async def alter_log_dirs(self, broker_id: int, paths: Mapping[TopicPartition, str]) -> None:
        """Begins the moves on this broker. Raises the first refusal, after the others have begun."""
        await self._registered((broker_id,))
        wanted = tuple(ReplicaLogDir(tp.topic, tp.partition, path) for tp, path in sorted(paths.items()))
        response = await self._nodes.network.call(
            broker_id, AlterReplicaLogDirsRequest(wanted), self.timeout_ms
        )
        self._check_all(response.partitions, "replicas")

    async def held(self, topics: Sequence[MetadataTopic]) -> Held:
        """The directories and logs of the replicas of these topics, without those of brokers that do not answer."""
        partitions = [partition for topic in topics for partition in topic.partitions]
        holders = dict.fromkeys(broker_id for each in partitions for broker_id in each.replicas)
        return {
            (log.topic_id, log.partition, answer.broker_id): (directory, log)
            for answer in await self._ask_log_dirs(tuple(holders), tuple(each.name for each in topics))
            for directory in answer.directories
            for log in directory.replicas
            if not log.is_future
        }

    async def _ask_log_dirs(
        self, broker_ids: Sequence[int], topics: tuple[str, ...] | None
    ) -> list[BrokerLogDirs]:
        return list(await asyncio.gather(*(self._log_dirs_of(each, topics) for each in broker_ids)))

    async def _log_dirs_of(self, broker_id: int, topics: tuple[str, ...] | None) -> BrokerLogDirs:
        request, timeout_ms = DescribeLogDirsRequest(topics), min(self.timeout_ms, NODE_TIMEOUT_MS)
        try:
            response = await self._nodes.network.call(broker_id, request, timeout_ms)
        except ApiError as error:
            return BrokerLogDirs(broker_id, (), str(error))
        return BrokerLogDirs(broker_id, tuple(LogDir.of(each) for each in response.directories))

    async def delete_records(self, offsets: Mapping[TopicPartition, int]) -> dict[TopicPartition, int]:
        """Deletes records; returns the low watermark of each partition. Raises like `Admin.delete_records`."""
        names = tuple(dict.fromkeys(tp.topic for tp in offsets))
        topics = {each.name: each for each in (await self._metadata.renew(names, self.timeout_ms)).topics}
        for tp in offsets:
            if topics[tp.topic].error_code is not ErrorCode.NONE:
                raise await self._metadata.no_such_topic(tp.topic, self.timeout_ms)
            check_partition(topics[tp.topic], tp.partition)
        leaders = LeaderCalls(self._nodes.network, self._metadata)
        found = await leaders.call(_DeleteRecords(), offsets, self.timeout_ms)
        return {tp: found[tp].low_watermark for tp in offsets}


class _DeleteRecords(LeaderRequest[int, DeleteRecordsResult]):
    grace_ms = NODE_TIMEOUT_MS
    # The leader has deleted its records and only timed out waiting for its followers.
    final_codes = (ErrorCode.REQUEST_TIMED_OUT,)

    def part(self, topic: MetadataTopic, partition: MetadataPartition, wanted: int) -> DeleteRecordsPartition:
        return DeleteRecordsPartition(topic.topic_id, partition.partition, wanted)

    def request(self, parts: tuple[Any, ...], timeout_ms: int) -> DeleteRecordsRequest:
        return DeleteRecordsRequest(timeout_ms, parts)

    def refusal(self, where: TopicPartition, node_id: int, message: str, cluster_name: str) -> str:
        return f"{where!r} of cluster {cluster_name!r}: {node_name(node_id)}: {message}"
