"""How a broker that follows the metadata gives up what a new leader does not have."""

import asyncio
from collections.abc import Sequence

import numpy as np

from rayka.ids import METADATA_TOPIC_ID, OffsetAndEpoch
from rayka.metadata.delta import MetadataDelta
from rayka.metadata.image import MetadataImage
from rayka.metadata.metadata_records import FeatureLevelRecord, encode_record
from rayka.node.controller_link import ControllerLink
from rayka.node.metadata_follower import MetadataFollower
from rayka.protocol.batch_encode import encode_batch
from rayka.protocol.batch_format import RecordBatch
from rayka.protocol.fetch import FetchPartitionResult
from rayka.testing.memory_disk import MemoryDisk
from tests.node.controller_support import NoNetwork, settings


async def publish(delta: MetadataDelta, image: MetadataImage) -> None:
    """Only the test looks at the image."""


def records(*offsets_and_epochs: tuple[int, int]) -> np.ndarray:
    """One record of one batch at each offset; what it says is its epoch."""
    parts: list[bytes] = []
    for offset, epoch in offsets_and_epochs:
        value = encode_record(FeatureLevelRecord(name=f"feature-{offset}", level=epoch))
        batch = RecordBatch(encode_batch([value], timestamps_ms=0))
        parts += map(bytes, batch.stamped(base_offset=offset, leader_epoch=epoch))
    return np.frombuffer(b"".join(parts), dtype=np.uint8)


def answer(high_watermark: int, epoch: int, *fetched: tuple[int, int], end: int = 0) -> FetchPartitionResult:
    """What a leader of this epoch answers: records, or else that its log has the epoch only up to `end`."""
    return FetchPartitionResult(
        METADATA_TOPIC_ID, 0, high_watermark=high_watermark, leader_id=3001, leader_epoch=epoch,
        next_offset=fetched[-1][0] + 1 if fetched else -1,
        records=records(*fetched) if fetched else np.empty(0, dtype=np.uint8),
        diverging_epoch=None if fetched else OffsetAndEpoch(end, 1),
    )  # fmt: skip


async def followed(answers: Sequence[FetchPartitionResult]) -> MetadataImage:
    """The image after these answers."""
    follower = MetadataFollower(settings(MemoryDisk()), ControllerLink(NoNetwork()), publish)
    for each in answers:
        follower._take(each)
        await follower._apply()
    return follower.image


def test_a_record_of_a_later_epoch_goes_although_the_leaders_epoch_reaches_further() -> None:
    """A33, KIP-101. 1. The broker fetches offsets 0 to 1 of epoch 1, and 2 of epoch 2, which is never committed. 2. The
    next leader has 0 to 2 of epoch 1, so epoch 1 ends at 3 with it. 3. The broker's own epoch 1 ends at 2.
    """
    image = asyncio.run(
        followed(
            [
                answer(1, 2, (0, 1), (1, 1), (2, 2)),
                answer(1, 3, end=3),
                answer(4, 3, (2, 1), (3, 3)),
            ]
        )
    )
    assert image.features == {"feature-0": 1, "feature-1": 1, "feature-2": 1, "feature-3": 3}
