"""The controller node on a memory disk: committing, following, failing, restarting."""

import asyncio
from collections.abc import Coroutine
from random import Random
from typing import Any
from uuid import UUID

import pytest

from rayka.config.broker_config import BrokerConfig
from rayka.errors import (
    DuplicateBrokerRegistration,
    ErrorCode,
    InconsistentClusterId,
    InvalidRequest,
    KafkaStorageError,
    NotController,
    StorageError,
)
from rayka.node.controller_node import ControllerNode
from rayka.node.quorum_directory import format_first_voters
from rayka.protocol.fetch import FetchPartition
from rayka.protocol.membership import (
    MetadataRequest,
    NodeState,
    StatusRequest,
)
from rayka.testing.memory_disk import MemoryDisk
from tests.node.controller_support import (
    METADATA_DIR,
    Crashes,
    HeldDisk,
    fetch_request,
    fetched,
    new_cluster,
    new_topic,
    registration,
    settings,
    start_broker,
    started,
)

PATIENCE_S = 60


def run(scenario: Coroutine[Any, Any, None]) -> None:
    asyncio.run(asyncio.wait_for(scenario, PATIENCE_S))


async def topic_names(node: ControllerNode) -> list[str]:
    return [topic.name for topic in (await node.handle(MetadataRequest())).topics]


# ---- Formatting ------------------------------------------------------------------------------------------------------


def test_the_first_controller_makes_the_cluster_id_from_the_seed() -> None:
    async def scenario() -> None:
        first, second = MemoryDisk(), MemoryDisk()
        cluster_id = await format_first_voters([settings(first)])
        assert cluster_id == await format_first_voters([settings(second)])
        assert (await (await started(first)).handle(StatusRequest())).cluster_id == cluster_id

    run(scenario())


def test_a_formatted_directory_is_not_formatted_again() -> None:
    async def scenario() -> None:
        disk = MemoryDisk()
        node = await new_cluster(disk)
        await node.handle(new_topic("orders"))
        await node.stop()
        with pytest.raises(StorageError, match="formatted already"):
            await format_first_voters([settings(disk)])
        assert await topic_names(await started(disk)) == ["orders"]

    run(scenario())


@pytest.mark.parametrize("seed", range(8))
def test_a_format_that_a_power_cut_ended_can_be_repeated(seed: int) -> None:
    async def scenario() -> None:
        disk = MemoryDisk()
        disk.fail("sync", where="controller-3001", times=1)
        with pytest.raises(StorageError):
            await format_first_voters([settings(disk)])
        disk.power_loss(Random(seed))
        await format_first_voters([settings(disk)])
        await started(disk)

    run(scenario())


def test_a_format_survives_a_power_cut() -> None:
    async def scenario() -> None:
        disk = MemoryDisk()
        cluster_id = await format_first_voters([settings(disk)])
        disk.power_loss(Random(1))
        node = await started(disk)
        assert (await node.handle(StatusRequest())).cluster_id == cluster_id

    run(scenario())


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda disk: disk.remove_directory("/data"), "is missing"),
        (lambda disk: disk.unlink("/data/controller-3001/meta.properties"), "not formatted"),
        (
            lambda disk: disk.flip_bit(f"{METADATA_DIR}/{'0' * 20}-{'0' * 10}.checkpoint", 100),
            "checkpoint is damaged",
        ),
        (lambda disk: disk.lock("/data/controller-3001/.lock"), "in use"),
    ],
)
def test_a_directory_that_cannot_be_used_is_named_with_the_reason(damage: Any, message: str) -> None:
    async def scenario() -> None:
        disk = MemoryDisk()
        await format_first_voters([settings(disk)])
        damage(disk)
        node = ControllerNode(settings(disk))
        with pytest.raises(StorageError, match=rf"/data/controller-3001.*{message}"):
            await node.start()
        status = await node.handle(StatusRequest())
        assert status.state is NodeState.FAILED
        assert message in status.detail

    run(scenario())


def test_another_nodes_directory_is_refused() -> None:
    async def scenario() -> None:
        disk = MemoryDisk()
        await format_first_voters([settings(disk)])
        with pytest.raises(StorageError, match=r"belongs to controller-3001, expected controller-3002"):
            await started(disk, node_id=3002)

    run(scenario())


