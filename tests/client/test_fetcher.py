"""Which broker a consumer asks, from which offset, and what it makes of the answers (G2, G15, G16, G18)."""

import asyncio
from collections import deque
from collections.abc import Callable, Coroutine, Sequence
from random import Random
from typing import Any, NamedTuple
from uuid import UUID

import msgspec
import numpy as np
import pytest

from rayka.client import io_thread
from rayka.client.consumer.fetch_buffer import Fetched
from rayka.client.consumer.fetcher import Fetcher
from rayka.client.consumer.offset_commits import OffsetAndMetadata
from rayka.config.client_config import ConsumerConfig
from rayka.errors import ErrorCode, LogTruncation, NetworkException, OffsetOutOfRange
from rayka.ids import NO_EPOCH, NO_NODE, ZERO_ID, OffsetAndEpoch, TopicPartition
from rayka.protocol.fetch import (
    FetchPartition,
    FetchPartitionResult,
    FetchRequest,
    FetchResponse,
    ListOffsetsPartitionResult,
    ListOffsetsRequest,
    ListOffsetsResponse,
)
from rayka.protocol.membership import (
    MetadataBroker,
    MetadataPartition,
    MetadataRequest,
    MetadataResponse,
    MetadataTopic,
)
from rayka.sim.loop import VirtualLoop

LEADER, FOLLOWER, CONTROLLER = 1, 2, 3001
ORDERS = TopicPartition("orders", 0)
START, EPOCH = 10, 4
QUICK = {"retry_backoff_ms": 1, "retry_backoff_max_ms": 2, "auto_offset_reset": "earliest"}
TIMEOUT_MS = 10_000


class Asked(NamedTuple):
    node_id: int
    offset: int
    last_fetched_epoch: int
    leader_epoch: int
    rack_id: str


class ScriptedBrokers:
    """A `ClusterHandle` and its `Network`: a partition, its leader, its follower, and what they answer to fetches.

    A fetch for which there is no answer (left) is held for ever, as one without news is, unless it may not wait (G7).
    Each broker keeps a session (G14). `asked`: what requests have newly asked for.
    """

    name = "scripted"

    def __init__(self) -> None:
        self.answers: deque[dict[str, Any] | Exception] = deque()
        self.asked: list[Asked] = []
        self.topic_id, self.start = ZERO_ID, START
        self.leader_id, self.leader_epoch = LEADER, EPOCH
        self.is_follower_fenced = False
        self.partition_count = 1
        self.is_quiet = False  # a fetch without an answer ends soon, with nothing
        self.metadata_count = 0
        self._all_asked = asyncio.Event()
        self._sessions: dict[int, FetchPartition | None] = {}

    def network(self, transport: str = "auto") -> "ScriptedBrokers":
        return self

    async def node_ids(self) -> Sequence[int]:
        return [LEADER, FOLLOWER]

    async def call(self, node_id: int, request: Any, timeout_ms: int) -> Any:
        if isinstance(request, MetadataRequest):
            return self._metadata()
        if isinstance(request, ListOffsetsRequest):
            found = [
                ListOffsetsPartitionResult(
                    each.topic_id, each.partition, offset=self.start, leader_epoch=EPOCH
                )
                for each in request.partitions
            ]
            return ListOffsetsResponse(tuple(found))
        assert isinstance(request, FetchRequest)
        return await self._fetch(node_id, request)

    async def until_all_asked(self) -> None:
        """Returns when a fetch is held because nothing is left to answer; each such fetch counts once."""
        async with asyncio.timeout(TIMEOUT_MS / 1000):
            await self._all_asked.wait()
        self._all_asked.clear()

    async def until(self, holds: Callable[[], bool]) -> None:
        """Fetches without an answer end soon meanwhile."""
        self.is_quiet = True
        async with asyncio.timeout(TIMEOUT_MS / 1000):
            while not holds():  # noqa: ASYNC110  # there is no event for most of what is awaited
                await asyncio.sleep(0.001)

    def _metadata(self) -> MetadataResponse:
        self.metadata_count += 1
        brokers = (
            MetadataBroker(LEADER, "here", False, ()),
            MetadataBroker(FOLLOWER, "there", self.is_follower_fenced, ()),
        )
        replicas = (LEADER, FOLLOWER)
        partitions = tuple(
            MetadataPartition(number, self.leader_id, self.leader_epoch, replicas, replicas)
            for number in range(self.partition_count)
        )
        topic = MetadataTopic("orders", self.topic_id, partitions)
        return MetadataResponse("id", CONTROLLER, brokers, (topic,), 7)

    async def _fetch(self, node_id: int, request: FetchRequest) -> FetchResponse:
        for part in request.partitions:
            self.asked.append(
                Asked(
                    node_id,
                    part.fetch_offset,
                    part.last_fetched_epoch,
                    part.current_leader_epoch,
                    request.rack_id,
                )
            )
            self._sessions[node_id] = part
        if request.forgotten:
            self._sessions[node_id] = None
        if not self.answers:
            if self.is_quiet:
                await asyncio.sleep(0.001)
            elif request.max_wait_ms:
                self._all_asked.set()
                await asyncio.Event().wait()
            return FetchResponse((), session_id=node_id)
        answer = self.answers.popleft()
        if isinstance(answer, Exception):
            raise answer
        wanted = self._sessions[node_id]
        assert wanted is not None
        nothing = FetchPartitionResult(ZERO_ID, 0, next_offset=wanted.fetch_offset)
        return FetchResponse((msgspec.structs.replace(nothing, **answer),), session_id=node_id)


