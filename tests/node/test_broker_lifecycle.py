"""A broker process and its controller, from the registration to the end (H1-H5, H8).

Kafka: `BrokerLifecycleManagerTest`.
"""

import asyncio
from typing import Any, NamedTuple

import pytest

from rayka.errors import (
    ApiError,
    DuplicateBrokerRegistration,
    InconsistentClusterId,
    NetworkException,
    NotController,
    StaleBrokerEpoch,
    StorageError,
    UnavailableError,
)
from rayka.ids import NO_EPOCH
from rayka.metadata.delta import MetadataDelta
from rayka.metadata.image import MetadataImage
from rayka.node.broker_lifecycle import BrokerLifecycle
from rayka.node.controller_link import ControllerLink
from rayka.node.data_directories import DataDirectories
from rayka.node.load_meter import LoadMeter
from rayka.node.metadata_follower import MetadataFollower
from rayka.node.replica import Replica
from rayka.protocol.membership import HeartbeatRequest, HeartbeatResponse, RegisterBrokerResponse
from rayka.testing.memory_disk import MemoryDisk
from tests.node.replica_support import (
    BROKER_EPOCH,
    CLUSTER_ID,
    Asked,
    Others,
    now_ms,
    run,
    settings_of,
)

DATA_DIRS = ("/data/first", "/data/second")
INTERVAL_MS, SOON_MS, SHUTDOWN_TIMEOUT_MS = 2_000, 20, 10_000
REGISTERED = RegisterBrokerResponse(BROKER_EPOCH, CLUSTER_ID)


async def _nowhere(delta: MetadataDelta, image: MetadataImage) -> None:
    pass


class NoReplicas:
    replicas: list[Replica] = []


class Process(NamedTuple):
    """What of a broker process talks to the controller, and the controller's end of it."""

    lifecycle: BrokerLifecycle
    directories: DataDirectories
    others: Others
    meter: LoadMeter

    async def heartbeat(self) -> Asked[HeartbeatRequest]:
        return await self.others.heartbeats.get()

    def stop(self, *tasks: "asyncio.Task[Any]") -> None:
        for each in tasks:
            each.cancel()
        self.directories.release()


async def started(disk: MemoryDisk | None = None, **config: Any) -> Process:
    """A process with two directories, not registered yet; they are formatted if they are new."""
    disk, others = disk or MemoryDisk(), Others()
    settings = settings_of(disk, others, DATA_DIRS, **config)
    if not disk.exists(f"{DATA_DIRS[0]}/meta.properties"):
        await DataDirectories.format(settings)
    directories, link = await DataDirectories.open(settings), ControllerLink(others)
    follower, meter = (
        MetadataFollower(settings, link, _nowhere),
        LoadMeter(settings, directories, NoReplicas()),
    )
    lifecycle = BrokerLifecycle(settings, link, directories, follower, meter)
    return Process(lifecycle, directories, others, meter)


async def running(**config: Any) -> tuple[Process, "asyncio.Task[None]"]:
    """One that is registered, and sends heartbeats."""
    process = await started(**config)
    registering = asyncio.create_task(process.lifecycle.register())
    (await process.others.registrations.get()).answer(REGISTERED)
    await registering
    return process, asyncio.create_task(process.lifecycle.run())


def granted(*, is_fenced: bool = False, should_shut_down: bool = False) -> HeartbeatResponse:
    return HeartbeatResponse(is_caught_up=True, is_fenced=is_fenced, should_shut_down=should_shut_down)


async def serving(**config: Any) -> tuple[Process, "asyncio.Task[None]"]:
    """One that is unfenced, and has just sent a heartbeat."""
    process, beating = await running(**config)
    (await process.heartbeat()).answer(granted(is_fenced=True))
    unfenced = asyncio.create_task(process.lifecycle.unfence())
    (await process.heartbeat()).answer(granted())
    await unfenced
    return process, beating


# ---- Registration ----------------------------------------------------------------------------------------------------