# ---- Restarting ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(25))
def test_committed_topics_survive_a_power_cut(seed: int) -> None:  # A26
    async def scenario() -> None:
        disk = HeldDisk()
        node = await new_cluster(disk)
        for number in range(seed % 4):
            await node.handle(new_topic(f"committed-{number}"))
        disk.is_open.clear()
        disk.began.clear()
        unacknowledged = asyncio.create_task(node.handle(new_topic("unacknowledged")))
        await disk.began.wait()
        node.kill()
        with pytest.raises(asyncio.CancelledError):
            await unacknowledged
        disk.power_loss(Random(seed))
        disk.is_open.set()
        names = await topic_names(await started(disk))
        assert [name for name in names if name != "unacknowledged"] == [
            f"committed-{n}" for n in range(seed % 4)
        ]

    run(scenario())


@pytest.mark.parametrize("is_power_cut", [False, True])
@pytest.mark.parametrize("position", [16, 100], ids=["header", "body"])
def test_damaged_metadata_is_not_cut_and_the_controller_says_why_it_failed(
    position: int, is_power_cut: bool
) -> None:
    async def scenario() -> None:
        disk = MemoryDisk()
        node = await new_cluster(disk)
        path = f"{METADATA_DIR}/{0:020d}.log"
        damaged = disk.size(path)
        for name in ("orders", "flights", "carriers"):
            await node.handle(new_topic(name))
        node.kill()
        if is_power_cut:
            disk.power_loss(Random(1))
        disk.process_crash()
        disk.flip_bit(path, damaged + position)
        failed = ControllerNode(settings(disk))
        with pytest.raises(StorageError, match=METADATA_DIR):
            await failed.start()
        status = await failed.handle(StatusRequest())
        assert (status.state, METADATA_DIR in status.detail) == (NodeState.FAILED, True)
        disk.flip_bit(path, damaged + position)
        assert await topic_names(await started(disk)) == ["carriers", "flights", "orders"]

    run(scenario())


def test_committed_topics_survive_a_killed_process_in_a_higher_epoch() -> None:  # A9
    async def scenario() -> None:
        disk = MemoryDisk()
        node = await new_cluster(disk)
        await node.handle(new_topic("orders"))
        node.kill()
        disk.process_crash()
        again = await started(disk)
        assert await topic_names(again) == ["orders"]
        assert (await again.handle(StatusRequest())).leader_epoch == 2

    run(scenario())


def test_a_controller_whose_power_is_cut_again_and_again_never_leads_twice_in_one_epoch() -> None:  # A8, A9
    async def scenario() -> None:
        disk, random, epochs = MemoryDisk(), Random(3), []
        await format_first_voters([settings(disk)])
        for _ in range(12):
            node = await started(disk)
            epochs.append((await node.handle(StatusRequest())).leader_epoch)
            node.kill()
            disk.power_loss(random)
        assert epochs == list(range(1, 13))

    run(scenario())


def test_a_directory_without_its_checkpoint_is_no_voter_and_says_so() -> None:  # A1, A48
    async def scenario() -> None:
        disk = MemoryDisk()
        await format_first_voters([settings(disk)])
        disk.unlink(f"{METADATA_DIR}/{'0' * 20}-{'0' * 10}.checkpoint")
        node = ControllerNode(settings(disk))
        await node.start()
        with pytest.raises(NotController, match="no leader answers; the voters are not known"):
            await node.handle(new_topic("orders"))
        assert (await node.handle(StatusRequest())).detail == "no leader answers; the voters are not known"
        await node.stop()

    run(scenario())


def test_a_voter_whose_quorum_state_is_damaged_does_not_vote_on_a_guess() -> None:  # A8, A9
    async def scenario() -> None:
        disk = MemoryDisk()
        node = await new_cluster(disk)
        await node.handle(new_topic("orders"))
        await node.stop()
        disk.write(f"{METADATA_DIR}/quorum-state", b"{")
        with pytest.raises(StorageError, match=f"{METADATA_DIR}/quorum-state is damaged"):
            await started(disk)
        disk.unlink(f"{METADATA_DIR}/quorum-state")
        again = await started(disk)  # an only voter leads in an epoch after that of its log
        assert await topic_names(again) == ["orders"]
        assert (await again.handle(StatusRequest())).leader_epoch == 2

    run(scenario())


