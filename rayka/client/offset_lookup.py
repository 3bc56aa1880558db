"""Asks the leaders for offsets: earliest, latest, or the first at or after a time. Kafka: OffsetFetcher (G12)."""

from collections.abc import Callable, Mapping
from random import Random

from rayka.client.bootstrap import ClientConfig
from rayka.client.metadata import ClusterMetadata, NoSuchTopic
from rayka.client.retry import Backoff, Retry
from rayka.errors import (
    ApiError,
    BrokerNotAvailable,
    ErrorCode,
    LeaderNotAvailable,
    NetworkException,
    RequestTimedOut,
    UnavailableError,
    error_for,
)
from rayka.ids import NO_NODE, TopicPartition
from rayka.ports import Network
from rayka.protocol.cluster import MetadataTopic
from rayka.protocol.fetch import ListOffsetsPartition, ListOffsetsPartitionResult, ListOffsetsRequest

_NO_ANSWER = (BrokerNotAvailable, LeaderNotAvailable, NetworkException, RequestTimedOut)

OnFound = Callable[[Mapping[TopicPartition, ListOffsetsPartitionResult]], object]


class OffsetLookup:
    """Offsets of partitions, from whoever leads them, retried within a timeout."""

    def __init__(
        self, network: Network, metadata: ClusterMetadata, config: ClientConfig, random: Random
    ) -> None:
        self._network = network
        self._metadata = metadata
        self._request_timeout_ms = config.request_timeout_ms
        self._backoff = Backoff.of(config, random)

    async def offsets(
        self,
        wanted: Mapping[TopicPartition, int],
        timeout_ms: int,
        on_found: OnFound = lambda found: None,
    ) -> dict[TopicPartition, ListOffsetsPartitionResult]:
        """One result for each partition, of which `on_found` hears as they come; `wanted` gives timestamps in ms, or -1
        latest, -2 earliest.

        When timeout_ms has passed, raises UnavailableError if no leader answered, else its last error. Raises
        UnknownTopicOrPartition.
        """
        retry = Retry(timeout_ms, self._backoff)
        found: dict[TopicPartition, ListOffsetsPartitionResult] = {}
        problem: ApiError = LeaderNotAvailable(f"no leader of {sorted(wanted)} is known")
        while True:
            missing = {tp: each for tp, each in wanted.items() if tp not in found}
            for leader_id, partitions in (await self._by_leader(missing, retry)).items():
                try:
                    results = await self._ask(leader_id, partitions, retry)
                    news = {tp: each for tp, each in results.items() if not isinstance(each, ApiError)}
                    found.update(news)
                    on_found(news)
                    problem = next((each for each in results.values() if isinstance(each, ApiError)), problem)
                except ApiError as error:
                    if not error.retriable:
                        raise
                    problem = error
            if len(found) == len(wanted):
                return found
            await self._metadata.refresh(sorted({tp.topic for tp in missing}))
            if not await retry.pause():
                raise self._unavailable(problem) if isinstance(problem, _NO_ANSWER) else problem

    def _unavailable(self, problem: ApiError) -> UnavailableError:
        return UnavailableError(
            f"cluster {self._metadata.cluster_name!r} did not say which offsets there are: {problem}; "
            "are its brokers running? see `rayka status`"
        )

    async def _by_leader(
        self, wanted: Mapping[TopicPartition, int], retry: Retry
    ) -> dict[int, dict[TopicPartition, ListOffsetsPartition]]:
        grouped: dict[int, dict[TopicPartition, ListOffsetsPartition]] = {}
        for tp, timestamp_ms in wanted.items():
            topic = await self._metadata.topic(tp.topic, retry.remaining_ms)
            check_partition(topic, tp.partition)
            leader = topic.partitions[tp.partition]
            if leader.leader_id != NO_NODE:
                query = ListOffsetsPartition(topic.topic_id, tp.partition, timestamp_ms, leader.leader_epoch)
                grouped.setdefault(leader.leader_id, {})[tp] = query
        return grouped

    async def _ask(
        self, leader_id: int, partitions: Mapping[TopicPartition, ListOffsetsPartition], retry: Retry
    ) -> dict[TopicPartition, ListOffsetsPartitionResult | ApiError]:
        """What the leader says of each partition; an error where a retry may mend it. Raises the others."""
        request = ListOffsetsRequest(tuple(partitions.values()))
        timeout_ms = min(self._request_timeout_ms, retry.remaining_ms)
        response = await self._network.call(leader_id, request, timeout_ms)
        results: dict[TopicPartition, ListOffsetsPartitionResult | ApiError] = {}
        for tp, result in zip(partitions, response.partitions, strict=True):
            results[tp] = result
            if result.error_code is not ErrorCode.NONE:
                results[tp] = error = error_for(result.error_code, _about(tp, result.error_message))
                if not error.retriable:
                    raise error
        return results


def check_partition(topic: MetadataTopic, partition: int) -> None:
    """Raises UnknownTopicOrPartition, not retriable, unless the topic has a partition of that number."""
    if not 0 <= partition < len(topic.partitions):
        raise no_such_partition(topic, partition)


def no_such_partition(topic: MetadataTopic, partition: int) -> NoSuchTopic:
    """The error that says how many partitions the topic has."""
    return NoSuchTopic(
        f"topic {topic.name!r} has partitions 0 to {len(topic.partitions) - 1}, found {partition}"
    )


def _about(topic_partition: TopicPartition, message: str) -> str:
    """The message, with the partition it is about named once."""
    return message if message.startswith(f"{topic_partition}") else f"{topic_partition}: {message}"
