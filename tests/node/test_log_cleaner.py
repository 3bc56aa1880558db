"""How a broker compacts its logs: which, when, and what clients and followers see of it (F20, F26-F28)."""

import asyncio
import errno
import threading
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import rayka
import rayka.testing
from rayka.config.broker_config import BrokerConfig
from rayka.config.topic_config import TopicConfig
from rayka.coordinator.group_shard import group_shard_type
from rayka.errors import ErrorCode
from rayka.log.local_disk import storage_error
from rayka.ports import Job, JobDied, RunningJob
from rayka.protocol.batch_decode import decode
from rayka.protocol.batch_encode import encode_batch
from rayka.protocol.batch_format import split_batches
from rayka.protocol.configs import (
    AlterConfigOp,
    AlteredResource,
    ConfigChange,
    IncrementalAlterConfigsRequest,
    ResourceType,
)
from rayka.protocol.membership import StatusRequest
from rayka.protocol.topics import DescribeLogDirsRequest, ReplicaInfo
from rayka.testing import InProcessCluster, MemoryDisk
from rayka.testing.memory_disk import InlineJob
from tests.node.broker_support import CONTROLLER, Topic, create_topic, memory_cluster, run

CLEANING = {"log_cleaner_backoff_ms": 5}
COMPACTED = {
    "cleanup_policy": "compact",
    "segment_bytes": 1024,
    "min_cleanable_dirty_ratio": 0.01,
    "index_interval_bytes": 100,
}
KEYS, ROUNDS = 3, 30
LOG = "/data/broker-1/orders-0"


def keyed(number: int, **changes: Any) -> np.ndarray:
    keys = [b"k%d" % each for each in range(KEYS)]
    values = [b"%d-%d" % (each, number) for each in range(KEYS)]
    return encode_batch(values, keys=keys, timestamps_ms=1_700_000_000_000, **changes)


def fill(topic: Topic, rounds: int = ROUNDS, partition: int = 0) -> None:
    for number in range(rounds):
        (result,) = run(topic.a_produce({partition: keyed(number)})).partitions
        assert result.error_code is ErrorCode.NONE, result


def table(topic: Topic, partition: int = 0, offset: int = 0) -> tuple[dict[bytes, bytes], int]:
    """What a consumer's dictionary holds, and how many records it read."""
    found: dict[bytes, bytes] = {}
    count = 0
    while (result := topic.fetch(offset, partition=partition)).records.size:
        for batch in split_batches(result.records):
            decoded = decode(batch)
            found |= dict(zip(decoded.keys_list(), decoded.values_list(), strict=True))  # type: ignore[arg-type]
            count += len(decoded)
        assert result.next_offset > offset
        offset = result.next_offset
    assert offset == result.high_watermark
    return found, count


NEWEST = {b"k%d" % each: b"%d-%d" % (each, ROUNDS - 1) for each in range(KEYS)}


def until(condition: Any) -> None:
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline, condition
        time.sleep(0.01)


def test_a_compacted_topic_keeps_the_newest_record_of_each_key_in_the_background() -> None:  # F20, F22
    with memory_cluster(**CLEANING) as cluster:
        compacted, plain = create_topic(cluster, name="t", **COMPACTED), create_topic(cluster, name="plain")
        fill(compacted)
        fill(plain)
        until(lambda: table(compacted)[1] < KEYS * ROUNDS / 2)
        assert table(compacted)[0] == NEWEST
        assert table(plain) == (NEWEST, KEYS * ROUNDS)
        for offset in range(0, KEYS * ROUNDS, 7):
            table(compacted, offset=offset)


def test_a_record_without_a_key_is_refused_by_a_compacted_topic() -> None:  # B18
    with memory_cluster() as cluster:
        topic = create_topic(cluster, **COMPACTED)
        assert topic.produce(b"v").error_code is ErrorCode.INVALID_RECORD


def test_a_restarted_broker_goes_on_behind_what_it_has_compacted() -> None:  # F20
    disk = MemoryDisk()
    with memory_cluster(disk, **CLEANING) as cluster:
        topic = create_topic(cluster, **COMPACTED)
        fill(topic)
        until(lambda: table(topic)[1] < KEYS * ROUNDS / 2)
        cluster.kill(1)
        cluster.restart(1)
        fill(topic)
        assert table(topic)[0] == NEWEST
    assert "cleaner-offset-checkpoint" in disk.list("/data/broker-1")