def data(next_offset: int, epoch: int = EPOCH) -> dict[str, Any]:
    records = np.zeros(8, dtype=np.uint8)
    return {"records": records, "next_offset": next_offset, "last_fetched_epoch": epoch}


def follow(*answers: dict[str, Any] | Exception, **options: Any) -> tuple[list[Asked], ScriptedBrokers]:
    """What is asked until no answer is left; what arrives is taken at once."""
    return consume(answers, lambda brokers, fetcher: brokers.until_all_asked(), **options)


def consume(
    answers: Sequence[dict[str, Any] | Exception],
    until: Callable[[ScriptedBrokers, Fetcher], Coroutine[Any, Any, object]],
    brokers: ScriptedBrokers | None = None,
    **options: Any,
) -> tuple[list[Asked], ScriptedBrokers]:
    async def main() -> tuple[list[Asked], ScriptedBrokers]:
        scripted = brokers or ScriptedBrokers()
        scripted.answers.extend(answers)
        fetcher = Fetcher(scripted, ConsumerConfig(**{**QUICK, **options}), Random(1))
        await fetcher.assign([ORDERS])
        polling = asyncio.create_task(poll_forever(fetcher))
        try:
            await until(scripted, fetcher)
        finally:
            polling.cancel()
            await fetcher.close()
        return scripted.asked, scripted

    return io_thread.run(main, 30)


async def poll_forever(fetcher: Fetcher) -> None:
    taken: list[Fetched] = []
    while True:
        await fetcher.poll(TIMEOUT_MS, taken.extend)


def consume_alone(answers: Sequence[dict[str, Any]], act: Any, **options: Any) -> None:
    """As `consume`, without a thread that polls beside."""

    async def main() -> None:
        scripted = ScriptedBrokers()
        scripted.answers.extend(answers)
        fetcher = Fetcher(scripted, ConsumerConfig(**{**QUICK, **options}), Random(1))
        await fetcher.assign([ORDERS])
        try:
            await act(scripted, fetcher)
        finally:
            await fetcher.close()

    io_thread.run(main, 30)


PREFER_FOLLOWER = {"preferred_read_replica": FOLLOWER}

# ---- Epochs ----


def test_a_fetch_names_the_epoch_of_what_was_read_before() -> None:  # G2
    asked, _ = follow(data(12, epoch=5), data(15, epoch=6))
    assert [(each.offset, each.last_fetched_epoch) for each in asked] == [(10, EPOCH), (12, 5), (15, 6)]


def test_after_a_truncation_reading_goes_on_where_the_logs_part() -> None:  # G16
    asked, _ = follow(data(15), {"diverging_epoch": OffsetAndEpoch(12, EPOCH - 1)})
    assert [(each.offset, each.last_fetched_epoch) for each in asked] == [
        (10, EPOCH),
        (15, EPOCH),
        (12, EPOCH - 1),
    ]


def test_without_a_reset_policy_a_truncation_is_an_error() -> None:  # G16
    async def seek_and_poll(_: ScriptedBrokers, fetcher: Fetcher) -> None:
        await fetcher.seek({ORDERS: 10})
        await fetcher.poll(TIMEOUT_MS, list)
        with pytest.raises(LogTruncation, match="seek to 12 to read what is there now") as caught:
            await fetcher.poll(TIMEOUT_MS, list)
        assert caught.value.divergent_offsets == {ORDERS: 12}

    answers = [data(15), {"diverging_epoch": OffsetAndEpoch(12, EPOCH - 1)}]
    consume_alone(answers, seek_and_poll, auto_offset_reset="none")


