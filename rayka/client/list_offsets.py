"""What leaders are asked for offsets: earliest, latest, or the first at or after a time. Kafka: OffsetFetcher (G12)."""

from collections.abc import Iterable, Mapping
from typing import Any
from uuid import UUID

from rayka.client.leader_calls import LeaderCalls, LeaderRequest
from rayka.errors import (
    ApiError,
    BrokerNotAvailable,
    LeaderNotAvailable,
    NetworkException,
    RaykaError,
    RequestTimedOut,
    UnavailableError,
)
from rayka.ids import TopicPartition
from rayka.protocol.fetch import ListOffsetsPartition, ListOffsetsPartitionResult, ListOffsetsRequest
from rayka.protocol.membership import MetadataPartition, MetadataTopic

_NO_ANSWER = (BrokerNotAvailable, LeaderNotAvailable, NetworkException, RequestTimedOut)


class ListOffsets(LeaderRequest[int, ListOffsetsPartitionResult]):
    """Wanted are timestamps in ms, or -1 latest, -2 earliest. What no leader has answered in time is refused with
    UnavailableError.
    """

    def part(self, topic: MetadataTopic, partition: MetadataPartition, wanted: int) -> ListOffsetsPartition:
        return ListOffsetsPartition(topic.topic_id, partition.partition, wanted, partition.leader_epoch)

    def request(self, parts: tuple[Any, ...], timeout_ms: int) -> ListOffsetsRequest:
        return ListOffsetsRequest(parts)

    def too_late(self, problem: ApiError, cluster_name: str) -> RaykaError:
        if not isinstance(problem, _NO_ANSWER):
            return problem
        return UnavailableError(
            f"cluster {cluster_name!r} did not say which offsets there are: {problem}; "
            "are its brokers running? see `rayka status`"
        )


LIST_OFFSETS = ListOffsets()


async def offsets_at(
    leaders: LeaderCalls,
    partitions: Iterable[TopicPartition],
    timestamp_ms: int,
    timeout_ms: int,
    topic_ids: Mapping[str, UUID] | None = None,
) -> dict[TopicPartition, int]:
    """The offset of each partition at a time, in their order. Raises as `LeaderCalls.call`."""
    wanted = dict.fromkeys(partitions, timestamp_ms)
    found = await leaders.call(LIST_OFFSETS, wanted, timeout_ms, topic_ids=topic_ids)
    return {tp: found[tp].offset for tp in wanted}
