"""Builders for tests of a data directory: a formatted one, an opened one, one that holds a log."""

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar
from uuid import UUID

from rayka.config.topic_config import TopicConfig
from rayka.ids import TopicPartition
from rayka.log.log import Log
from rayka.log.log_directory import LogDirectory
from rayka.testing.memory_disk import MemoryDisk
from tests.log.support import SMALL, result_of

DIRECTORY_ID, TOPIC_ID, OTHER_TOPIC_ID = UUID(int=7), UUID(int=8), UUID(int=9)
ORDERS = TopicPartition("orders", 0)
PATH = "/data/broker-1"
T = TypeVar("T")


def run(coroutine: Coroutine[Any, Any, T]) -> T:
    return asyncio.run(coroutine)


def formatted_disk() -> MemoryDisk:
    disk = MemoryDisk()
    run(LogDirectory.format(disk, PATH, node_id=1, directory_id=DIRECTORY_ID))
    return disk


def open_directory(disk: MemoryDisk, cluster_id: str = "") -> LogDirectory:
    return run(LogDirectory.open(disk, PATH, node_id=1, cluster_id=cluster_id))


def open_orders(directory: LogDirectory, config: TopicConfig = SMALL) -> Log:
    return result_of(directory.open_log(ORDERS, TOPIC_ID, config, now_ms=0))