def test_a_stopped_node_answers_no_more_and_frees_its_directory() -> None:
    async def scenario() -> None:
        disk = MemoryDisk()
        node = await new_cluster(disk)
        await node.stop()
        with pytest.raises(NotController):
            await node.handle(new_topic("orders"))
        assert (await (await started(disk)).handle(StatusRequest())).state is NodeState.RUNNING

    run(scenario())


# ---- Committing ------------------------------------------------------------------------------------------------------


def test_no_answer_shows_what_is_not_committed() -> None:  # A26, A65
    async def scenario() -> None:
        disk = HeldDisk()
        node = await new_cluster(disk)
        before = await node.handle(StatusRequest())
        disk.is_open.clear()
        creation = asyncio.create_task(node.handle(new_topic("orders")))
        uncommitted = await fetched(
            node,
            fetch_request(
                before.log_end_offset,
                high_watermark=before.high_watermark,
                max_wait_ms=5_000,
                replica_id=3002,
                replica_directory_id=UUID(int=7),
            ),
        )
        assert len(uncommitted.records) > 0
        assert uncommitted.high_watermark == before.high_watermark
        question = asyncio.create_task(topic_names(node))
        await asyncio.sleep(0)
        assert not creation.done()
        assert not question.done()
        disk.is_open.set()
        assert await question == ["orders"]
        assert (await creation).metadata_offset == (await node.handle(StatusRequest())).high_watermark

    run(scenario())


def test_one_sync_serves_all_that_came_before_it_began() -> None:  # A25
    async def scenario() -> None:
        disk = HeldDisk()
        node = await new_cluster(disk)
        count = disk.sync_count
        await asyncio.gather(*(node.handle(new_topic(f"topic-{number}")) for number in range(50)))
        assert disk.sync_count == count + 1
        disk.is_open.clear()
        disk.began.clear()
        first = asyncio.create_task(node.handle(new_topic("first")))
        await disk.began.wait()
        others = [asyncio.create_task(node.handle(new_topic(f"later-{number}"))) for number in range(50)]
        await asyncio.sleep(0)
        disk.is_open.set()
        await asyncio.gather(first, *others)
        assert disk.sync_count == count + 3

    run(scenario())


def test_a_request_that_changes_nothing_needs_no_sync() -> None:
    async def scenario() -> None:
        disk = HeldDisk()
        node = await new_cluster(disk)
        count = disk.sync_count
        assert (await node.handle(new_topic("__x"))).topics[0].error_message
        assert await topic_names(node) == []
        assert disk.sync_count == count

    run(scenario())


def test_metadata_wait_for_the_offset_asked_for() -> None:
    async def scenario() -> None:
        node = await new_cluster(MemoryDisk())
        end = (await node.handle(StatusRequest())).high_watermark
        question = asyncio.create_task(node.handle(MetadataRequest(min_metadata_offset=end + 1)))
        await asyncio.sleep(0)
        assert not question.done()
        await node.handle(new_topic("orders"))
        assert (await question).metadata_offset > end

    run(scenario())


def test_a_silent_broker_is_fenced() -> None:  # H6, A68
    async def scenario() -> None:
        node = await new_cluster(MemoryDisk(), config=BrokerConfig(broker_session_timeout_ms=100))
        end = (await node.handle(StatusRequest())).high_watermark
        response = await node.handle(MetadataRequest(min_metadata_offset=end + 1))
        assert response.brokers[0].is_fenced

    run(scenario())


def test_a_broker_comes_back_under_its_directories() -> None:  # design §4
    async def scenario() -> None:
        node = await new_cluster(MemoryDisk())
        epoch = (await node.handle(MetadataRequest(()))).brokers[0].broker_epoch
        successor = registration(incarnation_id=UUID(int=6), known_broker_epoch=epoch)
        assert (await node.handle(successor)).broker_epoch > epoch
        with pytest.raises(DuplicateBrokerRegistration):
            await start_broker(node)  # a call of its former process, that comes late

    run(scenario())


# ---- Followed --------------------------------------------------------------------------------------------------------