def test_a_process_registers_with_its_directories_and_what_they_know_of_the_last_epoch() -> None:  # H2, H3
    async def main() -> None:
        disk = MemoryDisk()
        for known_epoch in (NO_EPOCH, BROKER_EPOCH):
            process = await started(disk)
            registering = asyncio.create_task(process.lifecycle.register())
            asked = await process.others.registrations.get()
            request = asked.request
            assert [each.path for each in request.directories] == list(DATA_DIRS)
            assert request.incarnation_id == process.lifecycle.incarnation_id
            assert (request.known_broker_epoch, request.previous_broker_epoch) == (known_epoch, known_epoch)
            asked.answer(REGISTERED)
            assert (await registering, process.lifecycle.broker_epoch) == (REGISTERED, BROKER_EPOCH)
            await process.directories.on_registered(CLUSTER_ID, BROKER_EPOCH)
            process.stop()

    run(main)


def test_a_process_registers_again_without_an_answer_or_while_an_older_one_may_live() -> None:  # H1, H2
    async def main() -> None:
        process = await started()
        registering = asyncio.create_task(process.lifecycle.register())
        asked = await process.others.registrations.get()
        for error in (NetworkException("gone"), NotController("none"), DuplicateBrokerRegistration("alive")):
            before = asked.request
            asked.fail(error)
            asked = await process.others.registrations.get()
            assert asked.request == before
        asked.answer(REGISTERED)
        assert await registering == REGISTERED
        process.stop()

    run(main)


def test_a_process_that_cannot_register_in_time_gives_up() -> None:  # H1
    async def main() -> None:
        process = await started(initial_broker_registration_timeout_ms=60_000)
        began_ms = now_ms()
        with pytest.raises(UnavailableError, match="broker 1 could not register within 60000 ms"):
            await process.lifecycle.register()
        assert 60_000 <= now_ms() - began_ms < 65_000
        process.stop()

    run(main)


def test_a_registration_that_is_refused_is_not_tried_again() -> None:  # H2
    async def main() -> None:
        process = await started()
        registering = asyncio.create_task(process.lifecycle.register())
        (await process.others.registrations.get()).fail(InconsistentClusterId("another one"))
        with pytest.raises(InconsistentClusterId):
            await registering
        assert process.others.registrations.empty()
        process.stop()

    run(main)


# ---- Heartbeats ------------------------------------------------------------------------------------------------------


def test_a_broker_that_has_what_it_wants_sends_a_heartbeat_every_two_seconds() -> None:  # H4
    async def main() -> None:
        process, beating = await serving()
        last_ms = now_ms()
        for _ in range(3):
            asked = await process.heartbeat()
            assert (asked.request.broker_epoch, asked.at_ms - last_ms) == (BROKER_EPOCH, INTERVAL_MS)
            last_ms = now_ms()
            asked.answer(granted())
        process.stop(beating)

    run(main)


def test_a_measured_load_goes_with_heartbeats_until_one_is_answered() -> None:
    async def main() -> None:
        process, beating = await serving(broker_load_report_interval_ms=INTERVAL_MS * 2)
        measuring = asyncio.create_task(process.meter.run())
        reports = []
        while len(reports) < 2:
            asked = await process.heartbeat()
            reports += [asked.request.load] * (asked.request.load is not None)
            if len(reports) == 1:
                asked.fail(NotController("none"))
            else:
                asked.answer(granted())
        assert reports[0] == reports[1]
        after = await process.heartbeat()
        assert after.request.load is None
        process.stop(beating, measuring)

    run(main)


def test_a_broker_wants_to_be_fenced_until_it_can_serve_and_then_asks_at_short_intervals() -> (
    None
):  # H1, H4, H5
    async def main() -> None:
        process, beating = await running()
        first = await process.heartbeat()
        assert first.request.want_fence
        first.answer(granted(is_fenced=True))
        await asyncio.sleep(0.5)
        began_ms = now_ms()
        unfenced = asyncio.create_task(process.lifecycle.unfence())
        for number in range(3):
            asked = await process.heartbeat()
            assert (asked.request.want_fence, asked.at_ms - began_ms) == (False, number * SOON_MS)
            assert not unfenced.done()
            asked.answer(granted(is_fenced=number < 2))
        await unfenced
        process.stop(beating)

    run(main)


