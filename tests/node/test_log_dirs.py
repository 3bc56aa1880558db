"""What a broker says of its data directories."""

from rayka.errors import StorageError
from rayka.node.replica_admin import LogDirsHandler
from rayka.protocol.topics import DescribeLogDirsRequest, LogDirDescription
from tests.node.fetch_support import append, commit, led, new_led
from tests.node.replica_support import DATA_DIR, LEADER, Broker, run


async def described(broker: Broker, topics: tuple[str, ...] | None = None) -> tuple[LogDirDescription, ...]:
    handler = LogDirsHandler(broker.replicas)
    return (await handler.describe(DescribeLogDirsRequest(topics))).directories


def test_every_replica_is_told_with_its_offsets_and_size() -> None:
    async def main() -> None:
        broker, handler = await led(2)
        await broker.apply(broker.new_partition(2, leader_id=LEADER))
        append(broker, b"a", b"b", number=1)
        await commit(handler, 1, number=1)
        append(broker, b"c", number=1)
        (directory,) = await described(broker)
        assert (directory.path, directory.error) == (DATA_DIR, "")
        assert directory.free_bytes > 0
        assert [(each.topic, each.partition, each.is_leader) for each in directory.replicas] == [
            ("orders", 0, True), ("orders", 1, True), ("orders", 2, False),
        ]  # fmt: skip
        filled = directory.replicas[1]
        assert (filled.log_start_offset, filled.high_watermark, filled.log_end_offset) == (0, 1, 3)
        assert filled.size_bytes == broker.partition(1).log.segments.size_bytes > 0
        await broker.stop()

    run(main)


def test_only_the_topics_asked_for_are_told() -> None:
    async def main() -> None:
        broker, _ = await led(1)
        assert [len(each.replicas) for each in await described(broker, ("orders",))] == [1]
        assert [len(each.replicas) for each in await described(broker, ("flights",))] == [0]
        await broker.stop()

    run(main)


def test_a_replica_is_told_with_its_own_directory_and_a_failed_one_with_its_error() -> None:
    async def main() -> None:
        paths = (DATA_DIR, "/data/other")
        broker = await Broker.start(data_dirs=paths)
        await broker.apply(new_led(broker))
        broker.directories.all[1].go_offline(StorageError("the disk is gone"))
        here, offline = await described(broker)
        assert ([each.partition for each in here.replicas], here.error) == ([0], "")
        assert (offline.replicas, offline.error, offline.free_bytes) == ((), "the disk is gone", 0)
        await broker.stop()

    run(main)
