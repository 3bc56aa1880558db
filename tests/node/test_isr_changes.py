"""A leader has its ISRs changed: proposals go to the controller together, one request at a time (B10-B12).

Kafka: `AlterPartitionManagerTest`, `IsrExpirationTest`.
"""

import asyncio
from collections.abc import Iterator

import pytest

from rayka.errors import ApiError, ErrorCode, NotController, RequestTimedOut, StaleBrokerEpoch
from rayka.node.controller_link import ControllerLink
from rayka.node.replica_manager import IsrChanges
from rayka.node.tasks import ITEMS_PER_TURN
from rayka.partition.follower_states import FollowerFetch
from rayka.partition.partition import Partition
from rayka.protocol.membership import (
    AlterPartitionRequest,
    AlterPartitionResponse,
    AlterPartitionResult,
    IsrMember,
)
from tests.node.broker_support import records
from tests.node.replica_support import (
    BROKER,
    BROKER_EPOCH,
    CONTROLLER,
    LEADER,
    ORDERS,
    OTHER,
    Broker,
    changed,
    now_ms,
    run,
    settle,
)
from tests.partition.support import append_one

LAG_MS = 30_000


async def leading(*numbers: int, isr: tuple[int, ...] = (BROKER,)) -> Broker:
    broker = await Broker.start()
    await broker.apply(*(broker.new_partition(number, leader_id=BROKER, isr=isr) for number in numbers))
    return broker


def fetch(broker: Broker, number: int, replica_id: int = LEADER) -> None:
    """A follower has everything."""
    replica = broker.replica(number)
    follower = FollowerFetch(replica_id, 1, replica.partition.log.log_end_offset, 0)
    update = replica.partition.as_leader().record_fetch(follower, now_ms=now_ms())
    broker.replicas.on_follower_fetch(replica, update)


def accepted(request: AlterPartitionRequest) -> AlterPartitionResponse:
    results = [
        AlterPartitionResult(
            each.topic_id,
            each.partition,
            leader_id=BROKER,
            leader_epoch=each.leader_epoch,
            isr=tuple(member.broker_id for member in each.isr),
            partition_epoch=each.partition_epoch + 1,
        )
        for each in request.partitions
    ]
    return AlterPartitionResponse(tuple(results))


def refused(request: AlterPartitionRequest, error_code: ErrorCode) -> AlterPartitionResponse:
    return AlterPartitionResponse(
        tuple(AlterPartitionResult(each.topic_id, each.partition, error_code) for each in request.partitions)
    )


def test_a_proposal_carries_the_broker_epochs_and_is_committed_by_the_answer() -> None:  # B11, B12
    async def main() -> None:
        broker = await leading(0)
        fetch(broker, 0)
        asked = await broker.others.proposals.get()
        (item,) = asked.request.partitions
        assert (asked.node_id, asked.request.broker_id, asked.request.broker_epoch) == (
            CONTROLLER, BROKER, BROKER_EPOCH,
        )  # fmt: skip
        assert (item.topic_id, item.partition, item.leader_epoch, item.partition_epoch) == (ORDERS, 0, 0, 0)
        assert item.isr == (IsrMember(BROKER, BROKER_EPOCH), IsrMember(LEADER, 1))
        asked.answer(accepted(asked.request))
        with broker.replicas.parked.watch([(ORDERS, 0)]) as watch:
            assert await watch.wait(now_ms() / 1000 + 1)  # what waits for the ISR looks again
        assert (broker.partition().isr, broker.partition().role.state.partition_epoch) == (
            (BROKER, LEADER),
            1,
        )
        await broker.stop()

    run(main)


def test_what_is_proposed_while_a_request_is_under_way_goes_together_in_the_next() -> None:  # B12
    async def main() -> None:
        broker = await leading(0, 1, 2)
        fetch(broker, 0)
        asked = await broker.others.proposals.get()
        fetch(broker, 1)
        fetch(broker, 2)
        assert broker.others.proposals.empty()
        asked.answer(accepted(asked.request))
        asked = await broker.others.proposals.get()
        assert [each.partition for each in asked.request.partitions] == [1, 2]
        await broker.stop()

    run(main)