def test_a_log_that_cannot_be_compacted_is_named_and_the_others_go_on(
    caplog: pytest.LogCaptureFixture,
) -> None:  # F27
    disk = MemoryDisk()
    with memory_cluster(disk, **CLEANING) as cluster:
        topic = create_topic(cluster, partitions=2, **{**COMPACTED, "cleanup_policy": "delete"})
        fill(topic, partition=0)
        fill(topic, partition=1)
        disk.flip_bit("/data/broker-1/orders-0/00000000000000000000.log", 200)
        alter(topic, "cleanup.policy", "compact")
        until(lambda: table(topic, 1)[1] < KEYS * ROUNDS / 2)
        until(lambda: "orders-0 cannot be compacted" in caplog.text)
        assert "orders-0 cannot be compacted" in topic.call(StatusRequest()).detail
        damaged, whole = described(topic)
        assert damaged.cleaning is not None
        assert whole.cleaning is not None
        assert damaged.cleaning.problem.startswith("orders-0 cannot be compacted: ")
        assert (damaged.cleaning.last, whole.cleaning.problem) == (None, "")


def described(topic: Topic) -> tuple[ReplicaInfo, ...]:
    """What the broker says of the logs of the topic."""
    (directory,) = topic.call(DescribeLogDirsRequest((topic.name,))).directories
    return directory.replicas


def test_a_broker_tells_how_a_compacted_log_stands_and_what_was_done_last() -> None:  # F20
    with memory_cluster(**CLEANING) as cluster:
        topic = create_topic(cluster, **{**COMPACTED, "cleanup_policy": "delete"})
        fill(topic)
        (log,) = described(topic)
        assert (log.cleaning, log.oldest_timestamp_ms) == (None, 1_700_000_000_000)
        assert log.segment_count > 3
        alter(topic, "cleanup.policy", "compact")
        until(lambda: (cleaning := described(topic)[0].cleaning) is not None and cleaning.last is not None)
        (compacted,) = described(topic)
        assert 0 < compacted.segment_count <= log.segment_count
        assert compacted.size_bytes < log.size_bytes
        cleaning = compacted.cleaning
        assert cleaning is not None
        assert cleaning.last is not None
        assert cleaning.cleanable_bytes == 0 < cleaning.clean_bytes < log.size_bytes
        assert 0 < cleaning.last.output_bytes < cleaning.last.input_bytes < log.size_bytes
        assert 0 < cleaning.last.end_offset < KEYS * ROUNDS
        assert cleaning.last.timestamp_ms > 1_700_000_000_000
        assert cleaning.problem == ""


def test_a_broker_that_compacts_nothing_says_so_of_each_compacted_log() -> None:
    with memory_cluster(log_cleaner_enable=False) as cluster:
        topic = create_topic(cluster, **COMPACTED)
        fill(topic)
        (log,) = described(topic)
        assert log.cleaning is not None
        assert log.cleaning.problem == "log.cleaner.enable is false on this broker"
        assert log.cleaning.cleanable_bytes > 0 == log.cleaning.clean_bytes


def alter(topic: Topic, key: str, value: str) -> None:
    change = ConfigChange(key, AlterConfigOp.SET, value)
    resource = AlteredResource(ResourceType.TOPIC, topic.name, (change,))
    (result,) = run(topic.a_call(IncrementalAlterConfigsRequest((resource,)), CONTROLLER)).resources
    assert result.error_code is ErrorCode.NONE, result


def test_a_full_disk_stops_a_cleaning_until_there_is_room(caplog: pytest.LogCaptureFixture) -> None:  # F27
    disk = MemoryDisk()
    with memory_cluster(disk, **CLEANING) as cluster:
        topic = create_topic(cluster, **{**COMPACTED, "cleanup_policy": "delete"})
        fill(topic)
        disk.fill_up()
        alter(topic, "cleanup.policy", "compact")
        until(lambda: "is not compacted until there is room" in caplog.text)
        waiting = described(topic)[0].cleaning
        assert waiting is not None
        assert "is not compacted until there is room" in waiting.problem
        assert table(topic) == (NEWEST, KEYS * ROUNDS)
        disk.fill_up(1 << 30)
        until(lambda: table(topic)[1] < KEYS * ROUNDS / 2)
        assert table(topic)[0] == NEWEST
        until(lambda: (cleaning := described(topic)[0].cleaning) is not None and not cleaning.problem)