def test_a_fenced_epoch_is_asked_again_in_the_new_one() -> None:  # B24, G18
    brokers = ScriptedBrokers()

    async def elect(scripted: ScriptedBrokers, fetcher: Fetcher) -> None:
        scripted.leader_id, scripted.leader_epoch = FOLLOWER, EPOCH + 1
        await scripted.until_all_asked()

    fenced = {"error_code": ErrorCode.FENCED_LEADER_EPOCH}
    asked, _ = consume([fenced], elect, brokers)
    assert [(each.node_id, each.leader_epoch) for each in asked] == [(LEADER, EPOCH), (FOLLOWER, EPOCH + 1)]


@pytest.mark.parametrize("code", [ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.FENCED_LEADER_EPOCH])
def test_a_leader_that_a_refusal_names_is_asked_without_a_question_and_a_pause(
    code: ErrorCode,
) -> None:  # G18
    named = {"error_code": code, "leader_id": FOLLOWER, "leader_epoch": EPOCH + 1}
    asked, brokers = follow(named, retry_backoff_ms=TIMEOUT_MS, retry_backoff_max_ms=TIMEOUT_MS)
    assert [(each.node_id, each.leader_epoch) for each in asked] == [(LEADER, EPOCH), (FOLLOWER, EPOCH + 1)]
    assert brokers.metadata_count == 1


@pytest.mark.parametrize("named", [(FOLLOWER, EPOCH), (NO_NODE, EPOCH + 1)], ids=["older", "none"])
def test_a_refusal_that_names_no_later_leader_is_a_reason_to_ask(named: tuple[int, int]) -> None:  # G18
    refusal = {
        "error_code": ErrorCode.NOT_LEADER_OR_FOLLOWER,
        "leader_id": named[0],
        "leader_epoch": named[1],
    }
    asked, brokers = follow(refusal)
    assert [(each.node_id, each.leader_epoch) for each in asked] == [(LEADER, EPOCH)] * 2
    assert brokers.metadata_count == 2


def test_an_epoch_that_the_broker_does_not_know_yet_is_asked_again() -> None:  # B24, G18
    """Soon: it will know that epoch in a moment."""
    unknown = {"error_code": ErrorCode.UNKNOWN_LEADER_EPOCH}
    asked, brokers = follow(unknown, unknown, retry_backoff_ms=TIMEOUT_MS, retry_backoff_max_ms=TIMEOUT_MS)
    assert [(each.node_id, each.offset) for each in asked] == [(LEADER, START)] * 3
    assert brokers.metadata_count == 1


# ---- The rack ----


def test_a_reader_says_in_which_rack_it_is() -> None:  # G15
    asked, _ = follow(client_rack="left")
    assert asked[0].rack_id == "left"


def test_a_reader_in_no_rack_and_beside_no_broker_names_no_rack() -> None:  # G15
    asked, _ = follow()
    assert asked[0].rack_id == ""


def test_a_reader_goes_where_the_leader_sends_it_and_stays() -> None:  # G15
    asked, _ = follow(PREFER_FOLLOWER, data(12), data(15))
    assert [(each.node_id, each.offset) for each in asked] == [
        (LEADER, 10), (FOLLOWER, 10), (FOLLOWER, 12), (FOLLOWER, 15),
    ]  # fmt: skip


@pytest.mark.parametrize(
    "problem",
    [
        {"error_code": ErrorCode.OFFSET_OUT_OF_RANGE},
        {"error_code": ErrorCode.NOT_LEADER_OR_FOLLOWER},
        {"error_code": ErrorCode.UNKNOWN_LEADER_EPOCH},
        {"error_code": ErrorCode.KAFKA_STORAGE_ERROR},
        {"diverging_epoch": OffsetAndEpoch(3, 1)},
        NetworkException("gone"),
    ],
)
def test_whatever_a_follower_complains_about_the_leader_is_asked(problem: Any) -> None:  # G3, G15
    asked, _ = follow(PREFER_FOLLOWER, problem, auto_offset_reset="latest")
    assert [(each.node_id, each.offset) for each in asked] == [(LEADER, 10), (FOLLOWER, 10), (LEADER, 10)]