def test_a_follower_of_everything_waits_for_news_and_is_woken() -> None:  # A32
    async def scenario() -> None:
        node = await new_cluster(MemoryDisk())
        status = await node.handle(StatusRequest())
        request = fetch_request(
            status.log_end_offset, high_watermark=status.high_watermark, max_wait_ms=5_000
        )
        waiting = asyncio.create_task(fetched(node, request))
        await asyncio.sleep(0)
        assert not waiting.done()
        await node.handle(new_topic("orders"))
        assert len((await waiting).records) > 0

    run(scenario())


def test_a_follower_is_answered_when_its_time_is_over() -> None:  # A32
    async def scenario() -> None:
        node = await new_cluster(MemoryDisk())
        status = await node.handle(StatusRequest())
        request = fetch_request(status.log_end_offset, high_watermark=status.high_watermark, max_wait_ms=10)
        result = await fetched(node, request)
        assert (len(result.records), result.next_offset) == (0, status.log_end_offset)
        assert (result.leader_id, result.leader_epoch) == (3001, 1)

    run(scenario())


def test_a_follower_that_waits_is_told_when_the_node_stops() -> None:  # A28, A32
    async def scenario() -> None:
        node = await new_cluster(MemoryDisk())
        status = await node.handle(StatusRequest())
        request = fetch_request(
            status.log_end_offset, high_watermark=status.high_watermark, max_wait_ms=5_000
        )
        waiting = asyncio.create_task(fetched(node, request))
        await asyncio.sleep(0)
        await node.stop()
        assert (await waiting).error_code is ErrorCode.BROKER_NOT_AVAILABLE

    run(scenario())


def test_a_follower_of_another_cluster_is_refused_naming_both() -> None:  # A27
    async def scenario() -> None:
        node = await new_cluster(MemoryDisk())
        with pytest.raises(InconsistentClusterId, match="cluster-b"):
            await node.handle(fetch_request(0, cluster_id="cluster-b"))

    run(scenario())


@pytest.mark.parametrize("partitions", [(), (FetchPartition(UUID(int=7), 0, 0, 1),)])
def test_a_controller_answers_fetches_of_the_metadata_log_alone(
    partitions: tuple[FetchPartition, ...],
) -> None:  # A27
    async def scenario() -> None:
        node = await new_cluster(MemoryDisk())
        with pytest.raises(InvalidRequest, match=r"expected that of __cluster_metadata alone, found"):
            await node.handle(fetch_request(0, partitions=partitions))

    run(scenario())


# ---- Failing ---------------------------------------------------------------------------------------------------------


def test_a_disk_that_fails_fails_the_node_which_goes_on_saying_why() -> None:
    async def scenario() -> None:
        disk = MemoryDisk()
        node = await new_cluster(disk)
        disk.fail("sync", where="__cluster_metadata-0")
        with pytest.raises(KafkaStorageError, match="__cluster_metadata-0"):
            await node.handle(new_topic("orders"))
        with pytest.raises(KafkaStorageError):
            await node.handle(new_topic("payments"))
        with pytest.raises(KafkaStorageError):
            await node.handle(fetch_request(0))
        status = await node.handle(StatusRequest())
        assert status.state is NodeState.FAILED
        assert "__cluster_metadata-0" in status.detail
        await node.stop()

    run(scenario())


def test_a_full_disk_refuses_what_it_cannot_hold_and_keeps_what_it_has() -> None:
    async def scenario() -> None:
        disk = MemoryDisk()
        node = await new_cluster(disk)
        await node.handle(new_topic("orders"))
        disk.fill_up(after_bytes=100)
        with pytest.raises(KafkaStorageError):
            await node.handle(new_topic("payments"))
        node.kill()
        disk.process_crash()
        disk.fill_up(after_bytes=1 << 30)
        assert await topic_names(await started(disk)) == ["orders"]

    run(scenario())


def test_an_unexpected_exception_ends_the_node() -> None:
    async def scenario() -> None:
        crashes, clock = Crashes(), [1.0]
        node = await new_cluster(MemoryDisk(), crash=crashes, wall_clock_ms=lambda: int(1000 / clock[0]))
        clock[0] = 0.0
        creation = asyncio.create_task(node.handle(new_topic("orders")))
        await crashes.happened.wait()
        assert [type(error) for error in crashes.errors] == [ZeroDivisionError]
        node.kill()
        with pytest.raises(asyncio.CancelledError):
            await creation

    run(scenario())