class DyingJob(InlineJob):
    """Its process dies at the third step."""

    steps = 0

    async def next(self, answer: object) -> Any:
        self.steps += 1
        if self.steps == 3:
            raise JobDied("process 7 ended with -9")
        return await super().next(answer)


class KillingDisk(MemoryDisk):
    """Kills what runs its jobs, as long as it is told to."""

    kills = True

    def start(self, job: Job) -> RunningJob:
        return DyingJob(job, self) if self.kills else super().start(job)


def test_a_cleaning_whose_process_dies_is_named_and_tried_again(caplog: pytest.LogCaptureFixture) -> None:
    disk = KillingDisk()
    with memory_cluster(disk, **CLEANING) as cluster:
        topic = create_topic(cluster, **COMPACTED)
        fill(topic)
        until(lambda: "is tried again: process 7 ended with -9" in caplog.text)
        dying = described(topic)[0].cleaning
        assert dying is not None
        assert "is tried again: process 7 ended with -9" in dying.problem
        assert table(topic) == (NEWEST, KEYS * ROUNDS)
        disk.kills = False
        until(lambda: table(topic)[1] < KEYS * ROUNDS / 2)
        assert table(topic)[0] == NEWEST
        until(lambda: (cleaning := described(topic)[0].cleaning) is not None and not cleaning.problem)


class FailingJob(InlineJob):
    """Ends at its third step with an error that nobody foresaw."""

    steps = 0
    error: type[Exception] = RuntimeError

    async def next(self, answer: object) -> Any:
        self.steps += 1
        if self.steps == 3:
            raise self.error("what a library says")
        return await super().next(answer)


class FailingDisk(MemoryDisk):
    """Its jobs for this directory end with the error."""

    def __init__(self, error: type[Exception]) -> None:
        super().__init__()
        self.error: type[Exception] | None = error

    def start(self, job: Job) -> RunningJob:
        if self.error is None or f"{LOG} " not in repr(job):
            return super().start(job)
        failing = FailingJob(job, self)
        failing.error = self.error
        return failing


@pytest.mark.parametrize("error", [pa.ArrowInvalid, RecursionError, MemoryError])
def test_a_cleaning_that_ends_with_an_error_nobody_foresaw_ends_no_broker(
    error: type[Exception], caplog: pytest.LogCaptureFixture
) -> None:  # F27
    """One that ran out of memory is tried again; the others are not, for each try would take as long."""
    disk = FailingDisk(error)
    with memory_cluster(disk, **CLEANING) as cluster:
        bad, other = create_topic(cluster, **COMPACTED), create_topic(cluster, name="other", **COMPACTED)
        fill(bad)
        is_tried_again = error is MemoryError
        until(lambda: ("is tried again" if is_tried_again else "cannot be compacted: ") in caplog.text)
        fill(other)
        until(lambda: table(other)[1] < KEYS * ROUNDS / 2)
        assert table(bad) == (NEWEST, KEYS * ROUNDS)
        assert cluster.nodes.crashes == []
        disk.error = None
        if is_tried_again:
            until(lambda: table(bad)[1] < KEYS * ROUNDS / 2)


class SwappingDisk(MemoryDisk):
    """Does what it is told while a swap of the log waits for its sync numbered `step`, once."""

    def __init__(self, step: int) -> None:
        super().__init__()
        self._step = step
        self.in_swap: Callable[[], Awaitable[None]] | None = None

    async def sync(
        self, files: Sequence[str], directories: Sequence[str], *, in_background: bool = False
    ) -> None:
        found = self.list(LOG) if LOG in directories and self.exists(LOG) else []
        swapped = [name.removesuffix(".swap") for name in found if name.endswith(".log.swap")]
        if swapped and self.in_swap is not None and (swapped[0] in found) is (self._step == 0):
            act, self.in_swap = self.in_swap, None
            await act()
        await super().sync(files, directories, in_background=in_background)


