"""How a broker deletes what has expired of its logs: when, and what clients and followers see of it (F11)."""

import time
from collections.abc import Callable
from typing import Any

import pytest

import rayka
import rayka.testing
from rayka.coordinator.group_shard import OFFSETS_TOPIC
from rayka.errors import ErrorCode
from rayka.log.checkpoint_files import LOG_START_OFFSET_FILE, read_offsets
from rayka.protocol.fetch import EARLIEST_TIMESTAMP
from rayka.testing import MemoryDisk
from tests.node.broker_support import Topic, create_topic, memory_cluster, records, run
from tests.node.test_log_cleaner import COMPACTED, NEWEST, alter, described, fill, table, until

OFTEN = {"log_retention_check_interval_ms": 5}
SEGMENTS = {"segment_bytes": 1024, "index_interval_bytes": 100, "file_delete_delay_ms": 0}
LOG = "/data/broker-1/orders-0"
COUNT = 20
KEPT_FROM = 15  # of 4,000 bytes: without the oldest of five segments there would be fewer


def filled(topic: Topic, timestamp_ms: int = 1_700_000_000_000) -> None:
    """Each record gets a segment of its own."""
    for _ in range(COUNT):
        (result,) = run(topic.a_produce({0: records(b"." * 700, timestamp_ms=timestamp_ms)})).partitions
        assert result.error_code is ErrorCode.NONE, result


def start_of(topic: Topic) -> int:
    return topic.find_offset(EARLIEST_TIMESTAMP).offset


def logs_in(disk: MemoryDisk) -> list[str]:
    return [name for name in disk.list(LOG) if ".log" in name]


def test_old_records_expire_in_the_background_and_their_files_go_after_the_delay() -> None:  # F11
    disk = MemoryDisk()
    with memory_cluster(disk, **OFTEN) as cluster:
        topic = create_topic(cluster, retention_ms=60_000, **SEGMENTS)
        kept = create_topic(cluster, name="kept", **SEGMENTS)
        filled(topic)
        filled(kept)
        until(lambda: start_of(topic) == COUNT)
        until(lambda: logs_in(disk) == [f"{COUNT:020d}.log"])
        assert topic.fetch(0).error_code is ErrorCode.OFFSET_OUT_OF_RANGE
        assert start_of(kept) == 0
        ((log,), (other,)) = described(topic), described(kept)
        assert log.retention is not None
        assert (log.retention.cause, log.retention.log_start_offset) == ("retention.ms", COUNT)
        assert other.retention is None
        filled(topic, timestamp_ms=int(time.time() * 1000))
        assert topic.fetch(COUNT).records.size


def test_a_pass_that_shortened_logs_makes_durable_where_they_begin() -> None:  # F4
    disk = MemoryDisk()
    rarely = {"log_flush_offset_checkpoint_interval_ms": 3_600_000}
    with memory_cluster(disk, **OFTEN, **rarely) as cluster:
        filled(create_topic(cluster, retention_ms=60_000, **SEGMENTS))
        path, orders = f"/data/broker-1/{LOG_START_OFFSET_FILE}", rayka.TopicPartition("orders", 0)
        until(lambda: read_offsets(disk, path).get(orders) == COUNT)


def test_files_of_expired_segments_stay_for_the_delay_under_another_name() -> None:  # F11
    disk = MemoryDisk()
    with memory_cluster(disk, **OFTEN) as cluster:
        topic = create_topic(cluster, retention_ms=60_000, **{**SEGMENTS, "file_delete_delay_ms": 600_000})
        filled(topic)
        until(lambda: start_of(topic) == COUNT)
        assert len([name for name in logs_in(disk) if name.endswith(".log.deleted")]) == COUNT


def test_a_partition_is_kept_at_its_bytes_also_when_that_is_asked_of_it_later() -> None:  # F11
    with memory_cluster(**OFTEN) as cluster:
        topic = create_topic(cluster, **SEGMENTS)
        other = create_topic(cluster, name="other", retention_bytes=4000, **SEGMENTS)
        filled(topic)
        filled(other)
        until(lambda: start_of(other) == KEPT_FROM)
        assert start_of(topic) == 0
        alter(topic, "retention.bytes", "4000")
        until(lambda: start_of(topic) == KEPT_FROM)


def test_a_log_that_is_compacted_and_expires_does_both() -> None:  # F11, F28
    with memory_cluster(log_cleaner_backoff_ms=5, **OFTEN) as cluster:
        topic = create_topic(cluster, **{**COMPACTED, "cleanup_policy": "compact,delete"})
        fill(topic)
        until(lambda: table(topic)[0] == NEWEST and table(topic)[1] < 45)
        assert start_of(topic) == 0
        alter(topic, "retention.ms", "60000")
        until(lambda: start_of(topic) == 90)


