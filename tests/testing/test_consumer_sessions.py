"""A consumer in its fetch sessions: what it says of its partitions, and what it does when a broker knows them no more.

Kafka: `FetchSessionHandlerTest`, `FetcherTest` (G14).
"""

from collections.abc import Iterator, Sequence
from functools import partial
from itertools import count
from typing import Any, NamedTuple

import pytest

import rayka
import rayka.testing
from rayka.client import io_thread
from rayka.errors import ErrorCode
from rayka.log.segment import COPIED_RANGE_BYTES_MIN
from rayka.ports import Network
from rayka.protocol.fetch import (
    FINAL_SESSION_EPOCH,
    FIRST_SESSION_EPOCH,
    NO_SESSION,
    FetchRequest,
    FetchResponse,
)
from rayka.testing import InProcessCluster
from tests.testing.waiting import wait_until

PARTITIONS = 20
LONG_MS = 20_000  # no test waits for a fetch that is held back so long
_numbers = count()


class Fetch(NamedTuple):
    """One fetch of a client, and its answer."""

    node_id: int
    request: FetchRequest
    response: FetchResponse


class Watched:
    """A cluster, and what one of its clients fetches."""

    def __init__(self, cluster: InProcessCluster) -> None:
        self.name = cluster.name
        self.sent: list[tuple[int, FetchRequest]] = []
        self.fetches: list[Fetch] = []
        self._network = cluster.network()

    def network(self, transport: str = "auto") -> "Watched":
        return self

    async def node_ids(self) -> Sequence[int]:
        return await self._network.node_ids()

    async def call(self, node_id: int, request: Any, timeout_ms: int) -> Any:
        if not isinstance(request, FetchRequest):
            return await self._network.call(node_id, request, timeout_ms)
        self.sent.append((node_id, request))
        response = await self._network.call(node_id, request, timeout_ms)
        self.fetches.append(Fetch(node_id, request, response))
        return response

    @property
    def session_id(self) -> int:
        return max(each.response.session_id for each in self.fetches)

    @property
    def errors(self) -> list[ErrorCode]:
        return [each.response.error_code for each in self.fetches]

    @property
    def begun(self) -> list[FetchRequest]:
        """The requests that began a session."""
        return [each for _, each in self.sent if each.session_epoch == FIRST_SESSION_EPOCH]

    def end_session(self) -> FetchResponse:
        """As if the broker had dropped it for another one."""
        return fetch_in_session(self._network, self.session_id, FINAL_SESSION_EPOCH)


def fetch_in_session(network: Network, session_id: int, epoch: int) -> FetchResponse:
    request = FetchRequest(0, 0, 0, (), session_id=session_id, session_epoch=epoch)
    return io_thread.run(partial(network.call, 1, request, 5_000), 10)


@pytest.fixture(scope="module")
def cluster() -> Iterator[InProcessCluster]:
    with rayka.testing.cluster() as running:
        yield running


@pytest.fixture
def topic(cluster: InProcessCluster) -> str:
    return new_topic(cluster)


def new_topic(cluster: InProcessCluster) -> str:
    name = f"orders-{next(_numbers)}"
    with rayka.Admin(cluster=cluster) as admin:
        admin.create_topic(name, partitions=PARTITIONS)
    return name


def reading(watched: Watched, topic: str, **options: Any) -> rayka.Consumer:
    more = {"auto_offset_reset": "earliest", "local_reads": False, "retry_backoff_ms": 10, **options}
    return rayka.Consumer(topic, cluster=watched, **more)


def send(cluster: InProcessCluster, topic: str, value: bytes, partition: int = 0) -> None:
    with rayka.Producer(cluster=cluster, linger_ms=0) as producer:
        producer.send(topic, value, partition=partition).result(30)


def values(consumer: rayka.Consumer, record_count: int) -> list[bytes | None]:
    found: list[bytes | None] = []

    def has_all() -> bool:
        found.extend(each.value for each in consumer.poll(timeout_ms=100))
        return len(found) >= record_count

    wait_until(has_all)
    return found


def until_idle(consumer: rayka.Consumer, watched: Watched) -> None:
    """Until a request that has nothing to say was answered with nothing."""

    def is_idle() -> bool:
        assert not consumer.poll(timeout_ms=10)
        return any(not each.request.partitions and not each.response.partitions for each in watched.fetches)

    wait_until(is_idle)


