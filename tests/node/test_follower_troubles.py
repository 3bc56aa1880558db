"""A follower between two epochs, two answers or two disks: what comes too late is ignored, what fails stays with its
partition (B3, B22-B26).

Kafka: of `AbstractFetcherThreadTest` and `ReplicaFetcherThreadTest` what they assert of truncation and of removal.
"""

import asyncio

import pytest

from rayka.errors import ErrorCode
from rayka.ids import OffsetAndEpoch
from rayka.protocol.fetch import FetchRequest, ListOffsetsRequest
from rayka.testing.memory_disk import MemoryDisk
from tests.node.replica_support import (
    BROKER,
    LEADER,
    OTHER,
    Asked,
    Broker,
    answered,
    batch,
    changed,
    given,
    now_ms,
    offsets_found,
    position,
    positions,
    run,
)

PARTED = OffsetAndEpoch(1, 0)


async def copied(disk: MemoryDisk | None = None) -> tuple[Broker, Asked[FetchRequest]]:
    """Broker 1 has two records of each of two partitions, one of them committed; its next fetch waits."""
    broker = await Broker.start(disk)
    await broker.apply(broker.new_partition(0), broker.new_partition(1))
    records = (batch(b"a"), batch(b"b", offset=1))
    asked = await broker.begin_session(*(given(number, *records, high_watermark=1) for number in (0, 1)))
    return broker, asked


async def out_of_range(broker: Broker, asked: Asked[FetchRequest]) -> Asked[ListOffsetsRequest]:
    """The leader does not have the position of partition 0; it is asked for its offsets."""
    asked.answer(answered(given(0, error_code=ErrorCode.OFFSET_OUT_OF_RANGE)))
    return await broker.others.lookups.get()


def test_an_answer_that_says_where_logs_part_says_nothing_of_what_is_committed() -> None:  # B3, B23
    async def main() -> None:
        broker, asked = await copied()
        asked.answer(answered(given(0, diverging_epoch=OffsetAndEpoch(2, 0), high_watermark=2)))
        await broker.next_fetch()
        assert (broker.partition().high_watermark, broker.partition().log.log_end_offset) == (1, 2)
        await broker.stop()

    run(main)


@pytest.mark.parametrize("leader_id", [BROKER, OTHER, LEADER])
def test_no_log_is_cut_for_a_leader_that_is_not_followed_any_more(leader_id: int) -> None:  # B22, B26
    async def main() -> None:
        broker, asked = await copied()
        await broker.apply(changed(leader_id=leader_id))
        asked.answer(answered(given(0, diverging_epoch=PARTED), given(1, diverging_epoch=PARTED)))
        await asyncio.sleep(0.1)
        assert [broker.partition(number).log.log_end_offset for number in (0, 1)] == [2, 1]
        await broker.stop()

    run(main)


@pytest.mark.parametrize("leader_id", [BROKER, OTHER, LEADER])
def test_offsets_of_a_leader_that_is_not_followed_any_more_move_no_log(leader_id: int) -> None:  # B25, B26
    async def main() -> None:
        broker, asked = await copied()
        lookup = await out_of_range(broker, asked)
        await broker.apply(changed(leader_id=leader_id))
        lookup.answer(offsets_found(10, 20))
        await asyncio.sleep(0.1)
        log = broker.partition().log
        assert (log.log_start_offset, log.log_end_offset) == (0, 2)
        await broker.stop()

    run(main)


@pytest.mark.parametrize("error", [ErrorCode.FENCED_LEADER_EPOCH, ErrorCode.UNKNOWN_LEADER_EPOCH])
def test_a_leader_that_refuses_the_epoch_of_a_look_up_is_asked_again(error: ErrorCode) -> None:  # B24, B25
    async def main() -> None:
        broker, asked = await copied()
        lookup = await out_of_range(broker, asked)
        assert [each.current_leader_epoch for each in lookup.request.partitions] == [0, 0]
        asked = await broker.next_fetch()  # without partition 0
        refused_at_ms = now_ms()
        lookup.answer(offsets_found(-1, -1, error_code=error))
        asked = await broker.next_fetch()
        assert (positions(asked.request), now_ms() - refused_at_ms) == ({0: 2}, 20)
        (await out_of_range(broker, asked)).answer(offsets_found(10, 20))
        while 0 not in positions((asked := await broker.next_fetch()).request):
            asked.answer(answered())
        assert position(asked.request).fetch_offset == 10
        await broker.stop()

    run(main)


def test_a_disk_that_fails_while_a_log_is_cut_is_offline_and_not_followed() -> None:  # B22
    async def main() -> None:
        disk = MemoryDisk()
        broker, asked = await copied(disk)
        disk.fail("write", "orders-0/")
        asked.answer(answered(given(0, diverging_epoch=PARTED)))
        assert await broker.fetches_nothing_for(60_000)
        assert broker.directories.changed.is_set()
        assert all(each.failure is not None for each in broker.replicas.partitions)
        await broker.stop()

    run(main)
