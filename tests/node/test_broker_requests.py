"""A broker's answers: what is produced can be fetched, within bounds; waiting ends when it should; errors say which."""

import asyncio
import weakref
from collections.abc import Iterator
from itertools import count
from typing import Any

import msgspec
import numpy as np
import pytest

from rayka.errors import (
    BrokerNotAvailable,
    ErrorCode,
    InvalidRequest,
    InvalidRequiredAcks,
)
from rayka.ids import ZERO_ID
from rayka.log.segment import SLICE_BYTES_MIN
from rayka.node.broker_node import BrokerNode
from rayka.node.inbox import Inbox
from rayka.ports import Request
from rayka.protocol.caller import Answer, Call, Caller
from rayka.protocol.fetch import (
    EARLIEST_TIMESTAMP,
    LATEST_TIMESTAMP,
    FetchRequest,
    ListOffsetsPartition,
    ListOffsetsRequest,
)
from rayka.protocol.membership import MetadataRequest, NodeState, RegisterBrokerRequest, StatusRequest
from rayka.protocol.produce import (
    ACKS_ALL,
    ACKS_LEADER,
    ACKS_NONE,
    ProducePartition,
    ProduceRequest,
    ProduceResponse,
)
from rayka.protocol.wire import decode
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
from tests.node.controller_support import HeldDisk, settings

NUMBERS = count()
BATCH_BYTES = records(b"a" * 1000).size


@pytest.fixture(scope="module")
def cluster() -> Iterator[InProcessCluster]:
    with memory_cluster() as cluster:
        yield cluster


@pytest.fixture
def topic(cluster: InProcessCluster) -> Topic:
    return create_topic(cluster, partitions=3, name=f"topic-{next(NUMBERS)}")


# ---- Produce ----


@pytest.mark.parametrize("acks", [ACKS_ALL, ACKS_LEADER, ACKS_NONE])
def test_what_is_produced_can_be_fetched(topic: Topic, acks: int) -> None:
    assert topic.produce(b"a", b"b", acks=acks).base_offset == 0
    assert topic.produce(b"c", acks=acks).error_code is ErrorCode.NONE
    assert topic.values() == [b"a", b"b", b"c"]


def test_several_batches_of_one_partition_are_one_append(topic: Topic) -> None:
    (result,) = run(topic.a_produce({0: np.concatenate([records(b"a"), records(b"b", b"c")])})).partitions
    assert result.base_offset == 0
    assert topic.values() == [b"a", b"b", b"c"]


def test_each_partition_succeeds_or_fails_for_itself(topic: Topic) -> None:
    damaged = records(b"x" * 100)
    damaged[120] ^= 1
    response = run(topic.a_produce({0: records(b"a"), 1: damaged, 9: records(b"b"), 2: records(b"c")}))
    codes = [each.error_code for each in response.partitions]
    assert codes == [
        ErrorCode.NONE,
        ErrorCode.CORRUPT_MESSAGE,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.NONE,
    ]
    assert "has partitions 0 to 2, found 9" in response.partitions[2].error_message
    assert (topic.values(0), topic.values(1), topic.values(2)) == ([b"a"], [], [b"c"])


def test_a_topic_id_that_is_not_known_is_an_unknown_topic_id(topic: Topic) -> None:
    topic.topic_id = ZERO_ID
    assert topic.produce(b"a").error_code is ErrorCode.UNKNOWN_TOPIC_ID
    assert topic.fetch().error_code is ErrorCode.UNKNOWN_TOPIC_ID
    assert topic.find_offset(LATEST_TIMESTAMP).error_code is ErrorCode.UNKNOWN_TOPIC_ID


def test_acks_that_do_not_exist_are_refused_and_nothing_is_written(topic: Topic) -> None:  # G10
    with pytest.raises(InvalidRequiredAcks, match="found 2"):
        topic.produce(b"a", acks=2)
    assert topic.values() == []


def test_a_batch_above_the_topics_limit_is_refused(cluster: InProcessCluster) -> None:
    topic = create_topic(cluster, name="small", max_message_bytes=500)
    result = topic.produce(b"a" * 1000)
    assert result.error_code is ErrorCode.MESSAGE_TOO_LARGE
    assert "max.message.bytes=500" in result.error_message