def test_within_a_session_a_consumer_names_only_what_has_changed(cluster, topic) -> None:  # G14
    watched = Watched(cluster)
    with reading(watched, topic, fetch_max_wait_ms=20) as consumer:
        until_idle(consumer, watched)
        told = len(watched.fetches)
        send(cluster, topic, b"one", partition=7)
        assert values(consumer, 1) == [b"one"]
        arrived = len(watched.fetches)
        wait_until(lambda: not consumer.poll(10) and len(watched.fetches) > arrived + 4)
    later = watched.fetches[told:]
    assert {each.partition for fetch in later for each in fetch.request.partitions} == {7}
    assert {each.partition for fetch in later for each in fetch.response.partitions} == {7}
    assert len(watched.begun) == 1


def test_a_consumer_opens_files_only_while_many_records_come_at_once(cluster, topic) -> None:
    few, many = b"few", bytes(COPIED_RANGE_BYTES_MIN)
    watched = Watched(cluster)
    with reading(watched, topic, local_reads=True) as consumer:
        for value in (few, few, many, many, few, few):
            send(cluster, topic, value)
            assert values(consumer, 1) == [value]
    brought = [part for each in watched.fetches for part in each.response.partitions if part.size_bytes]
    assert [bool(part.file_ranges) for part in brought] == [True, False, False, True, True, False]


def test_a_session_that_the_broker_has_dropped_begins_anew(cluster, topic) -> None:  # G14
    watched = Watched(cluster)
    with reading(watched, topic, fetch_max_wait_ms=20) as consumer:
        until_idle(consumer, watched)
        watched.end_session()
        for number in range(3):
            send(cluster, topic, b"%d" % number, partition=number)
        assert sorted(values(consumer, 3)) == [b"0", b"1", b"2"]
    assert [len(each.partitions) for each in watched.begun] == [PARTITIONS, PARTITIONS]


def test_a_request_out_of_turn_begins_the_session_anew(cluster, topic) -> None:  # G14
    watched = Watched(cluster)
    with reading(watched, topic, fetch_max_wait_ms=20) as consumer:
        until_idle(consumer, watched)
        session_id, newest = watched.session_id, watched.sent[-1][1].session_epoch
        for epoch in range(newest, newest + 50):  # one of them is the next, before the consumer's own
            fetch_in_session(cluster.network(), session_id, epoch)
        send(cluster, topic, b"one")
        assert values(consumer, 1) == [b"one"]
    assert len(watched.begun) > 1


def test_a_closed_consumer_has_no_session(cluster, topic) -> None:  # G14
    watched = Watched(cluster)
    with reading(watched, topic, fetch_max_wait_ms=20) as consumer:
        until_idle(consumer, watched)
        session_id = watched.session_id
        assert session_id != NO_SESSION
    assert watched.sent[-1][1].session_epoch == FINAL_SESSION_EPOCH
    answer = fetch_in_session(cluster.network(), session_id, 5)
    assert answer.error_code is ErrorCode.FETCH_SESSION_ID_NOT_FOUND


def test_a_consumer_for_which_the_broker_has_no_session_reads_all_the_same() -> None:  # G14
    with rayka.testing.cluster(config={"max.incremental.fetch.session.cache.slots": 1}) as cluster:
        topic = new_topic(cluster)
        first, second = Watched(cluster), Watched(cluster)
        with (
            reading(first, topic, fetch_max_wait_ms=20) as has_session,
            reading(second, topic, fetch_max_wait_ms=20) as has_none,
        ):
            until_idle(has_session, first)
            wait_until(lambda: not has_none.poll(10) and len(second.fetches) > 2)
            for number in range(3):
                send(cluster, topic, b"%d" % number, partition=number)
            for consumer in (has_session, has_none):
                assert sorted(values(consumer, 3)) == [b"0", b"1", b"2"]
        assert {each.response.session_id for each in second.fetches} == {NO_SESSION}
        assert {len(each.partitions) for each in second.begun} == {PARTITIONS}


