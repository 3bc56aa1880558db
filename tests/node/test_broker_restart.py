"""A broker that ends, cleanly or not, and comes back on the same directories."""

import json
import posixpath
from concurrent.futures import ThreadPoolExecutor
from random import Random
from typing import Any

import pytest

from rayka.errors import CorruptRecord, ErrorCode, StorageError
from rayka.log.checkpoint_files import HIGH_WATERMARK_FILE
from rayka.log.shutdown_files import BOOT_FILE, CLEAN_SHUTDOWN_FILE
from rayka.protocol.batch_format import split_batches
from rayka.protocol.membership import MetadataRequest, NodeState, StatusRequest
from rayka.protocol.topics import DeleteTopicsRequest
from rayka.testing import InProcessCluster, MemoryDisk
from tests.node.broker_support import (
    BROKER,
    CONTROLLER,
    Topic,
    create_topic,
    memory_cluster,
    records,
    run,
    values_in,
)
from tests.testing.waiting import wait_until

BROKER_DIR = "/data/broker-1"
FIRST_SEGMENT = "00000000000000000000.log"


def segment(partition: int = 0) -> str:
    return f"{BROKER_DIR}/orders-{partition}/{FIRST_SEGMENT}"


def crash(cluster: InProcessCluster) -> None:
    cluster.kill(BROKER)
    cluster.restart(BROKER)


def said(disk: MemoryDisk) -> Any:
    """What a later start is told of this one."""
    path = posixpath.join(BROKER_DIR, BOOT_FILE)
    return json.loads(disk.read_at(path, 0, disk.size(path)))


def leader_epoch(topic: Topic) -> int:
    (described,) = topic.call(MetadataRequest((topic.name,))).topics
    return described.partitions[0].leader_epoch


def test_a_killed_broker_has_every_acknowledged_record_when_it_is_back() -> None:
    with memory_cluster() as cluster:
        topic = create_topic(cluster, partitions=2)
        for number in range(5):
            topic.produce(b"%d" % number, partition=number % 2)
            crash(cluster)
        assert (topic.values(0), topic.values(1)) == ([b"0", b"2", b"4"], [b"1", b"3"])
        assert topic.produce(b"5").base_offset == 3


def test_a_restarted_broker_leads_in_a_new_epoch() -> None:  # B16
    with memory_cluster() as cluster:
        topic = create_topic(cluster)
        before = leader_epoch(topic)
        crash(cluster)
        assert leader_epoch(topic) > before
        cluster.restart(BROKER)
        assert leader_epoch(topic) > before + 1


def test_a_torn_tail_is_cut_and_nothing_before_it_is_lost(caplog: pytest.LogCaptureFixture) -> None:  # B31
    disk = MemoryDisk()
    with memory_cluster(disk) as cluster:
        topic = create_topic(cluster)
        topic.produce(b"a")
        topic.produce(b"b")
        whole_bytes = disk.size(segment())
        cluster.kill(BROKER)
        disk.append(segment(), [records(b"c" * 100)[:90]])
        cluster.restart(BROKER)
        assert topic.values() == [b"a", b"b"]
        assert disk.size(segment()) == whole_bytes
        assert segment() in caplog.text
        assert topic.produce(b"d").base_offset == 2


def test_a_flipped_bit_costs_the_batch_it_is_in_and_no_other() -> None:
    disk = MemoryDisk()
    with memory_cluster(disk) as cluster:
        topic = create_topic(cluster)
        for value in (b"a", b"b", b"c"):
            topic.produce(value * 100)
        cluster.kill(BROKER)
        disk.flip_bit(segment(), records(b"a" * 100).size + 120)
        cluster.restart(BROKER)
        damaged = topic.fetch(1, max_bytes=1)
        assert (damaged.error_code, damaged.next_offset) == (ErrorCode.NONE, 2)
        with pytest.raises(CorruptRecord, match="offset 1"):
            next(split_batches(damaged.records)).check_crc()
        assert values_in(topic.fetch(2)) == [b"c" * 100]
        assert topic.produce(b"d").base_offset == 3


