"""Consumers that keep their positions in a group, on the real nodes in this process (E10, G12, G16)."""

import asyncio
import threading
from collections.abc import Iterator
from datetime import UTC, datetime
from functools import partial
from itertools import count
from typing import Any

import msgspec
import pytest

import rayka
import rayka.testing
from rayka import Consumer, Producer, TopicPartition
from rayka.client import io_thread
from rayka.client.consumer.group_membership import GroupMetadata
from rayka.client.consumer.offset_commits import OffsetAndMetadata
from rayka.errors import (
    ApiError,
    FencedInstanceId,
    IllegalGeneration,
    InvalidGroupId,
    LogTruncation,
    OffsetMetadataTooLarge,
    OffsetOutOfRange,
    RaykaError,
    RebalanceInProgress,
    UnknownMemberId,
    UnknownTopicOrPartition,
)
from rayka.protocol.groups import (
    FindCoordinatorRequest,
    GroupProtocol,
    GroupState,
    JoinGroupRequest,
    JoinGroupResponse,
    MemberAssignment,
    SyncGroupRequest,
)
from rayka.testing import InProcessCluster, MemoryDisk
from tests.testing.waiting import WAIT_S, wait_until

CONFIG = {"offsets.topic.num.partitions": 3, "log.retention.ms": -1, "group.initial.rebalance.delay.ms": 0}
_numbers = count()


@pytest.fixture(scope="module")
def cluster() -> Iterator[InProcessCluster]:
    with rayka.testing.cluster(config=CONFIG) as running:
        yield running


@pytest.fixture
def topic(cluster: InProcessCluster) -> str:
    """With ten records in partition 0 of two."""
    name = f"orders-{next(_numbers)}"
    with rayka.Admin(cluster=cluster) as admin, Producer(cluster=cluster) as producer:
        admin.create_topic(name, partitions=2)
        for number in range(10):
            producer.send(name, b"%d" % number, partition=0, timestamp_ms=1_000 * number)
    return name


def consumer_of(cluster: InProcessCluster, *partitions: TopicPartition, **options: Any) -> Consumer:
    given = {"auto_offset_reset": "earliest", "group_id": "g", "enable_auto_commit": False, **options}
    consumer = Consumer(cluster=cluster, **given)
    consumer.assign(partitions)
    return consumer


def poll(consumer: Consumer, count_max: int = 500) -> list[int]:
    return [int(each.value) for each in consumer.poll(timeout_ms=5_000, max_records=count_max) if each.value]


# ---- Commits and where the next one begins ----


def test_the_next_consumer_of_the_group_begins_where_this_one_has_committed(
    cluster: InProcessCluster, topic: str
) -> None:  # E10
    tp = TopicPartition(topic, 0)
    with consumer_of(cluster, tp) as first:
        assert poll(first, 3) == [0, 1, 2]
        first.commit()
        assert poll(first, 2) == [3, 4]
    with consumer_of(cluster, tp) as second:
        assert second.position(tp) == 3
        assert poll(second)[0] == 3
    with consumer_of(cluster, tp, group_id="another") as other:
        assert poll(other)[0] == 0


def test_what_was_fetched_ahead_is_not_committed(cluster, topic):
    tp, empty = TopicPartition(topic, 0), TopicPartition(topic, 1)
    with consumer_of(cluster, tp, empty, group_id="ahead") as consumer:
        for place, record in enumerate(consumer):
            if place == 1:
                consumer.commit()
                assert record.offset == 1
                break
        committed = consumer.committed([tp, empty])
    assert {at: each and each.offset for at, each in committed.items()} == {tp: 2, empty: 0}


def test_offsets_are_committed_with_metadata_and_leader_epoch(cluster, topic):
    tp, other = TopicPartition(topic, 0), TopicPartition(topic, 1)
    with consumer_of(cluster, tp, group_id="explicit") as consumer:
        consumer.commit({tp: OffsetAndMetadata(4, "so far", 0)})
        assert consumer.committed([tp, other]) == {tp: OffsetAndMetadata(4, "so far", 0), other: None}
        assert poll(consumer)[0] == 4


def test_positions_are_committed_with_the_epoch_of_the_record_before(cluster, topic):
    tp = TopicPartition(topic, 0)
    with consumer_of(cluster, tp, group_id="epochs") as consumer:
        poll(consumer, 3)
        consumer.commit()
        (found,) = consumer.committed([tp]).values()
    assert found is not None
    assert found.leader_epoch >= 0


