"""What the tests of fetching share: broker 1 leads, followers and consumers ask it, on virtual time."""

import asyncio
from typing import Any

import msgspec
import numpy as np

from rayka.ids import NO_NODE
from rayka.node.fetch_handler import FetchHandler
from rayka.node.inbox import completed
from rayka.protocol.batch_decode import decode
from rayka.protocol.batch_encode import encode_batch
from rayka.protocol.batch_format import split_batches
from rayka.protocol.fetch import (
    FetchPartition,
    FetchPartitionResult,
    FetchRequest,
    FetchResponse,
    FetchSessionHandler,
)
from rayka.protocol.produce import ACKS_LEADER
from tests.metadata.support import ORDERS
from tests.node.replica_support import BROKER, LEADER, LEADER_EPOCH, OTHER, Broker, now_ms
from tests.partition.support import append_one

FOLLOWERS = (LEADER, OTHER)  # the names of `replica_support`, where broker 1 is the one that follows
FOLLOWER = LEADER
FOLLOWER_EPOCH = 1
WAIT_MS = 500
_START_MS = 1_000  # of the virtual clock


def passed_ms() -> int:
    """Since the test began."""
    return now_ms() - _START_MS


async def led(partition_count: int = 1, **config: Any) -> tuple[Broker, FetchHandler]:
    """Broker 1, which leads that many partitions with two followers in sync, and the one that answers its fetches."""
    broker = await Broker.start(**config)
    await broker.apply(*(new_led(broker, number) for number in range(partition_count)))
    return broker, FetchHandler(broker.replicas)


def new_led(
    broker: Broker, number: int = 0, *, isr: tuple[int, ...] = (BROKER, *FOLLOWERS), **changes: Any
) -> Any:
    return broker.new_partition(number, leader_id=BROKER, isr=isr, **changes)


def append(broker: Broker, *values: bytes, number: int = 0) -> None:
    """As a producer with acks=0 does."""
    replica = broker.replica(number)
    records = encode_batch(list(values), timestamps_ms=1_700_000_000_000)
    appended = append_one(
        replica.partition.as_leader(), records, ACKS_LEADER, now_ms=now_ms(), timestamp_ms=1_700_000_000_000
    )
    broker.replicas.on_appended(replica, is_high_watermark_moved=appended.is_high_watermark_raised)


def at(offset: int, number: int = 0, **changes: Any) -> FetchPartition:
    """From an offset of a partition, as a follower asks whose log begins at 0."""
    asked = FetchPartition(ORDERS, number, offset, 1 << 20, LEADER_EPOCH, log_start_offset=0)
    return msgspec.structs.replace(asked, **changes)


def request(*fetches: FetchPartition, **changes: Any) -> FetchRequest:
    """A consumer's, answered at once unless `max_wait_ms` says otherwise."""
    return FetchRequest(
        **({"max_wait_ms": 0, "min_bytes": 1, "max_bytes": 1 << 20, "partitions": fetches} | changes)
    )


def follower_request(*fetches: FetchPartition, replica_id: int = FOLLOWER, **changes: Any) -> FetchRequest:
    return request(*fetches, **({"replica_id": replica_id, "replica_epoch": FOLLOWER_EPOCH} | changes))


async def follow(handler: FetchHandler, *fetches: FetchPartition, **changes: Any) -> FetchPartitionResult:
    """The first result that a follower gets."""
    return (await completed(handler.handle(follower_request(*fetches, **changes)))).partitions[0]


async def consume(handler: FetchHandler, *fetches: FetchPartition, **changes: Any) -> FetchPartitionResult:
    """The first result that a consumer gets."""
    return (await completed(handler.handle(request(*fetches, **changes)))).partitions[0]


async def commit(handler: FetchHandler, offset: int, number: int = 0) -> None:
    """Both followers have everything below the offset."""
    for each in FOLLOWERS:
        await follow(handler, at(offset, number), replica_id=each)


def values(result: FetchPartitionResult) -> list[bytes | None]:
    records = result.records if result.records.size else np.empty(0, dtype=np.uint8)
    return [value for batch in split_batches(records) for value in decode(batch).values_list()]


async def parked(handler: FetchHandler, asked: FetchRequest) -> "asyncio.Task[FetchResponse]":
    """A fetch that waits."""
    task = asyncio.create_task(completed(handler.handle(asked)))
    await asyncio.sleep(0)
    assert not task.done()
    return task


class Session:
    """A follower that fetches in a session, or a consumer with `replica_id` -1."""

    def __init__(self, handler: FetchHandler, replica_id: int = FOLLOWER) -> None:
        self._handler = handler
        self._replica_id = replica_id
        self.wanted = FetchSessionHandler()

    async def fetch(self, *fetches: FetchPartition, max_wait_ms: int = 0, **changes: Any) -> FetchResponse:
        """The answer to the next request, in which these have changed."""
        asked = self.next(*fetches, max_wait_ms=max_wait_ms, **changes)
        response = await completed(self._handler.handle(asked))
        self.wanted.on_response(response)
        return response

    def next(self, *fetches: FetchPartition, max_wait_ms: int = 0, **changes: Any) -> FetchRequest:
        for each in fetches:
            self.wanted.want(each)
        part = self.wanted.next()
        make = request if self._replica_id == NO_NODE else follower_request
        if self._replica_id != NO_NODE:
            changes["replica_id"] = self._replica_id
        return make(
            *part.partitions,
            session_id=part.session_id,
            session_epoch=part.session_epoch,
            forgotten=part.forgotten,
            max_wait_ms=max_wait_ms,
            **changes,
        )
