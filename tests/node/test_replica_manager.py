"""What a broker makes of new metadata, and what its waiting producers are told (H10, B4, B15, G10).

Kafka: `ReplicaManagerTest`, `HighwatermarkPersistenceTest`.
"""

import asyncio
import logging
from typing import Any
from uuid import UUID

import msgspec
import pytest

from rayka.errors import ErrorCode, NotLeaderOrFollower, UnknownTopicId
from rayka.ids import NO_EPOCH, NO_NODE, TopicPartition
from rayka.metadata.metadata_records import PartitionChangeRecord, RemoveTopicRecord
from rayka.node.inbox import completed
from rayka.node.produce_handler import ProduceHandler
from rayka.partition.follower_states import FollowerFetch
from rayka.partition.partition_leader import Appended, PartitionLeader
from rayka.protocol.produce import (
    ACKS_ALL,
    ProducePartition,
    ProduceRequest,
)
from rayka.testing.memory_disk import MemoryDisk
from tests.metadata.support import topic
from tests.node.broker_support import records
from tests.node.controller_support import HeldDisk
from tests.node.produce_support import TIMEOUT_MS, WALL_CLOCK_MS, produce
from tests.node.replica_support import (
    BROKER,
    DATA_DIR,
    LEADER,
    LEADER_EPOCH,
    ORDERS,
    OTHER,
    Broker,
    answered,
    batch,
    changed,
    configured,
    given,
    now_ms,
    positions,
    run,
    settle,
)

NEWER = UUID(int=77)


async def leading(*, isr: tuple[int, ...] = (BROKER, LEADER), **config: Any) -> Broker:
    broker = await Broker.start()
    await broker.apply(*configured(**config), broker.new_partition(leader_id=BROKER, isr=isr))
    return broker


def fetch(
    broker: Broker, replica_id: int = LEADER, number: int = 0, *, from_offset: int | None = None
) -> None:
    """The follower has everything, or what is below an offset."""
    replica = broker.replica(number)
    has = replica.partition.log.log_end_offset if from_offset is None else from_offset
    follower = FollowerFetch(replica_id, 1, has, 0)
    update = replica.partition.as_leader().record_fetch(follower, now_ms=now_ms())
    broker.replicas.on_follower_fetch(replica, update)


def logs(disk: MemoryDisk) -> list[str]:
    """The names of the topic's logs, but for those that only wait to be removed."""
    names = disk.list(DATA_DIR)
    return [each for each in names if each.startswith("orders") and not each.endswith("-delete")]


def moved(broker: Broker) -> PartitionChangeRecord:
    """Brokers 2 and 3 are the replicas from now on."""
    there = broker.moved_away()
    return changed(replicas=there.replicas, directories=there.directories, isr=there.isr, leader_id=LEADER)


# ---- Producers that wait ---------------------------------------------------------------------------------------------


def test_acks_all_waits_for_every_replica_in_sync_and_acks_one_for_none() -> None:  # B15, G10
    async def main() -> None:
        broker = await leading(isr=(BROKER, LEADER, OTHER))
        waiting = asyncio.ensure_future(produce(broker, acks=ACKS_ALL))
        await settle()
        assert (await produce(broker)).error_code is ErrorCode.NONE
        fetch(broker, LEADER)
        await settle()
        assert not waiting.done()
        fetch(broker, OTHER)
        assert ((await waiting).error_code, waiting.result().base_offset) == (ErrorCode.NONE, 0)
        await broker.stop()

    run(main)