def test_a_committed_leader_epoch_finds_records_that_are_not_in_the_log_any_more(
    cluster: InProcessCluster, topic: str
) -> None:  # G15
    tp = TopicPartition(topic, 0)
    with consumer_of(cluster, tp, group_id="truncated") as consumer:
        consumer.commit({tp: OffsetAndMetadata(12, leader_epoch=0)})
    with consumer_of(cluster, tp, group_id="truncated", auto_offset_reset="none") as consumer:
        with pytest.raises(LogTruncation, match="seek to 10"):
            consumer.poll(timeout_ms=5_000)
    with consumer_of(cluster, tp, group_id="truncated") as consumer:
        assert consumer.poll(timeout_ms=200) == []
        assert consumer.position(tp) == 10


def test_without_a_committed_offset_and_a_policy_the_application_is_asked(cluster, topic):
    with consumer_of(
        cluster, TopicPartition(topic, 0), group_id="none", auto_offset_reset="none"
    ) as consumer:
        with pytest.raises(OffsetOutOfRange, match="has no position"):
            consumer.poll(timeout_ms=5_000)


def test_offsets_of_a_former_topic_of_the_name_do_not_count(cluster, topic):
    tp = TopicPartition(topic, 0)
    with consumer_of(cluster, tp, group_id="former") as consumer:
        consumer.commit({tp: 7})
    with rayka.Admin(cluster) as admin:
        admin.delete_topic(topic)
        admin.create_topic(topic, partitions=1)
    with consumer_of(cluster, tp, group_id="former") as consumer:
        assert consumer.position(tp) == 0


# ---- In the background ----


def test_an_asynchronous_commit_tells_how_it_ended(cluster, topic):
    tp = TopicPartition(topic, 0)
    told: list[tuple[Any, RaykaError | None]] = []
    with consumer_of(cluster, tp, group_id="async") as consumer:
        consumer.commit_async({tp: 5}, lambda offsets, error: told.append((offsets, error)))
        wait_until(lambda: bool(told))
        assert told == [({tp: OffsetAndMetadata(5)}, None)]
        consumer.commit_async({tp: OffsetAndMetadata(6, "x" * 5_000)}, lambda *each: told.append(each))
        wait_until(lambda: len(told) == 2)
        assert isinstance(told[1][1], OffsetMetadataTooLarge)


def test_an_older_commit_never_overwrites_a_newer_one_also_when_it_is_retried(cluster, topic):
    tp = TopicPartition(topic, 0)
    with consumer_of(cluster, tp, group_id="order", retry_backoff_ms=200) as consumer:
        consumer.commit({tp: 0})
        cluster.fail_calls("offset_commit", is_executed=True)
        for offset in range(1, 8):
            consumer.commit_async({tp: offset})
        consumer.commit({tp: 8})
        assert consumer.committed([tp]) == {tp: OffsetAndMetadata(8)}


def test_what_is_committed_asynchronously_is_done_when_the_consumer_is_closed(cluster, topic):
    tp = TopicPartition(topic, 0)
    with consumer_of(cluster, tp, group_id="closing") as consumer:
        consumer.commit_async({tp: 9})
    with consumer_of(cluster, tp, group_id="closing") as consumer:
        assert consumer.committed([tp]) == {tp: OffsetAndMetadata(9)}


def test_a_poll_commits_what_the_polls_before_it_have_given(cluster, topic):
    tp = TopicPartition(topic, 0)
    options = {"enable_auto_commit": True, "auto_commit_interval_ms": 1}
    with consumer_of(cluster, tp, group_id="auto", **options) as consumer:
        assert poll(consumer, 4) == [0, 1, 2, 3]
        threading.Event().wait(0.15)  # records are at hand: the commit waits a while for a poll that waits
        assert poll(consumer, 4) == [4, 5, 6, 7]
        wait_until(lambda: (found := consumer.committed([tp])[tp]) is not None and found.offset == 4)


def test_positions_are_committed_when_a_consumer_closes_unless_it_shall_not(cluster, topic):
    tp = TopicPartition(topic, 0)
    with consumer_of(cluster, tp, group_id="close", enable_auto_commit=True) as consumer:
        poll(consumer, 4)
    with consumer_of(cluster, tp, group_id="close") as consumer:
        assert poll(consumer, 1) == [4]
    with consumer_of(cluster, tp, group_id="close") as consumer:
        assert consumer.position(tp) == 4


