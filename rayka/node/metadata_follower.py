"""How a broker follows `__cluster_metadata`: it fetches as an observer and turns committed records into images.

Invariants:

- Only records below the high watermark are applied, in order, once.
- The first image is published when the broker has caught up with the records that were committed when it started.
- A new image is visible after the publisher has acted upon it, so a topic in the image can be used.
- Where the log does not begin where the image ends, a snapshot replaces the missing records, and the publisher gets the
  difference. A download belongs to one leader and one epoch; after any error the follower fetches again, because there
  may be a newer snapshot or another leader.

Kafka: `KafkaRaftClient` as observer, `MetadataLoader` (H9, A49). Left out: a copy of the log on this broker's disk.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Iterator

import msgspec

from rayka.clock import now_s
from rayka.errors import (
    CorruptRecord,
    ErrorCode,
    InvariantBroken,
    RequestTimedOut,
    RetriableApiError,
    StorageError,
)
from rayka.ids import METADATA_TOPIC_ID, NO_EPOCH, NO_NODE, NO_OFFSET, OffsetAndEpoch
from rayka.metadata.delta import MetadataDelta
from rayka.metadata.image import MetadataImage, events_response, metadata_steps
from rayka.metadata.image_snapshot import difference
from rayka.metadata.metadata_records import MetadataRecord, decode_record, encode_record
from rayka.node.controller_link import ControllerLink, Pauses
from rayka.node.settings import NodeSettings
from rayka.node.tasks import Signal, in_turns, result_in_turns
from rayka.protocol.batch_format import bytes_view, split_batches
from rayka.protocol.events import DescribeEventsRequest, DescribeEventsResponse
from rayka.protocol.fetch import FetchPartition, FetchPartitionResult, FetchRequest
from rayka.protocol.membership import MetadataRequest, MetadataResponse
from rayka.protocol.quorum_messages import FetchSnapshotRequest
from rayka.raft.snapshot import Snapshot, decode_snapshot, snapshot_name
from rayka.shard.shard_records import RecordCodec, value_codec

# The records of `__cluster_metadata` as the values of its batches, and back.
METADATA_CODEC: RecordCodec[MetadataRecord] = value_codec(encode_record, decode_record)
Publish = Callable[[MetadataDelta, MetadataImage], Awaitable[None]]
# Some thousand records, which are decoded in one turn of the loop.
_FETCH_BYTES = 256 << 10
_SNAPSHOT_PART_BYTES = 1 << 20
_ANSWER_TIMEOUT_MS = 2_000
_SNAPSHOT_TIMEOUT_MS = 5_000
# How long a request waits for the offset that it names.
_METADATA_TIMEOUT_MS = 10_000
_logger = logging.getLogger(__name__)


class MetadataFollower:
    """The metadata as one broker knows them."""

    def __init__(self, settings: NodeSettings, link: ControllerLink, publish: Publish) -> None:
        self._settings = settings
        self._link = link
        self._publish = publish
        self._cluster_id = ""
        self._news = Signal()
        self._has_image = asyncio.Event()
        # Fetched records that are not applied yet, with their offsets.
        self._pending: deque[tuple[int, MetadataRecord]] = deque()
        # Where fetching goes on, and the epoch of the record before that.
        self._fetched = OffsetAndEpoch(0, NO_EPOCH)
        # The epochs of the fetched records, each with the offset where it begins.
        self._epochs: list[OffsetAndEpoch] = []
        self._high_watermark = NO_OFFSET
        self._first_image_offset = 0
        self._delta = MetadataDelta(MetadataImage())
        self.image = MetadataImage()
        self.controller_id = NO_NODE

    def __repr__(self) -> str:
        return f"<MetadataFollower {self.image!r} fetched={self._fetched.offset} hw={self._high_watermark}>"

    async def wait_for(self, offset: int, timeout_ms: int) -> None:
        """Returns once the image holds every record below the offset. Raises RequestTimedOut."""
        deadline_s = now_s() + timeout_ms / 1000
        while self.image.next_offset < offset:
            if now_s() >= deadline_s:
                raise RequestTimedOut(
                    f"broker {self._settings.node_id} has applied the metadata up to offset"
                    f" {self.image.next_offset}, expected {offset} within {timeout_ms} ms; is the controller running?"
                )
            await self._news.wait(deadline_s)

    async def answer(self, request: MetadataRequest) -> MetadataResponse:
        """Answers with brokers and topics, once the image holds the offset that the request names. Kafka:
        `KafkaApis`.
        """
        await self.wait_for(request.min_metadata_offset, _METADATA_TIMEOUT_MS)
        steps = metadata_steps(
            self.image, request, cluster_id=self._cluster_id, controller_id=self.controller_id
        )
        return await result_in_turns(steps)

    async def events(self, request: DescribeEventsRequest) -> DescribeEventsResponse:
        """Answers with the events in the image, for clients that find no active controller."""
        return events_response(self.image, request)

    async def wait_for_first_image(self) -> None:
        """Returns once there is an image, however long the logs take to recover."""
        await self._has_image.wait()

    async def run(self, cluster_id: str, first_image_offset: int) -> None:
        """Follows for ever. No image is published before it holds every record below `first_image_offset`."""
        self._cluster_id, self._first_image_offset = cluster_id, first_image_offset
        pauses = Pauses()
        while True:
            try:
                result = await self._fetch()
            except RetriableApiError:
                await pauses.pause()
                continue
            if result.error_code is ErrorCode.NONE:
                self._take(result)
                if result.snapshot_id is not None and not await self._load(
                    result.snapshot_id, result.leader_epoch
                ):
                    await pauses.pause()
                    continue
                pauses.reset()
                await self._apply()
            else:
                self._link.on_not_leader(result.leader_id, result.leader_epoch)
                await pauses.pause()

    async def _fetch(self) -> FetchPartitionResult:
        max_wait_ms = self._settings.config.fetch_max_wait_ms
        partition = FetchPartition(
            METADATA_TOPIC_ID,
            0,
            fetch_offset=self._fetched.offset,
            max_bytes=_FETCH_BYTES,
            last_fetched_epoch=self._fetched.epoch,
            high_watermark=self._high_watermark,
        )
        request = FetchRequest(
            max_wait_ms=max_wait_ms,
            min_bytes=1,
            max_bytes=_FETCH_BYTES,
            partitions=(partition,),
            replica_id=self._settings.node_id,
            cluster_id=self._cluster_id,
        )
        response = await self._link.call(request, max_wait_ms + _ANSWER_TIMEOUT_MS)
        return response.partitions[0]

    def _take(self, result: FetchPartitionResult) -> None:
        """Keeps fetched records until they are committed; drops those that a new leader does not have (A30)."""
        self.controller_id = result.leader_id
        self._link.learn(result.leader_id, result.leader_epoch)
        self._high_watermark = max(self._high_watermark, result.high_watermark)
        if result.diverging_epoch is not None:
            self._truncate(result.diverging_epoch)
        elif result.records.size:
            for batch in split_batches(result.records):
                batch.check_crc("metadata")
                self._pending.extend(METADATA_CODEC.records(batch))
                if not self._epochs or batch.leader_epoch > self._epochs[-1].epoch:
                    self._epochs.append(OffsetAndEpoch(batch.base_offset, batch.leader_epoch))
            self._fetched = OffsetAndEpoch(result.next_offset, self._epochs[-1].epoch)

    def _truncate(self, diverging: OffsetAndEpoch) -> None:
        """Truncates to the end of the diverging epoch, or of the largest epoch below it here: the leader's end alone
        may lie behind records of a later epoch that only this node has (A33, KIP-101).
        """
        later = (each.offset for each in self._epochs if each.epoch > diverging.epoch)
        offset = min(diverging.offset, next(later, self._fetched.offset))
        if offset < self.image.next_offset:
            raise InvariantBroken(f"{self!r}: what was committed is gone, up to {diverging}")
        while self._pending and self._pending[-1][0] >= offset:
            self._pending.pop()
        while self._epochs and self._epochs[-1].offset >= offset:
            self._epochs.pop()
        self._fetched = OffsetAndEpoch(offset, self._epochs[-1].epoch if self._epochs else NO_EPOCH)

    async def _load(self, snapshot_id: OffsetAndEpoch, leader_epoch: int) -> bool:
        """Downloads a snapshot and goes on from its end; False if it could not be had (A49)."""
        request = FetchSnapshotRequest(
            self._cluster_id,
            snapshot_id,
            position=0,
            max_bytes=0,
            replica_id=self._settings.node_id,
            current_leader_epoch=leader_epoch,
        )
        try:
            snapshot = await download_snapshot(self._link, request)
        except RetriableApiError as error:
            _logger.warning("%r: no snapshot at offset %d yet: %s", self, snapshot_id.offset, error)
            return False
        if snapshot is None:
            return False
        if snapshot_id.offset < self.image.next_offset:
            raise InvariantBroken(f"{self!r} cannot go back to {snapshot_id!r}")
        self._delta = await self._delta_to(snapshot, snapshot_id.offset)
        self._pending.clear()
        self._fetched, self._epochs = snapshot_id, [OffsetAndEpoch(NO_OFFSET, snapshot_id.epoch)]
        self._high_watermark = max(self._high_watermark, snapshot_id.offset)
        return True

    async def _delta_to(self, snapshot: Snapshot, next_offset: int) -> MetadataDelta:
        """The delta from the published image to the snapshot. Between two batches other work has its turn."""
        delta = MetadataDelta(MetadataImage())
        for batch in snapshot.data:
            for _, record in METADATA_CODEC.records(batch):
                delta.replay(record)
            await asyncio.sleep(0)
        if self.image.next_offset == 0:
            return delta
        changes = MetadataDelta(self.image)
        async for record in in_turns(difference(self.image, delta.apply(next_offset))):
            changes.replay(record)
        return changes

    def _committed(self) -> Iterator[MetadataRecord]:
        """Takes the committed records out of the pending ones."""
        while self._pending and self._pending[0][0] < self._high_watermark:
            yield self._pending.popleft()[1]

    async def _apply(self) -> None:
        async for record in in_turns(self._committed()):
            self._delta.replay(record)
        next_offset = min(self._high_watermark, self._fetched.offset)
        if next_offset < self._first_image_offset or next_offset <= self.image.next_offset:
            return
        image = self._delta.apply(next_offset)
        await self._publish(self._delta, image)
        self.image, self._delta = image, MetadataDelta(image)
        self._has_image.set()
        self._news.notify()


async def download_snapshot(link: ControllerLink, request: FetchSnapshotRequest) -> Snapshot | None:
    """Downloads the snapshot that the request names, part after part; None when the download must be given up.

    Raises the retriable ApiError of a call that failed, CorruptRecord when the snapshot is damaged.
    """
    name = f"the leader's {snapshot_name(request.snapshot_id)}"
    content, size_bytes = bytearray(), 1
    while len(content) < size_bytes:
        part = msgspec.structs.replace(request, position=len(content), max_bytes=_SNAPSHOT_PART_BYTES)
        response = await link.call(part, _SNAPSHOT_TIMEOUT_MS)
        is_next_part = (
            response.error_code is ErrorCode.NONE
            and response.leader_epoch == part.current_leader_epoch
            and response.snapshot_id == part.snapshot_id
            and response.position == part.position
            and 0 < len(response.data) <= response.size_bytes - part.position
        )
        if not is_next_part:
            _logger.info("gave up %s at byte %d: %s", name, len(content), response.error_code.name)
            link.learn(response.leader_id, response.leader_epoch)
            return None
        content += bytes_view(response.data)
        size_bytes = response.size_bytes
    try:
        return decode_snapshot(content, name)
    except StorageError as error:
        raise CorruptRecord(str(error)) from error