def test_only_the_refusal_of_a_broker_that_does_not_lead_names_the_leader() -> None:  # G18
    async def main() -> None:
        broker = await Broker.start()
        await broker.apply(broker.new_partition())
        refused = await produce(broker)
        assert refused.error_code is ErrorCode.NOT_LEADER_OR_FOLLOWER
        assert (refused.leader_id, refused.leader_epoch) == (LEADER, LEADER_EPOCH)
        await broker.apply(changed(leader_id=NO_NODE))
        refused = await produce(broker)
        assert (refused.leader_id, refused.leader_epoch) == (NO_NODE, LEADER_EPOCH + 1)
        unknown = await produce(broker, number=9)
        assert unknown.error_code is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        assert (unknown.leader_id, unknown.leader_epoch) == (NO_NODE, NO_EPOCH)
        await broker.stop()

    run(main)


@pytest.mark.parametrize(
    "case", ["another broker leads", "this one leads again", "the replica was moved away"]
)
def test_a_waiting_produce_fails_when_the_leadership_changes(case: str) -> None:  # B15
    async def main() -> None:
        broker = await leading()
        waiting = asyncio.ensure_future(produce(broker, acks=ACKS_ALL))
        await settle()
        change = changed(leader_id=BROKER if case == "this one leads again" else LEADER)
        await broker.apply(moved(broker) if case == "the replica was moved away" else change)
        result = await waiting
        assert result.error_code is ErrorCode.NOT_LEADER_OR_FOLLOWER
        leader_id = BROKER if case == "this one leads again" else LEADER
        assert (result.leader_id, result.leader_epoch) == (leader_id, LEADER_EPOCH + 1)
        await broker.stop()

    run(main)


def test_a_commit_wakes_those_that_it_acknowledges_and_no_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # B15
    looks: list[int] = []
    is_acknowledged = PartitionLeader.is_acknowledged

    def counted(leader: PartitionLeader, appended: Appended, acks: int) -> bool:
        looks.append(appended.base_offset)
        return is_acknowledged(leader, appended, acks)

    monkeypatch.setattr(PartitionLeader, "is_acknowledged", counted)

    async def main() -> None:
        broker = await leading()
        waiting = [asyncio.ensure_future(produce(broker, acks=ACKS_ALL)) for _ in range(3)]
        await settle()
        looks.clear()
        fetch(broker, from_offset=2)
        assert [(await each).base_offset for each in waiting[:2]] == [0, 1]
        assert looks == [0, 1]
        fetch(broker, from_offset=3)
        assert (await waiting[2]).base_offset == 2
        assert looks == [0, 1, 2]
        await broker.stop()

    run(main)


def test_a_waiting_produce_fails_when_the_topic_is_deleted() -> None:  # B15
    async def main() -> None:
        broker = await leading()
        waiting = asyncio.ensure_future(produce(broker, acks=ACKS_ALL))
        await settle()
        await broker.apply(RemoveTopicRecord(topic_id=ORDERS))
        assert (await waiting).error_code is ErrorCode.UNKNOWN_TOPIC_ID
        await broker.stop()

    run(main)


def test_a_partition_that_waits_holds_up_no_later_one_of_its_request() -> None:  # G10
    async def main() -> None:
        broker = await leading()
        await broker.apply(broker.new_partition(1, leader_id=BROKER, isr=(BROKER, LEADER)))
        data = tuple(ProducePartition(ORDERS, number, records(b"a")) for number in (0, 1))
        handler = ProduceHandler(broker.replicas, lambda: WALL_CLOCK_MS)
        waiting = asyncio.ensure_future(completed(handler.handle(ProduceRequest(ACKS_ALL, TIMEOUT_MS, data))))
        await settle()
        fetch(broker, number=1)
        codes = [each.error_code for each in (await waiting).partitions]
        assert codes == [ErrorCode.REQUEST_TIMED_OUT, ErrorCode.NONE]
        await broker.stop()

    run(main)


def test_a_produce_that_waits_for_too_long_times_out_and_the_record_stays() -> None:  # B15
    async def main() -> None:
        broker = await leading()
        assert (
            await produce(broker, acks=ACKS_ALL, timeout_ms=100)
        ).error_code is ErrorCode.REQUEST_TIMED_OUT
        assert broker.partition().log.log_end_offset == 1
        await broker.stop()

    run(main)


