"""A data directory that was removed or replaced under a broker that writes nothing is offline within seconds."""

import asyncio

import pytest

from rayka.errors import ErrorCode
from rayka.node.log_manager import IN_PLACE_LOOK_S
from rayka.testing.memory_disk import MemoryDisk
from tests.node.full_disk_support import produce
from tests.node.replica_support import BROKER, DATA_DIR, Broker, run

LOOKED_S = IN_PLACE_LOOK_S + 1


async def idle(disk: MemoryDisk) -> Broker:
    broker = await Broker.start(disk)
    await broker.apply(broker.new_partition(leader_id=BROKER, isr=(BROKER,)))
    assert await produce(broker) is ErrorCode.NONE
    return broker


def test_a_directory_that_is_in_place_stays_online() -> None:
    async def main() -> None:
        broker = await idle(MemoryDisk())
        await asyncio.sleep(LOOKED_S)
        assert broker.directories.offline_paths() == ()
        await broker.stop()

    run(main)


def test_a_directory_that_was_removed_is_offline(caplog: pytest.LogCaptureFixture) -> None:  # F13
    async def main() -> None:
        disk = MemoryDisk()
        broker = await idle(disk)
        disk.remove_directory(DATA_DIR)
        await asyncio.sleep(LOOKED_S)
        assert broker.directories.offline_paths() == (DATA_DIR,)
        assert broker.directories.changed.is_set()
        assert broker.partition().failure is not None
        await broker.stop()

    run(main)
    said = f"{DATA_DIR} was removed or replaced under broker-1; bring it back, then restart it"
    assert len([each for each in caplog.records if said in each.getMessage()]) == 1


def test_another_directory_in_its_place_is_not_taken_for_it() -> None:
    async def main() -> None:
        disk = MemoryDisk()
        broker = await idle(disk)
        disk.rename(DATA_DIR, f"{DATA_DIR}-of-before")
        disk.make_directory(DATA_DIR)
        disk.append(f"{DATA_DIR}/.lock", ())
        await asyncio.sleep(LOOKED_S)
        assert broker.directories.offline_paths() == (DATA_DIR,)
        await broker.stop()

    run(main)
