"""A broker follows the metadata: by the log, and by a snapshot where the log does not begin where its image ends."""

import asyncio
import math
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from contextlib import asynccontextmanager
from typing import Any
from uuid import UUID

import msgspec
import numpy as np
import pytest

from rayka.errors import NetworkException
from rayka.ids import OffsetAndEpoch, Role
from rayka.metadata.delta import MetadataDelta
from rayka.metadata.image import MetadataImage
from rayka.metadata.image_snapshot import image_records
from rayka.metadata.metadata_records import (
    MetadataRecord,
    PartitionChangeRecord,
    RemoveTopicRecord,
    encode_record,
)
from rayka.node.controller_link import ControllerLink
from rayka.node.metadata_follower import MetadataFollower
from rayka.node.tasks import Signal
from rayka.ports import Request
from rayka.protocol.batch_encode import encode_batch
from rayka.protocol.fetch import FetchRequest, FetchResponse
from rayka.protocol.membership import NodeState, StatusRequest, StatusResponse
from rayka.protocol.quorum_messages import FetchSnapshotRequest, FetchSnapshotResponse
from rayka.raft.snapshot import encode_snapshot
from rayka.testing.memory_disk import MemoryDisk
from tests.metadata.support import ORDERS, active, partition, topic
from tests.node.controller_support import settings
from tests.raft.support import CLUSTER_ID, Node

PAYMENTS, EVENTS = UUID(int=200), UUID(int=300)
PART_BYTES = 400
FIRST = [*active(1, 2), topic(), partition(0, (1, 2)), topic("payments", PAYMENTS)]
FIRST += [partition(number, (1, 2), topic_id=PAYMENTS) for number in range(4)]
LATER: list[MetadataRecord] = [
    RemoveTopicRecord(topic_id=ORDERS),
    PartitionChangeRecord(topic_id=PAYMENTS, partition=2, leader_id=2),
    topic("events", EVENTS),
    partition(0, (2, 1), topic_id=EVENTS),
]
Fault = Callable[
    ["Controller", FetchSnapshotRequest, FetchSnapshotResponse], Awaitable[FetchSnapshotResponse]
]


class Controller:
    """The only voter of a quorum behind a network port: a real core on a memory disk. It gives snapshots in small
    parts, and `faults` happen to one part each.
    """

    def __init__(self) -> None:
        self.node = Node.leading()
        self.image = MetadataImage()
        self.news = Signal()
        self.is_reachable = True
        self.faults: list[Fault] = []
        self.parts: list[tuple[OffsetAndEpoch, int]] = []

    def commit(self, records: Iterable[MetadataRecord]) -> None:
        delta = MetadataDelta(self.image)
        for record in records:
            delta.replay(record)
            self.node.commit(encode_record(record))
        self.image = delta.apply(self.node.quorum.high_watermark)
        self.news.notify()

    async def write_snapshot(self) -> None:
        """A snapshot of all that is committed takes the place of the log and of the snapshots before."""
        offset = self.node.quorum.high_watermark
        snapshot_id = OffsetAndEpoch(offset, self.node.quorum.log.epoch_of(offset - 1))
        assert self.node.quorum.create_snapshot_allowed(snapshot_id)
        batches = [
            encode_batch([value], timestamps_ms=1) for value in map(encode_record, image_records(self.image))
        ]
        parts = encode_snapshot(
            snapshot_id, self.node.quorum.log.history.voters_at(offset), batches, timestamp_ms=1
        )
        await self.node.snapshots.write(snapshot_id, parts)
        self.node.quorum.clean_snapshots(retention_bytes=0, retention_ms=-1, timestamp_ms=1)

    async def faults_over(self) -> None:
        while self.faults:
            await self.news.wait(math.inf)

    # ---- The network port --------------------------------------------------------------------------------------------

    async def node_ids(self) -> list[int]:
        return [3001]

    async def call(self, node_id: int, request: Request[Any], timeout_ms: int) -> Any:
        await asyncio.sleep(0)
        if not self.is_reachable:
            raise NetworkException("cannot be reached")
        if isinstance(request, StatusRequest):
            return StatusResponse(
                3001,
                (Role.CONTROLLER,),
                NodeState.RUNNING,
                0,
                "",
                (),
                leader_id=3001,
                leader_epoch=self.node.epoch,
            )
        if isinstance(request, FetchRequest):
            return FetchResponse((await self._fetched(request),))
        assert isinstance(request, FetchSnapshotRequest)
        return await self._part(request)

    async def _fetched(self, request: FetchRequest) -> Any:
        while True:
            result = self.node.quorum.leader_log.handle_fetch(request, now_ms=0, may_wait=True)
            if result is not None:
                return result
            await self.news.wait(math.inf)
            if not self.is_reachable:
                raise NetworkException("cannot be reached")

    async def _part(self, request: FetchSnapshotRequest) -> FetchSnapshotResponse:
        self.parts.append((request.snapshot_id, request.position))
        small = msgspec.structs.replace(request, max_bytes=PART_BYTES)
        response = self.node.quorum.leader_log.handle_fetch_snapshot(small, 0)
        if self.faults and request.position > 0:
            self.news.notify()
            return await self.faults.pop(0)(self, small, response)
        return response


