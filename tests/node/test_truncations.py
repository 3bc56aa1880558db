"""Truncations that need a copy: the partition waits for it, the others and the event loop do not (B22, B25, B26).

Kafka: `ReplicaFetcherThreadTest`; its truncation is in place and never waits.
"""

import asyncio

import pytest

from rayka.errors import ErrorCode
from rayka.ids import OffsetAndEpoch
from rayka.metadata.metadata_records import RemoveTopicRecord
from rayka.node.fetch_answers import WEIGHT_PER_TURN
from rayka.protocol.fetch import FetchRequest, FetchResponse
from rayka.testing.memory_disk import MemoryDisk
from tests.node.produce_support import produce
from tests.node.replica_support import (
    BROKER,
    DATA_DIR,
    LEADER,
    ORDERS,
    OTHER,
    SESSION,
    Asked,
    Broker,
    CountingDisk,
    answered,
    batch,
    changed,
    given,
    offsets_found,
    position,
    positions,
    run,
    settle,
)

PARTED = OffsetAndEpoch(1, 0)  # the new leader has one record of epoch 0
COPY = f"{DATA_DIR}/orders-0/00000000000000000000.log.tmp"


class SlowDisk(MemoryDisk):
    """A memory disk whose copies end when a test lets one go on."""

    def __init__(self) -> None:
        super().__init__()
        self.copying: list[str] = []
        self.done = asyncio.Semaphore(0)

    async def copy_prefix(self, source: str, target: str, size_bytes: int) -> None:
        self.copying.append(source)
        await self.done.acquire()
        await super().copy_prefix(source, target, size_bytes)


async def parted(disk: MemoryDisk, count: int = 1) -> tuple[Broker, Asked[FetchRequest]]:
    """Broker 1 restarted with two records in each of so many partitions, and none in one more; the new leader has told
    that it has only the first of them. And the fetch that follows.
    """
    numbers = range(count)
    broker = await Broker.start(disk)
    await broker.apply(*(broker.new_partition(each) for each in range(count + 1)))
    await broker.begin_session(
        *(given(each, batch(b"a"), batch(b"b", offset=1)) for each in numbers), given(count)
    )
    await broker.stop()
    broker = await Broker.start(disk)
    await broker.apply(*(broker.new_partition(each, leader_epoch=1) for each in range(count + 1)))
    results = [given(each, leader_epoch=1, diverging_epoch=PARTED) for each in numbers]
    asked = await broker.begin_session(*results, given(count, leader_epoch=1))
    return broker, asked


def ends(broker: Broker, *numbers: int) -> list[int]:
    return [broker.partition(each).log.log_end_offset for each in numbers]


def test_while_one_partition_is_cut_the_others_are_followed() -> None:  # B22
    async def main() -> None:
        disk = SlowDisk()
        broker, asked = await parted(disk)
        for offset in range(3):
            assert 0 not in positions(asked.request)
            result = given(1, batch(b"c", offset=offset, epoch=1), leader_epoch=1)
            asked.answer(answered(result))
            asked = await broker.next_fetch()
        assert (len(disk.copying), ends(broker, 0, 1)) == (1, [2, 3])
        disk.done.release()
        await settle()
        assert ends(broker, 0, 1) == [1, 3]
        asked = await broker.next_fetch()  # overtakes the one that waits
        assert position(asked.request).fetch_offset == 1
        assert not disk.exists(COPY)
        await broker.stop()

    run(main)


def test_one_log_is_copied_at_a_time() -> None:
    async def main() -> None:
        disk = SlowDisk()
        broker, _ = await parted(disk, 3)
        for count in range(3):
            await settle()
            assert (len(disk.copying), ends(broker, 0, 1, 2)) == (count + 1, [1] * count + [2] * (3 - count))
            disk.done.release()
        await settle()
        assert ends(broker, 0, 1, 2) == [1, 1, 1]
        await broker.stop()

    run(main)


def test_a_replica_that_leads_before_its_copy_is_done_keeps_its_log() -> None:  # B26
    async def main() -> None:
        disk = SlowDisk()
        broker, _ = await parted(disk)
        await broker.apply(changed(leader_id=BROKER))
        assert (await produce(broker, 0)).base_offset == 2
        disk.done.release()
        await settle()
        assert (ends(broker, 0), broker.partition().as_leader().epoch_start_offset) == ([3], 2)
        assert not disk.exists(COPY)
        await broker.stop()

    run(main)


def test_a_newer_leader_is_asked_itself_where_the_logs_parted() -> None:  # B26
    async def main() -> None:
        disk = SlowDisk()
        broker, _ = await parted(disk)
        await broker.apply(changed(leader_id=OTHER))
        first = await broker.next_fetch()
        while first.node_id != OTHER:
            first = await broker.next_fetch()
        assert (position(first.request).fetch_offset, position(first.request).current_leader_epoch) == (2, 2)
        disk.done.release()
        await settle()
        assert (ends(broker, 0), disk.exists(COPY)) == ([2], False)
        result = given(0, leader_id=OTHER, leader_epoch=2, diverging_epoch=OffsetAndEpoch(0, 0))
        first.answer(FetchResponse((result,), session_id=SESSION + 1))
        disk.done.release()
        await settle()
        assert ends(broker, 0) == [0]
        await broker.stop()

    run(main)