def test_a_batch_above_a_segment_is_refused(cluster: InProcessCluster) -> None:
    topic = create_topic(cluster, name="segments", segment_bytes=1024)
    assert topic.produce(b"a" * 2000).error_code is ErrorCode.RECORD_LIST_TOO_LARGE
    assert topic.produce(b"a").base_offset == 0


def test_requests_of_one_caller_are_appended_in_order(topic: Topic) -> None:
    async def produce_all() -> None:
        made = (topic.a_produce({0: records(str(number).encode())}) for number in range(50))
        await asyncio.gather(*made)

    run(produce_all())
    assert topic.values() == [str(number).encode() for number in range(50)]


def test_a_request_behind_a_produce_sees_what_that_has_appended(topic: Topic) -> None:
    latest = ListOffsetsRequest((ListOffsetsPartition(topic.topic_id, 0, LATEST_TIMESTAMP),))

    async def ask_both() -> int:
        made = (topic.a_produce({0: records(b"a")}), topic.a_call(latest))
        return (await asyncio.gather(*made))[1].partitions[0].offset

    assert run(ask_both()) == 1


# ---- Fetch ----


def test_an_answer_is_bounded_in_request_order(topic: Topic) -> None:  # G5
    for partition in range(3):
        for _ in range(2):
            topic.produce(b"a" * 1000, partition=partition)
    response = run(topic.a_fetch({2: 0, 0: 0, 1: 0}, max_bytes=3 * BATCH_BYTES))
    assert [each.records.size // BATCH_BYTES for each in response.partitions] == [2, 1, 0]
    assert [each.next_offset for each in response.partitions] == [2, 1, 0]


def test_a_partition_is_bounded_by_its_own_limit(topic: Topic) -> None:  # G5
    for _ in range(3):
        topic.produce(b"a" * 1000)
    assert topic.fetch(partition_bytes=2 * BATCH_BYTES).next_offset == 2


def test_a_batch_above_every_bound_still_makes_progress(topic: Topic) -> None:  # G6
    topic.produce(b"a" * 1000, partition=1)
    topic.produce(b"a" * 1000, partition=2)
    response = run(topic.a_fetch({0: 0, 1: 0, 2: 0}, max_bytes=10, partition_bytes=10))
    assert [each.records.size for each in response.partitions] == [0, BATCH_BYTES, 0]


def test_a_fetch_in_the_middle_of_a_batch_gets_the_whole_batch(topic: Topic) -> None:  # G4
    topic.produce(b"a", b"b", b"c")
    result = topic.fetch(1)
    assert (values_in(result), result.next_offset) == ([b"a", b"b", b"c"], 3)


def test_a_fetch_outside_the_log_is_out_of_range_at_once(topic: Topic) -> None:  # G3, G7
    result = topic.fetch(5, max_wait_ms=60_000)
    assert result.error_code is ErrorCode.OFFSET_OUT_OF_RANGE


def test_a_fetch_waits_for_records(topic: Topic) -> None:  # G8
    async def fetch_and_produce() -> list[bytes | None]:
        fetching = asyncio.create_task(topic.a_fetch({0: 0, 1: 0}, max_wait_ms=60_000))
        await asyncio.sleep(0)
        assert not fetching.done()
        await topic.a_produce({1: records(b"a")})
        return values_in((await fetching).partitions[1])

    assert run(fetch_and_produce()) == [b"a"]


def test_a_fetch_waits_for_as_much_as_it_wants(topic: Topic) -> None:  # G7, G8
    async def fetch_and_produce() -> list[int]:
        fetching = asyncio.create_task(
            topic.a_fetch({0: 0, 1: 0}, max_wait_ms=60_000, min_bytes=3 * BATCH_BYTES)
        )
        offsets = []
        while not fetching.done():
            response = await topic.a_produce({len(offsets) % 2: records(b"a" * 1000)})
            offsets.append(response.partitions[0].base_offset)
        assert len(offsets) in (3, 4)  # the third wakes it; it may be answered after the fourth
        return [each.records.size // BATCH_BYTES for each in (await fetching).partitions]

    assert sum(run(fetch_and_produce())) >= 3


def test_a_fetch_that_got_nothing_ends_when_its_time_is_over(topic: Topic) -> None:  # G8
    result = topic.fetch(max_wait_ms=20)
    assert (result.error_code, result.records.size, result.next_offset) == (ErrorCode.NONE, 0, 0)


def test_a_fetch_of_nothing_is_answered_at_once(topic: Topic) -> None:  # G7
    assert run(topic.a_fetch({}, max_wait_ms=60_000)).partitions == ()


def test_a_waiting_fetch_learns_that_its_topic_is_gone(cluster: InProcessCluster) -> None:  # G8
    topic = create_topic(cluster, name="doomed")

    async def fetch_and_delete() -> ErrorCode:
        fetching = asyncio.create_task(topic.a_fetch({0: 0}, max_wait_ms=60_000))
        await asyncio.sleep(0)
        await topic.a_delete()
        return (await fetching).partitions[0].error_code

    assert run(fetch_and_delete()) is ErrorCode.UNKNOWN_TOPIC_ID


def test_a_reader_that_can_open_the_directory_gets_file_ranges(topic: Topic) -> None:
    topic.produce(b"a", b"b")
    (broker,) = topic.call(MetadataRequest(())).brokers
    directory_ids = tuple(each.directory_id for each in broker.directories)
    result = topic.fetch(local_directory_ids=directory_ids)
    (found,) = result.file_ranges
    assert (result.records.size, result.next_offset) == (0, 2)
    assert found.size_bytes == topic.fetch().records.size
    assert not topic.fetch(local_directory_ids=(ZERO_ID,)).file_ranges


def test_records_that_are_given_as_a_slice_arrive_as_bytes(topic: Topic) -> None:
    topic.produce(bytes(SLICE_BYTES_MIN))
    topic.produce(b"few")
    (value, few) = topic.values()
    assert (value, few) == (bytes(SLICE_BYTES_MIN), b"few")


# ---- ListOffsets, Metadata, Status ----


def test_offsets_are_found(topic: Topic) -> None:  # G12
    topic.produce(b"a", b"b")
    assert topic.find_offset(EARLIEST_TIMESTAMP).offset == 0
    assert topic.find_offset(LATEST_TIMESTAMP).offset == 2
    assert topic.find_offset(1_700_000_000_000).offset == 0
    assert topic.find_offset(1_700_000_000_001).offset == -1


def test_metadata_names_leaders_and_what_is_unknown(topic: Topic) -> None:
    response = topic.call(MetadataRequest(("nowhere", topic.name)))
    unknown, known = response.topics
    assert (unknown.error_code, unknown.partitions) == (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ())
    assert [each.leader_id for each in known.partitions] == [1, 1, 1]
    assert response.controller_id == CONTROLLER


def test_metadata_waits_for_the_offset_it_was_asked_for(topic: Topic) -> None:
    offset = topic.call(MetadataRequest(())).metadata_offset
    deleted_at = run(topic.a_delete())
    response = topic.call(MetadataRequest((topic.name,), min_metadata_offset=deleted_at))
    assert response.metadata_offset > offset
    assert response.topics[0].error_code is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


def test_status_is_what_the_node_says_of_itself(topic: Topic) -> None:
    topic.produce(b"a")
    status = topic.call(StatusRequest())
    assert (status.node_id, status.state, status.detail) == (1, NodeState.RUNNING, "")
    assert status.partition_count >= 3
    assert status.size_bytes > 0


def test_what_a_broker_does_not_serve_is_an_invalid_request(topic: Topic) -> None:
    with pytest.raises(InvalidRequest, match="broker-1 does not serve 'register_broker'"):
        topic.call(RegisterBrokerRequest(1, "", ZERO_ID, "", ()))


# ---- flush ----


def test_an_append_that_is_not_synced_in_time_is_timed_out_and_stays() -> None:  # B15
    disk = HeldDisk()
    with memory_cluster(disk) as cluster:
        topic = create_topic(cluster, flush="batch")

        async def produce_unsynced() -> ErrorCode:
            disk.is_open.clear()
            response = await topic.a_produce({0: records(b"a")}, timeout_ms=20)
            assert not (await topic.a_fetch({0: 0})).partitions[0].records.size
            disk.is_open.set()
            return response.partitions[0].error_code

        assert run(produce_unsynced()) is ErrorCode.REQUEST_TIMED_OUT
        assert topic.produce(b"b").error_code is ErrorCode.NONE
        assert topic.values() == [b"a", b"b"]


def test_what_waits_for_the_disk_shares_one_sync() -> None:
    disk = HeldDisk()
    with memory_cluster(disk) as cluster:
        topic = create_topic(cluster, partitions=2, flush="batch")

        async def produce_many() -> int:
            disk.is_open.clear()
            disk.began.clear()
            before = disk.sync_count
            made = [asyncio.create_task(topic.a_produce({n % 2: records(b"a")})) for n in range(20)]
            await disk.began.wait()
            disk.is_open.set()
            await asyncio.gather(*made)
            return disk.sync_count - before

        assert run(produce_many()) <= 2  # the first one's, and one for all that came meanwhile


def test_a_request_that_waits_for_its_acknowledgement_holds_no_records() -> None:
    disk = HeldDisk()
    with memory_cluster(disk) as cluster:
        topic = create_topic(cluster, partitions=2, flush="batch")
        inbox = Inbox(cluster.nodes.running[BROKER].node)
        caller = Caller(ZERO_ID)

        def begin() -> "tuple[asyncio.Task[Answer], weakref.ref[np.ndarray]]":
            parts = tuple(ProducePartition(topic.topic_id, each, records(b"a")) for each in range(2))
            call = caller.encode_call(BROKER, ProduceRequest(ACKS_ALL, 10_000, parts), 10_000)
            payload = np.concatenate(call.request.buffers)
            answering = inbox.handle(call.api.name, call.header, call.request.body, payload)
            return asyncio.ensure_future(answering), weakref.ref(payload)

        async def produce() -> list[ErrorCode]:
            disk.is_open.clear()
            disk.began.clear()
            answering, payload = begin()
            assert payload() is not None
            await disk.began.wait()
            assert payload() is None
            assert not answering.done()
            disk.is_open.set()
            response = decode(ProduceResponse, (await answering)[0])
            return [each.error_code for each in response.partitions]

        assert run(produce()) == [ErrorCode.NONE] * 2
        assert (topic.values(0), topic.values(1)) == ([b"a"], [b"a"])


def test_a_request_is_decoded_once(monkeypatch: pytest.MonkeyPatch) -> None:
    decoded: list[object] = []
    decode_one = msgspec.msgpack.decode

    def noted(*arguments: Any, **options: Any) -> Any:
        decoded.append(options.get("type"))
        return decode_one(*arguments, **options)

    with memory_cluster() as cluster:
        topic = create_topic(cluster)
        monkeypatch.setattr(msgspec.msgpack, "decode", noted)
        topic.produce(b"a")
    assert decoded.count(ProduceRequest) == 1


@pytest.mark.parametrize("configs", [{"flush_messages": 1}, {"flush_ms": 1}, {"segment_bytes": 1024}])
def test_configured_syncs_happen(configs: dict[str, int]) -> None:
    disk = HeldDisk()
    with memory_cluster(disk) as cluster:
        topic = create_topic(cluster, **configs)

        async def produce_until_synced() -> int:
            disk.began.clear()
            for _ in range(2):
                await topic.a_produce({0: records(b"a" * 800)})
            await disk.began.wait()
            return disk.sync_count

        assert run(produce_until_synced())


# ---- Life ----


def test_before_it_serves_a_broker_says_so() -> None:
    inbox = Inbox(BrokerNode(settings(MemoryDisk(), node_id=1)))
    caller = Caller(ZERO_ID)

    async def ask(request: Request[Any]) -> Any:
        async def send(call: Call) -> Answer:
            return await inbox.handle(call.api.name, call.header, call.request.body, call.request.payload())

        return await caller.call(1, request, 1000, send)

    async def ask_all() -> None:
        for request in (
            MetadataRequest(),
            FetchRequest(0, 0, 0, ()),
            ProduceRequest(1, 0, ()),
            ListOffsetsRequest(()),
        ):
            with pytest.raises(BrokerNotAvailable, match="broker-1 is starting"):
                await ask(request)
        assert (await ask(StatusRequest())).state is NodeState.STARTING

    asyncio.run(ask_all())