class Broker:
    """The follower under test, and the deltas that it published."""

    def __init__(self, controller: Controller) -> None:
        self.published: list[tuple[MetadataDelta, MetadataImage]] = []
        self.follower = MetadataFollower(
            settings(MemoryDisk(), node_id=1), ControllerLink(controller), self._publish
        )

    async def _publish(self, delta: MetadataDelta, image: MetadataImage) -> None:
        self.published.append((delta, image))

    async def caught_up(self, controller: Controller) -> None:
        await self.follower.wait_for(controller.node.quorum.high_watermark, 10_000)
        expected = MetadataDelta(controller.image).apply(controller.node.quorum.high_watermark)
        assert self.follower.image == expected
        assert list(self.follower.image.topics) == list(expected.topics)


@asynccontextmanager
async def following(controller: Controller, first_image_offset: int = 0) -> AsyncIterator[Broker]:
    """A broker that follows the controller; nothing is published before the offset."""
    broker = Broker(controller)
    task = asyncio.ensure_future(broker.follower.run(CLUSTER_ID, first_image_offset))
    try:
        yield broker
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        assert task.cancelled(), task


def test_a_new_broker_begins_with_the_snapshot_and_goes_on_with_the_log() -> None:  # A29, A49, H9
    async def scenario() -> None:
        controller = Controller()
        controller.commit(FIRST)
        await controller.write_snapshot()
        controller.commit(LATER)
        async with following(controller, controller.node.quorum.high_watermark) as broker:
            await broker.caught_up(controller)
            ((delta, image),) = broker.published
            assert set(delta.changed_partitions()) == {key for key, _ in image.partitions()}
            assert [position for _, position in controller.parts][:3] == [0, PART_BYTES, 2 * PART_BYTES]
            controller.commit([topic("more", UUID(int=400))])
            await broker.caught_up(controller)

    asyncio.run(scenario())


async def _broker_left_behind(controller: Controller, broker: Broker) -> None:
    """The broker knows what came first, and the log that follows is gone by the time it asks again."""
    await broker.caught_up(controller)
    controller.is_reachable = False
    controller.news.notify()
    await controller.write_snapshot()
    controller.commit(LATER)
    await controller.write_snapshot()
    assert controller.node.quorum.log.log_start_offset > broker.follower.image.next_offset