@pytest.mark.parametrize("step", [0, 1])
def test_a_policy_that_changes_within_a_swap_leaves_a_log_that_expires_and_is_compacted_again(
    step: int,
) -> None:  # F26
    disk, is_swapping, goes_on = SwappingDisk(step), threading.Event(), threading.Event()

    async def wait() -> None:
        is_swapping.set()
        await asyncio.to_thread(goes_on.wait)

    with memory_cluster(disk, **CLEANING, log_retention_check_interval_ms=5) as cluster:
        topic = create_topic(cluster, **COMPACTED, file_delete_delay_ms=0)
        disk.in_swap = wait
        fill(topic)
        assert is_swapping.wait(60)
        alter(topic, "retention.bytes", "1500")
        alter(topic, "cleanup.policy", "delete")
        goes_on.set()
        fill(topic)
        until(
            lambda: sum(disk.size(f"{LOG}/{name}") for name in disk.list(LOG) if name.endswith(".log")) < 3000
        )
        until(lambda: not [name for name in disk.list(LOG) if name.endswith((".swap", ".cleaned"))])
        alter(topic, "cleanup.policy", "compact")
        fill(topic)
        until(lambda: table(topic, offset=described(topic)[0].log_start_offset)[1] < KEYS * ROUNDS / 2)
        assert not described(topic)[0].cleaning.problem  # type: ignore[union-attr]
        assert cluster.nodes.crashes == []


@pytest.mark.parametrize("step", [0, 1])
def test_a_sync_that_fails_within_a_swap_takes_the_directory_offline_until_a_restart(
    step: int,
) -> None:  # F13, F26
    """Also where no room was the cause: the file system may have dropped what it could not write."""
    disk = SwappingDisk(step)

    async def fail() -> None:
        raise storage_error("sync", LOG, errno.ENOSPC)

    with memory_cluster(disk, **CLEANING) as cluster:
        topic = create_topic(cluster, **COMPACTED)
        disk.in_swap = fail
        acknowledged = -1
        with suppress(AssertionError):
            for number in range(10_000):
                (result,) = run(topic.a_produce({0: keyed(number)})).partitions
                assert result.error_code is ErrorCode.NONE
                acknowledged = number
        assert acknowledged >= 0
        assert disk.in_swap is None
        assert topic.fetch(0).error_code is ErrorCode.KAFKA_STORAGE_ERROR
        cluster.restart(1)
        until(lambda: topic.fetch(0).error_code is ErrorCode.NONE)
        kept = {int(value.split(b"-")[1]) for value in table(topic)[0].values()}
        assert kept <= {acknowledged, acknowledged + 1}
        fill(topic)
        until(lambda: table(topic)[1] < KEYS * ROUNDS / 2)
        assert table(topic)[0] == NEWEST


def test_a_deleted_topic_ends_its_cleaning() -> None:
    with memory_cluster(**CLEANING, log_cleaner_io_max_bytes_per_second=2_000) as cluster:
        topic = create_topic(cluster, **COMPACTED)
        fill(topic)
        time.sleep(0.05)
        run(topic.a_delete())
        again = create_topic(cluster, name="again", **COMPACTED)
        fill(again)
        assert table(again)[0] == NEWEST
        assert not topic.call(StatusRequest()).detail


def test_the_rate_of_cleaning_is_bounded() -> None:  # F27
    with memory_cluster(**CLEANING, log_cleaner_io_max_bytes_per_second=10_000) as cluster:
        topic = create_topic(cluster, **COMPACTED)
        begin_s = time.monotonic()
        fill(topic)
        until(lambda: table(topic)[1] < KEYS * ROUNDS / 2)
        assert time.monotonic() - begin_s > 0.5  # 8 KB are read twice


def test_what_is_sealed_after_a_cleaning_left_few_segments_is_cleaned_in_its_turn() -> None:  # F20
    with memory_cluster(**CLEANING) as cluster:
        topic = create_topic(cluster, **{**COMPACTED, "cleanup_policy": "delete"})
        fill(topic, rounds=4 * ROUNDS)
        alter(topic, "cleanup.policy", "compact")
        until(lambda: table(topic)[1] < KEYS * ROUNDS / 2)
        fill(topic)  # these make fewer segments than there were
        until(lambda: table(topic)[1] < KEYS * ROUNDS / 2)
        assert table(topic)[0] == NEWEST