def test_a_member_commits_when_it_leaves_and_the_next_one_goes_on_there(cluster, topic):
    options = {"group_id": "member", "auto_offset_reset": "earliest"}
    with Consumer(topic, cluster=cluster, **options) as first:
        assert poll(first, 4) == [0, 1, 2, 3]
    with Consumer(topic, cluster=cluster, **options) as second:
        assert poll(second, 1) == [4]
        second.commit()
        assert second.committed([TopicPartition(topic, 0)])[TopicPartition(topic, 0)].offset == 5


def test_a_member_commits_before_its_partitions_are_revoked_and_after_it_was_told(cluster, topic):
    tp, told = TopicPartition(topic, 0), list[int]()
    options = {"group_id": "revoked", "auto_offset_reset": "earliest"}
    with (
        Consumer(cluster=cluster, **options) as member,
        consumer_of(cluster, tp, group_id="revoked") as other,
    ):
        member.subscribe(topic, on_revoke=lambda partitions: told.append(len(partitions)))
        poll(member, 4)
        member.unsubscribe()
        assert told == [2]
        assert other.committed([tp])[tp] is not None
        assert other.committed([tp])[tp].offset == 4


def test_a_consumer_closes_also_when_nothing_can_be_committed(cluster, topic, caplog):
    tp = TopicPartition(topic, 0)
    with consumer_of(cluster, tp, group_id="fails", enable_auto_commit=True) as consumer:
        poll(consumer, 4)
        _Member(cluster, "fails").join()
    assert "its positions were not committed: group 'fails' has members" in caplog.text


# ---- What is refused ----


def test_without_a_group_there_is_nothing_to_commit_to(cluster, topic):
    with Consumer(cluster=cluster) as consumer:
        for refused in (consumer.commit, consumer.commit_async, consumer.group_metadata):
            with pytest.raises(InvalidGroupId, match=r"give it a group_id: Consumer\(group_id=\.\.\.\)"):
                refused()
        with pytest.raises(InvalidGroupId):
            consumer.committed([TopicPartition(topic, 0)])


def test_offsets_that_cannot_be_are_refused(cluster, topic):
    tp = TopicPartition(topic, 0)
    with consumer_of(cluster, tp) as consumer:
        with pytest.raises(TypeError, match=r"expected a mapping by rayka\.TopicPartition, found list"):
            consumer.commit([tp])  # type: ignore[arg-type]
        with pytest.raises(ValueError, match="expected 0 or more"):
            consumer.commit({tp: -1})
        with pytest.raises(TypeError, match="expected int, found str"):
            consumer.commit({tp: "1"})  # type: ignore[dict-item]
        with pytest.raises(UnknownTopicOrPartition, match="partitions 0 to 1, found 2"):
            consumer.commit({TopicPartition(topic, 2): 1, tp: 1})
        assert consumer.committed([tp])[tp] == OffsetAndMetadata(1)


def test_ids_of_groups_have_a_limit(cluster, topic):
    tp = TopicPartition(topic, 0)
    with consumer_of(cluster, tp, group_id="g" * 32_767) as consumer:
        consumer.commit({tp: 1})
    with consumer_of(cluster, tp, group_id="g" * 32_768) as consumer:
        with pytest.raises(InvalidGroupId, match="expected 1 to 32,767 bytes, found 32,768"):
            consumer.commit({tp: 1})


def test_metadata_that_are_too_large_refuse_their_partition_alone(
    cluster: InProcessCluster, topic: str
) -> None:  # E10
    tp, other = TopicPartition(topic, 0), TopicPartition(topic, 1)
    with consumer_of(cluster, tp, group_id="large") as consumer:
        with pytest.raises(OffsetMetadataTooLarge, match=f"{tp}: metadata: expected at most 4096 characters"):
            consumer.commit({tp: OffsetAndMetadata(1, "x" * 4_097), other: OffsetAndMetadata(2, "x" * 4_096)})
        assert consumer.committed([tp])[tp] is None
        assert consumer.committed([other])[other] is not None


def test_a_generation_of_a_group_that_is_not_known_is_refused(
    cluster: InProcessCluster, topic: str
) -> None:  # E10
    tp = TopicPartition(topic, 0)
    with consumer_of(cluster, tp, group_id="unknown") as consumer:
        with pytest.raises(IllegalGeneration, match="is not known, found generation 3"):
            _commit_as(consumer, GroupMetadata("unknown", 3, "m"), {tp: 1})