def test_a_broker_that_was_away_too_long_learns_what_has_changed_meanwhile() -> None:  # A30, H9
    async def scenario() -> None:
        controller = Controller()
        controller.commit(FIRST)
        async with following(controller) as broker:
            await _broker_left_behind(controller, broker)
            before = broker.follower.image
            controller.is_reachable = True
            await broker.caught_up(controller)
            delta, image = broker.published[-1]
            assert delta.deleted_topics() == [ORDERS]
            assert [(each.topic_id, each.partition) for each in delta.changed_partitions()] == [
                (PAYMENTS, 2),
                (EVENTS, 0),
            ]
            assert image.partition(delta.changed_partitions()[0]).leader_epoch == 1  # type: ignore[union-attr]
            assert image.topics_by_id[PAYMENTS].partitions[0] is before.topics_by_id[PAYMENTS].partitions[0]

    asyncio.run(scenario())


async def _lost(
    controller: Controller, request: FetchSnapshotRequest, response: Any
) -> FetchSnapshotResponse:
    raise NetworkException("lost")


async def _deleted(
    controller: Controller, request: FetchSnapshotRequest, response: Any
) -> FetchSnapshotResponse:
    """Another snapshot took its place."""
    controller.commit([topic("more", UUID(int=400))])
    await controller.write_snapshot()
    return controller.node.quorum.leader_log.handle_fetch_snapshot(request, 0)


async def _beyond(
    controller: Controller, request: FetchSnapshotRequest, response: Any
) -> FetchSnapshotResponse:
    return controller.node.quorum.leader_log.handle_fetch_snapshot(
        msgspec.structs.replace(request, position=10**6), 0
    )


async def _other_leader(
    controller: Controller, request: FetchSnapshotRequest, response: Any
) -> FetchSnapshotResponse:
    controller.node = controller.node.restarted()
    controller.node.settle(10_000)
    return controller.node.quorum.leader_log.handle_fetch_snapshot(request, 0)


async def _other_id(
    controller: Controller, request: FetchSnapshotRequest, response: Any
) -> FetchSnapshotResponse:
    return msgspec.structs.replace(response, snapshot_id=OffsetAndEpoch(9999, 1))  # type: ignore[no-any-return]


async def _other_position(
    controller: Controller, request: FetchSnapshotRequest, response: Any
) -> FetchSnapshotResponse:
    return msgspec.structs.replace(response, position=0)  # type: ignore[no-any-return]


async def _nothing(
    controller: Controller, request: FetchSnapshotRequest, response: Any
) -> FetchSnapshotResponse:
    return msgspec.structs.replace(response, data=response.data[:0])  # type: ignore[no-any-return]


async def _rotten(
    controller: Controller, request: FetchSnapshotRequest, response: Any
) -> FetchSnapshotResponse:
    data = np.array(response.data)
    data[-100:] ^= 1  # more than the bytes of a header that no CRC covers
    return msgspec.structs.replace(response, data=data)  # type: ignore[no-any-return]


@pytest.mark.parametrize(
    "fault",
    [_lost, _deleted, _beyond, _other_leader, _other_id, _other_position, _nothing, _rotten],
)
def test_whatever_happens_on_the_way_the_broker_begins_again_with_a_fetch(fault: Fault) -> None:  # A49
    async def scenario() -> None:
        controller = Controller()
        controller.commit(FIRST)
        async with following(controller) as broker:
            await _broker_left_behind(controller, broker)
            controller.faults.append(fault)
            controller.is_reachable = True
            await broker.caught_up(controller)
            beginnings = [each for each, position in controller.parts if position == 0]
            # The log of another leader may reach back far enough.
            assert len(beginnings) >= (1 if fault is _other_leader else 2)
            assert not controller.faults

    asyncio.run(scenario())


def test_until_the_snapshot_is_whole_the_old_image_counts() -> None:  # H9
    async def scenario() -> None:
        controller = Controller()
        controller.commit(FIRST)
        async with following(controller) as broker:
            await _broker_left_behind(controller, broker)
            before, count = broker.follower.image, len(broker.published)
            controller.faults += [_lost] * 3
            controller.is_reachable = True
            await controller.faults_over()
            assert (broker.follower.image, len(broker.published)) == (before, count)
            await broker.caught_up(controller)
            assert len(broker.published) == count + 1

    asyncio.run(scenario())