def test_heartbeats_go_on_while_no_controller_answers() -> None:  # H4
    async def main() -> None:
        process, beating = await serving()
        asked = await process.heartbeat()
        for pause_ms in (20, 40, 80, 100, 100):
            failed_ms = now_ms()
            asked.fail(NetworkException("gone"))
            asked = await process.heartbeat()
            assert asked.at_ms - failed_ms == pause_ms
        asked.answer(granted())
        answered_ms = now_ms()
        assert (await process.heartbeat()).at_ms - answered_ms == INTERVAL_MS
        process.stop(beating)

    run(main)


def test_heartbeats_are_numbered_whether_they_are_answered_or_not() -> None:  # H4
    async def main() -> None:
        process, beating = await serving()
        first = await process.heartbeat()
        first.fail(NetworkException("gone"))
        second = await process.heartbeat()
        second.answer(granted())
        third = await process.heartbeat()
        assert first.request.number < second.request.number < third.request.number
        process.stop(beating)

    run(main)


def test_a_failed_directory_is_told_at_once_and_in_every_heartbeat_from_then_on() -> None:  # H4
    async def main() -> None:
        process, beating = await serving()
        first, second = process.directories.all
        failed_ms = now_ms()
        for failed, told in ((second, [second]), (first, [first, second])):
            failed.go_offline(StorageError("the disk is gone"))
            process.lifecycle.wake()
            for _ in range(2):
                asked = await process.heartbeat()
                assert asked.request.offline_directory_ids == tuple(each.directory_id for each in told)
                asked.answer(granted())
        assert asked.at_ms - failed_ms == 2 * INTERVAL_MS
        process.stop(beating)

    run(main)


def test_a_process_whose_place_was_taken_is_told_so_and_ends() -> None:  # H3
    async def main() -> None:
        process, beating = await serving()
        (await process.heartbeat()).fail(StaleBrokerEpoch("registered anew"))
        with pytest.raises(StaleBrokerEpoch):
            await beating
        process.stop()

    run(main)


# ---- Controlled shutdown ---------------------------------------------------------------------------------------------


def test_a_broker_ends_when_the_controller_has_moved_away_what_it_leads() -> None:  # H5, H8
    async def main() -> None:
        process, beating = await serving()
        began_ms = now_ms()
        ended = asyncio.create_task(process.lifecycle.shut_down())
        for number in range(4):
            asked = await process.heartbeat()
            assert (asked.request.want_shut_down, asked.at_ms - began_ms) == (True, number * SOON_MS)
            assert not ended.done()
            asked.answer(granted(should_shut_down=number == 3))
        await ended
        process.stop(beating)

    run(main)


def test_a_broker_that_may_not_end_in_time_ends_all_the_same(caplog: pytest.LogCaptureFixture) -> None:  # H8
    async def main() -> None:
        process, beating = await serving(controlled_shutdown_timeout_ms=SHUTDOWN_TIMEOUT_MS)
        began_ms = now_ms()
        ended = asyncio.create_task(process.lifecycle.shut_down())
        while not ended.done():
            await asyncio.sleep(0.01)
            if not process.others.heartbeats.empty():
                (await process.heartbeat()).answer(granted())
        assert SHUTDOWN_TIMEOUT_MS <= now_ms() - began_ms <= SHUTDOWN_TIMEOUT_MS + 10
        assert "broker 1 ends without the controller's consent" in caplog.text
        process.stop(beating)

    run(main)


@pytest.mark.parametrize(
    ("error", "is_given_up"), [(NetworkException("gone"), True), (NotController("none"), False)], ids=repr
)
def test_a_broker_does_not_wait_for_controllers_that_have_ended_too(
    error: ApiError, is_given_up: bool
) -> None:  # H8
    """Where they answer that none is active, there will be one."""

    async def main() -> None:
        process, beating = await serving()
        ended = asyncio.create_task(process.lifecycle.shut_down())
        for _ in range(3):
            assert not ended.done()
            (await process.heartbeat()).fail(error)
        await asyncio.sleep(0.01)
        assert ended.done() is is_given_up
        process.stop(beating, ended)

    run(main)