def test_with_too_few_in_sync_nothing_is_written_and_what_was_written_before_is_not_acknowledged() -> (
    None
):  # B15
    async def main() -> None:
        broker = await leading(min_insync_replicas=2)
        waiting = asyncio.ensure_future(produce(broker, acks=ACKS_ALL))
        await settle()
        fetch(broker)
        assert (await waiting).error_code is ErrorCode.NONE
        await broker.apply(changed(isr=(BROKER,)))
        assert (await produce(broker, acks=ACKS_ALL)).error_code is ErrorCode.NOT_ENOUGH_REPLICAS
        assert (await produce(broker)).error_code is ErrorCode.NONE
        assert (broker.partition().log.log_end_offset, broker.partition().high_watermark) == (2, 1)
        await broker.stop()

    run(main)


# ---- Metadata --------------------------------------------------------------------------------------------------------


def test_a_replica_that_was_moved_to_other_brokers_is_deleted_and_not_fetched_any_more() -> None:  # H10, B45
    async def main() -> None:
        disk = MemoryDisk()
        broker = await Broker.start(disk)
        await broker.apply(broker.new_partition())
        asked = await broker.begin_session(given(0, batch(b"a"), high_watermark=1))
        assert disk.exists(f"{DATA_DIR}/orders-0")
        await broker.apply(moved(broker))
        asked.answer(answered(given(0, batch(b"b", offset=1))))
        assert await broker.fetches_nothing_for(60_000)
        with pytest.raises(NotLeaderOrFollower, match="broker 2 leads it"):
            broker.replica()
        assert logs(disk) == []
        await broker.stop()

    run(main)


def test_what_was_moved_while_the_broker_was_down_is_deleted_when_it_is_back() -> None:
    async def main() -> None:
        disk = MemoryDisk()
        broker = await Broker.start(disk)
        await broker.apply(broker.new_partition(0), broker.new_partition(1))
        await broker.begin_session(given(0, batch(b"a")), given(1, batch(b"b")))
        await broker.stop()
        broker = await Broker.start(disk)
        await broker.apply(broker.new_partition(0), broker.moved_away(1))
        assert logs(disk) == ["orders-0"]
        assert broker.partition(0).log.log_end_offset == 1
        await broker.stop()

    run(main)


def test_a_replica_that_came_back_into_another_directory_begins_there_anew() -> None:  # H10, B45
    async def main() -> None:
        disk, paths = MemoryDisk(), (DATA_DIR, f"{DATA_DIR}-b")
        broker = await Broker.start(disk, data_dirs=paths)
        await broker.apply(broker.new_partition())
        await broker.begin_session(given(0, batch(b"a"), high_watermark=1))
        back = broker.new_partition()
        other_id = broker.directories.all[1].directory_id
        directories = (other_id, *back.directories[1:])
        await broker.apply(  # a broker that was cut off for a while reads both at once
            moved(broker), changed(replicas=back.replicas, directories=directories, leader_id=LEADER)
        )
        assert positions((await broker.next_fetch()).request) == {0: 0}
        assert [path for path in paths if disk.exists(f"{path}/orders-0")] == []
        assert broker.replica().directory.path == paths[1]
        await broker.stop()

    run(main)


def test_a_replica_whose_directory_was_replaced_waits_for_its_new_one_and_that_is_no_error(
    caplog: pytest.LogCaptureFixture,
) -> None:  # B45
    async def main() -> None:
        broker = await Broker.start(MemoryDisk())
        partition = broker.new_partition(isr=(LEADER,))
        own_id, *others = partition.directories
        lost = msgspec.structs.replace(partition, directories=(UUID(int=99), *others))
        await broker.apply(lost)
        assert broker.replicas.problems() == [
            f"orders-0 lives in directory {UUID(int=99)}, which is none of ['{DATA_DIR}']; it begins anew in one of "
            "these as soon as the controller has said in which"
        ]
        await broker.apply(changed(replicas=partition.replicas, directories=(own_id, *others)))
        assert broker.replicas.problems() == []
        assert broker.partition().log.log_end_offset == 0
        await broker.stop()

    run(main)
    assert [each.getMessage() for each in caplog.records if each.levelno >= logging.WARNING] == []