def test_what_the_leader_says_is_out_of_range_is_reset() -> None:  # G3
    asked, _ = follow(data(15), {"error_code": ErrorCode.OFFSET_OUT_OF_RANGE})
    assert [each.offset for each in asked] == [10, 15, START]


@pytest.mark.parametrize(
    "problem",
    [{"error_code": ErrorCode.OFFSET_OUT_OF_RANGE}, {"diverging_epoch": OffsetAndEpoch(3, EPOCH)}],
)
def test_a_leader_older_than_what_was_read_does_not_decide_where_reading_goes_on(
    problem: Any,
) -> None:  # G3, G16
    brokers = ScriptedBrokers()

    async def elect(scripted: ScriptedBrokers, fetcher: Fetcher) -> None:
        scripted.leader_id, scripted.leader_epoch = FOLLOWER, EPOCH + 1
        await scripted.until_all_asked()

    asked, _ = consume([data(15, epoch=EPOCH + 1), problem], elect, brokers)
    assert [(each.node_id, each.offset) for each in asked] == [(LEADER, 10), (LEADER, 15), (FOLLOWER, 15)]


def test_what_the_leader_says_is_out_of_range_is_an_error_without_a_policy() -> None:  # G3
    async def seek_and_poll(_: ScriptedBrokers, fetcher: Fetcher) -> None:
        await fetcher.seek({ORDERS: 99})
        with pytest.raises(OffsetOutOfRange):
            await fetcher.poll(TIMEOUT_MS, list)

    consume_alone([{"error_code": ErrorCode.OFFSET_OUT_OF_RANGE}], seek_and_poll, auto_offset_reset="none")


def test_a_partition_whose_error_is_raised_late_is_asked_again() -> None:  # G16
    async def raise_late(scripted: ScriptedBrokers, fetcher: Fetcher) -> None:
        await fetcher.seek({ORDERS: 99})
        arrived = asyncio.Event()
        fetcher.state.buffer.on_error = arrived.set
        await fetcher.poll(0, list)
        async with asyncio.timeout(TIMEOUT_MS / 1000):
            await arrived.wait()
        for _ in range(100):  # the loop has nothing left to ask, and waits
            await asyncio.sleep(0)
        with pytest.raises(OffsetOutOfRange):
            await fetcher.poll(TIMEOUT_MS, list)
        await scripted.until_all_asked()
        assert [each.offset for each in scripted.asked] == [99, 99]

    consume_alone([{"error_code": ErrorCode.OFFSET_OUT_OF_RANGE}], raise_late, auto_offset_reset="none")


def test_after_a_while_the_leader_is_asked_which_replica_is_nearest() -> None:  # G15
    async def until_asked_again(scripted: ScriptedBrokers, fetcher: Fetcher) -> None:
        async with asyncio.timeout(TIMEOUT_MS / 1000):
            while [each.node_id for each in scripted.asked].count(LEADER) < 2:
                scripted.answers.append({})
                await asyncio.sleep(0)

    asked, _ = consume([PREFER_FOLLOWER, {}], until_asked_again, metadata_max_age_ms=50)
    assert FOLLOWER in [each.node_id for each in asked]


def test_a_follower_that_is_fenced_is_not_asked() -> None:  # G15
    brokers = ScriptedBrokers()
    brokers.is_follower_fenced = True
    asked, _ = consume([PREFER_FOLLOWER, data(12)], lambda each, _: each.until_all_asked(), brokers)
    assert [(each.node_id, each.offset) for each in asked] == [(LEADER, 10), (LEADER, 12)]


def test_a_position_that_was_sought_has_no_epoch() -> None:  # G2
    async def seek(scripted: ScriptedBrokers, fetcher: Fetcher) -> None:
        await scripted.until_all_asked()
        await fetcher.seek({ORDERS: 3})
        await scripted.until_all_asked()

    asked, _ = consume([], seek)
    assert (asked[1].offset, asked[1].last_fetched_epoch) == (3, NO_EPOCH)


# ---- Metadata of a consumer that waits ----