def test_followers_and_consumers_read_across_the_gaps_of_a_compacted_log() -> None:  # B18, G4
    named = {key.replace("_", "."): str(value) for key, value in COMPACTED.items()}
    cleaning = {
        "log.cleaner.backoff.ms": 5,
        "replica.lag.time.max.ms": 500,
        "broker.session.timeout.ms": 500,
        "broker.heartbeat.interval.ms": 100,
    }
    with rayka.testing.cluster(brokers=2, config=cleaning) as cluster:
        with rayka.Admin(cluster=cluster) as admin:
            admin.create_topic("orders", partitions=1, replication_factor=2, configs=named)
        with rayka.Producer(cluster=cluster, linger_ms=0) as producer:
            for number in range(300):
                producer.send("orders", key=b"k%d" % (number % 3), value=b"%d" % number).result()
        state = cluster.await_isr("orders", 0, [1, 2])
        follower = 3 - state.leader_id
        until(lambda: consumed(cluster)[1] < 100)
        cluster.kill(follower)
        cluster.replace_disk(follower)
        cluster.restart(follower)
        cluster.await_isr("orders", 0, [1, 2])
        cluster.kill(state.leader_id)
        until(lambda: cluster.await_partition("orders", 0, lambda each: each.leader_id == follower))
        assert consumed(cluster)[0] == {b"k0": b"297", b"k1": b"298", b"k2": b"299"}


def test_the_topic_of_groups_is_compacted_in_segments_that_are_soon_sealed() -> None:
    config = BrokerConfig(offsets_topic_segment_bytes=4096)
    topic = group_shard_type(config, Random(1), lambda: 0).topic
    parsed = TopicConfig.parse(topic.configs, what="topic config")
    assert (parsed.is_compacted, parsed.segment_bytes) == (True, 4096)


def test_what_groups_commit_is_compacted_and_read_again_by_the_next_coordinator() -> None:  # E1, F22
    small = {
        "offsets_topic_segment_bytes": 1024,
        "offsets_topic_num_partitions": 1,
        "log_cleaner_min_cleanable_ratio": 0.01,
    }
    with rayka.testing.cluster(
        config={key.replace("_", "."): each for key, each in (CLEANING | small).items()}
    ) as cluster:
        with rayka.Admin(cluster=cluster) as admin:
            admin.create_topic("orders", partitions=1)
        place = rayka.TopicPartition("orders", 0)
        with rayka.Producer(cluster=cluster) as producer:
            for number in range(100):
                producer.send("orders", b"%d" % number)
        with rayka.Consumer(cluster=cluster, group_id="g", enable_auto_commit=False) as consumer:
            consumer.assign([place])
            for number in range(100):
                consumer.commit({place: number})
        directory = Path(cluster.data_dirs(1)[0]) / "__consumer_offsets-0"
        until(lambda: segment_bytes(directory) < 6_000)  # of 20,000
        cluster.kill(1)
        cluster.restart(1)
        with rayka.Consumer(cluster=cluster, group_id="g") as consumer:
            committed = consumer.committed([place])[place]
            assert committed is not None
            assert committed.offset == 99


def segment_bytes(directory: Path) -> int:
    found = 0
    for each in directory.glob("*.log"):
        with suppress(FileNotFoundError):  # it was compacted meanwhile
            found += each.stat().st_size
    return found


def consumed(cluster: InProcessCluster) -> tuple[dict[bytes, bytes], int]:
    """What a client's dictionary holds, and how many records it was given."""
    found, count = {}, 0
    with rayka.Consumer(cluster=cluster, auto_offset_reset="earliest") as consumer:
        consumer.assign([rayka.TopicPartition("orders", 0)])
        (end_offset,) = consumer.end_offsets([rayka.TopicPartition("orders", 0)]).values()
        while consumer.position(rayka.TopicPartition("orders", 0)) < end_offset:
            for record in consumer.poll(100):
                found[record.key] = record.value
                count += 1
    return found, count
