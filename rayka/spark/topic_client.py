"""What planning and remote reading ask of the cluster: what partitions hold, and the batches of a range.

Lives on the client's IO loop. Leaders that move and calls that break off are retried within a timeout. A topic that was
deleted and created again is an error, not silence: every fetch names the id that the range was planned for.
"""

import logging
from collections.abc import Iterable
from random import Random
from uuid import UUID

from rayka.client.bootstrap import ClusterHandle
from rayka.client.metadata import ClusterMetadata, TopicRecreated
from rayka.client.offset_lookup import OffsetLookup
from rayka.client.retry import Backoff, Retry
from rayka.config import AdminConfig
from rayka.errors import (
    ApiError,
    ErrorCode,
    LeaderNotAvailable,
    RequestTimedOut,
    error_for,
)
from rayka.ids import NO_NODE, TopicPartition
from rayka.log.mapped_reader import is_local_directory
from rayka.protocol.cluster import MetadataBroker, MetadataPartition
from rayka.protocol.fetch import (
    EARLIEST_TIMESTAMP,
    LATEST_TIMESTAMP,
    FetchPartition,
    FetchPartitionResult,
    FetchRequest,
    FileRange,
)
from rayka.spark.plan import AvailableRange, OffsetRange

TIMEOUT_MS = 60_000
_FETCH_WAIT_MS = 500
_FETCH_BYTES_MAX = 4 << 20  # the largest messages move fastest between actors
_EVERYTHING_BYTES = 2**31 - 1  # places in files are small, whatever they hold

logger = logging.getLogger(__name__)


class TopicClient:
    """Metadata, offsets and fetches for one query. All methods belong to the IO loop."""

    def __init__(self, handle: ClusterHandle) -> None:
        config, random = AdminConfig(), Random()
        self._cluster = handle.name
        self._network = handle.network()
        self._metadata = ClusterMetadata(self._network, handle.name, config, random)
        self._lookup = OffsetLookup(self._network, self._metadata, config, random)
        self._backoff = Backoff.of(config, random)

    async def available(self, topics: Iterable[str]) -> dict[TopicPartition, AvailableRange]:
        """What each partition of the topics holds now, in order. Raises UnknownTopicOrPartition, UnavailableError."""
        ids: dict[TopicPartition, UUID] = {}
        for name in topics:
            topic = await self._metadata.topic(name, TIMEOUT_MS)
            ids |= {TopicPartition(name, each.partition): topic.topic_id for each in topic.partitions}
        starts = await self._lookup.offsets(dict.fromkeys(ids, EARLIEST_TIMESTAMP), TIMEOUT_MS)
        ends = await self._lookup.offsets(dict.fromkeys(ids, LATEST_TIMESTAMP), TIMEOUT_MS)
        return {each: AvailableRange(ids[each], starts[each].offset, ends[each].offset) for each in ids}

    async def locate(self, wanted: OffsetRange) -> tuple[FileRange, ...]:
        """The segment files that hold a range, if this machine can open those of its leader or of a replica in sync;
        none, or not all, if it cannot, or if that replica has yet to hear how far the log is committed.
        """
        found: list[FileRange] = []
        offset = wanted.start_offset
        while offset < wanted.end_offset:
            result = await self._locate_next(wanted, offset)
            if result is None or not result.file_ranges:
                break
            found += result.file_ranges
            offset = result.next_offset
        return tuple(found)

    async def _locate_next(self, wanted: OffsetRange, offset: int) -> FetchPartitionResult | None:
        retry = Retry(TIMEOUT_MS, self._backoff)
        leader = await self._leader(wanted, retry)
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
            return await self._ask(nearest.node_id, request, f"{wanted.topic_partition!r}", retry)
        except ApiError as error:
            logger.info("a follower on this machine is of no use: %s", error)
            return None

    def _nearest(self, partition: MetadataPartition) -> MetadataBroker | None:
        """The leader or else a replica in sync, if this machine can open all its data directories."""
        brokers = {each.node_id: each for each in self._metadata.brokers}
        wanted = dict.fromkeys((partition.leader_id, *partition.isr))
        here = (brokers[node_id] for node_id in wanted if node_id in brokers)
        return next((each for each in here if not each.is_fenced and _is_local(each)), None)

    async def fetch(
        self, wanted: OffsetRange, offset: int, *, local_directory_ids: tuple[UUID, ...] = ()
    ) -> FetchPartitionResult:
        """Batches of the range from an offset on: at least one, as bytes or (in a local directory) as file ranges.

        Raises OffsetOutOfRange, TopicRecreated, UnknownTopicOrPartition, or the last error when the time is over.
        """
        retry = Retry(TIMEOUT_MS, self._backoff)
        while True:
            try:
                return await self._fetch_once(wanted, offset, local_directory_ids, retry)
            except ApiError as error:
                if not error.retriable or not await retry.pause():
                    raise
            await self._metadata.refresh((wanted.topic_partition.topic,))

    async def _fetch_once(
        self, wanted: OffsetRange, offset: int, local_directory_ids: tuple[UUID, ...], retry: Retry
    ) -> FetchPartitionResult:
        leader = await self._leader(wanted, retry)
        max_bytes = _EVERYTHING_BYTES if local_directory_ids else _FETCH_BYTES_MAX
        part = FetchPartition(wanted.topic_id, leader.partition, offset, max_bytes, leader.leader_epoch)
        request = FetchRequest(_FETCH_WAIT_MS, 1, max_bytes, (part,), local_directory_ids=local_directory_ids)
        where = f"{wanted.topic_partition!r} of cluster {self._cluster!r} at offset {offset}"
        result = await self._ask(leader.leader_id, request, where, retry)
        if result.next_offset <= offset:
            raise RequestTimedOut(
                f"{where}: nothing came, though offsets up to {wanted.end_offset} were there"
            )
        return result

    async def _ask(
        self, node_id: int, request: FetchRequest, where: str, retry: Retry
    ) -> FetchPartitionResult:
        response = await self._network.call(node_id, request, retry.remaining_ms)
        (result,) = response.partitions
        if result.error_code is not ErrorCode.NONE:
            raise error_for(result.error_code, f"{where}: {result.error_message}")
        return result

    async def _leader(self, wanted: OffsetRange, retry: Retry) -> MetadataPartition:
        name = wanted.topic_partition.topic
        topic = await self._metadata.topic(name, retry.remaining_ms)
        if topic.topic_id != wanted.topic_id:
            raise TopicRecreated(
                f"topic {name!r} of cluster {self._cluster!r} was deleted and created again after the query was made;"
                f" expected id {wanted.topic_id}, found {topic.topic_id}; run the query again"
            )
        leader = topic.partitions[wanted.topic_partition.partition]
        if leader.leader_id == NO_NODE:
            raise LeaderNotAvailable(f"{wanted.topic_partition!r} has no leader just now")
        return leader


def _is_local(broker: MetadataBroker) -> bool:
    """Whether this machine can open all data directories of the broker."""
    return all(is_local_directory(each.path, each.directory_id) for each in broker.directories)
