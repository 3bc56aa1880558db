"""The requests of planning and remote reading: offsets of partitions, and the batches of a range.

Lives on the client's IO loop. Leaders that move and calls that break off are retried within a timeout. A topic that was
deleted and created again is an error, not silence: every fetch names the id that the range was planned for.
"""

import asyncio
import logging
from collections.abc import Iterable
from random import Random
from typing import Any
from uuid import UUID

from rayka.client.bootstrap import ClusterHandle
from rayka.client.call_watch import SilenceLimits
from rayka.client.leader_calls import LeaderCalls, LeaderRequest, offsets_at
from rayka.client.metadata import ClusterMetadata
from rayka.client.retry import Retry
from rayka.config.client_config import AdminConfig
from rayka.errors import (
    ApiError,
    ErrorCode,
    LeaderNotAvailable,
    NoSuchTopic,
    OffsetOutOfRange,
    RequestTimedOut,
    TooManyOpenFiles,
    TopicRecreated,
    UnknownTopicOrPartition,
)
from rayka.ids import NO_NODE, TopicPartition
from rayka.log.mapped_reader import is_local_directory
from rayka.options import Transport
from rayka.protocol.fetch import (
    EARLIEST_TIMESTAMP,
    LATEST_TIMESTAMP,
    FetchPartition,
    FetchPartitionResult,
    FetchRequest,
    FileRange,
)
from rayka.protocol.membership import MetadataBroker, MetadataPartition, MetadataTopic
from rayka.spark.plan import (
    AvailableRange,
    OffsetRange,
    are_offsets_named,
    is_topic_lost,
    on_topic_lost,
)
from rayka.spark.source_options import ReadOptions

TIMEOUT_MS = 60_000
_FETCH_WAIT_MS = 500
_FETCH_BYTES_MAX = 4 << 20  # the largest messages move fastest between actors
_EVERYTHING_BYTES = 2**31 - 1  # places in files are small, whatever they hold

logger = logging.getLogger(__name__)


class TopicDeleted(NoSuchTopic):
    """The topic existed when the query was made, and was deleted since."""


class TopicClient:
    """Metadata, offsets and fetches for one query. All methods belong to the IO loop."""

    def __init__(self, handle: ClusterHandle, transport: Transport = "auto") -> None:
        config, random = AdminConfig(), Random()
        self._cluster = handle.name
        self._network = handle.network(transport)
        self._metadata = ClusterMetadata(self._network, handle.name, config, random)
        self._leaders = LeaderCalls(self._network, self._metadata)

    async def available(self, topics: Iterable[str]) -> dict[TopicPartition, AvailableRange]:
        """The offsets of each partition of the topics now, in order.

        Raises UnknownTopicOrPartition, UnavailableError; TopicDeleted, TopicRecreated when a topic goes away.
        """
        found = [await self._metadata.topic(name, TIMEOUT_MS) for name in topics]
        ids = {topic.name: topic.topic_id for topic in found}
        partitions = [
            TopicPartition(topic.name, each.partition) for topic in found for each in topic.partitions
        ]
        try:
            starts, ends = [
                await offsets_at(self._leaders, partitions, each, TIMEOUT_MS, ids)
                for each in (EARLIEST_TIMESTAMP, LATEST_TIMESTAMP)
            ]
        except NoSuchTopic as error:
            raise TopicDeleted(f"a topic was deleted while its offsets were looked up: {error}") from error
        return {tp: AvailableRange(ids[tp.topic], start, ends[tp]) for tp, start in starts.items()}

    async def available_of(self, wanted: OffsetRange) -> AvailableRange:
        """The offsets of a range's partition now. Raises like `available`, also for another topic of the same name."""
        name = wanted.topic_partition.topic
        try:
            there = (await self.available((name,))).get(wanted.topic_partition)
        except NoSuchTopic as error:
            raise TopicDeleted(f"{self._deleted(name)} after the query was made") from error
        if there is None or there.topic_id != wanted.topic_id:
            raise TopicRecreated(f"{self._deleted(name)} and created again after the query was made")
        return there

    async def locate(self, wanted: OffsetRange) -> tuple[FileRange, ...]:
        """The segment files of a range that this machine can open, of the leader or of a replica in sync.

        Files may be missing: this machine cannot open them, or the replica does not know yet that the records are
        committed. No file is returned if records of the range are gone; a fetch reports the remaining ones.
        """
        found: list[FileRange] = []
        offset = wanted.start_offset
        while offset < wanted.end_offset:
            try:
                result = await self._locate_next(wanted, offset)
            except OffsetOutOfRange:
                return ()
            if result is None or not result.file_ranges:
                break
            found += result.file_ranges
            offset = result.next_offset
        return tuple(found)

    async def _locate_next(self, wanted: OffsetRange, offset: int) -> FetchPartitionResult | None:
        topic = await self._topic(wanted)
        leader = topic.partitions[wanted.topic_partition.partition]
        if leader.leader_id == NO_NODE:
            raise LeaderNotAvailable(f"{wanted.topic_partition!r} has no leader just now")
        nearest = self._nearest(leader)
        if nearest is None:
            return None
        directory_ids = tuple(each.directory_id for each in nearest.directories)
        if nearest.node_id == leader.leader_id:
            return await self.fetch(wanted, offset, local_directory_ids=directory_ids)
        part = FetchPartition(
            wanted.topic_id, leader.partition, offset, _EVERYTHING_BYTES, leader.leader_epoch
        )
        request = FetchRequest(
            0,
            0,
            _EVERYTHING_BYTES,
            (part,),
            local_directory_ids=directory_ids,
            rack_id=nearest.rack or nearest.host,
        )
        try:
            (result,) = (await self._network.call(nearest.node_id, request, TIMEOUT_MS)).partitions
            if result.error_code is ErrorCode.NONE:
                return result
            problem = f"{result.error_code.name} {result.error_message}"
        except ApiError as error:
            problem = str(error)
        logger.info("a follower on this machine is of no use for %r: %s", wanted.topic_partition, problem)
        return None

    def _nearest(self, partition: MetadataPartition) -> MetadataBroker | None:
        """The leader or else a replica in sync, if this machine can open all its data directories."""
        brokers = {each.node_id: each for each in self._metadata.nodes.brokers}
        wanted = dict.fromkeys((partition.leader_id, *partition.isr))
        here = (brokers[node_id] for node_id in wanted if node_id in brokers)
        return next((each for each in here if not each.is_fenced and _is_local(each)), None)

    async def fetch(
        self, wanted: OffsetRange, offset: int, *, local_directory_ids: tuple[UUID, ...] = ()
    ) -> FetchPartitionResult:
        """Batches of the range from an offset on: at least one, as bytes or (in a local directory) as file ranges.

        Raises OffsetOutOfRange, TopicRecreated, TopicDeleted, or the last error when the time is over.
        """
        tp, retry = wanted.topic_partition, Retry(TIMEOUT_MS, self._metadata.nodes.backoff)
        api, ids = _FetchRange(offset, local_directory_ids), {tp.topic: wanted.topic_id}
        while True:
            try:
                result = (await self._leaders.call(api, {tp: offset}, retry.remaining_ms, topic_ids=ids))[tp]
            except (NoSuchTopic, TopicRecreated):
                await self._topic(wanted)  # raises what a query says of it
                raise
            if result.next_offset > offset:
                return result
            if not await retry.pause():
                where = f"{tp!r} of cluster {self._cluster!r} at offset {offset}"
                raise RequestTimedOut(
                    f"{where}: nothing came, though offsets up to {wanted.end_offset} were there"
                )

    async def _topic(self, wanted: OffsetRange) -> MetadataTopic:
        """The topic of the query, checked by its id."""
        name = wanted.topic_partition.topic
        try:
            topic = await self._metadata.topic(name, TIMEOUT_MS)
        except NoSuchTopic as error:
            raise TopicDeleted(f"{self._deleted(name)} after the query was made") from error
        if topic.topic_id != wanted.topic_id:
            raise TopicRecreated(
                f"{self._deleted(name)} and created again after the query was made; expected id {wanted.topic_id},"
                f" found {topic.topic_id}"
            )
        return topic

    def _deleted(self, name: str) -> str:
        return f"topic {name!r} of cluster {self._cluster!r} was deleted"