def test_of_a_group_with_members_only_these_commit(cluster: InProcessCluster, topic: str) -> None:  # E10
    tp = TopicPartition(topic, 0)
    member = _Member(cluster, "members")
    member.join()
    with consumer_of(cluster, tp, group_id="members") as consumer:
        with pytest.raises(RebalanceInProgress, match="waits for its assignments"):
            _commit_as(consumer, member.metadata, {tp: 1})
        member.sync()
        _commit_as(consumer, member.metadata, {tp: 1})
        with pytest.raises(
            UnknownMemberId, match="has members, and only they commit offsets; stop them first"
        ):
            consumer.commit({tp: 2})
        with pytest.raises(UnknownMemberId):
            _commit_as(consumer, GroupMetadata("members", 1, "another"), {tp: 2})
        with pytest.raises(IllegalGeneration):
            _commit_as(consumer, GroupMetadata("members", 7, member.metadata.member_id), {tp: 2})
        assert consumer.committed([tp])[tp] == OffsetAndMetadata(1)


def test_a_process_whose_instance_was_taken_over_commits_nothing(
    cluster: InProcessCluster, topic: str
) -> None:  # E7, E10
    tp = TopicPartition(topic, 0)
    member, successor = _Member(cluster, "static", "a"), _Member(cluster, "static", "a")
    member.join()
    member.sync()
    successor.join()
    with consumer_of(cluster, tp, group_id="static") as consumer:
        with pytest.raises(FencedInstanceId):
            _commit_as(consumer, member.metadata, {tp: 2})


class _Member:
    """A member of a group, by the protocol."""

    def __init__(self, cluster: InProcessCluster, group_id: str, instance_id: str = "") -> None:
        self._network = cluster.network()
        self._instance_id = instance_id
        self.metadata = GroupMetadata(group_id, group_instance_id=instance_id)

    def join(self) -> None:
        response = self._join("")
        if response.generation_id < 0:
            response = self._join(response.member_id)
        group_id, instance_id = self.metadata.group_id, self._instance_id
        self.metadata = GroupMetadata(group_id, response.generation_id, response.member_id, instance_id)

    def _join(self, member_id: str) -> JoinGroupResponse:
        group_id, protocols = self.metadata.group_id, (GroupProtocol("range", b""),)
        request = JoinGroupRequest(
            group_id, 45_000, 60_000, member_id, "consumer", protocols, self._instance_id
        )
        response: JoinGroupResponse = self._ask(request)
        return response

    def sync(self) -> None:
        group, member_id = self.metadata, self.metadata.member_id
        assignments = (MemberAssignment(member_id, b""),)
        request = SyncGroupRequest(group.group_id, group.generation_id, member_id, assignments)
        self._ask(msgspec.structs.replace(request, group_instance_id=self._instance_id))

    def _ask(self, request: Any) -> Any:
        async def ask() -> Any:
            await self._network.call(1, FindCoordinatorRequest((self.metadata.group_id,)), 10_000)
            while True:
                try:
                    return await self._network.call(1, request, 10_000)
                except ApiError as error:
                    if not error.retriable:
                        raise
                    await asyncio.sleep(0.02)

        return io_thread.run(ask, WAIT_S)


def _commit_as(consumer: Consumer, group: GroupMetadata, offsets: dict[TopicPartition, int]) -> None:
    assert consumer._core.fetcher.group_offsets is not None
    given = {tp: OffsetAndMetadata(offset) for tp, offset in offsets.items()}
    io_thread.run(partial(consumer._core.fetcher.group_offsets.commit, given, group), WAIT_S)


def test_a_coordinator_that_is_killed_costs_a_commit_no_more_than_its_succession():
    config = {
        "offsets.topic.num.partitions": 1,
        "default.replication.factor": 3,
        "broker.session.timeout.ms": 3_000,
        "broker.heartbeat.interval.ms": 100,
    }
    with rayka.testing.cluster(brokers=3, config=config) as cluster, rayka.Admin(cluster) as admin:
        admin.create_topic("orders", partitions=1)
        tp = TopicPartition("orders", 0)
        with consumer_of(cluster, tp) as consumer:
            consumer.commit({tp: 1})
            cluster.await_isr("__consumer_offsets", 0, (1, 2, 3))
            cluster.kill(admin.describe_group("g").coordinator_id)
            consumer.commit({tp: 2})
            assert consumer.committed([tp])[tp] == OffsetAndMetadata(2)
            assert admin.describe_group("g").state is GroupState.EMPTY