def test_a_damaged_log_is_offline_and_whole_and_every_other_partition_goes_on() -> None:
    disk = MemoryDisk()
    with memory_cluster(disk) as cluster:
        topic = create_topic(cluster, partitions=2)
        for number in range(6):
            topic.produce(b"%d" % number, partition=number % 2)
        cluster.kill(BROKER)
        flip = segment(0), records(b"0").size + 16  # the magic
        disk.flip_bit(*flip)
        size_bytes = disk.size(segment(0))
        cluster.restart(BROKER)
        for result in (topic.fetch(partition=0), topic.produce(b"x", partition=0)):
            assert result.error_code is ErrorCode.KAFKA_STORAGE_ERROR
            assert segment(0) in result.error_message
        assert segment(0) in topic.call(StatusRequest()).detail
        assert topic.values(1) == [b"1", b"3", b"5"]
        assert topic.produce(b"7", partition=1).base_offset == 3
        cluster.restart(BROKER)  # stopped in peace: the log that was not recovered is not taken for clean
        assert topic.fetch(partition=0).error_code is ErrorCode.KAFKA_STORAGE_ERROR
        assert disk.size(segment(0)) == size_bytes
        disk.flip_bit(*flip)
        cluster.restart(BROKER)
        assert topic.values(0) == [b"0", b"2", b"4"]


def test_a_damaged_log_goes_with_its_topic_and_leaves_the_name_free() -> None:
    disk = MemoryDisk()
    with memory_cluster(disk) as cluster:
        topic = create_topic(cluster)
        topic.produce(b"a")
        topic.produce(b"b")
        cluster.kill(BROKER)
        disk.flip_bit(segment(), 16)
        cluster.restart(BROKER)
        assert topic.fetch().error_code is ErrorCode.KAFKA_STORAGE_ERROR
        run(topic.a_delete())
        again = create_topic(cluster)
        again.produce(b"c")
        assert again.values() == [b"c"]


def test_after_a_clean_shutdown_nothing_is_scanned() -> None:  # B30
    disk = MemoryDisk()
    with memory_cluster(disk) as cluster:
        topic = create_topic(cluster)
        topic.produce(b"a" * 100)
        epoch = leader_epoch(topic)
        cluster.restart(BROKER)
        assert leader_epoch(topic) > epoch
        assert not disk.exists(posixpath.join(BROKER_DIR, CLEAN_SHUTDOWN_FILE))
        disk.flip_bit(segment(), 120)  # what a scan would find
        cluster.restart(BROKER)
        assert topic.fetch().records.size


def test_with_flush_batch_a_power_cut_takes_nothing_acknowledged() -> None:
    """The next process has no proof of the end of the one before (H2): it waits for the session, a short one here, and
    so do all seeds beside each other.
    """
    session = {"broker_session_timeout_ms": 2_000, "broker_heartbeat_interval_ms": 400}

    def cut(seed: int) -> None:
        disk = MemoryDisk()
        with memory_cluster(disk, **session) as cluster:
            topic = create_topic(cluster, flush="batch")
            for value in (b"a", b"b"):
                assert topic.produce(value).error_code is ErrorCode.NONE
            cluster.kill(BROKER)
            disk.power_loss(Random(seed))
            cluster.restart(BROKER)
            assert topic.values() == [b"a", b"b"]

    with ThreadPoolExecutor() as pool:
        list(pool.map(cut, range(10)))


def test_the_whole_cluster_comes_back_on_its_data() -> None:
    broker_disk, controller_disk = MemoryDisk(), MemoryDisk()
    for expected in ([], [b"a"], [b"a", b"a"]):
        with memory_cluster(broker_disk, controller_disk) as cluster:
            topic = Topic(cluster, "orders") if expected else create_topic(cluster)
            topic.topic_id = topic.call(MetadataRequest(("orders",))).topics[0].topic_id
            assert topic.values() == expected
            topic.produce(b"a")


def test_a_broker_serves_while_its_controller_is_away() -> None:
    with memory_cluster() as cluster:
        topic = create_topic(cluster)
        cluster.kill(CONTROLLER)
        topic.produce(b"a")
        assert topic.values() == [b"a"]
        cluster.restart(CONTROLLER)
        assert create_topic(cluster, name="after").produce(b"b").base_offset == 0


def test_a_topic_deleted_while_the_broker_is_down_is_gone_when_it_is_back() -> None:
    disk = MemoryDisk()
    with memory_cluster(disk) as cluster:
        topic = create_topic(cluster)
        topic.produce(b"a")
        cluster.kill(BROKER)
        run(topic.a_delete())
        cluster.restart(BROKER)
        assert not disk.exists(f"{BROKER_DIR}/orders-0")
        assert topic.fetch().error_code is ErrorCode.UNKNOWN_TOPIC_ID
        assert create_topic(cluster).values() == []


