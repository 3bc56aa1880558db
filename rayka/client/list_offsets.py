"""What leaders are asked for offsets: earliest, latest, or the first at or after a time. Kafka: OffsetFetcher (G12)."""

from typing import Any

from rayka.client.leader_calls import LeaderRequest
from rayka.errors import (
    ApiError,
    BrokerNotAvailable,
    LeaderNotAvailable,
    NetworkException,
    RaykaError,
    RequestTimedOut,
    UnavailableError,
)
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
