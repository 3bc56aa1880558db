"""What arrives in one turn is appended together, and each request is answered for itself (B15, G10)."""

import asyncio
from collections.abc import Iterable
from typing import Any

import pytest

from rayka.errors import ErrorCode
from rayka.node.inbox import completed
from rayka.node.produce_handler import DUE_BYTES_MAX, DUE_COUNT_MAX, ProduceHandler
from rayka.partition.follower_states import FollowerFetch
from rayka.partition.partition_leader import PartitionLeader
from rayka.protocol.produce import (
    ACKS_ALL,
    ACKS_LEADER,
    ACKS_NONE,
    ProducePartition,
    ProducePartitionResult,
    ProduceRequest,
)
from tests.node.broker_support import records
from tests.node.produce_support import WALL_CLOCK_MS
from tests.node.replica_support import (
    BROKER,
    LEADER,
    ORDERS,
    Broker,
    changed,
    configured,
    now_ms,
    run,
    settle,
)

TIMEOUT_MS = 10_000


class Leading:
    """A broker that leads partition 0, with one follower in sync, and what is produced to it."""

    def __init__(self, broker: Broker) -> None:
        self.broker = broker
        self.handler = ProduceHandler(broker.replicas, lambda: WALL_CLOCK_MS)

    @classmethod
    async def start(cls, **config: Any) -> "Leading":
        broker = await Broker.start()
        await broker.apply(
            *configured(**config), broker.new_partition(leader_id=BROKER, isr=(BROKER, LEADER))
        )
        return cls(broker)

    def produce(
        self, value: bytes = b"a", *, acks: int = ACKS_ALL, timeout_ms: int = TIMEOUT_MS, number: int = 0
    ) -> "asyncio.Future[Any]":
        """One record; the request is here when this returns."""
        request = ProduceRequest(acks, timeout_ms, (ProducePartition(ORDERS, number, records(value)),))
        return asyncio.ensure_future(completed(self.handler.handle(request)))

    def fetch(self, from_offset: int) -> None:
        """The follower has what is below."""
        replica = self.broker.replica(0)
        update = replica.partition.as_leader().record_fetch(
            FollowerFetch(LEADER, 1, from_offset, 0), now_ms=now_ms()
        )
        self.broker.replicas.on_follower_fetch(replica, update)

    @property
    def end_offset(self) -> int:
        return self.broker.partition().log.log_end_offset


async def results(waiting: "Iterable[asyncio.Future[Any]]") -> list[tuple[ErrorCode, int]]:
    """The error and the offset of each."""
    found: list[ProducePartitionResult] = [(await each).partitions[0] for each in waiting]
    return [(each.error_code, each.base_offset) for each in found]


def test_what_arrives_in_one_turn_is_appended_together(monkeypatch: pytest.MonkeyPatch) -> None:
    appends: list[int] = []
    append_all = PartitionLeader.append_all

    def counted(leader: PartitionLeader, requests: Any, **times: int) -> Any:
        appends.append(len(requests))
        return append_all(leader, requests, **times)

    monkeypatch.setattr(PartitionLeader, "append_all", counted)

    async def main() -> None:
        leading = await Leading.start()
        waiting = [leading.produce(acks=acks) for acks in (ACKS_LEADER, ACKS_ALL, ACKS_NONE, ACKS_ALL)]
        assert (leading.end_offset, appends) == (0, [])
        await settle()
        assert appends == [4]
        assert [each.done() for each in waiting] == [True, False, True, False]
        leading.fetch(4)
        assert await results(waiting) == [(ErrorCode.NONE, offset) for offset in range(4)]
        await leading.broker.stop()

    run(main)


def test_a_request_that_is_refused_holds_up_none_that_came_with_it() -> None:
    async def main() -> None:
        leading = await Leading.start(max_message_bytes=500)
        waiting = [leading.produce(value, acks=ACKS_LEADER) for value in (b"a", b"x" * 1000, b"b")]
        waiting.append(leading.produce(number=7, acks=ACKS_LEADER))
        codes = [code for code, _ in await results(waiting)]
        assert codes == [
            ErrorCode.NONE, ErrorCode.MESSAGE_TOO_LARGE, ErrorCode.NONE, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ]  # fmt: skip
        assert leading.end_offset == 2
        await leading.broker.stop()

    run(main)


def test_what_was_appended_together_is_answered_by_each_ones_deadline() -> None:  # B15
    async def main() -> None:
        leading = await Leading.start()
        short, long = leading.produce(timeout_ms=100), leading.produce(timeout_ms=TIMEOUT_MS)
        assert await results([short]) == [(ErrorCode.REQUEST_TIMED_OUT, -1)]
        assert not long.done()
        leading.fetch(2)
        assert await results([long]) == [(ErrorCode.NONE, 1)]
        await leading.broker.stop()

    run(main)


def test_of_what_was_appended_together_a_part_may_be_committed_first() -> None:  # B15
    async def main() -> None:
        leading = await Leading.start()
        first, second = leading.produce(), leading.produce()
        await settle()
        leading.fetch(1)
        assert await results([first]) == [(ErrorCode.NONE, 0)]
        assert not second.done()
        await leading.broker.apply(changed(leader_id=LEADER))
        assert await results([second]) == [(ErrorCode.NOT_LEADER_OR_FOLLOWER, -1)]
        await leading.broker.stop()

    run(main)


def test_what_waits_for_the_end_of_the_turn_is_bounded() -> None:
    async def main() -> None:
        leading = await Leading.start()
        waiting = [leading.produce(acks=ACKS_LEADER) for _ in range(DUE_COUNT_MAX + 1)]
        assert leading.end_offset == DUE_COUNT_MAX
        assert len(await results(waiting)) == leading.end_offset == DUE_COUNT_MAX + 1
        await leading.broker.stop()

    run(main)


def test_what_waits_for_the_end_of_the_turn_is_bounded_in_bytes() -> None:
    async def main() -> None:
        leading = await Leading.start()
        value = b"x" * (DUE_BYTES_MAX // 2)
        waiting = [leading.produce(value, acks=ACKS_LEADER) for _ in range(3)]
        assert leading.end_offset == 2
        assert len(await results(waiting)) == leading.end_offset == 3
        await leading.broker.stop()

    run(main)


def test_what_a_process_has_not_appended_when_it_ends_is_never_appended() -> None:
    async def main() -> None:
        leading = await Leading.start()
        waiting = leading.produce(acks=ACKS_LEADER)
        leading.handler.abandon()
        await settle()
        assert (leading.end_offset, waiting.done()) == (0, False)
        waiting.cancel()
        await leading.broker.stop()

    run(main)