def test_what_the_metadata_does_not_know_is_kept_aside() -> None:  # F4
    disk = MemoryDisk()
    with memory_cluster(disk) as cluster:
        topic = create_topic(cluster)
        topic.produce(b"a")
        cluster.kill(BROKER)
        run(topic.a_delete())
        cluster.restart(BROKER)
        (stray,) = [each for each in disk.list(BROKER_DIR) if each.startswith("orders-0")]
        assert stray.endswith("-stray")
        assert disk.size(f"{BROKER_DIR}/{stray}/{FIRST_SEGMENT}") > 0
        crash(cluster)
        assert disk.exists(f"{BROKER_DIR}/{stray}")


def test_a_deleted_topic_leaves_no_file() -> None:
    disk = MemoryDisk()
    with memory_cluster(disk, log_segment_delete_delay_ms=0) as cluster:
        topic = create_topic(cluster, partitions=2)
        topic.produce(b"a")
        response = topic.call(DeleteTopicsRequest((topic.name,)), CONTROLLER)
        topic.call(MetadataRequest((), min_metadata_offset=response.metadata_offset))
        assert not disk.exists(f"{BROKER_DIR}/orders-0")
        wait_until(lambda: not any(each.startswith("orders") for each in disk.list(BROKER_DIR)))


# ---- Directories ----


def test_partitions_are_spread_over_the_data_directories_and_found_again() -> None:
    disk = MemoryDisk()
    with memory_cluster(disk, data_dir=["/a", "/b"]) as cluster:
        topic = create_topic(cluster, partitions=4)
        for partition in range(4):
            topic.produce(b"%d" % partition, partition=partition)
        found = [
            sum(name.startswith("orders-") for name in disk.list(f"/{each}/broker-1")) for each in ("a", "b")
        ]
        assert found == [2, 2]
        crash(cluster)
        assert [topic.values(partition) for partition in range(4)] == [[b"0"], [b"1"], [b"2"], [b"3"]]


def test_a_directory_that_was_never_formatted_is_refused() -> None:
    disk = MemoryDisk()
    with memory_cluster(disk) as cluster:
        cluster.kill(BROKER)
        disk.remove_directory(BROKER_DIR)
        with pytest.raises(StorageError, match=f"{BROKER_DIR} of broker-1 is missing"):
            cluster.restart(BROKER)


def test_a_directory_of_another_node_is_refused() -> None:
    disk = MemoryDisk()
    with memory_cluster(disk) as cluster:
        cluster.kill(BROKER)
        path = f"{BROKER_DIR}/meta.properties"
        content = disk.read_at(path, 0, disk.size(path))
        disk.write(path, content.replace(b"node.id=1", b"node.id=2"))
        with pytest.raises(StorageError, match="belongs to broker-2, expected broker-1"):
            cluster.restart(BROKER)


def test_a_directory_of_another_cluster_is_refused_naming_both() -> None:
    disk = MemoryDisk()
    with memory_cluster(disk) as cluster:
        own = cluster.describe().nodes[0].cluster_id
        cluster.kill(BROKER)
        path = f"{BROKER_DIR}/meta.properties"
        disk.write(path, disk.read_at(path, 0, disk.size(path)).replace(own.encode(), b"another-cluster"))
        with pytest.raises(Exception, match=f"(?s)another-cluster.*{own}.*{BROKER_DIR}"):
            cluster.restart(BROKER)


def test_a_directory_in_use_is_refused_and_the_others_are_given_back() -> None:
    disk = MemoryDisk()
    with memory_cluster(disk, data_dir=["/a", "/b"]) as cluster:
        cluster.kill(BROKER)
        lock = disk.lock("/b/broker-1/.lock")
        with pytest.raises(StorageError, match="/b/broker-1 is in use"):
            cluster.restart(BROKER)
        lock.release()
        cluster.restart(BROKER)
        assert cluster.describe().nodes[0].state is NodeState.RUNNING


# ---- Disks that fail ----


def _partition_in_a(topic: Topic, disk: MemoryDisk) -> int:
    """Which of two partitions lives in /a. A log has no files before its first record."""
    topic.produce(b"first", partition=0)
    return 0 if disk.exists("/a/broker-1/orders-0") else 1