class _FetchRange(LeaderRequest[int, FetchPartitionResult]):
    """One fetch from an offset on."""

    silence_limits = SilenceLimits(least_s=2 * _FETCH_WAIT_MS / 1000, most_s=4 * _FETCH_WAIT_MS / 1000)

    def __init__(self, offset: int, local_directory_ids: tuple[UUID, ...]) -> None:
        self._offset = offset
        self._local_directory_ids = local_directory_ids
        self._max_bytes = _EVERYTHING_BYTES if local_directory_ids else _FETCH_BYTES_MAX

    def part(self, topic: MetadataTopic, partition: MetadataPartition, wanted: int) -> FetchPartition:
        epoch = partition.leader_epoch
        return FetchPartition(topic.topic_id, partition.partition, wanted, self._max_bytes, epoch)

    def request(self, parts: tuple[Any, ...], timeout_ms: int) -> FetchRequest:
        ids = self._local_directory_ids
        return FetchRequest(_FETCH_WAIT_MS, 1, self._max_bytes, parts, local_directory_ids=ids)

    def refusal(self, where: TopicPartition, node_id: int, message: str, cluster_name: str) -> str:
        return f"{where!r} of cluster {cluster_name!r} at offset {self._offset}: {message}"


def _is_local(broker: MetadataBroker) -> bool:
    """Whether this machine can open all data directories of the broker."""
    try:
        return all(is_local_directory(each.path, each.directory_id) for each in broker.directories)
    except TooManyOpenFiles:
        return False


async def available_ranges(options: ReadOptions, client: TopicClient) -> dict[TopicPartition, AvailableRange]:
    """The offsets of a query's topics now, without deleted topics if data may be lost.

    Raises what `TopicClient.available` raises.
    """
    if options.fail_on_data_loss:
        return await client.available(options.topics)
    found = await asyncio.gather(*(_available_of(name, options, client) for name in options.topics))
    return {partition: there for each in found for partition, there in each.items()}


async def _available_of(
    name: str, options: ReadOptions, client: TopicClient
) -> dict[TopicPartition, AvailableRange]:
    try:
        return await client.available((name,))
    except (UnknownTopicOrPartition, TopicRecreated) as error:
        was_there = isinstance(error, (TopicDeleted, TopicRecreated)) or are_offsets_named(options, name)
        if not was_there or not is_topic_lost(error):
            raise
        on_topic_lost(options, error)
        return {}


async def located(wanted: OffsetRange, options: ReadOptions, client: TopicClient) -> tuple[FileRange, ...]:
    """The files of a range by `TopicClient.locate`; none of a deleted topic.

    Raises TopicDeleted and TopicRecreated with failOnDataLoss.
    """
    try:
        return await client.locate(wanted)
    except (TopicDeleted, TopicRecreated) as error:
        on_topic_lost(options, error)
        return ()
