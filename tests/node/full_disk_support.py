"""What the tests of full disks share: a leader whose disk has no room, what is produced to it, and a disk that has
something done when a log is opened.
"""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

from rayka.errors import ErrorCode
from rayka.testing.memory_disk import MemoryDisk
from tests.node import produce_support
from tests.node.replica_support import BROKER, Broker, configured

ROOM = 1 << 40
LOOK_S, TRY_S = 1.1, 31


async def leading(disk: MemoryDisk, isr: tuple[int, ...] = (BROKER,), **config: object) -> Broker:
    """Broker 1 leads partition 0, with one record, and its disk has no room for another."""
    broker = await Broker.start(disk)
    await broker.apply(*configured(**config), broker.new_partition(leader_id=BROKER, isr=isr))
    assert await produce(broker) is ErrorCode.NONE
    disk.fill_up(after_bytes=10)
    assert await produce(broker) is ErrorCode.KAFKA_STORAGE_ERROR
    return broker


async def produce(broker: Broker, number: int = 0) -> ErrorCode:
    """What became of one record."""
    return (await produce_support.produce(broker, number)).error_code


class Meddler(MemoryDisk):
    """A memory disk with a call that is begun when the log of partition 0 is opened."""

    meddle: Callable[[], Coroutine[Any, Any, Any]] | None = None
    answer: asyncio.Task[Any] | None = None

    def list(self, directory: str) -> list[str]:
        if self.meddle is not None and directory.endswith("orders-0") and self.answer is None:
            self.answer = asyncio.get_running_loop().create_task(self.meddle())
        return super().list(directory)