def test_a_log_that_was_left_in_another_directory_is_deleted_when_the_broker_is_back() -> None:
    async def main() -> None:
        disk, paths = MemoryDisk(), (DATA_DIR, f"{DATA_DIR}-b")
        broker = await Broker.start(disk, data_dirs=paths)
        await broker.apply(broker.new_partition())
        await broker.begin_session(given(0, batch(b"a"), high_watermark=1))
        await broker.stop()
        broker = await Broker.start(disk, data_dirs=paths)
        here = broker.new_partition()
        other_id = broker.directories.all[1].directory_id
        directories = (other_id, *here.directories[1:])
        await broker.apply(broker.new_partition(isr=(LEADER,), directories=directories))
        assert not disk.exists(f"{DATA_DIR}/orders-0")
        assert (broker.replica().directory.path, broker.partition().log.log_end_offset) == (paths[1], 0)
        await broker.stop()

    run(main)


def test_a_deleted_topic_is_not_followed_any_more() -> None:
    async def main() -> None:
        disk = MemoryDisk()
        broker = await Broker.start(disk)
        await broker.apply(broker.new_partition())
        asked = await broker.begin_session(given(0, batch(b"a")))
        await broker.apply(RemoveTopicRecord(topic_id=ORDERS))
        asked.answer(answered(given(0, batch(b"b", offset=1))))
        assert await broker.fetches_nothing_for(60_000)
        with pytest.raises(UnknownTopicId):
            broker.replica()
        assert logs(disk) == []
        await broker.stop()

    run(main)


def test_in_one_delta_leader_and_follower_change_places() -> None:  # H10
    async def main() -> None:
        broker = await Broker.start()
        await broker.apply(broker.new_partition(0, leader_id=BROKER), broker.new_partition(1))
        (await broker.next_fetch()).answer(answered(given(1)))
        asked = await broker.next_fetch()
        await broker.apply(changed(0, leader_id=LEADER), changed(1, leader_id=BROKER))
        assert [each.is_leader for each in broker.replicas.partitions] == [False, True]
        asked = await broker.next_fetch()
        assert (positions(asked.request), [each.partition for each in asked.request.forgotten]) == (
            {0: 0},
            [1],
        )
        await broker.stop()

    run(main)


def test_the_epoch_of_a_new_leadership_is_durable_when_the_metadata_is_applied() -> None:  # H10, B16
    async def main() -> None:
        broker = await leading()
        await produce(broker)
        await broker.apply(changed(leader_id=BROKER))
        log = broker.partition().log
        assert log.unsynced(epochs_only=True).is_empty
        assert (log.flushed_offset, log.log_end_offset) == (0, 1), (
            "what came before need not be synced for it"
        )
        assert broker.partition().as_leader().epoch_start_offset == 1
        await broker.stop()

    run(main)


@pytest.mark.parametrize(
    ("isr", "is_offline"), [((BROKER, LEADER), True), ((BROKER,), False)], ids=["others in sync", "alone"]
)
def test_a_leader_whose_disk_is_full_makes_way_for_a_replica_in_sync_and_alone_is_still_read(
    isr: tuple[int, ...], is_offline: bool
) -> None:  # B40
    async def main() -> None:
        disk = MemoryDisk()
        broker = await Broker.start(disk)
        await broker.apply(broker.new_partition(leader_id=BROKER, isr=isr))
        assert (await produce(broker)).error_code is ErrorCode.NONE
        disk.fill_up(after_bytes=10)
        assert (await produce(broker)).error_code is ErrorCode.KAFKA_STORAGE_ERROR
        assert (broker.directories.offline_ids() != ()) == is_offline
        assert broker.replica().directory.failure is None, "there may be room again"
        await broker.stop()

    run(main)


