"""A controller whose metadata is gone says so, and does not begin again without it (A8, A26, B30)."""

import asyncio
from collections.abc import Callable

import pytest

from rayka.errors import DamagedLog
from rayka.node.quorum_directory import format_first_voters
from rayka.testing.memory_disk import MemoryDisk
from tests.node.controller_support import (
    DATA_DIR,
    METADATA_DIR,
    new_cluster,
    new_topic,
    settings,
    started,
)


def _remove_segments(disk: MemoryDisk) -> None:
    for name in disk.list(METADATA_DIR):
        if name.endswith((".log", ".index", ".timeindex")):
            disk.unlink(f"{METADATA_DIR}/{name}")


def _remove_all(disk: MemoryDisk) -> None:
    disk.remove_directory(METADATA_DIR)


def _shorten(disk: MemoryDisk) -> None:
    path = f"{METADATA_DIR}/{0:020d}.log"
    disk.write(path, b"")


@pytest.mark.parametrize("is_clean", [True, False])
@pytest.mark.parametrize("loss", [_remove_segments, _remove_all, _shorten])
def test_a_controller_whose_log_is_gone_refuses_to_start(
    loss: Callable[[MemoryDisk], None], is_clean: bool
) -> None:
    async def scenario() -> None:
        disk = MemoryDisk()
        node = await new_cluster(disk)
        await node.handle(new_topic("orders"))
        if is_clean:
            await node.stop()
        else:
            node.kill()
            disk.process_crash()
        loss(disk)
        for _ in range(2):
            with pytest.raises(DamagedLog, match=rf"{DATA_DIR}.*Restore it from a copy"):
                await started(disk)

    asyncio.run(scenario())


def test_a_formatted_controller_whose_metadata_directory_is_gone_refuses_to_start() -> None:
    async def scenario() -> None:
        disk = MemoryDisk()
        await format_first_voters([settings(disk)])
        _remove_all(disk)
        with pytest.raises(DamagedLog, match=rf"{METADATA_DIR} is missing.*Restore it from a copy"):
            await started(disk)

    asyncio.run(scenario())