@pytest.mark.parametrize("case", ["deleted", "moved"])
def test_a_replica_that_goes_while_its_log_is_copied_leaves_nothing_behind(case: str) -> None:  # H10
    async def main() -> None:
        disk = SlowDisk()
        broker, _ = await parted(disk)
        there = broker.moved_away()
        moved = changed(
            replicas=there.replicas, directories=there.directories, isr=there.isr, leader_id=LEADER
        )
        await broker.apply(RemoveTopicRecord(topic_id=ORDERS) if case == "deleted" else moved)
        disk.done.release()
        await settle()
        assert not disk.exists(f"{DATA_DIR}/orders-0")
        assert broker.directories.all[0].failure is None
        await broker.stop()

    run(main)


def test_a_broker_that_stops_while_a_log_is_copied_leaves_it_as_it_was() -> None:
    async def main() -> None:
        disk = SlowDisk()
        broker, _ = await parted(disk)
        await broker.tasks.stop()
        await broker.directories.close(broker.replicas.logs.high_watermarks)
        disk.copy_prefix_now(COPY.removesuffix(".tmp"), COPY, 10)  # what its thread has left
        broker = await Broker.start(disk)
        await broker.apply(broker.new_partition(leader_epoch=1))
        assert (ends(broker, 0), disk.exists(COPY)) == ([2], False)
        await broker.stop()

    run(main)


def test_a_directory_that_fails_while_a_log_is_copied_fails_once() -> None:  # F13
    async def main() -> None:
        disk = SlowDisk()
        broker, _ = await parted(disk)
        disk.fail("write", "orders-0")
        disk.done.release()
        await settle()
        assert "cannot copy" in str(broker.directories.all[0].failure)
        assert ends(broker, 0) == [2]
        await broker.stop()

    run(main)


def test_a_copy_that_finds_no_room_is_tried_again_until_there_is_some() -> None:
    async def main() -> None:
        disk = SlowDisk()
        broker, _ = await parted(disk)
        for is_full in (True, True, False):
            disk.fill_up(0 if is_full else 1 << 30)
            disk.done.release()
            await settle()
            assert ends(broker, 0) == [2 if is_full else 1]
            asked = await broker.next_fetch()
            while 0 not in positions(asked.request):  # it was sent before
                asked = await broker.next_fetch()
            assert any("disk full" in each for each in broker.replicas.problems()) == is_full
            asked.answer(answered(given(0, leader_epoch=1, diverging_epoch=PARTED)))
            await settle()
        assert broker.directories.all[0].failure is None
        await broker.stop()

    run(main)


def test_a_log_that_is_longer_than_its_leaders_waits_for_its_copy_too() -> None:  # B25
    async def main() -> None:
        disk = SlowDisk()
        broker = await Broker.start(disk)
        await broker.apply(broker.new_partition())
        await broker.begin_session(given(0, batch(b"a"), batch(b"b", offset=1)))
        await broker.stop()
        broker = await Broker.start(disk)
        await broker.apply(broker.new_partition())
        (await broker.next_fetch()).answer(
            FetchResponse((given(0, error_code=ErrorCode.OFFSET_OUT_OF_RANGE),), session_id=SESSION)
        )
        (await broker.others.lookups.get()).answer(offsets_found(0, 1))
        await settle()
        assert (len(disk.copying), ends(broker, 0)) == (1, [2])
        disk.done.release()
        await settle()
        assert ends(broker, 0) == [1]
        await broker.stop()

    run(main)


def test_many_logs_that_are_cut_in_place_are_cut_in_several_turns() -> None:  # B22
    async def main() -> None:
        disk, numbers = CountingDisk("cut"), range(3 * WEIGHT_PER_TURN)
        broker = await Broker.start(disk)
        await broker.apply(*(broker.new_partition(each) for each in numbers))
        asked = await broker.begin_session(
            *(given(each, batch(b"a"), batch(b"b", offset=1)) for each in numbers)
        )
        await broker.apply(*(changed(each, leader_id=OTHER) for each in numbers))
        asked = await broker.next_fetch()
        assert (asked.node_id, len(asked.request.partitions)) == (OTHER, len(numbers))
        results = [given(each, leader_epoch=1, diverging_epoch=PARTED) for each in numbers]
        asked.answer(FetchResponse(tuple(results), session_id=SESSION))
        await disk.count_turns(len(numbers))
        assert max(disk.counts()) == WEIGHT_PER_TURN
        asked = await broker.next_fetch()
        assert positions(asked.request) == dict.fromkeys(numbers, 1)
        await broker.stop()

    run(main)