def test_a_coordinator_whose_disk_is_full_takes_commits_again_when_there_is_room():
    disk = MemoryDisk()
    disks = {1: disk, 3001: MemoryDisk()}
    with rayka.testing.cluster(config=CONFIG, data_dir="/data", disks=disks) as cluster:
        tp = TopicPartition("orders", 0)
        with rayka.Admin(cluster) as admin:
            admin.create_topic("orders", partitions=1)
        with consumer_of(cluster, tp, default_api_timeout_ms=1_500) as consumer:
            consumer.commit({tp: 1})
            io_thread.call_soon(disk.fill_up)
            with pytest.raises(RaykaError, match="__consumer_offsets-"):
                consumer.commit({tp: 2})
            io_thread.call_soon(disk.fill_up, 1 << 40)  # there is room again
            wait_until(lambda: _is_committed(consumer, {tp: 3}))
            assert consumer.committed([tp])[tp] == OffsetAndMetadata(3)


def _is_committed(consumer: Consumer, offsets: dict[TopicPartition, int]) -> bool:
    try:
        consumer.commit(offsets)
    except RaykaError:
        return False
    return True


# ---- Pausing, and where things are ----


def test_a_paused_partition_gives_nothing_and_goes_on_where_it_was(cluster, topic):
    tp, other = TopicPartition(topic, 0), TopicPartition(topic, 1)
    with consumer_of(cluster, tp, other) as consumer:
        assert poll(consumer, 3) == [0, 1, 2]
        consumer.pause(tp)
        assert consumer.paused() == (tp,)
        assert consumer.poll(timeout_ms=100) == []
        assert consumer.position(tp) == 3
        with Producer(cluster=cluster) as producer:
            producer.send(topic, b"100", partition=1)
        assert poll(consumer) == [100]
        consumer.resume(tp)
        assert consumer.paused() == ()
        assert poll(consumer) == [3, 4, 5, 6, 7, 8, 9]


def test_a_pause_holds_in_a_loop_that_is_under_way(cluster, topic):
    tp, other = TopicPartition(topic, 0), TopicPartition(topic, 1)
    with consumer_of(cluster, tp, other) as consumer:
        seen: list[int] = []
        for record in consumer:
            seen.append(int(record.value or b""))
            if seen == [0, 1]:
                consumer.pause(tp)
                consumer.commit()
                with Producer(cluster=cluster) as producer:
                    producer.send(topic, b"100", partition=1)
            if seen[-1] == 100:
                consumer.resume(tp)
            if seen[-1] == 9:
                break
        assert seen == [0, 1, 100, 2, 3, 4, 5, 6, 7, 8, 9]
        assert consumer.committed([tp])[tp] is not None
        assert consumer.committed([tp])[tp].offset == 2


def test_a_seek_keeps_a_pause_and_an_assignment_ends_it(cluster, topic):
    tp = TopicPartition(topic, 0)
    with consumer_of(cluster, tp) as consumer:
        poll(consumer, 2)
        consumer.pause(tp)
        consumer.seek(tp, 5)
        assert consumer.poll(timeout_ms=100) == []
        assert consumer.paused() == (tp,)
        consumer.assign([])
        consumer.assign([tp])
        assert consumer.paused() == ()
        with pytest.raises(ValueError, match="is not assigned"):
            consumer.pause(TopicPartition(topic, 1))


def test_lag_is_the_distance_to_the_end(cluster, topic):
    tp, empty = TopicPartition(topic, 0), TopicPartition(topic, 1)
    with consumer_of(cluster, tp, empty) as consumer:
        consumer.seek_to_beginning()
        assert consumer.lag() == {tp: 10, empty: 0}
        poll(consumer, 4)
        assert consumer.lag(tp) == {tp: 6}


def test_offsets_are_found_by_time(cluster: InProcessCluster, topic: str) -> None:  # G12
    tp, empty = TopicPartition(topic, 0), TopicPartition(topic, 1)
    with consumer_of(cluster, tp, empty) as consumer:
        found = consumer.offsets_for_times({tp: datetime(1970, 1, 1, 0, 0, 3, 500_000, UTC), empty: 0})
        assert found[empty] is None
        assert found[tp] is not None
        assert (found[tp].offset, found[tp].timestamp_ms) == (4, 4_000)
        with pytest.raises(ValueError, match="expected a time since 1970"):
            consumer.offsets_for_times({tp: -2})


def test_a_consumer_goes_to_a_time(cluster, topic):
    tp, empty = TopicPartition(topic, 0), TopicPartition(topic, 1)
    with consumer_of(cluster, tp, empty) as consumer:
        consumer.seek_to_timestamp(7_000)
        assert poll(consumer) == [7, 8, 9]
        consumer.seek_to_timestamp(50_000, tp)
        assert consumer.position(tp) == 10