@pytest.mark.parametrize(
    ("isr", "is_offline"), [((BROKER, LEADER), True), ((BROKER,), False)], ids=["others in sync", "alone"]
)
def test_a_replica_that_cannot_begin_to_lead_on_a_full_disk_makes_way_for_one_in_sync(
    isr: tuple[int, ...], is_offline: bool
) -> None:  # B40
    async def main() -> None:
        disk = MemoryDisk()
        broker = await Broker.start(disk)
        await broker.apply(broker.new_partition(0), broker.new_partition(1))
        await broker.begin_session(given(0, batch(b"a")))
        disk.fill_up()
        await broker.apply(changed(leader_id=BROKER, isr=isr))
        assert (await produce(broker)).error_code is ErrorCode.KAFKA_STORAGE_ERROR
        assert (broker.directories.offline_ids() != ()) == is_offline
        assert broker.replica(1).directory.failure is None, "there may be room again"
        await broker.stop()

    run(main)


def test_the_log_of_a_replica_that_is_not_usable_is_not_synced_any_more() -> None:  # F13
    async def main() -> None:
        disk = HeldDisk()
        broker = await Broker.start(disk)
        await broker.apply(*configured(flush_ms=1_000), broker.new_partition(leader_id=BROKER, isr=(BROKER,)))
        assert (await produce(broker)).error_code is ErrorCode.NONE
        disk.fill_up()
        await broker.apply(changed(leader_id=BROKER))
        count = disk.sync_count
        await asyncio.sleep(2)
        assert disk.sync_count == count
        await broker.stop()

    run(main)


@pytest.mark.parametrize("isr", [(LEADER,), (LEADER, BROKER)], ids=["not counted on", "in sync"])
def test_a_log_that_is_gone_begins_anew_only_where_no_replica_counts_on_what_it_had(
    isr: tuple[int, ...],
) -> None:  # B33
    async def main() -> None:
        disk = MemoryDisk()
        broker = await Broker.start(disk)
        await broker.apply(broker.new_partition())
        await broker.begin_session(given(0, batch(b"a"), batch(b"b", offset=1), high_watermark=2))
        await asyncio.sleep(6)  # what was there is in the checkpoints
        await broker.stop()
        disk.remove_directory(f"{DATA_DIR}/orders-0")
        for _ in range(2):  # once more before there is a record again
            broker = await Broker.start(disk)
            await broker.apply(broker.new_partition(isr=isr))
            is_copied = not await broker.fetches_nothing_for(1_000)
            assert is_copied == (not broker.replicas.problems()) == (BROKER not in isr)
            await broker.stop()

    run(main)


@pytest.mark.parametrize(
    ("counted_on", "is_kept"),
    [
        ({}, False),
        ({"isr": (LEADER, BROKER)}, True),
        ({"eligible_leader_replicas": (BROKER,)}, True),
        ({"last_known_elr": (BROKER,)}, True),
        ({"leader_id": NO_NODE}, True),
    ],
    ids=["not counted on", "in sync", "eligible", "last known eligible", "no replica leads"],
)
@pytest.mark.parametrize("position", [16, 70], ids=["the magic", "a record"])
def test_a_replica_that_may_be_elected_keeps_its_damaged_log(
    counted_on: dict[str, Any], is_kept: bool, position: int
) -> None:  # B33
    async def main() -> None:
        disk, segment = MemoryDisk(), f"{DATA_DIR}/orders-0/{0:020}.log"
        broker = await Broker.start(disk)
        await broker.apply(broker.new_partition())
        await broker.begin_session(given(0, batch(b"a"), batch(b"b", offset=1), high_watermark=2))
        await broker.stop()
        disk.flip_bit(segment, position)  # in the first of two batches, so that it is no torn tail
        size_bytes = disk.size(segment)
        broker = await Broker.start(disk)
        await broker.apply(broker.new_partition(**({"isr": (LEADER,)} | counted_on)))
        assert (disk.exists(segment) and disk.size(segment) == size_bytes) == is_kept
        await broker.stop()

    run(main)