def test_a_seek_is_not_held_up_by_a_fetch_that_waits(cluster, topic) -> None:  # G14, G16
    watched = Watched(cluster)
    send(cluster, topic, b"one")
    with reading(watched, topic, fetch_max_wait_ms=LONG_MS) as consumer:
        assert values(consumer, 1) == [b"one"]
        wait_until(lambda: bool(not consumer.poll(10) and watched.sent[-1][1].max_wait_ms))
        consumer.seek(rayka.TopicPartition(topic, 0), 0)
        assert values(consumer, 1) == [b"one"]
        wait_until(lambda: ErrorCode.INVALID_FETCH_SESSION_EPOCH in watched.errors)  # of the one overtaken
    assert len(watched.begun) == 1


def test_a_partition_that_holds_its_share_leaves_the_session_and_comes_back(
    cluster, topic
) -> None:  # G14, G16
    watched = Watched(cluster)
    for number in range(4):
        send(cluster, topic, b"%d" % number * 400)
    with reading(
        watched, topic, fetch_max_wait_ms=20, max_partition_fetch_bytes=500, max_poll_records=1
    ) as consumer:
        consumer.poll(timeout_ms=0)  # begins to fetch
        wait_until(lambda: any(each.forgotten for _, each in watched.sent))
        (forgotten,) = next(each.forgotten for _, each in watched.sent if each.forgotten)
        assert forgotten.partition == 0
        assert [each[:1] for each in values(consumer, 4) if each] == [b"0", b"1", b"2", b"3"]
        send(cluster, topic, b"more")
        assert values(consumer, 1) == [b"more"]
    assert len(watched.begun) == 1


def test_after_a_broker_came_back_its_sessions_begin_anew() -> None:  # G14
    with rayka.testing.cluster() as cluster:
        topic, watched = new_topic(cluster), Watched(cluster)
        with reading(watched, topic, fetch_max_wait_ms=20) as consumer:
            until_idle(consumer, watched)
            cluster.kill(1)
            cluster.restart(1)
            for number in range(3):
                send(cluster, topic, b"%d" % number, partition=number)
            assert sorted(values(consumer, 3)) == [b"0", b"1", b"2"]
            watched.fetches.clear()
            until_idle(consumer, watched)
        assert len(watched.begun) > 1


def test_partitions_move_to_the_session_of_their_new_leader() -> None:  # G14, G18
    with rayka.testing.cluster(brokers=2) as cluster:
        topic, watched = f"moving-{next(_numbers)}", Watched(cluster)
        with rayka.Admin(cluster=cluster) as admin:
            admin.create_topic(topic, assignments=[[1, 2], [1, 2], [2, 1]])
            for number in range(3):
                cluster.await_isr(topic, number, (1, 2))
            with reading(watched, topic, fetch_max_wait_ms=20) as consumer:
                until_idle(consumer, watched)
                moved = rayka.TopicPartition(topic, 0)
                admin.alter_partition_reassignments({moved: [2, 1]})
                cluster.await_partition(topic, 0, lambda state: state.replicas == (2, 1))
                admin.elect_leaders([moved])
                cluster.await_partition(topic, 0, lambda state: state.leader_id == 2)
                send(cluster, topic, b"moved", partition=0)
                assert values(consumer, 1) == [b"moved"]
        asked = [
            (node_id, each.partition) for node_id, request in watched.sent for each in request.partitions
        ]
        assert (1, 0) in asked
        assert asked[-1] == (2, 0)
        assert len(watched.begun) == 2  # one for each broker, and none for the move


def test_many_partitions_are_told_to_a_broker_in_several_requests_of_one_session() -> None:  # G14
    with rayka.testing.cluster() as cluster:
        topic, watched = f"many-{next(_numbers)}", Watched(cluster)
        with rayka.Admin(cluster=cluster) as admin:
            admin.create_topic(topic, partitions=1_200)
        for number in (0, 700, 1_199):
            send(cluster, topic, b"%d" % number, partition=number)
        with reading(watched, topic, fetch_max_wait_ms=LONG_MS) as consumer:
            assert sorted(values(consumer, 3)) == [b"0", b"1199", b"700"]
            wait_until(lambda: not consumer.poll(10) and watched.sent[-1][1].max_wait_ms > 0)
        told = [each for _, request in watched.sent for each in request.partitions]
    assert len({each.partition for each in told}) == 1_200
    assert max(len(request.partitions) for _, request in watched.sent) <= 500
    assert len(watched.begun) == 1