def test_what_waits_of_a_former_topic_is_no_position_to_commit_for_the_new_one() -> None:  # E10
    async def scene(brokers: ScriptedBrokers, fetcher: Fetcher) -> None:
        await fetcher.poll(0, [].extend)
        await brokers.until_all_asked()
        assert fetcher.consumed({}) == {ORDERS: OffsetAndMetadata(START)}
        brokers.topic_id, brokers.start = UUID(int=1), 0
        await fetcher.metadata.refresh(["orders"])
        assert fetcher.consumed({}) == {}
        await brokers.until_all_asked()
        assert fetcher.consumed({}) == {ORDERS: OffsetAndMetadata(0, leader_epoch=EPOCH)}
        assert [each.fetch_offset for each in fetcher.state.buffer.waiting()] == [START]

    consume_alone([data(20)], scene)


def test_metadata_that_have_become_old_are_asked_for_while_nothing_happens() -> None:  # G14, G18
    async def until_asked_again(scripted: ScriptedBrokers, _: Fetcher) -> None:
        await scripted.until(lambda: scripted.metadata_count >= 3)

    asked, _ = consume([], until_asked_again, metadata_max_age_ms=50)
    assert [(each.node_id, each.offset) for each in asked] == [(LEADER, START)]


def test_a_leader_of_which_only_the_metadata_tell_is_asked() -> None:  # G14, G18
    async def elect(scripted: ScriptedBrokers, _: Fetcher) -> None:
        await scripted.until(lambda: bool(scripted.asked))
        scripted.leader_id, scripted.leader_epoch = FOLLOWER, EPOCH + 1
        await scripted.until(lambda: len(scripted.asked) > 1)

    asked, _ = consume([], elect, metadata_max_age_ms=50)
    assert [(each.node_id, each.leader_epoch) for each in asked] == [(LEADER, EPOCH), (FOLLOWER, EPOCH + 1)]


def test_metadata_are_asked_for_no_more_when_a_leader_is_known_again() -> None:  # G18
    async def lose_and_elect(scripted: ScriptedBrokers, _: Fetcher) -> None:
        scripted.leader_id = NO_NODE
        await scripted.until(lambda: scripted.metadata_count >= 10)
        scripted.leader_id, scripted.leader_epoch = FOLLOWER, EPOCH + 1
        count = -1
        async with asyncio.timeout(TIMEOUT_MS / 1000):
            while count != scripted.metadata_count:
                count, fetches = scripted.metadata_count, iter(range(100))
                await scripted.until(lambda left=fetches: next(left, None) is None)

    consume([{"error_code": ErrorCode.NOT_LEADER_OR_FOLLOWER}], lose_and_elect)


@pytest.mark.parametrize(("partition_count", "most"), [(1, 2_500), (9_000, 13)])
def test_leaders_of_many_partitions_are_asked_for_less_often(partition_count: int, most: int) -> None:  # G18
    """Nine thousand partitions without a leader, for five seconds of a virtual clock: a rest is 0.45 s."""
    brokers = ScriptedBrokers()
    brokers.partition_count, brokers.leader_id = partition_count, NO_NODE

    async def main() -> None:
        fetcher = Fetcher(brokers, ConsumerConfig(**QUICK), Random(1))
        await fetcher.follow(["orders"])
        polling = asyncio.create_task(poll_forever(fetcher))
        await asyncio.sleep(5)
        polling.cancel()
        await fetcher.close()

    VirtualLoop().run_until_complete(main())
    assert most / 2 < brokers.metadata_count <= most


def test_a_topic_that_is_subscribed_to_again_and_again_is_asked_for_as_often_as_one() -> None:  # G18
    brokers = ScriptedBrokers()

    async def main() -> None:
        fetcher = Fetcher(brokers, ConsumerConfig(**QUICK, metadata_max_age_ms=10_000), Random(1))
        for _ in range(9):
            await fetcher.follow(["orders"])
            await asyncio.sleep(1)
        asked_count = brokers.metadata_count
        await asyncio.sleep(30)
        assert brokers.metadata_count - asked_count == 3
        await fetcher.close()

    VirtualLoop().run_until_complete(main())


# ---- How much is fetched ahead ----


def test_what_was_fetched_ahead_stays_within_the_total() -> None:  # G5, G16
    async def poll_twice(scripted: ScriptedBrokers, fetcher: Fetcher) -> None:
        taken: list[Fetched] = []
        for expected in (1, 2):
            await fetcher.poll(TIMEOUT_MS, taken.extend)
            assert len(taken) == expected
            await scripted.until(fetcher.state.buffer.has_news)
            for _ in range(100):  # whatever would be asked now is asked
                await asyncio.sleep(0)
            assert len(scripted.asked) == expected + 1

    consume_alone([data(12), data(15), data(18), data(21)], poll_twice, fetch_max_bytes=8)