@pytest.mark.parametrize(
    "error",
    [RequestTimedOut("late"), NotController("another one is"), StaleBrokerEpoch("registered anew")],
    ids=repr,
)
def test_a_request_that_came_to_nothing_is_sent_again_after_a_pause(error: ApiError) -> None:  # B12
    async def main() -> None:
        broker = await leading(0)
        fetch(broker, 0)
        asked = await broker.others.proposals.get()
        for pause_ms in (20, 40, 80, 100):
            failed_ms, before = now_ms(), asked.request
            asked.fail(error)
            asked = await broker.others.proposals.get()
            assert (asked.request.partitions, now_ms() - failed_ms) == (before.partitions, pause_ms)
        await broker.stop()

    run(main)


def test_an_error_that_says_nothing_about_the_proposal_is_proposed_again() -> None:  # B12
    async def main() -> None:
        broker = await leading(0)
        fetch(broker, 0)
        asked = await broker.others.proposals.get()
        asked.answer(refused(asked.request, ErrorCode.UNKNOWN_SERVER_ERROR))
        again = await broker.others.proposals.get()
        assert again.request.partitions == asked.request.partitions
        await broker.stop()

    run(main)


def test_a_refused_proposal_is_not_sent_again() -> None:  # B12
    async def main() -> None:
        broker = await leading(0)
        fetch(broker, 0)
        asked = await broker.others.proposals.get()
        asked.answer(refused(asked.request, ErrorCode.INELIGIBLE_REPLICA))
        await settle()
        fetch(broker, 0)  # it may be eligible by now
        asked = await broker.others.proposals.get()
        assert broker.partition().pending_isr is not None
        asked.answer(refused(asked.request, ErrorCode.INVALID_UPDATE_VERSION))
        for _ in range(3):
            await settle()
            fetch(broker, 0)
        assert broker.others.proposals.empty()
        assert broker.partition().isr == (BROKER,)
        await broker.stop()

    run(main)


def test_a_proposal_that_metadata_has_overtaken_is_not_sent() -> None:  # B12
    async def main() -> None:
        broker = await leading(0, 1)
        fetch(broker, 0)
        asked = await broker.others.proposals.get()
        fetch(broker, 1)
        await broker.apply(changed(0, isr=(BROKER, OTHER)), changed(1, isr=(BROKER, LEADER)))
        asked.fail(RequestTimedOut("late"))
        fetch(broker, 0)
        asked = await broker.others.proposals.get()
        (item,) = asked.request.partitions
        assert (item.partition, item.partition_epoch, len(item.isr)) == (0, 1, 3)
        await broker.stop()

    run(main)


def test_a_follower_that_does_not_keep_up_is_left_out_within_one_and_a_half_times_the_lag() -> None:  # B10
    async def main() -> None:
        broker = await leading(0, isr=(BROKER, LEADER, OTHER))
        began_ms = now_ms()
        fetch(broker, 0, OTHER)
        append_one(
            broker.partition().as_leader(), records(b"a"), 1, now_ms=now_ms(), timestamp_ms=1_700_000_000_000
        )
        asked = await broker.others.proposals.get()
        (item,) = asked.request.partitions
        assert [each.broker_id for each in item.isr] == [BROKER]
        assert LAG_MS < now_ms() - began_ms <= 1.5 * LAG_MS
        await broker.stop()

    run(main)


def test_very_many_partitions_are_looked_at_in_several_turns() -> None:  # B10
    async def main() -> None:
        broker = await leading(0)
        changes = IsrChanges(broker.settings, ControllerLink(broker.others), broker.directories, print)
        turns: list[int] = []

        def partitions() -> Iterator[Partition]:
            for number in range(3 * ITEMS_PER_TURN):
                if number == 0:
                    asyncio.get_running_loop().create_task(count_turns())
                yield broker.partition()
            turns.append(0)

        async def count_turns() -> None:
            while 0 not in turns:
                turns.append(1)
                await asyncio.sleep(0)

        shrinking = asyncio.create_task(changes.shrink_forever(partitions))
        await asyncio.sleep(LAG_MS / 2000 + 1)
        shrinking.cancel()
        assert sum(turns) >= 2
        await broker.stop()

    run(main)