def test_a_failed_sync_takes_one_directory_offline_and_leaves_the_other() -> None:
    disk = MemoryDisk()
    with memory_cluster(disk, data_dir=["/a", "/b"]) as cluster:
        topic = create_topic(cluster, partitions=2, flush="batch")
        in_a = _partition_in_a(topic, disk)
        topic.produce(b"kept", partition=1 - in_a)
        disk.fail("sync", "/a/")
        result = topic.produce(b"lost", partition=in_a)
        assert result.error_code is ErrorCode.KAFKA_STORAGE_ERROR
        assert "/a/broker-1" in result.error_message
        again = topic.produce(b"never retried", partition=in_a)
        assert again.error_code is ErrorCode.KAFKA_STORAGE_ERROR
        assert topic.fetch(partition=in_a).error_code is ErrorCode.KAFKA_STORAGE_ERROR
        assert topic.produce(b"goes on", partition=1 - in_a).error_code is ErrorCode.NONE
        assert topic.values(1 - in_a)[-2:] == [b"kept", b"goes on"]
        assert "/a/broker-1" in topic.call(StatusRequest()).detail


def test_an_offline_directory_is_reported_and_its_partitions_lose_their_leader() -> None:
    disk = MemoryDisk()
    with memory_cluster(disk, data_dir=["/a", "/b"]) as cluster:
        topic = create_topic(cluster, partitions=2, flush="batch")
        in_a = _partition_in_a(topic, disk)
        disk.fail("sync", "/a/")
        topic.produce(b"lost", partition=in_a)
        leaders = [1, 1]
        while leaders[in_a] == 1:
            described = topic.call(MetadataRequest((topic.name,))).topics[0]
            leaders = [each.leader_id for each in described.partitions]
        assert leaders[1 - in_a] == 1


def test_an_error_on_write_takes_the_directory_offline_and_loses_nothing_acknowledged() -> None:
    disk = MemoryDisk()
    with memory_cluster(disk) as cluster:
        topic = create_topic(cluster)
        topic.produce(b"a")
        disk.fail("write", "orders-0/")
        result = topic.produce(b"b")
        assert (result.error_code, "Input/output error" in result.error_message) == (
            ErrorCode.KAFKA_STORAGE_ERROR,
            True,
        )
        crash(cluster)
        assert topic.values() == [b"a"]
        assert not disk.exists(posixpath.join(BROKER_DIR, CLEAN_SHUTDOWN_FILE))


def test_a_full_disk_is_said_and_what_was_acknowledged_is_still_read() -> None:
    disk = MemoryDisk()
    with memory_cluster(disk) as cluster:
        topic = create_topic(cluster, partitions=2)
        topic.produce(b"a")
        disk.fill_up(after_bytes=10)
        for _ in range(2):
            result = topic.produce(b"b")
            assert result.error_code is ErrorCode.KAFKA_STORAGE_ERROR
            assert "disk full" in result.error_message
        assert topic.values() == [b"a"]
        assert "disk full" in topic.call(StatusRequest()).detail
        disk.fill_up(after_bytes=1 << 40)
        crash(cluster)
        assert topic.produce(b"c").base_offset == 1
        assert topic.values() == [b"a", b"c"]


def test_a_topic_whose_files_find_no_room_is_not_usable_and_the_others_are() -> None:
    disk = MemoryDisk()
    with memory_cluster(disk) as cluster:
        first = create_topic(cluster, name="first")
        disk.fill_up()
        second = create_topic(cluster, name="second")
        assert second.produce(b"a").error_code is ErrorCode.KAFKA_STORAGE_ERROR
        assert first.fetch().error_code is ErrorCode.NONE
        disk.fill_up(after_bytes=1 << 40)


def test_after_a_failed_sync_no_later_start_claims_to_have_lost_nothing() -> None:  # H3
    disk = MemoryDisk()
    with memory_cluster(disk) as cluster:
        topic = create_topic(cluster, flush="batch")
        before = said(disk)
        disk.fail("sync", "orders")
        topic.produce(b"a")
        assert said(disk) == {
            "version": 0,
            "brokerEpoch": before["brokerEpoch"],
        }  # no boot: it proves nothing


def test_a_full_disk_misses_checkpoints_and_is_read_all_the_same() -> None:
    disk = MemoryDisk()
    with memory_cluster(disk, replica_high_watermark_checkpoint_interval_ms=10) as cluster:
        topic = create_topic(cluster)
        topic.produce(b"a")
        checkpoint = posixpath.join(BROKER_DIR, HIGH_WATERMARK_FILE)
        wait_until(lambda: disk.exists(checkpoint) and b"orders 0 1" in disk.read_at(checkpoint, 0, 1_000))
        disk.fill_up(
            after_bytes=disk.size(segment())
        )  # room for another record, and not for the next checkpoint
        topic.produce(b"b")
        wait_until(lambda: "disk full" in topic.call(StatusRequest()).detail)
        assert topic.values() == [b"a", b"b"]
        disk.fill_up(after_bytes=1 << 40)
