"""A broker with several data directories starts without one that cannot be used, and that one is offline."""

import errno
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

import rayka
import rayka.testing
from rayka import Admin, Producer, TopicPartition
from rayka.client import io_thread
from rayka.errors import StorageError
from rayka.ids import NO_NODE
from rayka.protocol.membership import NodeState, StatusRequest, StatusResponse
from rayka.testing import InProcessCluster
from rayka.testing.memory_disk import MemoryDisk
from tests.testing.waiting import WAIT_S

LOST, SOUND = "/a/broker-1", "/b/broker-1"
META = f"{LOST}/meta.properties"
CONFIG = {"broker.session.timeout.ms": 3_000, "broker.heartbeat.interval.ms": 100}
Harm = Callable[[MemoryDisk], Callable[[], None]]  # returns what mends it


def missing(disk: MemoryDisk) -> Callable[[], None]:
    disk.rename(LOST, "/elsewhere")
    return lambda: disk.rename("/elsewhere", LOST)


def exchanged(disk: MemoryDisk) -> Callable[[], None]:
    """Another disk is mounted there, an empty one."""
    disk.rename(LOST, "/elsewhere")
    disk.make_directory(LOST)

    def bring_back() -> None:
        disk.remove_directory(LOST)
        disk.rename("/elsewhere", LOST)

    return bring_back


def damaged(disk: MemoryDisk) -> Callable[[], None]:
    content = disk.read_at(META, 0, 1000)
    disk.write(META, b"?")
    return lambda: disk.write(META, content)


def failing(disk: MemoryDisk) -> Callable[[], None]:
    disk.fail("read", META, times=-1)
    return disk.mend


def read_only(disk: MemoryDisk) -> Callable[[], None]:
    disk.fail("write", LOST, times=-1, number=errno.EROFS)
    return disk.mend


def hanging(disk: MemoryDisk) -> Callable[[], None]:
    disk.hang(LOST)
    return disk.mend


@contextmanager
def two_brokers() -> Iterator[tuple[InProcessCluster, Admin, MemoryDisk]]:
    """Broker 1 alone has `one`, with a partition in each directory; broker 2 is in sync with it in `both`."""
    disk = MemoryDisk(hang_timeout_s=0.2)
    disks = {1: disk, 2: MemoryDisk(), 3001: MemoryDisk()}
    with (
        rayka.testing.cluster(brokers=2, data_dir=("/a", "/b"), disks=disks, config=CONFIG) as cluster,
        Admin(cluster) as admin,
    ):
        admin.create_topic("one", assignments=[[1], [1]])
        admin.create_topic("both", assignments=[[1, 2], [1, 2]], configs={"min.insync.replicas": 1})
        for topic in ("one", "both"):
            for partition in (0, 1):
                send(cluster, topic, partition)
        yield cluster, admin, disk


def send(cluster: InProcessCluster, topic: str, partition: int) -> None:
    with Producer(cluster) as producer:
        producer.send(topic, b"a", partition=partition).result(timeout=WAIT_S)


def homes(admin: Admin) -> dict[TopicPartition, str]:
    """Where the replicas of broker 1 are."""
    return {
        TopicPartition(replica.topic, replica.partition): directory.path
        for directory in admin.log_dirs([1])[0].directories
        for replica in directory.replicas
    }


def status(cluster: InProcessCluster) -> StatusResponse:
    async def answered() -> StatusResponse:
        return await cluster.network().call(1, StatusRequest(), 10_000)

    return io_thread.run(answered, WAIT_S)


@pytest.mark.parametrize("harm", [missing, exchanged, damaged, failing, read_only, hanging])
def test_a_broker_starts_on_the_directories_that_are_sound_and_names_the_other(harm: Harm) -> None:
    with two_brokers() as (cluster, admin, disk):
        lost = [each for each, home in homes(admin).items() if home == LOST]
        kept = [each for each, home in homes(admin).items() if home == SOUND]
        assert {each.topic for each in lost} & {each.topic for each in kept} == {"one", "both"}
        cluster.kill(1)
        mend = harm(disk)
        cluster.restart(1)
        found = status(cluster)
        assert (found.state, found.offline_data_dirs) == (NodeState.RUNNING, (LOST,))
        assert f"{LOST} is offline: " in found.detail
        [described] = admin.log_dirs([1])
        assert {each.path: bool(each.error) for each in described.directories} == {SOUND: False, LOST: True}
        for each in (*kept, *(each for each in lost if each.topic == "both")):
            send(cluster, each.topic, each.partition)
        assert not {*lost} & {*homes(admin)}
        # What is only there has no leader until it is back; nothing was made anew in its place.
        led = {each: leader(admin, each) for each in (*kept, *lost)}
        gone = {each: NO_NODE if each.topic == "one" else 2 for each in lost}
        assert {each: led[each] for each in lost} == gone
        assert NO_NODE not in [led[each] for each in kept]
        mend()
        cluster.restart(1)
        assert (status(cluster).offline_data_dirs, status(cluster).detail) == ((), "")
        for each in (*kept, *lost):
            send(cluster, each.topic, each.partition)
        counts = {each: len(rayka.read(each, cluster=cluster)) for each in ("one", "both")}
        assert counts == {"one": 2 + 1 + 2, "both": 2 + 2 + 2}


def leader(admin: Admin, name: TopicPartition) -> int:
    return admin.describe_topic(name.topic).partitions[name.partition].leader_id


def test_a_broker_without_any_sound_directory_does_not_start_and_says_why() -> None:
    with two_brokers() as (cluster, _, disk):
        cluster.kill(1)
        disk.rename("/a", "/x")
        disk.rename("/b", "/y")
        with pytest.raises(StorageError, match=r"/a/broker-1 of broker-1 is missing; mount its disk"):
            cluster.restart(1)


@pytest.mark.parametrize("harm", ["in use", "another node's"])
def test_a_directory_that_is_somebody_elses_is_a_mistake_that_no_start_passes_over(harm: str) -> None:
    with two_brokers() as (cluster, _, disk):
        cluster.kill(1)
        if harm == "in use":
            lock = disk.lock(f"{LOST}/.lock")
            with pytest.raises(StorageError, match=r"/a/broker-1 is in use: .*stop that process first"):
                cluster.restart(1)
            lock.release()
        else:
            content = disk.read_at(META, 0, 1000).decode()
            disk.write(META, content.replace("node.id=1", "node.id=7").encode())
            with pytest.raises(StorageError, match="belongs to broker-7, expected broker-1"):
                cluster.restart(1)


def test_a_start_without_descriptors_is_tried_again_and_takes_no_directory_for_lost() -> None:
    with two_brokers() as (cluster, _, disk):
        cluster.kill(1)
        disk.fail("write", LOST, number=errno.EMFILE)
        with pytest.raises(StorageError, match="Too many open files"):
            cluster.restart(1)
        cluster.restart(1)
        assert status(cluster).offline_data_dirs == ()