def test_internal_topics_expire_by_their_own_configuration() -> None:  # F11
    """`__consumer_offsets` is compacted, whatever brokers keep of others, until its `cleanup.policy` says otherwise."""
    small = {"offsets_topic_segment_bytes": 1024, "offsets_topic_num_partitions": 1}
    with memory_cluster(log_cleaner_enable=False, log_retention_bytes=4000, **small, **OFTEN) as cluster:
        other = create_topic(cluster, **SEGMENTS)
        place = rayka.TopicPartition("orders", 0)
        with rayka.Consumer(cluster=cluster, group_id="g", enable_auto_commit=False) as consumer:
            consumer.assign([place])
            for number in range(100):
                consumer.commit({place: number})
            filled(other)
            until(lambda: start_of(other) == KEPT_FROM)
            offsets = Topic(cluster, OFFSETS_TOPIC)
            assert described(offsets)[0].log_start_offset == 0
            alter(offsets, "cleanup.policy", "compact,delete")
            until(lambda: described(offsets)[0].log_start_offset > 50)
            committed = consumer.committed([place])[place]
        assert committed is not None
        assert committed.offset == 99


def test_a_restarted_broker_begins_where_its_log_did() -> None:  # F13
    disk = MemoryDisk()
    with memory_cluster(disk, **OFTEN) as cluster:
        topic = create_topic(cluster, retention_bytes=4000, **SEGMENTS)
        filled(topic)
        until(lambda: start_of(topic) == KEPT_FROM)
        cluster.kill(1)
        cluster.restart(1)
        until(lambda: topic.fetch(KEPT_FROM).records.size)
        assert start_of(topic) == KEPT_FROM


def test_a_log_whose_start_cannot_move_is_named_and_the_others_go_on(
    caplog: pytest.LogCaptureFixture,
) -> None:
    disk = MemoryDisk()
    with memory_cluster(disk, **OFTEN) as cluster:
        topic, other = create_topic(cluster, **SEGMENTS), create_topic(cluster, name="other", **SEGMENTS)
        filled(topic)
        filled(other)
        disk.fill_up()
        alter(topic, "retention.bytes", "4000")
        until(lambda: "orders-0: what has expired is not deleted" in caplog.text)
        assert start_of(topic) == 0
        disk.fill_up(1 << 30)
        alter(other, "retention.bytes", "4000")
        until(lambda: start_of(topic) == start_of(other) == KEPT_FROM)


def test_a_timestamp_in_the_future_is_warned_of(caplog: pytest.LogCaptureFixture) -> None:  # F11
    with memory_cluster(**OFTEN) as cluster:
        topic = create_topic(cluster, retention_ms=1000, **SEGMENTS)
        filled(topic, timestamp_ms=int(time.time() * 1000) + 3_600_000)
        until(lambda: "in the future: nothing expires" in caplog.text)
        assert start_of(topic) == 0


def test_followers_expire_too_and_a_consumer_that_is_too_far_back_begins_anew() -> None:  # F11, G11
    config: dict[str, Any] = {"log.retention.check.interval.ms": 5, "replica.lag.time.max.ms": 500}
    configs = {"segment.bytes": "1024", "retention.bytes": "4000", "file.delete.delay.ms": "0"}
    with rayka.testing.cluster(brokers=2, config=config) as cluster:
        with rayka.Admin(cluster=cluster) as admin:
            admin.create_topic("orders", partitions=1, replication_factor=2, configs=configs)
        with rayka.Consumer(cluster=cluster, auto_offset_reset="earliest") as consumer:
            partition = rayka.TopicPartition("orders", 0)
            consumer.assign([partition])
            with rayka.Producer(cluster=cluster, linger_ms=0) as producer:
                for _ in range(COUNT):
                    producer.send("orders", b"." * 700).result()
            until(lambda: consumer.beginning_offsets([partition])[partition] == KEPT_FROM)
            leader = cluster.await_isr("orders", 0, [1, 2]).leader_id
            until(_has_expired(cluster, 3 - leader))
            consumer.seek(partition, 1)
            assert consumer.poll(timeout_ms=10_000)[0].offset == KEPT_FROM


def _has_expired(cluster: rayka.testing.InProcessCluster, broker_id: int) -> Callable[[], bool]:
    """Whether this broker's log, too, has lost what has expired."""

    def look() -> bool:
        with rayka.Admin(cluster=cluster) as admin:
            (directory,) = next(each for each in admin.log_dirs() if each.broker_id == broker_id).directories
            return any(each.log_start_offset > 0 for each in directory.replicas)

    return look