# ---- Checkpoints -----------------------------------------------------------------------------------------------------


def test_a_followers_high_watermark_is_saved_and_found_again() -> None:  # B4
    async def main() -> None:
        disk = MemoryDisk()
        broker = await Broker.start(disk)
        await broker.apply(broker.new_partition())
        await broker.begin_session(given(0, batch(b"a"), batch(b"b", offset=1), high_watermark=1))
        await asyncio.sleep(6)  # every five seconds
        await broker.stop()
        broker = await Broker.start(disk)
        await broker.apply(broker.new_partition())
        partition = broker.partition()
        assert (partition.high_watermark, partition.log.log_end_offset) == (1, 2)
        await broker.stop()

    run(main)


def test_a_clean_shutdown_saves_the_high_watermarks_of_all_partitions_each_on_its_disk() -> None:  # B4
    async def main() -> None:
        disk, paths = MemoryDisk(), (DATA_DIR, "/data/other")
        broker = await Broker.start(disk, data_dirs=paths)
        second_id = broker.directories.all[1].directory_id
        led = broker.new_partition(0, leader_id=BROKER, isr=(BROKER,))
        there = broker.new_partition(1)
        elsewhere = msgspec.structs.replace(there, directories=(second_id, *there.directories[1:]))
        await broker.apply(led, elsewhere)
        await produce(broker)
        await broker.begin_session(given(1, batch(b"a"), batch(b"b", offset=1), high_watermark=2))
        await broker.tasks.stop()
        await broker.directories.close(broker.replicas.logs.high_watermarks)
        again = await Broker.start(disk, data_dirs=paths)
        saved = [
            {
                number: each.checkpoints.high_watermarks.get(TopicPartition("orders", number))
                for number in (0, 1)
            }
            for each in again.directories.all
        ]
        assert saved == [{0: 1, 1: None}, {0: None, 1: 2}]
        await again.stop()

    run(main)


def test_a_topic_that_is_created_again_does_not_get_the_high_watermark_of_the_one_before() -> None:  # B4
    async def main() -> None:
        disk = HeldDisk()
        broker = await Broker.start(disk)
        await broker.apply(broker.new_partition(leader_id=BROKER, isr=(BROKER,)))
        await produce(broker, acks=ACKS_ALL)
        disk.is_open.clear()
        other = asyncio.create_task(broker.replica().directory.checkpoint())
        await asyncio.sleep(6)  # one more is due, and waits for that
        await broker.apply(RemoveTopicRecord(topic_id=ORDERS), topic(topic_id=NEWER))
        await broker.apply(broker.new_partition(topic_id=NEWER))
        disk.is_open.set()
        await other
        await settle()
        directory = broker.replica(topic_id=NEWER).directory
        assert directory.checkpoints.high_watermarks.get(TopicPartition("orders", 0)) == 0
        await broker.stop()

    run(main)


def test_a_followers_log_start_is_saved_and_found_again() -> None:  # B3
    async def main() -> None:
        disk = MemoryDisk()
        broker = await Broker.start(disk)
        await broker.apply(broker.new_partition())
        await broker.begin_session(
            given(0, batch(b"a"), batch(b"b", offset=1), high_watermark=2, log_start_offset=1)
        )
        await asyncio.sleep(6)
        await broker.stop()
        broker = await Broker.start(disk)
        await broker.apply(broker.new_partition())
        assert broker.partition().log.log_start_offset == 1
        await broker.stop()

    run(main)
